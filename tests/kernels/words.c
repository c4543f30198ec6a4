/* SPDX-License-Identifier: Apache-2.0 */
/* The words that results are made of, measured one by one: exp2, tanh and ln against double precision, the storage types against
 * exact arithmetic (those of K and V only against tests/support/reference.c), staged rows, the transpose and the words of integer
 * arithmetic against their definitions. Compiled
 * once for each ISA with RAPT_ISA_FILE naming its file, whose static functions this includes. A sample of the floats by default;
 * every float of the range with --all (minutes). */
#define RAPT_WORDS_ALONE
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-function"
#endif
#include RAPT_ISA_FILE /* NOLINT(bugprone-suspicious-include): the words are static */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "fence.h"
#include "hash.h"
#include "random_streams.h"
#include "reference.h"
#include "tap.h"

static float as_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static uint32_t as_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Distance from the true value in units of the last place that an f32 of that size has. */
static double ulps(float got, double want) {
    int exponent;
    frexp(want, &exponent);
    return fabs((double)got - want) / ldexp(1.0, (exponent < -125 ? -125 : exponent) - 24);
}

/* The promises of docs/numerics.md, and hashes of the sampled results, which are the same on every ISA of a class. */
static const double exp2_ulps = RAPT_KERNEL_FUSED ? 0.80 : 1.08, tanh_ulps = RAPT_KERNEL_FUSED ? 1.60 : 1.95, ln_ulps = 1.97;

/* One of so many floats is tested: by default, and with --few, for emulators, which take a minute for the default. */
enum { SAMPLED = 1021, FEW = 16381 };
typedef struct known_hashes {
    uint64_t sampled[2], few[2]; /* unfused, fused */
} known_hashes;
static const known_hashes exp2_hashes = {{0xd1dd436cb88445d8, 0xa3f7c3b1fd0d868e}, {0x472bb5954e2a1de3, 0xa0db089bbdd4964e}};
static const known_hashes exp2_bf16_hashes = {{0x5ef2b79d6d4bd9c7, 0xba3a4fc07efdd9c7}, {0xdc5479191f6cd22f, 0xdc5479191f6cd22f}};
static const known_hashes tanh_hashes = {{0xea735a26e76a4335, 0xdc3bf1457c68bc9d}, {0xe7e105d58dbba063, 0xc351361b8c13376e}};
static const known_hashes ln_hashes = {{0x1951f83759e4143e, 0xd6c4cc8322a8b5f8}, {0x639982b179c9dc1d, 0x0408838ac35f1e7a}};

/* Tests a hash of results for every step-th float; of every single float none is known. */
static void same_hash(const char *name, uint64_t h, uint32_t step, known_hashes known) {
    if (step == 1) return;
    tap_ok(h == (step == SAMPLED ? known.sampled : known.few)[RAPT_KERNEL_FUSED],
           "%s: hash %016" PRIx64 " is the one of every ISA", name, h);
}

static void exp2_of_every_float(uint32_t step) {
    uint64_t h = hash_start;
    double worst = 0.0, below = 0.0;
    float worst_at = 0.0f;
    uint32_t first = as_bits(-0.0f), last = as_bits(-150.0f);
    for (uint32_t from = first; from <= last; from += step * RAPT_VL) {
        float d[RAPT_VL], got[RAPT_VL];
        for (int j = 0; j < RAPT_VL; j++) {
            uint32_t bits = from + (uint32_t)j * step;
            d[j] = as_float(bits < last ? bits : last);
        }
        v_store(got, v_exp2(v_load(d), v_set1(1.0f), v_set1(-127.0f)));
        for (int j = 0; j < RAPT_VL; j++) {
            double want = exp2((double)d[j]);
            h = as_bits(d[j]) < last ? hash_word(h, as_bits(got[j])) : h;
            if (d[j] < -126.0f) {
                if (fabs(got[j] - want) > below) below = fabs(got[j] - want);
            } else if (!(ulps(got[j], want) <= worst)) worst = ulps(got[j], want), worst_at = d[j];
        }
    }
    tap_ok(worst <= exp2_ulps, "exp2: worst %.4f ulp at %a, promised %.2f", worst, (double)worst_at, exp2_ulps);
    tap_ok(below <= 0x1p-126, "exp2 below -126: worst absolute error %.2e", below);
    same_hash("exp2", h, step, exp2_hashes);
}

static void exp2_special(void) {
    const float nan = as_float(0x7fc12345u);
    const struct {
        float d, want;
    } table[] = {{0.0f, 1.0f},    {-0.0f, 1.0f},  {-1.0f, 0.5f},    {-126.0f, 0x1p-126f},
                 {-127.0f, 0.0f}, {-1e30f, 0.0f}, {-INFINITY, 0.0f}};
    float got[RAPT_VL];
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        v_store(got, v_exp2(v_set1(table[i].d), v_set1(1.0f), v_set1(-127.0f)));
        tap_ok(as_bits(got[0]) == as_bits(table[i].want), "exp2(%g) is exactly %g", (double)table[i].d, (double)table[i].want);
    }
    v_store(got, v_exp2(v_set1(nan), v_set1(1.0f), v_set1(-127.0f)));
    tap_ok(got[0] != got[0], "exp2(NaN) is NaN, whatever its payload");
    for (float c = 0x1p-64f; c <= 0x1p65f; c *= 2.0f) {
        v_store(got, v_exp2(v_set1(-INFINITY), v_set1(c), v_set1(-127.0f / c)));
        if (as_bits(got[0]) != 0) break;
    }
    tap_ok(as_bits(got[0]) == 0, "exp2(-inf * c) is +0 for every c of a plan");
}

static float bf16_rounded(double x) {
    float f = (float)x;
    uint32_t bits = as_bits(f);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    return as_float(bits);
}

