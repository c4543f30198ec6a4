/* SPDX-License-Identifier: Apache-2.0 */
#include "harness.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Problems ----------------------------------------------------------------------------------------------------------- */

static int64_t size_of(int64_t size, uint64_t *random) {
    static const int64_t dims[] = {1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 40, 48, 63, 64, 65, 80, 96, 112, 127, 128};
    return size == ANY_DIM ? DRAW_OF(random, dims) : size < 0 ? 1 + draw_below(random, -size) : size;
}

problem problem_of(check *c, int64_t batch, int64_t heads, int64_t kv_heads, int64_t q_len, int64_t kv_len, int64_t d_k,
                   int64_t d_v) {
    problem p = {.q_factor = 1, .k_factor = 1, .lse = true};
    rapt_desc_init(&p.desc);
    p.desc.batch = size_of(batch, &c->random);
    p.desc.heads = size_of(heads, &c->random);
    p.desc.kv_heads = size_of(kv_heads, &c->random);
    p.desc.q_len = size_of(q_len, &c->random);
    p.desc.kv_len = size_of(kv_len, &c->random);
    p.desc.d_k = size_of(d_k, &c->random);
    p.desc.d_v = size_of(d_v, &c->random);
    problem_types(&p, RAPT_F32, RAPT_F32, RAPT_F32, RAPT_F32);
    p.desc.arith = c->arith;
    p.offset = (int)draw_below(&c->random, 2) - 1;
    p.data_seed = draw(&c->random);
    return p;
}

void problem_types(problem *p, rapt_type q, rapt_type k, rapt_type v, rapt_type o) {
    p->desc.q.type = q;
    p->desc.k.type = k;
    p->desc.v.type = v;
    p->desc.o.type = o;
}

void problem_draw_types(problem *p, uint64_t *random) {
    static const rapt_type types[] = {RAPT_F32, RAPT_F16, RAPT_BF16};
    p->desc.q.type = DRAW_OF(random, types);
    p->desc.k.type = DRAW_OF(random, types);
    p->desc.v.type = DRAW_OF(random, types);
    p->desc.o.type = DRAW_OF(random, types);
}

void problem_kv_types(problem *p, rapt_type k, rapt_type v) {
    p->desc.k.type = k;
    p->desc.v.type = v;
    p->desc.d_k = (p->desc.d_k + reference_group(k) - 1) / reference_group(k) * reference_group(k);
    p->desc.d_v = (p->desc.d_v + reference_group(v) - 1) / reference_group(v) * reference_group(v);
}

void problem_integer(problem *p) {
    problem_kv_types(p, RAPT_INT8, RAPT_INT8);
    p->desc.arith = RAPT_INT8_DOT;
    if (p->data == DATA_NORMAL) p->data = DATA_BYTES;
}

void problem_integer_groups(problem *p, uint64_t *random) {
    static const rapt_type types[] = {RAPT_INT8, RAPT_INT4, RAPT_Q8_0, RAPT_Q4_0, RAPT_Q5_0};
    const rapt_type k = DRAW_OF(random, types), v = DRAW_OF(random, types);
    problem_integer(p);
    problem_kv_types(p, k, v);
}

void problem_draw_types_of_caches(problem *p, uint64_t *random) {
    problem_draw_types(p, random);
    if (draw_below(random, 3) == 0)
        problem_kv_types(p, kv_types[draw_below(random, KV_TYPES)], kv_types[draw_below(random, KV_TYPES)]);
}

void problem_draw_mask(problem *p, uint64_t *random) {
    static const int64_t sides[] = {-1, -1, 0, 1, 2, 5, 31, 63, 64, 65, 100, 511, 600, 100000};
    p->desc.causal = (rapt_causal)draw_below(random, 3);
    p->desc.window_left = DRAW_OF(random, sides);
    p->desc.window_right = DRAW_OF(random, sides);
    p->lengths = draw_below(random, 2) ? LENGTHS_DRAWN : LENGTHS_NONE;
}

void problem_draw_layouts(problem *p, uint64_t *random) {
    p->q = (place)draw_below(random, PLACE_PACKED);
    p->k = (place)draw_below(random, PLACE_PACKED);
    p->v = (place)draw_below(random, PLACE_PACKED);
    p->o = (place)draw_below(random, PLACE_ONE_BATCH);
    p->lse = draw_below(random, 3) > 0;
    if (draw_below(random, 4) == 0) p->offset = 1 + (int)draw_below(random, 63);
}

void problem_draw_data(problem *p, uint64_t *random) {
    p->data = draw_below(random, 2) ? DATA_NORMAL : (data)draw_below(random, DATA_KINDS);
    if (p->desc.arith == RAPT_INT8_DOT && p->data == DATA_NORMAL) p->data = DATA_BYTES;
}

/* One of n, or 0 (what the default stands for) three times in four. */
static int64_t rarely(uint64_t *random, int64_t n) { return draw_below(random, 4) ? 0 : draw_below(random, n); }

static void draw_row_mask(problem *p, uint64_t *random) {
    static const int64_t block_mask_queries[] = {1, 2, 3, 16, 64}, block_mask_keys[] = {64, 128, 192, 512};
    p->desc.mask.type = (rapt_type[]){0, RAPT_BOOL, RAPT_BIT}[draw_below(random, 3)];
    p->mask = (key_pattern)draw_below(random, PATTERNS);
    if (draw_below(random, 4) == 0) {
        p->desc.block_mask.type = RAPT_BOOL;
        p->desc.block_mask_queries = DRAW_OF(random, block_mask_queries);
        p->desc.block_mask_keys = DRAW_OF(random, block_mask_keys);
        p->block_mask = (key_pattern)draw_below(random, PATTERNS);
    }
}

void problem_draw_rest(problem *p, uint64_t *random) {
    const int64_t columns = p->desc.kv_total ? p->desc.kv_total : p->desc.kv_first + p->desc.kv_len;
    const bool beyond = p->k_offsets; /* keys are at positions that a row with a column for each key has not */
    p->desc.mask_rest = beyond || draw_below(random, 2) ? (rapt_rest)(1 + draw_below(random, 2)) : RAPT_REST_REFUSED;
    p->desc.bias_rest = beyond || draw_below(random, 2) ? (rapt_rest)(1 + draw_below(random, 2)) : RAPT_REST_REFUSED;
    p->desc.mask_keys = p->desc.mask_rest ? 1 + draw_below(random, columns + 10) : columns + draw_below(random, 10);
    p->desc.bias_keys = p->desc.bias_rest ? 1 + draw_below(random, columns + 10) : columns + draw_below(random, 10);
    if (draw_below(random, 8) == 0) p->desc.mask_key_stride = 0;
    if (draw_below(random, 8) == 0) p->desc.bias_key_stride = 0;
}

void problem_of_all_keys(problem *p) {
    rapt_desc *d = &p->desc;
    d->kv_first = d->kv_total = 0;
    if (d->mask_keys && !d->mask_rest && d->mask_keys < d->kv_len) d->mask_keys = d->kv_len;
    if (d->bias_keys && !d->bias_rest && d->bias_keys < d->kv_len) d->bias_keys = d->kv_len;
}

