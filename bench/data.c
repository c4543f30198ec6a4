/* SPDX-License-Identifier: Apache-2.0 */
#include "data.h"

#include <string.h>

size_t bench_type_bytes(rapt_type type) { return type == RAPT_F32 ? 4 : 2; }

const char *bench_type_name(rapt_type type) { return type == RAPT_F32 ? "f32" : type == RAPT_F16 ? "f16" : "bf16"; }

static uint32_t mix(uint32_t x) {
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

static float bell(uint32_t bits) {
    int sum = 0;
    for (int i = 0; i < 4; i++) sum += (int)(bits >> 8 * i & 127);
    return (float)(sum - 254) / 64;
}

void bench_fill(void *to, rapt_type type, int64_t count, uint32_t seed) {
    seed = mix(seed);
    for (int64_t i = 0; i < count; i++) {
        float x = bell(mix(seed + (uint32_t)i));
        uint32_t f32;
        memcpy(&f32, &x, sizeof f32);
        uint16_t bf16 = (uint16_t)(f32 >> 16);
        uint16_t f16 = x == 0 ? 0 : (uint16_t)((f32 >> 16 & 0x8000) | ((f32 & 0x7fffffff) - (112u << 23)) >> 13);
        if (type == RAPT_F32) ((uint32_t *)to)[i] = f32;
        else ((uint16_t *)to)[i] = type == RAPT_F16 ? f16 : bf16;
    }
}
