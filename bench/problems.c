/* SPDX-License-Identifier: Apache-2.0 */
/* Draws problems, counts their work, and gives them tensors. */
#include "problems.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../tests/support/random_streams.h"

enum { MOST_QUERIES = 600, MOST_KV_HEADS = 8, MOST_GROUP = 16, MOST_CHANNELS = 512, DOCUMENT_COUNT = 4 };

/* The largest problem. */
static const double most_operations = 1e9, most_bytes = 64e6;

/* ---- Shapes -------------------------------------------------------------------------------------------------------------- */

/* The dimensions of a tensor but for its channels. */
typedef struct shape {
    int64_t batch, heads, tokens;
} shape;

static bool ragged(const bench_problem *p) { return p->storage == BENCH_RAGGED || p->storage == BENCH_RAGGED_PAGES; }
static bool paged(const bench_problem *p) { return p->storage == BENCH_PAGES || p->storage == BENCH_RAGGED_PAGES; }

static shape shape_of_q(const bench_problem *p) {
    const rapt_desc *d = &p->desc;
    return ragged(p) ? (shape){1, d->heads, p->q_starts[d->batch]} : (shape){d->batch, d->heads, p->q_len};
}

static shape shape_of_k(const bench_problem *p) {
    const rapt_desc *d = &p->desc;
    if (paged(p)) return (shape){d->pages, d->kv_heads, d->page_size};
    return p->storage == BENCH_RAGGED ? (shape){1, d->kv_heads, p->k_starts[d->batch]}
                                      : (shape){d->batch, d->kv_heads, p->kv_len};
}

/* Returns the bytes from a tensor's first to its last, where a row has `row` bytes. */
static int64_t span(const rapt_layout *l, shape s, int64_t row) {
    return (s.batch - 1) * l->batch_stride + (s.heads - 1) * l->head_stride + (s.tokens - 1) * l->token_stride + row;
}

static int64_t mask_row(const bench_problem *p) { return p->desc.mask.type == RAPT_BIT ? (p->kv_len + 7) / 8 : p->kv_len; }
static int64_t blocks(int64_t len, int64_t of) { return (len + of - 1) / of; }
static int64_t table_row(const bench_problem *p) { return blocks(p->kv_len, p->desc.page_size); }
static int64_t bias_heads(const bench_problem *p) { return p->bias_heads ? p->desc.heads : 1; }

int64_t bench_problem_rows(const bench_problem *p) { return p->desc.heads / p->desc.kv_heads * p->q_len; }

/* ---- Layouts ------------------------------------------------------------------------------------------------------------- */

static bool tokens_first(const bench_problem *p) {
    return p->arrangement == BENCH_TOKENS_FIRST || p->arrangement == BENCH_FAR_TOKENS;
}

static rapt_layout dense(const bench_problem *p, rapt_type type, shape s, int64_t channels) {
    return (tokens_first(p) ? rapt_layout_bshd : rapt_layout_bhsd)(type, s.heads, s.tokens, channels);
}

static rapt_layout layout(const bench_problem *p, rapt_type type, shape s, int64_t channels, bool of_cache) {
    rapt_layout l = dense(p, type, s, channels);
    if (p->arrangement == BENCH_GAPS) l.token_stride += p->gap, l.head_stride = s.tokens * l.token_stride;
    if (p->arrangement == BENCH_FAR_HEADS && of_cache) l.head_stride = bench_power_of_two(l.head_stride);
    if (p->arrangement == BENCH_FAR_TOKENS && of_cache) l.token_stride = bench_power_of_two(l.token_stride);
    l.batch_stride = tokens_first(p) ? s.tokens * l.token_stride : s.heads * l.head_stride;
    return l;
}

static rapt_scales scales(const bench_problem *p) {
    const rapt_layout l = dense(p, RAPT_F32, shape_of_k(p), 1);
    return (rapt_scales){1, l.batch_stride, l.head_stride, l.token_stride, 0};
}

