/* SPDX-License-Identifier: Apache-2.0 */
/* Angles and frequencies, in explicit operations of double that are the same on every machine: no libm decides about bits. */
#include "rotary.h"

#include <stdbool.h>
#include <string.h>

#include "rapt_layer.h"

#define ROUND_MAGIC 0x1.8p52 /* rounds to an integer when it is added: the integer then lies in the lowest bits */

static uint64_t bits_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static double double_of(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static bool is_finite(double x) { return x - x == 0.0; }

rapt_status rapt_check_rotary(const rapt_rotary *rotary, int64_t channels) {
    if (rotary->channels < 0 || rotary->channels > channels || rotary->channels % 2) return RAPT_ERR_FEATURE;
    if (rotary->channels == 0) return RAPT_OK;
    if (!rotary->frequencies) return RAPT_ERR_NULL;
    if (!is_finite(rotary->amplitude) || rotary->offset < -RAPT_MAX_LENGTH || rotary->offset > RAPT_MAX_LENGTH)
        return RAPT_ERR_FEATURE;
    for (int64_t i = 0; i < rotary->channels / 2; i++)
        if (!(rotary->frequencies[i] >= -16.0 && rotary->frequencies[i] <= 16.0)) return RAPT_ERR_FEATURE;
    return RAPT_OK;
}

/* cos and sin of position * frequency, |position| < 2^33: the frequency in two parts, of which the first has 20 bits, so that its
 * product is exact; the quarter turns, less than 2^37, times pi/2 in three, of which two have 16 bits, so that theirs are. */
static void find_angle(double position, double frequency, double *cosine, double *sine) {
    const double quarter_1 = 0x1.921ep+0, quarter_2 = 0x1.b544p-16, quarter_3 = 0x1.0b4611a626331p-34;
    double coarse = double_of(bits_of(frequency) & ~((UINT64_C(1) << 33) - 1));
    double angle = position * coarse, rest = position * (frequency - coarse);
    double rounded = (angle + rest) * 0x1.45f306dc9c883p-1 + ROUND_MAGIC, turns = rounded - ROUND_MAGIC;
    double r = (((angle - turns * quarter_1) + rest) - turns * quarter_2) - turns * quarter_3;

    /* Taylor's series: |r| is at most a little above pi/4, where the first term left out is below 1e-16. */
    double z = r * r;
    double s = -1.0 / 1307674368000.0;
    s = s * z + 1.0 / 6227020800.0;
    s = s * z - 1.0 / 39916800.0;
    s = s * z + 1.0 / 362880.0;
    s = s * z - 1.0 / 5040.0;
    s = s * z + 1.0 / 120.0;
    s = s * z - 1.0 / 6.0;
    s = r + r * (z * s);
    double c = 1.0 / 20922789888000.0;
    c = c * z - 1.0 / 87178291200.0;
    c = c * z + 1.0 / 479001600.0;
    c = c * z - 1.0 / 3628800.0;
    c = c * z + 1.0 / 40320.0;
    c = c * z - 1.0 / 720.0;
    c = c * z + 1.0 / 24.0;
    c = c * z - 0.5;
    c = 1.0 + z * c;

    uint64_t quadrant = bits_of(rounded) & 3;
    *cosine = quadrant == 0 ? c : quadrant == 1 ? -s : quadrant == 2 ? -c : s;
    *sine = quadrant == 0 ? s : quadrant == 1 ? c : quadrant == 2 ? -s : -c;
}

void rapt_find_angles(const rapt_rotary *rotary, int64_t position, rapt_angles *angles) {
    for (int64_t i = 0; i < rotary->channels / 2; i++) {
        double c, s;
        find_angle((double)(position + rotary->offset), rotary->frequencies[i], &c, &s);
        angles->c[i] = (float)(c * rotary->amplitude);
        angles->s[i] = (float)(s * rotary->amplitude);
    }
}

void rapt_rotate(const rapt_rotary *rotary, const rapt_angles *angles, float *row) {
    int64_t pairs = rotary->channels / 2, step = rotary->interleaved ? 2 : 1, other = rotary->interleaved ? 1 : pairs;
    for (int64_t i = 0; i < pairs; i++) {
        float *at = row + i * step, x = at[0], y = at[other], c = angles->c[i], s = angles->s[i];
        at[0] = x * c - y * s;
        at[other] = y * c + x * s;
    }
}

/* log2 of x in [sqrt(1/2), sqrt(2)]: with t = (x - 1) / (x + 1), 2 atanh(t) / ln 2; t^25 / 25 is below 1e-19. */
static double log2_near_one(double x) {
    double t = (x - 1.0) / (x + 1.0), z = t * t, p = 1.0 / 23.0;
    for (int n = 21; n >= 1; n -= 2) p = p * z + 1.0 / n;
    return t * p * 0x1.71547652b82fep+1;
}

/* 2^x for |x| < 2: (x - n) ln 2 is at most 0.35, whose 15th power over 15! is below 1e-18. */
static double exp2_near_one(double x) {
    double rounded = x + ROUND_MAGIC, y = (x - (rounded - ROUND_MAGIC)) * 0x1.62e42fefa39efp-1, p = 1.0;
    for (int n = 14; n >= 1; n--) p = p * (y / n) + 1.0;
    return p * double_of((bits_of(rounded) + 1023) << 52);
}

/* base^(-i / n) for i < n: base = 2^e * m, so it is 2^-(i * e / n) * 2^-(i / n * log2 m), where the first exponent's integer part
 * is exact. */
typedef struct powers {
    int64_t e;
    double log2_m;
} powers;

static powers powers_of(double base) {
    int64_t e = (int64_t)(bits_of(base) >> 52) - 1023;
    double m = double_of((bits_of(base) & (UINT64_MAX >> 12)) | UINT64_C(1023) << 52);
    if (m > 0x1.6a09e667f3bcdp+0) m *= 0.5, e++;
    return (powers){e, log2_near_one(m)};
}

static double inverse_power(const powers *p, int64_t i, int64_t n) {
    int64_t whole = i * p->e / n, rest = i * p->e % n;
    double x = (double)rest / (double)n + (double)i / (double)n * p->log2_m;
    return exp2_near_one(-x) * double_of((uint64_t)(1023 - whole) << 52);
}

rapt_status rapt_rope_frequencies(double base, int64_t channels, double *frequencies) {
    if (!frequencies) return RAPT_ERR_NULL;
    if (channels < 2 || channels > RAPT_MAX_HEAD_DIM || channels % 2) return RAPT_ERR_SHAPE;
    if (!(base >= 1.0 && is_finite(base))) return RAPT_ERR_FEATURE;
    powers p = powers_of(base);
    for (int64_t i = 0; i < channels; i += 2) frequencies[i / 2] = inverse_power(&p, i, channels);
    return RAPT_OK;
}

rapt_status rapt_sinusoidal(int64_t first, int64_t positions, int64_t width, float *table) {
    if (width < 2 || width > RAPT_MAX_WIDTH || width % 2 || first < 0 || positions < 0 || first > RAPT_MAX_LENGTH ||
        positions > RAPT_MAX_LENGTH - first)
        return RAPT_ERR_SHAPE;
    if (positions > 0 && !table) return RAPT_ERR_NULL;
    powers p = powers_of(10000.0);
    for (int64_t i = 0; i < width; i += 2) {
        double frequency = inverse_power(&p, i, width), c, s;
        for (int64_t at = 0; at < positions; at++) {
            find_angle((double)(first + at), frequency, &c, &s);
            table[at * width + i] = (float)s;
            table[at * width + i + 1] = (float)c;
        }
    }
    return RAPT_OK;
}

rapt_status rapt_alibi_slopes(int64_t heads, float *slopes) {
    if (!slopes) return RAPT_ERR_NULL;
    if (heads < 1 || heads > RAPT_MAX_LENGTH) return RAPT_ERR_SHAPE;
    const powers p = {.e = 8}; /* of 2^8 */
    int64_t power = 1;
    while (power <= heads / 2) power *= 2;
    for (int64_t h = 0; h < heads; h++)
        slopes[h] = (float)(h < power ? inverse_power(&p, h + 1, power) : inverse_power(&p, 2 * (h - power) + 1, 2 * power));
    return RAPT_OK;
}
