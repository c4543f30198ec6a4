/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic of sizes. */
#ifndef RAPT_SIZES_H
#define RAPT_SIZES_H

#include <stdint.h>

/* Returns a * b, or -1 if the product overflows or a factor is negative. */
static inline int64_t rapt_product(int64_t a, int64_t b) {
    int64_t ab;
    return a < 0 || b < 0 || __builtin_mul_overflow(a, b, &ab) ? -1 : ab;
}

/* Returns a / b rounded up. */
/* NOLINTNEXTLINE(clang-analyzer-core.DivideZero): where there are no rows, for which alone b could be 0, nothing is cut */
static inline int64_t rapt_divide_up(int64_t a, int64_t b) { return a / b + (a % b != 0); }

#endif