/* Describes the tensors, by the starts of a ragged batch. */
static void lay_out(bench_problem *p) {
    rapt_desc *d = &p->desc;
    if (paged(p)) {
        d->pages = d->batch * table_row(p);
        d->table = (rapt_layout){RAPT_I32, table_row(p) * (int64_t)sizeof(int32_t), 0, 0};
    }
    const shape q = shape_of_q(p), k = shape_of_k(p);
    d->q_len = q.tokens, d->kv_len = p->storage == BENCH_RAGGED ? k.tokens : p->kv_len;
    d->q_starts = ragged(p) ? p->q_starts : NULL, d->k_starts = p->storage == BENCH_RAGGED ? p->k_starts : NULL;
    d->q = layout(p, p->type->q, q, d->d_k, false), d->o = layout(p, p->type->q, q, d->d_v, false);
    d->k = layout(p, p->type->kv, k, d->d_k, true), d->v = p->aliased ? d->k : layout(p, p->type->kv, k, d->d_v, true);
    if (d->lse.type) d->lse = layout(p, RAPT_F32, q, 1, false);
    if (p->type->scaled) d->k_scales = d->v_scales = scales(p);
    if (d->mask.type) d->mask.token_stride = mask_row(p);
    if (d->block_mask.type) d->block_mask.token_stride = blocks(p->kv_len, d->block_mask_keys);
    if (d->bias.type) {
        d->bias.token_stride = rapt_row_bytes(d->bias.type, p->kv_len);
        d->bias.head_stride = p->bias_heads ? p->q_len * d->bias.token_stride : 0;
    }
}

/* ---- Drawing ------------------------------------------------------------------------------------------------------------- */

static bool one_in(uint64_t *random, int64_t n) { return draw_below(random, n) == 0; }

/* Returns 1 to most, each number of digits in base 2 about as often. */
static int64_t up_to(uint64_t *random, int64_t most) {
    int digits = 0;
    while (most >> digits) digits++;
    const int64_t least = (int64_t)1 << draw_below(random, digits), x = least + draw_below(random, least);
    return x <= most ? x : 1 + draw_below(random, most);
}

/* Returns the channels of a group of a type. */
static int64_t group_of(rapt_type type) {
    int64_t group = 1;
    while (rapt_row_bytes(type, group) < 0) group *= 2;
    return group;
}

static int64_t draw_channels(const bench_problem *p, uint64_t *random) {
    static const int64_t usual[] = {32, 64, 64, 80, 96, 128, 128, 256};
    const int64_t channels = one_in(random, 4) ? up_to(random, MOST_CHANNELS) : DRAW_OF(random, usual),
                  group = group_of(p->type->kv);
    return blocks(channels, group) * group;
}

static void draw_shape(bench_problem *p, uint64_t *random) {
    static const int64_t few[] = {1, 1, 1, 2, 4, 8}, groups[] = {1, 1, 1, 1, 2, 4, 4, 8};
    rapt_desc *d = &p->desc;
    int count;
    const bench_type *types = bench_types(&count);
    p->type = &types[draw_below(random, count)], d->arith = p->type->arith;
    d->batch = one_in(random, 2) ? 1 : up_to(random, BENCH_MOST_ENTRIES);
    d->kv_heads = up_to(random, MOST_KV_HEADS);
    d->heads = d->kv_heads * (one_in(random, 4) ? 1 + draw_below(random, MOST_GROUP) : DRAW_OF(random, groups));
    p->q_len = one_in(random, 2) ? DRAW_OF(random, few) : up_to(random, MOST_QUERIES);
    p->kv_len = up_to(random, BENCH_MOST_KEYS);
    if (one_in(random, 3)) p->kv_len = blocks(p->kv_len, 64) * 64;
    d->d_k = draw_channels(p, random);
    d->d_v = one_in(random, 5) ? draw_channels(p, random) : d->d_k;
    p->aliased = d->d_v <= d->d_k && one_in(random, 25);
}

