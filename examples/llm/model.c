/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "aligned.h"
#include "cli.h"
#include "convert.h"
#include "llm.h"

#include <string.h>

enum { FLOAT = sizeof(float) };

void must(rapt_status status) {
    if (status != RAPT_OK) exit(cli_fail("llm", "%s", rapt_status_string(status)));
}

void *reserve(room *area, int64_t bytes) {
    if (bytes > area->bytes) {
        aligned_destroy(area->at);
        area->at = present((uint64_t)bytes > SIZE_MAX ? NULL : aligned_create(RAPT_WORKSPACE_ALIGNMENT, (size_t)bytes));
        area->bytes = bytes;
    }
    return area->at;
}

/* ---- Loading ------------------------------------------------------------------------------------------------------------- */

static float half(const uint8_t *at) { return convert_to_float(RAPT_F16, (uint32_t)gguf_load(at, 2)); }

/* Code i of 4 bits: runs of `run` codes are the lower halves of bytes, then the upper ones. */
static int code(const uint8_t *at, int run, int i) { return at[i / (2 * run) * run + i % run] >> i / run % 2 * 4 & 15; }

/* Returns element i of a group. Products of scales and numbers are exact, so a sum with a minimum is rounded once, as in rapt. */
static float element(const gguf_type *type, const uint8_t *at, int i) {
    const int part = i / 32, low = part % 4; /* of a block of 256 */
    switch (type->same) {
    case RAPT_Q8_0:
        return half(at) * (float)(int8_t)at[2 + i];
    case RAPT_Q4_0:
        return half(at) * (float)(code(at + 2, 16, i) - 8);
    case RAPT_Q4_1:
        return half(at) * (float)code(at + 4, 16, i) + half(at + 2);
    case RAPT_Q4_K: { /* parts from 4 on have the upper 2 of 6 bits in the bytes of the others */
        const int a = at[4 + low], b = at[8 + low], both = at[12 + low];
        const int scale = part < 4 ? a & 63 : (both & 15) | a >> 6 << 4, minimum = part < 4 ? b & 63 : both >> 4 | b >> 6 << 4;
        return half(at) * (float)(scale * code(at + 16, 32, i)) - half(at + 2) * (float)minimum;
    }
    case RAPT_Q6_K: { /* 4 bits in runs of 64, then 2 bits in runs of 32 */
        const int upper = at[128 + i / 128 * 32 + i % 32] >> 2 * low & 3;
        return half(at + 208) * (float)((int8_t)at[192 + i / 16] * ((code(at, 64, i) | upper << 4) - 32));
    }
    default:
        return convert_to_float(type->same, (uint32_t)gguf_load(at, type->bytes));
    }
}

/* Writes a row of a tensor as f32. */
static void row_to_floats(const gguf_tensor *t, int64_t row, float *to) {
    const gguf_type *const type = t->type;
    const uint8_t *const from = t->data + row * (t->dims[0] / type->group) * type->bytes;
    for (int64_t i = 0; i < t->dims[0]; i++) to[i] = element(type, from + i / type->group * type->bytes, (int)(i % type->group));
}

/* For the pool, which converts the rows of a matrix. */
typedef struct conversion {
    const gguf_tensor *from;
    float *to;
} conversion;

static void convert_row(void *conversion_, int64_t row) {
    const conversion *c = conversion_;
    row_to_floats(c->from, row, c->to + row * c->from->dims[0]);
}

/* Whether linear layers take the bytes of the file: those of groups are the same everywhere, others are little-endian. */
static bool is_taken(rapt_type type) {
    const rapt_type_class tensors = rapt_type_class_of(type);
    return tensors == RAPT_CLASS_WEIGHT || tensors == RAPT_CLASS_MATRIX ||
           (tensors == RAPT_CLASS_ELEMENT && *(const uint8_t *)&(const uint16_t){1});
}

/* A tensor of the file. out: 0 for a vector, which is always converted, since arrays have to be aligned. */
static weights load(const model *m, const char *name, int64_t out, int64_t in, bool optional) {
    gguf_tensor *t = gguf_find(m->file, name);
    const int64_t rows = out ? out : 1;
    if (!t && optional) return (weights){0};
    if (!t) fail(m->file->path, "it has no tensor '%s'", name);
    if (t->dims[0] != in || t->dims[1] != rows || t->dims[2] != 1 || t->dims[3] != 1)
        fail(m->file->path, "tensor '%s' must have the shape [%lld, %lld]", name, (long long)in, (long long)rows);
    if (!t->type) fail(m->file->path, "tensor '%s' is of a type that is not read here", name);
    t->used = true;
    if (out && is_taken(t->type->same)) return (weights){t->data, rapt_layout_bshd(t->type->same, 1, rows, in), rows, in};
    float *const converted = present(calloc((size_t)rows, (size_t)in * FLOAT));
    rapt_pool_for(m->pool, rows, convert_row, &(conversion){t, converted});
    return (weights){converted, rapt_layout_bshd(RAPT_F32, 1, rows, in), rows, in};
}

