/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of elements, processed one element at a time by the words of the scalar kernels. */
#include "cache/rows.h"

#include "kernel.h"

/* The scalar kernels' words. s_fma, in which the rounding classes differ, is not called here, but the words require that it
 * exists. */
static inline float s_fma(float a, float b, float c) { return a * b + c; }

#include "generic/scalar_words.h"
#include "types/type_words.h"

void rapt_load_row(rapt_type type, float *to, const char *from, int64_t channels) {
    switch (type) {
#define RAPT_TYPE(name, suffix, group, bytes)                                                                                    \
    case name:                                                                                                                   \
        for (int64_t i = 0; i < channels; i++) to[i] = v_load_##suffix(from + i * bytes);                                        \
        break;
        RAPT_ELEMENT_TYPES(RAPT_TYPE)
#undef RAPT_TYPE
    default:
        break;
    }
}

void rapt_store_row(rapt_type type, char *to, const float *from, int64_t channels) {
    switch (type) {
#define RAPT_TYPE(name, suffix, group, bytes)                                                                                    \
    case name:                                                                                                                   \
        for (int64_t i = 0; i < channels; i++) v_store_##suffix(to + i * bytes, from[i]);                                        \
        break;
        RAPT_ELEMENT_TYPES(RAPT_TYPE)
#undef RAPT_TYPE
#define RAPT_TYPE(name, suffix, group, bytes)                                                                                    \
    case name:                                                                                                                   \
        for (int64_t i = 0; i < channels / group; i++) store_group_##suffix((uint8_t *)to + i * bytes, from + i * group);        \
        break;
        RAPT_CACHE_TYPES(RAPT_TYPE)
#undef RAPT_TYPE
    default:
        break;
    }
}

float rapt_largest_of(rapt_type type) {
    return type == RAPT_INT8 ? 127.0f : type == RAPT_F8_E4M3 ? 448.0f : type == RAPT_F8_E5M2 ? 57344.0f : 0.0f;
}

/* Returns x / scale, or 0 if the scale is 0. */
static float quotient(float x, float scale) { return scale == 0.0f ? 0.0f : x / scale; }

void rapt_divide_row(float *row, int64_t channels, const char *scales, int64_t stride) {
    for (int64_t i = 0; i < channels; i++) row[i] = quotient(row[i], v_load(scales + i * stride));
}

void rapt_extend(rapt_extent *e, const float *row, int64_t channels) {
    for (int64_t i = 0; i < channels; i++) {
        float size = magnitude_of(row[i]);
        e->most = size > e->most ? size : e->most;
        e->none += row[i] - row[i];
    }
}

float rapt_scale_of(rapt_type type, const rapt_extent *e) {
    return e->none == 0.0f ? e->most / rapt_largest_of(type) : v_as_float(0x7fc00000);
}

void rapt_divide_by(float *row, int64_t channels, const rapt_extent *e, float scale) {
    for (int64_t i = 0; i < channels; i++) row[i] = e->none == 0.0f ? quotient(row[i], scale) : 0.0f;
}

float rapt_find_scale(rapt_type type, float *row, int64_t channels) {
    rapt_extent e = {0};
    rapt_extend(&e, row, channels);
    float scale = rapt_scale_of(type, &e);
    rapt_divide_by(row, channels, &e, scale);
    return scale;
}
