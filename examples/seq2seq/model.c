/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "aligned.h"
#include "model.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The file -------------------------------------------------------------------------------------------------------- */

#define MAX_LAYERS 1000

/* Reads tensors: the first that is not as it should be fills error, and those after it change nothing. */
typedef struct loader {
    const safetensors_file *file;
    char *error;
    int failed;
} loader;

__attribute__((format(printf, 2, 3))) static int refuse(loader *l, const char *format, ...) {
    if (l->failed) return -1;
    l->failed = 1;
    va_list args;
    va_start(args, format);
    vsnprintf(l->error, SAFETENSORS_FAULT_BYTES, format, args);
    va_end(args);
    return -1;
}

/* Of shape [rows, columns], or [rows] where rank is 1. */
static const float *load_floats(loader *l, const char *prefix, const char *name, int rank, int64_t rows, int64_t columns) {
    char full[160];
    const int64_t dims[2] = {rows, columns};
    snprintf(full, sizeof full, "%s%s", prefix, name);
    const float *floats = l->failed ? NULL : safetensors_f32(l->file, full, rank, dims, l->error);
    l->failed = !floats;
    return floats;
}

static matrix load_matrix(loader *l, const char *prefix, const char *weight, const char *bias, int64_t out, int64_t in) {
    char full[160];
    const int64_t dims[2] = {out, in};
    snprintf(full, sizeof full, "%s%s", prefix, weight);
    const safetensors_tensor *t = l->failed ? NULL : safetensors_shaped(l->file, full, 2, dims, l->error);
    l->failed = !t;
    if (!t) return (matrix){0};
    if (t->type != RAPT_F32 && t->type != RAPT_F16 && t->type != RAPT_BF16)
        refuse(l, "tensor '%s' is of type %s, F32, F16 or BF16 is needed", full, t->dtype);
    return (matrix){t->data, {t->type, 0, 0, rapt_row_bytes(t->type, in)}, load_floats(l, prefix, bias, 1, out, 0)};
}

static norm load_norm(loader *l, const char *prefix, const char *name, int64_t width) {
    char full[128];
    snprintf(full, sizeof full, "%s%s.", prefix, name);
    return (norm){load_floats(l, full, "weight", 1, width, 0), load_floats(l, full, "bias", 1, width, 0)};
}

static attention load_attention(loader *l, const char *prefix, const char *name, const char *its_norm, int64_t width) {
    char full[128];
    snprintf(full, sizeof full, "%s%s.", prefix, name);
    return (attention){load_matrix(l, full, "in_proj_weight", "in_proj_bias", 3 * width, width),
                       load_matrix(l, full, "out_proj.weight", "out_proj.bias", width, width),
                       load_norm(l, prefix, its_norm, width)};
}

/* The layers name.layers.0, 1, ..., as torch.nn.TransformerEncoder and TransformerDecoder call what is in them. */
static layer *load_layers(loader *l, const model *m, const char *name, int *count) {
    char prefix[64];
    const int decoder = !strcmp(name, "decoder");
    for (*count = 0; *count < MAX_LAYERS; ++*count) {
        snprintf(prefix, sizeof prefix, "%s.layers.%d.norm1.weight", name, *count);
        if (!safetensors_find(l->file, prefix)) break;
    }
    if (!*count) return refuse(l, "it has no tensor '%s'", prefix), NULL;
    layer *layers = calloc((size_t)*count, sizeof *layers);
    if (!layers) return refuse(l, "out of memory"), NULL;
    for (int i = 0; i < *count && !l->failed; i++) {
        snprintf(prefix, sizeof prefix, "%s.layers.%d.", name, i);
        layers[i].self = load_attention(l, prefix, "self_attn", "norm1", m->width);
        if (decoder) layers[i].cross = load_attention(l, prefix, "multihead_attn", "norm2", m->width);
        layers[i].feed_forward = (feed_forward){load_matrix(l, prefix, "linear1.weight", "linear1.bias", m->inner, m->width),
                                                load_matrix(l, prefix, "linear2.weight", "linear2.bias", m->width, m->inner),
                                                load_norm(l, prefix, decoder ? "norm3" : "norm2", m->width)};
    }
    return layers;
}

