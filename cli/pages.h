/* SPDX-License-Identifier: Apache-2.0 */
/* K and V cut into pages, which lie in a pool in random order, as in the cache of a server. */
#ifndef RAPT_CLI_PAGES_H
#define RAPT_CLI_PAGES_H

#include "tensor.h"

typedef struct pages {
    int64_t size, count;
    int32_t *table, *starts; /* entry b's pages are table[starts[b]] .. table[starts[b + 1] - 1] */
} pages;

/* The batch entries that pages hold: their keys, and where these begin if the tensors have no batch dimension. */
typedef struct pages_entries {
    int64_t batch;
    const int32_t *lengths, *token_starts;
} pages_entries;

/* Gives each entry pages for its keys. 0, or CLI_ERROR after cli_fail. */
int pages_assign(pages *p, int64_t size, const pages_entries *entries, uint64_t seed);

/* Moves a loaded tensor, and its scales, there. A page is [head, token] or, if tokens_first, [token, head]. */
int pages_scatter(const pages *p, tensor *t, const pages_entries *entries, bool tokens_first);

void pages_free(pages *p);

#endif
