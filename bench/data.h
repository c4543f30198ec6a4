/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors for the benchmarks. */
#ifndef BENCH_DATA_H
#define BENCH_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rapt.h"

/* The types that cases come in: of Q and O, of K and V. */
typedef struct bench_type {
    const char *name;
    rapt_type q, kv;
    rapt_arith arith;
    bool scaled; /* K and V have a scale for each token and head */
} bench_type;

/* Those of any tensor for all of Q, K, V and O; the others of K and V, beside Q and O of f32; int8 in integer
 * and bf16 in bf16 arithmetic. */
const bench_type *bench_types(int *count);

/* A hash. */
uint32_t bench_mix(uint32_t x);

/* Fills a tensor of `bytes` bytes, the same on every machine: of f32, f16 and bf16, with bell-shaped values of standard deviation
 * 1.15, multiples of 1/64 below 4, exact in each type, so that a case computes on the same numbers in all of them; of types of
 * caches only, with what rapt_kv_append_run makes of such values, as dense rows of 32 channels. */
void bench_fill(void *to, rapt_type type, size_t bytes, uint32_t seed);

/* What bench_set_tuning (shim.h) has set for that kernel, or null. */
const rapt_tuning *bench_tuning(const char *isa);

#endif