static void draw_memory(bench_problem *p, uint64_t *random) {
    static const bench_arrangement arrangements[] = {
        BENCH_HEADS_FIRST,  BENCH_HEADS_FIRST,  BENCH_HEADS_FIRST, BENCH_HEADS_FIRST, BENCH_TOKENS_FIRST,
        BENCH_TOKENS_FIRST, BENCH_TOKENS_FIRST, BENCH_GAPS,        BENCH_FAR_HEADS,   BENCH_FAR_TOKENS};
    static const bench_storage storages[] = {BENCH_DENSE, BENCH_DENSE, BENCH_DENSE,  BENCH_DENSE,        BENCH_DENSE,
                                             BENCH_PAGES, BENCH_PAGES, BENCH_RAGGED, BENCH_RAGGED_PAGES, BENCH_RING};
    static const int64_t gaps[] = {4, 16, 64, 256}, offsets[] = {0, 0, 0, 16, 4}, pages[] = {16, 16, 16, 64, 64, 64, 1};
    p->arrangement = DRAW_OF(random, arrangements), p->storage = DRAW_OF(random, storages);
    p->gap = DRAW_OF(random, gaps), p->offset = DRAW_OF(random, offsets);
    if (paged(p)) p->desc.page_size = DRAW_OF(random, pages);
    if (ragged(p)) p->desc.batch = 2 + draw_below(random, BENCH_MOST_ENTRIES - 1);
    p->lengths = p->storage == BENCH_RAGGED_PAGES || (p->storage != BENCH_RAGGED && one_in(random, 4));
    if (one_in(random, 8)) p->desc.lse.type = RAPT_F32;
}

static void draw_logits(bench_problem *p, uint64_t *random) {
    static const rapt_type floats[] = {RAPT_F32, RAPT_F16, RAPT_BF16}, masks[] = {RAPT_BOOL, RAPT_BIT};
    static const int64_t block_queries[] = {1, 16, 64, 128}, block_keys[] = {64, 64, 128}, kept[] = {2, 8};
    rapt_desc *d = &p->desc;
    if (one_in(random, 12)) d->softcap = 30.0f;
    if (one_in(random, 12)) d->sinks.type = RAPT_F32;
    if (one_in(random, 10)) d->bias.type = DRAW_OF(random, floats), p->bias_heads = one_in(random, 2);
    if (one_in(random, 12)) d->alibi = d->bias.type && one_in(random, 2) ? RAPT_ALIBI_BIAS : RAPT_ALIBI_DISTANCE;
    if (d->alibi) d->slopes.type = RAPT_F32;
    if (one_in(random, 8)) d->mask.type = DRAW_OF(random, masks), p->mask = (bench_pattern)draw_below(random, BENCH_HALVES + 1);
    if (one_in(random, 14)) {
        d->block_mask.type = RAPT_BOOL, p->kept = DRAW_OF(random, kept);
        d->block_mask_queries = DRAW_OF(random, block_queries), d->block_mask_keys = DRAW_OF(random, block_keys);
    }
    d->sinks.head_stride = d->slopes.head_stride = sizeof(float);
}

/* True if a problem of these sizes, without what masks save, would be too large. */
static bool too_large(bench_problem *p) {
    const rapt_desc *d = &p->desc;
    p->q_starts[d->batch] = (int32_t)(d->batch * p->q_len), p->k_starts[d->batch] = (int32_t)(d->batch * p->kv_len);
    lay_out(p);
    const shape q = shape_of_q(p), k = shape_of_k(p);
    const double pairs = (double)(d->batch * d->heads * p->q_len) * (double)p->kv_len;
    double bytes = (double)(span(&d->q, q, 0) + span(&d->k, k, 0) + span(&d->v, k, 0) + span(&d->o, q, 0));
    if (d->mask.type) bytes += (double)(p->q_len * mask_row(p));
    if (d->bias.type) bytes += (double)(bias_heads(p) * p->q_len * d->bias.token_stride);
    return pairs * (double)(2 * (d->d_k + d->d_v) + BENCH_WEIGHT_OPERATIONS) > most_operations || bytes > most_bytes;
}

/* Halves one dimension after another until the problem is small enough. */
static void shrink(bench_problem *p, uint64_t *random) {
    rapt_desc *d = &p->desc;
    while (too_large(p)) {
        const int64_t group = d->heads / d->kv_heads;
        switch (draw_below(random, 5)) {
        case 0:
            d->batch = (d->batch + 1) / 2;
            break;
        case 1:
            d->kv_heads = (d->kv_heads + 1) / 2, d->heads = d->kv_heads * group;
            break;
        case 2:
            d->heads = d->kv_heads * ((group + 1) / 2);
            break;
        case 3:
            p->q_len = (p->q_len + 1) / 2;
            break;
        default:
            p->kv_len = (p->kv_len + 1) / 2;
        }
    }
}

