/* SPDX-License-Identifier: Apache-2.0 */
#include <smmintrin.h>

#define ISA    sse41
#define CHAINS 12
#define OPS    1
typedef __m128 vec;
static inline vec v_set1(float x) { return _mm_set1_ps(x); }
static inline vec v_step(int chain, vec acc, vec a, vec b) { return chain % 2 ? _mm_add_ps(acc, b) : _mm_mul_ps(acc, a); }

#include "peak.h"