static int load_all(loader *l, model *m) {
    const char *pieces = safetensors_metadata(l->file, "pieces"), *heads = safetensors_metadata(l->file, "heads");
    if (!pieces || !heads) return refuse(l, "its metadata has no 'pieces' or no 'heads'");
    if (vocabulary_init(&m->vocabulary, pieces)) return refuse(l, "out of memory");
    if (m->vocabulary.count <= CONTROL_TOKENS) return refuse(l, "its metadata has only %d pieces", m->vocabulary.count);
    for (int i = 0; i < m->vocabulary.count; i++)
        if (!*m->vocabulary.pieces[i]) return refuse(l, "piece %d is empty", i);
    const safetensors_tensor *embedding = safetensors_find(l->file, "embedding.weight");
    if (!embedding || embedding->rank != 2) return refuse(l, "it has no matrix 'embedding.weight'");
    m->width = embedding->dims[1];
    if (m->width < 2 || m->width % 2 || m->width > RAPT_MAX_WIDTH / 3)
        return refuse(l, "a width of %lld is not possible", (long long)m->width);
    char *end;
    const long number = strtol(heads, &end, 10);
    if (*end || end == heads || number < 1 || number > m->width || m->width % number || m->width / number > RAPT_MAX_HEAD_DIM)
        return refuse(l, "'%.20s' heads are not possible with a width of %lld", heads, (long long)m->width);
    m->heads = number;
    const safetensors_tensor *inner = safetensors_find(l->file, "encoder.layers.0.linear1.weight");
    if (!inner || inner->rank != 2 || inner->dims[0] < 1 || inner->dims[0] > RAPT_MAX_WIDTH)
        return refuse(l, "it has no matrix 'encoder.layers.0.linear1.weight'");
    m->inner = inner->dims[0];
    m->embedding = load_floats(l, "", "embedding.weight", 2, m->vocabulary.count, m->width);
    m->encoder = load_layers(l, m, "encoder", &m->encoder_layers);
    m->decoder = load_layers(l, m, "decoder", &m->decoder_layers);
    return -l->failed;
}

int model_open(model *m, const char *path, char error[SAFETENSORS_FAULT_BYTES]) {
    *m = (model){0};
    if (!safetensors_open(&m->file, path, error)) return -1;
    loader l = {&m->file, error, 0};
    if (load_all(&l, m)) model_close(m);
    return -l.failed;
}

void model_close(model *m) {
    free(m->encoder);
    free(m->decoder);
    vocabulary_free(&m->vocabulary);
    safetensors_close(&m->file);
    *m = (model){0};
}

/* ---- What it is made of ---------------------------------------------------------------------------------------------- */

/* All is checked before the first call, so an error here is one of this program or of memory. */
static void must(rapt_status status, const char *what) {
    if (status == RAPT_OK) return;
    fprintf(stderr, "seq2seq: %s: %s\n", what, rapt_status_string(status));
    exit(2);
}

void *present(void *memory) {
    if (memory) return memory;
    fprintf(stderr, "seq2seq: out of memory\n");
    exit(2);
}

/* At least `bytes` bytes; what was there is lost where it grows. */
static void *reserve(room *area, int64_t bytes) {
    if ((size_t)bytes > area->bytes) {
        aligned_destroy(area->at);
        area->bytes = ((size_t)bytes + RAPT_WORKSPACE_ALIGNMENT - 1) / RAPT_WORKSPACE_ALIGNMENT * RAPT_WORKSPACE_ALIGNMENT;
        area->at = present(aligned_create(RAPT_WORKSPACE_ALIGNMENT, area->bytes));
    }
    return area->at;
}

/* One for each layer of the decoder. */
static room *rooms(const model *m) { return present(calloc((size_t)m->decoder_layers, sizeof(room))); }

static rapt_layout rows_of(int64_t channels) {
    const int64_t bytes = rapt_row_bytes(RAPT_F32, channels);
    return (rapt_layout){RAPT_F32, bytes, 0, bytes};
}

