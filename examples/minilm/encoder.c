/* SPDX-License-Identifier: Apache-2.0 */
#include "encoder.h"
#include "rapt_layer.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The weights --------------------------------------------------------------------------------------------------------- */

typedef struct loader {
    const safetensors_file *file;
    char *fault; /* "" as long as all is well */
} loader;

static const float *load(loader *from, const char *prefix, const char *name, int dims, int64_t rows, int64_t columns) {
    char full[160];
    const int64_t shape[2] = {rows, columns};
    snprintf(full, sizeof full, "%s%s", prefix, name);
    return *from->fault ? NULL : safetensors_f32(from->file, full, dims, shape, from->fault);
}

static encoder_linear load_linear(loader *from, const char *prefix, const char *name, int64_t in, int64_t out) {
    char full[128];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    return (encoder_linear){load(from, full, ".weight", 2, out, in), load(from, full, ".bias", 1, out, 0)};
}

static encoder_linear load_norm(loader *from, const char *prefix, const char *name) {
    char full[128];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    return (encoder_linear){load(from, full, ".weight", 1, ENCODER_WIDTH, 0), load(from, full, ".bias", 1, ENCODER_WIDTH, 0)};
}

static bool load_all(encoder *e, char fault[ENCODER_FAULT_BYTES]) {
    loader from = {&e->file, fault};
    const int64_t width = ENCODER_WIDTH, inner = ENCODER_INNER;
    *fault = '\0';
    e->words = load(&from, "embeddings.", "word_embeddings.weight", 2, ENCODER_VOCABULARY, width);
    e->positions = load(&from, "embeddings.", "position_embeddings.weight", 2, ENCODER_MOST_TOKENS, width);
    e->types = load(&from, "embeddings.", "token_type_embeddings.weight", 2, 2, width);
    e->norm = load_norm(&from, "embeddings.", "LayerNorm");
    for (int i = 0; i < ENCODER_LAYERS; i++) {
        char at[32];
        snprintf(at, sizeof at, "encoder.layer.%d.", i);
        encoder_layer *layer = &e->layers[i];
        layer->query = load_linear(&from, at, "attention.self.query", width, width);
        layer->key = load_linear(&from, at, "attention.self.key", width, width);
        layer->value = load_linear(&from, at, "attention.self.value", width, width);
        layer->attention = load_linear(&from, at, "attention.output.dense", width, width);
        layer->attention_norm = load_norm(&from, at, "attention.output.LayerNorm");
        layer->inner = load_linear(&from, at, "intermediate.dense", width, inner);
        layer->outer = load_linear(&from, at, "output.dense", inner, width);
        layer->norm = load_norm(&from, at, "output.LayerNorm");
    }
    return !*fault;
}

bool encoder_open(encoder *e, const char *path, int64_t threads, const char *isa, rapt_arith arith,
                  char fault[ENCODER_FAULT_BYTES]) {
    *e = (encoder){.threads = threads, .isa = isa, .arith = arith};
    if (!safetensors_open(&e->file, path, fault)) return false;
    bool good = load_all(e, fault);
    if (good && !(e->pool = rapt_pool_create(threads))) {
        snprintf(fault, ENCODER_FAULT_BYTES, "%lld threads cannot be had", (long long)threads);
        good = false;
    }
    if (!good) encoder_close(e);
    return good;
}

void encoder_close(encoder *e) {
    rapt_pool_destroy(e->pool);
    safetensors_close(&e->file);
    free(e->memory);
    free(e->workspace);
    free(e->prepacked);
    *e = (encoder){.threads = 0};
}

/* ---- Running ------------------------------------------------------------------------------------------------------------- */

static rapt_status run_linear(encoder *e, const rapt_linear_plan *plan, encoder_linear weights, const void *prepacked,
                              const float *x, const float *residual, float *y) {
    rapt_linear_args args;
    rapt_linear_args_init(&args);
    args.prepacked = prepacked;
    args.x = x, args.weight = weights.weight, args.bias = weights.bias, args.residual = residual, args.y = y;
    args.workspace = e->workspace, args.workspace_bytes = e->workspace_bytes;
    return rapt_linear_run_parallel(plan, &args, e->threads, rapt_pool_for, e->pool);
}