static void load_layer(model *m, int64_t layer) {
    static const char *const names[IN_A_LAYER] = {
        "attn_q.weight",      "attn_k.weight",   "attn_v.weight",    "attn_output.weight", "ffn_gate.weight",
        "ffn_up.weight",      "ffn_down.weight", "attn_norm.weight", "ffn_norm.weight",    "attn_q_norm.weight",
        "attn_k_norm.weight", "attn_q.bias",     "attn_k.bias",      "attn_v.bias"};
    const int64_t q = m->heads * m->d, kv = m->kv_heads * m->d, w = m->width, d = m->d, inner = m->inner;
    const int64_t out[IN_A_LAYER] = {q, kv, kv, w, inner, inner, w},
                  in[IN_A_LAYER] = {w, w, w, q, w, w, inner, w, w, d, d, q, kv, kv};
    for (int i = 0; i < IN_A_LAYER; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%lld.%s", (long long)layer, names[i]);
        m->layers[layer][i] = load(m, name, out[i], in[i], i >= Q_NORM);
    }
}

static double number(const model *m, const char *name, double otherwise) {
    char key[160];
    snprintf(key, sizeof key, "%.*s.%s", GGUF_SHOWN(gguf_string(m->file, "general.architecture")), name);
    return gguf_number(m->file, key, otherwise);
}

/* An integer from 1 to most. */
static int64_t size(const model *m, const char *name, int64_t otherwise, int64_t most) {
    const double n = number(m, name, (double)otherwise);
    if (!(n >= 1 && n <= (double)most && (double)(int64_t)n == n)) fail(m->file->path, "it has no possible %s", name);
    return (int64_t)n;
}

static void load_sizes(model *m) {
    const gguf_text family = gguf_string(m->file, "general.architecture");
    const bool llama = gguf_is(family, "llama");
    if (!llama && !gguf_is(family, "qwen2") && !gguf_is(family, "qwen3"))
        fail(m->file->path, "its architecture is '%.*s'; llama, qwen2 and qwen3 are known", GGUF_SHOWN(family));
    m->layer_count = size(m, "block_count", 0, 10000);
    m->context = size(m, "context_length", 0, RAPT_MAX_LENGTH / 2);
    m->width = size(m, "embedding_length", 0, RAPT_MAX_WIDTH);
    m->inner = size(m, "feed_forward_length", 0, RAPT_MAX_WIDTH);
    m->heads = size(m, "attention.head_count", 0, RAPT_MAX_WIDTH);
    m->kv_heads = size(m, "attention.head_count_kv", m->heads, m->heads);
    m->d = size(m, "attention.key_length", m->width / m->heads, RAPT_MAX_HEAD_DIM);
    m->window = size(m, "attention.sliding_window", RAPT_MAX_LENGTH, RAPT_MAX_LENGTH);
    m->epsilon = (float)number(m, "attention.layer_norm_rms_epsilon", -1);
    m->rope = (rapt_rope){.frequencies = m->frequencies, .amplitude = 1, .channels = size(m, "rope.dimension_count", m->d, m->d)};
    m->rope.interleaved = llama; /* such files have the channels of a pair side by side, others half a head apart */
    if (m->heads % m->kv_heads || m->heads * m->d > RAPT_MAX_WIDTH || !(m->epsilon >= 0 && m->epsilon <= 1) ||
        size(m, "attention.value_length", m->d, RAPT_MAX_HEAD_DIM) != m->d || number(m, "rope.scaling.factor", 1) != 1 ||
        rapt_rope_frequencies(number(m, "rope.freq_base", 10000), m->rope.channels, m->frequencies) != RAPT_OK)
        fail(m->file->path, "its heads, norms or positions are of a kind that is not known here");
    m->page_bytes = m->layer_count * 2 * m->kv_heads * PAGE_TOKENS * rapt_row_bytes(m->cache, m->d);
    if (m->page_bytes <= 0) fail(m->file->path, "heads of %d channels cannot be stored in that cache", (int)m->d);
}

