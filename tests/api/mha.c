/* SPDX-License-Identifier: Apache-2.0 */
/* Multi-head attention as one call. It is compared with the calls it stands for, bit for bit, and with plain loops in double;
 * tables likewise. Results are hashed: the hash is that of every machine. Then what is refused, and that it touches nothing. */
#define _DEFAULT_SOURCE /* signals, for page_faults.h */
#include "fence.h"
#include "each_kernel.h"
#include "page_faults.h"
#include "guard.h"
#include "kv_types.h"
#include "rapt_pool.h"
#include "refusals.h"
#include "tensors.h"
#include "tunings.h"

static const uint64_t golden_tables = UINT64_C(0x236d502e8cf6269d);

/* ---- Problems ------------------------------------------------------------------------------------------------------------ */

/* What describes it, and all its tensors. */
typedef struct problem {
    rapt_desc attention;
    rapt_mha_desc desc;
    rapt_args attention_args;
    rapt_mha_args args;
    tensor x, y, z, out, residual, weight[4];
    float *bias[4], *scales[4], *table;
    tensor k_cache, v_cache; /* [batch, kv_len] rows of all heads */
    tensor c, s;             /* a rope table */
    tensor weights;          /* [entry, head and query] rows of keys */
    int32_t starts[4], lengths[4], q_starts[5], ring_starts[4];
    double *frequencies;
    int64_t widths[3], outs[4];
    bool self, cached;
} problem;

/* What is not left to chance. */
typedef struct kind {
    rapt_type cache; /* 0: any, or none */
    bool rope_table, weights, bf16, integers;
    bool groups; /* projections of types with groups */
} kind;

static void free_problem(problem *p) {
    tensor *all[] = {&p->x,         &p->y,         &p->z,       &p->out,     &p->residual, &p->weight[0], &p->weight[1],
                     &p->weight[2], &p->weight[3], &p->k_cache, &p->v_cache, &p->c,        &p->s,         &p->weights};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free_tensor(all[i]);
    for (int i = 0; i < 4; i++) free(p->bias[i]), free(p->scales[i]);
    free(p->table), free(p->frequencies);
}

static rapt_layout head_layout(const tensor *r, int64_t head_channels) {
    rapt_layout layout = r->layout;
    layout.head_stride = reference_row_bytes(layout.type, head_channels);
    return layout;
}

/* c and s may be any numbers. */
static void draw_rotary_table(problem *p) {
    enum { POSITIONS = 120 }; /* more than there are tokens and keys before them */
    rapt_type type = random_float_type();
    int64_t pairs = p->desc.rope.channels / 2, gap = one_in(2) ? 0 : 6;
    p->c = random_rows(type, 1, POSITIONS, pairs, gap, 1.0f), p->s = random_rows(type, 1, POSITIONS, pairs, gap, 1.0f);
    p->desc.rope.offset = below(4), p->desc.rope.interleaved = one_in(2), p->desc.rope.frequencies = NULL;
    p->args.rope_table = (rapt_rope_table){type, p->c.at, p->s.at, POSITIONS, gap ? p->c.layout.token_stride : 0};
}

/* Rows of as many columns as there may be keys; a ring moves no column. */
static void draw_weights(problem *p, int64_t keys) {
    const rapt_desc *a = &p->attention;
    const int64_t columns = p->cached ? a->kv_len : keys, row = columns * (int64_t)sizeof(float);
    p->weights = new_rows(RAPT_F32, p->x.batch, a->heads * a->q_len, columns, 0);
    p->desc.weights = (rapt_layout){RAPT_F32, p->weights.layout.batch_stride, a->q_len * row, row};
    p->args.weights = (float *)(void *)p->weights.at;
    if (!p->cached || one_in(2)) return;
    for (int64_t b = 0; b < a->batch; b++) p->ring_starts[b] = (int32_t)below(columns);
    p->attention_args.ring_starts = p->ring_starts;
}

