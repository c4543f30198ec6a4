/* SPDX-License-Identifier: Apache-2.0 */
#include "reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 64, CHUNK = 512 };

static const double u = 0x1p-24;

static double gamma_n(double n) { return n * u / (1 - n * u); }

int64_t reference_type_bytes(rapt_type type) { return type == RAPT_F32 ? 4 : 2; }

/* sign, exponent bits, fraction bits: the value, where the largest exponent is for infinities and NaNs. */
static double small_float(unsigned bits, int exponent_bits, int fraction_bits) {
    const int exponent = bits >> fraction_bits & ((1u << exponent_bits) - 1), top = (1 << exponent_bits) - 1, bias = top >> 1;
    const double fraction = bits & ((1u << fraction_bits) - 1), one = ldexp(1, fraction_bits);
    const double size = exponent == top ? (fraction != 0 ? NAN : INFINITY)
                        : exponent == 0 ? ldexp(fraction, 1 - bias - fraction_bits)
                                        : ldexp(one + fraction, exponent - bias - fraction_bits);
    return bits >> (exponent_bits + fraction_bits) & 1 ? -size : size;
}

static double half_at(const unsigned char *at) { return small_float(at[0] | (unsigned)at[1] << 8, 5, 10); }

static double byte_value(rapt_type type, unsigned char byte) {
    if (type == RAPT_INT8) return byte < 128 ? byte : byte - 256;
    if (type == RAPT_F8_E5M2) return small_float(byte, 5, 2);
    if ((byte & 127) == 127) return NAN;
    return small_float((byte & 128u) << 1 | (byte & 127u), 5, 3) * 0x1p8; /* a wider exponent, whose top is never reached */
}

/* Where a group of 32 has what: bytes in all, of the minimum, of the fifth bits and of the numbers, -1 for none; the number that
 * stands for 0, the largest one, and whether two adjacent channels share a byte. */
typedef struct group_format {
    int bytes, minimum, fifths, numbers, zero, most;
    bool adjacent;
} group_format;

static group_format format_of(rapt_type type) {
    switch ((int)type) {
    case RAPT_INT4:
        return (group_format){18, -1, -1, 2, 8, 15, true};
    case RAPT_INT4_MIN:
        return (group_format){20, 2, -1, 4, 0, 15, true};
    case RAPT_Q8_0:
        return (group_format){34, -1, -1, 2, 0, 127, false};
    case RAPT_Q4_0:
        return (group_format){18, -1, -1, 2, 8, 15, false};
    case RAPT_Q4_1:
        return (group_format){20, 2, -1, 4, 0, 15, false};
    case RAPT_Q5_0:
        return (group_format){22, -1, 2, 6, 16, 31, false};
    case RAPT_Q5_1:
        return (group_format){24, 2, 4, 8, 0, 31, false};
    default:
        return (group_format){0};
    }
}

int64_t reference_row_bytes(rapt_type type, int64_t channels) {
    const int group = format_of(type).bytes;
    if (group) return channels % 32 ? -1 : channels / 32 * group;
    return channels * (type == RAPT_F32 ? 4 : type == RAPT_F16 || type == RAPT_BF16 ? 2 : 1);
}

/* The byte of channel i's number in a group, and by how much it is shifted there. */
static int number_at(const group_format *f, int i, int *shift) {
    *shift = f->most == 127 ? 0 : f->adjacent ? i % 2 * 4 : i / 16 * 4;
    return f->numbers + (f->most == 127 ? i : f->adjacent ? i / 2 : i % 16);
}

static float group_element(rapt_type type, const unsigned char *group, int i) {
    const group_format f = format_of(type);
    int shift, at = number_at(&f, i, &shift);
    double number = type == RAPT_Q8_0 ? byte_value(RAPT_INT8, group[at]) : group[at] >> shift & 15;
    if (f.fifths >= 0) number += (group[f.fifths + i / 8] >> i % 8 & 1) * 16;
    const double product = half_at(group) * (number - f.zero);
    return (float)(f.minimum < 0 ? product : product + half_at(group + f.minimum));
}

