/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "aligned.h"
#include "llm.h"

#include <string.h>

enum { FLOAT = sizeof(float) };

void must(rapt_status status) {
    if (status != RAPT_OK) FAIL("%s", rapt_status_string(status));
}

void *reserve(room *area, int64_t bytes) {
    if (bytes > area->bytes) {
        aligned_destroy(area->at);
        area->at = present((uint64_t)bytes > SIZE_MAX ? NULL : aligned_create(RAPT_WORKSPACE_ALIGNMENT, (size_t)bytes));
        area->bytes = bytes;
    }
    return area->at;
}

/* ---- Loading ----------------------------------------------------------------------------------------------------------- */

/* A copy of a tensor's elements, aligned, and in the machine's order of bytes; the file's is little-endian. */
static const void *copy(const gguf_tensor *t, size_t elements) {
    const size_t size = (size_t)rapt_row_bytes(t->type, 1), swap = *(const uint8_t *)&(const uint16_t){1} ? 0 : size - 1;
    uint8_t *to = present(calloc(elements, size));
    for (size_t i = 0; i < elements * size; i++) to[i ^ swap] = t->data[i];
    return to;
}

/* A tensor of the file. A matrix is used where it lies if the machine has its bytes: those of groups are the same everywhere. */
static weights load(const model *m, const char *name, int64_t out, int64_t in, bool optional) {
    gguf_tensor *t = gguf_find(m->file, name);
    const bool vector = !out;
    const int64_t rows = vector ? 1 : out;
    if (!t && optional) return (weights){0};
    if (!t) FAIL("%s: it has no tensor '%s'", m->file->path, name);
    if (t->dims[0] != in || t->dims[1] != rows || t->dims[2] != 1 || t->dims[3] != 1)
        FAIL("%s: tensor '%s' must have the shape [%lld, %lld]", m->file->path, name, (long long)in, (long long)rows);
    if (!t->type || (vector && t->type != RAPT_F32))
        FAIL("%s: tensor '%s' is of a type that is not read here", m->file->path, name);
    t->used = true;
    const bool swapped = rapt_type_class_of(t->type) == RAPT_CLASS_ELEMENT && !*(const uint8_t *)&(const uint16_t){1};
    const void *const at = vector || swapped ? copy(t, (size_t)(rows * in)) : t->data;
    return (weights){at, rapt_layout_bshd(t->type, 1, rows, in), rows, in};
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
    if (!(n >= 1 && n <= (double)most && (double)(int64_t)n == n)) FAIL("%s: it has no possible %s", m->file->path, name);
    return (int64_t)n;
}

static void load_sizes(model *m) {
    const gguf_text family = gguf_string(m->file, "general.architecture");
    const bool llama = gguf_is(family, "llama");
    if (!llama && !gguf_is(family, "qwen2") && !gguf_is(family, "qwen3"))
        FAIL("%s: its architecture is '%.*s'; llama, qwen2 and qwen3 are known", m->file->path, GGUF_SHOWN(family));
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
        FAIL("%s: its heads, norms or positions are of a kind that is not known here", m->file->path);
    m->page_bytes = m->layer_count * 2 * m->kv_heads * PAGE_TOKENS * rapt_row_bytes(m->cache, m->d);
    if (m->page_bytes <= 0) FAIL("%s: heads of %d channels cannot be stored in that cache", m->file->path, (int)m->d);
}

void model_open(model *m, const gguf *file, int64_t vocabulary, rapt_type cache, rapt_pool *pool) {
    const gguf_tensor *const embedding = gguf_find(file, "token_embd.weight");
    *m = (model){.file = file, .cache = cache, .pool = pool};
    load_sizes(m);
    m->vocabulary = embedding ? embedding->dims[1] : 0;
    if (m->vocabulary < vocabulary || m->vocabulary > RAPT_MAX_WIDTH)
        FAIL("%s: it has no possible tensor 'token_embd.weight'", file->path);
    m->embedding = load(m, "token_embd.weight", m->vocabulary, m->width, false);
    m->head = load(m, "output.weight", m->vocabulary, m->width, true);
    if (!m->head.at) m->head = m->embedding;
    m->norm = load(m, "output_norm.weight", 0, m->width, false);
    const float *const factors = load(m, "rope_freqs.weight", 0, m->rope.channels / 2, true).at; /* Llama 3.1 has them */
    for (int64_t i = 0; factors && i < m->rope.channels / 2; i++) m->frequencies[i] /= (double)factors[i];
    m->layers = present(calloc((size_t)m->layer_count, sizeof *m->layers));
    for (int64_t i = 0; i < m->layer_count; i++) {
        load_layer(m, i);
        tell("reading: layer", i + 1, m->layer_count);
    }
    for (const gguf_tensor *t = file->tensors; t < file->tensors + file->tensor_count; t++)
        if (!t->used) FAIL("%s: it has a tensor '%.*s', for which there is no use here", file->path, GGUF_SHOWN(t->name));
}

void model_reserve(model *m, int64_t tokens) {
    m->page_count = (tokens + PAGE_TOKENS - 1) / PAGE_TOKENS;
    m->pages = present((uint64_t)m->page_bytes > SIZE_MAX ? NULL : calloc((size_t)m->page_count, (size_t)m->page_bytes));
    m->table = present(calloc((size_t)m->page_count, sizeof *m->table));
    for (int64_t i = 0; i < m->page_count; i++) m->table[i] = (int32_t)i;
}

/* ---- Running ----------------------------------------------------------------------------------------------------------- */

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

/* Writes the embeddings of tokens as f32. Linear layers convert the type of a row, as a matrix [groups, channels of a group] that
 * is multiplied by the identity, which gives [channels of a group, groups]. */
static void embed(model *m, const int32_t *tokens, int64_t n, float *to) {
    static float identity[256 * 256];
    const weights *e = &m->embedding;
    int64_t group = 1;
    while (rapt_row_bytes(e->layout.type, group) < 0) group *= 2;
    const int64_t groups = m->width / group;
    const rapt_layout layout = rapt_layout_bshd(e->layout.type, 1, groups, group);
    for (int64_t i = 0; i < group; i++) identity[i * group + i] = 1;
    for (const float *part = m->y.at; n--; tokens++) {
        const weights row = {(const char *)e->at + *tokens * e->layout.token_stride, layout, groups, group};
        linear(m, &row, NULL, NULL, group, identity, m->y.at, groups, false);
        for (int64_t i = 0; i < m->width; i++) *to++ = part[i % group * groups + i / group];
    }
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
    float *x = reserve(&m->x, n * width * FLOAT), *y = reserve(&m->y, n * (q > width ? q : width) * FLOAT);
    float *qkv = reserve(&m->qkv, n * row * FLOAT), *gated = reserve(&m->gated, n * m->inner * FLOAT);
    const int32_t start = (int32_t)m->tokens;
    rapt_decode_plan plan;
    rapt_decode_args args;
    rapt_args attention;
    plan_attention(m, n, row, &plan);
    rapt_args_init(&attention), rapt_decode_args_init(&args);
    attention.q = qkv, attention.o = y, attention.table = m->table;
    args.attention = &attention, args.starts = &start, args.new_k = qkv + q, args.new_v = qkv + q + kv;
    must(rapt_decode_workspace_size(&plan, threads, &args.workspace_bytes));
    embed(m, tokens, n, x);
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
