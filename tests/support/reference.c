/* SPDX-License-Identifier: Apache-2.0 */
#include "reference.h"
#include "fused.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 64, CHUNK = 512, STEP = 32, SCORE_WHOLE = 128, SCORE_PART = 64, Q_MOST = 127 };

static const double u = 0x1p-24;

/* Below it a weight e^x is 0 (docs/order.md, D.9), which rounds its argument: by less than the margin. */
static const double WEIGHT_VANISHES = -126.5 * 0.6931471805599453, WEIGHT_MARGIN = 1e-3;

/* RAPT_BF16_DOT: the relative error of rounding to bf16, and below what numbers count as 0. */
static const double U_BF16 = 0x1p-8, LEAST_BF16 = 0x1p-56;

static double gamma_n(double n) { return n * u / (1 - n * u); }

int64_t reference_type_bytes(rapt_type type) { return type == RAPT_F32 ? 4 : 2; }

/* 2^n, for n from -1022 to 1023. With ldexp in its place that took 28 % of the time of tests/decode (Zen 3). */
static double power_of(int n) {
    const uint64_t bits = (uint64_t)(n + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return power;
}

/* sign, exponent bits, fraction bits: the value, where the largest exponent is for infinities and NaNs. */
static double small_float(unsigned bits, int exponent_bits, int fraction_bits) {
    const int exponent = bits >> fraction_bits & ((1u << exponent_bits) - 1), top = (1 << exponent_bits) - 1, bias = top >> 1;
    const double fraction = bits & ((1u << fraction_bits) - 1), one = power_of(fraction_bits);
    const double size = exponent == top ? (fraction != 0 ? NAN : INFINITY)
                        : exponent == 0 ? fraction * power_of(1 - bias - fraction_bits)
                                        : (one + fraction) * power_of(exponent - bias - fraction_bits);
    return bits >> (exponent_bits + fraction_bits) & 1 ? -size : size;
}

/* f16 in a group, little-endian. */
static double half_at(const unsigned char *at) { return small_float(at[0] | (unsigned)at[1] << 8, 5, 10); }

static double byte_value(rapt_type type, unsigned char byte) {
    if (type == RAPT_INT8) return byte < 128 ? byte : byte - 256;
    if (type == RAPT_F8_E5M2) return small_float(byte, 5, 2);
    if ((byte & 127) == 127) return NAN;
    return small_float((byte & 128u) << 1 | (byte & 127u), 5, 3) * 0x1p8; /* a wider exponent, whose top is never reached */
}

/* Where a group has what: its channels, bytes in all, of the minimum, of the fifth bits and of the numbers, -1 for none; the
 * number that stands for 0, the largest one, and whether two adjacent channels share a byte. */
typedef struct group_format {
    int channels, bytes, minimum, fifths, numbers, zero, most;
    bool adjacent;
} group_format;

static group_format format_of(rapt_type type) {
    switch ((int)type) {
    case RAPT_INT4:
        return (group_format){32, 18, -1, -1, 2, 8, 15, true};
    case RAPT_INT4_MIN:
        return (group_format){32, 20, 2, -1, 4, 0, 15, true};
    case RAPT_Q8_0:
        return (group_format){32, 34, -1, -1, 2, 0, 127, false};
    case RAPT_Q4_0:
        return (group_format){32, 18, -1, -1, 2, 8, 15, false};
    case RAPT_Q4_1:
        return (group_format){32, 20, 2, -1, 4, 0, 15, false};
    case RAPT_Q5_0:
        return (group_format){32, 22, -1, 2, 6, 16, 31, false};
    case RAPT_Q5_1:
        return (group_format){32, 24, 2, 4, 8, 0, 31, false};
    case RAPT_MXFP4:
        return (group_format){.channels = 32, .bytes = 17};
    case RAPT_MXFP8_E4M3:
        return (group_format){.channels = 32, .bytes = 33};
    case RAPT_NVFP4:
        return (group_format){.channels = 16, .bytes = 9};
    case RAPT_Q4_K:
        return (group_format){.channels = 256, .bytes = 144};
    case RAPT_Q6_K:
        return (group_format){.channels = 256, .bytes = 210};
    default:
        return (group_format){.channels = 1};
    }
}

/* OCP MX and NVFP4: a byte with the scale, or its exponent, comes first, then floats of few bits. */
static bool has_byte_scale(rapt_type type) { return type == RAPT_MXFP4 || type == RAPT_MXFP8_E4M3 || type == RAPT_NVFP4; }

static double byte_scale(rapt_type type, const unsigned char *group) {
    if (type == RAPT_NVFP4) return byte_value(RAPT_F8_E4M3, *group);
    return *group == 255 ? NAN : power_of(*group - 127);
}

static const double e2m1[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

static float byte_scale_element(rapt_type type, const unsigned char *group, int i) {
    const double scale = byte_scale(type, group);
    if (type == RAPT_MXFP8_E4M3) return (float)(scale * byte_value(RAPT_F8_E4M3, group[1 + i]));
    const int half = format_of(type).channels / 2;
    const unsigned code = group[1 + i % half] >> i / half * 4 & 15;
    return (float)(scale * (code & 8 ? -e2m1[code & 7] : e2m1[code & 7]));
}

int reference_group(rapt_type type) { return format_of(type).channels; }

int64_t reference_row_bytes(rapt_type type, int64_t channels) {
    const group_format f = format_of(type);
    if (f.bytes) return channels % f.channels ? -1 : channels / f.channels * f.bytes;
    if (type == RAPT_BIT) return (channels + 7) / 8;
    return channels * (type == RAPT_F32 || type == RAPT_I32 ? 4 : type == RAPT_F16 || type == RAPT_BF16 ? 2 : 1);
}

/* The byte of channel i's number in a group, and by how much it is shifted there. */
static int number_at(const group_format *f, int i, int *shift) {
    *shift = f->most == 127 ? 0 : f->adjacent ? i % 2 * 4 : i / 16 * 4;
    return f->numbers + (f->most == 127 ? i : f->adjacent ? i / 2 : i % 16);
}

/* The integer of an element of a group, and of a row of groups. */
static double number_of(rapt_type type, const unsigned char *group, int i) {
    const group_format f = format_of(type);
    int shift, at = number_at(&f, i, &shift);
    double number = type == RAPT_Q8_0 ? byte_value(RAPT_INT8, group[at]) : group[at] >> shift & 15;
    if (f.fifths >= 0) number += (group[f.fifths + i / 8] >> i % 8 & 1) * 16;
    return number - f.zero;
}
static float group_number(rapt_type type, const unsigned char *row, int64_t channel) {
    const group_format f = format_of(type);
    return (float)number_of(type, row + channel / f.channels * f.bytes, (int)(channel % f.channels));
}

/* ggml's blocks of 256 channels, by its dequantize_row_q4_K and dequantize_row_q6_K. */
static bool is_block(rapt_type type) { return type == RAPT_Q4_K || type == RAPT_Q6_K; }

/* The integer of channel i, its scale, and its minimum. */
typedef struct block_number {
    int number, scale, minimum;
} block_number;

static block_number block_number_of(rapt_type type, const unsigned char *block, int i) {
    const int j = i / 32;
    if (type == RAPT_Q4_K) {
        const unsigned char *const q = block + 4;
        const int scale = j < 4 ? q[j] & 63 : (q[j + 4] & 15) | (q[j - 4] >> 6) << 4,
                  minimum = j < 4 ? q[j + 4] & 63 : (q[j + 4] >> 4) | (q[j] >> 6) << 4;
        return (block_number){block[16 + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15, scale, minimum};
    }
    const unsigned char low = block[i / 128 * 64 + i % 64], high = block[128 + i / 128 * 32 + i % 32];
    const int number = (low >> (i % 128 / 64 * 4) & 15) | (high >> (i % 128 / 32 * 2) & 3) << 4;
    return (block_number){number - 32, (int)byte_value(RAPT_INT8, block[192 + i / 16]), 0};
}

static double block_scale(rapt_type type, const unsigned char *block) { return half_at(block + (type == RAPT_Q6_K ? 208 : 0)); }
static double block_minimum(rapt_type type, const unsigned char *block) { return type == RAPT_Q6_K ? 0 : half_at(block + 2); }

static float group_element(rapt_type type, const unsigned char *group, int i) {
    if (is_block(type)) {
        const block_number n = block_number_of(type, group, i);
        const double product = block_scale(type, group) * n.scale * n.number;
        return (float)(type == RAPT_Q6_K ? product : product - block_minimum(type, group) * n.minimum);
    }
    if (has_byte_scale(type)) return byte_scale_element(type, group, i);
    const group_format f = format_of(type);
    const double product = half_at(group) * number_of(type, group, i);
    return (float)(f.minimum < 0 ? product : product + half_at(group + f.minimum));
}

float reference_element(rapt_type type, const void *row, int64_t channel) {
    const unsigned char *const at = row;
    const group_format f = format_of(type);
    if (f.bytes) return group_element(type, at + channel / f.channels * f.bytes, (int)(channel % f.channels));
    if (type != RAPT_F32 && type != RAPT_F16 && type != RAPT_BF16) return (float)byte_value(type, at[channel]);
    float value;
    if (type == RAPT_F32) {
        memcpy(&value, at + 4 * channel, sizeof value);
        return value;
    }
    uint16_t half;
    memcpy(&half, at + 2 * channel, sizeof half);
    if (type == RAPT_F16) return (float)small_float(half, 5, 10);
    const uint32_t bits = (uint32_t)half << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

float reference_load(rapt_type type, const void *at) { return reference_element(type, at, 0); }

void reference_store(rapt_type type, void *at, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (type == RAPT_F32) {
        memcpy(at, &bits, sizeof bits);
        return;
    }
    uint16_t half = (uint16_t)(bits >> 16);
    if (type == RAPT_BF16) {
        half = isnan(value) ? half | 0x40 : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    } else {
        const double size = fabs((double)value);
        half &= 0x8000;
        if (isnan(value)) {
            half |= 0x7e00;
        } else if (size >= 65520) {
            half |= 0x7c00;
        } else {
            int exponent;
            frexp(size, &exponent);
            if (size < 0x1p-14) exponent = -13; /* subnormal, or zero */
            half |= (uint16_t)((exponent + 13) * 1024 + (int)rint(size * power_of(11 - exponent)));
        }
    }
    memcpy(at, &half, sizeof half);
}

void reference_store_shared(unsigned char *at, float value) {
    uint16_t half;
    reference_store(RAPT_F16, &half, value);
    at[0] = (unsigned char)half, at[1] = (unsigned char)(half >> 8);
}

/* The nearest of all finite values of that sign; of two as near, the even byte. */
static unsigned char nearest_byte(rapt_type type, float value) {
    if (type == RAPT_INT8) return isnan(value) ? 0 : (unsigned char)(int)fmax(-127, fmin(127, rint((double)value)));
    const unsigned char sign = signbit(value) ? 128 : 0;
    if (isnan(value)) return sign | 127;
    unsigned below = 0, above = type == RAPT_F8_E4M3 ? 126 : 123; /* whose sizes grow from byte to byte */
    const double size = fmin(fabs((double)value), byte_value(type, (unsigned char)above));
    while (above - below > 1) {
        const unsigned middle = (below + above) / 2;
        if (byte_value(type, (unsigned char)middle) <= size) below = middle;
        else above = middle;
    }
    const double to_below = fabs(size - byte_value(type, (unsigned char)below)),
                 to_above = fabs(byte_value(type, (unsigned char)above) - size);
    return sign | (unsigned char)(to_below < to_above || (to_below == to_above && below % 2 == 0) ? below : above);
}

/* One group whose scale is a byte; of two codes as near, the even one. */
static void store_byte_scale_group(rapt_type type, unsigned char *group, const float *x) {
    const int channels = format_of(type).channels, half = channels / 2, most_exponent = type == RAPT_MXFP4 ? 2 : 8;
    double most = 0;
    bool finite = true;
    int exponent;
    memset(group, 0, (size_t)format_of(type).bytes);
    for (int i = 0; i < channels; i++) finite = finite && isfinite(x[i]), most = fmax(most, fabs((double)x[i]));
    frexp(most, &exponent);
    if (type == RAPT_NVFP4) *group = finite ? nearest_byte(RAPT_F8_E4M3, (float)(most / 6)) : 127;
    else *group = (unsigned char)(!finite ? 255 : most == 0 ? 0 : fmax(0, exponent - 1 - most_exponent + 127));
    const double scale = byte_scale(type, group); /* of OCP MX never 0 */
    for (int i = 0; i < channels && finite && scale > 0; i++) {
        if (type == RAPT_MXFP8_E4M3) { /* the quotient is an f32, but where that is far below the least element */
            group[1 + i] = nearest_byte(RAPT_F8_E4M3, (float)(x[i] / scale));
            continue;
        }
        double size = fabs((double)x[i]) / scale;
        if (type == RAPT_NVFP4) size = fmin(6, (float)size);
        unsigned best = 0;
        for (unsigned code = 1; code < 8; code++) {
            const double distance = fabs(e2m1[code] - size), before = fabs(e2m1[best] - size);
            if (distance < before || (distance == before && code % 2 == 0)) best = code;
        }
        group[1 + i % half] |= (unsigned char)((best | (signbit(x[i]) ? 8u : 0u)) << i / half * 4);
    }
}

/* One group, by the definitions in rapt.h; those of ggml's types are the f32 operations of its reference, one after the other. */
static void store_group(rapt_type type, unsigned char *group, const float *x) {
    if (has_byte_scale(type)) {
        store_byte_scale_group(type, group, x);
        return;
    }
    const group_format f = format_of(type);
    const int channels = f.channels;
    const bool ours = f.adjacent;
    float low = x[0], high = x[0], largest = x[0];
    bool finite = true;
    for (int i = 0; i < channels; i++) {
        finite = finite && isfinite(x[i]);
        low = x[i] < low ? x[i] : low; /* of 0 and -0, the first */
        high = x[i] > high ? x[i] : high;
        if (fabsf(x[i]) > fabsf(largest)) largest = x[i];
    }
    memset(group, 0, (size_t)f.bytes);
    float scale = f.minimum >= 0      ? (high - low) / (float)f.most
                  : type == RAPT_Q8_0 ? fabsf(largest) / 127
                                      : largest / -(float)f.zero;
    if (!finite || !isfinite(scale)) {
        reference_store_shared(group, NAN);
        return;
    }
    const float inverse = isfinite(1 / scale) ? 1 / scale : 0;
    reference_store_shared(group, ours ? fmaxf(-65504, fminf(65504, scale)) : scale);
    if (f.minimum >= 0) reference_store_shared(group + f.minimum, ours ? fmaxf(-65504, fminf(65504, low)) : low);
    if (ours) scale = (float)half_at(group);
    if (ours) low = f.minimum >= 0 ? (float)half_at(group + f.minimum) : 0;
    for (int i = 0; i < channels; i++) {
        float number;
        if (type == RAPT_Q8_0) number = roundf(x[i] * inverse);
        else if (ours) number = scale == 0 ? (float)f.zero : rintf(fmaxf(-8, fminf(15, (x[i] - low) / scale))) + (float)f.zero;
        else if (f.minimum >= 0) number = truncf((x[i] - low) * inverse + 0.5f);
        else number = truncf(x[i] * inverse + ((float)f.zero + 0.5f));
        if (type != RAPT_Q8_0) number = fmaxf(0, fminf((float)f.most, number));
        int shift, at = number_at(&f, i, &shift);
        const unsigned n = (unsigned)(int)number;
        group[at] |= (unsigned char)(type == RAPT_Q8_0 ? n : (n & 15) << shift);
        if (f.fifths >= 0) group[f.fifths + i / 8] |= (unsigned char)((n >> 4) << i % 8);
    }
}

bool reference_store_row(rapt_type type, void *row, const float *values, int64_t channels) {
    const group_format f = format_of(type);
    unsigned char *const to = row;
    if (reference_row_bytes(type, channels) < 0) return false;
    const bool is_float = type == RAPT_F32 || type == RAPT_F16 || type == RAPT_BF16;
    for (int64_t c = 0; c < channels; c += f.channels) {
        if (f.bytes) store_group(type, to + c / f.channels * f.bytes, values + c);
        else if (is_float) reference_store(type, to + c * reference_type_bytes(type), values[c]);
        else to[c] = nearest_byte(type, values[c]);
    }
    return true;
}

double reference_half_ulp(rapt_type type, double magnitude) {
    if (type == RAPT_F16) return fmax(magnitude * 0x1p-11, 0x1p-25);
    if (type == RAPT_BF16) return fmax(magnitude * 0x1p-8, 0x1p-134);
    return 0;
}

/* ---- Rows and keys ------------------------------------------------------------------------------------------------------ */

int64_t reference_queries(const rapt_desc *d, int64_t b) { return d->q_starts ? d->q_starts[b + 1] - d->q_starts[b] : d->q_len; }

int64_t reference_query_batch(const rapt_desc *d, int64_t b) { return d->q_starts ? 0 : b; }

int64_t reference_query_token(const rapt_desc *d, int64_t b, int64_t i) { return d->q_starts ? d->q_starts[b] + i : i; }

int64_t reference_row(const rapt_desc *d, int64_t b, int64_t h, int64_t i) {
    const int64_t before = d->q_starts ? d->q_starts[b] - d->q_starts[0] : b * d->q_len;
    return d->heads * before + (b < d->batch ? h * reference_queries(d, b) : 0) + i;
}

int64_t reference_rows(const rapt_desc *d) { return reference_row(d, d->batch, 0, 0); }

/* The keys that there is room for: entry b's own. */
static int64_t capacity(const rapt_desc *d, int64_t b) { return d->k_starts ? d->k_starts[b + 1] - d->k_starts[b] : d->kv_len; }

int64_t reference_length(const rapt_desc *d, const rapt_args *a, int64_t b) {
    if (a->kv_lengths) return a->kv_lengths[b];
    if (d->page_size && a->table_starts && a->last_page) {
        const int64_t pages = a->table_starts[b + 1] - a->table_starts[b];
        return d->kv_first + (pages ? (pages - 1) * d->page_size + a->last_page[b] : 0);
    }
    return d->kv_total ? d->kv_total : d->kv_first + capacity(d, b);
}

void reference_keys(const rapt_desc *d, const rapt_args *a, int64_t b, int64_t *first, int64_t *end) {
    const int64_t length = reference_length(d, a, b), given = d->kv_first + capacity(d, b);
    *first = d->kv_first;
    *end = length < given ? length : given;
    if (*end < *first) *end = *first;
}

void *reference_at(const void *base, const rapt_layout *l, int64_t b, int64_t h, int64_t token) {
    return (unsigned char *)base + b * l->batch_stride + h * l->head_stride + token * l->token_stride;
}

const void *reference_table(const rapt_desc *d, const rapt_args *a, int64_t b, int64_t h, int64_t i, int64_t page) {
    const unsigned char *row = reference_at(a->table, &d->table, a->table_starts ? 0 : b, h, i);
    return row + 4 * ((a->table_starts ? a->table_starts[b] : 0) + page);
}

reference_place reference_key(const rapt_desc *d, const rapt_args *a, int64_t b, int64_t h, int64_t i, int64_t j) {
    int64_t n = j - d->kv_first;
    if (a->ring_starts) n = (a->ring_starts[b] + n) % capacity(d, b);
    if (d->page_size) {
        int32_t page;
        memcpy(&page, reference_table(d, a, b, h, i, n / d->page_size), sizeof page);
        return (reference_place){page, n % d->page_size};
    }
    return d->k_starts ? (reference_place){0, d->k_starts[b] + n} : (reference_place){b, n};
}

const void *reference_scale(const rapt_scales *s, const void *base, int64_t b, int64_t h, reference_place place,
                            int64_t channel) {
    if (!s->present) return NULL;
    const int64_t batch = s->token_stride ? place.batch * s->batch_stride + place.token * s->token_stride : b * s->batch_stride;
    return (const unsigned char *)base + batch + h * s->head_stride + channel * s->channel_stride;
}

int64_t reference_columns(const rapt_desc *d) {
    int64_t longest = d->kv_total ? d->kv_total : d->kv_first + d->kv_len;
    if (d->k_starts) longest = 0;
    for (int64_t b = 0; b < d->batch && d->k_starts; b++)
        if (capacity(d, b) > longest) longest = capacity(d, b);
    return longest;
}

void reference_scored(const rapt_desc *d, int64_t b, int64_t *first, int64_t *end) {
    const int64_t given = d->kv_first + capacity(d, b), columns = reference_columns(d);
    *first = d->kv_first;
    *end = given < columns ? given : columns;
    if (*end < *first) *end = *first;
}

/* The positions that key j and query i of entry b stand at. */
static int64_t key_position(const rapt_args *a, int64_t b, int64_t j) { return j + (a->k_offsets ? a->k_offsets[b] : 0); }

static int64_t query_position(const rapt_desc *d, const rapt_args *a, int64_t b, int64_t i) {
    if (a->q_offsets) return i + a->q_offsets[b];
    return i + key_position(a, b, d->causal == RAPT_CAUSAL_TOP_LEFT ? 0 : reference_length(d, a, b) - reference_queries(d, b));
}

/* The column of a mask or bias that speaks of the key at a position; -1: beyond the last. */
static int64_t column_of(const rapt_desc *d, int64_t columns, int key_stride, int64_t position) {
    if (key_stride == 0) return 0;
    return position < (columns ? columns : reference_columns(d)) ? position : -1;
}

int64_t reference_mask_column(const rapt_desc *d, const rapt_args *a, int64_t b, int64_t j) {
    return column_of(d, d->mask_keys, d->mask_key_stride, key_position(a, b, j));
}

int64_t reference_bias_column(const rapt_desc *d, const rapt_args *a, int64_t b, int64_t j) {
    return column_of(d, d->bias_keys, d->bias_key_stride, key_position(a, b, j));
}

static float bias_of(const rapt_desc *d, const rapt_args *a, int64_t b, int64_t h, int64_t i, int64_t j) {
    const int64_t column = reference_bias_column(d, a, b, j);
    if (column < 0) return d->bias_rest == RAPT_REST_MASKED ? -INFINITY : 0;
    return reference_element(d->bias.type, reference_at(a->bias, &d->bias, b, h, i), column);
}

static bool masked(const rapt_desc *d, const rapt_args *a, int64_t b, int64_t h, int64_t i, int64_t j) {
    const int64_t column = reference_mask_column(d, a, b, j);
    if (column < 0) return d->mask_rest == RAPT_REST_MASKED;
    const unsigned char *row = reference_at(a->mask, &d->mask, b, h, i);
    return d->mask.type == RAPT_BIT ? !(row[column / 8] >> column % 8 & 1) : row[column] == 0;
}

static int64_t divide_down(int64_t a, int64_t b) { return a / b - (a % b < 0); }

bool reference_attends(const rapt_desc *d, const rapt_args *a, int64_t b, int64_t h, int64_t i, int64_t j) {
    const int64_t at = query_position(d, a, b, i), key = key_position(a, b, j);
    const int64_t prefix = a->prefixes ? a->prefixes[b] : d->prefix;
    int64_t first, end;
    reference_keys(d, a, b, &first, &end);
    if (j < first || j >= end) return false;
    const bool right = (d->causal == RAPT_CAUSAL_NONE || key <= at) && (d->window_right < 0 || key <= at + d->window_right);
    if (!right && key >= prefix) return false;
    if (d->window_left >= 0 && key < at - d->window_left) return false;
    if (d->local_chunk && key / d->local_chunk != divide_down(at, d->local_chunk)) return false;
    if (d->block_mask.type) {
        const unsigned char *row = reference_at(a->block_mask, &d->block_mask, b, h, i / d->block_mask_queries);
        if (row[j / d->block_mask_keys] == 0) return false;
    }
    if (d->mask.type && masked(d, a, b, h, i, j)) return false;
    return !d->bias.type || bias_of(d, a, b, h, i, j) != -INFINITY;
}

/* ---- One row ------------------------------------------------------------------------------------------------------------ */

/* Its query, the keys and values of its head as f32 and their scales (1 where there are none), and room for numbers of each
 * key. Key n is at position first + n. */
typedef struct row {
    const rapt_desc *desc;
    const rapt_args *args;
    int64_t b, h, i, first, keys;
    float *q, *k, *v, *k_channel, *v_channel, *k_token, *v_token, *weight;
    double *logit, *slack;
    bool *attended;
    /* RAPT_INT8_DOT: the query as integers, what each counts (NaN if the query is not finite), and by how much an element may be
     * off; whether logits are those of the integers, else the exact ones. */
    float *number;
    double q_step, q_loss;
    bool integers;
    /* The same: the integers of keys and values, and of each group of channels what they count, scales of tokens included in
     * those of values only. Groups are of `channels`; signed: their weights are quantised with signs, to 127; else those of each
     * sign apart, to 255. */
    float *k_number, *k_factor, *v_number, *v_factor;
    int64_t k_groups, k_channels, v_groups, v_channels;
    bool v_signed;
} row;

/* What is found out about a row, as in reference. */
typedef struct row_results {
    double *o, *bound, *size, *lse, *lse_bound;
} row_results;

static float element_of(const row *r, const void *base, const rapt_layout *layout) {
    return reference_load(layout->type, reference_at(base, layout, r->b, r->h, 0));
}

static bool modified(const rapt_desc *d) { return d->softcap > 0 || d->alibi || d->bias.type || d->logits_body; }

static float through_body(const row *r, int64_t n, float logit) {
    const int32_t head = (int32_t)r->h, token = (int32_t)r->i;
    const rapt_logits one = {&logit, 1, 1, 1, 1, r->b, r->first + n, &head, &token};
    r->desc->logits_body(r->args->logits_arg, &one);
    return logit;
}

/* The term that ALiBi adds to the logit of key n. */
static double alibi_term(const row *r, int64_t n) {
    const rapt_desc *d = r->desc;
    const double slope = element_of(r, r->args->slopes, &d->slopes);
    if (d->alibi == RAPT_ALIBI_BIAS) return slope * bias_of(d, r->args, r->b, r->h, r->i, r->first + n);
    return -slope * fabs((double)(query_position(d, r->args, r->b, r->i) - key_position(r->args, r->b, r->first + n)));
}

static float naive_logit(const row *r, int64_t n, float x) {
    const rapt_desc *d = r->desc;
    if (d->softcap > 0) x = d->softcap * tanhf(x / d->softcap);
    if (d->alibi) x += (float)alibi_term(r, n);
    if (d->bias.type && d->alibi != RAPT_ALIBI_BIAS) x += bias_of(d, r->args, r->b, r->h, r->i, r->first + n);
    return d->logits_body ? through_body(r, n, x) : x;
}

static void naive_row(const row *r, float *o) {
    const rapt_desc *d = r->desc;
    const float scale = isnan(d->scale) ? 1 / sqrtf((float)d->d_k) : d->scale;
    const float sink = d->sinks.type ? element_of(r, r->args->sinks, &d->sinks) : -INFINITY;
    float max = sink, sum = 0;
    for (int64_t n = 0; n < r->keys; n++) {
        float score = 0;
        for (int64_t c = 0; c < d->d_k; c++) score += r->q[c] * r->k_channel[c] * r->k[n * d->d_k + c];
        r->weight[n] = r->attended[n] ? naive_logit(r, n, score * r->k_token[n] * scale) : -INFINITY;
        if (r->weight[n] > max) max = r->weight[n];
    }
    for (int64_t n = 0; n < r->keys; n++) sum += r->weight[n] = r->weight[n] == -INFINITY ? 0 : expf(r->weight[n] - max);
    if (sink != -INFINITY) sum += expf(sink - max);
    memset(o, 0, (size_t)d->d_v * sizeof *o);
    for (int64_t n = 0; n < r->keys; n++) {
        if (r->weight[n] == 0) continue;
        for (int64_t c = 0; c < d->d_v; c++) o[c] += r->weight[n] / sum * r->v_token[n] * r->v[n * d->d_v + c];
    }
    for (int64_t c = 0; c < d->d_v; c++) o[c] *= r->v_channel[c];
}

/* The logit of key n with all that modifies it up to a stage, from that without; slack is the error so far. */
static double modified_logit(const row *r, int64_t n, rapt_scores_stage stage, double x, double *slack) {
    const rapt_desc *d = r->desc;
    double e = isinf(x) ? 0 : *slack + 2.01 * u * (fabs(x) + *slack) + 0x1p-149;
    if (d->softcap > 0 && stage != RAPT_SCORES_RAW) {
        const double cap = d->softcap, z = x / cap, within = e + 3 * u * fabs(x);
        const double slope = isinf(x) ? 0 : 1 / pow(cosh(fmin(fmax(0, fabs(z) - within / cap), 700)), 2);
        x = cap * tanh(z);
        e = (slope > 0 ? slope * within : 0) + 5 * u * fabs(x) + 0x1p-149 * (1 + cap);
    }
    const bool all = stage == RAPT_SCORES_LOGITS;
    if (d->alibi && all) {
        const double term = alibi_term(r, n);
        x += term;
        e += 1.01 * u * (fabs(term) + fabs(x) + e);
    }
    if (d->bias.type && d->alibi != RAPT_ALIBI_BIAS && all) {
        x += bias_of(d, r->args, r->b, r->h, r->i, r->first + n);
        e += 1.01 * u * (fabs(x) + e);
    }
    if (d->logits_body && all) {
        e += u * fabs(x);
        x = through_body(r, n, (float)x);
        e += 2.01 * u * fabs(x);
    }
    *slack = e;
    return x;
}

static double scale_of(const rapt_desc *d) { return isnan(d->scale) ? 1 / sqrt((double)d->d_k) : (double)d->scale; }

/* A scale that is multiplied into q, rather than into scores. */
static bool extreme(double scale) { return fabs(scale) < 0x1p-64 || fabs(scale) > 0x1p64; }

/* Step by step as docs/order.md says it: each is an operation of f32, so that the integers are those of the library. */
static void quantise_query(row *r) {
    const rapt_desc *d = r->desc;
    const float by = extreme(scale_of(d)) ? d->scale : d->scale < 0 ? -1 : 1;
    float most = 0;
    bool finite = true;
    for (int64_t c = 0; c < d->d_k; c++) {
        r->number[c] = r->q[c] * by;
        r->number[c] *= r->k_channel[c];
        finite = finite && isfinite(r->number[c]);
        most = fmaxf(most, fabsf(r->number[c]));
    }
    const float factor = Q_MOST / most;
    for (int64_t c = 0; c < d->d_k; c++) {
        const float x = r->number[c] * factor;
        r->number[c] = isfinite(x) ? rintf(x) : 0;
    }
    r->q_step = finite ? most / Q_MOST : NAN;
    r->q_loss = isinf(factor) ? most : most / Q_MOST * (0.5 + 400 * u) + 0x1p-142; /* half a step, and three roundings */
}

/* The logit of key n as integers give it, before anything modifies it. */
static double integer_logit(const row *r, int64_t n, double *slack) {
    const rapt_desc *d = r->desc;
    const double natural = extreme(scale_of(d)) ? 1 : fabs(scale_of(d)), factor = r->k_token[n];
    const bool by_token = d->k_scales.token_stride != 0;
    double sum = 0, sizes = 0;
    for (int64_t g = 0; g < r->k_groups; g++) {
        double products = 0;
        for (int64_t c = g * r->k_channels; c < (g + 1) * r->k_channels; c++)
            products += (double)r->number[c] * r->k_number[n * d->d_k + c];
        sum += products * r->k_factor[n * r->k_groups + g];
    }
    const double logit = sum * r->q_step * factor * natural;
    *slack = gamma_n(1.0 + by_token) * fabs(logit) + 0x1p-149 * natural * (fabs(factor) + by_token);
    if (d->k.type == RAPT_INT8) return logit;
    const double groups = (double)(d->d_k / 32); /* a rounding each, of sums that are no larger than that of all sizes */
    for (int64_t c = 0; c < d->d_k; c++) sizes += fabs((double)r->number[c] * r->k[n * d->d_k + c]);
    *slack +=
        gamma_n(groups + 2) * sizes * fabs(r->q_step * factor) * natural + 0x1p-149 * groups * fabs(r->q_step * factor) * natural;
    return logit;
}

/* A number as bf16 arithmetic multiplies it. */
static float bf16_factor(float x) {
    unsigned char stored[4];
    reference_store(RAPT_BF16, stored, x);
    x = reference_load(RAPT_BF16, stored);
    return fabsf(x) < 0x1p-56f ? 0 : x;
}

/* Of an element of the query and one of a key: what is 0 then, or infinite, times the other one. */
static bool nan_in_bf16(const row *r, int64_t n, int64_t c) {
    const double scale = scale_of(r->desc);
    const float q = r->q[c] * (extreme(scale) ? (float)scale : 1.0f);
    const double factors[2] = {bf16_factor(q * r->k_channel[c]), bf16_factor(r->k[n * r->desc->d_k + c])};
    return isnan(factors[0] * factors[1]);
}

/* The exact logit of key n, likewise, and the most that the library's may be off. */
static double exact_logit(const row *r, int64_t n, double *slack) {
    const rapt_desc *d = r->desc;
    const double scale = scale_of(d), most = fmax(1, fabs(scale));
    const bool by_token = d->k_scales.present && d->k_scales.token_stride, by_channel = d->k_scales.present && !by_token;
    const double factor = r->k_token[n];
    double score = 0, absolute = 0, sizes = 0, underflow = (double)d->d_k * most;
    for (int64_t c = 0; c < d->d_k; c++) {
        const double q = (double)r->q[c] * r->k_channel[c], k = r->k[n * d->d_k + c];
        score += d->arith == RAPT_BF16_DOT && nan_in_bf16(r, n, c) ? NAN : q * k;
        absolute += fabs(q * k);
        sizes += fabs(k);
        underflow += extreme(scale) ? fabs(k) * fmax(1, fabs((double)r->k_channel[c])) : 0;
        underflow += by_channel ? fabs(k) * most : 0;
    }
    underflow = underflow * fabs(factor) + (by_token ? most : 0);
    const int64_t longest = d->d_k <= SCORE_WHOLE ? d->d_k : SCORE_PART, parts = (d->d_k + longest - 1) / longest;
    *slack = gamma_n((double)(longest + parts - 1) + 1 + by_token + by_channel) * absolute * fabs(scale * factor) +
             0x1p-149 * underflow;
    if (d->arith == RAPT_INT8_DOT) *slack += r->q_loss * sizes * fabs(factor) * (extreme(scale) ? 1 : fabs(scale));
    if (d->arith == RAPT_BF16_DOT) {
        const double by = extreme(scale) ? scale : 1, rest = extreme(scale) ? 1 : scale;
        double lost = (2 * U_BF16 + U_BF16 * U_BF16) * absolute * fabs(by);
        for (int64_t c = 0; c < d->d_k; c++)
            lost +=
                LEAST_BF16 * (fabs((double)r->q[c] * r->k_channel[c] * by) + (1 + U_BF16) * fabs((double)r->k[n * d->d_k + c]));
        *slack += lost * fabs(rest * factor);
    }
    return score * factor * scale;
}

/* Where a group's scale is infinite, its elements are infinite or NaN, and exact arithmetic gives NaN for them; a sum of integers
 * times the scale may be infinite. */
static bool infinite_key(const row *r, int64_t n) {
    bool infinite = false;
    for (int64_t g = 0; g < r->k_groups; g++) infinite = infinite || isinf(r->k_factor[n * r->k_groups + g]);
    return infinite;
}

static double plain_logit(const row *r, int64_t n, double *slack) {
    return r->integers || isnan(r->q_step) || infinite_key(r, n) ? integer_logit(r, n, slack) : exact_logit(r, n, slack);
}

static double logit_of(const row *r, int64_t n, double *slack) {
    const double logit = plain_logit(r, n, slack);
    return modified(r->desc) ? modified_logit(r, n, RAPT_SCORES_LOGITS, logit, slack) : logit;
}

/* The end of the block that key n is in. */
static int64_t block_end(const row *r, int64_t n) {
    const int64_t end = n + BLOCK - (r->first + n) % BLOCK;
    return end < r->keys ? end : r->keys;
}

static bool counts(const row *r, int64_t n) { return r->logit[n] != -INFINITY; }

/* Integer arithmetic: the weights of keys [first, end), a block, in units of the row's largest. */
typedef struct weights {
    double most, least, largest; /* W, and between which numbers the library's is */
    double n[BLOCK], off[BLOCK]; /* the integer of each key, and how far the library's may be from it */
} weights;

/* The largest integer that a weight becomes. */
static double p_most(const row *r) { return r->v_signed ? 127 : 255; }

/* What an integer of value n counts in a group of channels. */
static double value_factor(const row *r, int64_t n, int64_t group) { return r->v_factor[n * r->v_groups + group]; }

/* r->slack: delta of each key. running: the chunk's largest logit so far; sign: of the factors of the keys that are meant, or 0
 * for all, whose weights then have that sign. */
static weights quantise_weights(const row *r, int64_t group, int64_t first, int64_t end, double max, double running, int sign) {
    weights w = {.most = 0};
    double weight[BLOCK], top = -INFINITY;
    for (int64_t n = first; n < end; n++) top = fmax(top, r->logit[n]);
    for (int64_t n = first; n < end; n++) {
        const double factor = value_factor(r, n, group), meant = sign ? sign * factor : fabs(factor),
                     x = counts(r, n) && isfinite(factor) ? exp(r->logit[n] - top) * meant : 0;
        weight[n - first] = x < 0 ? 0 : x;
        w.most = fmax(w.most, x);
        w.least = fmax(w.least, x * exp(-r->slack[n]) * (1 - 2 * u));
        w.largest = fmax(w.largest, x * exp(r->slack[n]) * (1 + 2 * u));
    }
    if (w.most == 0) return w;
    const double unit = exp(top - running); /* what a weight in the running unit is in the block's own */
    for (int64_t n = first; n < end; n++) {
        const double most = p_most(r), factor = value_factor(r, n, group), x = most * weight[n - first];
        const double delta = counts(r, n) ? r->slack[n] : 0;
        const double underflow = x > 0 ? most * (0x1p-126 * fabs(factor) + 0x1p-149) / (unit * w.least) : 0;
        const double low = x * exp(-delta) / w.largest * (1 - 8 * u) - underflow;
        const double high = x * exp(delta) / w.least * (1 + 8 * u) + underflow;
        const double from = unit * w.most < 0x1p-119 ? 0 : rint(fmax(0, low)); /* 255 / W may be infinite: then 0 */
        const double nearest = rint(x / w.most);
        w.off[n - first] = fmax(nearest - from, rint(fmin(most, high)) - nearest);
        w.n[n - first] = sign == 0 && factor < 0 ? -nearest : nearest;
    }
    const double scale = exp(top - max);
    w.most *= scale;
    w.least *= scale;
    w.largest *= scale;
    return w;
}

/* Adds to o and bound of a group of channels, neither of them divided by l yet, without the scales of channels. */
static void add_integers(const row *r, int64_t group, int64_t first, int64_t end, const weights *w, int sign, double gamma,
                         const row_results *to) {
    const int64_t d_v = r->desc->d_v, channels = r->v_channels;
    const double p_largest = p_most(r);
    double factor = 1; /* the largest */
    for (int64_t n = first; n < end; n++)
        if (fabs(value_factor(r, n, group)) > factor) factor = fabs(value_factor(r, n, group));
    for (int64_t c = group * channels; c < (group + 1) * channels; c++) {
        double sum = 0, off = 0, size = 0, sizes = 0;
        for (int64_t n = first; n < end; n++) {
            const double v = r->v_number[n * d_v + c];
            if (!counts(r, n)) continue;
            sum += w->n[n - first] * v;
            off += w->off[n - first] * fabs(v);
            size += fabs(w->n[n - first] * v);
            sizes += fabs(v);
        }
        const double spread = fmax(w->largest - w->most, w->most - w->least);
        to->o[c] += (sign < 0 ? -1 : 1) * w->most * sum / p_largest;
        to->size[c] += w->most * size / p_largest;
        to->bound[c] +=
            (spread * fabs(sum) + w->largest * (off + gamma * (fabs(sum) + off))) / p_largest + 0x1p-125 * factor * sizes;
    }
}

/* The same for all keys, and the rest of the bound. uncertain: of each channel, whether a value that is not finite may have a
 * weight of 0, and no part in it. */
static void integer_values(const row *r, double max, double sum, double low, double high, double gamma, bool *uncertain,
                           const row_results *to) {
    const rapt_desc *d = r->desc;
    double running = -INFINITY;
    bool finite = true, finite_group[RAPT_MAX_HEAD_DIM / 32], unsure[RAPT_MAX_HEAD_DIM / 32] = {false};
    for (int64_t g = 0; g < r->v_groups; g++) finite_group[g] = true;
    for (int64_t first = 0, end; first < r->keys; first = end) {
        end = block_end(r, first);
        if ((r->first + first) % CHUNK == 0) running = -INFINITY;
        bool any = false;
        for (int64_t n = first; n < end; n++) {
            if (!counts(r, n)) continue;
            any = true;
            running = fmax(running, r->logit[n]);
            finite = finite && isfinite(r->logit[n]);
        }
        for (int64_t n = first; n < end; n++) {
            const double t = r->logit[n] - running;
            for (int64_t g = 0; g < r->v_groups && counts(r, n); g++) {
                if (isfinite(value_factor(r, n, g)) || t + r->slack[n] < WEIGHT_VANISHES - WEIGHT_MARGIN) continue;
                if (t - r->slack[n] < WEIGHT_VANISHES + WEIGHT_MARGIN) unsure[g] = true;
                else finite_group[g] = false;
            }
        }
        for (int64_t g = 0; g < r->v_groups && any; g++)
            for (int sign = r->v_signed ? 0 : 1; sign >= -1; sign -= 2) {
                const weights w = quantise_weights(r, g, first, end, max, running, sign);
                if (w.most > 0) add_integers(r, g, first, end, &w, sign, gamma, to);
            }
    }
    for (int64_t c = 0; c < d->d_v; c++) {
        const double factor = r->v_channel[c];
        to->o[c] = finite && finite_group[c / r->v_channels] ? to->o[c] / sum : NAN;
        uncertain[c] = unsure[c / r->v_channels] && finite_group[c / r->v_channels] && finite;
        to->bound[c] = (to->bound[c] + (high - sum) * fabs(to->o[c])) / low * fabs(factor);
        to->size[c] = to->size[c] / sum * fabs(factor);
        to->o[c] *= factor;
    }
}

/* What weights that become integers add to the bound of exact ones, which is not divided by l yet: half a step for each key. */
static void add_steps(const row *r, double max, double *bound) {
    const int64_t d_v = r->desc->d_v;
    for (int64_t first = 0, end; first < r->keys; first = end) {
        end = block_end(r, first);
        for (int64_t g = 0; g < r->v_groups; g++) {
            double largest = 0;
            for (int64_t n = first; n < end; n++)
                if (counts(r, n)) largest = fmax(largest, exp(r->logit[n] - max + r->slack[n]) * fabs(value_factor(r, n, g)));
            const double half = largest * (0.5 + 2048 * u) / p_most(r) + 0x1p-118;
            for (int64_t n = first; n < end; n++)
                for (int64_t c = g * r->v_channels; c < (g + 1) * r->v_channels && counts(r, n); c++)
                    bound[c] += half * fabs((double)r->v_number[n * d_v + c] * r->v_channel[c]);
        }
    }
}

static void double_row(const row *r, const row_results *to) {
    const rapt_desc *d = r->desc;
    double *const o = to->o, *const bound = to->bound, *const size = to->size;
    const int64_t d_v = d->d_v;
    const bool scaled = d->v_scales.present, by_token = scaled && d->v_scales.token_stride;
    const double sink = d->sinks.type ? element_of(r, r->args->sinks, &d->sinks) : -INFINITY, sink_slack = 3 * u * fabs(sink);

    double max = -INFINITY, top = -INFINITY;
    int64_t keys = 0, first = 0, last = 0;
    for (int64_t n = 0; n < r->keys; n++) {
        r->logit[n] = r->attended[n] ? logit_of(r, n, &r->slack[n]) : -INFINITY;
        if (r->logit[n] == -INFINITY) continue;
        max = fmax(max, r->logit[n]);
        top = fmax(top, r->logit[n] + r->slack[n]);
        if (keys++ == 0) first = r->first + n;
        last = r->first + n;
    }
    if (sink != -INFINITY) {
        max = fmax(max, sink);
        top = fmax(top, sink + sink_slack);
    }
    top -= max; /* T */

    memset(o, 0, (size_t)d_v * sizeof *o);
    memset(bound, 0, (size_t)d_v * sizeof *bound);
    memset(size, 0, (size_t)d_v * sizeof *size);
    /* Weight 0, so nothing but the NaN that 0 * inf and 0 * NaN are; integer arithmetic leaves such values out. */
    for (int64_t n = 0; n < r->keys && d->arith != RAPT_INT8_DOT; n++)
        for (int64_t c = 0; c < d_v && r->attended[n] && r->logit[n] == -INFINITY; c++)
            o[c] += 0 * r->v_token[n] * r->v[n * d_v + c];
    *to->lse = isnan(sink) ? sink : max;
    *to->lse_bound = keys ? 0 : isfinite(sink) ? sink_slack + u * fabs(sink) + 0x1p-149 : 0;
    if (keys == 0 && !isnan(sink)) return;

    const double blocks = fmin((double)(last / BLOCK - first / BLOCK + 1), CHUNK / BLOCK);
    const double merges = (double)(last / CHUNK - first / CHUNK) + (d->sinks.type != 0);
    const double rises = blocks - 1 + merges;
    const double n_block = r->integers ? 2 + 2 * blocks : fmin((double)keys, CHUNK) + 1;
    const double n_l = 20 + blocks + merges + rises, n_o = n_block + merges + rises + scaled, gamma = gamma_n(n_l + n_o + 2);

    const bool bf16 = d->arith == RAPT_BF16_DOT;
    const double weight_slack = bf16 ? U_BF16 * 1.05 : 0; /* its rounding, and the error of the exponential */
    double sum = 0, low = 0, high = 0;
    bool uncertain[RAPT_MAX_HEAD_DIM] = {false}; /* an infinite value's weight may underflow to 0, and 0 * inf is NaN */
    const double least = (bf16 ? -56 : -126) * log(2);
    if (sink != -INFINITY) {
        const double t = sink - max, delta = sink_slack + 4 * u * (sink_slack + top - t) + 4 * u * (1 + rises);
        sum = exp(t);
        low = exp(t - delta);
        high = exp(t + delta);
    }
    for (int64_t n = 0; n < r->keys; n++) {
        if (r->logit[n] == -INFINITY) continue;
        const double weight = exp(r->logit[n] - max);
        sum += weight;
        for (int64_t c = 0; c < d_v && !r->integers; c++) o[c] += weight * r->v_token[n] * r->v[n * d_v + c];
    }
    for (int64_t c = 0; c < d_v && !r->integers; c++) o[c] = o[c] / sum * r->v_channel[c];

    for (int64_t n = 0; n < r->keys; n++) {
        if (r->logit[n] == -INFINITY) continue;
        const double t = r->logit[n] - max, slack = r->slack[n];
        const double delta = slack + 4 * u * (slack + top - t) + 4 * u * (1 + rises) + weight_slack;
        const double weight = exp(t), most = exp(t + delta);
        low += exp(t - delta) - (bf16 ? LEAST_BF16 : 0);
        high += most;
        r->slack[n] = delta;
        for (int64_t c = 0; c < d_v && !r->integers; c++) {
            const double stored = (double)r->v[n * d_v + c] * r->v_channel[c], v = stored * r->v_token[n];
            size[c] += weight * fabs(v);
            if ((isinf(v) || (d->arith == RAPT_INT8_DOT && isnan(v))) && t - delta < least) uncertain[c] = true;
            bound[c] += (most - weight) * fabs(v - o[c]) + (gamma * most + 0x1p-126) * fabs(v);
            if (bf16) bound[c] += most * (U_BF16 * fabs(v) + LEAST_BF16) + LEAST_BF16 * (fabs(v - o[c]) + fabs(v));
            if (by_token) bound[c] += 0x1p-149 * fabs(stored);
        }
    }
    if (r->integers) integer_values(r, max, sum, low, high, gamma, uncertain, to);
    else if (d->arith == RAPT_INT8_DOT) add_steps(r, max, bound);
    for (int64_t c = 0; c < d_v; c++) {
        if (!r->integers) size[c] /= sum, bound[c] /= low;
        bound[c] += 0x1p-149 * (n_o + 2) * fmax(1, fabs((double)r->v_channel[c]));
        if (d->arith == RAPT_INT8_DOT && uncertain[c]) {
            if (!r->integers) o[c] = 0, bound[c] = INFINITY; /* nothing is known of what is left */
            bound[c] = isnan(bound[c]) ? -INFINITY : -bound[c];
        } else if (isinf(o[c])) bound[c] = uncertain[c] ? NAN : 0;
        else if (isnan(bound[c])) bound[c] = INFINITY; /* 0 * inf: an error of any size, of equal values */
    }
    *to->lse = max + log(sum);
    *to->lse_bound = fmax(log(high / sum), log(sum / low)) + gamma_n(n_l) + (double)keys * 0x1p-126 + 4 * u * log(sum) +
                     2 * u * (fabs(max) + top) + u * fabs(*to->lse);
}

/* What rapt_args.scores receives of the row: for each key that exists the score and its bound. double_row was called before, and
 * left delta of each attended key in slack. */
static void score_row(const row *r, const row_results *of, double *score, double *bound) {
    const rapt_desc *d = r->desc;
    const double total = expm1(*of->lse_bound) + gamma_n(64 + (double)r->keys / BLOCK); /* of l, and of the last products */
    for (int64_t n = 0; n < r->keys; n++) {
        double *const x = &score[r->first + n], *const e = &bound[r->first + n];
        const bool any = r->attended[n] && r->logit[n] != -INFINITY;
        if (d->scores_stage != RAPT_SCORES_WEIGHTS) {
            *x = plain_logit(r, n, e);
            *x = modified_logit(r, n, d->scores_stage, *x, e);
            if (d->scores_stage == RAPT_SCORES_LOGITS && !r->attended[n]) *x = -INFINITY;
            if (isinf(*x)) *e = 0;
        } else if (!any) {
            *x = *e = 0;
        } else {
            *x = exp(r->logit[n] - *of->lse);
            *e = *x * (expm1(r->slack[n]) + total) * 1.001 + 0x1p-126;
            if (isnan(*x) && r->logit[n] < INFINITY)
                *x = 0, *e = NAN; /* one beside a NaN may have become 0 before the division */
        }
    }
}

float reference_multiply_add(bool fused, float a, float b, float c) {
    if (fused) return fused_multiply_add(a, b, c);
    const volatile float product = a * b;
    return product + c;
}

/* ---- One row of bf16 arithmetic, as docs/order.md says it --------------------------------------------------------------- */

/* exp2(d), factor c. */
static float power_of_two(bool fused, float d, float c, float least) {
    static const float b[] = {0x1.5f082ep-10f, 0x1.3b2dep-7f, 0x1.c6af7cp-5f, 0x1.ebfbdcp-3f, 0x1.62e43p-1f, 1.0f};
    const float x = d < least ? least : d, t = reference_multiply_add(fused, x, c, 12583039.0f), n = 12583039.0f - t,
                f = reference_multiply_add(fused, x, c, n);
    float p = 0x1.416b5ep-13f, power;
    uint32_t bits;
    for (int i = 0; i < 6; i++) p = reference_multiply_add(fused, p, f, b[i]);
    memcpy(&bits, &t, sizeof bits);
    bits <<= 23;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

static float hyperbolic_tangent(bool fused, float x) {
    static const float b[] = {0x1.51f8cep-6f, -0x1.b835a4p-5f, 0x1.1106f6p-3f, -0x1.555532p-2f};
    const float a = fabsf(x), z = a * a;
    float p = -0x1.750ce4p-8f;
    for (int i = 0; i < 4; i++) p = reference_multiply_add(fused, p, z, b[i]);
    const float e = power_of_two(fused, -a, 0x1.715476p+1f, -127.0f / 0x1.715476p+1f);
    return copysignf(a < 0.625f ? reference_multiply_add(fused, a * z, p, a) : (1.0f - e) / (1.0f + e), x);
}

static float natural_logarithm(bool fused, float x) {
    static const float b[] = {0x1.23d312p-2f, 0x1.999c28p-2f, 0x1.555554p-1f};
    int e;
    float y = frexpf(x, &e) * 2; /* from 1 to 2 */
    e--;
    if (y > 0x1.6a09e4p+0f) y /= 2, e++;
    const float s = (y - 1) / (y + 1), z = s * s;
    float p = 0x1.f161d2p-3f;
    for (int i = 0; i < 3; i++) p = reference_multiply_add(fused, p, z, b[i]);
    return reference_multiply_add(fused, (float)e, 0x1.62e43p-1f, reference_multiply_add(fused, s * z, p, 2 * s));
}

/* 2^(d c), rounded to bf16. */
static float bf16_weight(bool fused, float d, float c) {
    static const float b[] = {0x1.d23798p-3f, 0x1.63e658p-1f, 1.0f + 98304.0f};
    if (isnan(d)) return NAN;
    if (d < -56.0f / c) return 0;
    const double product = fused ? (double)d * c : (double)(d * c);
    const float n = (float)floor(product), f = reference_multiply_add(fused, d, c, -n);
    float p = 0x1.3baa9p-4f;
    for (int i = 0; i < 3; i++) p = reference_multiply_add(fused, p, f, b[i]);
    return ldexpf(p - 98304.0f, (int)n);
}

/* <a, b> in steps; element i of b lies at b[i * stride], and element 0 is number `first` of its step. */
static float bf16_product(bool fused, const float *a, const float *b, int64_t stride, int64_t n, int64_t first) {
    float sum = 0;
    for (int64_t i = 0; i < n;) {
        float parity[2] = {0, 0};
        do parity[(first + i) % 2] = reference_multiply_add(fused, a[i], b[i * stride], parity[(first + i) % 2]);
        while (++i < n && (first + i) % STEP);
        sum += parity[0] + parity[1];
    }
    return sum;
}

typedef struct bf16_state {
    float m, l, o[RAPT_MAX_HEAD_DIM];
} bf16_state;

static void absorb(bool fused, bf16_state *s, const bf16_state *next, float c, int64_t d_v) {
    const float m = s->m > next->m ? s->m : next->m, t = m > -FLT_MAX ? m : -FLT_MAX, least = -127.0f / c;
    const float a = power_of_two(fused, s->m - t, c, least), b = power_of_two(fused, next->m - t, c, least);
    s->m = m;
    s->l = reference_multiply_add(fused, s->l, a, next->l * b);
    for (int64_t i = 0; i < d_v; i++) s->o[i] = reference_multiply_add(fused, s->o[i], a, next->o[i] * b);
}

/* The logit of key n from its score, where anything modifies it. */
static float bf16_logit(bool fused, const row *r, int64_t n, float x) {
    const rapt_desc *d = r->desc;
    const int64_t j = r->first + n, block = j - j % BLOCK;
    if (d->softcap > 0) x = d->softcap * hyperbolic_tangent(fused, x * (1 / d->softcap));
    if (d->alibi == RAPT_ALIBI_DISTANCE) {
        const int64_t from = key_position(r->args, r->b, block);
        const float distance = fabsf((float)(query_position(d, r->args, r->b, r->i) - from) - (float)(j - block));
        x = reference_multiply_add(fused, -element_of(r, r->args->slopes, &d->slopes), distance, x);
    }
    if (d->bias.type) {
        const float bias = bias_of(d, r->args, r->b, r->h, r->i, j);
        x = bias == -INFINITY             ? -INFINITY
            : d->alibi == RAPT_ALIBI_BIAS ? reference_multiply_add(fused, element_of(r, r->args->slopes, &d->slopes), bias, x)
                                          : x + bias;
    }
    return d->logits_body ? through_body(r, n, x) : x;
}

static void bf16_row(bool fused, const row *r, float *o, float *lse) {
    const rapt_desc *d = r->desc;
    const double scale = isnan(d->scale) ? (double)(float)(1 / sqrt((double)d->d_k)) : (double)d->scale;
    const bool ordinary = !extreme(scale), by_token = d->v_scales.present && d->v_scales.token_stride;
    const float factor = ordinary ? (scale < 0 ? -1.0f : 1.0f) : (float)scale, score_natural = ordinary ? (float)fabs(scale) : 1;
    const float c = (float)((ordinary && !modified(d) ? fabs(scale) : 1) * 1.4426950408889634);
    const float natural = modified(d) ? 1 : score_natural;
    float q[RAPT_MAX_HEAD_DIM], k[RAPT_MAX_HEAD_DIM];
    bf16_state all, now;
    bool any = false;
    for (int64_t i = 0; i < d->d_k; i++) {
        const float x = r->q[i] * factor;
        q[i] = bf16_factor(x * r->k_channel[i]);
    }
    all.m = -INFINITY, all.l = 0;
    memset(all.o, 0, sizeof all.o);
    for (int64_t first = 0, end; first < r->keys; first = end) {
        end = first + CHUNK - (r->first + first) % CHUNK;
        if (end > r->keys) end = r->keys;
        float s[CHUNK], w[CHUNK] = {0}, ones[CHUNK], v[CHUNK];
        bool attended = false;
        now.m = -INFINITY;
        for (int64_t n = first; n < end; n++) {
            if (!r->attended[n]) continue;
            attended = true;
            for (int64_t i = 0; i < d->d_k; i++) k[i] = bf16_factor(r->k[n * d->d_k + i]);
            float x = bf16_product(fused, q, k, 1, d->d_k, 0);
            if (d->k_scales.present && d->k_scales.token_stride) x *= r->k_token[n];
            s[n - first] = modified(d) ? bf16_logit(fused, r, n, x * score_natural) : x;
            if (s[n - first] > now.m) now.m = s[n - first];
        }
        if (!attended) continue;
        const float from = now.m > -FLT_MAX ? now.m : -FLT_MAX;
        for (int64_t n = first; n < end; n++) {
            if (r->attended[n]) w[n - first] = bf16_weight(fused, s[n - first] - from, c);
            ones[n - first] = 1;
        }
        now.l = bf16_product(fused, w, ones, 1, end - first, (r->first + first) % STEP);
        for (int64_t i = 0; i < d->d_v; i++) {
            for (int64_t n = first; n < end; n++) {
                const float x = r->v[n * d->d_v + i];
                v[n - first] = r->attended[n] ? bf16_factor(by_token ? x * r->v_token[n] : x) : 0;
            }
            now.o[i] = bf16_product(fused, w, v, 1, end - first, (r->first + first) % STEP);
        }
        if (any) absorb(fused, &all, &now, c, d->d_v);
        else all = now;
        any = true;
    }
    if (d->sinks.type) {
        now.m = element_of(r, r->args->sinks, &d->sinks) / natural, now.l = 1;
        memset(now.o, 0, sizeof now.o);
        absorb(fused, &all, &now, c, d->d_v);
    }
    const float inverse = all.l > 0 ? 1 / all.l : all.l * 0;
    for (int64_t i = 0; i < d->d_v; i++) {
        const float by = d->v_scales.present && !by_token ? inverse * r->v_channel[i] : inverse;
        o[i] = reference_multiply_add(fused, all.o[i], by, 0);
    }
    *lse = all.l == 0 ? -INFINITY : reference_multiply_add(fused, all.m, natural, natural_logarithm(fused, all.l));
}

/* ---- All rows ----------------------------------------------------------------------------------------------------------- */

static void load_row(float *to, const void *base, const rapt_layout *layout, int64_t b, int64_t h, int64_t token,
                     int64_t channels) {
    const void *from = reference_at(base, layout, b, h, token);
    for (int64_t c = 0; c < channels; c++) to[c] = reference_element(layout->type, from, c);
}

static float factor_of(const rapt_scales *s, const float *base, int64_t b, int64_t h, reference_place place, int64_t channel) {
    const void *at = reference_scale(s, base, b, h, place, channel);
    return at ? reference_load(RAPT_F32, at) : 1;
}

/* The integers of a row of int8 or of groups, and what those of each group count. */
static void load_integers(float *number, float *factor, const void *from, rapt_type type, int64_t channels, int64_t groups) {
    const int bytes = format_of(type).bytes;
    for (int64_t c = 0; c < channels; c++) number[c] = bytes ? group_number(type, from, c) : reference_element(type, from, c);
    for (int64_t g = 0; g < groups; g++) factor[g] = bytes ? (float)half_at((const unsigned char *)from + g * bytes) : 1;
}

/* The keys of head h (of K and V) for query i. */
static void load_keys(row *r, int64_t h, int64_t i) {
    const rapt_desc *d = r->desc;
    const rapt_args *a = r->args;
    const reference_place none = {0, 0};
    const bool k_token = d->k_scales.token_stride != 0, v_token = d->v_scales.token_stride != 0;
    for (int64_t n = 0; n < r->keys; n++) {
        const reference_place at = reference_key(d, a, r->b, h, i, r->first + n);
        load_row(r->k + n * d->d_k, a->k, &d->k, at.batch, h, at.token, d->d_k);
        load_row(r->v + n * d->d_v, a->v, &d->v, at.batch, h, at.token, d->d_v);
        if (d->arith == RAPT_INT8_DOT) {
            load_integers(r->k_number + n * d->d_k, r->k_factor + n * r->k_groups,
                          reference_at(a->k, &d->k, at.batch, h, at.token), d->k.type, d->d_k, r->k_groups);
            load_integers(r->v_number + n * d->d_v, r->v_factor + n * r->v_groups,
                          reference_at(a->v, &d->v, at.batch, h, at.token), d->v.type, d->d_v, r->v_groups);
        }
        r->k_token[n] = k_token ? factor_of(&d->k_scales, a->k_scales, r->b, h, at, 0) : 1;
        r->v_token[n] = v_token ? factor_of(&d->v_scales, a->v_scales, r->b, h, at, 0) : 1;
        for (int64_t g = 0; g < r->v_groups; g++) r->v_factor[n * r->v_groups + g] *= r->v_token[n];
    }
    for (int64_t c = 0; c < d->d_k; c++) r->k_channel[c] = k_token ? 1 : factor_of(&d->k_scales, a->k_scales, r->b, h, none, c);
    for (int64_t c = 0; c < d->d_v; c++) r->v_channel[c] = v_token ? 1 : factor_of(&d->v_scales, a->v_scales, r->b, h, none, c);
}

static void head(reference *result, row *r, int64_t h) {
    const rapt_desc *d = r->desc;
    const int64_t group = d->heads / d->kv_heads, queries = reference_queries(d, r->b);
    const bool gathered = d->page_size && d->table.token_stride;
    const int64_t columns = reference_columns(d);
    for (r->i = 0; r->i < queries; r->i++) {
        if (r->i == 0 || gathered) load_keys(r, h, r->i);
        for (r->h = h * group; r->h < (h + 1) * group; r->h++) {
            const int64_t at = reference_row(d, r->b, r->h, r->i), o = at * d->d_v;
            load_row(r->q, r->args->q, &d->q, reference_query_batch(d, r->b), r->h, reference_query_token(d, r->b, r->i), d->d_k);
            for (int64_t n = 0; n < r->keys; n++) r->attended[n] = reference_attends(d, r->args, r->b, r->h, r->i, r->first + n);
            const row_results of = {result->o + o, result->o_bound + o, result->o_size + o, result->lse + at,
                                    result->lse_bound + at};
            if (d->arith == RAPT_INT8_DOT) {
                quantise_query(r);
                r->integers = false;
                double_row(r, &(row_results){result->exact + o, result->exact_bound + o, of.size, result->exact_lse + at,
                                             result->exact_lse_bound + at});
                r->integers = true;
            } else {
                naive_row(r, result->naive + o);
            }
            for (int fused = 0; fused < 2 && d->arith == RAPT_BF16_DOT; fused++)
                bf16_row(fused, r, result->ordered[fused] + o, result->ordered_lse[fused] + at);
            double_row(r, &of);
            if (d->scores_stage) score_row(r, &of, result->scores + at * columns, result->scores_bound + at * columns);
        }
    }
}

/* How many groups of integers a row has in integer arithmetic: int8 is one. */
static int64_t groups_of(const rapt_desc *d, rapt_type type, int64_t channels) {
    if (d->arith != RAPT_INT8_DOT) return 0;
    return type == RAPT_INT8 ? 1 : channels / 32;
}

bool reference_attention(reference *result, const rapt_desc *desc, const rapt_args *args) {
    const size_t rows = (size_t)reference_rows(desc), outputs = rows * (size_t)desc->d_v;
    const size_t keys = (size_t)desc->kv_len, d_k = (size_t)desc->d_k, d_v = (size_t)desc->d_v;
    const size_t scores = desc->scores_stage ? rows * (size_t)reference_columns(desc) : 0;
    double *doubles = calloc(5 * outputs + 4 * rows + 2 * keys + 2 * scores + 1, sizeof *doubles);
    float *floats =
        calloc(3 * outputs + 2 * rows + 3 * d_k + d_v + keys * (2 * (d_k + d_v) + d_k / 32 + d_v / 32 + 6), sizeof *floats);
    bool *attended = malloc(keys + 1);
    *result = (reference){.o = doubles, .naive = floats};
    if (!doubles || !floats || !attended) {
        free(attended);
        reference_free(result);
        return false;
    }
    result->o_bound = result->o + outputs;
    result->o_size = result->o_bound + outputs;
    result->lse = result->o_size + outputs;
    result->lse_bound = result->lse + rows;
    result->exact = result->lse_bound + rows;
    result->exact_bound = result->exact + outputs;
    result->exact_lse = result->exact_bound + outputs;
    result->exact_lse_bound = result->exact_lse + rows;
    row r = {.desc = desc, .args = args, .attended = attended, .logit = result->exact_lse_bound + rows};
    for (int fused = 0; fused < 2; fused++) {
        result->ordered[fused] = result->naive + (size_t)(fused + 1) * outputs;
        result->ordered_lse[fused] = result->naive + 3 * outputs + (size_t)fused * rows;
    }
    r.number = result->ordered_lse[1] + rows;
    r.q = r.number + d_k;
    r.slack = r.logit + keys;
    result->scores = r.slack + keys;
    result->scores_bound = result->scores + scores;
    for (size_t n = 0; n < scores; n++) result->scores[n] = desc->scores_stage == RAPT_SCORES_WEIGHTS ? 0 : -INFINITY;
    r.k_channel = r.q + d_k;
    r.v_channel = r.k_channel + d_k;
    r.k_token = r.v_channel + d_v;
    r.v_token = r.k_token + keys;
    r.weight = r.v_token + keys;
    r.k = r.weight + keys;
    r.v = r.k + keys * d_k;
    r.v_signed = desc->v.type != RAPT_INT8;
    r.k_groups = groups_of(desc, desc->k.type, desc->d_k);
    r.v_groups = groups_of(desc, desc->v.type, desc->d_v);
    r.k_channels = r.k_groups ? desc->d_k / r.k_groups : 0;
    r.v_channels = r.v_groups ? desc->d_v / r.v_groups : 0;
    r.v_number = r.v + keys * d_v;
    r.v_factor = r.v_number + keys * d_v;
    r.k_number = r.v_factor + keys * (d_v / 32 + 1);
    r.k_factor = r.k_number + keys * d_k;
    for (r.b = 0; r.b < desc->batch; r.b++) {
        int64_t end;
        reference_keys(desc, args, r.b, &r.first, &end);
        r.keys = end - r.first;
        for (int64_t h = 0; h < desc->kv_heads; h++) head(result, &r, h);
    }
    free(attended);
    return true;
}

void reference_free(reference *result) {
    free(result->o);
    free(result->naive);
    *result = (reference){0};
}

/* ---- Linear layers and normalisation in f32 ------------------------------------------------------------------------------- */

enum { PARTIAL_SUMS = 16, MAP_PART = 1024, TOKEN_GROUP = 32 };

static float gelu(bool fused, float x) {
    static const float h[] = {-0x1.9833cap-22f, 0x1.894d92p-18f, -0x1.8c04ecp-15f, 0x1.7d4d4ep-13f, 0x1.99fcbap-13f,
                              -0x1.d649c8p-8f,  0x1.aecfcep-5f,  0x1.d631f4p-2f,   0x1.26af14p+0f,  1.0f};
    const float a = fabsf(x);
    float p = 0x1.60a846p-27f;
    for (int i = 0; i < 10; i++) p = reference_multiply_add(fused, p, a, h[i]);
    const float below_zero = power_of_two(fused, -p, 1.0f, -127.0f);
    return x * (x < 0.0f ? below_zero : 1.0f - below_zero);
}

float reference_activated(bool fused, rapt_activation activation, float x) {
    switch (activation) {
    case RAPT_RELU:
        return x > 0.0f || x != x ? x : 0.0f;
    case RAPT_GELU:
        return gelu(fused, x);
    case RAPT_GELU_TANH: {
        const float inner = reference_multiply_add(fused, x * x * x, 0.044715f, x) * 0x1.988454p-1f;
        return 0.5f * x * (1.0f + hyperbolic_tangent(fused, inner));
    }
    case RAPT_SILU: {
        const float e = power_of_two(fused, -fabsf(x), 0x1.715476p+0f, -127.0f / 0x1.715476p+0f);
        return (x < 0.0f ? x * e : x) / (1.0f + e);
    }
    default:
        return x;
    }
}

static float total_of(const float sums[PARTIAL_SUMS], float total) {
    for (int i = 0; i < PARTIAL_SUMS; i++) total += sums[i];
    return total;
}

/* As bf16_product, of the factors of a and b. */
static float bf16_sum(bool fused, const float *a, const float *b, int64_t n) {
    float sum = 0;
    for (int64_t step = 0; step < n; step += STEP) {
        float x[STEP], y[STEP];
        const int64_t count = n - step < STEP ? n - step : STEP;
        for (int64_t i = 0; i < count; i++) x[i] = bf16_factor(a[step + i]), y[i] = bf16_factor(b[step + i]);
        sum += bf16_product(fused, x, y, 1, count, 0);
    }
    return sum;
}

float reference_linear(bool fused, rapt_arith arith, const float *x, const float *w, int64_t channels) {
    if (arith == RAPT_BF16_DOT) return bf16_sum(fused, x, w, channels) + 0.0f;
    float total = 0.0f;
    for (int64_t part = 0; part < channels; part += MAP_PART) {
        float sums[PARTIAL_SUMS] = {0};
        for (int64_t i = part; i < part + MAP_PART && i < channels; i++)
            sums[i % PARTIAL_SUMS] = reference_multiply_add(fused, w[i], x[i], sums[i % PARTIAL_SUMS]);
        total = total_of(sums, total);
    }
    return total + 0.0f; /* of zeros, +0 */
}

static float largest_of(const float *x, int64_t n) {
    float most = 0.0f;
    for (int64_t i = 0; i < n; i++) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    return most;
}

/* The channels of a token that are quantised together. */
static int integer_group(rapt_type type) { return is_block(type) ? 256 : TOKEN_GROUP; }

float reference_integer_linear(bool fused, const float *x, rapt_type type, const void *stored, int64_t channels) {
    const unsigned char *const at = stored;
    const int bytes = type == RAPT_INT8 ? TOKEN_GROUP : format_of(type).bytes, of_group = integer_group(type);
    float total = 0.0f;
    for (int64_t first = 0; first < channels; first += of_group) {
        const unsigned char *const group = at + first / of_group * bytes;
        const int count = (int)(channels - first < of_group ? channels - first : of_group);
        const float most = largest_of(x + first, count), factor = 127.0f / most;
        double sum = 0, integers = 0;
        bool finite = true;
        for (int i = 0; i < count; i++) {
            const float scaled = x[first + i] * factor;
            const double n = isfinite(scaled) ? (double)nearbyintf(scaled) : 0;
            const block_number of_block = is_block(type) ? block_number_of(type, group, i) : (block_number){0};
            integers += is_block(type) ? n * of_block.minimum : n;
            if (is_block(type)) sum += n * of_block.scale * of_block.number;
            else sum += n * (type == RAPT_INT8 ? byte_value(type, group[i]) : number_of(type, group, i));
            finite = finite && isfinite(x[first + i]);
        }
        const float unit = finite ? most / 127.0f : NAN;
        if (is_block(type)) {
            total = reference_multiply_add(fused, (float)sum, (float)block_scale(type, group) * unit, total);
            if (type == RAPT_Q4_K)
                total = reference_multiply_add(fused, (float)integers, -((float)block_minimum(type, group) * unit), total);
            continue;
        }
        total = reference_multiply_add(fused, (float)sum, type == RAPT_INT8 ? unit : (float)half_at(group) * unit, total);
        if (type != RAPT_INT8 && format_of(type).minimum >= 0)
            total = reference_multiply_add(fused, (float)integers, (float)half_at(group + format_of(type).minimum) * unit, total);
    }
    return total;
}

static float mean_of(bool fused, const float *z, int64_t channels, float from, bool squares) {
    float sums[PARTIAL_SUMS] = {0};
    for (int64_t i = 0; i < channels; i++) {
        const float x = z[i] - from, sum = sums[i % PARTIAL_SUMS];
        sums[i % PARTIAL_SUMS] = squares ? reference_multiply_add(fused, x, x, sum) : sum + x;
    }
    return total_of(sums, 0.0f) / (float)channels;
}

void reference_normalise(bool fused, bool rms, const float *z, int64_t channels, float epsilon, const float *weight,
                         const float *bias, float *y, float *mean, float *inverse_deviation) {
    const float m = rms ? 0.0f : mean_of(fused, z, channels, 0.0f, false),
                error = rms ? 0.0f : mean_of(fused, z, channels, m, false), squares = mean_of(fused, z, channels, m, true),
                difference = rms ? squares : reference_multiply_add(fused, -error, error, squares),
                factor = 1.0f / sqrtf((difference < 0.0f ? 0.0f : difference) + epsilon);
    for (int64_t i = 0; i < channels; i++)
        y[i] = reference_multiply_add(fused, ((z[i] - m) - error) * factor, weight ? weight[i] : 1.0f, bias ? bias[i] : 0.0f);
    if (mean) *mean = m + error;
    *inverse_deviation = factor;
}

/* ---- ... and in double -------------------------------------------------------------------------------------------------- */

static reference_value rounded(double value, double bound) {
    return (reference_value){value, bound + u * (fabs(value) + bound) + 0x1p-149};
}

reference_value reference_sum(reference_value a, reference_value b) { return rounded(a.value + b.value, a.bound + b.bound); }

reference_value reference_product(reference_value a, reference_value b) {
    return rounded(a.value * b.value, fabs(a.value) * b.bound + (fabs(b.value) + b.bound) * a.bound);
}

reference_value reference_linearped(bool fused, rapt_arith arith, const float *x, const float *w, int64_t channels) {
    double sum = 0, sizes = 0, factors = 0;
    for (int64_t i = 0; i < channels; i++) {
        const double product = (double)w[i] * x[i];
        sum += product;
        sizes += fabs(product);
        factors += fabs((double)w[i]) + fabs((double)x[i]);
    }
    if (arith == RAPT_BF16_DOT) {
        const double most = (1 + U_BF16) * (1 + U_BF16), n = (double)channels;
        return (reference_value){sum, (gamma_n(STEP / 2 + 1 + ceil(n / STEP)) * most + most - 1) * sizes +
                                          LEAST_BF16 * ((1 + U_BF16) * factors + n * LEAST_BF16)};
    }
    const double chain = ceil(fmin((double)channels, MAP_PART) / PARTIAL_SUMS), parts = ceil((double)channels / MAP_PART);
    return (reference_value){sum, gamma_n(chain + PARTIAL_SUMS * parts + !fused) * sizes + ldexp((double)channels, -149)};
}

reference_value reference_integer_linearped(bool fused, const float *x, rapt_type type, const void *stored, int64_t channels) {
    const group_format f = format_of(type);
    const bool blocks = is_block(type), minimums = type == RAPT_Q4_K || (f.bytes && !blocks && f.minimum >= 0);
    const int group = integer_group(type);
    double sum = 0, sizes = 0, lost = 0, h = 0, k = ceil((double)channels / group) * (1 + minimums) + 1 + blocks + !fused;
    for (int64_t i = 0; i < channels; i++) {
        if (i % group == 0) {
            const double most = largest_of(x + i, channels - i < group ? channels - i : group);
            h = most / 254 + 4 * u * most + 0x1p-121;
        }
        const unsigned char *const at = (const unsigned char *)stored + i / f.channels * f.bytes;
        const block_number n = blocks ? block_number_of(type, at, (int)(i % f.channels)) : (block_number){0};
        const double m = blocks     ? -block_minimum(type, at) * n.minimum
                         : minimums ? half_at(at + f.minimum)
                                    : 0,
                     w = blocks    ? block_scale(type, at) * n.scale * n.number
                         : f.bytes ? half_at(at) * number_of(type, at, (int)(i % f.channels))
                                   : reference_element(type, stored, i);
        sum += (w + m) * x[i];
        lost += h * fabs(w + m);
        sizes += (fabs((double)x[i]) + h) * (fabs(w) + fabs(m));
    }
    return (reference_value){sum, lost + gamma_n(k) * sizes + k * 0x1p-130};
}

reference_value reference_activation(rapt_activation activation, reference_value x) {
    const double v = x.value, scale = fmax(1, fabs(v)), slope = x.bound * 1.13;
    switch (activation) {
    case RAPT_RELU:
        return (reference_value){fmax(v, 0), x.bound};
    case RAPT_GELU:
        return (reference_value){v * 0.5 * erfc(-v / sqrt(2)), slope + 1e-7 * scale};
    case RAPT_GELU_TANH:
        return (reference_value){0.5 * v * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (v + 0.044715 * v * v * v))),
                                 slope + 2e-7 * scale};
    case RAPT_SILU:
        return (reference_value){v / (1 + exp(-v)), slope + 2e-7 * scale};
    default:
        return x;
    }
}

void reference_normalised(bool rms, const float *z, int64_t channels, float epsilon, const float *weight, const float *bias,
                          reference_value *y, reference_value *mean, reference_value *inverse_deviation) {
    const double n = (double)channels, gamma = gamma_n(ceil(n / PARTIAL_SUMS) + PARTIAL_SUMS + 2);
    double m = 0, reach = 0, size = 0, v = 0;
    for (int64_t i = 0; i < channels && !rms; i++) m += z[i] / n, reach += fabs((double)z[i]) / n;
    for (int64_t i = 0; i < channels && !rms; i++) size += fabs(z[i] - m) / n;
    const double first = gamma * reach, both = gamma * (size + first);
    for (int64_t i = 0; i < channels; i++) {
        const double d = z[i] - m;
        y[i] = (reference_value){d, rms ? 0 : both + 2 * u * (fabs(d) + first)};
        v += d * d / n;
    }
    const double wrong = (gamma + 4 * u) * (v + first * first) + 2 * both * (first + both), factor = 1 / sqrt(v + epsilon),
                 least = 1 / sqrt(v + wrong + epsilon), most = 1 / sqrt(fmax(v - wrong, 0) + epsilon);
    *inverse_deviation = (reference_value){factor, fmax(factor - least, most - factor) + 3 * u * most};
    if (mean) *mean = rounded(m, both);
    for (int64_t i = 0; i < channels; i++) {
        const reference_value w = {weight ? weight[i] : 1, 0}, b = {bias ? bias[i] : 0, 0};
        y[i] = reference_sum(reference_product(reference_product(y[i], *inverse_deviation), w), b);
    }
}

bool reference_near(rapt_type type, float got, reference_value want) {
    return fabs(got - want.value) <= want.bound + reference_half_ulp(type, fabs(want.value) + want.bound);
}
