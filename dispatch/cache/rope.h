/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary embedding of a tensor, as a part of a larger call (rapt_decode_run, rapt_mha_run), which checks it once together with
 * the rest, and then runs it on each thread. */
#ifndef RAPT_ROPE_H
#define RAPT_ROPE_H

#include "cache/tokens.h"

/* A rotation in progress. */
typedef struct rapt_rope_call {
    rapt_rope_args args;
    rapt_tokens tokens;
} rapt_rope_call;

/* Rotates thread ith's share of the rows; if rope.channels is 0, it only converts them. */
void rapt_rope_share(const rapt_rope_call *c, int64_t ith, int64_t nth);

#endif
