/* SPDX-License-Identifier: Apache-2.0 */
/* A decoder of the Llama family (Touvron et al. 2023) on rapt_layer.h: RMSNorm, rotary positions, grouped-query attention over
 * pages, SwiGLU. What numbers pass through is rapt's, or an IEEE operation on each element. */
#ifndef LLM_MODEL_H
#define LLM_MODEL_H

#include "gguf.h"

/* A matrix [out, in], or a vector of `in` channels: where it lies in the file, or converted to f32; null: a model has none. */
typedef struct weights {
    const void *at;
    float *converted; /* null: it lies in the file */
    rapt_layout layout;
    int64_t out, in;
} weights;

enum { Q, K, V, O, GATE, UP, DOWN, ATTENTION_NORM, NETWORK_NORM, Q_NORM, K_NORM, Q_BIAS, K_BIAS, V_BIAS, IN_A_LAYER };

/* Memory that grows, aligned as a workspace must be. */
typedef struct room {
    void *at;
    int64_t bytes;
} room;

enum { PAGE_TOKENS = 64 };

typedef struct model {
    gguf *file;
    int64_t layer_count, width, inner, heads, kv_heads, d, vocabulary, context;
    int64_t window; /* how many tokens attention sees, the token's own included */
    float epsilon;
    rapt_rope rope;
    double frequencies[RAPT_MAX_HEAD_DIM / 2];
    weights (*layers)[IN_A_LAYER];
    weights norm, head; /* that make logits of what the last layer gives */
    const gguf_tensor *embedding;

    rapt_pool *pool;
    room x, y, qkv, gated, logits, workspace;

    /* The cache. A page has the keys and values of PAGE_TOKENS tokens in all layers, [layer, K or V, head, token, channel], so
     * that those of a text lie one after the other. */
    rapt_type cache;
    char *pages;
    int32_t *table; /* page i of the text is page i */
    int64_t page_bytes, page_count;
    int64_t tokens; /* in the cache; the caller may lower it, to take tokens back */
} model;

/* Is told how far something is. */
typedef void (*progress)(const char *what, int64_t done, int64_t all);

/* Loads the weights of a file, which must stay open, to be run with a cache of that type. False after writing to fault what is
 * wrong; it may be closed then, too. */
bool model_open(model *m, gguf *file, rapt_type cache, rapt_pool *pool, progress tell, char fault[GGUF_FAULT_BYTES]);
void model_close(model *m);

/* Makes room in the cache for that many tokens. */
void model_reserve(model *m, int64_t tokens);

/* Runs n tokens, which follow those of the cache, and join them. */
void model_run(model *m, const int32_t *tokens, int64_t n);

/* The logits of the last run's tokens `first` to first + count - 1: [count, vocabulary], until the next call. */
const float *model_logits(model *m, int64_t first, int64_t count);

/* End the program where there is no memory, or rapt refuses a call, which here is an error of the program. */
void *present(void *memory);
void must(rapt_status status);

/* At least `bytes` bytes; what was there is lost where it grows. */
void *reserve(room *area, int64_t bytes);

#endif
