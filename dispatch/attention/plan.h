/* SPDX-License-Identifier: Apache-2.0 */
/* The contents of a rapt_plan, and the functions by which the files of dispatch/ make and read one. */
#ifndef RAPT_PLAN_H
#define RAPT_PLAN_H

#include "kernel.h"
#include "core/report.h"

/* How the work of one batch entry is cut into tasks. In phase 0, a task is one pass over the rows of joined_heads key/value heads
 * and one part of their chunks of keys; the figure at rapt_cut_entry (plan.c) shows it. Phase 1, which exists if an entry has
 * several parts and the plan is not unmerged, or for RAPT_SCORES_WEIGHTS, finishes rows: each entry and key/value head has the
 * same number of tasks there, which share its rows. */
typedef struct entry_cut {
    bool keys_in_lanes;   /* the path */
    int64_t q_len, rows;  /* queries of the entry; rows of a key/value head, q_len * group */
    int64_t joined_heads; /* key/value heads that a task takes together */
    int64_t pass_rows;    /* rows of a pass; the last pass may have fewer */
    int64_t passes;
    int64_t chunks;      /* of the entry */
    int64_t part_chunks; /* chunks of a part; the last part may have fewer */
    int64_t parts;
    int64_t period;       /* rows that share a row of the block mask, so no tile has rows of two periods; 0: no such limit */
    int64_t scratch_rows; /* rows for which a pass needs scratch; at least pass_rows, since partial tiles count as whole ones */
    int64_t head_groups;  /* groups of joined heads */
    int64_t turn_groups;  /* so many groups take turns, with a pass each; 1: all passes of a group come before the next group */
    int64_t tasks;        /* of phase 0 */
    size_t state_bytes;   /* of states in the shared workspace; 0 unless phase 1 merges them */
} entry_cut;

/* The bytes that each tensor spans, from its first byte to its last; 0 if there is no such tensor, or it has no elements. */
typedef struct tensor_bytes {
    uint64_t q, k, v, o, lse, mask, block_mask, bias, slopes, sinks, k_scales, v_scales, states, scores;
    uint64_t table; /* of one entry: only rapt_args (table_starts) says whether all entries' tables are one matrix */
} tensor_bytes;

/* Where an entry of a ragged batch begins: the number of its first task, and the offset of its states in the shared workspace. */
typedef struct entry_start {
    int64_t first_task;
    uint64_t first_state;
} entry_start;

typedef struct full_plan {
    uint64_t made; /* PLAN_MADE, or this is not a plan */
    const rapt_kernel *kernel;
    const rapt_arithmetic *arithmetic;          /* the kernel's */
    const rapt_arithmetic *few_rows_arithmetic; /* of tasks with keys in lanes and fewer than arithmetic->least_rows rows */
    rapt_tuning tuning;                         /* every number is set, none is -1 */
    rapt_problem problem;
    rapt_scores_stage scores_stage;
    const int32_t *q_starts, *k_starts; /* the caller's arrays, or null */
    uint64_t starts_sum;                /* a checksum of both when the plan was made (rapt_check_kept_starts) */
    int64_t prefix, kv_total, pages;
    int64_t most_queries, most_keys; /* of the longest entries */
    bool trust_table, trust_starts;
    tensor_bytes bytes;
    int64_t threads;    /* for which work is cut */
    int64_t task_pairs; /* about how many (query, key) pairs a task should have; INT64_MAX: any number */
    int64_t pass_tiles; /* at most this many tiles of queries in a pass */
    entry_cut cut;      /* of every entry, unless the batch is ragged */
    int64_t tasks[2];   /* of each phase */
    int64_t finishers;  /* tasks of phase 1 for each entry and key/value head */
    int phases;
    int64_t rows, rows_keys_in_lanes;  /* (query, head) pairs of the batch, and those of them with keys in lanes (path.h) */
    size_t shared_bytes, thread_bytes; /* workspace of all threads together, and of each */
    int64_t start_step, start_count;   /* of a ragged batch: starts[n] is the start of entry n * start_step, n < start_count */
    entry_start starts[];
} full_plan;

#define PLAN_MADE UINT64_C(0x30312e7470617200) /* changes with the layout of struct full_plan */