static rapt_status run_norm(encoder *e, int64_t tokens, encoder_linear weights, float *x) {
    rapt_norm_args args;
    rapt_norm_args_init(&args);
    args.batch = 1, args.tokens = tokens, args.channels = ENCODER_WIDTH;
    args.x = args.y = rapt_layout_bshd(RAPT_F32, 1, tokens, ENCODER_WIDTH);
    args.from = args.to = x, args.weight = weights.weight, args.bias = weights.bias, args.epsilon = 1e-12f;
    args.isa = e->isa;
    return rapt_layer_norm_run_parallel(&args, e->threads, rapt_pool_for, e->pool);
}

/* What all layers of a batch have in common. */
typedef struct plans {
    rapt_mha_plan attention, watched;      /* watched: with weights */
    rapt_linear_plan inner, outer, square; /* square: of the four matrices of attention, to prepack them */
} plans;

static rapt_status plan_batch(const encoder *e, const int32_t *starts, int64_t sentences, bool watched, plans *p) {
    const int64_t tokens = starts[sentences];
    const rapt_layout narrow = rapt_layout_bshd(RAPT_F32, 1, tokens, ENCODER_WIDTH);
    const rapt_layout wide = rapt_layout_bshd(RAPT_F32, 1, tokens, ENCODER_INNER);
    const rapt_layout from_narrow = {.type = RAPT_F32, .token_stride = ENCODER_WIDTH * sizeof(float)};
    const rapt_layout from_wide = {.type = RAPT_F32, .token_stride = ENCODER_INNER * sizeof(float)};
    rapt_desc heads;
    rapt_desc_init(&heads);
    heads.batch = sentences, heads.heads = heads.kv_heads = ENCODER_HEADS, heads.q_len = tokens;
    heads.d_k = heads.d_v = ENCODER_WIDTH / ENCODER_HEADS;
    heads.q_starts = heads.k_starts = starts, heads.threads = e->threads, heads.isa = e->isa, heads.arith = e->arith;
    rapt_mha_desc mha;
    rapt_mha_desc_init(&mha);
    mha.attention = &heads, mha.x_width = ENCODER_WIDTH;
    mha.x = mha.out = mha.residual = narrow;
    mha.wq = mha.wk = mha.wv = mha.wo = from_narrow, mha.arith = e->arith;

    rapt_linear_desc inner, outer;
    rapt_linear_desc_init(&inner);
    inner.tokens = tokens, inner.in = ENCODER_WIDTH, inner.out = ENCODER_INNER, inner.isa = e->isa, inner.arith = e->arith;
    inner.x = narrow, inner.y = wide, inner.weight = from_narrow, inner.activation = RAPT_GELU;
    rapt_linear_desc_init(&outer);
    outer.tokens = tokens, outer.in = ENCODER_INNER, outer.out = ENCODER_WIDTH, outer.isa = e->isa, outer.arith = e->arith;
    outer.x = wide, outer.y = outer.residual = narrow, outer.weight = from_wide;

    rapt_status status = rapt_mha_plan_init(&p->attention, &mha);
    mha.weights = rapt_layout_bhsd(RAPT_F32, ENCODER_HEADS, tokens, tokens);
    if (status == RAPT_OK && watched) status = rapt_mha_plan_init(&p->watched, &mha);
    if (status == RAPT_OK) status = rapt_linear_plan_init(&p->inner, &inner);
    if (status == RAPT_OK) status = rapt_linear_plan_init(&p->outer, &outer);
    inner.out = ENCODER_WIDTH, inner.y = narrow;
    if (status == RAPT_OK) status = rapt_linear_plan_init(&p->square, &inner);
    return status;
}

typedef enum matrix { QUERY, KEY, VALUE, ATTENTION, INNER, OUTER } matrix;

/* Where one of them begins in what is prepacked of a layer, or after the last one, what that takes. */
static size_t matrix_offset(const encoder *e, int which) {
    const size_t squares = INNER * e->square_bytes;
    return which <= INNER ? (size_t)which * e->square_bytes : squares + e->inner_bytes + (which > OUTER ? e->outer_bytes : 0);
}

/* Where a matrix of a layer is prepacked; null where none is. */
static char *prepacked_of(const encoder *e, int layer, matrix which) {
    return e->prepacked ? e->prepacked + (size_t)layer * matrix_offset(e, OUTER + 1) + matrix_offset(e, (int)which) : NULL;
}

