/* SPDX-License-Identifier: Apache-2.0 */
/* Attention as a part of a larger call (rapt_decode_run, rapt_mha_run): checked once together with the rest of the call, then run
 * phase by phase. */
#ifndef RAPT_ATTENTION_H
#define RAPT_ATTENTION_H

#include "core/memory.h"
#include "attention/plan.h"
#include "cache/tokens.h"
#include "core/work.h"

/* An attention call in progress. */
typedef struct rapt_attention {
    const full_plan *plan;
    rapt_args args;
    /* The tokens that the larger call appends to the cache before it attends; null: none. Unless kv_lengths are given, each
     * entry's last appended token is its last key. */
    const rapt_tokens *appended;
} rapt_attention;

/* Registers the memory that the call reads and writes, except the workspace, and if tensors is false, except q, k, v, o, their
 * scales and the scores. only: the entry whose tables and starts are checked, or -1 for all. */
void rapt_register_attention(rapt_memory *m, const rapt_attention *c, bool tensors, int64_t only);

/* Checks what each entry has of its own: length, ring, page table, columns of mask and bias. The memory has been checked. Errors:
 * TABLE, KV_LENGTH, MASK. */
rapt_status rapt_check_entries(rapt_report *r, const rapt_attention *c);

/* Returns the number of an entry's keys, counted from key 0 even if kv_first leaves the first ones to another plan. */
int64_t rapt_key_length(const rapt_attention *c, int64_t entry);

/* Runs thread ith's share of a phase; see rapt_work.share. attention: a rapt_attention. */
void rapt_attend_share(const void *attention, int phase, int64_t ith, int64_t nth, atomic_llong *next);

/* Sets a state of d_v channels to the empty state, which changes nothing that it is merged with. */
void rapt_start_state(float *state, int32_t d_v);

/* Merges `chunks` states of one row, which lie stride bytes apart from `next` on, into state, in ascending order. */
void rapt_merge_chunks(const rapt_kernel *kernel, const rapt_problem *problem, float *state, const char *next, size_t stride,
                       int64_t chunks);

/* Returns where the results of a row (entry, head, token) go, and the sink and scales that its merged state is finished with. */
rapt_row_end rapt_row_end_of(const full_plan *p, const rapt_args *args, int64_t entry, int64_t head, int64_t token);

#endif
