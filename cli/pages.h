/* SPDX-License-Identifier: Apache-2.0 */
/* K and V cut into pages, which lie in a pool in random order, as in the cache of a server. */
#ifndef RAPT_CLI_PAGES_H
#define RAPT_CLI_PAGES_H

#include "tensor.h"

typedef struct pages {
    int64_t size, count;
    int32_t *table, *starts; /* entry b's pages are table[starts[b]] .. table[starts[b + 1] - 1] */
} pages;

/* Gives each entry pages for its keys. 0, or CLI_ERROR after cli_fail. */
int pages_assign(pages *p, int64_t size, int64_t batch, const int32_t *lengths, uint64_t seed);

/* Moves the loaded K or V there; an entry's keys are tensor->tokens of its own, or begin at token_starts[b]. A page is [head,
 * token] or, if tokens_first, [token, head]. */
int pages_scatter(const pages *p, tensor *t, int64_t batch, const int32_t *lengths, const int32_t *token_starts,
                  bool tokens_first);

void pages_free(pages *p);

#endif
