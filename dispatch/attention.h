/* SPDX-License-Identifier: Apache-2.0 */
/* Attention as a part of larger calls: checked once with all else, then run by phases. */
#ifndef RAPT_ATTENTION_H
#define RAPT_ATTENTION_H

#include "memory.h"
#include "plan.h"
#include "tokens.h"
#include "work.h"

/* A call in progress. */
typedef struct rapt_attention {
    const full_plan *plan;
    rapt_args args;
    /* The tokens that the call appends first, or null where it appends none. Unless kv_lengths are given, the last of an entry's
     * is its last key. */
    const rapt_tokens *appended;
} rapt_attention;

/* Adds what the call reads and writes, but for the workspace, and if tensors is false for q, k, v, o, scales and scores. only:
 * the one entry that tables and starts are looked at for, or -1. */
void rapt_add_attention(rapt_memory *m, const rapt_attention *c, bool tensors, int64_t only);

/* Checks what belongs to single entries: lengths, rings, tables, columns. The memory has been checked. */
rapt_status rapt_check_entries(rapt_report *r, const rapt_attention *c);

/* Keys of an entry, from number 0 on. */
int64_t rapt_key_length(const rapt_attention *c, int64_t entry);

/* Thread ith's share of a phase, as in rapt_work. */
void rapt_attend_share(const void *attention, int phase, int64_t ith, int64_t nth, atomic_llong *next);

/* The row of a state that changes nothing; the states of one row after that many chunks, stride bytes apart, merged into it. */
void rapt_start_state(float *state, int32_t d_v);
void rapt_merge_chunks(const rapt_kernel *kernel, const rapt_problem *problem, float *state, const char *next, size_t stride,
                       int64_t chunks);

/* Where the merged row of an entry, head and token goes, and what joins it. */
rapt_row_end rapt_row_end_of(const full_plan *p, const rapt_args *args, int64_t entry, int64_t head, int64_t token);

#endif
