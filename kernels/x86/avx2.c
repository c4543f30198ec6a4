/* SPDX-License-Identifier: Apache-2.0 */
/* avx2: AVX2 + FMA + F16C, 8 lanes, 16 registers. */
#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "compile with -mavx2 -mfma -mf16c"
#endif
#include "x86/avx2_words.h"

#define RAPT_KERNEL_NAME  avx2
#define RAPT_KERNEL_NEEDS RAPT_NEEDS_AVX2

#define RAPT_DOT 2
static inline vi i_dot(vi acc, vi b, vi a) { return i_add(acc, (vi)_mm256_madd_epi16((__m256i)b, (__m256i)a)); }

#include "attend.h"