void model_open(model *m, const gguf *file, rapt_type cache, rapt_pool *pool) {
    gguf_tensor *const embedding = gguf_find(file, "token_embd.weight");
    *m = (model){.file = file, .cache = cache, .pool = pool, .embedding = embedding};
    load_sizes(m);
    if (!embedding || !embedding->type || embedding->dims[0] != m->width || embedding->dims[1] > RAPT_MAX_WIDTH ||
        embedding->dims[1] < (int64_t)gguf_texts(file, "tokenizer.ggml.tokens").count)
        fail(file->path, "it has no possible tensor 'token_embd.weight'");
    embedding->used = true, m->vocabulary = embedding->dims[1];
    m->head = load(m, gguf_find(file, "output.weight") ? "output.weight" : "token_embd.weight", m->vocabulary, m->width, false);
    m->norm = load(m, "output_norm.weight", 0, m->width, false);
    const float *const factors = load(m, "rope_freqs.weight", 0, m->rope.channels / 2, true).at; /* Llama 3.1 has them */
    for (int64_t i = 0; factors && i < m->rope.channels / 2; i++) m->frequencies[i] /= (double)factors[i];
    m->layers = present(calloc((size_t)m->layer_count, sizeof *m->layers));
    for (int64_t i = 0; i < m->layer_count; i++) {
        load_layer(m, i);
        tell("reading: layer", i + 1, m->layer_count);
    }
    for (const gguf_tensor *t = file->tensors; t < file->tensors + file->tensor_count; t++)
        if (!t->used) fail(file->path, "it has a tensor '%.*s', for which there is no use here", GGUF_SHOWN(t->name));
}

/* ---- Running ------------------------------------------------------------------------------------------------------------- */

static rapt_layout rows_of(int64_t channels) { return rapt_layout_bshd(RAPT_F32, 1, 1, channels); }

/* y = x W^T + bias, in rows that are y_row channels apart; with a gate, silu(x G^T) * (x W^T); with `add`, added to y. */
static void linear(model *m, const weights *w, const weights *gate, const weights *bias, int64_t rows, const float *x, float *y,
                   int64_t y_row, bool add) {
    const int64_t threads = rapt_pool_threads(m->pool);
    rapt_linear_desc desc;
    rapt_linear_plan plan;
    rapt_linear_args args;
    rapt_linear_desc_init(&desc), rapt_linear_args_init(&args);
    desc.tokens = rows, desc.in = w->in, desc.out = w->out;
    desc.x = rows_of(w->in), desc.y = rows_of(y_row), desc.weight = w->layout;
    args.x = x, args.weight = w->at, args.y = y;
    if (bias) args.bias = bias->at;
    if (gate) desc.gate = gate->layout, desc.activation = RAPT_SILU, args.gate = gate->at;
    if (add) desc.residual = desc.y, args.residual = y;
    must(rapt_linear_plan_init(&plan, &desc));
    must(rapt_linear_workspace_size(&plan, threads, &args.workspace_bytes));
    args.workspace = reserve(&m->workspace, (int64_t)args.workspace_bytes);
    must(rapt_linear_run_parallel(&plan, &args, threads, rapt_pool_for, m->pool));
}

/* RMSNorm, in each row, of `heads` adjacent heads of the weights' length. */
static void normalise(model *m, const weights *w, int64_t rows, int64_t row, int64_t heads, const float *x, float *y) {
    rapt_norm_args args;
    rapt_norm_args_init(&args);
    args.batch = rows, args.tokens = heads, args.channels = w->in;
    args.x = args.y = (rapt_layout){RAPT_F32, rows_of(row).token_stride, 0, rows_of(w->in).token_stride};
    args.from = x, args.to = y, args.weight = w->at, args.epsilon = m->epsilon;
    must(rapt_rms_norm_run_parallel(&args, rapt_pool_threads(m->pool), rapt_pool_for, m->pool));
}

void model_reserve(model *m, int64_t tokens) {
    m->page_count = (tokens + PAGE_TOKENS - 1) / PAGE_TOKENS;
    const uint64_t bytes = (uint64_t)m->page_bytes;
    m->pages = present(bytes > SIZE_MAX ? NULL : calloc((size_t)m->page_count, (size_t)bytes));
    m->table = present(malloc((size_t)m->page_count * sizeof *m->table));
    for (int64_t i = 0; i < m->page_count; i++) m->table[i] = (int32_t)i;
}