static void random_problem(problem *p, const char *isa, const kind *k) {
    *p = (problem){0};
    rapt_desc *a = &p->attention;
    rapt_mha_desc *d = &p->desc;
    rapt_desc_init(a), rapt_mha_desc_init(d), rapt_args_init(&p->attention_args), rapt_mha_args_init(&p->args);
    a->kv_heads = ONE_OF(1, 2, 3), a->heads = a->kv_heads * ONE_OF(1, 2), a->d_k = ONE_OF(2, 8, 16, 24),
    a->d_v = one_in(2) ? a->d_k : ONE_OF(1, 8, 20);
    if (is_grouped(k->cache)) a->d_k = 32, a->d_v = 64;
    a->batch = ONE_OF(1, 2, 3), a->q_len = ONE_OF(1, 2, 5, 9, 20), a->threads = ONE_OF(1, 3), a->isa = isa;
    p->self = one_in(2), p->cached = one_in(2) || k->cache;
    bool ragged = one_in(3), positions = one_in(3);
    int64_t keys = p->self ? a->q_len : ONE_OF(1, 4, 21);
    int64_t tokens = a->q_len, entries = a->batch;
    p->widths[0] = ONE_OF(8, 17, 40), p->widths[1] = p->self || positions || one_in(2) ? p->widths[0] : ONE_OF(8, 30);
    p->widths[2] = p->self || positions || one_in(2) ? p->widths[1] : 19;
    if (k->groups) a->d_v = 32, p->widths[0] = p->widths[1] = p->widths[2] = ONE_OF(32, 96, 256);
    bool values = !p->self && p->widths[2] != p->widths[1];
    for (int64_t b = 0; b < a->batch; b++) {
        p->starts[b] = p->cached || positions ? (int32_t)below(7) : 0;
        p->q_starts[b + 1] = p->q_starts[b] + (int32_t)below(tokens + 1);
    }
    if (ragged) {
        a->q_starts = p->q_starts;
        a->q_len = tokens = p->q_starts[a->batch];
        entries = 1;
        if (p->self) keys = tokens;
    }
    int64_t gap = one_in(2) * 4; /* drawn before the call, whose arguments come in any order */
    p->x = random_rows(random_float_type(), entries, tokens, p->widths[0], gap, 1.0f);
    if (!p->self) p->y = random_rows(random_float_type(), a->batch, keys, p->widths[1], 0, 1.0f);
    if (values) p->z = random_rows(random_float_type(), a->batch, keys, p->widths[2], 0, 1.0f);
    p->outs[0] = a->heads * a->d_k, p->outs[1] = a->kv_heads * a->d_k, p->outs[2] = a->kv_heads * a->d_v;
    int64_t out_width = ONE_OF(8, 33);
    p->outs[3] = out_width;
    const int64_t ins[] = {p->widths[0], p->widths[1], p->widths[2], a->heads * a->d_v};
    d->packed = p->widths[1] == p->widths[0] && p->widths[2] == p->widths[0] && one_in(2);
    bool has_output = !one_in(4);
    for (int i = 0; i < 4; i++) {
        rapt_type type = (rapt_type)ONE_OF(RAPT_F32, RAPT_F32, RAPT_F16, RAPT_BF16, RAPT_INT8);
        if (k->integers) type = RAPT_INT8;
        if (k->groups) type = (rapt_type)ONE_OF(RAPT_Q8_0, RAPT_Q4_0, RAPT_Q4_1);
        if (k->groups && ins[i] % 256 == 0) type = (rapt_type)ONE_OF(RAPT_Q4_1, RAPT_Q4_K, RAPT_Q6_K);
        int64_t outs = i == 0 && d->packed ? p->outs[0] + p->outs[1] + p->outs[2] : p->outs[i];
        if (i == 3 && !has_output) continue;
        if ((i == 1 || i == 2) && d->packed) continue;
        p->weight[i] = random_rows(type, 1, outs, ins[i], 0, 1.0f / sqrtf((float)ins[i]));
        if (one_in(2)) p->bias[i] = random_floats(outs, 0.3f);
        if (type == RAPT_INT8) p->scales[i] = random_floats(outs, 0.01f);
    }
    d->wq = p->weight[0].layout, d->wk = p->weight[1].layout, d->wv = p->weight[2].layout, d->wo = p->weight[3].layout;
    if (!has_output) out_width = a->heads * a->d_v;
    p->out = new_rows(random_float_type(), entries, tokens, out_width, gap);
    if (has_output && one_in(2)) p->residual = random_rows(random_float_type(), entries, tokens, out_width, 0, 1.0f);
    if (p->cached) {
        a->kv_len = 40 + keys;
        rapt_type type = k->cache ? k->cache : (rapt_type)ONE_OF(RAPT_F32, RAPT_F16, RAPT_INT8);
        p->k_cache = random_rows(type, a->batch, a->kv_len, p->outs[1], 0, 1.0f);
        p->v_cache = random_rows(type, a->batch, a->kv_len, p->outs[2], 0, 1.0f);
        a->k = head_layout(&p->k_cache, a->d_k), a->v = head_layout(&p->v_cache, a->d_v);
        for (int64_t b = 0; b < a->batch; b++)
            p->lengths[b] = p->starts[b] + (int32_t)(ragged && p->self ? p->q_starts[b + 1] - p->q_starts[b] : keys);
        p->attention_args.kv_lengths = p->lengths;
        if (!p->self && one_in(3)) keys = 0; /* only those that there are */
    }
    a->causal = (rapt_causal)below(3);
    if (one_in(3)) a->window_left = below(10);
    const int64_t all_keys = keys;
    if (one_in(3) || k->rope_table) {
        d->rope.channels = a->d_k;
        p->frequencies = malloc((size_t)a->d_k * sizeof *p->frequencies);
        if (!p->frequencies || rapt_rope_frequencies(10000.0, a->d_k, p->frequencies)) abort();
        d->rope.frequencies = p->frequencies;
    }
    d->attention = a;
    d->x_width = p->widths[0], d->y_width = p->widths[1] == p->widths[0] ? 0 : p->widths[1],
    d->z_width = values ? p->widths[2] : 0;
    d->out_width = out_width == p->widths[0] ? 0 : out_width, d->keys = keys, d->x = p->x.layout, d->out = p->out.layout;
    if (!p->self) d->y = p->y.layout;
    if (values) d->z = p->z.layout;
    if (p->residual.memory) d->residual = p->residual.layout;
    d->position_table = positions;
    rapt_mha_args *args = &p->args;
    args->x = p->x.at, args->y = p->y.at, args->z = p->z.at, args->residual = p->residual.at, args->out = p->out.at;
    args->wq = p->weight[0].at, args->wk = p->weight[1].at, args->wv = p->weight[2].at, args->wo = p->weight[3].at;
    args->bq = p->bias[0], args->bk = p->bias[1], args->bv = p->bias[2], args->bo = p->bias[3];
    args->wq_scales = p->scales[0], args->wk_scales = p->scales[1], args->wv_scales = p->scales[2],
    args->wo_scales = p->scales[3];
    args->k_cache = p->k_cache.at, args->v_cache = p->v_cache.at, args->starts = p->starts;
    args->attention = &p->attention_args;
    if (positions) {
        args->table_positions = 60;
        p->table = random_floats(60 * p->widths[0], 0.5f);
        args->position_table = p->table;
    }
    if (k->rope_table) draw_rotary_table(p);
    if (k->weights) draw_weights(p, all_keys);
    if (k->bf16) d->arith = a->arith = RAPT_BF16_DOT;
    if (k->integers) d->arith = RAPT_INT8_DOT;
}

static float *map_rows(const problem *p, int i, const tensor *x, const char *isa) {
    const tensor *weight = p->desc.packed && i < 3 ? &p->weight[0] : &p->weight[i];
    int64_t first = 0;
    for (int j = 0; j < i && i < 3 && p->desc.packed; j++) first += p->outs[j];
    int from = p->desc.packed && i < 3 ? 0 : i;
    float *y = new_floats(x->batch * x->tokens * p->outs[i]);
    rapt_linear_desc desc;
    rapt_linear_plan plan;
    rapt_linear_args args;
    rapt_linear_desc_init(&desc), rapt_linear_args_init(&args);
    desc.batch = x->batch, desc.tokens = x->tokens, desc.in = x->channels, desc.out = p->outs[i], desc.x = x->layout,
    desc.isa = isa;
    desc.y = rapt_layout_bshd(RAPT_F32, 1, x->tokens, p->outs[i]), desc.weight = weight->layout, desc.arith = p->desc.arith;
    size_t bytes = 0;
    if (rapt_linear_plan_init(&plan, &desc) || rapt_linear_workspace_size(&plan, 1, &bytes)) abort();
    args.x = x->at, args.y = y, args.weight = weight->at + first * weight->layout.token_stride;
    args.bias = p->bias[from] ? p->bias[from] + first : NULL, args.scales = p->scales[from] ? p->scales[from] + first : NULL;
    args.workspace = new_workspace(bytes), args.workspace_bytes = bytes;
    if (rapt_linear_run(&plan, &args)) abort();
    aligned_destroy(args.workspace);
    return y;
}

/* X + positions. */
static tensor with_positions(const problem *p, const tensor *x, const int32_t *token_starts) {
    tensor sum = new_rows(RAPT_F32, x->batch, x->tokens, x->channels, 0);
    for (int64_t b = 0; b < p->attention.batch; b++) {
        int64_t first = token_starts ? token_starts[b] : 0, n = token_starts ? token_starts[b + 1] - first : x->tokens;
        for (int64_t t = 0; t < n; t++)
            for (int64_t i = 0; i < x->channels; i++) {
                float *to = (float *)row_at(&sum, token_starts ? 0 : b, first + t) + i;
                *to = value_at(x, token_starts ? 0 : b, first + t, i) +
                      (p->table ? p->table[(p->starts[b] + t) * x->channels + i] : 0.0f);
            }
    }
    return sum;
}

/* The same by the public functions that multi-head attention is made of; the output in f32, before the residual if there is no
 * wo. */