float reference_element(rapt_type type, const void *row, int64_t channel) {
    const unsigned char *const at = row;
    const group_format f = format_of(type);
    if (f.bytes) return group_element(type, at + channel / 32 * f.bytes, (int)(channel % 32));
    if (type != RAPT_F32 && type != RAPT_F16 && type != RAPT_BF16) return (float)byte_value(type, at[channel]);
    uint32_t bits = 0;
    if (type == RAPT_F16) return (float)half_at(at + 2 * channel);
    memcpy(&bits, at + channel * reference_type_bytes(type), (size_t)reference_type_bytes(type));
    if (type == RAPT_BF16) bits <<= 16;
    float value;
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
            half |= (uint16_t)((exponent + 13) * 1024 + (int)rint(ldexp(size, 11 - exponent)));
        }
    }
    memcpy(at, &half, sizeof half);
}

/* The nearest of all finite values of that sign; of two as near, the even byte. */
static unsigned char nearest_byte(rapt_type type, float value) {
    if (type == RAPT_INT8) return isnan(value) ? 0 : (unsigned char)(int)fmax(-127, fmin(127, rint(value)));
    const unsigned char sign = signbit(value) ? 128 : 0, least = sign, top = sign | (type == RAPT_F8_E4M3 ? 126 : 123);
    if (isnan(value)) return sign | 127;
    const double size = fmin(fabs((double)value), fabs(byte_value(type, top)));
    unsigned char best = least;
    for (unsigned char byte = least; byte <= top; byte++) {
        const double distance = fabs(fabs(byte_value(type, byte)) - size), before = fabs(fabs(byte_value(type, best)) - size);
        if (distance < before || (distance == before && !(byte & 1))) best = byte;
    }
    return best;
}

