/* SPDX-License-Identifier: Apache-2.0 */
/* What a fuzz target takes from the bytes of its input: choices, numbers, floats. An input that has ended gives zeros. */
#ifndef RAPT_FUZZ_BYTES_H
#define RAPT_FUZZ_BYTES_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "rapt.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

typedef struct input {
    const uint8_t *bytes;
    size_t size;
} input;

static inline uint8_t take_byte(input *in) {
    if (in->size == 0) return 0;
    in->size--;
    return *in->bytes++;
}

/* 0..n - 1, by one byte or two. */
static inline int64_t choose(input *in, int64_t n) {
    const int64_t first = take_byte(in);
    return (n > 256 ? first << 8 | take_byte(in) : first) % n;
}

/* The same, but rarely other than 0, so that most features are absent from most problems. */
static inline int64_t maybe(input *in, int64_t n) {
    const int64_t value = choose(in, 256);
    return value < 160 ? 0 : value % n;
}

/* A small number, one near a power of two, one of the limits, or any. */
static inline int64_t take_number(input *in) {
    const uint8_t sort = take_byte(in), value = take_byte(in);
    switch (sort % 8) {
    case 0:
        return value;
    case 1:
        return -(int64_t)value;
    case 2:
        return (int64_t)(UINT64_C(1) << value % 63) + (int8_t)(sort - 128) / 64;
    case 3:
        return 64 * (int64_t)value;
    case 4:
        return INT64_MAX - value;
    case 5:
        return INT64_MIN + value;
    case 6:
        return (int64_t)RAPT_MAX_LENGTH + 2 - value;
    default: {
        uint64_t any = value;
        for (int i = 0; i < 7; i++) any = any << 8 | take_byte(in);
        return (int64_t)any;
    }
    }
}

/* Any float, ordinary ones more often. */
static inline float take_float(input *in) {
    static const float special[] = {0.0f, -0.0f, 1.0f, 0x1p-149f, -0x1.8p-127f, 0x1.fffffep127f, INFINITY, -INFINITY, NAN};
    const uint8_t sort = take_byte(in);
    if (sort < 64) return special[sort % (sizeof special / sizeof *special)];
    return ldexpf((float)(take_byte(in) - 128), sort % 32 - 20);
}

/* What must hold, or else the input is a finding. */
static inline void require(int holds, const char *what) {
    if (holds) return;
    fflush(stdout);
    fprintf(stderr, "fuzz: %s\n", what);
    abort();
}

/* The bytes from the first element to the last of n dimensions, around rows of that many: false where they are more than can be
 * addressed. */
static inline bool find_span(int64_t *span, int64_t row, int n, const int64_t *lengths, const int64_t *strides) {
    *span = row;
    for (int i = 0; i < n; i++) {
        int64_t extent = 0;
        if (lengths[i] <= 1) continue;
        if (__builtin_mul_overflow(lengths[i] - 1, strides[i], &extent) || __builtin_add_overflow(*span, extent, span))
            return false;
    }
    return *span <= PTRDIFF_MAX;
}

/* Returns the span of what has been accepted, which must neither be more than that nor go backwards. */
static inline int64_t accepted_span(int64_t row, int n, const int64_t *lengths, const int64_t *strides) {
    int64_t span = 0;
    for (int i = 0; i < n; i++) require(lengths[i] <= 1 || strides[i] >= 0, "a negative stride was accepted");
    require(row >= 0 && find_span(&span, row, n, lengths, strides), "a tensor that does not fit was accepted");
    return span;
}

#endif
