/* SPDX-License-Identifier: Apache-2.0 */
/* For targets that change good descriptions and calls at random: fields of structs, and memory of exactly the size that a
 * description says, read here a second time from rapt.h, between guard pages (fence.h). */
#ifndef RAPT_FUZZ_DESCRIBED_H
#define RAPT_FUZZ_DESCRIBED_H

#include <stddef.h>
#include <string.h>

#include "fence.h"
#include "reference.h"
#include "bytes.h"

/* ---- Fields ------------------------------------------------------------------------------------------------------------- */

typedef struct field {
    size_t at, bytes;
    bool is_float;
} field;

#define FIELD(of, name)       {offsetof(of, name), sizeof((of *)0)->name, false}
#define FLOAT_FIELD(of, name) {offsetof(of, name), sizeof((of *)0)->name, true}
#define LAYOUT(of, name)                                                                                                         \
    FIELD(of, name.type), FIELD(of, name.batch_stride), FIELD(of, name.head_stride), FIELD(of, name.token_stride)
#define SCALES(of, name)                                                                                                         \
    FIELD(of, name.present), FIELD(of, name.batch_stride), FIELD(of, name.head_stride), FIELD(of, name.token_stride),            \
        FIELD(of, name.channel_stride)
#define FIELDS(array) (array), (int64_t)(sizeof(array) / sizeof *(array))

/* One field becomes a small number, mostly, so that it may well be right, or any number. */
static inline void change_field(void *of, const field *fields, int64_t count, input *in) {
    const field *f = &fields[choose(in, count)];
    void *const at = (char *)of + f->at;
    const uint8_t sort = take_byte(in);
    const int64_t number = sort < 160 ? sort % 40 : sort < 200 ? 4 * (int64_t)take_byte(in) : take_number(in);
    const int32_t word = (int32_t)number;
    const float real = (float)(sort < 100 ? number : 0);
    if (f->bytes == sizeof number) memcpy(at, &number, sizeof number);
    else if (f->is_float && sort < 220) memcpy(at, &real, sizeof real);
    else memcpy(at, &word, sizeof word);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------------- */

enum { MOST_BYTES = 1 << 20, MOST_FENCES = 32 };

/* The bytes of a tensor of an accepted description, whose strides cannot be negative; -1 where that is more than is tried. */
static inline int64_t span_of(const rapt_layout *l, int64_t batch, int64_t heads, int64_t tokens, int64_t channels) {
    const int64_t lengths[] = {batch, heads, tokens}, strides[] = {l->batch_stride, l->head_stride, l->token_stride};
    const int64_t row = l->type == RAPT_I32 ? 4 * channels : reference_row_bytes(l->type, channels);
    if (batch == 0 || heads == 0 || tokens == 0 || channels == 0) return 0;
    require(row > 0, "a type without rows was accepted");
    const int64_t span = accepted_span(row, 3, lengths, strides);
    return span > MOST_BYTES ? -1 : span;
}

/* All memory of a call. */
typedef struct call_memory {
    fence fences[MOST_FENCES];
    int count;
} call_memory;

static inline fence *new_fence(call_memory *m, int64_t bytes, input *in) {
    if (m->count == MOST_FENCES) abort();
    fence *f = &m->fences[m->count++];
    *f = fence_create((size_t)bytes, (int)choose(in, 2) - 1, 0);
    return f;
}

static inline void free_memory(call_memory *m) {
    for (int i = 0; i < m->count; i++) fence_destroy(&m->fences[i]);
    m->count = 0;
}

/* A number that a tensor may have: mostly of the size of one. */
static inline float drawn_value(uint32_t *seed) {
    static const float special[] = {INFINITY, -INFINITY, NAN, 0x1p-149f, -0.0f, 3e38f};
    *seed = *seed * 1664525 + 1013904223;
    const uint32_t bits = *seed >> 8;
    return bits % 512 == 0 ? special[bits / 512 % 6] : (float)((int32_t)(bits % 4097) - 2048) / 1024;
}

/* A tensor that is read, as the layout has it; null where it has no element. */
static inline const void *new_input(call_memory *m, const rapt_layout *l, int64_t batch, int64_t heads, int64_t tokens,
                                    int64_t channels, input *in) {
    const int64_t bytes = span_of(l, batch, heads, tokens, channels);
    fence *const f = new_fence(m, bytes, in);
    uint32_t seed = take_byte(in);
    float *const row = malloc((size_t)channels * sizeof *row + 1);
    if (!row) abort();
    for (int64_t b = 0; b < batch && bytes; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t t = 0; t < tokens; t++) {
                for (int64_t c = 0; c < channels; c++) row[c] = drawn_value(&seed);
                reference_store_row(l->type, reference_at(f->data, l, b, h, t), row, channels);
            }
    free(row);
    fence_protect(f, true);
    return f->data;
}

static inline const float *new_numbers(call_memory *m, int64_t n, input *in) {
    const rapt_layout dense = {.type = RAPT_F32};
    return new_input(m, &dense, 1, 1, 1, n, in);
}

/* What has been written to an output, rows of it; then canaries again. */
static inline void gather_rows(fence *f, const rapt_layout *l, int64_t batch, int64_t heads, int64_t tokens, int64_t channels,
                               float *to) {
    const int64_t element = reference_type_bytes(l->type);
    for (int64_t b = 0; b < batch; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t t = 0; t < tokens; t++) {
                unsigned char *row = reference_at(f->data, l, b, h, t);
                for (int64_t c = 0; c < channels; c++) *to++ = reference_load(l->type, row + c * element);
                memset(row, FENCE_CANARY, (size_t)(channels * element));
            }
}

static inline bool same_floats(const float *a, const float *b, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0 && !(isnan(a[i]) && isnan(b[i]))) return false;
    return true;
}

#endif