/* In units of bf16's last place, which is 2^-7 for results from 1 to 2: half of one is what rounding may lose. */
static void exp2_bf16_of_every_float(uint32_t step) {
    uint64_t h = hash_start;
    double worst = 0.0;
    int64_t wrong = 0, off = 0, of = 0;
    uint32_t first = as_bits(-0.0f), last = as_bits(-60.0f);
    for (uint32_t from = first; from <= last; from += step * RAPT_VL) {
        float d[RAPT_VL], got[RAPT_VL];
        for (int j = 0; j < RAPT_VL; j++) {
            uint32_t bits = from + (uint32_t)j * step;
            d[j] = as_float(bits < last ? bits : last);
        }
        v_store(got, v_exp2_bf16(v_load(d), v_set1(1.0f), v_set1(-56.0f)));
        for (int j = 0; j < RAPT_VL; j++) {
            double want = exp2((double)d[j]), place = ldexp(1.0, ilogb(want) - 7);
            h = as_bits(d[j]) < last ? hash_word(h, as_bits(got[j])) : h;
            if (d[j] < -56.0f) {
                wrong += as_bits(got[j]) != 0;
                continue;
            }
            wrong += (as_bits(got[j]) & 0xffff) != 0 || got[j] < 0x1p-56f;
            worst = fmax(worst, fabs(got[j] - want) / place);
            off += got[j] != bf16_rounded(want), of++;
        }
    }
    tap_ok(wrong == 0, "exp2 for bf16: every result is of bf16, and 0 or at least 2^-56; %d are not", (int)wrong);
    tap_ok(worst <= 0.53, "exp2 for bf16: worst %.4f places, promised 0.53", worst);
    tap_ok((double)off <= 0.003 * (double)of, "exp2 for bf16: %.2f %% of results are not the nearest",
           100.0 * (double)off / (double)of);
    same_hash("exp2 for bf16", h, step, exp2_bf16_hashes);
}

static void exp2_bf16_special(void) {
    const struct {
        float d, want;
    } table[] = {{0.0f, 1.0f},   {-0.0f, 1.0f},  {-1.0f, 0.5f},    {-56.0f, 0x1p-56f},
                 {-56.1f, 0.0f}, {-1e30f, 0.0f}, {-INFINITY, 0.0f}};
    float got[RAPT_VL];
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        v_store(got, v_exp2_bf16(v_set1(table[i].d), v_set1(1.0f), v_set1(-56.0f)));
        tap_ok(as_bits(got[0]) == as_bits(table[i].want), "exp2(%g) for bf16 is exactly %g", (double)table[i].d,
               (double)table[i].want);
    }
    v_store(got, v_exp2_bf16(v_set1(as_float(0x7fc12345u)), v_set1(1.0f), v_set1(-56.0f)));
    tap_ok(got[0] != got[0], "exp2(NaN) for bf16 is NaN");
}

/* i_fold_smallest_bf16 against its definition: for each 16-bit half, max(most, (uint16_t)(-2 * x)). */
static void fold_smallest_bf16(void) {
    uint16_t most[2 * RAPT_VL], x[2 * RAPT_VL], got[2 * RAPT_VL];
    int wrong = 0;
    uint32_t bits = 1;
    for (int call = 0; call < 2000; call++) {
        for (int i = 0; i < 2 * RAPT_VL; i++) {
            bits = bits * 1664525u + 1013904223u;
            x[i] = (uint16_t)(bits >> 16 & (call % 3 ? 0xffff : 0x8001));
            bits = bits * 1664525u + 1013904223u;
            most[i] = (uint16_t)(bits >> 16);
        }
        v_store(got, v_as_float(i_fold_smallest_bf16(v_as_int(v_load(most)), v_as_int(v_load(x)))));
        for (int i = 0; i < 2 * RAPT_VL; i++) {
            uint16_t want = (uint16_t)(0x10000 - 2 * (x[i] & 0x7fff));
            wrong += got[i] != (want > most[i] ? want : most[i]);
        }
    }
    tap_ok(wrong == 0, "i_fold_smallest_bf16: %d halves are wrong", wrong);
}

static void tanh_of(float *to, const float *x) { v_store(to, v_tanh(v_load(x))); }

/* Every float of [0, 20], against double precision, alone and with its sign changed, and beside a lane of the other branch. */
static void tanh_of_every_float(uint32_t step) {
    uint64_t h = hash_start, odd = 0, leaning = 0, beyond = 0;
    double worst = 0.0;
    float worst_at = 0.0f;
    uint32_t last = as_bits(20.0f);
    for (uint32_t from = 0; from <= last; from += step * RAPT_VL) {
        float x[RAPT_VL], minus[RAPT_VL], mixed[RAPT_VL], got[RAPT_VL], of_minus[RAPT_VL], of_mixed[RAPT_VL];
        int other = (int)(from / step / RAPT_VL % RAPT_VL);
        for (int j = 0; j < RAPT_VL; j++) {
            uint32_t bits = from + (uint32_t)j * step;
            x[j] = mixed[j] = as_float(bits < last ? bits : last);
            minus[j] = -x[j];
        }
        mixed[other] = x[other] < 0.625f ? 5.0f : 0.125f;
        tanh_of(got, x), tanh_of(of_minus, minus), tanh_of(of_mixed, mixed);
        for (int j = 0; j < RAPT_VL; j++) {
            h = as_bits(x[j]) < last ? hash_word(h, as_bits(got[j])) : h;
            double error = ulps(got[j], tanh((double)x[j]));
            if (!(error <= worst)) worst = error, worst_at = x[j];
            odd += as_bits(of_minus[j]) != (as_bits(got[j]) ^ 0x80000000u);
            leaning += j != other && as_bits(of_mixed[j]) != as_bits(got[j]);
            beyond += !(got[j] <= 1.0f);
        }
    }
    tap_ok(worst <= tanh_ulps, "tanh: worst %.4f ulp at %a, promised %.2f", worst, (double)worst_at, tanh_ulps);
    tap_ok(odd == 0, "tanh(-x) = -tanh(x): %" PRIu64 " wrong", odd);
    if (RAPT_VL > 1) tap_ok(leaning == 0, "tanh beside a lane of the other branch: %" PRIu64 " differ", leaning);
    tap_ok(beyond == 0, "tanh is at most 1: %" PRIu64 " wrong", beyond);
    same_hash("tanh", h, step, tanh_hashes);
}

