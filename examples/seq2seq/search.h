/* SPDX-License-Identifier: Apache-2.0 */
/* Beam search over a batch of sentences; with a beam of 1, greedy decoding. */
#ifndef SEQ2SEQ_SEARCH_H
#define SEQ2SEQ_SEARCH_H

#include "model.h"

#define MAX_BEAM   64
#define BEYOND     50 /* section 6.1: an output has at most this many tokens more than its input */
#define MAX_OUTPUT (MAX_INPUT + BEYOND)

typedef struct sentence {
    int32_t source[MAX_INPUT], output[MAX_OUTPUT];
    int source_count, output_count; /* of the output: without its start, and without its end if ended */
    int ended;
    /* The logits of all rows of all steps, one after the other; null unless they were wanted. */
    float *logits;
    int64_t logit_rows;
} sentence;

/* Translates each sentence's source. The result of a sentence does not depend on those beside it. */
void search(runner *r, sentence *sentences, int64_t count, int beam, int want_logits);

#endif
