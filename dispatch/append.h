/* SPDX-License-Identifier: Apache-2.0 */
/* Writing caches as a part of larger calls: checked once with all else, then shared by threads. */
#ifndef RAPT_APPEND_H
#define RAPT_APPEND_H

#include "memory.h"
#include "tokens.h"

typedef struct append_call {
    rapt_kv_append_desc desc;
    rapt_kv_append_args args;
    rapt_tokens tokens;
    uint64_t cache_bytes[2], scales_bytes[2]; /* of K and V */
} append_call;

/* Checks what the description says by itself, and measures the cache. Errors: SHAPE, TYPE, STRIDE, FEATURE. */
rapt_status rapt_check_append_desc(rapt_report *r, append_call *c);

/* The description that a rapt_desc gives of its cache, for new rows of these layouts. */
rapt_kv_append_desc rapt_kv_append_desc_of(const rapt_desc *d, int64_t tokens, rapt_layout new_k, rapt_layout new_v,
                                           const rapt_rope *rope);

/* Adds what the call writes, and reads if new_rows says so: where new rows and positions lie in a larger call's own memory, they
 * are not. k, v: what the cache is called. */
void rapt_add_append(rapt_memory *m, const append_call *c, const char *k, const char *v, bool new_rows);

/* Is there room for every token; then, has each a place in its ring and pages, which none other is given? The memory has been
 * checked. */
rapt_status rapt_check_room(rapt_report *r, const append_call *c);
rapt_status rapt_check_places(rapt_report *r, const append_call *c);

/* Thread ith's share. */
void rapt_append_share(const append_call *c, int64_t ith, int64_t nth);

#endif