void problem_draw_logits(problem *p, uint64_t *random) {
    static const rapt_type types[] = {RAPT_F32, RAPT_F16, RAPT_BF16};
    static const float caps[] = {0.5f, 5, 30, 50};
    if (draw_below(random, 3) == 0) {
        p->desc.bias.type = DRAW_OF(random, types);
        p->bias = (key_pattern)draw_below(random, PATTERNS);
        p->bias_finite = draw_below(random, 4) == 0;
    }
    if (draw_below(random, 3) == 0) p->desc.softcap = DRAW_OF(random, caps);
    if (draw_below(random, 3) == 0) {
        p->desc.alibi = p->desc.bias.type && draw_below(random, 2) ? RAPT_ALIBI_BIAS : RAPT_ALIBI_DISTANCE;
        p->desc.slopes.type = DRAW_OF(random, types);
    }
    if (draw_below(random, 3) == 0) p->desc.sinks.type = DRAW_OF(random, types);
    p->body = draw_below(random, 8) == 0;
    p->k_grain = (grain)rarely(random, GRAINS);
    p->v_grain = (grain)rarely(random, GRAINS);
}

void problem_draw_places(problem *p, uint64_t *random) {
    static const int64_t page_sizes[] = {1, 3, 16, 64, 100, 256};
    const int64_t keys = draw_below(random, 6);
    p->ragged_queries = draw_below(random, 4) == 0;
    if (keys == 0) p->ragged_keys = true;
    if (keys == 1) problem_paged(p, DRAW_OF(random, page_sizes));
    if (keys == 1) p->table = draw_below(random, 3);
    p->ring = draw_below(random, 4) == 0 && p->table != TABLE_LAST_PAGE; /* a ring's pages do not tell its length */
    p->rows = (place)draw_below(random, PLACE_ONE_BATCH);
    for (int e = 0; e < EXTRA_ROWS; e++)
        if (e != EXTRA_TABLE && draw_below(random, 2)) p->same[e] = (int)draw_below(random, 8);
}

void problem_draw_features(problem *p, uint64_t *random) {
    static const int64_t local_chunks[] = {1, 3, 16, 64, 100, 512, 700};
    problem_draw_mask(p, random);
    if (draw_below(random, 3) == 0) {
        p->desc.prefix = draw_below(random, p->desc.kv_len + 10);
        p->prefixes = draw_below(random, 2);
    }
    if (draw_below(random, 4) == 0) p->desc.local_chunk = DRAW_OF(random, local_chunks);
    if (draw_below(random, 2)) draw_row_mask(p, random);
    problem_draw_logits(p, random);
    problem_draw_places(p, random);
    p->desc.kv_first = p->ragged_keys ? 0 : RAPT_CHUNK_KEYS * rarely(random, 3);
    if (p->desc.kv_first && p->table != TABLE_LAST_PAGE && draw_below(random, 2))
        p->desc.kv_total = p->desc.kv_first + draw_below(random, 2 * p->desc.kv_len + 1);
    p->nan_masked = draw_below(random, 4) == 0;
    const int64_t arith = draw_below(random, 5);
    if (arith == 0 && draw_below(random, 2)) problem_integer(p);
    else if (arith == 0) problem_integer_groups(p, random);
    if (arith == 1) p->desc.arith = RAPT_BF16_DOT;
    p->q_offsets = draw_below(random, 4) == 0;
    p->k_offsets = draw_below(random, 4) == 0;
    if (p->k_offsets || draw_below(random, 4) == 0) problem_draw_rest(p, random);
    if (draw_below(random, 6) == 0) p->desc.scores_stage = (rapt_scores_stage)(1 + draw_below(random, RAPT_SCORES_WEIGHTS));
    if (draw_below(random, 12) == 0) p->desc.scale = 0;
}

void problem_paged(problem *p, int64_t page_size) {
    p->desc.page_size = page_size;
    p->desc.table.type = RAPT_I32;
    p->same[EXTRA_TABLE] = SAME_HEADS | SAME_QUERIES;
}

bool problem_wanted(check *c, const problem *p) {
    const rapt_desc *d = &p->desc;
    const int64_t products = d->batch * d->heads * d->q_len * d->kv_len * (d->d_k + d->d_v);
    const int64_t index = c->problems++;
    const bool wanted = !c->quick || (products < 1 << 19 && index % c->thin == (int64_t)(c->seed % (uint64_t)c->thin));
    c->wanted += wanted;
    return wanted;
}

/* ---- Layouts ------------------------------------------------------------------------------------------------------------ */

#define NOT_USED (INT64_C(1) << 60) /* a stride of a dimension that is not there */

/* Of rows of `elements` elements for each token of each head. */
static rapt_layout layout_of(place where, rapt_type type, int64_t heads, int64_t tokens, int64_t elements, uint64_t *random) {
    const int64_t row = reference_row_bytes(type, elements);
    rapt_layout l = {type, row * tokens * heads, row * tokens, row};
    switch (where) {
    case PLACE_BSHD:
        l.head_stride = row;
        l.token_stride = row * heads;
        break;
    case PLACE_PADDED:
    case PLACE_ODD: {
        const int64_t unit = where == PLACE_ODD ? 1 : type <= RAPT_BF16 ? reference_type_bytes(type) : 4;
        l.token_stride += unit * (1 + 2 * draw_below(random, 8));
        l.head_stride = l.token_stride * tokens + unit * (1 + 2 * draw_below(random, 8));
        l.batch_stride = l.head_stride * heads + unit * (1 + 2 * draw_below(random, 8));
        break;
    }
    case PLACE_ONE_BATCH:
        l.batch_stride = 0;
        break;
    case PLACE_ONE_HEAD:
        l.head_stride = 0;
        break;
    case PLACE_BHSD:
    case PLACE_PACKED:
        break;
    }
    return l;
}

static size_t span(const rapt_layout *l, int64_t batch, int64_t heads, int64_t tokens, int64_t elements) {
    if (batch == 0 || heads == 0 || tokens == 0) return 0;
    return (size_t)((batch - 1) * l->batch_stride + (heads - 1) * l->head_stride + (tokens - 1) * l->token_stride +
                    reference_row_bytes(l->type, elements));
}

/* ---- Data --------------------------------------------------------------------------------------------------------------- */

/* f16 has its own range, and its denormals begin at 2^-14. */
static float pick(rapt_type type, float of_half, float of_others) { return type == RAPT_F16 ? of_half : of_others; }

static float signed_zero(uint64_t *random) {
    static const float values[] = {0.0f, -0.0f, 0.0f, -0.0f, 1.0f, -1.0f};
    return DRAW_OF(random, values);
}

static float any_byte(uint64_t *random) {
    static const float outermost[] = {-128, -127, 127};
    return draw_below(random, 8) ? (float)(draw_below(random, 256) - 128) : DRAW_OF(random, outermost);
}

static float q_value(const problem *p, int64_t c, uint64_t *random) {
    const float normal = draw_normal(random);
    switch (p->data) {
    case DATA_LARGE:
        return normal * 8192;
    case DATA_TIES:
        return (float)(draw_below(random, 3) - 1);
    case DATA_ONE_HOT:
        return c == 0 ? 16 : normal;
    case DATA_RISING:
    case DATA_FALLING:
        return c == 0 ? 4 : normal;
    case DATA_INF_FIRST:
    case DATA_INF_MIDDLE:
    case DATA_INF_LAST:
    case DATA_INF_ALL:
        return c == 0 ? 1 : normal;
    case DATA_DENORMAL:
        return normal * pick(p->desc.q.type, 0x1p-20f, 0x1p-132f);
    case DATA_TINY:
        return normal * 0x1p56f;
    case DATA_RARE:
        return normal * 0x1p124f;
    case DATA_BYTES:
        return normal * 0x1p-6f * p->q_factor;
    default:
        return normal * p->q_factor;
    }
}

