/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary embedding of a tensor as a part of larger calls: checked once with all else, then shared by threads. */
#ifndef RAPT_ROPE_H
#define RAPT_ROPE_H

#include "tokens.h"

/* A call in progress. */
typedef struct rapt_rope_call {
    rapt_rope_args args;
    rapt_tokens tokens;
} rapt_rope_call;

/* Thread ith's share. */
void rapt_rope_share(const rapt_rope_call *c, int64_t ith, int64_t nth);

#endif
