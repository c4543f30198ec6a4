/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "aligned.h"
#include "cli.h"
#include "convert.h"
#include "model.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { FLOAT = sizeof(float) };

void *present(void *memory) {
    if (!memory) exit(cli_fail("llm", "%s", strerror(ENOMEM)));
    return memory;
}

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

/* Writes n elements as f32. Scales times numbers are exact there, so that nothing is rounded but, once, the sum with a minimum,
 * as rapt has it for such types of K and V. */
static void to_floats(const gguf_type *type, const uint8_t *at, int64_t n, float *to) {
    for (; n > 0; n -= type->group, at += type->bytes, to += type->group) {
        const float s = type->group > 1 ? half(at + (type->number == GGUF_Q6_K ? 208 : 0)) : 0;
        const float m = type->number == GGUF_Q4_1 || type->number == GGUF_Q4_K ? half(at + 2) : 0;
        if (type->number == GGUF_Q8_0)
            for (int i = 0; i < 32; i++) to[i] = s * (float)(int8_t)at[2 + i];
        else if (type->number == GGUF_Q4_0)
            for (int i = 0; i < 16; i++)
                to[i] = s * (float)((at[2 + i] & 15) - 8), to[i + 16] = s * (float)((at[2 + i] >> 4) - 8);
        else if (type->number == GGUF_Q4_1)
            for (int i = 0; i < 16; i++) to[i] = s * (float)(at[4 + i] & 15) + m, to[i + 16] = s * (float)(at[4 + i] >> 4) + m;
        else if (type->number == GGUF_Q4_K) /* 8 parts of 32, each with a scale and a minimum of 6 bits */
            for (int i = 0; i < 256; i++) {
                const uint8_t *b = at + 4 + i / 32 % 4, byte = at[16 + i / 64 * 32 + i % 32];
                const int scale = i < 128 ? b[0] & 63 : (b[8] & 15) | b[0] >> 6 << 4;
                const int least = i < 128 ? b[4] & 63 : b[8] >> 4 | b[4] >> 6 << 4;
                to[i] = s * (float)scale * (float)(i & 32 ? byte >> 4 : byte & 15) - m * (float)least;
            }
        else if (type->number == GGUF_Q6_K) /* 16 parts of 16, each with a scale; 4 low bits of each number, and 2 high ones */
            for (int i = 0; i < 256; i++) {
                const int low = at[i / 128 * 64 + i % 64] >> (i & 64 ? 4 : 0) & 15;
                const int high = at[128 + i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3;
                to[i] = s * (float)(int8_t)at[192 + i / 16] * (float)((low | high << 4) - 32);
            }
        else *to = convert_to_float(type->same, (uint32_t)gguf_load(at, type->bytes));
    }
}

static void row_to_floats(const gguf_tensor *t, int64_t row, float *to) {
    to_floats(t->type, t->data + row * (t->dims[0] / t->type->group * t->type->bytes), t->dims[0], to);
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
static bool is_taken(const gguf_type *type) {
    const rapt_type_class tensors = rapt_type_class_of(type->same);
    return tensors == RAPT_CLASS_WEIGHT || (tensors == RAPT_CLASS_ELEMENT && *(const uint8_t *)&(const uint16_t){1});
}

/* out: 0 for a vector, which is always converted, for arrays have to be aligned. */
static bool load(model *m, const char *name, int64_t out, int64_t in, bool optional, weights *w, char *fault) {
    gguf_tensor *t = gguf_find(m->file, name);
    const int64_t rows = out ? out : 1;
    if (!t) return optional || gguf_say(fault, "it has no tensor '%s'", name);
    if (t->dims[0] != in || t->dims[1] != rows || t->dims[2] != 1 || t->dims[3] != 1)
        return gguf_say(fault, "tensor '%s' must have the shape [%lld, %lld]", name, (long long)in, (long long)rows);
    if (!t->type) return gguf_say(fault, "tensor '%s' is of a type that is not read here", name);
    t->used = true;
    *w = (weights){t->data, NULL, rapt_layout_bshd(t->type->same, 1, rows, in), rows, in};
    if (out && is_taken(t->type)) return true;
    w->at = w->converted = present(calloc((size_t)rows, (size_t)in * FLOAT));
    w->layout = rapt_layout_bshd(RAPT_F32, 1, rows, in);
    rapt_pool_for(m->pool, rows, convert_row, &(conversion){t, w->converted});
    return true;
}

static bool load_layer(model *m, int64_t layer, char *fault) {
    static const char *const names[IN_A_LAYER] = {
        "attn_q.weight",      "attn_k.weight",   "attn_v.weight",    "attn_output.weight", "ffn_gate.weight",
        "ffn_up.weight",      "ffn_down.weight", "attn_norm.weight", "ffn_norm.weight",    "attn_q_norm.weight",
        "attn_k_norm.weight", "attn_q.bias",     "attn_k.bias",      "attn_v.bias"};
    const int64_t q = m->heads * m->d, kv = m->kv_heads * m->d, w = m->width, d = m->d, inner = m->inner;
    const int64_t out[IN_A_LAYER] = {q, kv, kv, w, inner, inner, w},
                  in[IN_A_LAYER] = {w, w, w, q, w, w, inner, w, w, d, d, q, kv, kv};
    char name[64];
    for (int i = 0; i < IN_A_LAYER; i++) {
        snprintf(name, sizeof name, "blk.%lld.%s", (long long)layer, names[i]);
        if (!load(m, name, out[i], in[i], i >= Q_NORM, &m->layers[layer][i], fault)) return false;
    }
    return true;
}

static double number(const model *m, const char *name, double otherwise) {
    char key[160];
    snprintf(key, sizeof key, "%.*s.%s", GGUF_SHOWN(gguf_string(m->file, "general.architecture")), name);
    return gguf_number(m->file, key, otherwise);
}

/* An integer from 1 to most. */
static bool size(const model *m, const char *name, int64_t otherwise, int64_t most, int64_t *to, char *fault) {
    const double n = number(m, name, (double)otherwise);
    *to = n >= 1 && n <= (double)most ? (int64_t)n : 0;
    if (*to >= 1 && (double)*to == n) return true;
    gguf_say(fault, "it has no possible %s", name);
    return false;
}

static bool load_sizes(model *m, char *fault) {
    static const char *const families[] = {"llama", "qwen2", "qwen3"};
    const gguf_text family = gguf_string(m->file, "general.architecture");
    int64_t d_v;
    int f = 0;
    while (f < 3 && !gguf_is(family, families[f])) f++;
    if (f == 3) return gguf_say(fault, "its architecture is '%.*s'; llama, qwen2 and qwen3 are known", GGUF_SHOWN(family));
    if (!size(m, "block_count", 0, 10000, &m->layer_count, fault) ||
        !size(m, "context_length", 0, RAPT_MAX_LENGTH / 2, &m->context, fault) ||
        !size(m, "embedding_length", 0, RAPT_MAX_WIDTH, &m->width, fault) ||
        !size(m, "feed_forward_length", 0, RAPT_MAX_WIDTH, &m->inner, fault) ||
        !size(m, "attention.head_count", 0, RAPT_MAX_WIDTH, &m->heads, fault) ||
        !size(m, "attention.head_count_kv", m->heads, m->heads, &m->kv_heads, fault) ||
        !size(m, "attention.key_length", m->width / m->heads, RAPT_MAX_HEAD_DIM, &m->d, fault) ||
        !size(m, "attention.value_length", m->d, RAPT_MAX_HEAD_DIM, &d_v, fault) ||
        !size(m, "attention.sliding_window", RAPT_MAX_LENGTH, RAPT_MAX_LENGTH, &m->window, fault) ||
        !size(m, "rope.dimension_count", m->d, m->d, &m->rope.channels, fault))
        return false;
    m->epsilon = (float)number(m, "attention.layer_norm_rms_epsilon", -1);
    m->rope.interleaved = f == 0; /* files of "llama" have the channels of a pair side by side, others half a head apart */
    m->rope.frequencies = m->frequencies, m->rope.amplitude = 1;
    if (m->heads % m->kv_heads || m->heads * m->d > RAPT_MAX_WIDTH || d_v != m->d || !(m->epsilon >= 0 && m->epsilon <= 1) ||
        number(m, "rope.scaling.factor", 1) != 1 ||
        rapt_rope_frequencies(number(m, "rope.freq_base", 10000), m->rope.channels, m->frequencies) != RAPT_OK)
        return gguf_say(fault, "its heads, norms or positions are of a kind that is not known here");
    gguf_tensor *embedding = gguf_find(m->file, "token_embd.weight");
    if (!embedding || !embedding->type || embedding->dims[0] != m->width || embedding->dims[1] > RAPT_MAX_WIDTH ||
        embedding->dims[1] < (int64_t)gguf_texts(m->file, "tokenizer.ggml.tokens").count)
        return gguf_say(fault, "it has no possible tensor 'token_embd.weight'");
    embedding->used = true, m->embedding = embedding, m->vocabulary = embedding->dims[1];
    m->page_bytes = m->layer_count * 2 * m->kv_heads * PAGE_TOKENS * rapt_row_bytes(m->cache, m->d);
    return m->page_bytes > 0 || gguf_say(fault, "heads of %d channels cannot be stored in that cache", (int)m->d);
}

bool model_open(model *m, gguf *file, rapt_type cache, rapt_pool *pool, progress tell, char fault[GGUF_FAULT_BYTES]) {
    const char *head = gguf_find(file, "output.weight") ? "output.weight" : "token_embd.weight";
    weights factors = {0}; /* by which Llama 3.1 divides frequencies */
    *m = (model){.file = file, .cache = cache, .pool = pool};
    if (!load_sizes(m, fault) || !load(m, head, m->vocabulary, m->width, false, &m->head, fault) ||
        !load(m, "output_norm.weight", 0, m->width, false, &m->norm, fault) ||
        !load(m, "rope_freqs.weight", 0, m->rope.channels / 2, true, &factors, fault))
        return false;
    for (int64_t i = 0; factors.at && i < m->rope.channels / 2; i++) m->frequencies[i] /= (double)factors.converted[i];
    free(factors.converted);
    m->layers = present(calloc((size_t)m->layer_count, sizeof *m->layers));
    for (int64_t i = 0; i < m->layer_count; i++) {
        if (!load_layer(m, i, fault)) return false;
        tell("reading: layer", i + 1, m->layer_count);
    }
    for (gguf_tensor *t = file->tensors; t < file->tensors + file->tensor_count; t++)
        if (!t->used) return gguf_say(fault, "it has a tensor '%.*s', for which there is no use here", GGUF_SHOWN(t->name));
    return true;
}

void model_close(model *m) {
    room *const rooms[] = {&m->x, &m->y, &m->qkv, &m->gated, &m->logits, &m->workspace};
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) aligned_destroy(rooms[i]->at);
    for (int64_t i = 0; m->layers && i < m->layer_count * IN_A_LAYER; i++)
        free(m->layers[i / IN_A_LAYER][i % IN_A_LAYER].converted);
    free(m->layers);
    free(m->norm.converted);
    free(m->head.converted);
    free(m->pages);
    free(m->table);
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
    const int64_t pages = (tokens + PAGE_TOKENS - 1) / PAGE_TOKENS;
    if (pages <= m->page_count) return;
    m->pages = present((uint64_t)(pages * m->page_bytes) > SIZE_MAX ? NULL : realloc(m->pages, (size_t)(pages * m->page_bytes)));
    m->table = present(realloc(m->table, (size_t)pages * sizeof *m->table));
    memset(m->pages + m->page_count * m->page_bytes, 0, (size_t)((pages - m->page_count) * m->page_bytes));
    for (; m->page_count < pages; m->page_count++) m->table[m->page_count] = (int32_t)m->page_count;
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
    model_reserve(m, m->tokens + n);
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