static float k_value(const problem *p, int64_t length, int64_t j, int64_t c, uint64_t *random) {
    const float normal = draw_normal(random);
    const int64_t third = (length + 2) / 3;
    switch (p->data) {
    case DATA_TIES:
        return (float)(draw_below(random, 3) - 1);
    case DATA_ONE_HOT:
        return c == 0 ? (j == (int64_t)(p->data_seed % (uint64_t)length) ? 64.0f : 0.0f) : normal * 0.0625f;
    case DATA_RISING:
        return c == 0 ? 0.25f * (float)j : normal * 0.25f;
    case DATA_FALLING:
        return c == 0 ? -0.25f * (float)j : normal * 0.25f;
    case DATA_INF_FIRST:
        return c == 0 && j < third ? -INFINITY : normal;
    case DATA_INF_MIDDLE:
        return c == 0 && j >= length / 3 && j < length / 3 + third ? -INFINITY : normal;
    case DATA_INF_LAST:
        return c == 0 && j >= length - third ? -INFINITY : normal;
    case DATA_INF_ALL:
        return c == 0 ? -INFINITY : normal;
    case DATA_DENORMAL:
        return normal * pick(p->desc.k.type, 0x1p10f, draw_below(random, 2) ? 0x1p120f : 0x1p-20f);
    case DATA_TINY:
        return normal * 0x1p-56f;
    case DATA_RARE:
        return j / 64 % 3 == 1 ? normal * 0x1p-128f : 0.0f;
    case DATA_ZEROS:
        return signed_zero(random);
    case DATA_INFINITE:
        return draw_below(random, 40 * p->desc.d_k) ? normal : normal < 0 ? -INFINITY : INFINITY;
    case DATA_BYTES:
        return any_byte(random);
    default:
        return normal * p->k_factor;
    }
}

static float v_value(const problem *p, uint64_t *random) {
    const float normal = draw_normal(random);
    switch (p->data) {
    case DATA_DENORMAL:
        return normal * pick(p->desc.v.type, 0x1p-20f, 0x1p-135f);
    case DATA_TINY:
        return normal * 0x1p-56f;
    case DATA_ZEROS:
        return signed_zero(random) * pick(p->desc.v.type, 0x1p-24f, p->desc.v.type == RAPT_F32 ? 0x1p-149f : 0x1p-133f);
    case DATA_INFINITE:
        return draw_below(random, 100) ? normal : normal < 0 ? -INFINITY : INFINITY;
    case DATA_BYTES:
        return any_byte(random);
    default:
        return normal;
    }
}

/* ---- Queries, keys, values ---------------------------------------------------------------------------------------------- */

/* Of int8, -128 too, which rapt_kv_append_run never writes. */
static void store(const rapt_layout *l, const void *base, int64_t b, int64_t h, int64_t token, const float *values,
                  int64_t channels) {
    unsigned char *const row = reference_at(base, l, b, h, token);
    const bool stored = reference_store_row(l->type, row, values, channels);
    for (int64_t c = 0; c < channels && l->type == RAPT_INT8; c++)
        if (values[c] == -128) row[c] = 128;
    if (stored) return;
    fprintf(stderr, "check: type %d does not hold %d channels\n", (int)l->type, (int)channels);
    exit(1);
}

static void store_key(subject *s, const problem *p, int64_t h, reference_place at, int64_t keys, int64_t n, uint64_t *random) {
    const rapt_desc *d = &s->desc;
    float values[RAPT_MAX_HEAD_DIM];
    for (int64_t c = 0; c < d->d_k; c++) values[c] = k_value(p, keys, n, c, random);
    store(&d->k, s->args.k, at.batch, h, at.token, values, d->d_k);
    for (int64_t c = 0; c < d->d_v; c++) values[c] = v_value(p, random);
    store(&d->v, s->args.v, at.batch, h, at.token, values, d->d_v);
}

/* Whether two queries may find the same key in different pages. */
static bool gathered(const problem *p) { return p->desc.page_size && !(p->same[EXTRA_TABLE] & SAME_QUERIES); }

/* The keys of head h in the order of the pool: those that a query finds there. */
static void fill_pool(subject *s, const problem *p, int64_t h, uint64_t *random) {
    const rapt_desc *d = &s->desc;
    const int64_t slots = d->pages * d->page_size;
    bool *found = allocate_zeros((size_t)slots + 1, sizeof *found);
    for (int64_t b = 0; b < d->batch; b++) {
        int64_t first, end;
        reference_keys(d, &s->args, b, &first, &end);
        for (int64_t i = 0; i < reference_queries(d, b); i++) {
            for (int64_t j = first; j < end; j++) {
                const reference_place at = reference_key(d, &s->args, b, h, i, j);
                found[at.batch * d->page_size + at.token] = true;
            }
        }
    }
    for (int64_t n = 0; n < slots; n++)
        if (found[n]) store_key(s, p, h, (reference_place){n / d->page_size, n % d->page_size}, slots, n, random);
    free(found);
}

/* Elements that no query may read, and the gaps between elements, stay NaN in every type: all bits are one. */
static void fill(subject *s, const problem *p) {
    uint64_t random = p->data_seed;
    fence_fill(&s->q, 0xff);
    fence_fill(&s->k, 0xff);
    fence_fill(&s->v, 0xff);
    const rapt_desc *d = &s->desc;
    for (int64_t b = 0; b < d->batch; b++) {
        int64_t first, end;
        reference_keys(d, &s->args, b, &first, &end);
        for (int64_t h = 0; h < d->heads; h++) {
            for (int64_t i = 0; i < reference_queries(d, b); i++) {
                float values[RAPT_MAX_HEAD_DIM];
                for (int64_t c = 0; c < d->d_k; c++) values[c] = q_value(p, c, &random);
                store(&d->q, s->args.q, reference_query_batch(d, b), h, reference_query_token(d, b, i), values, d->d_k);
            }
        }
        for (int64_t h = 0; h < d->kv_heads && !gathered(p); h++)
            for (int64_t j = first; j < end; j++)
                store_key(s, p, h, reference_key(d, &s->args, b, h, 0, j), end - first, j - first, &random);
    }
    for (int64_t h = 0; h < d->kv_heads && gathered(p); h++) fill_pool(s, p, h, &random);
}

/* ---- Features ----------------------------------------------------------------------------------------------------------- */

static void *create_extra(subject *s, extra e, size_t bytes, int offset) {
    s->extra[e] = fence_create(bytes, offset, 0);
    fence_fill(&s->extra[e], 0xff);
    return s->extra[e].data;
}

/* Creates a tensor with a row of elements for each entry, head and token; some of the rows share memory. */
static void *create_rows(check *c, subject *s, const problem *p, extra e, rapt_layout *l, int64_t batch, int64_t heads,
                         int64_t tokens, int64_t elements) {
    const int same = p->same[e];
    *l = layout_of(p->rows, l->type, heads, tokens, elements, &c->random);
    if (same & SAME_BATCH) l->batch_stride = 0;
    if (same & SAME_HEADS) l->head_stride = 0;
    if (same & SAME_QUERIES) l->token_stride = 0;
    return create_extra(s, e, span(l, batch, heads, tokens, elements), p->offset);
}

/* Columns of masks and biases: positions, so that the same rows serve all parts of a sequence. */
static int64_t columns(const rapt_desc *d, int64_t keys, int key_stride) {
    return key_stride == 0 ? 1 : keys ? keys : reference_columns(d);
}

