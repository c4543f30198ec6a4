/* SPDX-License-Identifier: Apache-2.0 */
/* The Transformer of "Attention Is All You Need" (Vaswani et al. 2017), post-norm, on rapt_layer.h. */
#ifndef SEQ2SEQ_MODEL_H
#define SEQ2SEQ_MODEL_H

#include "rapt_layer.h"
#include "rapt_pool.h"
#include "../safetensors.h"
#include "text.h"

typedef struct matrix {
    const void *weight;
    rapt_layout layout;
    const float *bias;
} matrix;

typedef struct norm {
    const float *weight, *bias;
} norm;

typedef struct attention {
    matrix in, out; /* in: the rows of Wq, Wk and Wv */
    norm norm;
} attention;

typedef struct feed_forward {
    matrix in, out;
    norm norm;
} feed_forward;

typedef struct layer {
    attention self, cross; /* cross: the decoder's */
    feed_forward feed_forward;
} layer;

typedef struct model {
    safetensors_file file;
    vocabulary vocabulary;
    int64_t width, heads, inner; /* inner: channels within feed_forward */
    const float *embedding;      /* [pieces, width]: of both languages, and of the output (section 3.4) */
    int encoder_layers, decoder_layers;
    layer *encoder, *decoder;
} model;

/* Checks all that is read later. 0, or -1 after writing to error what is wrong. */
int model_open(model *m, const char *path, char error[SAFETENSORS_FAULT_BYTES]);
void model_close(model *m);

/* Memory that grows, aligned as a workspace must be. */
typedef struct room {
    void *at;
    size_t bytes;
} room;

/* memory itself; ends the program where there was none. */
void *present(void *memory);

/* What a model is run with. All zeros but model and pool. */
typedef struct runner {
    const model *model;
    rapt_pool *pool;
    int64_t positions;
    room table, workspace, rows, lengths, hidden;
} runner;
void runner_free(runner *r);

/* Sources: the tokens of entry b are starts[b] .. starts[b + 1] - 1. */
typedef struct encoding {
    int64_t entries;
    const int32_t *starts;
    room output;       /* the encoder's, a row for each token */
    room *keys_values; /* of each decoder layer: a row for each token, its keys then its values: [heads, d_k], [heads, d_v] */
} encoding;
void encoding_free(const runner *r, encoding *memory);

/* The encoder, and what the decoder's cross-attention needs of it, once. */
void encode(runner *r, const int32_t *tokens, encoding *memory);

/* The self-attention's caches of rows that are decoded step by step: [rows, room_for, 2, heads, d_k] for each layer, so that a
 * token's keys and values lie side by side. All zeros before caches_start. */
typedef struct caches {
    int64_t rows, room_for; /* rows, and tokens that each has room for */
    int64_t tokens;         /* that each has */
    room *layers, *spare;
} caches;
void caches_start(const runner *r, caches *c, int64_t rows, int64_t tokens);
void caches_free(const runner *r, caches *c);

/* Makes new rows of those that there are: row i becomes what row parents[i] was. */
void caches_choose(const runner *r, caches *c, const int32_t *parents, int64_t rows);

/* The next token of each row: entry b's rows are row_starts[b] .. row_starts[b + 1] - 1. logits: [rows, pieces]. */
void decode_step(runner *r, const encoding *memory, caches *c, const int32_t *row_starts, const int32_t *tokens, float *logits);

/* All tokens of all entries at once, causally, without caches: entry b's are starts[b] .. starts[b + 1] - 1. logits: [tokens,
 * pieces]. */
void decode_all(runner *r, const encoding *memory, const int32_t *starts, const int32_t *tokens, float *logits);

#endif