static rapt_status by_hand(problem *p, tensor *k_cache, tensor *v_cache, tensor *out, tensor *weights) {
    const rapt_desc *a = &p->attention;
    const char *isa = a->isa;
    bool new_keys = !(p->cached && !p->self && p->desc.keys == 0);
    const int32_t *key_starts = p->self ? a->q_starts : NULL;
    tensor x = with_positions(p, &p->x, a->q_starts), y = {0}, z = {0};
    if (!p->self && new_keys) y = with_positions(p, &p->y, NULL);
    if (p->z.memory && new_keys) z = with_positions(p, &p->z, NULL);
    const tensor *key_input = p->self ? &x : &y, *value_input = p->z.memory ? &z : key_input;
    float *q = map_rows(p, 0, &x, isa), *k = NULL, *v = NULL;
    int64_t tokens = p->x.tokens, keys = key_input->tokens;
    rapt_rope_args rope;
    rapt_rope_args_init(&rope);
    rope.batch = a->batch, rope.heads = a->heads, rope.tokens = tokens, rope.d = a->d_k, rope.from = rope.to = q;
    rope.in = rope.out = rapt_layout_bshd(RAPT_F32, a->heads, tokens, a->d_k);
    rope.rope = p->desc.rope, rope.starts = p->starts, rope.token_starts = a->q_starts;
    rope.rope_table = p->args.rope_table;
    rapt_status status = rapt_rope_run(&rope);
    rapt_desc d = *a;
    rapt_args args = p->attention_args;
    d.q = rapt_layout_bshd(RAPT_F32, a->heads, tokens, a->d_k);
    if (new_keys) k = map_rows(p, 1, key_input, isa), v = map_rows(p, 2, value_input, isa);
    if (p->cached && new_keys && status == RAPT_OK) {
        rapt_kv_append_desc append;
        rapt_kv_append_args append_args;
        rapt_kv_append_desc_init(&append), rapt_kv_append_args_init(&append_args);
        append.batch = a->batch, append.kv_heads = a->kv_heads, append.tokens = keys, append.kv_len = a->kv_len;
        append.d_k = a->d_k, append.d_v = a->d_v, append.k = a->k, append.v = a->v, append.rope = p->desc.rope;
        append.new_k = rapt_layout_bshd(RAPT_F32, a->kv_heads, keys, a->d_k);
        append.new_v = rapt_layout_bshd(RAPT_F32, a->kv_heads, keys, a->d_v);
        append_args.new_k = k, append_args.new_v = v, append_args.k = k_cache->at, append_args.v = v_cache->at;
        append_args.starts = p->starts, append_args.token_starts = key_starts, append_args.rope_table = p->args.rope_table;
        append_args.ring_starts = args.ring_starts;
        status = rapt_kv_append_run(&append, &append_args);
    }
    if (p->cached) args.k = k_cache->at, args.v = v_cache->at;
    else {
        rope.heads = a->kv_heads, rope.tokens = keys, rope.from = rope.to = k, rope.token_starts = key_starts;
        rope.in = rope.out = rapt_layout_bshd(RAPT_F32, a->kv_heads, keys, a->d_k);
        if (status == RAPT_OK) status = rapt_rope_run(&rope);
        args.k = k, args.v = v, d.kv_len = keys, d.k_starts = key_starts;
        d.k = rapt_layout_bshd(RAPT_F32, a->kv_heads, keys, a->d_k), d.v = rapt_layout_bshd(RAPT_F32, a->kv_heads, keys, a->d_v);
    }
    tensor o = new_rows(RAPT_F32, p->x.batch, tokens, a->heads * a->d_v, 0);
    d.o = head_layout(&o, a->d_v);
    if (weights->memory)
        d.scores_stage = RAPT_SCORES_WEIGHTS, d.scores = p->desc.weights, args.scores = (float *)(void *)weights->at;
    rapt_plan plan;
    size_t bytes = 0;
    if (status == RAPT_OK) status = rapt_plan_init(&plan, &d);
    if (status == RAPT_OK) status = rapt_workspace_size(&plan, 1, &bytes);
    args.q = q, args.o = o.at, args.workspace = new_workspace(bytes), args.workspace_bytes = bytes;
    if (status == RAPT_OK) status = rapt_run(&plan, &args);
    float *mapped = p->weight[3].memory ? map_rows(p, 3, &o, isa) : (float *)(void *)o.at;
    for (int64_t b = 0; b < out->batch; b++)
        for (int64_t t = 0; t < out->tokens; t++)
            for (int64_t i = 0; i < out->channels; i++)
                set_value(out, b, t, i,
                          mapped[(b * out->tokens + t) * out->channels + i] +
                              (p->residual.memory ? value_at(&p->residual, b, t, i) : 0.0f));
    if (p->weight[3].memory) free(mapped);
    aligned_destroy(args.workspace), free(q), free(k), free(v);
    free_tensor(&o), free_tensor(&x), free_tensor(&y), free_tensor(&z);
    return status;
}

/* The rows of Wq, Wk, Wv or Wo, which may be a part of packed ones, laid out for the kernel. */
static void *prepacked_rows(const problem *p, int i) {
    const int from = p->desc.packed && i < 3 ? 0 : i;
    const tensor *weight = &p->weight[from];
    int64_t first = 0;
    for (int j = 0; j < i && from < i; j++) first += p->outs[j];
    if (!weight->memory) return NULL;
    rapt_linear_desc desc;
    rapt_linear_plan plan;
    rapt_linear_prepack_args args;
    rapt_linear_desc_init(&desc), rapt_linear_prepack_args_init(&args);
    desc.in = i < 3 ? p->widths[i] : p->attention.heads * p->attention.d_v, desc.out = p->outs[i];
    desc.weight = weight->layout, desc.x.type = desc.y.type = RAPT_F32, desc.isa = p->attention.isa, desc.arith = p->desc.arith;
    if (rapt_linear_plan_init(&plan, &desc) || rapt_linear_prepacked_size(&plan, &args.prepacked_bytes)) abort();
    args.weight = weight->at + first * weight->layout.token_stride, args.prepacked = new_workspace(args.prepacked_bytes);
    if (rapt_linear_prepack_run(&plan, &args)) abort();
    return args.prepacked;
}

static uint64_t tunings = 12, packs = 13, defaults = 14;

/* True if each entry's keys are those before its new ones, and these. */
static bool has_default_lengths(const problem *p) {
    for (int64_t b = 0; b < p->attention.batch; b++) {
        const int64_t keys = p->self && p->attention.q_starts ? p->q_starts[b + 1] - p->q_starts[b]
                             : p->self                        ? p->attention.q_len
                                                              : p->desc.keys;
        if (p->lengths[b] != p->starts[b] + keys) return false;
    }
    return true;
}

/* Runs a problem in one of the ways that there are, half of them with a tuning, each of its weights prepacked or not, and, where
 * keys are appended, with their lengths or without; these are drawn apart from all else. */
static rapt_status run_problem(problem *p, int way) {
    const rapt_tuning tuning = tuning_of(p->attention.isa, draw(&tunings));
    if (draw_below(&tunings, 2)) p->attention.tuning = &tuning;
    rapt_mha_plan plan;
    rapt_mha_plan_info info = {.size = sizeof info};
    rapt_mha_args args = p->args;
    rapt_args attention = p->attention_args;
    if (p->cached && (p->self || p->desc.keys) && draw_below(&defaults, 2) && has_default_lengths(p)) attention.kv_lengths = NULL;
    args.attention = &attention;
    int64_t nth = way == 0 ? 1 : way == 1 ? 3 : 5;
    size_t bytes = 0;
    rapt_status status = rapt_mha_plan_init(&plan, &p->desc);
    p->attention.tuning = NULL;
    if (status == RAPT_OK) status = rapt_mha_plan_query(&plan, &info);
    if (status == RAPT_OK) status = rapt_mha_workspace_size(&plan, nth, &bytes);
    if (status != RAPT_OK) return status;
    args.workspace = new_workspace(bytes), args.workspace_bytes = bytes;
    void *prepacked[4] = {0};
    for (int i = 0; i < 4; i++)
        if (draw_below(&packs, 2)) prepacked[i] = prepacked_rows(p, i);
    args.wq_prepacked = prepacked[0], args.wk_prepacked = prepacked[1], args.wv_prepacked = prepacked[2];
    args.wo_prepacked = prepacked[3];
    if (way == 0) status = rapt_mha_run(&plan, &args);
    else if (way == 1) {
        rapt_pool *pool = rapt_pool_create(3);
        status = rapt_mha_run_parallel(&plan, &args, nth, rapt_pool_for, pool);
        rapt_pool_destroy(pool);
    } else
        for (int phase = 0; phase < info.phases; phase++)
            for (int64_t ith = nth - 1; ith >= 0 && status == RAPT_OK; ith--)
                status = rapt_mha_run_phase(&plan, &args, phase, ith, nth);
    for (int i = 0; i < 4; i++) aligned_destroy(prepacked[i]);
    aligned_destroy(args.workspace);
    return status;
}