/* Attention of n tokens, whose queries, keys and values lie side by side in rows. */
static void plan_attention(const model *m, int64_t n, int64_t row, rapt_decode_plan *plan) {
    const int64_t key = rapt_row_bytes(m->cache, m->d), d = rows_of(m->d).token_stride;
    rapt_desc a;
    rapt_decode_desc step;
    rapt_desc_init(&a), rapt_decode_desc_init(&step);
    a.heads = m->heads, a.kv_heads = m->kv_heads, a.q_len = n, a.kv_len = m->page_count * PAGE_TOKENS, a.d_k = a.d_v = m->d;
    a.q = (rapt_layout){RAPT_F32, 0, d, rows_of(row).token_stride}, a.o = (rapt_layout){RAPT_F32, 0, d, m->heads * d};
    a.k = a.v = (rapt_layout){m->cache, m->page_bytes, PAGE_TOKENS * key, key};
    a.page_size = PAGE_TOKENS, a.pages = m->page_count, a.table.type = RAPT_I32;
    a.causal = RAPT_CAUSAL_BOTTOM_RIGHT, a.window_left = m->window < RAPT_MAX_LENGTH ? m->window - 1 : -1,
    a.threads = rapt_pool_threads(m->pool);
    step.attention = &a, step.new_k = step.new_v = a.q, step.rope = m->rope;
    must(rapt_decode_plan_init(plan, &step));
}

void model_run(model *m, const int32_t *tokens, int64_t n) {
    const int64_t threads = rapt_pool_threads(m->pool), q = m->heads * m->d, kv = m->kv_heads * m->d, row = q + 2 * kv;
    const int64_t width = m->width, layer_bytes = m->page_bytes / m->layer_count;
    float *x = reserve(&m->x, n * width * FLOAT), *qkv = reserve(&m->qkv, n * row * FLOAT);
    float *y = reserve(&m->y, n * (q > width ? q : width) * FLOAT);
    float *gated = reserve(&m->gated, n * m->inner * FLOAT);
    const int32_t start = (int32_t)m->tokens;
    rapt_decode_plan plan;
    rapt_decode_args args;
    rapt_args attention;
    plan_attention(m, n, row, &plan);
    rapt_args_init(&attention), rapt_decode_args_init(&args);
    attention.q = qkv, attention.o = y, attention.table = m->table;
    args.attention = &attention, args.starts = &start, args.new_k = qkv + q, args.new_v = qkv + q + kv;
    must(rapt_decode_workspace_size(&plan, threads, &args.workspace_bytes));
    for (int64_t i = 0; i < n; i++) row_to_floats(m->embedding, tokens[i], x + i * width);
    for (int64_t i = 0; i < m->layer_count; i++) {
        const weights *w = m->layers[i];
        normalise(m, &w[ATTENTION_NORM], n, width, 1, x, y);
        linear(m, &w[Q], NULL, &w[Q_BIAS], n, y, qkv, row, false);
        linear(m, &w[K], NULL, &w[K_BIAS], n, y, qkv + q, row, false);
        linear(m, &w[V], NULL, &w[V_BIAS], n, y, qkv + q + kv, row, false);
        if (w[Q_NORM].at) normalise(m, &w[Q_NORM], n, row, m->heads, qkv, qkv);
        if (w[K_NORM].at) normalise(m, &w[K_NORM], n, row, m->kv_heads, qkv + q, qkv + q);
        args.k = m->pages + i * layer_bytes, args.v = (char *)args.k + layer_bytes / 2;
        args.workspace = reserve(&m->workspace, (int64_t)args.workspace_bytes);
        must(rapt_decode_run_parallel(&plan, &args, threads, rapt_pool_for, m->pool));
        linear(m, &w[O], NULL, NULL, n, y, x, width, true);
        normalise(m, &w[NETWORK_NORM], n, width, 1, x, y);
        linear(m, &w[UP], &w[GATE], NULL, n, y, gated, m->inner, false);
        linear(m, &w[DOWN], NULL, NULL, n, gated, x, width, true);
    }
    m->tokens += n;
}

const float *model_logits(model *m, int64_t first, int64_t count) {
    float *logits = reserve(&m->logits, count * m->vocabulary * FLOAT);
    normalise(m, &m->norm, count, m->width, 1, (const float *)m->x.at + first * m->width, m->y.at);
    linear(m, &m->head, NULL, NULL, count, m->y.at, logits, m->vocabulary, false);
    return logits;
}
