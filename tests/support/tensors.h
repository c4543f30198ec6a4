/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors with memory of their own, and what lies in it. */
#ifndef RAPT_TESTS_TENSORS_H
#define RAPT_TESTS_TENSORS_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../cli/aligned.h"
#include "hash.h"
#include "random.h"
#include "reference.h"

/* ---- Types --------------------------------------------------------------------------------------------------------------- */

static inline bool is_float(rapt_type type) { return type == RAPT_F32 || type == RAPT_F16 || type == RAPT_BF16; }
static inline bool is_byte(rapt_type type) { return reference_row_bytes(type, 32) == 32; }
static inline bool is_grouped(rapt_type type) { return reference_group(type) > 1; }
static inline rapt_type random_float_type(void) { return (rapt_type)ONE_OF(RAPT_F32, RAPT_F32, RAPT_F16, RAPT_BF16); }

/* ---- Tensors ------------------------------------------------------------------------------------------------------------- */

/* [batch, head, token] rows of channels, exactly as large as they must be. One without memory is none. */
typedef struct tensor {
    rapt_layout layout;
    int64_t batch, heads, tokens, channels, row; /* row: bytes */
    size_t bytes;
    unsigned char *memory, *at; /* memory: a byte more, before the tensor or after it */
} tensor;

static inline tensor new_tensor(const rapt_layout *l, int64_t batch, int64_t heads, int64_t tokens, int64_t channels, bool odd) {
    tensor t = {*l, batch, heads, tokens, channels, .row = reference_row_bytes(l->type, channels)};
    if (batch && heads && tokens)
        t.bytes = (size_t)((batch - 1) * l->batch_stride + (heads - 1) * l->head_stride + (tokens - 1) * l->token_stride + t.row);
    t.memory = malloc(t.bytes + 1);
    if (!t.memory) abort();
    t.at = t.memory + odd;
    memset(t.memory, 0x5a, t.bytes + 1);
    return t;
}

static inline void free_tensor(tensor *t) { free(t->memory); }

static inline tensor copy_of(const tensor *t) {
    tensor copy = *t;
    if (!t->memory) return copy;
    copy.memory = malloc(t->bytes + 1);
    if (!copy.memory) abort();
    memcpy(copy.memory, t->memory, t->bytes + 1);
    copy.at = copy.memory + (t->at - t->memory);
    return copy;
}

static inline void copy_bytes(tensor *to, const tensor *from) {
    if (from->bytes) memcpy(to->at, from->at, from->bytes);
}

/* Equal bytes, those between rows and around them too; NaN as a class is not needed here, for there is none. */
static inline bool same_tensor(const tensor *a, const tensor *b) {
    return a->bytes == b->bytes && (!a->memory || !memcmp(a->memory, b->memory, a->bytes + 1));
}

static inline unsigned char *row_of(const tensor *t, int64_t b, int64_t h, int64_t i) {
    return t->at + b * t->layout.batch_stride + h * t->layout.head_stride + i * t->layout.token_stride;
}

/* Between the machine's order of bytes and that of little-endian ones, in which numbers are hashed. */
static inline void turn_elements(tensor *t) {
    const size_t each = is_float(t->layout.type) ? (size_t)reference_row_bytes(t->layout.type, 1) : 1;
    if (__BYTE_ORDER__ != __ORDER_BIG_ENDIAN__ || each == 1) return;
    for (int64_t b = 0; b < t->batch; b++)
        for (int64_t h = 0; h < t->heads; h++)
            for (int64_t i = 0; i < t->tokens; i++)
                for (unsigned char *at = row_of(t, b, h, i), *end = at + t->row; at < end; at += each)
                    for (size_t j = 0; j < each / 2; j++) {
                        const unsigned char byte = at[j];
                        at[j] = at[each - 1 - j], at[each - 1 - j] = byte;
                    }
}

static inline void draw_bytes(tensor *t) {
    for (size_t i = 0; i < t->bytes; i++) t->at[i] = (unsigned char)random_bits();
    turn_elements(t);
}

/* All bytes, those between rows, too. */
static inline uint64_t hash_tensor(uint64_t hash, const tensor *t) {
    tensor turned = copy_of(t);
    turn_elements(&turned);
    hash = hash_bytes(hash, turned.at, turned.bytes);
    free_tensor(&turned);
    return hash;
}

/* Heads or tokens outside, dense or with odd gaps, at an odd address; random bytes in it and in its gaps. */
static inline tensor random_tensor(rapt_type type, int64_t batch, int64_t heads, int64_t tokens, int64_t channels) {
    int64_t row = reference_row_bytes(type, channels), gap = one_in(3);
    rapt_layout l = {.type = type};
    if (one_in(2)) {
        l.token_stride = row + 3 * gap;
        l.head_stride = tokens * l.token_stride + 5 * gap;
        l.batch_stride = heads * l.head_stride + 7 * gap;
    } else {
        l.head_stride = row + 3 * gap;
        l.token_stride = heads * l.head_stride + 5 * gap;
        l.batch_stride = tokens * l.token_stride + 7 * gap;
    }
    tensor t = new_tensor(&l, batch, heads, tokens, channels, true);
    draw_bytes(&t);
    return t;
}

