/* SPDX-License-Identifier: Apache-2.0 */
/* The byte-level byte pair encoding of GPT-2 (Sennrich et al. 2016; Radford et al. 2019), with a GGUF file's vocabulary: a text
 * is cut into words as the model's regular expression has it, words into bytes, and then the two adjacent pieces that come first
 * in the list of merges become one, again and again. */
#ifndef LLM_TOKENIZER_H
#define LLM_TOKENIZER_H

#include "gguf.h"

#include <stdio.h>

/* A list of texts, in which one is found by a hash. */
typedef struct table {
    gguf_text *texts;
    int32_t *slots, count; /* slots: numbers of texts; -1: none */
    uint32_t mask;
} table;

typedef struct tokenizer {
    const struct rules *how; /* words are cut */
    table pieces, merges;    /* as they stand in the file: letters for bytes; two pieces with a space between them */
    uint16_t letters[256];   /* the code point that stands for a byte */
    int32_t begin, end[2];   /* tokens with which texts begin and end; -1: none */
} tokenizer;

/* False after writing to fault what is wrong; it may be closed then, too. The file must stay open. */
bool tokenizer_open(tokenizer *t, const gguf *file, char fault[GGUF_FAULT_BYTES]);
void tokenizer_close(tokenizer *t);

/* Writes the tokens of a text, at most one for each byte, and returns how many there are; -1 without memory. Marks such as
 * <|im_end|> are text as any other. */
int64_t tokenizer_encode(const tokenizer *t, const char *text, size_t bytes, int32_t *tokens);

/* The token of a piece; -1: there is none. */
int32_t tokenizer_find(const tokenizer *t, const char *piece, size_t bytes);

/* Prints the text of a token. */
void tokenizer_print(const tokenizer *t, int32_t token, FILE *to);

#endif