/* Draws which keys positions allow, by the sizes. */
static void draw_positions(bench_problem *p, uint64_t *random) {
    static const rapt_causal causal[] = {RAPT_CAUSAL_NONE,         RAPT_CAUSAL_NONE,         RAPT_CAUSAL_NONE,
                                         RAPT_CAUSAL_NONE,         RAPT_CAUSAL_BOTTOM_RIGHT, RAPT_CAUSAL_BOTTOM_RIGHT,
                                         RAPT_CAUSAL_BOTTOM_RIGHT, RAPT_CAUSAL_BOTTOM_RIGHT, RAPT_CAUSAL_TOP_LEFT};
    rapt_desc *d = &p->desc;
    d->causal = DRAW_OF(random, causal);
    if (one_in(random, 8)) d->window_left = up_to(random, p->kv_len);
    if (one_in(random, 20)) d->window_right = up_to(random, p->kv_len);
    if (one_in(random, 20)) d->local_chunk = up_to(random, p->kv_len);
    if (one_in(random, 20)) d->prefix = up_to(random, p->kv_len);
}

/* Draws the entries' queries and keys. The first one is the longest; half of the others decode. */
static void draw_entries(bench_problem *p, uint64_t *random) {
    for (int64_t b = 0; b < p->desc.batch; b++) {
        const bool longest = ragged(p) && b == 0;
        p->queries[b] = (int32_t)(!ragged(p) || longest ? p->q_len : one_in(random, 2) ? 1 : 1 + draw_below(random, p->q_len));
        p->keys[b] = (int32_t)(longest || !(ragged(p) || p->lengths) ? p->kv_len : 1 + draw_below(random, p->kv_len));
        p->ring_starts[b] = (int32_t)draw_below(random, p->kv_len);
        p->q_starts[b + 1] = p->q_starts[b] + p->queries[b], p->k_starts[b + 1] = p->k_starts[b] + p->keys[b];
    }
}

/* ---- What is attended ---------------------------------------------------------------------------------------------------- */

static bool mask_keeps(const bench_problem *p, int64_t i, int64_t j) {
    switch (p->mask) {
    case BENCH_TRIANGLE:
        return j <= i + p->kv_len - p->q_len;
    case BENCH_PADDING:
        return j <= p->kv_len * 3 / 4;
    case BENCH_DOCUMENTS:
        return j * DOCUMENT_COUNT / p->kv_len == i * DOCUMENT_COUNT / p->q_len;
    case BENCH_HALVES:
        break;
    }
    return bench_mix((uint32_t)(i * BENCH_MOST_KEYS + j)) & 1;
}

/* The first block of keys is always attended. */
static bool block_keeps(const bench_problem *p, int64_t query_block, int64_t key_block) {
    return key_block == 0 || bench_mix((uint32_t)(query_block * BENCH_MOST_KEYS + key_block)) % (uint32_t)p->kept == 0;
}

/* True if masks let query i attend to key j. */
static bool masks_keep(const bench_problem *p, int64_t i, int64_t j) {
    const rapt_desc *d = &p->desc;
    return (!d->mask.type || mask_keeps(p, i, j)) &&
           (!d->block_mask.type || block_keeps(p, i / d->block_mask_queries, j / d->block_mask_keys));
}

static int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t greater(int64_t a, int64_t b) { return a > b ? a : b; }

/* Returns the number of keys, from *first on, that positions let query i of entry b attend to. */
static int64_t keys_of(const bench_problem *p, int64_t b, int64_t i, int64_t *first) {
    const rapt_desc *d = &p->desc;
    const int64_t at = d->causal == RAPT_CAUSAL_TOP_LEFT ? i : i + p->keys[b] - p->queries[b];
    int64_t end = p->keys[b];
    *first = d->window_left >= 0 ? greater(0, at - d->window_left) : 0;
    if (d->causal) end = at + 1;
    else if (d->window_right >= 0) end = at + d->window_right + 1;
    end = greater(end, d->prefix);
    if (d->local_chunk) {
        const int64_t chunk = (at >= 0 ? at / d->local_chunk : -1) * d->local_chunk; /* before key 0 there are none */
        *first = greater(*first, chunk), end = lesser(end, chunk + d->local_chunk);
    }
    return greater(0, lesser(end, p->keys[b]) - *first);
}

