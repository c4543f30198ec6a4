/* SPDX-License-Identifier: Apache-2.0 */
/* What a rapt_plan holds, and what plan.c and run.c share. */
#ifndef RAPT_PLAN_H
#define RAPT_PLAN_H

#include "kernel.h"

typedef struct full_plan {
    uint64_t made; /* PLAN_MADE, or this is no plan */
    const rapt_kernel *kernel;
    rapt_problem problem;
    uint64_t q_bytes, k_bytes, v_bytes, o_bytes, lse_bytes; /* from a tensor's first to its last byte */
    /* Phase 0 has a task for each batch entry, key/value head or so many joined ones, pass over its rows, and part of its chunks;
     * phase 1, if there is more than one part, merges the rows of one batch entry and key/value head. */
    int64_t joined_heads, pass_rows, passes, part_chunks, parts, chunks;
    int64_t tasks[2];
    size_t shared_bytes, thread_bytes;
} full_plan;

#define PLAN_MADE UINT64_C(0x32302e7470617200) /* changes with the layout of struct full_plan */

_Static_assert(sizeof(full_plan) <= sizeof(rapt_plan), "rapt_plan is too small");

static inline const full_plan *plan_of(const rapt_plan *opaque) {
    const full_plan *p = (const full_plan *)(const void *)opaque;
    return p && p->made == PLAN_MADE ? p : NULL;
}

/* Copies a caller's struct, whose first field is its size, into one of ours. Errors: NULL, STRUCT. */
rapt_status rapt_read_struct(void *to, size_t bytes, const void *from);

#endif