static bool keeps(const problem *p, extra e, key_pattern kind, int64_t b, int64_t h, int64_t i, int64_t n, int64_t block) {
    const uint64_t seed = p->data_seed + (uint64_t)e;
    const int same = p->same[e];
    if (same & SAME_BATCH) b = 0;
    if (same & SAME_HEADS) h = 0;
    if (same & SAME_QUERIES) i = 0;
    const uint64_t any = hash_index(seed, b, h, i, n);
    const uint64_t row = hash_index(~seed, b, h, i, 0) % 3;
    switch (kind) {
    case PATTERN_HALF:
        return any % 2;
    case PATTERN_FEW:
        return any % 16 == 0;
    case PATTERN_MOST:
        return any % 16;
    case PATTERN_BLOCKS:
        return hash_index(~seed, b, h, i / 8, n / block) % 2 && any % 8;
    case PATTERN_ROWS:
        return row == 0 || (row == 1 && any % 2);
    case PATTERN_ALIKE:
        switch (hash_index(~seed, b, h, 0, n / block) % 4) {
        case 0:
            return hash_index(seed, b, h, 0, n) % 2;
        case 1:
            return any % 500;
        case 2:
            return false;
        default:
            return true;
        }
    default:
        return true;
    }
}

static void create_mask(check *c, subject *s, const problem *p, int64_t tokens) {
    rapt_desc *d = &s->desc;
    const int64_t keys = columns(d, d->mask_keys, d->mask_key_stride);
    unsigned char *const base = create_rows(c, s, p, EXTRA_MASK, &d->mask, d->batch, d->heads, tokens, keys);
    s->args.mask = base;
    for (int64_t row = 0; row < d->batch * d->heads * tokens; row++) {
        const int64_t b = row / tokens / d->heads, h = row / tokens % d->heads, i = row % tokens;
        unsigned char *const to = reference_at(base, &d->mask, b, h, i);
        for (int64_t n = 0; n < keys; n++) {
            const bool kept = keeps(p, EXTRA_MASK, p->mask, b, h, i, n, 64);
            if (d->mask.type == RAPT_BOOL) to[n] = kept ? (unsigned char)(1 + n % 255) : 0;
            else to[n / 8] = (unsigned char)(kept ? to[n / 8] | 1 << n % 8 : to[n / 8] & ~(1 << n % 8));
        }
    }
}

static void create_block_mask(check *c, subject *s, const problem *p, int64_t tokens) {
    rapt_desc *d = &s->desc;
    const int64_t rows = (tokens + d->block_mask_queries - 1) / d->block_mask_queries;
    const int64_t blocks = (reference_columns(d) + d->block_mask_keys - 1) / d->block_mask_keys;
    unsigned char *const base = create_rows(c, s, p, EXTRA_BLOCK_MASK, &d->block_mask, d->batch, d->heads, rows, blocks);
    s->args.block_mask = base;
    for (int64_t row = 0; row < d->batch * d->heads * rows; row++) {
        const int64_t b = row / rows / d->heads, h = row / rows % d->heads, i = row % rows;
        for (int64_t n = 0; n < blocks; n++)
            ((unsigned char *)reference_at(base, &d->block_mask, b, h, i))[n] =
                keeps(p, EXTRA_BLOCK_MASK, p->block_mask, b, h, i, n, 1) ? 7 : 0;
    }
}

static float bias_value(const problem *p, int64_t b, int64_t h, int64_t i, int64_t n) {
    if (keeps(p, EXTRA_BIAS, p->bias, b, h, i, n, 64)) {
        const int same = p->same[EXTRA_BIAS];
        uint64_t random = hash_index(p->data_seed ^ 0xb1a5, same & SAME_BATCH ? 0 : b, same & SAME_HEADS ? 0 : h,
                                     same & SAME_QUERIES ? 0 : i, n);
        return 2 * draw_normal(&random);
    }
    if (!p->bias_finite) return -INFINITY;
    return p->desc.bias.type == RAPT_F16 ? -65504 : p->desc.bias.type == RAPT_BF16 ? -0x1.fep127f : -FLT_MAX;
}

static void create_bias(check *c, subject *s, const problem *p, int64_t tokens) {
    rapt_desc *d = &s->desc;
    const int64_t bytes = reference_type_bytes(d->bias.type), keys = columns(d, d->bias_keys, d->bias_key_stride);
    unsigned char *const base = create_rows(c, s, p, EXTRA_BIAS, &d->bias, d->batch, d->heads, tokens, keys);
    s->args.bias = base;
    for (int64_t row = 0; row < d->batch * d->heads * tokens; row++) {
        const int64_t b = row / tokens / d->heads, h = row / tokens % d->heads, i = row % tokens;
        unsigned char *const to = reference_at(base, &d->bias, b, h, i);
        for (int64_t n = 0; n < keys; n++) reference_store(d->bias.type, to + n * bytes, bias_value(p, b, h, i, n));
    }
}

/* A number for each head of each entry. */
static const void *create_numbers(check *c, subject *s, const problem *p, extra e, rapt_layout *l) {
    static const float slopes[] = {0.5f, 0.25f, 0.0625f, 0.00390625f, 0.7f, 0, -0.1f};
    unsigned char *const base = create_rows(c, s, p, e, l, s->desc.batch, s->desc.heads, 1, 1);
    for (int64_t b = 0; b < s->desc.batch; b++) {
        for (int64_t h = 0; h < s->desc.heads; h++) {
            uint64_t random =
                hash_index(p->data_seed ^ (uint64_t)e, p->same[e] & SAME_BATCH ? 0 : b, p->same[e] & SAME_HEADS ? 0 : h, 0, 0);
            const float drawn = draw_below(&random, 6) ? 4 * draw_normal(&random) : -INFINITY;
            const float sink = p->nan_sinks && draw_below(&random, 2) ? NAN : drawn;
            reference_store(l->type, reference_at(base, l, b, h, 0), e == EXTRA_SLOPES ? DRAW_OF(&random, slopes) : sink);
        }
    }
    return base;
}

