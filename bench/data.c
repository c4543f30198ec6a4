/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors for the benchmarks. */
#define _DEFAULT_SOURCE /* madvise */
#include "data.h"

#include "shim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

const bench_type *bench_types(int *count) {
    static bench_type types[RAPT_TYPE_LIMIT + 6];
    int n = 0;
    for (int number = 0; number < RAPT_TYPE_LIMIT; number++) {
        const rapt_type type = (rapt_type)number;
        const rapt_type_class class_of = rapt_type_class_of(type);
        if (class_of == RAPT_CLASS_NONE || class_of == RAPT_CLASS_MASK || class_of == RAPT_CLASS_MATRIX) continue;
        const rapt_type q = class_of == RAPT_CLASS_ELEMENT ? type : RAPT_F32;
        types[n++] = (bench_type){rapt_type_name(type), q, type, RAPT_EXACT, type == RAPT_INT8};
        if (type == RAPT_BF16) types[n++] = (bench_type){"bf16-dot", q, type, RAPT_BF16_DOT, false};
        static const char *const integers[RAPT_TYPE_LIMIT] = {[RAPT_INT8] = "int8-dot",
                                                              [RAPT_INT4] = "int4-dot",
                                                              [RAPT_Q8_0] = "q8_0-dot",
                                                              [RAPT_Q4_0] = "q4_0-dot",
                                                              [RAPT_Q5_0] = "q5_0-dot"};
        if (integers[type]) types[n++] = (bench_type){integers[type], q, type, RAPT_INT8_DOT, type == RAPT_INT8};
    }
    *count = n;
    return types;
}

const bench_type *bench_weight_types(int *count) {
    static bench_type types[2 * RAPT_TYPE_LIMIT];
    static char names[RAPT_TYPE_LIMIT][16];
    int n = 0;
    for (int number = 0; number < RAPT_TYPE_LIMIT; number++) {
        const rapt_type type = (rapt_type)number;
        const rapt_type_class class_of = rapt_type_class_of(type);
        if (class_of != RAPT_CLASS_ELEMENT && class_of != RAPT_CLASS_WEIGHT && class_of != RAPT_CLASS_MATRIX) continue;
        types[n++] = (bench_type){rapt_type_name(type), RAPT_F32, type, RAPT_EXACT, type == RAPT_INT8};
        if (type == RAPT_BF16) types[n++] = (bench_type){"bf16-dot", RAPT_F32, type, RAPT_BF16_DOT, false};
        if (class_of == RAPT_CLASS_ELEMENT) continue;
        snprintf(names[type], sizeof names[type], "%s-dot", rapt_type_name(type));
        types[n++] = (bench_type){names[type], RAPT_F32, type, RAPT_INT8_DOT, type == RAPT_INT8};
    }
    *count = n;
    return types;
}

void *bench_alloc(size_t bytes) {
    void *p;
    if (posix_memalign(&p, (size_t)2 << 20, bytes)) return NULL;
#ifdef MADV_HUGEPAGE
    madvise(p, bytes, MADV_HUGEPAGE);
#endif
    return p;
}

bool bench_workspace(const rapt_plan *plan, int64_t threads, rapt_args *args) {
    if (rapt_workspace_size(plan, threads, &args->workspace_bytes)) return false;
    args->workspace = bench_alloc(args->workspace_bytes);
    return args->workspace;
}

int64_t bench_power_of_two(int64_t stride) {
    int64_t power = 4096;
    while (power < stride) power *= 2;
    return power;
}

