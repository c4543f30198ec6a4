/* SPDX-License-Identifier: Apache-2.0 */
/* Linear layers as a part of a larger call (rapt_mha_run), which checks them once together with the rest, and then runs them on
 * each thread. */
#ifndef RAPT_LINEAR_CALL_H
#define RAPT_LINEAR_CALL_H

#include "kernel.h"
#include "core/memory.h"
#include "core/structs.h"

/* The contents of a rapt_linear_plan. */
typedef struct full_linear {
    uint64_t made; /* LINEAR_MADE, or this is not a plan */
    const rapt_kernel *kernel;
    rapt_linear_problem problem;
    int64_t all_tokens;                                                  /* of all batch entries */
    int staging_outputs;                                                 /* as in rapt_tuning */
    uint64_t x_bytes, y_bytes, residual_bytes, weight_bytes, gate_bytes; /* what the tensors span */
} full_linear;

#define LINEAR_MADE UINT64_C(0x36312e6e696c0000) /* changes with the layout of struct full_linear */

/* Clients of 0.1, and callers of the function that has no size, bring memory of this many words. */
enum { LINEAR_PLAN_WORDS = 64 };
_Static_assert(sizeof(full_linear) <= LINEAR_PLAN_WORDS * sizeof(uint64_t), "a plan of 0.1 is too small");

/* The names of a layer's fields in reports. */
typedef struct rapt_linear_names {
    const char *in, *out, *x, *y, *residual, *weight, *bias, *scales, *prepacked;
} rapt_linear_names;

extern const rapt_linear_desc rapt_default_linear_desc; /* as rapt_linear_desc_init leaves it */

/* Makes a plan. Errors: those of rapt_linear_plan_init. */
rapt_status rapt_make_linear(rapt_report *r, full_linear *p, const rapt_linear_desc *d, const rapt_linear_names *names);

/* Returns the caller's plan, which may be used if *status is OK. Errors: NULL, PLAN. */
static inline const full_linear *rapt_read_linear_plan(rapt_report *r, const rapt_linear_plan *opaque, rapt_status *status) {
    *status = rapt_check_plan(r, opaque, LINEAR_MADE, "rapt_linear_plan_init");
    return (const full_linear *)(const void *)opaque;
}

/* Returns the bytes of scratch that each thread needs. */
size_t rapt_linear_scratch(const full_linear *p);

/* Registers weights, whose rows span `bytes` bytes, their bias and their scales, of `out` elements each. */
void rapt_register_weights(rapt_memory *m, const rapt_layout *weight, int64_t out, uint64_t bytes, const rapt_linear_weights *w,
                           const rapt_linear_names *names);

/* A call in progress. args.workspace is that of all threads. */
typedef struct rapt_linear_call {
    const full_linear *plan;
    rapt_linear_args args;
} rapt_linear_call;

/* Computes thread ith's share. */
void rapt_linear_share(const rapt_linear_call *c, int64_t ith, int64_t nth);

#endif