/* Counts the pairs of one head in entry b, and the elements of mask and bias that are read for them. Returns how many keys are
 * attended by any query. */
static int64_t count_entry(const bench_problem *p, int64_t b, int64_t *pairs, int64_t *elements) {
    static bool needed[BENCH_MOST_KEYS];
    const bool masked = p->desc.mask.type || p->desc.block_mask.type;
    int64_t sum = 0;
    memset(needed, 0, sizeof needed);
    for (int64_t i = 0; i < p->queries[b]; i++) {
        int64_t first;
        const int64_t keys = keys_of(p, b, i, &first);
        *elements += keys;
        if (!masked) memset(needed + first, true, (size_t)keys);
        for (int64_t j = first; j < first + keys && masked; j++)
            if (masks_keep(p, i, j)) needed[j] = true, ++*pairs;
        if (!masked) *pairs += keys;
    }
    for (int64_t j = 0; j < p->keys[b]; j++) sum += needed[j];
    return sum;
}

static void count_work(bench_problem *p) {
    const rapt_desc *d = &p->desc;
    const int64_t v_row = p->aliased ? 0 : rapt_row_bytes(p->type->kv, d->d_v);
    const int64_t kv_row = rapt_row_bytes(p->type->kv, d->d_k) + v_row + (p->type->scaled ? 2 * (int64_t)sizeof(float) : 0);
    const int64_t q_row = rapt_row_bytes(p->type->q, d->d_k) + rapt_row_bytes(p->type->q, d->d_v) + (d->lse.type ? 4 : 0);
    int64_t pairs = 0, most = 0, bytes = 0;
    for (int64_t b = 0; b < d->batch; b++) {
        int64_t elements = 0;
        bytes += d->kv_heads * count_entry(p, b, &pairs, &elements) * kv_row + d->heads * p->queries[b] * q_row;
        most = greater(most, elements); /* entries have the same mask and bias */
    }
    if (d->bias.type) bytes += most * bias_heads(p) * rapt_row_bytes(d->bias.type, 1);
    if (d->mask.type) bytes += d->mask.type == RAPT_BIT ? most / 8 : most;
    p->pairs = pairs * d->heads, p->bytes = (double)bytes;
}

void bench_problem_draw(bench_problem *p, uint64_t seed, int64_t index) {
    uint64_t random = hash_index(seed, index, 0, 0, 0);
    memset(p, 0, sizeof *p);
    rapt_desc_init(&p->desc);
    draw_shape(p, &random), draw_memory(p, &random), draw_logits(p, &random);
    shrink(p, &random);
    draw_positions(p, &random), draw_entries(p, &random);
    lay_out(p);
    count_work(p);
}

void bench_problem_smallest(bench_problem *p, int64_t kv_heads) {
    int count;
    memset(p, 0, sizeof *p);
    rapt_desc_init(&p->desc);
    p->type = bench_types(&count); /* the first one is f32 */
    p->desc.heads = p->desc.kv_heads = kv_heads, p->desc.d_k = p->desc.d_v = 16;
    p->q_len = p->kv_len = p->queries[0] = p->keys[0] = 1;
    lay_out(p);
    count_work(p);
}

/* ---- Words --------------------------------------------------------------------------------------------------------------- */

static void print_number(const char *what, int64_t number) { printf(", %s %lld", what, (long long)number); }

static void print_masks(const bench_problem *p) {
    static const char *const patterns[] = {"causal", "padding", "documents", "halves"};
    const rapt_desc *d = &p->desc;
    if (d->causal) printf(", %s", d->causal == RAPT_CAUSAL_TOP_LEFT ? "top-left" : "causal");
    if (d->window_left >= 0) print_number("window left", d->window_left);
    if (d->window_right >= 0) print_number("window right", d->window_right);
    if (d->local_chunk) print_number("local chunk", d->local_chunk);
    if (d->prefix) print_number("prefix", d->prefix);
    if (d->mask.type) printf(", mask %s %s", rapt_type_name(d->mask.type), patterns[p->mask]);
    if (d->block_mask.type)
        printf(", block mask %lld x %lld 1 in %lld", (long long)d->block_mask_queries, (long long)d->block_mask_keys,
               (long long)p->kept);
}