static void tanh_special(uint32_t step) {
    float x[RAPT_VL], got[RAPT_VL];
    uint64_t wrong = 0;
    for (float sign = -1.0f; sign <= 1.0f; sign += 2.0f)
        for (uint32_t from = as_bits(20.0f), last = as_bits(INFINITY); from <= last; from += step * RAPT_VL) {
            for (int j = 0; j < RAPT_VL; j++) {
                uint32_t bits = from + (uint32_t)j * step;
                x[j] = sign * as_float(bits < last ? bits : last);
            }
            tanh_of(got, x);
            for (int j = 0; j < RAPT_VL; j++) wrong += got[j] != sign;
        }
    for (int j = 0; j < RAPT_VL; j++) x[j] = j % 2 ? INFINITY : -INFINITY;
    tanh_of(got, x);
    for (int j = 0; j < RAPT_VL; j++) wrong += got[j] != (j % 2 ? 1.0f : -1.0f);
    tap_ok(wrong == 0, "tanh from 20 on, infinity too, is exactly 1: %" PRIu64 " wrong", wrong);
    wrong = 0;
    for (int i = 0; i < 4; i++) { /* among lanes that are numbers of either branch */
        const uint32_t nans[] = {0x7fc12345u, 0xffc00000u, 0x7f800001u, 0xffbfffffu};
        for (int j = 0; j < RAPT_VL; j++) x[j] = j == i % RAPT_VL ? as_float(nans[i]) : i < 2 ? 0.5f : 2.0f;
        tanh_of(got, x);
        for (int j = 0; j < RAPT_VL; j++) wrong += (got[j] != got[j]) != (j == i % RAPT_VL);
    }
    tap_ok(wrong == 0, "tanh(NaN) is NaN, whatever its payload, and its neighbours are not: %" PRIu64 " wrong", wrong);
}

static void ln_of_every_float(uint32_t step) {
    uint64_t h = hash_start;
    double worst = 0.0;
    float worst_at = 0.0f;
    for (uint32_t bits = as_bits(0x1p-126f); bits <= as_bits(FLT_MAX); bits += step) {
        float x = as_float(bits), got = s_ln(x);
        h = hash_word(h, as_bits(got));
        if (x == 1.0f) continue; /* exactly 0, below */
        double error = ulps(got, log((double)x));
        if (!(error <= worst)) worst = error, worst_at = x;
    }
    tap_ok(worst <= ln_ulps, "ln: worst %.4f ulp at %a, promised %.2f", worst, (double)worst_at, ln_ulps);
    tap_ok(as_bits(s_ln(1.0f)) == 0, "ln(1) is exactly +0");
    tap_ok(s_ln(as_float(0x7fc00001u)) != s_ln(1.0f) && s_ln(as_float(0x7fc00001u)) != s_ln(as_float(0x7fc00001u)),
           "ln(NaN) is NaN");
    same_hash("ln", h, step, ln_hashes);
}

static double exact_gelu(double x) { return x * 0.5 * erfc(-x / sqrt(2.0)); }
static double exact_gelu_tanh(double x) { return 0.5 * x * (1.0 + tanh(sqrt(2.0 / acos(-1.0)) * (x + 0.044715 * x * x * x))); }
static double exact_silu(double x) { return x / (1.0 + exp(-x)); }

/* Every float of [-range, range] of an activation against double precision: its error is at most absolute * max(1, |x|), and from
 * -relative_range on at most relative of the result. */
static void activation_of_every_float(const char *name, vf (*word)(vf), double (*exact)(double), float range, double absolute,
                                      float relative_range, double relative, known_hashes known, uint32_t step) {
    uint64_t h = hash_start;
    double worst = 0.0, worst_relative = 0.0;
    for (int sign = 0; sign < 2; sign++)
        for (uint32_t from = 0, last = as_bits(range); from <= last; from += step * RAPT_VL) {
            float x[RAPT_VL], got[RAPT_VL];
            for (int j = 0; j < RAPT_VL; j++) {
                uint32_t bits = from + (uint32_t)j * step;
                x[j] = as_float((bits < last ? bits : last) | (uint32_t)sign << 31);
            }
            v_store(got, word(v_load(x)));
            for (int j = 0; j < RAPT_VL; j++) {
                double want = exact((double)x[j]), error = fabs(got[j] - want), size = fabs((double)x[j]);
                h = size < range ? hash_word(h, as_bits(got[j])) : h;
                if (!(error / fmax(1.0, size) <= worst)) worst = error / fmax(1.0, size);
                if (size < 0x1p-100 || x[j] < -relative_range) continue; /* denormal numbers and what becomes one */
                if (!(error / fabs(want) <= worst_relative)) worst_relative = error / fabs(want);
            }
        }
    tap_ok(worst <= absolute, "%s: worst error %.3g max(1, |x|) in [-%g, %g], promised %.3g", name, worst, (double)range,
           (double)range, absolute);
    tap_ok(worst_relative <= relative, "%s: worst error %.3g of the result from -%g on, promised %.3g", name, worst_relative,
           (double)relative_range, relative);
    same_hash(name, h, step, known);
}

static void activations(uint32_t step) {
    activation_of_every_float("GELU", v_gelu, exact_gelu, 10.0f, 1e-7, 8.0f, 1e-4,
                              (known_hashes){{0x10ec83fc93ed79c6, 0x1dd71b409c3e0ef6}, {0x0b4cd2e7f0951b75, 0x982d99f652cd04c8}},
                              step);
    activation_of_every_float("GELU by tanh", v_gelu_tanh, exact_gelu_tanh, 10.0f, 2e-7, 1.0f, 1e-6,
                              (known_hashes){{0x5405a5eafd0c240f, 0x474164e5298756f2}, {0xa7ed76f664144b96, 0x6a4aa0844b695a2e}},
                              step);
    activation_of_every_float("SiLU", v_silu, exact_silu, 100.0f, 2e-7, 80.0f, RAPT_KERNEL_FUSED ? 1.2e-6 : 4e-6,
                              (known_hashes){{0x31bca33600c6151b, 0x22749b8009bd0a97}, {0xea49932793e5d7a6, 0xb22e58167176a518}},
                              step);
    float got[RAPT_VL];
    vf (*const words[])(vf) = {v_gelu, v_gelu_tanh, v_silu};
    int wrong = 0;
    for (int i = 0; i < 3; i++) {
        v_store(got, words[i](v_set1(as_float(0x7fc12345u))));
        wrong += got[0] == got[0];
        v_store(got, words[i](v_set1(INFINITY)));
        wrong += got[0] != INFINITY;
        v_store(got, words[i](v_set1(1e30f)));
        wrong += got[0] != 1e30f;
    }
    tap_ok(wrong == 0, "activations of NaN are NaN, of large numbers and infinity themselves: %d wrong", wrong);
}