/* The words of memory that clients of 0.1, and callers of functions without a size, pass for a plan. */
enum { PLAN_WORDS = 192 };
_Static_assert(sizeof(full_plan) <= PLAN_WORDS * sizeof(uint64_t), "a plan of 0.1 is too small");
_Static_assert(sizeof(entry_start) == 16, "RAPT_PLAN_BYTES");

/* Returns the plan that the caller's memory holds. */
static inline const full_plan *plan_of(const rapt_plan *opaque) { return (const full_plan *)(const void *)opaque; }

/* Returns the caller's plan, which may be used if *status is OK. Errors: NULL, PLAN. */
const full_plan *rapt_read_plan(rapt_report *r, const rapt_plan *opaque, rapt_status *status);

/* Makes a plan in the caller's memory. Errors: those of rapt_plan_init. */
rapt_status rapt_make_plan(rapt_report *r, void *memory, size_t bytes, const rapt_desc *desc);

/* Writes a line about a new plan to the trace. */
void rapt_trace_plan(const rapt_report *r, const full_plan *p);

/* Returns what rapt_plan_query writes, but for size, which is not set. */
rapt_plan_info rapt_plan_info_of(const full_plan *p);

/* Sets *bytes to the workspace that nth threads need. Errors: RANGE, SHAPE. */
rapt_status rapt_plan_workspace(rapt_report *r, const full_plan *p, int64_t nth, size_t *bytes);

/* Checks that q_starts and k_starts hold what they held when the plan was made, since its tasks and workspace were computed from
 * them. Errors: TABLE. */
rapt_status rapt_check_kept_starts(rapt_report *r, const full_plan *p);

/* True if the starts of one entry can do no harm: they are in order, within the tensors, and the entry is not longer than the
 * longest one was when the plan was made. */
bool rapt_entry_fits(const full_plan *p, int64_t entry);

/* Refuses starts that have changed since the plan was made: names the first of entries [first, end) that is out of order, or, if
 * there is none, the arrays. Returns TABLE. */
rapt_status rapt_refuse_starts(rapt_report *r, const full_plan *p, int64_t first, int64_t end);

/* Returns the bytes of the plan, those of its starts included. */
static inline size_t plan_bytes(const full_plan *p) { return sizeof *p + (size_t)p->start_count * sizeof *p->starts; }

/* True if entries differ in length (q_starts or k_starts are given). */
static inline bool ragged(const full_plan *p) { return p->q_starts || p->k_starts; }

/* Returns the number of a batch entry's queries. */
static inline int64_t entry_queries(const full_plan *p, int64_t entry) {
    return p->q_starts ? (int64_t)p->q_starts[entry + 1] - p->q_starts[entry] : p->problem.q_len;
}

/* Returns the number of keys that a batch entry has room for. */
static inline int64_t entry_keys(const full_plan *p, int64_t entry) {
    return p->k_starts ? (int64_t)p->k_starts[entry + 1] - p->k_starts[entry] : p->problem.kv_len;
}

/* Cuts an entry of q_len queries and room for `keys` keys into tasks. */
entry_cut rapt_cut_entry(const full_plan *p, int64_t q_len, int64_t keys);

/* Returns the bytes of rapt_task.mask_blocks, a multiple of RAPT_WORKSPACE_ALIGNMENT; 0 if it would not be used: unless rows of
 * the mask are compared, and a thread runs the same rows and keys of several heads, which share the mask, one after the other. */
size_t rapt_mask_blocks_bytes(const full_plan *p, const entry_cut *c);

/* Returns the bytes of scratch that a task of such an entry needs, rapt_task.mask_blocks among them. */
size_t rapt_cut_scratch(const full_plan *p, const entry_cut *c);

/* Checks the pages of a cache: their size and number are in range, and there is a table if and only if there are pages. Errors:
 * FEATURE. */
rapt_status rapt_check_pages(rapt_report *r, int64_t page_size, int64_t pages, rapt_type table);

/* The structs with their defaults, as the init functions set them. */
extern const rapt_desc rapt_default_desc;
extern const rapt_args rapt_default_args;

/* Copies the caller's rapt_desc, of this version or another, to `to`. Errors: NULL, STRUCT. */
rapt_status rapt_read_desc(rapt_report *r, const char *what, rapt_desc *to, const rapt_desc *from);

/* Copies the caller's rapt_args, of this version or another, to `to`. Errors: NULL, STRUCT. */
rapt_status rapt_read_args(rapt_report *r, const char *what, rapt_args *to, const rapt_args *from);

#endif
