/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers that depend on positions alone: frequencies of rotary embedding, tables of sinusoids, ALiBi's slopes. */
#include "core/doubles.h"
#include "core/float_modes.h"
#include "core/memory.h"
#include "rapt_layer.h"
#include "cache/rotate.h"

/* Returns log2 of x in [sqrt(1/2), sqrt(2)], as 2 atanh(t) / ln 2 with t = (x - 1) / (x + 1). The first term of atanh's series
 * that is left out, t^25 / 25, is below 1e-19. */
static double log2_near_one(double x) {
    double t = (x - 1.0) / (x + 1.0), z = t * t, p = 1.0 / 23.0;
    for (int n = 21; n >= 1; n -= 2) p = p * z + 1.0 / n;
    return t * p * 0x1.71547652b82fep+1;
}

/* Returns 2^x for |x| < 2, as 2^n e^y with n the nearest integer and y = (x - n) ln 2. |y| is at most 0.35, so the first term of
 * the series that is left out, y^15 / 15!, is below 1e-18. */
static double exp2_near_one(double x) {
    double rounded = x + ROUND_MAGIC, y = (x - (rounded - ROUND_MAGIC)) * 0x1.62e42fefa39efp-1, p = 1.0;
    for (int n = 14; n >= 1; n--) p = p * (y / n) + 1.0;
    return p * double_of((bits_of(rounded) + 1023) << 52);
}

/* A base for powers base^(-i / n): base = 2^e * m, m in [sqrt(1/2), sqrt(2)]. A power is 2^-(i * e / n) * 2^-(i / n * log2 m),
 * where the integer part of i * e / n is exact. */
typedef struct powers {
    int64_t e;
    double log2_m;
} powers;

/* Returns e and log2_m of a base, which is at least 1. */
static powers powers_of(double base) {
    int64_t e = (int64_t)(bits_of(base) >> 52) - 1023;
    double m = double_of((bits_of(base) & (UINT64_MAX >> 12)) | UINT64_C(1023) << 52);
    if (m > 0x1.6a09e667f3bcdp+0) m *= 0.5, e++;
    return (powers){e, log2_near_one(m)};
}

/* Returns base^(-i / n), i < n. */
static double inverse_power(const powers *p, int64_t i, int64_t n) {
    int64_t whole = i * p->e / n, rest = i * p->e % n;
    double x = (double)rest / (double)n + (double)i / (double)n * p->log2_m;
    return exp2_near_one(-x) * double_of((uint64_t)(1023 - whole) << 52);
}

rapt_status rapt_rope_frequencies(double base, int64_t channels, double *frequencies) {
    rapt_report r = rapt_report_of("rapt_rope_frequencies");
    rapt_memory m;
    if (channels < 2 || channels > RAPT_MAX_HEAD_DIM || channels % 2)
        return rapt_refuse_number(&r, RAPT_ERR_SHAPE, "channels", channels, "must be even, 2 to 1024");
    if (!(base >= 1.0 && is_finite(base))) return rapt_refuse(&r, RAPT_ERR_FEATURE, "base = %g: must be finite, 1 or more", base);
    rapt_memory_begin(&m, &r);
    rapt_writes_array(&m, "frequencies", frequencies, channels / 2, sizeof *frequencies, false);
    if (m.status == RAPT_OK) m.status = rapt_check_floats(&r);
    if (m.status != RAPT_OK) return m.status;
    powers p = powers_of(base);
    for (int64_t i = 0; i < channels; i += 2) frequencies[i / 2] = inverse_power(&p, i, channels);
    return RAPT_OK;
}

rapt_status rapt_sinusoidal(int64_t first, int64_t positions, int64_t width, float *table) {
    rapt_report r = rapt_report_of("rapt_sinusoidal");
    rapt_memory m;
    if (width < 2 || width > RAPT_MAX_WIDTH || width % 2)
        return rapt_refuse_number(&r, RAPT_ERR_SHAPE, "width", width, "must be even, 2 to 1048576");
    if (!rapt_within(first, 0, RAPT_MAX_LENGTH))
        return rapt_refuse_number(&r, RAPT_ERR_SHAPE, "first", first, "must be 0 to 2147483647");
    if (!rapt_within(positions, 0, RAPT_MAX_LENGTH - first))
        return rapt_refuse_number(&r, RAPT_ERR_SHAPE, "positions", positions,
                                  "must be 0 or more, and with first at most 2147483647");
    rapt_memory_begin(&m, &r);
    rapt_writes_array(&m, "table", table, positions * width, sizeof *table, false);
    if (m.status == RAPT_OK) m.status = rapt_check_floats(&r);
    if (m.status != RAPT_OK) return m.status;
    powers p = powers_of(10000.0);
    for (int64_t i = 0; i < width; i += 2) {
        double frequency = inverse_power(&p, i, width), c, s;
        for (int64_t at = 0; at < positions; at++) {
            rapt_find_angle((double)(first + at), frequency, &c, &s);
            table[at * width + i] = (float)s;
            table[at * width + i + 1] = (float)c;
        }
    }
    return RAPT_OK;
}

rapt_status rapt_alibi_slopes(int64_t heads, float *slopes) {
    rapt_report r = rapt_report_of("rapt_alibi_slopes");
    rapt_memory m;
    if (!rapt_within(heads, 1, RAPT_MAX_LENGTH))
        return rapt_refuse_number(&r, RAPT_ERR_SHAPE, "heads", heads, "must be 1 to 2147483647");
    rapt_memory_begin(&m, &r);
    rapt_writes_array(&m, "slopes", slopes, heads, sizeof *slopes, false);
    if (m.status == RAPT_OK) m.status = rapt_check_floats(&r);
    if (m.status != RAPT_OK) return m.status;
    const powers p = {.e = 8}; /* base 2^8 */
    int64_t power = 1;
    while (power <= heads / 2) power *= 2;
    for (int64_t h = 0; h < heads; h++)
        slopes[h] = (float)(h < power ? inverse_power(&p, h + 1, power) : inverse_power(&p, 2 * (h - power) + 1, 2 * power));
    return RAPT_OK;
}
