/* SPDX-License-Identifier: Apache-2.0 */
/* peak_scalar.c for the fused class. Where every CPU of the architecture has fused multiply-adds (AArch64), they are the limit.
 * Elsewhere (x86-64) it is that of separate multiplications and additions, which a kernel that must round them once cannot reach.
 */

#define ISA scalar_fma
typedef float vec __attribute__((vector_size(16)));
static inline vec v_set1(float x) { return (vec){x, x, x, x}; }
#ifdef __FP_FAST_FMAF
#define CHAINS 24
#define OPS    2
static inline vec v_step(int chain, vec acc, vec a, vec b) {
    (void)chain;
    for (int i = 0; i < 4; i++) acc[i] = __builtin_fmaf(a[i], b[i], acc[i]);
    return acc;
}
#else
#define CHAINS 12
#define OPS    1
static inline vec v_step(int chain, vec acc, vec a, vec b) { return chain % 2 ? acc + b : acc * a; }
#endif

#include "peak.h"