/* A 16-bit format with that many exponent and stored mantissa bits: its value in double, exactly. */
static double value_of_16(uint16_t h, int exponent_bits, int mantissa_bits) {
    int e = h >> mantissa_bits & ((1 << exponent_bits) - 1), bias = (1 << (exponent_bits - 1)) - 1;
    double m = h & ((1 << mantissa_bits) - 1), sign = h >> 15 ? -1.0 : 1.0;
    if (e == (1 << exponent_bits) - 1) return m != 0.0 ? NAN : sign * INFINITY;
    return sign * (e ? ldexp(m + ldexp(1.0, mantissa_bits), e - bias - mantissa_bits) : ldexp(m, 1 - bias - mantissa_bits));
}

/* Rounded to nearest even by definition: the two neighbours, their distances, the even one in a tie. */
static uint16_t nearest_16(float x, int exponent_bits, int mantissa_bits) {
    uint16_t sign = signbit(x) ? 0x8000 : 0, infinity = (uint16_t)(((1 << exponent_bits) - 1) << mantissa_bits);
    double magnitude = fabs((double)x);
    uint16_t low = 0, high = infinity;
    double largest = value_of_16((uint16_t)(infinity - 1), exponent_bits, mantissa_bits);
    double beyond = largest + (largest - value_of_16((uint16_t)(infinity - 2), exponent_bits, mantissa_bits));
    while (high - low > 1) {
        uint16_t middle = (uint16_t)(low + (high - low) / 2);
        if (value_of_16(middle, exponent_bits, mantissa_bits) <= magnitude) low = middle;
        else high = middle;
    }
    double below = value_of_16(low, exponent_bits, mantissa_bits);
    double above = high == infinity ? beyond : value_of_16(high, exponent_bits, mantissa_bits);
    bool up = magnitude - below > above - magnitude || (magnitude - below == above - magnitude && (low & 1));
    return sign | (up ? high : low);
}

typedef vf load_word(const void *from);

static void storage(const char *name, load_word *load, store_word *store, int exponent_bits, int mantissa_bits, uint32_t step) {
    int wrong = 0;
    for (uint32_t h = 0; h < 65536; h += RAPT_VL) {
        uint16_t from[RAPT_VL];
        float got[RAPT_VL];
        for (int j = 0; j < RAPT_VL; j++) from[j] = (uint16_t)(h + (uint32_t)j);
        v_store(got, load(from));
        for (int j = 0; j < RAPT_VL; j++) {
            double want = value_of_16(from[j], exponent_bits, mantissa_bits);
            wrong += want != want ? got[j] == got[j] : as_bits(got[j]) != as_bits((float)want);
        }
    }
    tap_ok(wrong == 0, "%s to f32: all 65536 values, %d wrong", name, wrong);
    wrong = 0;
    uint32_t wrong_at = 0;
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += (uint64_t)step * RAPT_VL) {
        float from[RAPT_VL];
        uint16_t got[RAPT_VL];
        for (int j = 0; j < RAPT_VL; j++) from[j] = as_float((uint32_t)(bits + (uint64_t)j * step));
        store(got, v_load(from));
        for (int j = 0; j < RAPT_VL; j++) {
            bool is_wrong = from[j] != from[j] ? !isnan(value_of_16(got[j], exponent_bits, mantissa_bits))
                                               : got[j] != nearest_16(from[j], exponent_bits, mantissa_bits);
            if (is_wrong) wrong++, wrong_at = as_bits(from[j]);
        }
    }
    tap_ok(wrong == 0, "f32 to %s: %d wrong, the last at %08" PRIx32, name, wrong, wrong_at);
    wrong = 0; /* each value, each midpoint between two, and their neighbours */
    for (uint32_t h = 0; h < 0x7fff; h++) {
        double a = value_of_16((uint16_t)h, exponent_bits, mantissa_bits),
               b = value_of_16((uint16_t)(h + 1), exponent_bits, mantissa_bits);
        if (!isfinite(a)) break;
        uint32_t middle = as_bits(
            (float)(isfinite(b) ? (a + b) / 2 : a + (a - value_of_16((uint16_t)(h - 1), exponent_bits, mantissa_bits)) / 2));
        for (int j = -1; j <= 1; j++) {
            float from[RAPT_VL], x = as_float(middle + (uint32_t)j);
            uint16_t got[RAPT_VL];
            v_store(from, v_set1(x));
            store(got, v_load(from));
            wrong += got[0] != nearest_16(x, exponent_bits, mantissa_bits);
        }
    }
    tap_ok(wrong == 0, "f32 to %s: ties and their neighbours, %d wrong", name, wrong);
}

static uint32_t random_bits(void) {
    static uint64_t stream = 1;
    return (uint32_t)draw(&stream);
}

/* Random bytes; every other group has a scale, and a minimum or what lies in its place, that is out of the ordinary. */
static void random_row(unsigned char *row, size_t bytes, size_t group_bytes) {
    static const uint16_t odd[] = {0,      0x8000, 1,      0x8001, 0x3ff,  0x83ff, 0x400,
                                   0x8400, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0xbc00};
    for (size_t i = 0; i < bytes; i++) row[i] = (unsigned char)random_bits();
    for (size_t at = 0; group_bytes > 1 && at < bytes; at += 2 * group_bytes)
        for (int i = 0; i < 4; i += 2) memcpy(row + at + i, &odd[random_bits() % (sizeof odd / sizeof *odd)], 2);
}

static bool same_float(float got, float want) { return want != want ? got != got : as_bits(got) == as_bits(want); }