static bool problem_agrees(const char *isa, const kind *k, uint64_t *h) {
    problem p;
    random_problem(&p, isa, k);
    tensor k_cache = copy_of(&p.k_cache), v_cache = copy_of(&p.v_cache), want = copy_of(&p.out), weights = copy_of(&p.weights);
    int way = (int)below(3);
    rapt_status status = by_hand(&p, &k_cache, &v_cache, &want, &weights), ran = run_problem(&p, way);
    bool ok = status == RAPT_OK && ran == RAPT_OK && same_tensor(&p.out, &want) && same_tensor(&p.weights, &weights) &&
              same_tensor(&k_cache, &p.k_cache) && same_tensor(&v_cache, &p.v_cache);
    if (!ok)
        printf("# %s: %s, by hand %s; way %d, self %d, cache %d, ragged %d, positions %d, rope %d, packed %d, keys %d\n", isa,
               rapt_status_string(ran), rapt_status_string(status), way, p.self, p.k_cache.layout.type,
               p.attention.q_starts != NULL, p.desc.position_table, p.desc.rope.channels != 0, p.desc.packed, (int)p.desc.keys);
    *h = hash_tensor(*h, &p.out);
    free_tensor(&k_cache), free_tensor(&v_cache), free_tensor(&want), free_tensor(&weights);
    free_problem(&p);
    return ok;
}

static bool any_problem(const char *isa, uint64_t *h) { return problem_agrees(isa, &(kind){0}, h); }

/* Some problems of each kind that is rare among those. */
static void kinds_of_problems(const char *isa) {
    enum { EACH = 6, SOME = 25 };
    int caches = 0, tables = 0, weights = 0, bf16 = 0, integers = 0, groups = 0;
    uint64_t h = hash_start;
    random_state = 9;
    for (int i = 0; i < KV_TYPES * EACH; i++) caches += !problem_agrees(isa, &(kind){.cache = kv_types[i / EACH]}, &h);
    for (int n = 0; n < SOME; n++) tables += !problem_agrees(isa, &(kind){.rope_table = true}, &h);
    for (int n = 0; n < SOME; n++) weights += !problem_agrees(isa, &(kind){.weights = true}, &h);
    for (int n = 0; n < SOME; n++) bf16 += !problem_agrees(isa, &(kind){.bf16 = true}, &h);
    for (int n = 0; n < SOME; n++) integers += !problem_agrees(isa, &(kind){.integers = true}, &h);
    for (int n = 0; n < SOME; n++) groups += !problem_agrees(isa, &(kind){.groups = true, .integers = one_in(2)}, &h);
    tap_ok(caches == 0, "%s: with caches of each type, the bits of the calls: %d of %d wrong", isa, caches, EACH * KV_TYPES);
    tap_ok(tables == 0, "%s: with rope tables, the bits of the calls: %d of %d wrong", isa, tables, SOME);
    tap_ok(weights == 0, "%s: weights are the bits of attention.scores: %d of %d wrong", isa, weights, SOME);
    tap_ok(bf16 == 0, "%s: in bf16 arithmetic, the bits of the calls: %d of %d wrong", isa, bf16, SOME);
    tap_ok(integers == 0, "%s: with projections in integer arithmetic, the bits of the calls: %d of %d wrong", isa, integers,
           SOME);
    tap_ok(groups == 0, "%s: with projections of types with groups, the bits of the calls: %d of %d wrong", isa, groups, SOME);
}

/* Causal self-attention over S tokens at once, in f32, for the tests below. */
enum { S = 37, WIDTH = 48, HEADS = 4, KV_HEADS = 2, D = 12 };

typedef struct decoder {
    rapt_desc attention;
    rapt_mha_desc desc;
    rapt_args attention_args;
    rapt_mha_args args;
    tensor x, out, wq, wk, wv, wo;
} decoder;

static void new_decoder(decoder *l, const char *isa) {
    *l = (decoder){.x = random_rows(RAPT_F32, 1, S, WIDTH, 0, 1.0f), .out = new_rows(RAPT_F32, 1, S, WIDTH, 0)};
    l->wq = random_rows(RAPT_F32, 1, HEADS * D, WIDTH, 0, 0.2f), l->wk = random_rows(RAPT_F32, 1, KV_HEADS * D, WIDTH, 0, 0.2f);
    l->wv = random_rows(RAPT_F32, 1, KV_HEADS * D, WIDTH, 0, 0.2f), l->wo = random_rows(RAPT_F32, 1, WIDTH, HEADS * D, 0, 0.2f);
    rapt_desc_init(&l->attention), rapt_mha_desc_init(&l->desc), rapt_args_init(&l->attention_args), rapt_mha_args_init(&l->args);
    rapt_desc *a = &l->attention;
    a->batch = 1, a->heads = HEADS, a->kv_heads = KV_HEADS, a->d_k = a->d_v = D, a->q_len = S, a->isa = isa;
    a->causal = RAPT_CAUSAL_BOTTOM_RIGHT;
    l->desc.attention = a, l->desc.x_width = WIDTH, l->desc.x = l->x.layout, l->desc.out = l->out.layout;
    l->desc.wq = l->wq.layout, l->desc.wk = l->wk.layout, l->desc.wv = l->wv.layout, l->desc.wo = l->wo.layout;
    l->args.x = l->x.at, l->args.out = l->out.at, l->args.wq = l->wq.at, l->args.wk = l->wk.at, l->args.wv = l->wv.at;
    l->args.wo = l->wo.at, l->args.attention = &l->attention_args;
}

static void free_decoder(decoder *l) {
    free_tensor(&l->x), free_tensor(&l->out), free_tensor(&l->wq), free_tensor(&l->wk), free_tensor(&l->wv), free_tensor(&l->wo);
}

static rapt_status run_decoder(decoder *l) {
    rapt_mha_plan plan;
    size_t bytes = 0;
    rapt_status status = rapt_mha_plan_init(&plan, &l->desc);
    if (status == RAPT_OK) status = rapt_mha_workspace_size(&plan, 1, &bytes);
    l->args.workspace = new_workspace(bytes), l->args.workspace_bytes = bytes;
    if (status == RAPT_OK) status = rapt_mha_run(&plan, &l->args);
    aligned_destroy(l->args.workspace);
    return status;
}

/* Prepacked weights are read in the place of the others, which are gone by then. */
static void prepacked_alone(const char *isa) {
    decoder l;
    new_decoder(&l, isa);
    rapt_status status = run_decoder(&l);
    tensor want = copy_of(&l.out), *const weights[] = {&l.wq, &l.wk, &l.wv, &l.wo};
    const void **const to[] = {&l.args.wq_prepacked, &l.args.wk_prepacked, &l.args.wv_prepacked, &l.args.wo_prepacked};
    problem p = {.desc = l.desc,
                 .attention = l.attention,
                 .widths = {WIDTH, WIDTH, WIDTH},
                 .outs = {HEADS * D, KV_HEADS * D, KV_HEADS * D, WIDTH}};
    void *packed[4];
    for (int i = 0; i < 4; i++) {
        p.weight[i] = *weights[i];
        *to[i] = packed[i] = prepacked_rows(&p, i);
        for (int64_t n = 0; n < weights[i]->tokens; n++)
            for (int64_t j = 0; j < weights[i]->channels; j++) set_value(weights[i], 0, n, j, NAN);
    }
    if (status == RAPT_OK) status = run_decoder(&l);
    tap_ok(status == RAPT_OK && same_tensor(&l.out, &want), "%s: many tokens read prepacked weights alone", isa);
    for (int i = 0; i < 4; i++) aligned_destroy(packed[i]);
    free_tensor(&want), free_decoder(&l);
}

