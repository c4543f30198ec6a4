/* SPDX-License-Identifier: Apache-2.0 */
/* VDPBF16PS and VCVTNE2PS2BF16 and their emulations (emulated_bf16.h), from which tests/broken/avx512_bf16_emulated.c is made,
 * compared bit for bit where this machine has the instructions; and the emulations beside numbers worked out by hand. */
#include "emulated_bf16.h"
#include "random.h"
#include "rapt.h"
#include "tap.h"

/* The bf16 of x in the upper half, that of y in the lower one. */
static uint32_t pair(float x, float y) {
    uint32_t upper, lower;
    memcpy(&upper, &x, sizeof upper);
    memcpy(&lower, &y, sizeof lower);
    return (upper & 0xffff0000) | lower >> 16;
}

static void worked_by_hand(void) {
    float sums[EMULATED_LANES] = {100.0f, 0x1p24f, -0x1p24f};
    uint32_t a[EMULATED_LANES] = {pair(2.0f, -1.0f), pair(1.0f, -0x1p24f), pair(0x1p24f, 1.0f)},
             b[EMULATED_LANES] = {pair(3.0f, 4.0f), pair(1.0f, 1.0f), pair(1.0f, 1.0f)};
    emulated_vdpbf16ps(sums, a, b);
    tap_ok(sums[0] == 102.0f, "100 + 2 * 3 - 1 * 4 is %g", (double)sums[0]);
    tap_ok(sums[1] == 0.0f, "2^24 + 1, rounded, - 2^24 is %g: the upper halves come first, and are rounded", (double)sums[1]);
    tap_ok(sums[2] == 1.0f, "-2^24 + 2^24 + 1 is %g", (double)sums[2]);
    static const uint32_t bits[] = {0x3f808000, 0x3f818000, 0x3f808001, 0x807fffff, 0x7f7fffff, 0x7f800001, 0xff800000};
    static const uint16_t rounded[] = {0x3f80, 0x3f82, 0x3f81, 0x8000, 0x7f80, 0x7fc0, 0xff80};
    for (size_t i = 0; i < sizeof rounded / sizeof *rounded; i++)
        tap_ok(emulated_bf16(bits[i]) == rounded[i], "%#x as bf16 is %#x", (unsigned)bits[i], emulated_bf16(bits[i]));
}

#if defined(RAPT_AVX512_BF16)
#include <immintrin.h>

/* The instructions, in functions of their own, so that all else runs on any CPU. */
__attribute__((target("avx512f,avx512bf16"))) static void of_vdpbf16ps(float *sums, const uint32_t *a, const uint32_t *b) {
    const __m512bh x = (__m512bh)_mm512_loadu_si512(a), y = (__m512bh)_mm512_loadu_si512(b);
    _mm512_storeu_ps(sums, _mm512_dpbf16_ps(_mm512_loadu_ps(sums), x, y));
}
__attribute__((target("avx512f,avx512bf16"))) static void of_vcvtne2ps2bf16(uint16_t *to, const uint32_t *low,
                                                                            const uint32_t *high) {
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(high), _mm512_loadu_ps(low)));
}

/* A random bf16 of either sign, 2^-span to 2^span in magnitude. */
static float drawn(int span) {
    const int exponent = (int)below(2 * span + 1) - span;
    const float x = ldexpf(1.0f + (float)below(128) / 128.0f, exponent);
    return below(2) ? x : -x;
}

/* Sums are of products' size, and a quarter of them cancels a product but for a few of its last bits. */
static void beside_the_instruction(int span, bool specials) {
    enum { TRIALS = 20000 };
    static const float special[] = {INFINITY, -INFINITY, NAN, 0.0f, -0.0f};
    long different = 0;
    for (int trial = 0; trial < TRIALS; trial++) {
        uint32_t a[EMULATED_LANES], b[EMULATED_LANES];
        float sums[EMULATED_LANES], want[EMULATED_LANES];
        for (int i = 0; i < EMULATED_LANES; i++) {
            float x[4];
            for (int j = 0; j < 4; j++) x[j] = specials && below(20) == 0 ? special[below(5)] : drawn(span);
            a[i] = pair(x[0], x[1]), b[i] = pair(x[2], x[3]);
            sums[i] = drawn(2 * span) * (1.0f + (float)below(1 << 16) * 0x1p-23f);
            if (below(4) == 0) sums[i] = -x[0] * x[2] * (1.0f + (float)below(8) * 0x1p-23f);
            want[i] = sums[i];
        }
        emulated_vdpbf16ps(want, a, b);
        of_vdpbf16ps(sums, a, b);
        for (int i = 0; i < EMULATED_LANES; i++)
            different += memcmp(&sums[i], &want[i], sizeof *sums) != 0 && !(isnan(sums[i]) && isnan(want[i]));
    }
    tap_ok(different == 0, "VDPBF16PS of numbers 2^-%d to 2^%d%s: of %d, %ld differ from the emulation", span, span,
           specials ? ", and of special ones" : "", TRIALS * EMULATED_LANES, different);
}

/* Half of the numbers have any bits at all, a quarter are halfway between two bf16, and a quarter are denormal, infinite or NaN.
 */
static void conversion_beside_the_instruction(void) {
    enum { TRIALS = 20000 };
    long different = 0;
    for (int trial = 0; trial < TRIALS; trial++) {
        uint32_t x[2][EMULATED_LANES];
        uint16_t want[2 * EMULATED_LANES], got[2 * EMULATED_LANES];
        for (int i = 0; i < 2 * EMULATED_LANES; i++) {
            uint32_t any = (uint32_t)below(1 << 16) << 16 | (uint32_t)below(1 << 16);
            if (below(4) == 0) any = (any & 0xffff0000) | 0x8000;
            else if (below(3) == 0) any = (any & 0x807fffff) | (below(2) ? 0x7f800000 : 0);
            x[i / EMULATED_LANES][i % EMULATED_LANES] = any;
        }
        emulated_vcvtne2ps2bf16(want, x[0], x[1]);
        of_vcvtne2ps2bf16(got, x[0], x[1]);
        for (int i = 0; i < 2 * EMULATED_LANES; i++) different += got[i] != want[i];
    }
    tap_ok(different == 0, "VCVTNE2PS2BF16 of numbers of all kinds: of %d, %ld differ from the emulation",
           2 * TRIALS * EMULATED_LANES, different);
}
#endif

int main(void) {
    worked_by_hand();
#if defined(RAPT_AVX512_BF16)
    if (rapt_isa_usable("avx512_bf16", NULL, 0) == RAPT_OK) {
        for (int span = 0; span <= 56; span += 8) beside_the_instruction(span, false);
        beside_the_instruction(8, true);
        conversion_beside_the_instruction();
        return tap_done();
    }
#endif
    tap_ok(true, "VDPBF16PS and VCVTNE2PS2BF16 beside their emulations # SKIP this machine has no AVX512-BF16");
    return tap_done();
}