static inline void fill_with(tensor *t, float draw_value(float size), float size) {
    float *values = malloc((size_t)(t->channels + 1) * sizeof *values);
    if (!values) abort();
    for (int64_t b = 0; b < t->batch; b++)
        for (int64_t h = 0; h < t->heads; h++)
            for (int64_t i = 0; i < t->tokens; i++) {
                for (int64_t c = 0; c < t->channels; c++) values[c] = draw_value(size);
                reference_store_row(t->layout.type, row_of(t, b, h, i), values, t->channels);
            }
    free(values);
}

static inline float value_of_size(float size) { return random_value() * size; }
static inline float integer_up_to(float size) { return (float)(value_below(2 * (int64_t)size + 1) - (int64_t)size); }

/* Numbers that a row of such tensors has in practice. */
static inline void fill(tensor *t) { fill_with(t, value_of_size, 1.0f); }

/* ---- Rows of tokens without heads ---------------------------------------------------------------------------------------- */

/* Dense, or with gaps of that many bytes between them. */
static inline tensor new_rows(rapt_type type, int64_t batch, int64_t tokens, int64_t channels, int64_t gap) {
    rapt_layout l = rapt_layout_bshd(type, 1, tokens, channels);
    l.token_stride = reference_row_bytes(type, channels) + gap;
    l.batch_stride = tokens * l.token_stride + gap;
    return new_tensor(&l, batch, 1, tokens, channels, gap != 0);
}

/* Fills rows of blocks of q4_K or q6_K, to which nothing is quantised here: random bytes, and scales of which elements of that
 * size come. Some blocks have the largest integer scales and codes of one sign, for sums of integers above 2^24. */
static inline void fill_blocks(tensor *t, float size) {
    const bool six = t->layout.type == RAPT_Q6_K;
    const int64_t bytes = reference_row_bytes(t->layout.type, 256);
    for (int64_t b = 0; b < t->batch; b++)
        for (int64_t i = 0; i < t->tokens; i++)
            for (unsigned char *row = row_of(t, b, 0, i), *block = row; block < row + t->row; block += bytes) {
                for (int64_t n = 0; n < bytes; n++) block[n] = (unsigned char)value_below(256);
                if (value_below(4) == 0) {
                    if (six) memset(block + 128, 0, 64), memset(block + 192, -128, 16);
                    else memset(block + 4, 0xff, 12);
                    for (int64_t n = 16; n < bytes && !six; n++) block[n] |= 0xcc;
                }
                reference_store_shared(block + (six ? 208 : 0), random_value() * size / (six ? 2000.0f : 500.0f));
                if (!six) reference_store_shared(block + 2, random_value() * size / 60.0f);
            }
}

/* Numbers of that size; of int8, whole ones of the whole range. */
static inline tensor random_rows(rapt_type type, int64_t batch, int64_t tokens, int64_t channels, int64_t gap, float size) {
    tensor t = new_rows(type, batch, tokens, channels, gap);
    if (type == RAPT_INT8) fill_with(&t, integer_up_to, 127.0f);
    else if (reference_group(type) == 256) fill_blocks(&t, size);
    else fill_with(&t, value_of_size, size);
    return t;
}

static inline void *row_at(const tensor *t, int64_t b, int64_t i) { return row_of(t, b, 0, i); }

static inline float value_at(const tensor *t, int64_t b, int64_t i, int64_t c) {
    return reference_element(t->layout.type, row_at(t, b, i), c);
}

static inline void set_value(const tensor *t, int64_t b, int64_t i, int64_t c, float value) {
    reference_store(t->layout.type, (char *)row_at(t, b, i) + c * reference_type_bytes(t->layout.type), value);
}

static inline void load_row(const tensor *t, int64_t b, int64_t i, float *to) {
    for (int64_t c = 0; c < t->channels; c++) to[c] = value_at(t, b, i, c);
}

/* ---- Other memory -------------------------------------------------------------------------------------------------------- */

static inline float *new_floats(int64_t n) {
    float *x = malloc((size_t)(n + !n) * sizeof *x);
    if (!x) abort();
    return x;
}

static inline float *random_floats(int64_t n, float size) {
    float *x = new_floats(n);
    for (int64_t i = 0; i < n; i++) x[i] = random_value() * size;
    return x;
}

/* Aligned as a workspace, and exactly as large; free it by aligned_destroy. */
static inline void *new_workspace(size_t bytes) {
    void *memory = aligned_create(RAPT_WORKSPACE_ALIGNMENT, bytes + !bytes);
    if (!memory) abort();
    memset(memory, 0xff, bytes); /* NaN, whatever is read of it */
    return memory;
}

#endif