void bench_problem_print(const bench_problem *p) {
    static const char *const arrangements[] = {"bhsd", "bshd", "gaps", "far heads", "far tokens"};
    const rapt_desc *d = &p->desc;
    printf("%s, batch %lld, heads %lld/%lld, queries %lld, keys %lld, d %lld", p->type->name, (long long)d->batch,
           (long long)d->heads, (long long)d->kv_heads, (long long)p->q_len, (long long)p->kv_len, (long long)d->d_k);
    if (d->d_v != d->d_k) printf("/%lld", (long long)d->d_v);
    printf(", %s", arrangements[p->arrangement]);
    if (p->arrangement == BENCH_GAPS) printf(" %lld", (long long)p->gap);
    if (p->offset) print_number("offset", p->offset);
    if (p->aliased) printf(", V in K");
    if (p->storage == BENCH_RING) printf(", ring");
    if (ragged(p)) printf(", ragged");
    if (paged(p)) print_number("pages of", d->page_size);
    if (p->lengths) printf(", lengths");
    print_masks(p);
    if (d->softcap > 0.0f) printf(", softcap");
    if (d->bias.type) printf(", bias %s%s", rapt_type_name(d->bias.type), p->bias_heads ? " by head" : "");
    if (d->alibi) printf(", alibi %s", d->alibi == RAPT_ALIBI_BIAS ? "bias" : "distance");
    if (d->sinks.type) printf(", sinks");
    if (d->lse.type) printf(", lse");
}

/* ---- Tensors ------------------------------------------------------------------------------------------------------------- */

/* Returns new memory of a call, `offset` bytes after a page's begin; null if there is none. */
static void *hold(bench_call *c, int64_t bytes, int64_t offset) {
    char *memory = bench_alloc((size_t)(bytes + offset));
    if (!memory) return NULL;
    c->memory[c->tensors++] = memory;
    return memory + offset;
}

/* Fills a tensor's rows with random values, which repeat. What is between rows stays as it is. */
static void fill_rows(char *to, const rapt_layout *l, shape s, int64_t row, bool of_queries) {
    enum { POOL = 1 << 20, CHANNELS = 32 };
    static char *pools[2][RAPT_TYPE_LIMIT]; /* queries that are keys, too, would have a weight of nearly 1 */
    char **pool = &pools[of_queries][l->type];
    const int64_t unit = rapt_row_bytes(l->type, CHANNELS);
    if (!*pool && (*pool = bench_alloc(POOL))) bench_fill(*pool, l->type, POOL, 1 + of_queries);
    if (!*pool) exit(2);
    int64_t at = 0;
    for (int64_t b = 0; b < s.batch; b++)
        for (int64_t h = 0; h < s.heads; h++)
            for (int64_t t = 0; t < s.tokens; t++) {
                memcpy(to + b * l->batch_stride + h * l->head_stride + t * l->token_stride, *pool + at, (size_t)row);
                at += blocks(row, unit) * unit;
                if (at + row > POOL) at = 0;
            }
}

/* Returns a new tensor with random values; null if there is no memory. */
static void *rows(bench_call *c, const bench_problem *p, const rapt_layout *l, shape s, int64_t channels) {
    const int64_t row = rapt_row_bytes(l->type, channels);
    char *to = hold(c, span(l, s, row), p->offset);
    if (to) fill_rows(to, l, s, row, l == &p->desc.q);
    return to;
}

/* Returns n new numbers near a value; null if there is no memory. */
static float *numbers(bench_call *c, const bench_problem *p, int64_t n, float value) {
    float *x = hold(c, n * (int64_t)sizeof *x, p->offset);
    for (int64_t i = 0; x && i < n; i++) x[i] = value + 0.01f * value * (float)(i % 128);
    return x;
}