/* Scales of K or V: only those of keys that exist. */
static const float *create_scales(subject *s, const problem *p, extra e, grain of, rapt_scales *l, int64_t channels) {
    const rapt_desc *d = &s->desc;
    const bool by_token = of == GRAIN_TOKEN || of == GRAIN_TOKEN_OF_ALL_HEADS;
    const int64_t batch = !by_token ? d->batch : d->page_size ? d->pages : p->ragged_keys ? 1 : d->batch, heads = d->kv_heads;
    const int64_t tokens = d->page_size ? d->page_size : d->kv_len, gap = p->rows == PLACE_PADDED || p->rows == PLACE_ODD ? 4 : 0;
    *l = (rapt_scales){.present = 1};
    if (of == GRAIN_HEAD) {
        l->head_stride = 4 + gap;
        l->batch_stride = l->head_stride * heads + gap;
    } else if (of == GRAIN_TOKEN && p->rows == PLACE_BSHD) {
        l->head_stride = 4;
        l->token_stride = 4 * heads;
        l->batch_stride = l->token_stride * tokens;
    } else if (of == GRAIN_TOKEN) {
        l->token_stride = 4 + gap;
        l->head_stride = l->token_stride * tokens + gap;
        l->batch_stride = l->head_stride * heads + gap;
    } else if (of == GRAIN_TOKEN_OF_ALL_HEADS) {
        l->token_stride = 4 + gap;
        l->batch_stride = l->token_stride * tokens;
    } else if (of != GRAIN_TENSOR) {
        l->channel_stride = 4 + gap;
        if (of == GRAIN_CHANNEL) l->head_stride = l->channel_stride * channels + gap;
    }
    const int64_t last = (batch - 1) * l->batch_stride + (heads - 1) * l->head_stride + (tokens - 1) * l->token_stride +
                         (channels - 1) * l->channel_stride;
    const bool any = batch > 0 && (tokens > 0 || !l->token_stride);
    unsigned char *const base = create_extra(s, e, any ? (size_t)last + 4 : 0, p->offset);
    for (int64_t b = 0; b < d->batch; b++) {
        int64_t first, end;
        reference_keys(d, &s->args, b, &first, &end);
        for (int64_t h = 0; h < heads; h++) {
            const int64_t queries = gathered(p) ? reference_queries(d, b) : 1, keys = l->token_stride ? end - first : 1;
            for (int64_t n = 0; n < queries * keys * channels; n++) {
                const int64_t i = n / channels / keys, key = n / channels % keys, channel = n % channels;
                const reference_place at =
                    l->token_stride ? reference_key(d, &s->args, b, h, i, first + key) : (reference_place){0};
                uint64_t random =
                    gathered(p) ? hash_index(p->data_seed ^ (uint64_t)e, at.batch, h, at.token, l->channel_stride ? channel : 0)
                                : hash_index(p->data_seed ^ (uint64_t)e, b, h, key, l->channel_stride ? channel : 0);
                const float size = 0.5f + (float)draw_below(&random, 1 << 20) * 0x1.8p-20f;
                reference_store(RAPT_F32, (void *)reference_scale(l, base, b, h, at, channel),
                                draw_below(&random, 8) ? size : -size);
            }
        }
    }
    return (const float *)(const void *)base;
}

static const int32_t *create_integers(subject *s, extra e, const int32_t *values, int64_t n) {
    int32_t *const to = create_extra(s, e, (size_t)n * sizeof *values, -1);
    memcpy(to, values, (size_t)n * sizeof *values);
    return to;
}

/* Starts of a ragged batch whose longest entry has most tokens, with some tokens before the first entry and after the last that
 * belong to none. */
static int64_t create_starts(subject *s, const problem *p, extra e, int64_t most, const int32_t **starts) {
    int32_t values[MOST_BATCH + 1];
    const int64_t batch = s->desc.batch, longest = batch ? (int64_t)(p->data_seed % (uint64_t)batch) : 0;
    uint64_t random = p->data_seed + (uint64_t)e;
    values[0] = (int32_t)draw_below(&random, 3);
    for (int64_t b = 0; b < batch; b++)
        values[b + 1] = values[b] + (int32_t)(b == longest ? most : draw_below(&random, most + 1));
    *starts = create_integers(s, e, values, batch + 1);
    return values[batch] + draw_below(&random, 3);
}

/* ---- Page tables -------------------------------------------------------------------------------------------------------- */

static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Does a page of entry b's table hold keys that exist? With a ring any may. */
static bool page_used(const subject *s, int64_t b, int64_t page) {
    const rapt_desc *d = &s->desc;
    int64_t first, end;
    reference_keys(d, &s->args, b, &first, &end);
    const int64_t ring = s->args.ring_starts ? s->args.ring_starts[b] : 0, start = page * d->page_size;
    for (int64_t slot = start; slot < start + d->page_size && slot < d->kv_len; slot++)
        if ((slot - ring + d->kv_len) % d->kv_len < end - first) return true;
    return false;
}

/* Entries for pages without keys are numbers out of range. The others are pages of their own, in any order; for gathered keys,
 * any pages. */
static void create_table(check *c, subject *s, const problem *p, const int32_t *lengths) {
    rapt_desc *d = &s->desc;
    const int64_t columns = divide_up(d->kv_len, d->page_size), tokens = larger(1, p->desc.q_len);
    const int64_t heads = p->same[EXTRA_TABLE] & SAME_HEADS ? 1 : d->kv_heads,
                  rows = gathered(p) ? 1 : heads * (p->same[EXTRA_TABLE] & SAME_BATCH ? 1 : d->batch);
    d->pages = rows * columns + 3;
    int32_t *const order = allocate((size_t)d->pages * sizeof *order), starts[MOST_BATCH + 1] = {0}, last[MOST_BATCH] = {0};
    uint64_t random = hash_index(p->data_seed, d->page_size, p->table, 0, 0);
    for (int64_t n = 0; n < d->pages; n++) {
        const int64_t other = draw_below(&random, n + 1);
        order[n] = order[other];
        order[other] = (int32_t)n;
    }
    if (p->table != TABLE_MATRIX) {
        starts[0] = (int32_t)draw_below(&random, 3);
        for (int64_t b = 0; b < d->batch; b++) {
            const int64_t keys = larger(0, smaller(lengths[b] - d->kv_first, d->kv_len));
            const int64_t needed = divide_up(keys, d->page_size), more = p->table == TABLE_CSR ? draw_below(&random, 2) : 0;
            starts[b + 1] = starts[b] + (int32_t)(p->ring ? columns : smaller(needed + more, columns));
            last[b] = (int32_t)(keys ? keys - (needed - 1) * d->page_size : 1);
        }
        s->args.table_starts = create_integers(s, EXTRA_TABLE_STARTS, starts, d->batch + 1);
        if (p->table == TABLE_LAST_PAGE) {
            s->args.last_page = create_integers(s, EXTRA_LAST_PAGE, last, d->batch);
            s->args.kv_lengths = NULL;
        }
    }
    s->args.table = create_rows(c, s, p, EXTRA_TABLE, &d->table, p->table == TABLE_MATRIX ? d->batch : 1, d->kv_heads, tokens,
                                p->table == TABLE_MATRIX ? columns : starts[d->batch]);
    if (p->table != TABLE_MATRIX) d->table.batch_stride = INT64_C(1) << 40; /* not used, which the plan does not know */
    int64_t next = 0;
    for (int64_t b = 0; b < d->batch; b++) {
        const int64_t pages = p->table == TABLE_MATRIX ? columns : starts[b + 1] - starts[b];
        for (int64_t h = 0; h < heads; h++) {
            for (int64_t i = 0; i < (gathered(p) ? tokens : 1); i++) {
                for (int64_t page = 0; page < pages; page++) {
                    if (!page_used(s, b, page)) continue;
                    const int32_t number = order[gathered(p) ? draw_below(&random, d->pages) : next++ % d->pages];
                    memcpy((void *)reference_table(d, &s->args, b, h, i, page), &number, sizeof number);
                }
            }
        }
    }
    free(order);
}

/* ---- NaN in what is masked ---------------------------------------------------------------------------------------------- */

/* Marks for each byte of a fence where something begins that a query attends. */
typedef struct marks {
    fence *memory;
    bool *at;
} marks;

static marks marks_of(fence *memory) {
    const marks m = {memory, allocate_zeros(memory->bytes + 1, sizeof(bool))};
    return m;
}

static bool *mark(const marks *m, const void *at) { return &m->at[(const unsigned char *)at - m->memory->data]; }