/* y = activation(x W^T + b) + residual */
static void linear(runner *r, const matrix *w, int64_t rows, int64_t in, int64_t out, const float *x, rapt_activation activation,
                   const float *residual, float *y) {
    const int64_t threads = rapt_pool_threads(r->pool);
    rapt_linear_desc desc;
    rapt_linear_desc_init(&desc);
    desc.tokens = rows, desc.in = in, desc.out = out;
    desc.x = rows_of(in), desc.y = rows_of(out), desc.weight = w->layout;
    if (residual) desc.residual = desc.y;
    desc.activation = activation;
    rapt_linear_plan plan;
    size_t bytes;
    must(rapt_linear_plan_init(&plan, &desc), "rapt_linear_plan_init");
    must(rapt_linear_workspace_size(&plan, threads, &bytes), "rapt_linear_workspace_size");
    rapt_linear_args args;
    rapt_linear_args_init(&args);
    args.x = x, args.weight = w->weight, args.bias = w->bias, args.residual = residual, args.y = y;
    args.workspace = reserve(&r->workspace, (int64_t)bytes), args.workspace_bytes = bytes;
    must(rapt_linear_run_parallel(&plan, &args, threads, rapt_pool_for, r->pool), "rapt_linear_run_parallel");
}

static void normalise(runner *r, const norm *n, int64_t rows, float *x) {
    rapt_norm_args args;
    rapt_norm_args_init(&args);
    args.tokens = rows, args.channels = r->model->width;
    args.x = args.y = rows_of(args.channels);
    args.from = args.to = x, args.weight = n->weight, args.bias = n->bias;
    must(rapt_layer_norm_run_parallel(&args, rapt_pool_threads(r->pool), rapt_pool_for, r->pool), "rapt_layer_norm_run_parallel");
}

/* x = LayerNorm(x + sublayer(x)), section 3.1, for both kinds of sublayer. */
static void feed(runner *r, const feed_forward *f, int64_t rows, float *x) {
    const model *m = r->model;
    float *hidden = reserve(&r->hidden, rows * rapt_row_bytes(RAPT_F32, m->inner));
    linear(r, &f->in, rows, m->width, m->inner, x, RAPT_RELU, NULL, hidden);
    linear(r, &f->out, rows, m->inner, m->width, hidden, RAPT_ACTIVATION_NONE, x, x);
    normalise(r, &f->norm, rows, x);
}

/* What one attention has and others have not, for attend. */
typedef struct attending {
    rapt_desc shape;
    rapt_mha_desc desc;
    rapt_args args;
    rapt_mha_args mha_args;
} attending;

static void attending_init(attending *a) {
    rapt_desc_init(&a->shape);
    rapt_mha_desc_init(&a->desc);
    rapt_args_init(&a->args);
    rapt_mha_args_init(&a->mha_args);
}

static void attend(runner *r, const attention *weights, attending *a, int64_t rows, float *x) {
    const model *m = r->model;
    const int64_t threads = rapt_pool_threads(r->pool);
    a->shape.heads = a->shape.kv_heads = m->heads;
    a->shape.d_k = a->shape.d_v = m->width / m->heads;
    a->shape.threads = threads;
    a->desc.attention = &a->shape;
    a->desc.x_width = m->width;
    a->desc.x = a->desc.out = a->desc.residual = rows_of(m->width);
    a->desc.wq = weights->in.layout, a->desc.packed = 1;
    a->desc.wo = weights->out.layout;
    rapt_mha_plan plan;
    size_t bytes;
    must(rapt_mha_plan_init(&plan, &a->desc), "rapt_mha_plan_init");
    must(rapt_mha_workspace_size(&plan, threads, &bytes), "rapt_mha_workspace_size");
    rapt_mha_args *args = &a->mha_args;
    args->attention = &a->args;
    args->x = args->residual = args->out = x;
    args->wq = weights->in.weight, args->bq = weights->in.bias;
    args->wo = weights->out.weight, args->bo = weights->out.bias;
    args->workspace = reserve(&r->workspace, (int64_t)bytes), args->workspace_bytes = bytes;
    must(rapt_mha_run_parallel(&plan, args, threads, rapt_pool_for, r->pool), "rapt_mha_run_parallel");
    normalise(r, &weights->norm, rows, x);
}

/* Queries and keys of several entries, one after the other: entry b's queries see entry b's keys only. */
static void attend_ragged(runner *r, const attention *weights, attending *a, int64_t entries, const int32_t *q_starts,
                          const int32_t *k_starts, rapt_causal causal, float *x) {
    a->shape.batch = entries;
    a->shape.q_len = q_starts[entries], a->shape.q_starts = q_starts;
    a->shape.k_starts = k_starts;
    a->shape.causal = causal;
    attend(r, weights, a, q_starts[entries], x);
}

