/* SPDX-License-Identifier: Apache-2.0 */
#include "convert.h"

#include <string.h>

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float f16_to_float(uint32_t half) {
    const uint32_t sign = (half & 0x8000) << 16, magnitude = half & 0x7fff;
    if (magnitude >= 0x7c00) return float_of(sign | 0x7f800000 | magnitude << 13);
    if (magnitude < 0x0400) return float_of(sign | bits_of((float)magnitude * 0x1p-24f));
    return float_of(sign | (magnitude + (112 << 10)) << 13);
}

static uint32_t f16_from_float(float value) {
    const uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return sign | 0x7e00 | (magnitude >> 13 & 0x3ff);
    if (magnitude >= 0x477ff000) return sign | 0x7c00; /* 65520, halfway to 65536, and above */
    /* Below 2^-14 the result is a multiple of 2^-24, to which adding 0.5 rounds: it is the unit in the last place of floats from
     * 0.5 to 1. */
    if (magnitude < 0x38800000) return sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f));
    return sign | (magnitude - (112 << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
}

static uint32_t bf16_from_float(float value) {
    const uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return bits >> 16 | 0x40;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

float convert_to_float(rapt_type type, uint32_t bits) {
    return type == RAPT_F16 ? f16_to_float(bits) : float_of(type == RAPT_BF16 ? bits << 16 : bits);
}

uint32_t convert_from_float(rapt_type type, float value) {
    return type == RAPT_F16 ? f16_from_float(value) : type == RAPT_BF16 ? bf16_from_float(value) : bits_of(value);
}
