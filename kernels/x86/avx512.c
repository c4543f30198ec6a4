/* SPDX-License-Identifier: Apache-2.0 */
/* avx512: AVX-512 F + VL + BW + DQ, 16 lanes, 32 registers. */
#if !defined(__AVX512F__) || !defined(__AVX512VL__) || !defined(__AVX512BW__) || !defined(__AVX512DQ__)
#error "compile with -mavx512f -mavx512vl -mavx512bw -mavx512dq -mfma"
#endif
#include "x86/avx512_words.h"

#define RAPT_KERNEL_NAME  avx512
#define RAPT_KERNEL_NEEDS RAPT_NEEDS_AVX512

#define RAPT_DOT 2
static inline vi i_dot(vi acc, vi b, vi a) { return i_add(acc, (vi)_mm512_madd_epi16((__m512i)b, (__m512i)a)); }

#include "attend.h"
