/* SPDX-License-Identifier: Apache-2.0 */
/* K and V in pages, which lie in a pool in random order, as in the cache of a server. */
#ifndef RAPT_CLI_PAGES_H
#define RAPT_CLI_PAGES_H

#include "tensor.h"

typedef struct pages {
    int64_t size, count;     /* keys of a page; pages of the pool */
    int32_t *table, *starts; /* entry b's pages are table[starts[b]] .. table[starts[b + 1] - 1] */
} pages;

/* The batch entries whose keys are in pages. */
typedef struct pages_entries {
    int64_t batch;
    const int32_t *lengths;      /* keys of each entry */
    const int32_t *token_starts; /* where they begin, if the tensors have no batch dimension; else null */
} pages_entries;

/* Assigns pages to each entry's keys. Returns 0, or CLI_ERROR after cli_fail. */
int pages_assign(pages *p, int64_t size, const pages_entries *entries, uint64_t seed);

/* Moves a loaded tensor and its scales to pages, which are [head, token] or, if tokens_first, [token, head]. Returns 0, or
 * CLI_ERROR after cli_fail. */
int pages_scatter(const pages *p, tensor *t, const pages_entries *entries, bool tokens_first);

/* Frees the table and the starts. */
void pages_free(pages *p);

#endif
