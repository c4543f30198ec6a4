/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of llm share: a GGUF file, its tokenizer, and its model. Whatever is wrong ends the program with a line that
 * says so; the system closes what is open. */
#ifndef LLM_H
#define LLM_H

#include "cli.h"
#include "map.h"
#include "rapt.h"

#include <stdio.h>
#include <stdlib.h>

/* Ends the program with a line of printf's arguments. */
#define FAIL(...) exit(cli_fail("llm", __VA_ARGS__))

/* Returns memory that was allocated; ends the program if there was none. */
void *present(void *memory);

/* Shows how far something is. */
void tell(const char *what, int64_t done, int64_t all);

/* ---- A GGUF file of version 2 or 3, mapped, with all of its header checked (ggml-org/ggml, docs/gguf.md) --------------- */

typedef struct gguf_text {
    const char *at; /* without a terminator */
    size_t bytes;
} gguf_text;

/* For "%.*s". */
#define GGUF_SHOWN(text) (text).bytes < 80 ? (int)(text).bytes : 80, (text).at

typedef struct gguf_tensor {
    gguf_text name;
    rapt_type type;  /* RAPT_NONE: one that is not known here */
    int64_t dims[4]; /* of a matrix: columns, rows, 1, 1 */
    uint64_t offset; /* in the data of all tensors */
    const uint8_t *data;
    bool used; /* for the caller */
} gguf_tensor;

/* What stands under a key: values of a type, one after the other. */
typedef struct gguf_value {
    gguf_text key;
    uint64_t type, count;
    const uint8_t *at;
} gguf_value;

typedef struct gguf {
    const char *path;
    file_map map;
    const uint8_t *at; /* what of the header is to be read next */
    gguf_value *values;
    gguf_tensor *tensors;
    size_t value_count, tensor_count;
} gguf;

void gguf_open(gguf *g, const char *path);

/* The tensor of that name; null if there is none. */
gguf_tensor *gguf_find(const gguf *g, const char *name);

/* The number under a key, an integer of 0 or more or an f32; `otherwise` if there is none. */
double gguf_number(const gguf *g, const char *key, double otherwise);

/* The bits of the f32 under a key, perhaps none, in an array that is the caller's. */
uint32_t *gguf_floats(const gguf *g, const char *key, uint64_t *count);

/* The texts under a key, perhaps none, in an array that is the caller's. */
gguf_text *gguf_texts(const gguf *g, const char *key, uint64_t *count);

/* The text under a key; an empty one if there is none. */
gguf_text gguf_string(const gguf *g, const char *key);

bool gguf_is(gguf_text text, const char *other);

/* ---- Byte pair encoding with a file's vocabulary (Sennrich et al. 2016): GPT-2's of bytes (Radford et al. 2019), or
 * SentencePiece's of characters (Kudo and Richardson 2018) -------------------------------------------------------------- */

/* A list of texts, in which one is found by a hash. */
typedef struct text_table {
    gguf_text *texts;
    int32_t *slots, count; /* slots: numbers of texts; -1: none */
    uint32_t mask;
} text_table;

typedef struct tokenizer {
    int how;                               /* words are cut */
    text_table pieces, merges;             /* as in the file: letters for bytes; two pieces with a space between them */
    char letters[256][3];                  /* of bytes: the character that stands for a byte, as UTF-8 */
    uint32_t *ranks;                       /* of characters: pieces are made in this order, the lowest first */
    bool space_before, pieces_cross_words; /* of characters: a text gets a space before it; a piece goes on behind a word */
    int32_t begin, end[2];                 /* tokens with which texts begin and end; -1: none */
} tokenizer;

void tokenizer_open(tokenizer *t, const gguf *file);

/* The most tokens of a text of so many bytes: a space, of which there may be one more, is three bytes of its sign. */
#define TOKENS_OF(bytes) (3 * (size_t)(bytes) + 3)

/* Writes the tokens of a text and returns how many. Marks such as <|im_end|> are text as any other; bytes without a piece are
 * lost. */
int64_t tokenizer_encode(const tokenizer *t, const char *text, int32_t *tokens);

/* The token of a piece; -1 if there is none. */
int32_t tokenizer_find(const tokenizer *t, const char *piece);

/* Prints the text of a token. */
void tokenizer_print(const tokenizer *t, int32_t token, FILE *to);

/* ---- A decoder of the Llama family (Touvron et al. 2023) on rapt_layer.h, with its cache ------------------------------- */

/* A matrix [out, in], or a vector of `in` channels; at null: a model has none. */
typedef struct weights {
    const void *at;
    rapt_layout layout;
    int64_t out, in;
} weights;

enum { Q, K, V, O, GATE, UP, DOWN, ATTENTION_NORM, NETWORK_NORM, Q_NORM, K_NORM, Q_BIAS, K_BIAS, V_BIAS, IN_A_LAYER };

/* Memory that grows, aligned as a workspace must be. */
typedef struct room {
    void *at;
    int64_t bytes;
} room;

/* At least `bytes` bytes; what was there is lost if it grows. */
void *reserve(room *area, int64_t bytes);

/* Ends the program if rapt refuses a call, which here is a defect of the program. */
void must(rapt_status status);

enum { PAGE_TOKENS = 64 };

typedef struct model {
    const gguf *file;
    int64_t layer_count, width, inner, heads, kv_heads, d, vocabulary, context;
    int64_t window; /* how many tokens attention sees, the token's own included */
    float epsilon;
    rapt_rope rope;
    double frequencies[RAPT_MAX_HEAD_DIM / 2];
    weights embedding, (*layers)[IN_A_LAYER], norm, head; /* the last two make logits of what the last layer gives */
    rapt_pool *pool;
    room x, y, qkv, gated, logits, workspace;

    /* The cache. A page has the keys and values of PAGE_TOKENS tokens in all layers, [layer, K or V, head, token, channel], so
     * that those of a text are one piece of memory. */
    rapt_type cache;
    char *pages;
    int32_t *table; /* page i of the text is page i */
    int64_t page_bytes, page_count;
    int64_t tokens; /* in the cache; the caller may lower it, to take tokens back */
} model;

/* Loads the weights of a file, to be run with a cache of that type: a model of that many tokens at least. */
void model_open(model *m, const gguf *file, int64_t vocabulary, rapt_type cache, rapt_pool *pool);

/* Makes the cache, with room for that many tokens. */
void model_reserve(model *m, int64_t tokens);

/* Runs n tokens, which follow those of the cache, and join them. */
void model_run(model *m, const int32_t *tokens, int64_t n);

/* The logits of the last run's tokens `first` to first + count - 1: [count, vocabulary], until the next call. */
const float *model_logits(model *m, int64_t first, int64_t count);

#endif
