/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of tokens with memory of their own, and tests that go through many drawn problems on every kernel. */
#ifndef RAPT_TESTS_ROWS_H
#define RAPT_TESTS_ROWS_H

#include <inttypes.h>

#include "drawn.h"
#include "hash.h"
#include "rapt_layer.h"
#include "tap.h"

/* ---- Rows of tokens ------------------------------------------------------------------------------------------------------ */

/* [batch, tokens] rows, exactly as large as they must be, at an odd address, perhaps with gaps between them. */
typedef struct rows {
    rapt_layout layout;
    int64_t batch, tokens, channels;
    size_t bytes;
    unsigned char *memory, *at;
} rows;

static inline rows new_rows(rapt_type type, int64_t batch, int64_t tokens, int64_t channels, int64_t gap) {
    rows r = {.layout = rapt_layout_bshd(type, 1, tokens, channels), .batch = batch, .tokens = tokens, .channels = channels};
    int64_t row = reference_row_bytes(type, channels);
    r.layout.token_stride = row + gap;
    r.layout.batch_stride = tokens * r.layout.token_stride + gap;
    r.bytes =
        batch * tokens == 0 ? 0 : (size_t)((batch - 1) * r.layout.batch_stride + (tokens - 1) * r.layout.token_stride + row);
    r.memory = malloc(r.bytes + 1); /* a byte before or behind */
    if (!r.memory) abort();
    r.at = r.memory + (gap != 0);
    memset(r.memory, 0x5a, r.bytes + 1);
    return r;
}

static inline void *row_at(const rows *r, int64_t b, int64_t t) {
    return r->at + b * r->layout.batch_stride + t * r->layout.token_stride;
}

static inline float value_at(const rows *r, int64_t b, int64_t t, int64_t i) {
    return reference_element(r->layout.type, row_at(r, b, t), i);
}

static inline void set_value(const rows *r, int64_t b, int64_t t, int64_t i, float value) {
    reference_store(r->layout.type, (char *)row_at(r, b, t) + i * reference_type_bytes(r->layout.type), value);
}

static inline void load_row(const rows *r, int64_t b, int64_t t, float *to) {
    for (int64_t i = 0; i < r->channels; i++) to[i] = value_at(r, b, t, i);
}

static inline float *new_floats(int64_t n) {
    float *x = malloc((size_t)(n + !n) * sizeof *x);
    if (!x) abort();
    return x;
}

static inline rows random_rows(rapt_type type, int64_t batch, int64_t tokens, int64_t channels, int64_t gap, float size) {
    rows r = new_rows(type, batch, tokens, channels, gap);
    float *values = new_floats(channels);
    for (int64_t b = 0; b < batch; b++)
        for (int64_t t = 0; t < tokens; t++) {
            for (int64_t i = 0; i < channels; i++)
                values[i] = type == RAPT_INT8 ? (float)(below(255) - 127) : random_value() * size;
            reference_store_row(type, row_at(&r, b, t), values, channels);
        }
    free(values);
    return r;
}

static inline rows copy_rows(const rows *r) {
    rows copy = *r;
    if (!r->memory) return copy;
    copy.memory = malloc(r->bytes + 1);
    if (!copy.memory) abort();
    memcpy(copy.memory, r->memory, r->bytes + 1);
    copy.at = copy.memory + (r->at - r->memory);
    return copy;
}

/* Equal bytes, those around the rows too; NaN as a class is not needed here, for there is none. */
static inline bool same_rows(const rows *a, const rows *b) {
    return a->bytes == b->bytes && (!a->memory || !memcmp(a->memory, b->memory, a->bytes + 1));
}

static inline float *random_floats(int64_t n, float size) {
    float *x = new_floats(n);
    for (int64_t i = 0; i < n; i++) x[i] = random_value() * size;
    return x;
}

/* ---- Tests of every kernel ----------------------------------------------------------------------------------------------- */

static bool fused; /* the class of the kernel that is tested */

/* Drawn problems of a kind. The first ones make the hash, by rounding class, fused first; the others come without --quick. */
typedef struct drawn {
    const char *what;
    bool (*problem)(const char *isa, uint64_t *h);
    uint64_t seed, golden[2];
    int quick, all;
} drawn;

static inline void test_drawn(const char *isa, bool whole, const drawn *d) {
    uint64_t h = hash_start, more = 0;
    int failed = 0, n = 0;
    random_state = d->seed;
    for (; n < (whole ? d->all : d->quick); n++) failed += !d->problem(isa, n < d->quick ? &h : &more);
    tap_ok(failed == 0, "%s: %d %s", isa, n, d->what);
    tap_ok(h == d->golden[!fused], "%s: the first %d have the bits of every machine (%016" PRIx64 ")", isa, d->quick, h);
}

static inline void each_kernel(bool whole, void test(const char *isa, bool whole)) {
    for (int i = 0; rapt_isa_name(i); i++) {
        const char *isa = rapt_isa_name(i);
        if (rapt_isa_usable(isa, NULL, 0) != RAPT_OK) {
            printf("# %s cannot run here\n", isa);
            continue;
        }
        fused = !strcmp(rapt_isa_rounding(isa), "fused");
        test(isa, whole);
    }
}

/* ---- What is refused ----------------------------------------------------------------------------------------------------- */

static unsigned char guard[4096], guarded[4096]; /* what a refused call would write, and a copy of it */

static inline void fill_guard(void) {
    for (size_t i = 0; i < sizeof guard; i++) guard[i] = guarded[i] = (unsigned char)(i * 7);
}

/* One thing wrong at a time: the status, and nothing written. */
static inline void refused(rapt_status got, rapt_status expected, const char *what) {
    tap_ok(got == expected && !memcmp(guard, guarded, sizeof guard), "%s is refused: %s", what, rapt_status_string(got));
}

#endif