static rapt_status prepack_linear(encoder *e, const rapt_linear_plan *plan, const float *weight, char *to, size_t bytes) {
    rapt_linear_prepack_args args;
    rapt_linear_prepack_args_init(&args);
    args.weight = weight, args.prepacked = to, args.prepacked_bytes = bytes;
    return rapt_linear_prepack_run_parallel(plan, &args, e->threads, rapt_pool_for, e->pool);
}

static size_t aligned_size(size_t bytes) {
    return (bytes + RAPT_WORKSPACE_ALIGNMENT - 1) / RAPT_WORKSPACE_ALIGNMENT * RAPT_WORKSPACE_ALIGNMENT;
}

static rapt_status prepack_layer(encoder *e, const plans *p, int i) {
    const encoder_layer *layer = &e->layers[i];
    const struct {
        const rapt_linear_plan *plan;
        const float *weight;
        size_t bytes;
    } of[] = {[QUERY] = {&p->square, layer->query.weight, e->square_bytes},
              [KEY] = {&p->square, layer->key.weight, e->square_bytes},
              [VALUE] = {&p->square, layer->value.weight, e->square_bytes},
              [ATTENTION] = {&p->square, layer->attention.weight, e->square_bytes},
              [INNER] = {&p->inner, layer->inner.weight, e->inner_bytes},
              [OUTER] = {&p->outer, layer->outer.weight, e->outer_bytes}};
    rapt_status status = RAPT_OK;
    for (matrix m = QUERY; m <= OUTER && status == RAPT_OK; m++)
        status = prepack_linear(e, of[m].plan, of[m].weight, prepacked_of(e, i, m), of[m].bytes);
    return status;
}

/* Without memory for them weights stay as they are. */
static rapt_status prepack(encoder *e, const plans *p) {
    rapt_status status = rapt_linear_prepacked_size(&p->square, &e->square_bytes);
    if (status == RAPT_OK) status = rapt_linear_prepacked_size(&p->inner, &e->inner_bytes);
    if (status == RAPT_OK) status = rapt_linear_prepacked_size(&p->outer, &e->outer_bytes);
    if (status != RAPT_OK) return status;
    e->square_bytes = aligned_size(e->square_bytes);
    e->inner_bytes = aligned_size(e->inner_bytes), e->outer_bytes = aligned_size(e->outer_bytes);
    e->prepacked = aligned_alloc(RAPT_WORKSPACE_ALIGNMENT, ENCODER_LAYERS * matrix_offset(e, OUTER + 1));
    for (int i = 0; i < ENCODER_LAYERS && e->prepacked && status == RAPT_OK; i++) status = prepack_layer(e, p, i);
    if (status != RAPT_OK) {
        free(e->prepacked);
        e->prepacked = NULL;
    }
    return status;
}

/* The workspace that all plans of a batch can do with. */
static rapt_status workspace_size(const encoder *e, const plans *p, bool watched, size_t *bytes) {
    size_t needed[4] = {0};
    rapt_status status = rapt_mha_workspace_size(&p->attention, e->threads, &needed[0]);
    if (status == RAPT_OK) status = rapt_linear_workspace_size(&p->inner, e->threads, &needed[1]);
    if (status == RAPT_OK) status = rapt_linear_workspace_size(&p->outer, e->threads, &needed[2]);
    if (status == RAPT_OK && watched) status = rapt_mha_workspace_size(&p->watched, e->threads, &needed[3]);
    *bytes = 0;
    for (int i = 0; i < 4; i++)
        if (needed[i] > *bytes) *bytes = needed[i];
    return status;
}

static bool reserve(encoder *e, size_t floats, size_t workspace_bytes) {
    if (floats > e->memory_floats) {
        free(e->memory);
        e->memory = malloc(floats * sizeof *e->memory);
        e->memory_floats = e->memory ? floats : 0;
    }
    if (workspace_bytes > e->workspace_bytes) {
        free(e->workspace);
        workspace_bytes = aligned_size(workspace_bytes);
        e->workspace = aligned_alloc(RAPT_WORKSPACE_ALIGNMENT, workspace_bytes);
        e->workspace_bytes = e->workspace ? workspace_bytes : 0;
    }
    return e->memory && (e->workspace || !workspace_bytes);
}

