/* SPDX-License-Identifier: Apache-2.0 */
/* A change of 1 ulp: the weights in lane 3 that are below 1. */
#define RAPT_KERNEL_NAME broken_ulp
#include "words.h"

static inline vf nudged_pow2(vf t) {
    vi bits = (vi)v_pow2(t);
    bits[3] += bits[3] != 0 && bits[3] < 0x3f800000u;
    return (vf)bits;
}
#define v_pow2 nudged_pow2
#include "attend.h"
