/* SPDX-License-Identifier: Apache-2.0 */
/* Doubles and their bits, for functions of our own: no libm decides about bits. */
#ifndef RAPT_DOUBLES_H
#define RAPT_DOUBLES_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define ROUND_MAGIC 0x1.8p52 /* rounds to an integer when it is added: the integer then lies in the lowest bits */

static inline uint64_t bits_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline double double_of(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline bool is_finite(double x) { return x - x == 0.0; }

#endif