uint32_t bench_mix(uint32_t x) {
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

/* Returns a number that is about normally distributed, given random bits: the sum of four uniform ones. */
static float bell(uint32_t bits) {
    int sum = 0;
    for (int i = 0; i < 4; i++) sum += (int)(bits >> 8 * i & 127);
    return (float)(sum - 254) / 64;
}

/* Fills a tensor of a cache type with rows of 32 channels; bytes after the last whole row become 0. */
static void fill_cache(unsigned char *to, rapt_type type, size_t bytes, uint32_t seed) {
    enum { CHANNELS = 32, ROWS = 64 };
    const size_t row = (size_t)rapt_row_bytes(type, CHANNELS);
    const float size = type == RAPT_INT8 ? 32 : 1; /* without a factor, int8 would have only a few different values */
    memset(to, 0, bytes);
    for (size_t rows = bytes / row, at = 0; at < rows; at += ROWS) {
        float values[ROWS * CHANNELS];
        rapt_kv_append_desc desc;
        rapt_kv_append_args args;
        rapt_kv_append_desc_init(&desc), rapt_kv_append_args_init(&args);
        for (size_t i = 0; i < ROWS * CHANNELS; i++) values[i] = size * bell(bench_mix(seed + (uint32_t)(at * CHANNELS + i)));
        desc.kv_heads = 1, desc.tokens = desc.kv_len = rows - at < ROWS ? (int64_t)(rows - at) : ROWS, desc.d_v = CHANNELS;
        desc.new_v = rapt_layout_bhsd(RAPT_F32, 1, ROWS, CHANNELS), desc.v = rapt_layout_bhsd(type, 1, ROWS, CHANNELS);
        args.new_v = values, args.v = to + at * row;
        if (rapt_kv_append_run(&desc, &args) != RAPT_OK) abort();
    }
}

/* Fills a tensor of a type of weights alone with blocks of random integers, whose scales of 16 bits are all the same: nothing
 * stores such types. */
static void fill_blocks(unsigned char *to, rapt_type type, size_t bytes, uint32_t seed) {
    enum { CHANNELS = 256 };
    const size_t block = (size_t)rapt_row_bytes(type, CHANNELS), scale = type == RAPT_Q6_K ? block - 2 : 0;
    for (size_t i = 0; i < bytes; i++) to[i] = (unsigned char)bench_mix(seed + (uint32_t)i);
    for (size_t at = 0; at + block <= bytes; at += block) {
        const unsigned char f16[4] = {0, 0x14, 0, 0x14}; /* 2^-10: of q4_k its scale and its scale of minima */
        memcpy(to + at + scale, f16, type == RAPT_Q6_K ? 2 : 4);
    }
}

void bench_fill(void *to, rapt_type type, size_t bytes, uint32_t seed) {
    seed = bench_mix(seed);
    if (rapt_type_class_of(type) == RAPT_CLASS_MATRIX) {
        fill_blocks(to, type, bytes, seed);
        return;
    }
    if (rapt_type_class_of(type) != RAPT_CLASS_ELEMENT) {
        fill_cache(to, type, bytes, seed);
        return;
    }
    size_t count = bytes / (type == RAPT_F32 ? 4 : 2);
    for (size_t i = 0; i < count; i++) {
        float x = bell(bench_mix(seed + (uint32_t)i));
        uint32_t f32;
        memcpy(&f32, &x, sizeof f32);
        uint16_t bf16 = (uint16_t)(f32 >> 16);
        uint16_t f16 = x == 0 ? 0 : (uint16_t)((f32 >> 16 & 0x8000) | ((f32 & 0x7fffffff) - (112u << 23)) >> 13);
        if (type == RAPT_F32) ((uint32_t *)to)[i] = f32;
        else ((uint16_t *)to)[i] = type == RAPT_F16 ? f16 : bf16;
    }
}

static rapt_tuning tuning;
static bool is_tuned;

bool bench_set_tuning(const char *line) {
    char why[512];
    rapt_tuning_init(&tuning);
    is_tuned = rapt_tuning_parse(line, &tuning) == RAPT_OK;
    rapt_tuning_parse_explain(line, &tuning, why, sizeof why);
    if (!is_tuned) fprintf(stderr, "rapt-bench: --tuning: %s\n", why);
    return is_tuned;
}

const rapt_tuning *bench_tuning(const char *isa) {
    return is_tuned && (!tuning.isa || !strcmp(tuning.isa, isa)) ? &tuning : NULL;
}