/* Tests every byte, or random groups, from rows before and after which no byte may be read. */
static void kv_storage(const char *name, rapt_type type, load_channels *load, int group, int bytes) {
    enum { CHANNELS = 512 };
    int wrong = 0;
    size_t row_bytes = (size_t)(CHANNELS / group * bytes);
    const int rows = group == 1 ? 2 : 1000; /* of one channel: every value in each row */
    fence fences[2] = {fence_create(row_bytes, -1, 0), fence_create(row_bytes, 0, 0)}; /* guarded at the end, at the start */
    for (int turn = 0; turn < rows; turn++) {
        unsigned char *row = fences[turn % 2].data;
        random_row(row, row_bytes, (size_t)bytes);
        for (int i = 0; i < CHANNELS && group == 1; i++) row[i] = (unsigned char)i;
        for (int i = 0; i < CHANNELS; i += RAPT_VL) {
            float got[RAPT_VL];
            v_store(got, load((const char *)row, i));
            for (int j = 0; j < RAPT_VL; j++) wrong += !same_float(got[j], reference_element(type, row, i + j));
        }
    }
    for (int i = 0; i < 2; i++) fence_destroy(&fences[i]);
    tap_ok(wrong == 0, "%s to f32: %d rows of %d groups, %d wrong", name, rows, CHANNELS / group, wrong);
}

/* Tests stage_rows on parts of rows. Nothing else of the rows may be read, and the floats around the output must stay as they
 * are. */
static void staged_rows(const char *name, rapt_type type, int group, int bytes) {
    enum { ROWS = 3, MOST = 96, LD = MOST + 2 * RAPT_VL };
    const float guard = 12345.0f;
    int wrong = 0, parts = 0;
    for (int first = 0; first <= MOST / 2; first += RAPT_VL)
        for (int channels = group == 1 ? 1 : RAPT_VL; first + channels <= MOST; channels += group == 1 ? 1 : RAPT_VL) {
            int last = (first + channels + group - 1) / group; /* groups up to there */
            int before = group == 1 ? first : 0;               /* channels that are not even there */
            fence row[ROWS];
            const char *rows[ROWS];
            float to[ROWS * LD];
            for (int i = 0; i < ROWS * LD; i++) to[i] = guard;
            for (int r = 0; r < ROWS; r++) {
                row[r] = fence_create((size_t)((last - before) * bytes), r == 1 ? 0 : -1, 0);
                random_row(row[r].data, row[r].bytes, group == 1 ? 1 : (size_t)bytes);
                rows[r] = (const char *)row[r].data - before * bytes;
            }
            stage_rows(type, to, LD, rows, ROWS, first, channels);
            for (int r = 0; r < ROWS; r++)
                for (int i = 0; i < LD; i++) {
                    float want = i < channels                                       ? reference_element(type, rows[r], first + i)
                                 : i < (channels + RAPT_VL - 1) / RAPT_VL * RAPT_VL ? 0.0f
                                                                                    : guard;
                    wrong += !same_float(to[r * LD + i], want);
                }
            for (int r = 0; r < ROWS; r++) fence_destroy(&row[r]);
            parts++;
        }
    tap_ok(wrong == 0, "%s: %d parts of rows staged, %d wrong", name, parts, wrong);
}

/* Tests stage_rows on rows of a type of RAPT_MATRIX_TYPES, of 1 to 6 blocks, which are more than a part. Nothing else of the rows
 * may be read, and the floats behind the output must stay as they are. */
static void staged_blocks(const char *name, rapt_type type, int bytes) {
    enum { MOST = 6 * MATRIX_BLOCK, LD = MOST + RAPT_VL, ROWS = 2, TURNS = 600 };
    const float guard = 12345.0f;
    static float to[ROWS * LD];
    int wrong = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        const int blocks = turn % 6 + 1, channels = blocks * MATRIX_BLOCK;
        fence row[ROWS];
        const char *rows[ROWS];
        for (int i = 0; i < ROWS * LD; i++) to[i] = guard;
        for (int r = 0; r < ROWS; r++) {
            row[r] = fence_create((size_t)(blocks * bytes), r == 0 ? 0 : -1, 0);
            random_row(row[r].data, row[r].bytes, (size_t)bytes);
            rows[r] = (const char *)row[r].data;
        }
        stage_rows(type, to, LD, rows, ROWS, 0, channels);
        for (int r = 0; r < ROWS; r++)
            for (int i = 0; i < LD; i++)
                wrong += !same_float(to[r * LD + i], i < channels ? reference_element(type, rows[r], i) : guard);
        for (int r = 0; r < ROWS; r++) fence_destroy(&row[r]);
    }
    tap_ok(wrong == 0, "%s: rows of 1 to 6 blocks staged, %d wrong", name, wrong);
}

static void transpose(void) {
    float from[RAPT_VL][RAPT_VL + 1], to[RAPT_VL][RAPT_VL + 2];
    const char *rows[RAPT_VL];
    int wrong = 0;
    for (int r = 0; r < RAPT_VL; r++) {
        rows[r] = (const char *)from[r];
        for (int i = 0; i <= RAPT_VL; i++) from[r][i] = (float)(r * 100 + i);
    }
    store_transposed(load_f32, rows, 1, to[0], RAPT_VL + 2);
    for (int r = 0; r < RAPT_VL; r++)
        for (int i = 0; i < RAPT_VL; i++) wrong += to[i][r] != from[r][i + 1];
    tap_ok(wrong == 0, "transpose: %d wrong", wrong);
}

/* Steps of RAPT_VL rows of K, of which nothing else may be read, whose elements are transposed before they are converted. */
static void columns_of_keys(const char *name, rapt_type type, read_step_word *read, column_word *column, int group, int bytes) {
    const int row_bytes = step_bytes(type, group, bytes), channels = row_bytes / bytes * group;
    int wrong = 0;
    fence fences[RAPT_VL][2]; /* each row ends where a guard page begins, or begins where one ends */
    for (int r = 0; r < RAPT_VL; r++)
        for (int i = 0; i < 2; i++) fences[r][i] = fence_create((size_t)row_bytes, i - 1, 0);
    for (int turn = 0; turn < 400; turn++) {
        unsigned char *row[RAPT_VL];
        const char *rows[RAPT_VL];
        key_columns c;
        for (int r = 0; r < RAPT_VL; r++) {
            row[r] = fences[r][(turn + r) % 2].data;
            random_row(row[r], (size_t)row_bytes, group == 1 ? 1 : (size_t)bytes);
            rows[r] = (const char *)row[r] - 32;
        }
        read(&c, rows, 32, turn % 2 ? 1 : RAPT_MOST_FEW_ROWS);
        for (int i = 0; i < channels; i++) {
            float got[RAPT_VL];
            v_store(got, column(&c, c.dwords[i / elements_of_dword(type)], i % elements_of_dword(type)));
            for (int r = 0; r < RAPT_VL; r++) wrong += !same_float(got[r], reference_element(type, row[r], i));
        }
    }
    for (int r = 0; r < RAPT_VL; r++)
        for (int i = 0; i < 2; i++) fence_destroy(&fences[r][i]);
    tap_ok(wrong == 0, "%s: columns of keys, %d wrong", name, wrong);
}

