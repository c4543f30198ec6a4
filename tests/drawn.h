/* SPDX-License-Identifier: Apache-2.0 */
/* What tests draw: types, and tensors with memory of their own. */
#ifndef RAPT_TESTS_DRAWN_H
#define RAPT_TESTS_DRAWN_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"
#include "reference.h"

static inline rapt_type random_float_type(void) { return (rapt_type)ONE_OF(RAPT_F32, RAPT_F32, RAPT_F16, RAPT_BF16); }
static inline bool is_byte(rapt_type type) { return type == RAPT_F8_E4M3 || type == RAPT_F8_E5M2 || type == RAPT_INT8; }
static inline bool is_grouped(rapt_type type) { return reference_row_bytes(type, 1) < 0; }

/* [batch, head, token] rows of channels, exactly as large as they must be, at an odd address. */
typedef struct tensor {
    rapt_layout layout;
    int64_t length[3], channels, row;
    size_t bytes;
    unsigned char *memory, *at;
} tensor;

/* Also of one that is not there, which is all zeros. */
static inline void free_tensor(tensor *t) { free(t->memory); }

static inline void allocate_tensor(tensor *t) {
    t->memory = malloc(t->bytes + 1);
    if (!t->memory) abort();
    t->at = t->memory + 1;
}

static inline tensor new_tensor(const rapt_layout *layout, const int64_t length[3], int64_t channels) {
    tensor t = {.layout = *layout, .channels = channels, .row = reference_row_bytes(layout->type, channels)};
    memcpy(t.length, length, sizeof t.length);
    if (length[0] && length[1] && length[2])
        t.bytes = (size_t)((length[0] - 1) * layout->batch_stride + (length[1] - 1) * layout->head_stride +
                           (length[2] - 1) * layout->token_stride + t.row);
    allocate_tensor(&t);
    for (size_t i = 0; i < t.bytes; i++) t.at[i] = (unsigned char)random_bits();
    return t;
}

/* Heads or tokens outside, dense or with odd gaps; random bytes in it and in its gaps. */
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
    return new_tensor(&l, (const int64_t[]){batch, heads, tokens}, channels);
}

static inline tensor copy_of(const tensor *t) {
    tensor copy = *t;
    if (!t->memory) return copy;
    allocate_tensor(&copy);
    memcpy(copy.at, t->at, t->bytes);
    return copy;
}

static inline void copy_bytes(tensor *to, const tensor *from) {
    if (from->bytes) memcpy(to->at, from->at, from->bytes);
}

static inline bool same_bytes(const tensor *a, const tensor *b) { return a->bytes == 0 || memcmp(a->at, b->at, a->bytes) == 0; }

static inline unsigned char *row_of(const tensor *t, int64_t b, int64_t h, int64_t i) {
    return t->at + b * t->layout.batch_stride + h * t->layout.head_stride + i * t->layout.token_stride;
}

/* Numbers that a row of such tensors has in practice. */
static inline void fill(tensor *t) {
    float values[RAPT_MAX_HEAD_DIM];
    for (int64_t b = 0; b < t->length[0]; b++)
        for (int64_t h = 0; h < t->length[1]; h++)
            for (int64_t i = 0; i < t->length[2]; i++) {
                for (int64_t c = 0; c < t->channels; c++) values[c] = random_value();
                reference_store_row(t->layout.type, row_of(t, b, h, i), values, t->channels);
            }
}

/* Aligned as a workspace, and exactly as large. */
static inline void *new_workspace(size_t bytes) {
    void *memory;
    if (posix_memalign(&memory, RAPT_WORKSPACE_ALIGNMENT, bytes + !bytes)) abort();
    memset(memory, 0xff, bytes); /* NaN, whatever is read of it */
    return memory;
}

#endif