static void embed(const encoder *e, const int32_t *ids, const int32_t *starts, int64_t sentences, float *x) {
    for (int64_t s = 0; s < sentences; s++)
        for (int64_t t = starts[s]; t < starts[s + 1]; t++) {
            const float *word = e->words + (size_t)ids[t] * ENCODER_WIDTH;
            const float *position = e->positions + (t - starts[s]) * ENCODER_WIDTH;
            for (int c = 0; c < ENCODER_WIDTH; c++) x[t * ENCODER_WIDTH + c] = word[c] + e->types[c] + position[c];
        }
}

/* All in place: x to x. */
static rapt_status run_layers(encoder *e, const plans *p, int64_t tokens, float *x, float *wide,
                              const encoder_attention *attention) {
    rapt_mha_args args;
    rapt_mha_args_init(&args);
    args.x = args.residual = args.out = x;
    args.workspace = e->workspace, args.workspace_bytes = e->workspace_bytes;
    rapt_status status = run_norm(e, tokens, e->norm, x);
    for (int i = 0; i < ENCODER_LAYERS && status == RAPT_OK; i++) {
        const encoder_layer *layer = &e->layers[i];
        args.wq = layer->query.weight, args.bq = layer->query.bias;
        args.wk = layer->key.weight, args.bk = layer->key.bias;
        args.wv = layer->value.weight, args.bv = layer->value.bias;
        args.wo = layer->attention.weight, args.bo = layer->attention.bias;
        args.wq_prepacked = prepacked_of(e, i, QUERY), args.wk_prepacked = prepacked_of(e, i, KEY);
        args.wv_prepacked = prepacked_of(e, i, VALUE), args.wo_prepacked = prepacked_of(e, i, ATTENTION);
        const bool watched = attention && attention->layer == i;
        args.weights = watched ? attention->weights : NULL;
        status = rapt_mha_run_parallel(watched ? &p->watched : &p->attention, &args, e->threads, rapt_pool_for, e->pool);
        if (status == RAPT_OK) status = run_norm(e, tokens, layer->attention_norm, x);
        if (status == RAPT_OK) status = run_linear(e, &p->inner, layer->inner, prepacked_of(e, i, INNER), x, NULL, wide);
        if (status == RAPT_OK) status = run_linear(e, &p->outer, layer->outer, prepacked_of(e, i, OUTER), wide, x, x);
        if (status == RAPT_OK) status = run_norm(e, tokens, layer->norm, x);
    }
    return status;
}

/* The mean over the tokens, added in their order, divided by its length. */
static void pool_tokens(const float *x, int64_t tokens, float *embedding) {
    double squares = 0;
    memcpy(embedding, x, ENCODER_WIDTH * sizeof *x);
    for (int64_t t = 1; t < tokens; t++)
        for (int c = 0; c < ENCODER_WIDTH; c++) embedding[c] += x[t * ENCODER_WIDTH + c];
    for (int c = 0; c < ENCODER_WIDTH; c++) {
        embedding[c] /= (float)tokens;
        squares += (double)embedding[c] * embedding[c];
    }
    for (int c = 0; c < ENCODER_WIDTH; c++) embedding[c] = (float)(embedding[c] / sqrt(squares));
}

const char *encoder_run(encoder *e, const int32_t *ids, const int32_t *starts, int64_t sentences, float *embeddings,
                        const encoder_attention *attention) {
    const int64_t tokens = starts[sentences];
    plans p;
    size_t workspace_bytes = 0;
    if (!tokens) return NULL;
    rapt_status status = plan_batch(e, starts, sentences, attention, &p);
    if (status == RAPT_OK) status = workspace_size(e, &p, attention, &workspace_bytes);
    if (status != RAPT_OK) return rapt_status_string(status);
    if (!reserve(e, (size_t)tokens * (ENCODER_WIDTH + ENCODER_INNER), workspace_bytes)) return strerror(ENOMEM);

    if (e->used && !e->prepacked) status = prepack(e, &p);
    if (status != RAPT_OK) return rapt_status_string(status);
    e->used = true;

    float *x = e->memory, *wide = x + tokens * ENCODER_WIDTH;
    embed(e, ids, starts, sentences, x);
    status = run_layers(e, &p, tokens, x, wide, attention);
    if (status != RAPT_OK) return rapt_status_string(status);
    for (int64_t s = 0; s < sentences; s++)
        pool_tokens(x + starts[s] * (int64_t)ENCODER_WIDTH, starts[s + 1] - starts[s], embeddings + s * ENCODER_WIDTH);
    return NULL;
}