static void poison_masked(subject *s) {
    const rapt_desc *d = &s->desc;
    const rapt_args *a = &s->args;
    enum { K, V, K_SCALES, V_SCALES, BIAS, MARKS };
    const marks m[MARKS] = {marks_of(&s->k), marks_of(&s->v), marks_of(&s->extra[EXTRA_K_SCALES]),
                            marks_of(&s->extra[EXTRA_V_SCALES]), marks_of(&s->extra[EXTRA_BIAS])};
    const int64_t group = d->heads / d->kv_heads, bias_bytes = d->bias.type ? reference_type_bytes(d->bias.type) : 0;
    for (int poison = 0; poison < 2; poison++) { /* first all marks */
        for (int64_t b = 0; b < d->batch; b++) {
            int64_t first, end;
            reference_keys(d, a, b, &first, &end);
            const int64_t queries = reference_queries(d, b), keys = end - first;
            for (int64_t n = 0; n < d->heads * queries * keys; n++) {
                const int64_t h = n / keys / queries, i = n / keys % queries, j = first + n % keys;
                const reference_place at = reference_key(d, a, b, h / group, i, j);
                const int64_t column = d->bias.type ? reference_bias_column(d, a, b, j) : -1;
                unsigned char *const part[MARKS] = {
                    reference_at(a->k, &d->k, at.batch, h / group, at.token),
                    reference_at(a->v, &d->v, at.batch, h / group, at.token),
                    d->k_scales.token_stride ? (void *)reference_scale(&d->k_scales, a->k_scales, b, h / group, at, 0) : NULL,
                    d->v_scales.token_stride ? (void *)reference_scale(&d->v_scales, a->v_scales, b, h / group, at, 0) : NULL,
                    column >= 0 ? (unsigned char *)reference_at(a->bias, &d->bias, b, h, i) + column * bias_bytes : NULL};
                const int64_t bytes[MARKS] = {reference_row_bytes(d->k.type, d->d_k), reference_row_bytes(d->v.type, d->d_v), 4,
                                              4, bias_bytes};
                const bool attended = !poison && reference_attends(d, a, b, h, i, j);
                for (int e = 0; e < MARKS; e++) {
                    if (!part[e]) continue;
                    if (attended) *mark(&m[e], part[e]) = true;
                    if (!poison || *mark(&m[e], part[e])) continue;
                    if (e == BIAS && reference_load(d->bias.type, part[e]) == -INFINITY) continue; /* it is the mask */
                    memset(part[e], 0xff, (size_t)bytes[e]);
                }
            }
        }
    }
    for (int e = 0; e < MARKS; e++) free(m[e].at);
}

/* ---- A callback for the logits ------------------------------------------------------------------------------------------ */

/* What is added depends on where the logit is in the whole subject, also if the call has only a view of it. */
typedef struct body_arg {
    uint64_t seed;
    int64_t batch, head, token;
} body_arg;

static void body(void *arg, const rapt_logits *l) {
    const body_arg *a = arg;
    for (int r = 0; r < l->rows; r++) {
        for (int n = 0; n < l->keys; n++) {
            const uint64_t random =
                hash_index(a->seed, a->batch + l->batch, a->head + l->heads[r], a->token + l->tokens[r], l->first_key + n);
            float *const logit = &l->logits[r * l->row_stride + n * l->key_stride];
            if (random % 64 == 0) *logit = -INFINITY;
            else if (*logit == -INFINITY) *logit = 100; /* a bias of -inf masks the key all the same */
            else *logit += (float)(int64_t)(random % 255 - 127) * 0x1p-6f;
        }
    }
}

static void set_body(subject *s, body_arg arg) {
    memcpy(create_extra(s, EXTRA_BODY, sizeof arg, 0), &arg, sizeof arg);
    s->args.logits_arg = s->extra[EXTRA_BODY].data;
    s->desc.logits_body = body;
}

/* ---- Subjects ----------------------------------------------------------------------------------------------------------- */

static void create_outputs(subject *s, int offset) {
    const rapt_desc *d = &s->desc;
    const int64_t batch = d->q_starts ? 1 : d->batch;
    s->o = fence_create(span(&d->o, batch, d->heads, d->q_len, d->d_v), offset, 0);
    s->args.o = s->o.data;
    s->args.lse = NULL;
    s->args.scores = NULL;
    s->lse = s->scores = (fence){0};
    if (d->lse.type) {
        s->lse = fence_create(span(&d->lse, batch, d->heads, d->q_len, 1), offset, 0);
        s->args.lse = (void *)s->lse.data;
    }
    if (d->scores_stage) {
        s->scores = fence_create(span(&d->scores, batch, d->heads, d->q_len, reference_columns(d)), offset, 0);
        s->args.scores = (void *)s->scores.data;
    }
}

static void create_lengths(subject *s, const int32_t *lengths, int64_t n) {
    s->lengths = fence_create((size_t)n * sizeof *lengths, -1, 0);
    memcpy(s->lengths.data, lengths, (size_t)n * sizeof *lengths);
    fence_protect(&s->lengths, true);
    s->args.kv_lengths = (const int32_t *)(const void *)s->lengths.data;
}

static void pack(rapt_desc *d) {
    const int64_t element = reference_type_bytes(d->q.type);
    const int64_t token = element * (d->heads * d->d_k + d->kv_heads * (d->d_k + d->d_v));
    rapt_layout *const layouts[] = {&d->q, &d->k, &d->v};
    for (int t = 0; t < 3; t++)
        *layouts[t] = (rapt_layout){d->q.type, token * d->q_len, element * (t == 2 ? d->d_v : d->d_k), token};
}

/* The length of each entry from position 0: at most what is given, or what the whole sequence has. */
static void draw_lengths(subject *s, const problem *p, int32_t *lengths) {
    const rapt_desc *d = &s->desc;
    uint64_t random = ~p->data_seed;
    for (int64_t b = 0; b < MOST_BATCH; b++) {
        const int64_t own = d->k_starts && b < d->batch ? d->k_starts[b + 1] - d->k_starts[b] : d->kv_len;
        const int64_t all = d->kv_total && p->table != TABLE_LAST_PAGE ? d->kv_total : d->kv_first + own;
        const bool none = draw_below(&random, 8) == 0, full = !none && draw_below(&random, 8) == 0;
        const int64_t some = none || full ? 0 : draw_below(&random, all - smaller(all, d->kv_first) + 1);
        lengths[b] = p->lengths == LENGTHS_GIVEN          ? p->given[b]
                     : p->lengths == LENGTHS_NONE || full ? (int32_t)all
                     : none                               ? 0
                                                          : (int32_t)(smaller(all, d->kv_first) + some);
    }
    if (p->lengths) create_lengths(s, lengths, d->batch);
}

/* Creates positions around the usual ones: before, among and after the keys. */
static void create_offsets(subject *s, const problem *p) {
    static const int32_t firsts[] = {0, 0, 1, 5, 7, 8, 63, 64, 100, 700};
    int32_t q[MOST_BATCH], k[MOST_BATCH];
    uint64_t random = hash_index(p->data_seed, 7, 7, 7, 7);
    for (int64_t b = 0; b < MOST_BATCH; b++) {
        k[b] = p->k_offsets ? DRAW_OF(&random, firsts) : 0;
        q[b] = k[b] + (int32_t)draw_below(&random, s->desc.kv_first + p->desc.kv_len + 30) - 15;
    }
    if (p->q_offsets) s->args.q_offsets = create_integers(s, EXTRA_Q_OFFSETS, q, s->desc.batch);
    if (p->k_offsets) s->args.k_offsets = create_integers(s, EXTRA_K_OFFSETS, k, s->desc.batch);
}

