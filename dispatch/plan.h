/* SPDX-License-Identifier: Apache-2.0 */
/* What a rapt_plan holds, and what the files of dispatch/ share about it. */
#ifndef RAPT_PLAN_H
#define RAPT_PLAN_H

#include "kernel.h"
#include "report.h"

/* How the work of one batch entry is cut. Phase 0 has a task for each key/value head or joined_heads of them, pass over its rows,
 * and part of its chunks; phase 1, if an entry has more than one part or weights are wanted, ends the rows of one entry and
 * key/value head. */
typedef struct entry_cut {
    bool keys_in_lanes;
    int64_t q_len, rows; /* rows of a key/value head */
    int64_t joined_heads, pass_rows, passes, chunks, part_chunks, parts;
    int64_t period, tile_rows; /* of a block mask, in rows; rows for which a pass needs room */
    int64_t tasks;
    size_t state_bytes; /* of shared workspace, if parts > 1 */
} entry_cut;

/* Bytes from a tensor's first to its last. */
typedef struct tensor_bytes {
    uint64_t q, k, v, o, lse, mask, block_mask, bias, slopes, sinks, k_scales, v_scales, states, scores;
    uint64_t table; /* of one entry: whether there is a matrix of all of them is known when there are args */
} tensor_bytes;

/* What comes before an entry of a ragged batch: tasks, and bytes of states in the shared workspace. */
typedef struct entry_start {
    int64_t first_task;
    uint64_t first_state;
} entry_start;

typedef struct full_plan {
    uint64_t made; /* PLAN_MADE, or this is no plan */
    const rapt_kernel *kernel;
    rapt_tuning tuning; /* no number of which is -1 */
    rapt_problem problem;
    rapt_scores_stage scores_stage;
    const int32_t *q_starts, *k_starts;                       /* the caller's, or null */
    uint64_t starts_sum;                                      /* of both, as they were (rapt_check_kept_starts) */
    int64_t prefix, kv_total, pages, most_queries, most_keys; /* the last two: of the longest entries */
    bool trust_table, trust_starts;
    tensor_bytes bytes;
    int64_t task_pairs; /* pairs of query and key that a task has, about; INT64_MAX: any number */
    int64_t pass_tiles; /* tiles of queries that a pass has at most */
    entry_cut cut;      /* of every entry, unless the batch is ragged */
    int64_t tasks[2];
    int phases;
    int64_t rows, rows_keys_in_lanes; /* a query of one head each: all, and those that have keys in lanes (path.h) */
    size_t shared_bytes, thread_bytes;
    int64_t start_step,
        start_count; /* of a ragged batch: starts[n] is that of entry n * start_step, where there is room for it */
    entry_start starts[];
} full_plan;

#define PLAN_MADE UINT64_C(0x38302e7470617200) /* changes with the layout of struct full_plan */

/* Clients of 0.1, and callers of the functions that have no size, bring memory of 192 words. */
enum { PLAN_WORDS = 192 };
_Static_assert(sizeof(full_plan) <= PLAN_WORDS * sizeof(uint64_t), "a plan of 0.1 is too small");
_Static_assert(sizeof(entry_start) == 16, "RAPT_PLAN_BYTES");

static inline const full_plan *plan_of(const rapt_plan *opaque) { return (const full_plan *)(const void *)opaque; }

/* The plan of a call, which it is if status says so. Errors: NULL, PLAN. */
const full_plan *rapt_read_plan(rapt_report *r, const rapt_plan *opaque, rapt_status *status);

/* A plan in memory of the caller's. */
rapt_status rapt_make_plan(rapt_report *r, void *memory, size_t bytes, const rapt_desc *desc);

/* One line about a plan that was made by the call of the report. */
void rapt_trace_plan(const rapt_report *r, const full_plan *p);

/* What rapt_plan_query tells; size is not set. */
rapt_plan_info rapt_plan_info_of(const full_plan *p);

/* The bytes of workspace that nth threads need. Errors: RANGE, SHAPE. */
rapt_status rapt_plan_workspace(rapt_report *r, const full_plan *p, int64_t nth, size_t *bytes);

/* Checks that the contents of q_starts and k_starts are those that the plan was made with, for its tasks and the workspace come
 * from them. Errors: TABLE. */
rapt_status rapt_check_kept_starts(rapt_report *r, const full_plan *p);

/* The same of one entry, as far as memory is concerned: true if its starts are in order, and it is not longer than the longest of
 * the plan. */
bool rapt_entry_fits(const full_plan *p, int64_t entry);

/* Refuses starts that are not those of the plan: names the first of entries [first, end) that is out of order, else the arrays.
 */
rapt_status rapt_refuse_starts(rapt_report *r, const full_plan *p, int64_t first, int64_t end);

/* The bytes that it has, with the starts that there was room for. */
static inline size_t plan_bytes(const full_plan *p) { return sizeof *p + (size_t)p->start_count * sizeof *p->starts; }

static inline bool ragged(const full_plan *p) { return p->q_starts || p->k_starts; }

/* Queries and stored keys of a batch entry. */
static inline int64_t entry_queries(const full_plan *p, int64_t entry) {
    return p->q_starts ? (int64_t)p->q_starts[entry + 1] - p->q_starts[entry] : p->problem.q_len;
}
static inline int64_t entry_keys(const full_plan *p, int64_t entry) {
    return p->k_starts ? (int64_t)p->k_starts[entry + 1] - p->k_starts[entry] : p->problem.kv_len;
}

/* How an entry of that many queries and stored keys is cut. */
entry_cut rapt_cut_entry(const full_plan *p, int64_t q_len, int64_t keys);

/* Bytes of scratch that a task of such an entry needs. */
size_t rapt_cut_scratch(const full_plan *p, const entry_cut *c);

/* The pages of a cache: their numbers are in range, and there is a table, of whatever type, if there are any. Errors: FEATURE. */
rapt_status rapt_check_pages(rapt_report *r, int64_t page_size, int64_t pages, rapt_type table);

/* rapt_desc, rapt_args as they are after their init functions, and their bytes in version 0.1. */
extern const rapt_desc rapt_default_desc;
extern const rapt_args rapt_default_args;
rapt_status rapt_read_desc(rapt_report *r, const char *what, rapt_desc *to, const rapt_desc *from);
rapt_status rapt_read_args(rapt_report *r, const char *what, rapt_args *to, const rapt_args *from);

#endif