/* One group, by the definitions in rapt.h; those of ggml's types are the f32 operations of its reference, one after the other. */
static void store_group(rapt_type type, unsigned char *group, const float *x) {
    const group_format f = format_of(type);
    const bool ours = f.adjacent;
    float low = x[0], high = x[0], largest = x[0];
    bool finite = true;
    for (int i = 0; i < 32; i++) {
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
        reference_store(RAPT_F16, group, NAN);
        return;
    }
    const float inverse = isfinite(1 / scale) ? 1 / scale : 0;
    reference_store(RAPT_F16, group, ours ? fmaxf(-65504, fminf(65504, scale)) : scale);
    if (f.minimum >= 0) reference_store(RAPT_F16, group + f.minimum, ours ? fmaxf(-65504, fminf(65504, low)) : low);
    if (ours) scale = (float)half_at(group);
    if (ours) low = f.minimum >= 0 ? (float)half_at(group + f.minimum) : 0;
    for (int i = 0; i < 32; i++) {
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
    const int group = format_of(type).bytes;
    unsigned char *const to = row;
    if (reference_row_bytes(type, channels) < 0) return false;
    for (int64_t c = 0; c < channels; c += group ? 32 : 1) {
        if (group) store_group(type, to + c / 32 * group, values + c);
        else if (type == RAPT_F32 || type == RAPT_F16 || type == RAPT_BF16)
            reference_store(type, to + reference_row_bytes(type, c), values[c]);
        else to[c] = nearest_byte(type, values[c]);
    }
    return true;
}

double reference_half_ulp(rapt_type type, double magnitude) {
    if (type == RAPT_F16) return fmax(magnitude * 0x1p-11, 0x1p-25);
    if (type == RAPT_BF16) return fmax(magnitude * 0x1p-8, 0x1p-134);
    return 0;
}

bool reference_attends(const rapt_desc *desc, int64_t length, int64_t i, int64_t j) {
    const int64_t at = i + (desc->causal == RAPT_CAUSAL_TOP_LEFT ? 0 : length - desc->q_len);
    return j >= 0 && j < length && (desc->causal == RAPT_CAUSAL_NONE || j <= at) &&
           (desc->window_left < 0 || j >= at - desc->window_left) && (desc->window_right < 0 || j <= at + desc->window_right);
}

static const unsigned char *row_at(const void *base, const rapt_layout *layout, int64_t b, int64_t h, int64_t token) {
    return (const unsigned char *)base + b * layout->batch_stride + h * layout->head_stride + token * layout->token_stride;
}

static void load_row(float *to, const void *base, const rapt_layout *layout, int64_t b, int64_t h, int64_t token,
                     int64_t channels) {
    const unsigned char *from = row_at(base, layout, b, h, token);
    for (int64_t c = 0; c < channels; c++) to[c] = reference_load(layout->type, from + c * reference_type_bytes(layout->type));
}

/* One row: its query, the keys and values of its head as f32, and room for a number per key. */
typedef struct row {
    const rapt_desc *desc;
    int64_t length, i;
    const float *q, *k, *v;
    double *logit, *slack;
    float *weight;
} row;

static void naive_row(const row *r, float *o) {
    const int64_t d_k = r->desc->d_k, d_v = r->desc->d_v;
    const float scale = r->desc->scale == 0 ? 1 / sqrtf((float)d_k) : r->desc->scale;
    float max = -INFINITY, sum = 0;
    for (int64_t j = 0; j < r->length; j++) {
        float score = 0;
        for (int64_t c = 0; c < d_k; c++) score += r->q[c] * r->k[j * d_k + c];
        r->weight[j] = reference_attends(r->desc, r->length, r->i, j) ? score * scale : -INFINITY;
        if (r->weight[j] > max) max = r->weight[j];
    }
    for (int64_t j = 0; j < r->length; j++) sum += r->weight[j] = r->weight[j] == -INFINITY ? 0 : expf(r->weight[j] - max);
    memset(o, 0, (size_t)d_v * sizeof *o);
    for (int64_t j = 0; j < r->length; j++) {
        if (r->weight[j] == 0) continue;
        for (int64_t c = 0; c < d_v; c++) o[c] += r->weight[j] / sum * r->v[j * d_v + c];
    }
}

static void double_row(const row *r, double *o, double *bound, double *size, double *lse, double *lse_bound) {
    const int64_t d_k = r->desc->d_k, d_v = r->desc->d_v;
    const double scale = r->desc->scale == 0 ? 1 / sqrt((double)d_k) : (double)r->desc->scale;
    const bool extreme = fabs(scale) < 0x1p-64 || fabs(scale) > 0x1p64;

    double max = -INFINITY, slack = 0;
    int64_t keys = 0, first = 0, last = 0;
    for (int64_t j = 0; j < r->length; j++) {
        double score = 0, absolute = 0, key = 0;
        r->logit[j] = -INFINITY;
        if (!reference_attends(r->desc, r->length, r->i, j)) continue;
        for (int64_t c = 0; c < d_k; c++) {
            const double q = r->q[c], k = r->k[j * d_k + c];
            score += q * k;
            absolute += fabs(q * k);
            key += fabs(k);
        }
        r->logit[j] = score * scale;
        if (r->logit[j] == -INFINITY) continue;
        r->slack[j] = gamma_n((double)d_k + 1) * absolute * fabs(scale) +
                      0x1p-149 * ((double)d_k * fmax(1, fabs(scale)) + (extreme ? key : 0));
        max = fmax(max, r->logit[j]);
        slack = fmax(slack, r->slack[j]);
        if (keys++ == 0) first = j;
        last = j;
    }

    memset(o, 0, (size_t)d_v * sizeof *o);
    memset(bound, 0, (size_t)d_v * sizeof *bound);
    memset(size, 0, (size_t)d_v * sizeof *size);
    for (int64_t j = 0; j < r->length; j++) /* weight 0, so nothing but the NaN that 0 * inf and 0 * NaN are */
        for (int64_t c = 0; c < d_v && r->logit[j] == -INFINITY && reference_attends(r->desc, r->length, r->i, j); c++)
            o[c] += 0 * r->v[j * d_v + c];
    *lse = -INFINITY;
    *lse_bound = 0;
    if (keys == 0) return;

    const double blocks = fmin((double)(last / BLOCK - first / BLOCK + 1), CHUNK / BLOCK);
    const double merges = (double)(last / CHUNK - first / CHUNK);
    const double rises = blocks - 1 + merges;
    const double n_l = 20 + blocks + merges + rises, n_o = fmin((double)keys, CHUNK) + 1 + merges + rises;

    double sum = 0, low = 0, high = 0;
    for (int64_t j = 0; j < r->length; j++) {
        if (r->logit[j] == -INFINITY) continue;
        const double weight = exp(r->logit[j] - max);
        sum += weight;
        for (int64_t c = 0; c < d_v; c++) o[c] += weight * r->v[j * d_v + c];
    }
    for (int64_t c = 0; c < d_v; c++) o[c] /= sum;

    for (int64_t j = 0; j < r->length; j++) {
        if (r->logit[j] == -INFINITY) continue;
        const double t = r->logit[j] - max, delta = r->slack[j] + 4 * u * (r->slack[j] + slack - t) + 4 * u * (1 + rises);
        const double weight = exp(t), most = exp(t + delta);
        low += exp(t - delta);
        high += most;
        for (int64_t c = 0; c < d_v; c++) {
            const double v = r->v[j * d_v + c];
            size[c] += weight * fabs(v);
            bound[c] += (most - weight) * fabs(v - o[c]) + (gamma_n(n_l + n_o + 2) * most + 0x1p-126) * fabs(v);
        }
    }
    for (int64_t c = 0; c < d_v; c++) {
        size[c] /= sum;
        bound[c] = bound[c] / low + 0x1p-149 * (n_o + 2);
    }
    *lse = max + log(sum);
    *lse_bound = fmax(log(high / sum), log(sum / low)) + gamma_n(n_l) + (double)keys * 0x1p-126 + 4 * u * log(sum) +
                 2 * u * (fabs(max) + slack) + u * fabs(*lse);
}

static void head(reference *result, const rapt_desc *desc, const rapt_args *args, row *r, float *q, float *k, float *v, int64_t b,
                 int64_t h) {
    for (int64_t j = 0; j < r->length; j++) {
        load_row(k + j * desc->d_k, args->k, &desc->k, b, h, j, desc->d_k);
        load_row(v + j * desc->d_v, args->v, &desc->v, b, h, j, desc->d_v);
    }
    const int64_t group = desc->heads / desc->kv_heads;
    for (int64_t head_q = h * group; head_q < (h + 1) * group; head_q++) {
        for (r->i = 0; r->i < desc->q_len; r->i++) {
            const int64_t at = (b * desc->heads + head_q) * desc->q_len + r->i, o = at * desc->d_v;
            load_row(q, args->q, &desc->q, b, head_q, r->i, desc->d_k);
            naive_row(r, result->naive + o);
            double_row(r, result->o + o, result->o_bound + o, result->o_size + o, result->lse + at, result->lse_bound + at);
        }
    }
}

bool reference_attention(reference *result, const rapt_desc *desc, const rapt_args *args) {
    const size_t rows = (size_t)(desc->batch * desc->heads * desc->q_len), outputs = rows * (size_t)desc->d_v;
    const size_t keys = (size_t)desc->kv_len, d_k = (size_t)desc->d_k, d_v = (size_t)desc->d_v;
    double *doubles = malloc((3 * outputs + 2 * rows + 2 * keys + 1) * sizeof *doubles);
    float *floats = malloc((outputs + d_k + keys * (d_k + d_v + 1)) * sizeof *floats);
    *result = (reference){.o = doubles, .naive = floats};
    if (!doubles || !floats) {
        reference_free(result);
        return false;
    }
    result->o_bound = result->o + outputs;
    result->o_size = result->o_bound + outputs;
    result->lse = result->o_size + outputs;
    result->lse_bound = result->lse + rows;
    float *q = result->naive + outputs, *k = q + d_k, *v = k + keys * d_k;
    row r = {.desc = desc, .q = q, .k = k, .v = v, .weight = v + keys * d_v};
    r.logit = result->lse_bound + rows;
    r.slack = r.logit + keys;
    for (int64_t b = 0; b < desc->batch; b++) {
        r.length = args->kv_lengths ? args->kv_lengths[b] : desc->kv_len;
        for (int64_t h = 0; h < desc->kv_heads; h++) head(result, desc, args, &r, q, k, v, b, h);
    }
    return true;
}

void reference_free(reference *result) {
    free(result->o);
    free(result->naive);
    *result = (reference){0};
}