/* The formula in plain loops and double. weights: [HEADS][S][S], or null. */
static double by_formula(const decoder *l, double *weights) {
    double worst = 0.0;
    static double q[S][HEADS * D], k[S][KV_HEADS * D], v[S][KV_HEADS * D], o[S][HEADS * D];
    for (int t = 0; t < S; t++) {
        for (int n = 0; n < HEADS * D; n++)
            for (int i = q[t][n] = 0; i < WIDTH; i++) q[t][n] += (double)value_at(&l->x, 0, t, i) * value_at(&l->wq, 0, n, i);
        for (int n = 0; n < KV_HEADS * D; n++) {
            k[t][n] = v[t][n] = 0.0;
            for (int i = 0; i < WIDTH; i++) k[t][n] += (double)value_at(&l->x, 0, t, i) * value_at(&l->wk, 0, n, i);
            for (int i = 0; i < WIDTH; i++) v[t][n] += (double)value_at(&l->x, 0, t, i) * value_at(&l->wv, 0, n, i);
        }
    }
    for (int h = 0; h < HEADS; h++)
        for (int t = 0; t < S; t++) {
            double p[S], sum = 0.0;
            for (int j = 0; j <= t; j++) {
                double score = 0.0;
                for (int i = 0; i < D; i++) score += q[t][h * D + i] * k[j][h / 2 * D + i];
                sum += p[j] = exp(score / sqrt((double)D));
            }
            for (int i = 0; i < D; i++) o[t][h * D + i] = 0.0;
            for (int j = 0; j < S; j++) {
                if (weights) weights[(h * S + t) * S + j] = j <= t ? p[j] / sum : 0.0;
                for (int i = 0; i < D && j <= t; i++) o[t][h * D + i] += p[j] / sum * v[j][h / 2 * D + i];
            }
        }
    for (int t = 0; t < S; t++)
        for (int n = 0; n < WIDTH; n++) {
            double y = 0.0;
            for (int i = 0; i < HEADS * D; i++) y += o[t][i] * value_at(&l->wo, 0, n, i);
            worst = fmax(worst, fabs(y - value_at(&l->out, 0, t, n)));
        }
    return worst;
}

/* The same tokens in steps of several, into a cache. */
static bool steps_agree(decoder *l, const int64_t *steps, int n) {
    tensor want = copy_of(&l->out);
    tensor k = new_rows(RAPT_F32, 1, S, KV_HEADS * D, 0), v = new_rows(RAPT_F32, 1, S, KV_HEADS * D, 0);
    decoder step = *l;
    int32_t start = 0, length = 0;
    step.desc.attention = &step.attention, step.args.attention = &step.attention_args;
    step.attention.k = head_layout(&k, D), step.attention.v = head_layout(&v, D), step.attention.kv_len = S;
    step.attention_args.kv_lengths = &length, step.args.starts = &start, step.args.k_cache = k.at, step.args.v_cache = v.at;
    memset(l->out.at, 0, l->out.bytes);
    bool ok = true;
    for (int i = 0; ok && start < S; i++, start = length) {
        step.attention.q_len = steps[i % n] < S - start ? steps[i % n] : S - start;
        length = start + (int32_t)step.attention.q_len;
        step.args.x = row_at(&l->x, 0, start), step.args.out = row_at(&l->out, 0, start);
        ok = run_decoder(&step) == RAPT_OK;
    }
    ok = ok && same_tensor(&want, &l->out);
    free_tensor(&want), free_tensor(&k), free_tensor(&v);
    return ok;
}

static void formula(const char *isa) {
    decoder l;
    new_decoder(&l, isa);
    rapt_status status = run_decoder(&l);
    double *weights = malloc(sizeof *weights * HEADS * S * S), worst = by_formula(&l, weights);
    tap_ok(status == RAPT_OK && worst < 2e-5, "%s: multi-head attention is the formula in double within 2e-5 (%.1e)", isa, worst);
    tap_ok(steps_agree(&l, (const int64_t[]){1}, 1), "%s: step by step into a cache, the same bits", isa);
    tap_ok(steps_agree(&l, (const int64_t[]){13, 1, 2, 8}, 4), "%s: in chunks of 13, 1, 2 and 8, the same bits", isa);

    float *p = new_floats(HEADS * S * S);
    tensor before = copy_of(&l.out);
    l.desc.weights = rapt_layout_bhsd(RAPT_F32, HEADS, S, S), l.args.weights = p;
    status = run_decoder(&l);
    double off = 0.0, sums = 0.0;
    for (int row = 0; row < HEADS * S; row++) {
        double sum = 0.0;
        for (int j = 0; j < S; j++) {
            off = fmax(off, fabs(p[row * S + j] - weights[row * S + j]));
            sum += p[row * S + j];
        }
        sums = fmax(sums, fabs(sum - 1.0));
    }
    tap_ok(status == RAPT_OK && off < 2e-6 && sums < 2e-6 && same_tensor(&before, &l.out),
           "%s: the weights are softmax's (%.1e), their rows sum to one (%.1e), and the output is the same", isa, off, sums);
    free_tensor(&before), free(p), free(weights);
    free_decoder(&l);
}

/* More keys than an attention call has channels for the identity. */
static void wide_weights(const char *isa) {
    enum { KEYS = 1500, ROWS = 3 };
    tensor x = random_rows(RAPT_F32, 1, ROWS, 8, 0, 1.0f), y = random_rows(RAPT_F32, 1, KEYS, 8, 0, 1.0f),
           out = new_rows(RAPT_F32, 1, ROWS, 8, 0);
    tensor w = random_rows(RAPT_F32, 1, 24, 8, 0, 0.5f);
    rapt_desc a;
    rapt_mha_desc d;
    rapt_mha_args args;
    rapt_mha_plan plan;
    rapt_desc_init(&a), rapt_mha_desc_init(&d), rapt_mha_args_init(&args);
    a.batch = 1, a.heads = a.kv_heads = 1, a.d_k = a.d_v = 8, a.q_len = ROWS, a.isa = isa, a.threads = 4;
    d.attention = &a, d.x_width = 8, d.keys = KEYS, d.x = x.layout, d.y = y.layout, d.out = out.layout, d.wq = w.layout,
    d.packed = 1;
    d.weights = rapt_layout_bhsd(RAPT_F32, 1, ROWS, KEYS);
    float *p = new_floats(ROWS * KEYS);
    args.x = x.at, args.y = y.at, args.out = out.at, args.wq = w.at, args.weights = p;
    size_t bytes = 0;
    rapt_status status = rapt_mha_plan_init(&plan, &d);
    if (status == RAPT_OK) status = rapt_mha_workspace_size(&plan, 2, &bytes);
    args.workspace = new_workspace(bytes), args.workspace_bytes = bytes;
    rapt_pool *pool = rapt_pool_create(2);
    if (status == RAPT_OK) status = rapt_mha_run_parallel(&plan, &args, 2, rapt_pool_for, pool);
    double worst = 0.0;
    for (int t = 0; t < ROWS && status == RAPT_OK; t++) { /* out = weights * V */
        double got[8] = {0}, sum = 0.0;
        for (int j = 0; j < KEYS; j++)
            for (int n = 0; n < 8; n++)
                for (int i = 0; i < 8; i++)
                    got[n] += (double)p[t * KEYS + j] * value_at(&y, 0, j, i) * value_at(&w, 0, 16 + n, i);
        for (int j = 0; j < KEYS; j++) sum += p[t * KEYS + j];
        for (int n = 0; n < 8; n++) worst = fmax(worst, fabs(got[n] - value_at(&out, 0, t, n)));
        worst = fmax(worst, fabs(sum - 1.0));
    }
    tap_ok(status == RAPT_OK && worst < 1e-5, "%s: weights of 1500 keys, times V, are the output (%.1e)", isa, worst);
    rapt_pool_destroy(pool);
    aligned_destroy(args.workspace), free(p), free_tensor(&x), free_tensor(&y), free_tensor(&out), free_tensor(&w);
}