subject subject_create(check *c, const problem *p) {
    subject s = {.desc = p->desc};
    rapt_desc *d = &s.desc;
    rapt_args_init(&s.args);
    if (p->ragged_queries) d->q_len = create_starts(&s, p, EXTRA_Q_STARTS, p->desc.q_len, &d->q_starts);
    if (p->ragged_keys) d->kv_len = create_starts(&s, p, EXTRA_K_STARTS, p->desc.kv_len, &d->k_starts);
    int32_t lengths[MOST_BATCH], integers[MOST_BATCH];
    draw_lengths(&s, p, lengths);
    if (p->ring) {
        uint64_t random = hash_index(p->data_seed, 1, 2, 3, 4);
        for (int64_t b = 0; b < MOST_BATCH; b++) {
            const int64_t own = d->k_starts && b < d->batch ? d->k_starts[b + 1] - d->k_starts[b] : d->kv_len;
            integers[b] = own ? (int32_t)draw_below(&random, own) : 0;
        }
        s.args.ring_starts = create_integers(&s, EXTRA_RING_STARTS, integers, d->batch);
    }
    create_offsets(&s, p);
    if (p->prefixes) {
        uint64_t random = hash_index(p->data_seed, 4, 3, 2, 1);
        for (int64_t b = 0; b < MOST_BATCH; b++) integers[b] = (int32_t)draw_below(&random, d->kv_first + p->desc.kv_len + 10);
        s.args.prefixes = create_integers(&s, EXTRA_PREFIXES, integers, d->batch);
    }
    if (d->page_size) create_table(c, &s, p, lengths);

    const int64_t q_batch = p->ragged_queries ? 1 : d->batch, k_batch = d->page_size ? d->pages : p->ragged_keys ? 1 : d->batch;
    const int64_t tokens = d->page_size ? d->page_size : d->kv_len;
    const place k_place = d->page_size && p->k == PLACE_ONE_BATCH ? PLACE_BHSD : p->k;
    const place v_place = d->page_size && p->v == PLACE_ONE_BATCH ? PLACE_BHSD : p->v;
    d->q = layout_of(p->q, d->q.type, d->heads, d->q_len, d->d_k, &c->random);
    d->k = layout_of(k_place, d->k.type, d->kv_heads, tokens, d->d_k, &c->random);
    d->v = layout_of(v_place, d->v.type, d->kv_heads, tokens, d->d_v, &c->random);
    d->o = layout_of(p->o, d->o.type, d->heads, d->q_len, d->d_v, &c->random);
    if (p->lse) d->lse = layout_of(p->o, RAPT_F32, d->heads, d->q_len, 1, &c->random);
    if (d->scores_stage) d->scores = layout_of(p->o, RAPT_F32, d->heads, d->q_len, reference_columns(d), &c->random);
    if (p->ragged_queries) d->q.batch_stride = d->o.batch_stride = d->lse.batch_stride = d->scores.batch_stride = NOT_USED;
    if (p->ragged_keys) d->k.batch_stride = d->v.batch_stride = NOT_USED;

    if (p->q == PLACE_PACKED) {
        pack(d);
        s.q = fence_create((size_t)(d->batch * d->q.batch_stride), p->offset, 0);
        s.args.q = s.q.data;
        s.args.k = s.q.data + d->heads * d->q.head_stride;
        s.args.v = s.q.data + d->heads * d->q.head_stride + d->kv_heads * d->k.head_stride;
    } else {
        const int64_t keys = p->unmapped ? lengths[0] : tokens;
        const size_t k = span(&d->k, k_batch, d->kv_heads, keys, d->d_k),
                     k_all = span(&d->k, k_batch, d->kv_heads, tokens, d->d_k);
        const size_t v = span(&d->v, k_batch, d->kv_heads, keys, d->d_v),
                     v_all = span(&d->v, k_batch, d->kv_heads, tokens, d->d_v);
        s.q = fence_create(span(&d->q, q_batch, d->heads, d->q_len, d->d_k), p->offset, 0);
        s.k = fence_create(k, p->offset, k_all - k);
        s.v = fence_create(v, p->offset, v_all - v);
        s.args.q = s.q.data;
        s.args.k = s.k.data;
        s.args.v = s.v.data;
    }
    fill(&s, p);

    const int64_t queries = p->desc.q_len; /* of the longest entry */
    if (d->mask.type) create_mask(c, &s, p, queries);
    if (d->block_mask.type) create_block_mask(c, &s, p, queries);
    if (d->bias.type) create_bias(c, &s, p, queries);
    if (d->slopes.type) s.args.slopes = create_numbers(c, &s, p, EXTRA_SLOPES, &d->slopes);
    if (d->sinks.type) s.args.sinks = create_numbers(c, &s, p, EXTRA_SINKS, &d->sinks);
    if (p->k_grain) s.args.k_scales = create_scales(&s, p, EXTRA_K_SCALES, p->k_grain, &d->k_scales, d->d_k);
    if (p->v_grain) s.args.v_scales = create_scales(&s, p, EXTRA_V_SCALES, p->v_grain, &d->v_scales, d->d_v);
    if (p->body) set_body(&s, (body_arg){.seed = p->data_seed});
    if (p->nan_masked) poison_masked(&s);
    fence *const inputs[] = {&s.q, &s.k, &s.v};
    for (int64_t f = 0; f < LENGTH_OF(inputs); f++) fence_protect(inputs[f], true);
    for (int e = 0; e < EXTRAS; e++) fence_protect(&s.extra[e], true);
    create_outputs(&s, p->offset);
    return s;
}

void subject_destroy(subject *s) {
    fence *const fences[] = {&s->q, &s->k, &s->v, &s->lengths, &s->o, &s->lse, &s->scores};
    for (int64_t f = 0; f < LENGTH_OF(fences); f++) fence_destroy(fences[f]);
    for (int e = 0; e < EXTRAS; e++) fence_destroy(&s->extra[e]);
}

static const int32_t *from_entry(const int32_t *integers, int64_t b) { return integers ? integers + b : NULL; }

static const void *from_bytes(const void *base, int64_t bytes) { return base ? (const unsigned char *)base + bytes : NULL; }