#if RAPT_DOT_SIGNED
enum { UNSIGNED_B = 0 };
#else
enum { UNSIGNED_B = 1 };
#endif

/* Element e of a lane, as i_dot takes it: b's are unsigned where they are bytes, or all are signed. */
static int64_t element(uint32_t lane, int e, bool is_b) {
    const uint32_t bits = lane >> e * (32 / RAPT_DOT);
    if (RAPT_DOT == 2) return (int16_t)(uint16_t)bits;
    return is_b && UNSIGNED_B ? (int64_t)(uint8_t)bits : (int64_t)(int8_t)(uint8_t)bits;
}

/* One more call for lanes of acc, b and a; how many are wrong. Sums wrap around. */
static int wrong_dots(const uint32_t *acc, const uint32_t *b, const uint32_t *a) {
    uint32_t got[RAPT_VL];
    int wrong = 0;
    v_store(got, v_as_float(i_dot(v_as_int(v_load(acc)), v_as_int(v_load(b)), v_as_int(v_load(a)))));
    for (int j = 0; j < RAPT_VL; j++) {
        int64_t want = acc[j];
        for (int e = 0; e < RAPT_DOT; e++) want += element(b[j], e, true) * element(a[j], e, false);
        wrong += got[j] != (uint32_t)(uint64_t)want;
    }
    return wrong;
}

/* Lanes of integers are loaded and broadcast as if they were floats: denormal ones, NaNs and signalling NaNs among them. */
static void patterns(void) {
    static const uint32_t some[] = {0,          1,          0x007fffff, 0x80000001, 0x3f800000, 0x7f800001,
                                    0x7fa5a5a5, 0x7fc00001, 0xff810001, 0xffbfffff, UINT32_MAX};
    int wrong = 0;
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        uint32_t got[RAPT_VL], again[RAPT_VL];
        v_store(got, v_broadcast(&some[i]));
        v_store(again, v_load(got));
        for (int j = 0; j < RAPT_VL; j++) wrong += got[j] != some[i] || again[j] != some[i];
    }
    tap_ok(wrong == 0, "v_broadcast and v_load keep every bit: %d wrong", wrong);
}

/* Products of integers, of which the lower 32 bits are kept, and integers as f32, of which those with more than 24 bits are
 * rounded. */
static void integers(void) {
    static const uint32_t some[] = {0,          1,          127,        0xffffff80, 0x00ffffff, 0x01000001,
                                    0x01000003, 0xfefffffd, 0x7fffffff, 0x80000000, 0x12345678};
    enum { N = sizeof some / sizeof *some };
    int wrong = 0;
    for (int turn = 0; turn < 1000; turn++) {
        uint32_t a[RAPT_VL], b[RAPT_VL], product[RAPT_VL];
        float converted[RAPT_VL];
        for (int j = 0; j < RAPT_VL; j++) {
            a[j] = turn < N * N ? some[(turn + j) % N] : random_bits() >> turn % 8;
            b[j] = turn < N * N ? some[(turn / N + j) % N] : random_bits() >> turn % 8;
        }
        v_store(product, v_as_float(i_mul(v_as_int(v_load(a)), v_as_int(v_load(b)))));
        v_store(converted, v_from_int(v_as_int(v_load(a))));
        for (int j = 0; j < RAPT_VL; j++) {
            const int32_t integer = (int32_t)a[j];
            wrong += product[j] != (uint32_t)((uint64_t)a[j] * b[j]) || converted[j] != (float)integer;
        }
    }
    tap_ok(wrong == 0, "i_mul, and v_from_int to nearest even: %d lanes wrong", wrong);
}

/* Every pair of these in every place, and random bits; the rest of a lane is random too. */
static void dots_of_integers(void) {
    static const uint32_t outermost[] = {0,   1,      2,      127,    128,    129,    254,    255,
                                         256, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0xff80, 0xff81, 0xffff};
    static const uint32_t sums[] = {0, 1, 0x7fffffff, 0x80000000, 0xffffffff, 12345};
    enum { N = sizeof outermost / sizeof *outermost, BITS = 32 / RAPT_DOT };
    const uint32_t mask = RAPT_DOT == 4 ? 0xff : 0xffff;
    int wrong = 0, calls = 0;
    uint32_t acc[RAPT_VL], b[RAPT_VL], a[RAPT_VL];
    for (int turn = 0; turn < N * N * RAPT_DOT * 4; turn++, calls++) {
        const int x = turn % N, y = turn / N % N, place = turn / N / N % RAPT_DOT * BITS, rest = turn / N / N / RAPT_DOT;
        for (int j = 0; j < RAPT_VL; j++) {
            acc[j] = rest < 2 ? sums[(turn + j) % 6] : random_bits();
            b[j] = a[j] = 0;
            for (int e = 0; e < RAPT_DOT; e++) { /* all the same, or one among zeros, outermost ones, any */
                const uint32_t other_b = rest == 1 ? 0 : rest == 2 ? outermost[random_bits() % N] : random_bits();
                const uint32_t other_a = rest == 1 ? 0 : rest == 2 ? outermost[random_bits() % N] : random_bits();
                const bool here = rest == 0 || e * BITS == place;
                b[j] |= ((here ? outermost[x] : other_b) & mask) << e * BITS;
                a[j] |= ((here ? outermost[y] : other_a) & mask) << e * BITS;
            }
        }
        wrong += wrong_dots(acc, b, a);
    }
    tap_ok(wrong == 0, "i_dot of %d: %d calls, %d lanes wrong", RAPT_DOT, calls, wrong);
}

