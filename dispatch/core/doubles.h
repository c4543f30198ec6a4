/* SPDX-License-Identifier: Apache-2.0 */
/* The bits of a double, for functions that are computed here rather than by libm, whose results differ from system to system. */
#ifndef RAPT_DOUBLES_H
#define RAPT_DOUBLES_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define ROUND_MAGIC 0x1.8p52 /* adding it rounds to an integer, which the sum then has in its lowest bits */

/* Returns the bit pattern of x. */
static inline uint64_t bits_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Returns the double that has this bit pattern. */
static inline double double_of(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline bool is_finite(double x) { return x - x == 0.0; }

#endif
