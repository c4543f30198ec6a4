/* SPDX-License-Identifier: Apache-2.0 */
/* Appending tokens to a cache, as a part of a larger call (rapt_decode_run, rapt_mha_run), which checks it once together with the
 * rest, and then runs it on each thread. */
#ifndef RAPT_APPEND_H
#define RAPT_APPEND_H

#include "core/memory.h"
#include "cache/tokens.h"

/* An append in progress. */
typedef struct append_call {
    rapt_kv_append_desc desc;
    rapt_kv_append_args args;
    rapt_tokens tokens;                       /* the new tokens */
    uint64_t cache_bytes[2], scales_bytes[2]; /* [0]: K, [1]: V; what the tensors span, set by rapt_check_append_desc */
} append_call;

/* Checks c->desc, without the arguments, and computes the bytes that the cache and its scales span. Errors: SHAPE, TYPE, STRIDE,
 * FEATURE. */
rapt_status rapt_check_append_desc(rapt_report *r, append_call *c);

/* Returns the description of an append to the cache that d describes, of new rows with these layouts. */
rapt_kv_append_desc rapt_kv_append_desc_of(const rapt_desc *d, int64_t tokens, rapt_layout new_k, rapt_layout new_v,
                                           const rapt_rope *rope);

/* Registers the cache and its scales, and if the append is the whole call, everything else that it reads: new rows, rope table,
 * ring starts and page table. A larger call registers these itself. k, v: the names of the cache's tensors in reports. */
void rapt_register_append(rapt_memory *m, const append_call *c, const char *k, const char *v, bool whole_call);

/* Checks that no entry's new tokens end beyond kv_len. The memory has been checked. Errors: KV_LENGTH. */
rapt_status rapt_check_room(rapt_report *r, const append_call *c);

/* Checks ring starts and page tables: each new token must have a place in the cache that no other new token has. The memory and
 * the room have been checked. Errors: TABLE. */
rapt_status rapt_check_places(rapt_report *r, const append_call *c);

/* Writes thread ith's share of the new rows. */
void rapt_append_share(const append_call *c, int64_t ith, int64_t nth);

#endif