/* ---- Tokens that belong to no entry ------------------------------------------------------------------------------------- */

enum { GAP_TOKENS = 9, GAP_ENTRIES = 3, GAP_KEYS = 6 };
static const int32_t gap_starts[GAP_ENTRIES + 1] = {2, 4, 4, 7};

/* Rows of tokens, each with a page of its own. */
typedef struct pages {
    char *at;
    int64_t stride, rows;
} pages;

static pages new_pages(int64_t count) {
    pages p = {.stride = (int64_t)page_bytes(), .rows = count};
    p.at = pages_create((size_t)(count * p.stride));
    pages_open(p.at, (size_t)(count * p.stride));
    return p;
}

static void free_pages(pages *p) { pages_destroy(p->at, (size_t)(p->rows * p->stride)); }

/* Only the tokens of entries, of each head, can be reached. */
static void close_gaps(const pages *p) {
    for (int64_t row = 0; row < p->rows; row++) {
        int64_t token = row % GAP_TOKENS;
        if (token >= gap_starts[0] && token < gap_starts[GAP_ENTRIES]) continue;
        pages_protect(p->at + row * p->stride, (size_t)p->stride, PAGES_CLOSED);
    }
}

typedef struct gapped {
    rapt_desc attention;
    rapt_mha_desc desc;
    rapt_args attention_args;
    rapt_mha_args args;
    pages x, y, out, residual, weights;
    rapt_status status;
} gapped;

static void run_gapped(void *of) {
    gapped *g = of;
    rapt_mha_plan plan;
    size_t bytes = 0;
    rapt_status status = rapt_mha_plan_init(&plan, &g->desc);
    if (status == RAPT_OK) status = rapt_mha_workspace_size(&plan, 1, &bytes);
    g->args.workspace = new_workspace(bytes), g->args.workspace_bytes = bytes;
    if (status == RAPT_OK) status = rapt_mha_run(&plan, &g->args);
    aligned_destroy(g->args.workspace);
    g->status = status;
}

/* One entry of it as a call of its own, without q_starts; its results in rows of their own. */
static bool entry_agrees(const gapped *g, int b, const int32_t *starts, const int32_t *lengths) {
    gapped one = *g;
    const int64_t first = gap_starts[b], tokens = gap_starts[b + 1] - first;
    one.out = new_pages(GAP_TOKENS), one.weights = new_pages(HEADS * GAP_TOKENS);
    one.desc.attention = &one.attention, one.args.attention = &one.attention_args;
    one.attention.batch = 1, one.attention.q_len = tokens, one.attention.q_starts = one.attention.k_starts = NULL;
    one.attention_args.kv_lengths = one.attention_args.kv_lengths ? lengths + b : NULL, one.args.starts = starts + b;
    one.args.x = g->x.at + first * g->x.stride, one.args.out = one.out.at + first * g->x.stride;
    if (one.args.y) one.args.y = g->y.at + first * g->x.stride, one.desc.keys = tokens;
    if (one.args.residual) one.args.residual = g->residual.at + first * g->x.stride;
    one.args.weights = (float *)(void *)(one.weights.at + first * g->x.stride);
    if (one.args.k_cache) {
        one.args.k_cache = (char *)g->args.k_cache + b * g->attention.k.batch_stride;
        one.args.v_cache = (char *)g->args.v_cache + b * g->attention.v.batch_stride;
    }
    run_gapped(&one);
    bool ok = one.status == RAPT_OK;
    const size_t row = (size_t)(g->desc.wo.type ? WIDTH : HEADS * D) * sizeof(float);
    const size_t keys = (size_t)(g->args.k_cache ? GAP_KEYS : tokens) * sizeof(float);
    for (int64_t t = first; t < first + tokens; t++) {
        ok = ok && !memcmp(g->out.at + t * g->x.stride, one.out.at + t * g->x.stride, row);
        for (int64_t h = 0; h < HEADS; h++) {
            const int64_t at = (h * GAP_TOKENS + t) * g->x.stride;
            ok = ok && !memcmp(g->weights.at + at, one.weights.at + at, keys);
        }
    }
    free_pages(&one.out), free_pages(&one.weights);
    return ok;
}

/* Without and with positions added, W_O, a cache, keys of other tokens. */
static bool gaps_agree(const char *isa, bool positions, bool output, bool cached, bool cross) {
    static const int32_t starts[GAP_ENTRIES] = {1, 0, 2};
    int32_t lengths[GAP_ENTRIES];
    gapped g = {.x = new_pages(GAP_TOKENS), .y = new_pages(GAP_TOKENS), .out = new_pages(GAP_TOKENS)};
    g.residual = new_pages(GAP_TOKENS), g.weights = new_pages(HEADS * GAP_TOKENS);
    const int64_t page = g.x.stride;
    rapt_desc_init(&g.attention), rapt_mha_desc_init(&g.desc), rapt_args_init(&g.attention_args), rapt_mha_args_init(&g.args);
    rapt_desc *a = &g.attention;
    rapt_mha_desc *d = &g.desc;
    rapt_mha_args *args = &g.args;
    const pages *const inputs[] = {&g.x, &g.y, &g.residual};
    for (int64_t n = 0; n < 3 * GAP_TOKENS * WIDTH; n++) {
        const float value = random_value();
        const int64_t row = n / WIDTH % GAP_TOKENS * page + n % WIDTH * (int64_t)sizeof value;
        memcpy(inputs[n / WIDTH / GAP_TOKENS]->at + row, &value, sizeof value);
    }
    tensor wq = random_rows(RAPT_F32, 1, (HEADS + 2 * KV_HEADS) * D, WIDTH, 0, 0.2f);
    tensor wo = random_rows(RAPT_F32, 1, WIDTH, HEADS * D, 0, 0.2f), table = random_rows(RAPT_F32, 1, 20, WIDTH, 0, 0.2f);
    tensor cache[] = {new_rows(RAPT_F16, GAP_ENTRIES, GAP_KEYS, KV_HEADS * D, 0),
                      new_rows(RAPT_F16, GAP_ENTRIES, GAP_KEYS, KV_HEADS * D, 0)};
    double frequencies[D / 2];
    if (rapt_rope_frequencies(10000.0, D, frequencies)) abort();
    for (int b = 0; b < GAP_ENTRIES; b++) lengths[b] = starts[b] + gap_starts[b + 1] - gap_starts[b];
    for (int side = 0; side < 2; side++) memset(cache[side].at, 0, cache[side].bytes);

    a->batch = GAP_ENTRIES, a->heads = HEADS, a->kv_heads = KV_HEADS, a->d_k = a->d_v = D, a->q_len = GAP_TOKENS, a->isa = isa;
    a->causal = RAPT_CAUSAL_BOTTOM_RIGHT, a->q_starts = gap_starts;
    d->attention = a, d->x_width = WIDTH, d->x = d->out = (rapt_layout){RAPT_F32, 0, 0, page}, d->packed = 1, d->wq = wq.layout;
    d->weights = (rapt_layout){RAPT_F32, 0, GAP_TOKENS * page, page};
    d->rope.channels = D, d->rope.frequencies = frequencies, d->position_table = positions;
    args->x = g.x.at, args->out = g.out.at, args->wq = wq.at, args->attention = &g.attention_args, args->starts = starts;
    args->weights = (float *)(void *)g.weights.at;
    if (positions) args->position_table = (float *)(void *)table.at, args->table_positions = table.tokens;
    if (output) d->wo = wo.layout, args->wo = wo.at, d->residual = d->x, args->residual = g.residual.at;
    if (cached) {
        a->kv_len = GAP_KEYS, a->k = head_layout(&cache[0], D), a->v = head_layout(&cache[1], D);
        args->k_cache = cache[0].at, args->v_cache = cache[1].at, g.attention_args.kv_lengths = lengths;
    }
    if (cross) a->k_starts = gap_starts, d->y = d->x, d->keys = GAP_TOKENS, args->y = g.y.at;

    close_gaps(&g.x), close_gaps(&g.y), close_gaps(&g.out), close_gaps(&g.residual), close_gaps(&g.weights);
    const bool kept_out = meets_no_fault(run_gapped, &g);
    bool ok = kept_out && g.status == RAPT_OK;
    if (!ok)
        printf("# %s: positions %d, output %d, cached %d, cross %d: %s\n", isa, positions, output, cached, cross,
               kept_out ? "refused" : "a gap was met");
    for (int b = 0; b < GAP_ENTRIES && ok; b++)
        if (gap_starts[b] < gap_starts[b + 1]) ok = entry_agrees(&g, b, starts, lengths);
    free_pages(&g.x), free_pages(&g.y), free_pages(&g.out), free_pages(&g.residual), free_pages(&g.weights);
    free_tensor(&wq), free_tensor(&wo), free_tensor(&table), free_tensor(&cache[0]), free_tensor(&cache[1]);
    return ok;
}

