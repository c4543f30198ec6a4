/* SPDX-License-Identifier: Apache-2.0 */
#define ISA    vec128
#define CHAINS 24
typedef float vec __attribute__((vector_size(16)));
static inline vec v_set1(float x) { return (vec){x, x, x, x}; }
#if defined(__FP_FAST_FMAF)
#define OPS 2
static inline vec v_step(int chain, vec acc, vec a, vec b) {
    (void)chain;
    return (vec){__builtin_fmaf(a[0], b[0], acc[0]), __builtin_fmaf(a[1], b[1], acc[1]), __builtin_fmaf(a[2], b[2], acc[2]),
                 __builtin_fmaf(a[3], b[3], acc[3])};
}
#else
#define OPS 1
static inline vec v_step(int chain, vec acc, vec a, vec b) { return chain % 2 ? acc + b : acc * a; }
#endif

#include "peak.h"
