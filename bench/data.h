/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors for the benchmarks. */
#ifndef BENCH_DATA_H
#define BENCH_DATA_H

#include <stddef.h>
#include <stdint.h>

#include "rapt.h"

size_t bench_type_bytes(rapt_type type);
const char *bench_type_name(rapt_type type);

/* Fills count elements with bell-shaped values of standard deviation 1.15, the same on every machine. They are multiples of 1/64
 * below 4, exact in each type, so a case computes on the same numbers in all of them. */
void bench_fill(void *to, rapt_type type, int64_t count, uint32_t seed);

#endif
