/* SPDX-License-Identifier: Apache-2.0 */
/* Linear layers as a part of larger calls: checked once with all else, then shared by threads. */
#ifndef RAPT_LINEAR_CALL_H
#define RAPT_LINEAR_CALL_H

#include "kernel.h"
#include "memory.h"

/* What is validated once. */
typedef struct full_linear {
    uint64_t made; /* LINEAR_MADE, or this is no plan */
    const rapt_kernel *kernel;
    rapt_linear_problem problem;
    int64_t all_tokens;
    int staging_outputs; /* as in rapt_tuning */
    uint64_t x_bytes, y_bytes, residual_bytes, weight_bytes, gate_bytes;
} full_linear;

#define LINEAR_MADE UINT64_C(0x35312e6e696c0000) /* changes with the layout of struct full_linear */

/* Clients of 0.1, and callers of the function that has no size, bring memory of this many words. */
enum { LINEAR_PLAN_WORDS = 64 };
_Static_assert(sizeof(full_linear) <= LINEAR_PLAN_WORDS * sizeof(uint64_t), "a plan of 0.1 is too small");

/* What the fields are called in reports. */
typedef struct rapt_linear_names {
    const char *in, *out, *x, *y, *residual, *weight, *bias, *scales;
} rapt_linear_names;

rapt_status rapt_make_linear(rapt_report *r, full_linear *p, const rapt_linear_desc *d, const rapt_linear_names *names);

/* Scratch of each thread. */
size_t rapt_linear_scratch(const full_linear *p);

/* Adds the rows of weights, their bias and scales. */
void rapt_add_weights(rapt_memory *m, const rapt_layout *weight, int64_t out, uint64_t bytes, const rapt_linear_weights *w,
                      const rapt_linear_names *names);

/* A call in progress; workspace: that of all threads. */
typedef struct rapt_linear_call {
    const full_linear *plan;
    rapt_linear_args args;
} rapt_linear_call;

/* Thread ith's share. */
void rapt_linear_share(const rapt_linear_call *c, int64_t ith, int64_t nth);

extern const rapt_linear_desc rapt_default_linear_desc;

#endif