subject subject_view(const subject *of, rapt_desc desc, int64_t b, int64_t h, int64_t i, int32_t length) {
    const rapt_desc *d = &of->desc;
    const rapt_args *a = &of->args;
    subject s = {.desc = desc, .args = of->args};
    const int64_t kv_head = h / (d->heads / d->kv_heads);
    s.args.q = reference_at(a->q, &d->q, reference_query_batch(d, b), h, reference_query_token(d, b, i));
    s.args.mask = d->mask.type ? reference_at(a->mask, &d->mask, b, h, i) : NULL;
    s.args.block_mask = d->block_mask.type ? reference_at(a->block_mask, &d->block_mask, b, h, i / d->block_mask_queries) : NULL;
    s.args.bias = d->bias.type ? reference_at(a->bias, &d->bias, b, h, i) : NULL;
    s.args.slopes = d->slopes.type ? reference_at(a->slopes, &d->slopes, b, h, 0) : NULL;
    s.args.sinks = d->sinks.type ? reference_at(a->sinks, &d->sinks, b, h, 0) : NULL;
    s.args.prefixes = from_entry(a->prefixes, b);
    s.args.k_offsets = from_entry(a->k_offsets, b);
    if (a->q_offsets) {
        int32_t first[MOST_BATCH];
        for (int64_t e = 0; e < desc.batch; e++) first[e] = a->q_offsets[b + e] + (int32_t)i;
        s.args.q_offsets = create_integers(&s, EXTRA_Q_OFFSETS, first, desc.batch);
    }
    s.args.ring_starts = from_entry(a->ring_starts, b);
    s.args.table_starts = from_entry(a->table_starts, b);
    s.args.last_page = length == ALL_LENGTHS ? from_entry(a->last_page, b) : NULL;
    s.args.kv_lengths = from_entry(a->kv_lengths, b);

    /* Where the scales and the keys of the first entry begin. */
    const int64_t entry = d->page_size || d->k_starts ? 0 : b, token = d->k_starts ? d->k_starts[b] : 0;
    s.args.k = reference_at(a->k, &d->k, entry, kv_head, token);
    s.args.v = reference_at(a->v, &d->v, entry, kv_head, token);
    const int64_t k_batch = d->k_scales.token_stride ? entry : b, v_batch = d->v_scales.token_stride ? entry : b;
    s.args.k_scales = from_bytes(a->k_scales, k_batch * d->k_scales.batch_stride + kv_head * d->k_scales.head_stride +
                                                  token * d->k_scales.token_stride);
    s.args.v_scales = from_bytes(a->v_scales, v_batch * d->v_scales.batch_stride + kv_head * d->v_scales.head_stride +
                                                  token * d->v_scales.token_stride);
    if (d->page_size) s.args.table = reference_at(a->table, &d->table, a->table_starts ? 0 : b, kv_head, i);
    s.desc.q_starts = NULL;
    s.desc.scores_stage = RAPT_SCORES_NONE;
    s.desc.scores = (rapt_layout){.type = RAPT_NONE};
    if (!d->mask_keys) s.desc.mask_keys = reference_columns(d);
    if (!d->bias_keys) s.desc.bias_keys = reference_columns(d);
    if (d->k_starts) {
        s.desc.kv_len = d->k_starts[b + 1] - d->k_starts[b];
        s.desc.k_starts = NULL;
    }

    s.desc.o = rapt_layout_bhsd(desc.o.type, desc.heads, desc.q_len, desc.d_v);
    if (desc.lse.type) s.desc.lse = rapt_layout_bhsd(RAPT_F32, desc.heads, desc.q_len, 1);
    if (length != ALL_LENGTHS) create_lengths(&s, &length, 1);
    if (a->logits_arg) {
        body_arg arg;
        memcpy(&arg, a->logits_arg, sizeof arg);
        arg.batch += b;
        arg.head += h;
        arg.token += i;
        set_body(&s, arg);
    }
    create_outputs(&s, -1);
    return s;
}

void subject_poison(subject *s, int tensor, int64_t b, int64_t h, int64_t j, int64_t c, float value) {
    fence *const memory = tensor == TENSOR_K ? &s->k : &s->v;
    const rapt_layout *l = tensor == TENSOR_K ? &s->desc.k : &s->desc.v;
    const reference_place at = reference_key(&s->desc, &s->args, b, h, 0, j);
    unsigned char *const row = reference_at(tensor == TENSOR_K ? s->args.k : s->args.v, l, at.batch, h, at.token);
    fence_protect(memory, false);
    reference_store(l->type, row + c * reference_type_bytes(l->type), value);
    fence_protect(memory, true);
}

/* ---- Words about it ----------------------------------------------------------------------------------------------------- */

typedef struct line {
    char *text;
    size_t bytes, used;
} line;

static void __attribute__((format(printf, 2, 3))) say(line *l, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(l->text + l->used, l->bytes - l->used, format, args);
    va_end(args);
    if (n > 0) l->used = (size_t)smaller((int64_t)l->used + n, (int64_t)l->bytes - 1);
}

static const char *type_name(rapt_type type) { return rapt_type_name(type) ? rapt_type_name(type) : "?"; }

static void say_rows(line *l, const char *name, const rapt_layout *of) {
    if (!of->type) return;
    say(l, " %s %s", name, type_name(of->type));
    if (!of->batch_stride || !of->head_stride || !of->token_stride)
        say(l, "/%s%s%s", of->batch_stride ? "" : "b", of->head_stride ? "" : "h", of->token_stride ? "" : "q");
}

static void say_scales(line *l, const char *name, const rapt_scales *of) {
    if (!of->present) return;
    say(l, " %s/%s%s%s%s", name, of->batch_stride ? "b" : "", of->head_stride ? "h" : "", of->token_stride ? "t" : "",
        of->channel_stride ? "c" : "");
}

static void say_columns(line *l, const char *name, const rapt_layout *of, int64_t keys, rapt_rest rest, int key_stride) {
    static const char *const rests[] = {"", ", rest masked", ", rest attended"};
    if (!of->type || (!keys && !rest && key_stride)) return;
    if (key_stride) say(l, " %s of %d columns%s", name, (int)keys, rests[rest]);
    else say(l, " %s of one column", name);
}

void subject_text(const subject *s, char *text, size_t bytes) {
    static const char *const alibi[] = {"", " alibi", " alibi-bias"};
    const rapt_desc *d = &s->desc;
    const rapt_args *a = &s->args;
    line l = {text, bytes, 0};
    say(&l, "b%d h%d/%d q%d kv%d d%d/%d %s,%s,%s->%s causal %d window %d,%d scale %g", (int)d->batch, (int)d->heads,
        (int)d->kv_heads, (int)d->q_len, (int)d->kv_len, (int)d->d_k, (int)d->d_v, type_name(d->q.type), type_name(d->k.type),
        type_name(d->v.type), type_name(d->o.type), (int)d->causal, (int)d->window_left, (int)d->window_right, (double)d->scale);
    if (a->kv_lengths) {
        say(&l, " lengths");
        for (int64_t b = 0; b < d->batch && b < 4; b++) say(&l, "%c%d", b ? ',' : ' ', (int)a->kv_lengths[b]);
    }
    if (d->kv_first || d->kv_total) say(&l, " first %d total %d", (int)d->kv_first, (int)d->kv_total);
    if (a->prefixes) say(&l, " prefixes");
    else if (d->prefix) say(&l, " prefix %d", (int)d->prefix);
    if (d->local_chunk) say(&l, " local %d", (int)d->local_chunk);
    say_rows(&l, "mask", &d->mask);
    say_rows(&l, "block_mask", &d->block_mask);
    if (d->block_mask.type) say(&l, " of %dx%d", (int)d->block_mask_queries, (int)d->block_mask_keys);
    if (d->softcap > 0) say(&l, " softcap %g", (double)d->softcap);
    say(&l, "%s", alibi[d->alibi]);
    say_rows(&l, "bias", &d->bias);
    if (d->logits_body) say(&l, " body");
    say_rows(&l, "sinks", &d->sinks);
    say_scales(&l, "k-scales", &d->k_scales);
    say_scales(&l, "v-scales", &d->v_scales);
    if (d->arith) say(&l, d->arith == RAPT_BF16_DOT ? " bf16-dot" : " int8-dot");
    if (d->q_starts) say(&l, " ragged-q");
    if (d->k_starts) say(&l, " ragged-k");
    if (d->page_size) say(&l, " pages of %d", (int)d->page_size);
    if (d->page_size) say_rows(&l, a->last_page ? "last-page" : a->table_starts ? "csr" : "table", &d->table);
    if (a->ring_starts) say(&l, " ring");
    if (a->q_offsets) say(&l, " q-offset %d", d->batch ? (int)a->q_offsets[0] : 0);
    if (a->k_offsets) say(&l, " k-offset %d", d->batch ? (int)a->k_offsets[0] : 0);
    say_columns(&l, "mask", &d->mask, d->mask_keys, d->mask_rest, d->mask_key_stride);
    say_columns(&l, "bias", &d->bias, d->bias_keys, d->bias_rest, d->bias_key_stride);
    if (d->scores_stage) say(&l, " scores %d", (int)d->scores_stage);
}
