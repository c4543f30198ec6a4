/* SPDX-License-Identifier: Apache-2.0 */
/* K and V in pages. */
#include "pages.h"
#include "cli.h"

#include <stdlib.h>
#include <string.h>

/* Returns the next random number, by splitmix64 (Steele, Lea and Flood 2014). */
static uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

int pages_assign(pages *p, int64_t size, const pages_entries *entries, uint64_t seed) {
    p->size = size;
    p->starts = tensor_buffer(entries->batch + 1, sizeof *p->starts);
    for (int64_t b = 0; p->starts && b < entries->batch; b++) {
        p->count += (entries->lengths[b] + size - 1) / size;
        if (p->count > RAPT_MAX_LENGTH) return cli_fail(CLI_RUN, "--page-size: more pages than can be numbered");
        p->starts[b + 1] = (int32_t)p->count;
    }
    p->table = p->starts ? tensor_buffer(p->count, sizeof *p->table) : NULL;
    if (!p->table) return cli_fail(CLI_RUN, "--page-size: no memory for the page table");
    for (int64_t i = 0; i < p->count; i++) { /* the inside-out form of Fisher and Yates's shuffle */
        const int64_t other = (int64_t)(next_random(&seed) % (uint64_t)(i + 1));
        p->table[i] = p->table[other];
        p->table[other] = (int32_t)i;
    }
    return 0;
}

/* Returns a new pool with the rows of data, and sets *layout, which was that of data, to the pool's. Returns null if there is no
 * memory. */
static void *scatter(const pages *p, const void *data, rapt_layout *layout, int64_t heads, int64_t channels,
                     const pages_entries *entries, bool tokens_first) {
    const rapt_layout from = *layout,
                      to = (tokens_first ? rapt_layout_bshd : rapt_layout_bhsd)(from.type, heads, p->size, channels);
    const size_t row = (size_t)rapt_row_bytes(from.type, channels);
    unsigned char *pool = to.batch_stride >= 0 ? tensor_buffer(p->count, (size_t)to.batch_stride) : NULL;
    for (int64_t b = 0; pool && b < entries->batch; b++) {
        const int64_t first = entries->token_starts ? entries->token_starts[b] * from.token_stride : b * from.batch_stride;
        const int64_t slots = (p->starts[b + 1] - p->starts[b]) * p->size;
        for (int64_t slot = 0; slot < slots; slot++)
            for (int64_t h = 0; h < heads; h++) {
                unsigned char *at = pool + p->table[p->starts[b] + slot / p->size] * to.batch_stride + h * to.head_stride +
                                    slot % p->size * to.token_stride;
                if (slot < entries->lengths[b])
                    memcpy(at, (const char *)data + first + h * from.head_stride + slot * from.token_stride, row);
                else memset(at, 0xff, row); /* after the last key, where nothing may be read: NaNs in most types */
            }
    }
    *layout = to;
    return pool;
}

int pages_scatter(const pages *p, tensor *t, const pages_entries *entries, bool tokens_first) {
    void *pool = scatter(p, t->data, &t->layout, t->heads, t->channels, entries, tokens_first), *scales = NULL;
    if (t->scales) scales = scatter(p, t->scales, &t->scales_layout, t->heads, 1, entries, tokens_first);
    const bool memory = pool && (scales || !t->scales);
    free(t->copy);
    free(t->scales);
    t->data = t->copy = pool;
    t->scales = scales;
    return memory ? 0 : cli_fail(CLI_RUN, "%s: no memory for its pages", t->path);
}

void pages_free(pages *p) {
    free(p->table);
    free(p->starts);
}