static void gaps(const char *isa) {
    int wrong = 0;
    random_state = 12;
    for (int n = 0; n < 12; n++) wrong += !gaps_agree(isa, n & 1, n & 2, n & 4, n & 8);
    tap_ok(wrong == 0, "%s: tokens of no entry are not touched, others as in calls of their own: %d of 12 wrong", isa, wrong);
}

/* Cross-attention to nothing gives the bias of W_O; there are no weights to write. */
static void no_keys(const char *isa) {
    enum { ROWS = 3 };
    random_state = 13;
    tensor x = random_rows(RAPT_F32, 1, ROWS, 8, 0, 1.0f), w = random_rows(RAPT_F32, 1, 8, 8, 0, 0.5f),
           out = new_rows(RAPT_F32, 1, ROWS, 8, 0);
    float *bias = random_floats(8, 1.0f), untouched = 7.0f;
    int wrong = 0;
    for (int n = 0; n < 4; n++) { /* weights anywhere or null; by one thread or for several */
        rapt_desc a;
        rapt_mha_desc d;
        rapt_mha_args args;
        rapt_mha_plan plan;
        size_t bytes = 0;
        rapt_desc_init(&a), rapt_mha_desc_init(&d), rapt_mha_args_init(&args);
        a.heads = a.kv_heads = 2, a.d_k = a.d_v = 4, a.q_len = ROWS, a.isa = isa, a.threads = n & 2 ? 4 : 1;
        d.attention = &a, d.x_width = 8, d.keys = 0, d.x = x.layout, d.y = rapt_layout_bshd(RAPT_F32, 1, 0, 8),
        d.out = out.layout;
        d.wq = d.wk = d.wv = d.wo = w.layout, d.weights = rapt_layout_bhsd(RAPT_F32, 2, ROWS, 0);
        args.x = x.at, args.out = out.at, args.wq = args.wk = args.wv = args.wo = w.at, args.bo = bias;
        args.weights = n & 1 ? &untouched : NULL;
        rapt_status status = rapt_mha_plan_init(&plan, &d);
        if (status == RAPT_OK) status = rapt_mha_workspace_size(&plan, 1, &bytes);
        args.workspace = new_workspace(bytes), args.workspace_bytes = bytes;
        if (status == RAPT_OK) status = rapt_mha_run(&plan, &args);
        wrong += status != RAPT_OK || untouched != 7.0f;
        for (int t = 0; t < ROWS; t++) wrong += memcmp(row_at(&out, 0, t), bias, 8 * sizeof *bias) != 0;
        memset(out.at, 0, out.bytes);
        aligned_destroy(args.workspace);
    }
    tap_ok(wrong == 0, "%s: weights of 0 keys: the output is the bias of W_O: %d wrong", isa, wrong);
    free_tensor(&x), free_tensor(&w), free_tensor(&out), free(bias);
}

/* ---- Tables -------------------------------------------------------------------------------------------------------------- */

static void tables(void) {
    enum { POSITIONS = 300, TABLE = 130 };
    static float table[POSITIONS * TABLE], later[TABLE];
    double worst = 0.0;
    uint64_t h = hash_start;
    bool ok = rapt_sinusoidal(0, POSITIONS, TABLE, table) == RAPT_OK;
    for (int p = 0; p < POSITIONS; p++)
        for (int i = 0; i < TABLE; i++) {
            double angle = p / pow(10000.0, (double)(i / 2 * 2) / TABLE), want = i % 2 ? cos(angle) : sin(angle);
            worst = fmax(worst, fabs(table[p * TABLE + i] - want));
        }
    h = hash_numbers(h, table, sizeof table, sizeof *table);
    tap_ok(ok && worst < 3.1e-8, "the sinusoidal table is that of the paper, rounded to f32 (%.1e)", worst);
    tap_ok(rapt_sinusoidal(299, 1, TABLE, later) == RAPT_OK && !memcmp(later, table + 299 * TABLE, sizeof later),
           "and from another position on it is the same");
    float eight[8], twelve[12];
    ok = rapt_alibi_slopes(8, eight) == RAPT_OK && rapt_alibi_slopes(12, twelve) == RAPT_OK;
    for (int i = 0; i < 8; i++) ok = ok && eight[i] == ldexpf(1.0f, -(i + 1)) && twelve[i] == eight[i];
    for (int i = 0; i < 4; i++) ok = ok && fabs(twelve[8 + i] - pow(2.0, -0.5 * (2 * i + 1))) < 5e-8;
    h = hash_numbers(h, twelve, sizeof twelve, sizeof *twelve);
    tap_ok(ok, "ALiBi's slopes for 8 and for 12 heads are those of the paper");
    float wide[3000], scales[3], weights[3 * 1000];
    int8_t quantised[3000];
    for (int i = 0; i < 3000; i++) weights[i] = wide[i] = random_value();
    weights[1500] = NAN;
    memset(weights + 2000, 0, 1000 * sizeof *weights);
    ok = rapt_quantise_weights(3, 1000, RAPT_F32, 4000, weights, quantised, scales) == RAPT_OK && isnan(scales[1]) &&
         scales[2] == 0.0f;
    float most = 0.0f;
    for (int i = 0; i < 1000; i++) most = fmaxf(most, fabsf(weights[i]));
    ok = ok && scales[0] == most / 127.0f;
    for (int i = 0; i < 1000; i++)
        ok =
            ok && quantised[i] == (int)nearbyintf(weights[i] / scales[0]) && quantised[1000 + i] == 0 && quantised[2000 + i] == 0;
    ok = ok && rapt_quantise_weights(1, 3000, RAPT_F32, 0, wide, quantised, scales) == RAPT_OK;
    most = 0.0f;
    for (int i = 0; i < 3000; i++) most = fmaxf(most, fabsf(wide[i]));
    for (int i = 0; i < 3000; i++) ok = ok && quantised[i] == (int)nearbyintf(wide[i] / (most / 127.0f));
    h = hash_bytes(h, quantised, sizeof quantised);
    tap_ok(ok, "int8 weights: the scale is the largest magnitude / 127, or NaN, or 0");
    tap_ok(h == golden_tables, "tables and quantised weights are those of every machine (%016" PRIx64 ")", h);
}

