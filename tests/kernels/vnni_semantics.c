/* SPDX-License-Identifier: Apache-2.0 */
/* VPDPBUSD and its emulation (emulated_vnni.h), from which tests/broken/avx2_vnni_emulated.c is made, compared bit for bit: the
 * instruction of AVX-VNNI, which kernels/x86/avx2_vnni.c takes, and that of AVX-512, where this machine has them; and the
 * emulation beside numbers worked out by hand. */
#include <string.h>

#include "emulated_vnni.h"
#include "random.h"
#include "rapt.h"
#include "tap.h"

static void worked_by_hand(void) {
    static const uint8_t b[EMULATED_BYTES] = {1, 2, 3, 4, 255, 255, 255, 255, 255, 255, 255, 255, 128, 0, 0, 0, 0, 0, 0, 200};
    static const int8_t a[EMULATED_BYTES] = {5, -6, 7, -8, 127, 127, 127, 127, -128, -128, -128, -128, -1, 9, 9, 9, 0, 0, 0, 2};
    static const int32_t want[EMULATED_LANES] = {100 + 5 - 12 + 21 - 32, 4 * 255 * 127, -4 * 255 * 128, -128, INT32_MIN + 399};
    int32_t sums[EMULATED_LANES] = {100, 0, 0, 0, INT32_MAX};
    emulated_vpdpbusd(sums, b, a);
    for (int i = 0; i < EMULATED_LANES; i++) tap_ok(sums[i] == want[i], "the emulation: lane %d is %d", i, (int)sums[i]);
}

#if defined(RAPT_AVX_VNNI) || defined(RAPT_AVX512_VNNI)
#include <immintrin.h>

typedef void vpdpbusd(int32_t *sums, const uint8_t *b, const int8_t *a);

/* Random bytes, all of the outermost in every third trial. */
static void beside_the_instruction(const char *what, vpdpbusd *instruction) {
    static const uint8_t outermost[] = {0, 1, 127, 128, 129, 255};
    enum { TRIALS = 100000 };
    int different = 0;
    for (int trial = 0; trial < TRIALS; trial++) {
        uint8_t b[EMULATED_BYTES];
        int8_t a[EMULATED_BYTES];
        int32_t sums[EMULATED_LANES], want[EMULATED_LANES];
        for (int i = 0; i < EMULATED_BYTES; i++) {
            b[i] = trial % 3 ? (uint8_t)random_bits() : outermost[below(6)];
            a[i] = (int8_t)(trial % 3 ? (uint8_t)random_bits() : outermost[below(6)]);
        }
        for (int i = 0; i < EMULATED_LANES; i++) sums[i] = want[i] = (int32_t)random_bits();
        emulated_vpdpbusd(want, b, a);
        instruction(sums, b, a);
        different += memcmp(sums, want, sizeof sums) != 0;
    }
    tap_ok(different == 0, "VPDPBUSD of %s: of %d, %d differ from the emulation", what, TRIALS, different);
}
#endif

#if defined(RAPT_AVX_VNNI)
__attribute__((target("avx2,avxvnni"))) static void of_avx_vnni(int32_t *sums, const uint8_t *b, const int8_t *a) {
    __m256i acc = _mm256_loadu_si256((const void *)sums), x = _mm256_loadu_si256((const void *)b);
    _mm256_storeu_si256((void *)sums, _mm256_dpbusd_avx_epi32(acc, x, _mm256_loadu_si256((const void *)a)));
}
#endif

#if defined(RAPT_AVX512_VNNI)
__attribute__((target("avx512vl,avx512vnni"))) static void of_avx512_vnni(int32_t *sums, const uint8_t *b, const int8_t *a) {
    __m256i acc = _mm256_loadu_si256((const void *)sums), x = _mm256_loadu_si256((const void *)b);
    _mm256_storeu_si256((void *)sums, _mm256_dpbusd_epi32(acc, x, _mm256_loadu_si256((const void *)a)));
}
#endif

int main(void) {
    worked_by_hand();
#if defined(RAPT_AVX_VNNI)
    if (rapt_isa_usable("avx2_vnni", NULL, 0) == RAPT_OK) beside_the_instruction("AVX-VNNI", of_avx_vnni);
    else
#endif
        tap_ok(true, "VPDPBUSD of AVX-VNNI beside its emulation # SKIP this machine has no AVX-VNNI");
#if defined(RAPT_AVX512_VNNI)
    if (rapt_isa_usable("avx512_vnni", NULL, 0) == RAPT_OK) beside_the_instruction("AVX-512", of_avx512_vnni);
    else
#endif
        tap_ok(true, "VPDPBUSD of AVX-512 beside its emulation # SKIP this machine has no AVX-512 VNNI");
    return tap_done();
}