/* Section 3.4 and 3.5: the row of a token, times sqrt(width), and that of its position. */
static void embed(runner *r, int32_t token, int64_t position, float *row) {
    const model *m = r->model;
    if (position >= r->positions) {
        const int64_t positions = 2 * position + 64;
        float *table = reserve(&r->table, positions * rapt_row_bytes(RAPT_F32, m->width));
        must(rapt_sinusoidal(0, positions, m->width, table), "rapt_sinusoidal");
        r->positions = positions;
    }
    const float factor = sqrtf((float)m->width), *from = m->embedding + token * m->width;
    const float *at = (const float *)r->table.at + position * m->width;
    for (int64_t i = 0; i < m->width; i++) row[i] = from[i] * factor + at[i];
}

static void embed_ragged(runner *r, int64_t entries, const int32_t *starts, const int32_t *tokens, float *x) {
    for (int64_t b = 0; b < entries; b++)
        for (int32_t i = starts[b]; i < starts[b + 1]; i++) embed(r, tokens[i], i - starts[b], x + i * r->model->width);
}

/* The embedding is the output's matrix, too. */
static void predict(runner *r, int64_t rows, const float *x, float *logits) {
    const model *m = r->model;
    const matrix w = {m->embedding, rows_of(m->width), NULL};
    linear(r, &w, rows, m->width, m->vocabulary.count, x, RAPT_ACTIVATION_NONE, NULL, logits);
}

/* ---- The encoder and the decoder ------------------------------------------------------------------------------------- */

void encode(runner *r, const int32_t *tokens, encoding *memory) {
    const model *m = r->model;
    const int64_t rows = memory->starts[memory->entries], row_bytes = rapt_row_bytes(RAPT_F32, m->width);
    float *x = reserve(&memory->output, rows * row_bytes);
    embed_ragged(r, memory->entries, memory->starts, tokens, x);
    for (int i = 0; i < m->encoder_layers; i++) {
        attending a;
        attending_init(&a);
        attend_ragged(r, &m->encoder[i].self, &a, memory->entries, memory->starts, memory->starts, RAPT_CAUSAL_NONE, x);
        feed(r, &m->encoder[i].feed_forward, rows, x);
    }
    if (!memory->keys_values) memory->keys_values = rooms(m);
    for (int i = 0; i < m->decoder_layers; i++) {
        matrix keys_values = m->decoder[i].cross.in; /* without the rows of Wq */
        keys_values.weight = (const char *)keys_values.weight + m->width * keys_values.layout.token_stride;
        keys_values.bias += m->width;
        float *y = reserve(&memory->keys_values[i], rows * 2 * row_bytes);
        linear(r, &keys_values, rows, m->width, 2 * m->width, x, RAPT_ACTIVATION_NONE, NULL, y);
    }
}

void decode_step(runner *r, const encoding *memory, caches *c, const int32_t *row_starts, const int32_t *tokens, float *logits) {
    const model *m = r->model;
    const int64_t rows = c->rows, d = m->width / m->heads, row_bytes = rapt_row_bytes(RAPT_F32, m->width);
    float *x = reserve(&r->rows, rows * row_bytes);
    for (int64_t i = 0; i < rows; i++) embed(r, tokens[i], c->tokens, x + i * m->width);
    int32_t *starts = reserve(&r->lengths, 2 * rows * (int64_t)sizeof *starts), *lengths = starts + rows;
    for (int64_t i = 0; i < rows; i++) starts[i] = (int32_t)c->tokens, lengths[i] = starts[i] + 1;
    for (int i = 0; i < m->decoder_layers; i++) {
        const layer *l = &m->decoder[i];
        attending a;
        attending_init(&a);
        a.shape.batch = rows, a.shape.q_len = 1, a.shape.kv_len = c->room_for;
        a.shape.k = a.shape.v = (rapt_layout){RAPT_F32, c->room_for * 2 * row_bytes, rapt_row_bytes(RAPT_F32, d), 2 * row_bytes};
        a.mha_args.k_cache = c->layers[i].at, a.mha_args.v_cache = (char *)a.mha_args.k_cache + row_bytes;
        a.mha_args.starts = starts, a.args.kv_lengths = lengths;
        attend(r, &l->self, &a, rows, x);

        attending_init(&a);
        /* No keys are new: those of the memory, ragged as its tokens are. */
        a.desc.y = rows_of(m->width), a.desc.keys = 0;
        a.shape.kv_len = memory->starts[memory->entries];
        a.shape.k = a.shape.v = (rapt_layout){RAPT_F32, 0, rapt_row_bytes(RAPT_F32, d), 2 * row_bytes};
        a.mha_args.k_cache = memory->keys_values[i].at, a.mha_args.v_cache = (char *)a.mha_args.k_cache + row_bytes;
        attend_ragged(r, &l->cross, &a, memory->entries, row_starts, memory->starts, RAPT_CAUSAL_NONE, x);

        feed(r, &l->feed_forward, rows, x);
    }
    c->tokens++;
    predict(r, rows, x, logits);
}

