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

#define LINEAR_MADE UINT64_C(0x36312e6e696c0000) /* changes with the layout of struct full_linear */

/* Clients of 0.1, and callers of the function that has no size, bring memory of this many words. */
enum { LINEAR_PLAN_WORDS = 64 };
_Static_assert(sizeof(full_linear) <= LINEAR_PLAN_WORDS * sizeof(uint64_t), "a plan of 0.1 is too small");

/* What the fields are called in reports. */
typedef struct rapt_linear_names {
    const char *in, *out, *x, *y, *residual, *weight, *bias, *scales, *prepacked;
} rapt_linear_names;

rapt_status rapt_make_linear(rapt_report *r, full_linear *p, const rapt_linear_desc *d, const rapt_linear_names *names);

/* Scratch of each thread. */
size_t rapt_linear_scratch(const full_linear *p);

/* Adds the rows of weights, their bias and scales. */
void rapt_add_weights(rapt_memory *m, const rapt_layout *weight, int64_t out, uint64_t bytes, const rapt_linear_weights *w,
                      const rapt_linear_names *names);

/* Bytes of prepacked weights of the plan, with what stands before them; SIZE_MAX if there cannot be so many. */
size_t rapt_prepacked_bytes(const full_linear *p);

/* Adds prepacked weights of a call, or none where they are null; and when all memory is known to be apart, whether they are of
 * the plan. Errors: as rapt_reads, ALIGNMENT; PREPACKED. */
void rapt_reads_prepacked(rapt_memory *m, const full_linear *p, const char *name, const void *packed);
rapt_status rapt_check_prepacked(rapt_report *r, const full_linear *p, const char *name, const void *packed, rapt_type type);

/* Where the weights themselves begin; null if there are none. */
const float *rapt_prepacked_weights(const void *packed);

/* A plan of a caller's. Errors: NULL, PLAN. */
const full_linear *rapt_read_linear_plan(rapt_report *r, const rapt_linear_plan *opaque, rapt_status *status);

/* A call in progress; workspace: that of all threads. */
typedef struct rapt_linear_call {
    const full_linear *plan;
    rapt_linear_args args;
} rapt_linear_call;

/* Thread ith's share. */
void rapt_linear_share(const rapt_linear_call *c, int64_t ith, int64_t nth);

extern const rapt_linear_desc rapt_default_linear_desc;

#endif
