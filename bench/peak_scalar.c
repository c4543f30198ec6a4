/* SPDX-License-Identifier: Apache-2.0 */
/* A compiler may vectorise scalar code with the vectors that every CPU of the architecture has, so their peak is the limit: 16
 * bytes wide on x86-64 and AArch64. */

#define ISA    scalar
#define CHAINS 12
#define OPS    1
typedef float vec __attribute__((vector_size(16)));
static inline vec v_set1(float x) { return (vec){x, x, x, x}; }
static inline vec v_step(int chain, vec acc, vec a, vec b) { return chain % 2 ? acc + b : acc * a; }

#include "peak.h"
