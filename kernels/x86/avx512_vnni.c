/* SPDX-License-Identifier: Apache-2.0 */
/* avx512_vnni: avx512 with products of four bytes in a lane (VNNI). */
#if !defined(__AVX512F__) || !defined(__AVX512VL__) || !defined(__AVX512BW__) || !defined(__AVX512DQ__) ||                       \
    !defined(__AVX512VNNI__)
#error "compile with -mavx512f -mavx512vl -mavx512bw -mavx512dq -mavx512vnni -mfma"
#endif
#include "x86/avx512_vnni_words.h"

#define RAPT_KERNEL_NAME  avx512_vnni
#define RAPT_KERNEL_NEEDS (RAPT_NEEDS_AVX512 | RAPT_CPU_AVX512VNNI)

#include "attend.h"