#if RAPT_BYTE_DOTS
static int below(int n) { return (int)(random_bits() % (uint32_t)n); }

/* i_dot_narrow of bytes up to 63, i_dot_signed of all, and i_sum_pairs: the outermost ones, and random ones. a has no -128. */
static void dots_of_bytes(void) {
    static const int outermost[] = {-127, -1, 0, 1, 127};
    int wrong[3] = {0};
    for (int turn = 0; turn < 4000; turn++) {
        int8_t a[4 * RAPT_VL], b[4 * RAPT_VL];
        uint8_t small[4 * RAPT_VL];
        int16_t halves[2 * RAPT_VL], narrow[2 * RAPT_VL];
        int32_t acc[RAPT_VL], sums[RAPT_VL], of_pairs[RAPT_VL];
        for (int i = 0; i < 4 * RAPT_VL; i++) {
            a[i] = (int8_t)(turn % 2 ? outermost[below(5)] : below(255) - 127);
            b[i] = (int8_t)(turn % 4 < 2 ? below(3) ? -128 : 127 : below(256) - 128);
            small[i] = (uint8_t)(turn % 4 < 2 ? 63 : below(64));
        }
        for (int i = 0; i < 2 * RAPT_VL; i++) halves[i] = (int16_t)(below(1 << 15) - (1 << 14));
        for (int i = 0; i < RAPT_VL; i++) acc[i] = (int32_t)random_bits();
        const vi of_a = v_as_int(v_load(a));
        v_store(narrow, v_as_float(i_dot_narrow(v_as_int(v_load(halves)), v_as_int(v_load(small)), of_a)));
        v_store(sums, v_as_float(i_dot_signed(v_as_int(v_load(acc)), v_as_int(v_load(b)), of_a)));
        v_store(of_pairs, v_as_float(i_sum_pairs(v_as_int(v_load(halves)))));
        for (int i = 0; i < 2 * RAPT_VL; i++)
            wrong[0] += narrow[i] != halves[i] + small[2 * i] * a[2 * i] + small[2 * i + 1] * a[2 * i + 1];
        for (int i = 0; i < RAPT_VL; i++) {
            uint32_t want = (uint32_t)acc[i];
            for (int j = 4 * i; j < 4 * i + 4; j++) want += (uint32_t)(a[j] * b[j]);
            wrong[1] += (uint32_t)sums[i] != want;
            wrong[2] += of_pairs[i] != halves[2 * i] + halves[2 * i + 1];
        }
    }
    tap_ok(wrong[0] == 0, "i_dot_narrow: %d halves wrong", wrong[0]);
    tap_ok(wrong[1] == 0, "i_dot_signed: %d lanes wrong", wrong[1]);
    tap_ok(wrong[2] == 0, "i_sum_pairs: %d lanes wrong", wrong[2]);
}
#endif

#if RAPT_BF16_FMA
/* v_fma_lower and v_fma_upper by each element: random numbers of 2^-40 to 2^40, sums that cancel a product but for its last bits,
 * and infinities, NaN and zeros among them. */
static void fused_products_of_bf16(void) {
    static const uint16_t special[] = {0x7f80, 0xff80, 0x7fc0, 0x0000, 0x8000, 0x3f80};
    int wrong = 0;
    for (int turn = 0; turn < 4000; turn++) {
        uint16_t a[2 * RAPT_VL], b[2 * RAPT_VL];
        float c[RAPT_VL], got[2][RAPT_VL];
        for (int i = 0; i < 2 * RAPT_VL; i++) {
            a[i] = (uint16_t)((random_bits() & 0x807f) | (87 + random_bits() % 80) << 7);
            b[i] = (uint16_t)((random_bits() & 0x807f) | (87 + random_bits() % 80) << 7);
            if (random_bits() % 32 == 0) a[i] = special[random_bits() % 6];
            if (random_bits() % 32 == 0) b[i] = special[random_bits() % 6];
        }
        const int n = turn % (2 * RAPT_VL);
        const float by = as_float((uint32_t)a[n] << 16);
        for (int i = 0; i < RAPT_VL; i++) {
            const float product = by * as_float((uint32_t)b[2 * i + (int)(random_bits() % 2)] << 16);
            c[i] = random_bits() % 2 ? as_float(random_bits() % 0x60000000)
                                     : -product * (1.0f + (float)(random_bits() % 8) * 0x1p-23f);
        }
        UNROLLED(k, 2 * RAPT_VL)
            if (k == n) {
                v_store(got[0], v_fma_lower(v_load(a), k, v_as_int(v_load(b)), v_load(c)));
                v_store(got[1], v_fma_upper(v_load(a), k, v_as_int(v_load(b)), v_load(c)));
            }
        for (int i = 0; i < RAPT_VL; i++)
            for (int upper = 0; upper < 2; upper++)
                wrong += !same_float(got[upper][i], s_fma(by, as_float((uint32_t)b[2 * i + upper] << 16), c[i]));
    }
    tap_ok(wrong == 0, "v_fma_lower and v_fma_upper round once: %d wrong", wrong);
}
#endif

