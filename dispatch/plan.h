/* SPDX-License-Identifier: Apache-2.0 */
/* What a rapt_plan holds, and what the files of dispatch/ share about it. */
#ifndef RAPT_PLAN_H
#define RAPT_PLAN_H

#include "kernel.h"

/* How the work of one batch entry is cut. Phase 0 has a task for each key/value head or so many joined ones, pass over its rows,
 * and part of its chunks; phase 1, if an entry has more than one part, merges the rows of one entry and key/value head. */
typedef struct entry_cut {
    bool keys_in_lanes;
    int64_t q_len, rows; /* rows of a key/value head */
    int64_t joined_heads, pass_rows, passes, chunks, part_chunks, parts;
    int64_t period, tile_rows; /* of a map, in rows; rows for which a pass needs room */
    int64_t tasks;
    size_t state_bytes; /* of shared workspace, if parts > 1 */
} entry_cut;

/* Bytes from a tensor's first to its last. */
typedef struct tensor_bytes {
    uint64_t q, k, v, o, lse, mask, map, bias, slopes, sinks, k_scales, v_scales, states;
} tensor_bytes;

typedef struct full_plan {
    uint64_t made; /* PLAN_MADE, or this is no plan */
    const rapt_kernel *kernel;
    rapt_problem problem;
    rapt_arith arith;
    const int32_t *q_starts, *k_starts; /* the caller's, or null */
    int64_t prefix, kv_total, pages;
    bool trust_table;
    tensor_bytes bytes;
    int64_t task_pairs; /* so many pairs of query and key make a task; INT64_MAX: any */
    int64_t pass_tiles; /* and so many tiles of queries at most a pass */
    entry_cut cut;      /* of every entry, unless the batch is ragged */
    int64_t tasks[2];
    int phases;
    const char *path;
    size_t shared_bytes, thread_bytes;
} full_plan;

#define PLAN_MADE UINT64_C(0x33302e7470617200) /* changes with the layout of struct full_plan */

_Static_assert(sizeof(full_plan) <= sizeof(rapt_plan), "rapt_plan is too small");

static inline const full_plan *plan_of(const rapt_plan *opaque) {
    const full_plan *p = (const full_plan *)(const void *)opaque;
    return p && p->made == PLAN_MADE ? p : NULL;
}

static inline bool ragged(const full_plan *p) { return p->q_starts || p->k_starts; }

/* Queries and stored keys of a batch entry. */
static inline int64_t entry_queries(const full_plan *p, int64_t entry) {
    return p->q_starts ? (int64_t)p->q_starts[entry + 1] - p->q_starts[entry] : p->problem.q_len;
}
static inline int64_t entry_keys(const full_plan *p, int64_t entry) {
    return p->k_starts ? (int64_t)p->k_starts[entry + 1] - p->k_starts[entry] : p->problem.kv_len;
}

/* How an entry of so many queries and stored keys is cut. */
entry_cut rapt_cut_entry(const full_plan *p, int64_t q_len, int64_t keys);

/* Checks the strides of states that are to be merged, and measures them. */
rapt_status rapt_measure_states(const full_plan *p, const rapt_states *states, uint64_t *bytes);

/* Copies a caller's struct, whose first field is its size, into one of ours. Errors: NULL, STRUCT. */
rapt_status rapt_read_struct(void *to, size_t bytes, const void *from);

#endif
