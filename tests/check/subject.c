/* SPDX-License-Identifier: Apache-2.0 */
#include "harness.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

uint64_t draw(uint64_t *random) {
    uint64_t z = *random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

int64_t draw_below(uint64_t *random, int64_t n) { return (int64_t)(draw(random) >> 1) % n; }

float draw_normal(uint64_t *random) {
    const uint64_t bits = draw(random);
    const int32_t sum = (int32_t)((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48));
    return (float)(sum - 131070) * 0x1p-15f;
}

uint64_t hash_text(uint64_t start, const char *text) {
    uint64_t random = start;
    for (; *text; text++) random = draw(&random) ^ (unsigned char)*text;
    return draw(&random);
}

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

void problem_draw_mask(problem *p, uint64_t *random) {
    static const int64_t sides[] = {-1, -1, 0, 1, 2, 5, 31, 63, 64, 65, 100, 511, 600, 100000};
    p->desc.causal = (rapt_causal)draw_below(random, 3);
    p->desc.window_left = DRAW_OF(random, sides);
    p->desc.window_right = DRAW_OF(random, sides);
    p->lengths = draw_below(random, 2) ? LENGTHS_DRAWN : LENGTHS_NONE;
}

void problem_draw_data(problem *p, uint64_t *random) {
    p->data = draw_below(random, 2) ? DATA_NORMAL : (data)draw_below(random, DATA_KINDS);
}

bool problem_wanted(check *c, const problem *p) {
    const rapt_desc *d = &p->desc;
    const int64_t products = d->batch * d->heads * d->q_len * d->kv_len * (d->d_k + d->d_v);
    const int64_t index = c->problems++;
    return !c->quick || (products < 1 << 19 && index % c->thin == (int64_t)(c->seed % (uint64_t)c->thin));
}

/* ---- Layouts ------------------------------------------------------------------------------------------------------------ */

static rapt_layout layout_of(place where, rapt_type type, int64_t heads, int64_t tokens, int64_t channels, uint64_t *random) {
    const int64_t element = reference_type_bytes(type);
    rapt_layout l = rapt_layout_bhsd(type, heads, tokens, channels);
    switch (where) {
    case PLACE_BSHD:
        l = rapt_layout_bshd(type, heads, tokens, channels);
        break;
    case PLACE_PADDED:
    case PLACE_ODD: {
        const int64_t unit = where == PLACE_ODD ? 1 : element;
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

static size_t span(const rapt_layout *l, int64_t batch, int64_t heads, int64_t tokens, int64_t channels) {
    if (batch == 0 || tokens == 0) return 0;
    return (size_t)((batch - 1) * l->batch_stride + (heads - 1) * l->head_stride + (tokens - 1) * l->token_stride +
                    channels * reference_type_bytes(l->type));
}

static unsigned char *element(const rapt_layout *l, void *base, int64_t b, int64_t h, int64_t token, int64_t c) {
    return (unsigned char *)base + b * l->batch_stride + h * l->head_stride + token * l->token_stride +
           c * reference_type_bytes(l->type);
}

/* ---- Data --------------------------------------------------------------------------------------------------------------- */

/* f16 has its own range, and its denormals begin at 2^-14. */
static float pick(rapt_type type, float of_half, float of_others) { return type == RAPT_F16 ? of_half : of_others; }

static float signed_zero(uint64_t *random) {
    static const float values[] = {0.0f, -0.0f, 0.0f, -0.0f, 1.0f, -1.0f};
    return DRAW_OF(random, values);
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
    case DATA_ZEROS:
        return signed_zero(random);
    case DATA_INFINITE:
        return draw_below(random, 40 * p->desc.d_k) ? normal : normal < 0 ? -INFINITY : INFINITY;
    default:
        return normal * p->k_factor;
    }
}

static float v_value(const problem *p, uint64_t *random) {
    const float normal = draw_normal(random);
    switch (p->data) {
    case DATA_DENORMAL:
        return normal * pick(p->desc.v.type, 0x1p-20f, 0x1p-135f);
    case DATA_ZEROS:
        return signed_zero(random) * pick(p->desc.v.type, 0x1p-24f, p->desc.v.type == RAPT_F32 ? 0x1p-149f : 0x1p-133f);
    case DATA_INFINITE:
        return draw_below(random, 100) ? normal : normal < 0 ? -INFINITY : INFINITY;
    default:
        return normal;
    }
}

static void put(const rapt_layout *l, void *base, int64_t b, int64_t h, int64_t token, int64_t c, float value) {
    reference_store(l->type, element(l, base, b, h, token, c), value);
}

/* Elements that no query may read, and the gaps between elements, stay NaN in every type: all bits are one. */
static void fill(subject *s, const problem *p) {
    uint64_t random = p->data_seed;
    fence_fill(&s->q, 0xff);
    fence_fill(&s->k, 0xff);
    fence_fill(&s->v, 0xff);
    const rapt_desc *d = &s->desc;
    for (int64_t b = 0; b < d->batch; b++) {
        const int64_t length = subject_length(s, b);
        for (int64_t h = 0; h < d->heads; h++)
            for (int64_t i = 0; i < d->q_len; i++)
                for (int64_t c = 0; c < d->d_k; c++) put(&d->q, (void *)s->args.q, b, h, i, c, q_value(p, c, &random));
        for (int64_t h = 0; h < d->kv_heads; h++) {
            for (int64_t j = 0; j < length; j++) {
                for (int64_t c = 0; c < d->d_k; c++) put(&d->k, (void *)s->args.k, b, h, j, c, k_value(p, length, j, c, &random));
                for (int64_t c = 0; c < d->d_v; c++) put(&d->v, (void *)s->args.v, b, h, j, c, v_value(p, &random));
            }
        }
    }
}

/* ---- Subjects ----------------------------------------------------------------------------------------------------------- */

int64_t subject_length(const subject *s, int64_t b) { return s->args.kv_lengths ? s->args.kv_lengths[b] : s->desc.kv_len; }

static void create_outputs(subject *s, int offset) {
    const rapt_desc *d = &s->desc;
    s->o = fence_create(span(&d->o, d->batch, d->heads, d->q_len, d->d_v), offset, 0);
    s->args.o = s->o.data;
    s->args.lse = NULL;
    s->lse = (fence){0};
    if (!d->lse.type) return;
    s->lse = fence_create(span(&d->lse, d->batch, d->heads, d->q_len, 1), offset, 0);
    s->args.lse = (void *)s->lse.data;
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

subject subject_create(check *c, const problem *p) {
    subject s = {.desc = p->desc};
    rapt_desc *d = &s.desc;
    rapt_args_init(&s.args);
    d->q = layout_of(p->q, d->q.type, d->heads, d->q_len, d->d_k, &c->random);
    d->k = layout_of(p->k, d->k.type, d->kv_heads, d->kv_len, d->d_k, &c->random);
    d->v = layout_of(p->v, d->v.type, d->kv_heads, d->kv_len, d->d_v, &c->random);
    d->o = layout_of(p->o, d->o.type, d->heads, d->q_len, d->d_v, &c->random);
    if (p->lse) d->lse = layout_of(p->o, RAPT_F32, d->heads, d->q_len, 1, &c->random);

    int32_t lengths[LENGTH_OF(p->given)];
    uint64_t random = ~p->data_seed;
    for (int64_t b = 0; b < LENGTH_OF(p->given); b++)
        lengths[b] = p->lengths == LENGTHS_GIVEN   ? p->given[b]
                     : draw_below(&random, 8) == 0 ? 0
                     : draw_below(&random, 8) == 0 ? (int32_t)d->kv_len
                                                   : (int32_t)draw_below(&random, d->kv_len + 1);
    if (p->lengths) create_lengths(&s, lengths, d->batch);

    if (p->q == PLACE_PACKED) {
        pack(d);
        s.q = fence_create((size_t)(d->batch * d->q.batch_stride), p->offset, 0);
        s.args.q = s.q.data;
        s.args.k = s.q.data + d->heads * d->q.head_stride;
        s.args.v = s.q.data + d->heads * d->q.head_stride + d->kv_heads * d->k.head_stride;
    } else {
        const int64_t keys = p->unmapped ? subject_length(&s, 0) : d->kv_len;
        const size_t k = span(&d->k, d->batch, d->kv_heads, keys, d->d_k),
                     k_all = span(&d->k, d->batch, d->kv_heads, d->kv_len, d->d_k);
        const size_t v = span(&d->v, d->batch, d->kv_heads, keys, d->d_v),
                     v_all = span(&d->v, d->batch, d->kv_heads, d->kv_len, d->d_v);
        s.q = fence_create(span(&d->q, d->batch, d->heads, d->q_len, d->d_k), p->offset, 0);
        s.k = fence_create(k, p->offset, k_all - k);
        s.v = fence_create(v, p->offset, v_all - v);
        s.args.q = s.q.data;
        s.args.k = s.k.data;
        s.args.v = s.v.data;
    }
    fill(&s, p);
    fence_protect(&s.q, true);
    fence_protect(&s.k, true);
    fence_protect(&s.v, true);
    create_outputs(&s, p->offset);
    return s;
}

void subject_destroy(subject *s) {
    fence *const fences[] = {&s->q, &s->k, &s->v, &s->lengths, &s->o, &s->lse};
    for (int64_t f = 0; f < LENGTH_OF(fences); f++) fence_destroy(fences[f]);
}

subject subject_view(const subject *of, rapt_desc desc, int64_t b, int64_t h, int64_t i, int32_t length) {
    subject s = {.desc = desc, .args = of->args};
    const int64_t kv_head = h / (of->desc.heads / of->desc.kv_heads);
    s.args.q = element(&of->desc.q, (void *)of->args.q, b, h, i, 0);
    s.args.k = element(&of->desc.k, (void *)of->args.k, b, kv_head, 0, 0);
    s.args.v = element(&of->desc.v, (void *)of->args.v, b, kv_head, 0, 0);
    s.desc.o = rapt_layout_bhsd(desc.o.type, desc.heads, desc.q_len, desc.d_v);
    if (desc.lse.type) s.desc.lse = rapt_layout_bhsd(RAPT_F32, desc.heads, desc.q_len, 1);
    create_lengths(&s, &length, 1);
    create_outputs(&s, -1);
    return s;
}

void subject_poison(subject *s, int tensor, int64_t b, int64_t h, int64_t j, int64_t c, float value) {
    fence *const memory = tensor == TENSOR_K ? &s->k : &s->v;
    fence_protect(memory, false);
    put(tensor == TENSOR_K ? &s->desc.k : &s->desc.v, (void *)(tensor == TENSOR_K ? s->args.k : s->args.v), b, h, j, c, value);
    fence_protect(memory, true);
}

void subject_text(const subject *s, char *text, size_t bytes) {
    static const char *const types[] = {"none", "f32", "f16", "bf16"};
    const rapt_desc *d = &s->desc;
    snprintf(text, bytes, "b%d h%d/%d q%d kv%d d%d/%d %s,%s,%s->%s causal %d window %d,%d scale %g%s", (int)d->batch,
             (int)d->heads, (int)d->kv_heads, (int)d->q_len, (int)d->kv_len, (int)d->d_k, (int)d->d_v, types[d->q.type],
             types[d->k.type], types[d->v.type], types[d->o.type], (int)d->causal, (int)d->window_left, (int)d->window_right,
             (double)d->scale, s->args.kv_lengths ? " lengths" : "");
}
