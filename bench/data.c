/* SPDX-License-Identifier: Apache-2.0 */
#include "data.h"

#include <string.h>

const bench_type bench_types[BENCH_TYPES] = {
    {"f32", RAPT_F32, RAPT_F32, RAPT_EXACT, false},           {"f16", RAPT_F16, RAPT_F16, RAPT_EXACT, false},
    {"bf16", RAPT_BF16, RAPT_BF16, RAPT_EXACT, false},        {"f8_e4m3", RAPT_F32, RAPT_F8_E4M3, RAPT_EXACT, false},
    {"f8_e5m2", RAPT_F32, RAPT_F8_E5M2, RAPT_EXACT, false},   {"int8", RAPT_F32, RAPT_INT8, RAPT_EXACT, true},
    {"int8-dot", RAPT_F32, RAPT_INT8, RAPT_INT8_DOT, true},   {"int4", RAPT_F32, RAPT_INT4, RAPT_EXACT, false},
    {"int4_min", RAPT_F32, RAPT_INT4_MIN, RAPT_EXACT, false}, {"q8_0", RAPT_F32, RAPT_Q8_0, RAPT_EXACT, false},
    {"q4_0", RAPT_F32, RAPT_Q4_0, RAPT_EXACT, false},         {"q4_1", RAPT_F32, RAPT_Q4_1, RAPT_EXACT, false},
    {"q5_0", RAPT_F32, RAPT_Q5_0, RAPT_EXACT, false},         {"q5_1", RAPT_F32, RAPT_Q5_1, RAPT_EXACT, false},
};

uint32_t bench_mix(uint32_t x) {
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

static float bell(uint32_t bits) {
    int sum = 0;
    for (int i = 0; i < 4; i++) sum += (int)(bits >> 8 * i & 127);
    return (float)(sum - 254) / 64;
}

/* Bytes of a row of 32 channels: where groups begin, with their scale and perhaps their minimum. */
static void fill_numbers(uint8_t *to, rapt_type type, size_t bytes, uint32_t seed) {
    size_t group = (size_t)rapt_row_bytes(type, 32);
    bool grouped = type >= RAPT_INT4, minimum = type == RAPT_INT4_MIN || type == RAPT_Q4_1 || type == RAPT_Q5_1;
    for (size_t i = 0; i < bytes; i++) {
        to[i] = (uint8_t)bench_mix(seed + (uint32_t)i);
        if (type == RAPT_F8_E4M3 || type == RAPT_F8_E5M2) to[i] &= 0xbf; /* below 2 */
        size_t at = i % group;
        if (grouped && (at == 1 || (minimum && at == 3))) to[i] = (uint8_t)(0x20 | (to[i] & 0x83)); /* f16 of about 2^-7 */
    }
}

void bench_fill(void *to, rapt_type type, size_t bytes, uint32_t seed) {
    seed = bench_mix(seed);
    if (type > RAPT_BF16) {
        fill_numbers(to, type, bytes, seed);
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