/* Ties and their neighbours of every integer that is used and some beyond, random numbers, and what is not below the bound. */
static void nearest_integers(void) {
    int wrong = 0, beyond = 0;
    for (int n = -1024; n <= 1024; n++)
        for (int part = 0; part <= 8; part++)
            for (int step = -1; step <= 1; step++) {
                const float x = as_float(as_bits((float)n + (float)part * 0.125f) + (uint32_t)step);
                int32_t got[RAPT_VL];
                if (!(fabsf(x) <= 1024)) continue; /* the neighbour of 0 below */
                v_store(got, v_as_float(nearest_int(v_set1(x), v_set1(2048.0f))));
                for (int j = 0; j < RAPT_VL; j++) wrong += got[j] != (int32_t)rint((double)x);
            }
    for (int turn = 0; turn < 100000; turn += RAPT_VL) {
        float x[RAPT_VL];
        int32_t got[RAPT_VL];
        for (int j = 0; j < RAPT_VL; j++)
            x[j] = ((float)(int32_t)random_bits() * 0x1p-31f) * as_float(((turn + (uint32_t)j) % 44 + 106) << 23);
        v_store(got, v_as_float(nearest_int(v_load(x), v_set1(0x1p23f))));
        for (int j = 0; j < RAPT_VL; j++) wrong += got[j] != (int32_t)rint((double)x[j]);
    }
    static const float mosts[] = {128, 256}, none[] = {INFINITY, FLT_MAX, 1e10f};
    for (int m = 0; m < 2; m++) {
        int32_t got[RAPT_VL];
        const float nan = as_float(0x7fc12345u), minus_nan = as_float(0xffc00001u);
        const float at[] = {mosts[m], as_float(as_bits(mosts[m]) + 1), none[0], none[1], none[2], nan, minus_nan};
        for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
            v_store(got, v_as_float(nearest_int(v_set1(at[i]), v_set1(mosts[m]))));
            for (int j = 0; j < RAPT_VL; j++) beyond += got[j] != 0;
        }
        v_store(got, v_as_float(nearest_int(v_set1(as_float(as_bits(mosts[m]) - 1)), v_set1(mosts[m]))));
        for (int j = 0; j < RAPT_VL; j++) beyond += got[j] != (int32_t)mosts[m];
        /* An element times 127 / M where that overflows: 0 in the bits that placed takes. */
        v_store(got, v_as_float(nearest_int(v_set1(-INFINITY), v_set1(mosts[m]))));
        for (int j = 0; j < RAPT_VL; j++) beyond += (got[j] & 0xffff) != 0;
    }
    tap_ok(wrong == 0, "nearest_int: %d wrong", wrong);
    tap_ok(beyond == 0, "nearest_int of what is not below the bound, infinite or NaN is 0: %d wrong", beyond);
}

/* Tests v_load_part for every number of bytes at the end and at the beginning of memory, and v_last_lanes for every number of
 * lanes. */
static void parts_of_vectors(void) {
    int wrong = 0;
    for (size_t bytes = 0; bytes <= sizeof(vf); bytes++)
        for (int side = -1; side <= 0; side++) {
            fence from = fence_create(bytes ? bytes : 1, side, 0);
            unsigned char got[sizeof(vf)];
            for (size_t i = 0; i < bytes; i++) from.data[i] = (unsigned char)(i + 1);
            v_store(got, v_load_part((const char *)from.data, bytes));
            for (size_t i = 0; i < sizeof got; i++) wrong += got[i] != (i < bytes ? i + 1 : 0);
            fence_destroy(&from);
        }
    tap_ok(wrong == 0, "v_load_part: 0 to %d bytes, %d wrong", (int)sizeof(vf), wrong);
    wrong = 0;
    for (int n = 1; n <= RAPT_VL; n++) {
        float x[RAPT_VL], got[RAPT_VL], want[RAPT_VL] = {0};
        for (int i = 0; i < RAPT_VL; i++) x[i] = (float)(i + 1);
        memcpy(want, x + RAPT_VL - n, (size_t)n * sizeof *want);
        v_store(got, v_last_lanes(v_load(x), n));
        for (int i = 0; i < RAPT_VL; i++) wrong += got[i] != want[i];
    }
    tap_ok(wrong == 0, "v_last_lanes: 1 to %d lanes, %d wrong", RAPT_VL, wrong);
}

int main(int argc, char **argv) {
    const bool all = argc == 2 && strcmp(argv[1], "--all") == 0, few = argc == 2 && strcmp(argv[1], "--few") == 0;
    if (argc > 1 && !all && !few) return fprintf(stderr, "%s: unknown option %s\n", argv[0], argv[1]), 2;
    rapt_status status = rapt_isa_usable(RAPT_STRING(RAPT_KERNEL_NAME), NULL, 0);
    if (status != RAPT_OK) return tap_skip_all("%s: %s", RAPT_STRING(RAPT_KERNEL_NAME), rapt_status_string(status));
    const uint32_t step = all ? 1 : few ? FEW : SAMPLED;
    exp2_of_every_float(step);
    exp2_special();
    exp2_bf16_of_every_float(step);
    exp2_bf16_special();
    fold_smallest_bf16();
    tanh_of_every_float(step);
    tanh_special(step);
    ln_of_every_float(step);
    activations(step);
    storage("f16", v_load_f16, v_store_f16, 5, 10, all ? 509 : 65521);
    storage("bf16", v_load_bf16, v_store_bf16, 8, 7, all ? 509 : 65521);
#define RAPT_TYPE(name, suffix, group, bytes)                                                                                    \
    staged_rows(#suffix, name, group, bytes);                                                                                    \
    columns_of_keys(#suffix, name, read_##suffix, v_column_##suffix, group, bytes);
    RAPT_ELEMENT_TYPES(RAPT_TYPE)
#undef RAPT_TYPE
    /* v_load_int8, v_load_q8_0 and so on, of kernels/types/type_SUFFIX.h. The type is named first, for a read beyond a row ends
     * the test. */
#define RAPT_TYPE(name, suffix, group, bytes)                                                                                    \
    printf("# " #suffix "\n"), fflush(stdout);                                                                                   \
    kv_storage(#suffix, name, v_load_##suffix, group, bytes);                                                                    \
    staged_rows(#suffix, name, group, bytes);                                                                                    \
    columns_of_keys(#suffix, name, read_##suffix, v_column_##suffix, group, bytes);
    RAPT_CACHE_TYPES(RAPT_TYPE)
#undef RAPT_TYPE
#define RAPT_TYPE(name, suffix, group, bytes)                                                                                    \
    printf("# " #suffix "\n"), fflush(stdout);                                                                                   \
    staged_blocks(#suffix, name, bytes);
    RAPT_MATRIX_TYPES(RAPT_TYPE)
#undef RAPT_TYPE
    transpose();
    parts_of_vectors();
    patterns();
#if RAPT_BF16_FMA
    fused_products_of_bf16();
#endif
    integers();
    dots_of_integers();
#if RAPT_BYTE_DOTS
    dots_of_bytes();
#endif
    nearest_integers();
    return tap_done();
}