/* ---- What is refused ----------------------------------------------------------------------------------------------------- */

/* Self-attention of 4 tokens with packed weights and W_O; perhaps with positions added, perhaps with weights given out. */
typedef struct good {
    struct described {
        rapt_desc attention;
        rapt_mha_desc mha;
    } desc;
    struct given {
        rapt_args attention;
        rapt_mha_args mha;
    } args;
    rapt_mha_plan plan;
} good;

static float some[4 * 8], numbers[24 * 8], other[4 * 8];
static _Alignas(RAPT_WORKSPACE_ALIGNMENT) char workspace[1 << 18];

/* Copies of what is good have attention of their own. */
static rapt_status make_plan(rapt_mha_plan *plan, struct described *d) {
    if (d->mha.attention) d->mha.attention = &d->attention;
    return rapt_mha_plan_init(plan, &d->mha);
}

static void expect_plan(good *t, const char *change, struct described *d, rapt_status want) {
    rapt_mha_plan plan;
    expect(t, "rapt_mha_plan_init", change, make_plan(&plan, d), want);
}

static void expect_run(good *t, const char *change, struct given *a, rapt_status want) {
    a->mha.attention = &a->attention;
    expect(t, "rapt_mha_run", change, rapt_mha_run(&t->plan, &a->mha), want);
}

static void make_good(good *t, bool positions, bool weights) {
    rapt_desc *a = &t->desc.attention;
    rapt_mha_desc *d = &t->desc.mha;
    rapt_mha_args *args = &t->args.mha;
    rapt_desc_init(a), rapt_mha_desc_init(d), rapt_args_init(&t->args.attention), rapt_mha_args_init(args);
    a->batch = 1, a->heads = 2, a->kv_heads = 2, a->q_len = 4, a->d_k = a->d_v = 4;
    d->attention = a, d->x_width = 8, d->x = d->out = rapt_layout_bshd(RAPT_F32, 1, 4, 8), d->packed = 1;
    d->wq = rapt_layout_bshd(RAPT_F32, 1, 24, 8), d->wo = rapt_layout_bshd(RAPT_F32, 1, 8, 8);
    args->x = some, args->out = guard, args->wq = args->wo = numbers;
    args->workspace = workspace, args->workspace_bytes = sizeof workspace;
    if (positions) d->position_table = 1, args->position_table = other, args->table_positions = 4;
    if (weights) d->weights = rapt_layout_bhsd(RAPT_F32, 2, 4, 4), args->weights = (float *)(void *)(guard + 1024);
    if (make_plan(&t->plan, &t->desc)) abort();
}

static void refused_descriptions(good *t) {
    PLAN(RAPT_ERR_NULL, d.mha.attention = NULL);
    PLAN(RAPT_ERR_HEADS, d.attention.heads = 3);
    PLAN(RAPT_ERR_SHAPE, d.attention.heads = 0);
    PLAN(RAPT_ERR_SHAPE, d.mha.y_width = 7);                                  /* of a Y that is X */
    PLAN(RAPT_ERR_TYPE, d.attention.k = rapt_layout_bshd(RAPT_F32, 2, 4, 4)); /* half a cache */
    PLAN(RAPT_ERR_FEATURE, d.attention.unmerged = 1);
    PLAN(RAPT_ERR_FEATURE, d.mha.z = d.mha.x); /* without Y */
    PLAN(RAPT_ERR_FEATURE, d.mha.wo.type = RAPT_NONE; d.mha.residual = d.mha.out);
    PLAN(RAPT_ERR_FEATURE, d.mha.rope.channels = 3);
    PLAN(RAPT_ERR_TYPE, d.mha.weights = rapt_layout_bhsd(RAPT_F16, 2, 4, 4));
    PLAN(RAPT_ERR_STRUCT, d.mha.size = 16);
    PLAN(RAPT_ERR_MASK, d.attention.window_left = -2);
    PLAN(RAPT_ERR_TYPE, d.mha.position_table = 1; d.mha.x.type = RAPT_INT8);
    PLAN(RAPT_ERR_STRIDE, d.mha.position_table = 1; d.mha.x.token_stride = -32);
}

static void refused_calls(good *t) {
    static const int32_t length = 5;
    RUN(RAPT_ERR_NULL, a.mha.wq = NULL);
    RUN(RAPT_ERR_NULL, a.mha.x = NULL);
    RUN(RAPT_ERR_NULL, a.mha.out = NULL);
    RUN(RAPT_ERR_OVERLAP, a.mha.wq = guard + 100);
    RUN(RAPT_ERR_OVERLAP, a.mha.out = workspace + 1000);
    RUN(RAPT_ERR_OVERLAP, a.mha.x = workspace + 1000);
    RUN(RAPT_ERR_OVERLAP, a.mha.bq = (float *)(void *)(workspace + 1000));
    RUN(RAPT_ERR_WORKSPACE, a.mha.workspace_bytes = 1000);
    RUN(RAPT_ERR_ALIGNMENT, a.mha.workspace = workspace + 4);
    RUN(RAPT_ERR_KV_LENGTH, a.attention.kv_lengths = &length);
    RUN(RAPT_ERR_UNUSED, a.mha.weights = other);
    RUN(RAPT_ERR_UNUSED, a.mha.y = other);
    RUN(RAPT_ERR_UNUSED, a.mha.wk = other);
    RUN(RAPT_ERR_UNUSED, a.mha.bv = other);
    RUN(RAPT_ERR_UNUSED, a.mha.residual = other);
    RUN(RAPT_ERR_UNUSED, a.mha.k_cache = other);
    RUN(RAPT_ERR_UNUSED, a.mha.position_table = other);
    RUN(RAPT_ERR_UNUSED, a.mha.rope_table.type = RAPT_F32);
    RUN(RAPT_ERR_UNUSED, a.attention.mask = other);
}

static void refused_positions(good *t) {
    static const int32_t late = 3, early = -1;
    RUN(RAPT_ERR_NULL, a.mha.position_table = NULL);
    RUN(RAPT_ERR_TABLE, a.mha.starts = &late);
    RUN(RAPT_ERR_TABLE, a.mha.starts = &early);
}

static void refused_weights(good *t) {
    RUN(RAPT_ERR_NULL, a.mha.weights = NULL);
    RUN(RAPT_ERR_OVERLAP, a.mha.weights = some);
}

static void refusals(void) {
    static good plain, positions, weights;
    make_good(&plain, false, false), make_good(&positions, true, false), make_good(&weights, false, true);
    refused_descriptions(&plain);
    refused_calls(&plain);
    refused_positions(&positions);
    refused_weights(&weights);
}

static void test_kernel(const char *isa, bool whole) {
    static const drawn problems = {"calls of multi-head attention have the bits of the calls they stand for",
                                   any_problem,
                                   3,
                                   {UINT64_C(0xdf65244719578b69), UINT64_C(0xe044fbafc6483957)},
                                   25,
                                   80};
    test_drawn(isa, whole, &problems);
    kinds_of_problems(isa);
    prepacked_alone(isa);
    formula(isa);
    wide_weights(isa);
    gaps(isa);
    no_keys(isa);
}

int main(int argc, char **argv) {
    each_kernel(argc, argv, test_kernel);
    random_state = 4;
    tables();
    fill_guard();
    refusals();
    return tap_done();
}
