/* SPDX-License-Identifier: Apache-2.0 */
/* BERT's uncased WordPiece tokenizer (Devlin et al. 2019, after Wu et al. 2016, section 4.1): text in UTF-8 to numbers of pieces.
 */
#ifndef MINILM_WORDPIECE_H
#define MINILM_WORDPIECE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WORDPIECE_FAULT_BYTES 160

enum { WORDPIECE_UNK, WORDPIECE_CLS, WORDPIECE_SEP, WORDPIECE_PAD, WORDPIECE_MASK, WORDPIECE_SPECIAL };

/* A piece of the vocabulary, without the ## of one that continues a word. */
typedef struct wordpiece_piece {
    const char *text;
    uint32_t bytes;
    bool continues;
} wordpiece_piece;

typedef struct wordpiece {
    char *file;
    wordpiece_piece *pieces;
    int32_t count;
    uint32_t longest;                   /* bytes of a piece */
    int32_t *slots;                     /* a hash table of pieces, -1 where it is empty */
    uint32_t mask;                      /* slots - 1, which are a power of two */
    int32_t special[WORDPIECE_SPECIAL]; /* [UNK], [CLS], ...; -1: not in this vocabulary */
} wordpiece;

/* Reads a vocabulary: a piece on each line, numbered from 0. False, with nothing to close, after writing to fault what is wrong.
 */
bool wordpiece_open(wordpiece *w, const char *path, char fault[WORDPIECE_FAULT_BYTES]);
void wordpiece_close(wordpiece *w);

/* Writes [CLS], the pieces of the text, and [SEP] to ids, at most most (2 or more) in all: the end of a longer text is left out.
 * Returns how many there are. Bytes that are not UTF-8 count as nothing. */
int32_t wordpiece_encode(const wordpiece *w, const char *text, size_t bytes, int32_t *ids, int32_t most);

#endif