void decode_all(runner *r, const encoding *memory, const int32_t *starts, const int32_t *tokens, float *logits) {
    const model *m = r->model;
    const int64_t rows = starts[memory->entries];
    float *x = reserve(&r->rows, rows * rapt_row_bytes(RAPT_F32, m->width));
    embed_ragged(r, memory->entries, starts, tokens, x);
    for (int i = 0; i < m->decoder_layers; i++) {
        const layer *l = &m->decoder[i];
        attending a;
        attending_init(&a);
        attend_ragged(r, &l->self, &a, memory->entries, starts, starts, RAPT_CAUSAL_BOTTOM_RIGHT, x);

        attending_init(&a);
        a.desc.y = rows_of(m->width), a.desc.keys = memory->starts[memory->entries];
        a.mha_args.y = memory->output.at;
        attend_ragged(r, &l->cross, &a, memory->entries, starts, memory->starts, RAPT_CAUSAL_NONE, x);

        feed(r, &l->feed_forward, rows, x);
    }
    predict(r, rows, x, logits);
}

/* ---- Caches ---------------------------------------------------------------------------------------------------------- */

static int64_t cache_row_bytes(const runner *r, const caches *c) {
    return c->room_for * 2 * rapt_row_bytes(RAPT_F32, r->model->width);
}

void caches_start(const runner *r, caches *c, int64_t rows, int64_t tokens) {
    if (!c->layers) c->layers = rooms(r->model), c->spare = rooms(r->model);
    c->rows = rows, c->room_for = tokens, c->tokens = 0;
    for (int i = 0; i < r->model->decoder_layers; i++) reserve(&c->layers[i], rows * cache_row_bytes(r, c));
}

void caches_choose(const runner *r, caches *c, const int32_t *parents, int64_t rows) {
    int64_t same = 0;
    while (same < rows && parents[same] == same) same++;
    c->rows = rows;
    if (same == rows) return;
    const int64_t bytes = cache_row_bytes(r, c), used = c->tokens * 2 * rapt_row_bytes(RAPT_F32, r->model->width);
    for (int i = 0; i < r->model->decoder_layers; i++) {
        char *to = reserve(&c->spare[i], rows * bytes);
        const char *from = c->layers[i].at;
        for (int64_t row = 0; row < rows; row++) memcpy(to + row * bytes, from + parents[row] * bytes, (size_t)used);
    }
    room *layers = c->layers;
    c->layers = c->spare, c->spare = layers;
}

static void rooms_free(const runner *r, room *rooms) {
    for (int i = 0; rooms && i < r->model->decoder_layers; i++) aligned_destroy(rooms[i].at);
    free(rooms);
}

void caches_free(const runner *r, caches *c) {
    rooms_free(r, c->layers);
    rooms_free(r, c->spare);
    *c = (caches){0};
}

void encoding_free(const runner *r, encoding *memory) {
    aligned_destroy(memory->output.at);
    rooms_free(r, memory->keys_values);
    memory->output = (room){0}, memory->keys_values = NULL;
}

void runner_free(runner *r) {
    aligned_destroy(r->table.at);
    aligned_destroy(r->workspace.at);
    aligned_destroy(r->rows.at);
    aligned_destroy(r->lengths.at);
    aligned_destroy(r->hidden.at);
}
