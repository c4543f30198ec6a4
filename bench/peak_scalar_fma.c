/* SPDX-License-Identifier: Apache-2.0 */
/* As peak_scalar.c. Where fused hardware belongs to every CPU of the architecture (AArch64) the limit is fused; elsewhere
 * (x86-64) it is separate multiplications and additions, out of reach for a kernel that has to round them once. */

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
