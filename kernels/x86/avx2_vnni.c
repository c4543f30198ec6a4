/* SPDX-License-Identifier: Apache-2.0 */
/* avx2_vnni: avx2 with products of four bytes in a lane (AVX-VNNI), for CPUs that have these without AVX-512.
 * tests/broken/avx2_vnni_emulated.c tests it where no such CPU is at hand. */
#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__) || !defined(__AVXVNNI__)
#error "compile with -mavx2 -mfma -mf16c -mavxvnni"
#endif
#include "x86/avx2_words.h"

#define RAPT_KERNEL_NAME  avx2_vnni
#define RAPT_KERNEL_NEEDS (RAPT_NEEDS_AVX2 | RAPT_CPU_AVXVNNI)

#define RAPT_DOT 4
static inline vi i_dot(vi acc, vi b, vi a) { return (vi)_mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)b, (__m256i)a); }

#include "attend.h"
