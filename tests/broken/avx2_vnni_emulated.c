/* SPDX-License-Identifier: Apache-2.0 */
/* The words and the algorithm of kernels/x86/avx2_vnni.c for every machine with AVX2: only the instruction that few machines have
 * is plain C, which tests/kernels/vnni_semantics.c compares with it. */
#include "x86/avx2_words.h"
#include "emulated_vnni.h"

#define RAPT_KERNEL_NAME  avx2_vnni_emulated
#define RAPT_KERNEL_NEEDS RAPT_NEEDS_AVX2

#define RAPT_DOT 4
static inline vi i_dot(vi acc, vi b, vi a) {
    int32_t sums[EMULATED_LANES];
    uint8_t b_bytes[EMULATED_BYTES];
    int8_t a_bytes[EMULATED_BYTES];
    memcpy(sums, &acc, sizeof sums);
    memcpy(b_bytes, &b, sizeof b_bytes);
    memcpy(a_bytes, &a, sizeof a_bytes);
    emulated_vpdpbusd(sums, b_bytes, a_bytes);
    memcpy(&acc, sums, sizeof acc);
    return acc;
}

#include "attend.h"