static void *mask(bench_call *c, const bench_problem *p) {
    const int64_t row = mask_row(p);
    char *x = hold(c, p->q_len * row, p->offset);
    if (!x) return NULL;
    memset(x, 0, (size_t)(p->q_len * row));
    for (int64_t i = 0; i < p->q_len; i++)
        for (int64_t j = 0; j < p->kv_len; j++)
            if (!mask_keeps(p, i, j)) continue;
            else if (p->desc.mask.type == RAPT_BIT) x[i * row + j / 8] |= (char)(1 << j % 8);
            else x[i * row + j] = 1;
    return x;
}

static void *block_mask(bench_call *c, const bench_problem *p) {
    const int64_t row = p->desc.block_mask.token_stride, count = blocks(p->q_len, p->desc.block_mask_queries);
    char *x = hold(c, count * row, p->offset);
    for (int64_t i = 0; x && i < count; i++)
        for (int64_t j = 0; j < row; j++) x[i * row + j] = block_keeps(p, i, j);
    return x;
}

/* Returns a block table in random order. */
static int32_t *table(bench_call *c, const bench_problem *p) {
    int32_t *x = hold(c, p->desc.pages * (int64_t)sizeof *x, p->offset);
    for (int32_t n = 0; x && n < p->desc.pages; n++) {
        const uint32_t at = bench_mix((uint32_t)n) % (uint32_t)(n + 1);
        x[n] = x[at];
        x[at] = n;
    }
    return x;
}

/* Creates all tensors. Returns false if there is no memory. */
static bool create(bench_call *c, const bench_problem *p) {
    const rapt_desc *d = &p->desc;
    rapt_args *a = &c->args;
    const shape q = shape_of_q(p), k = shape_of_k(p), one = {1, bias_heads(p), p->q_len};
    const int64_t scale_count = k.batch * k.heads * k.tokens;
    a->q = rows(c, p, &d->q, q, d->d_k), a->o = rows(c, p, &d->o, q, d->d_v);
    a->k = rows(c, p, &d->k, k, d->d_k), a->v = p->aliased ? a->k : rows(c, p, &d->v, k, d->d_v);
    bool there = a->q && a->o && a->k && a->v;
    if (d->lse.type) there &= (a->lse = rows(c, p, &d->lse, q, 1)) != NULL;
    if (p->type->scaled) there &= (a->k_scales = a->v_scales = numbers(c, p, scale_count, 0.01f)) != NULL;
    if (d->mask.type) there &= (a->mask = mask(c, p)) != NULL;
    if (d->block_mask.type) there &= (a->block_mask = block_mask(c, p)) != NULL;
    if (d->bias.type) there &= (a->bias = rows(c, p, &d->bias, one, p->kv_len)) != NULL;
    if (d->slopes.type) there &= (a->slopes = numbers(c, p, d->heads, 0.01f)) != NULL;
    if (d->sinks.type) there &= (a->sinks = numbers(c, p, d->heads, 1.0f)) != NULL;
    if (paged(p)) there &= (a->table = table(c, p)) != NULL;
    if (p->storage == BENCH_RING) a->ring_starts = p->ring_starts;
    if (p->lengths) a->kv_lengths = p->keys;
    return there && bench_workspace(&c->plan, 1, a);
}

bool bench_call_open(bench_call *c, bench_problem *p, const char *isa, char *why, size_t bytes) {
    c->tensors = 0, c->info.size = sizeof c->info;
    rapt_args_init(&c->args);
    p->desc.isa = isa;
    if (rapt_plan_explain(&p->desc, why, bytes) != RAPT_OK) return false;
    snprintf(why, bytes, "out of memory");
    if (rapt_plan_init(&c->plan, &p->desc) != RAPT_OK || rapt_plan_query(&c->plan, &c->info) != RAPT_OK || !create(c, p))
        return false;
    return rapt_args_explain(&c->plan, &c->args, 1, why, bytes) == RAPT_OK && rapt_run(&c->plan, &c->args) == RAPT_OK;
}

void bench_call_close(bench_call *c) {
    for (int i = 0; i < c->tensors; i++) free(c->memory[i]);
    free(c->args.workspace);
}
