/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors for the benchmarks. */
#ifndef BENCH_DATA_H
#define BENCH_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rapt.h"

/* The types of a case: of Q and O, and of K and V. */
typedef struct bench_type {
    const char *name;
    rapt_type q, kv;
    rapt_arith arith;
    bool scaled; /* K and V have a scale for each token and head */
} bench_type;

/* Returns all types that cases have: types of any tensor for Q, K, V and O; cache types for K and V, with Q and O of f32; bf16
 * also in bf16 arithmetic, and integers also in integer arithmetic. */
const bench_type *bench_types(int *count);

/* Returns all types of weights of linear layers, as kv; bf16 also in bf16 arithmetic, and integers also in integer arithmetic. */
const bench_type *bench_weight_types(int *count);

/* Returns a hash of x. */
uint32_t bench_mix(uint32_t x);

/* Returns page-aligned memory, in huge pages where the system has them, so that tensors and limits have the same TLB; null if
 * there is none. It is freed by free(). */
void *bench_alloc(size_t bytes);

/* Gives a call on that many threads a workspace, which is freed by free(). Returns false if there is no memory. */
bool bench_workspace(const rapt_plan *plan, int64_t threads, rapt_args *args);

/* Returns a stride rounded up to a power of two, at least 4096. */
int64_t bench_power_of_two(int64_t stride);

/* Fills a tensor of `bytes` bytes with values that are the same on every machine. They are bell-shaped with standard deviation
 * 1.15, multiples of 1/64 below 4, and so exact in f32, f16 and bf16, in which a case computes on the same numbers. A tensor of a
 * cache type gets dense rows of 32 channels, to which rapt_kv_append_run converts such values, and one of a type of weights alone
 * blocks of random integers with the same scales. */
void bench_fill(void *to, rapt_type type, size_t bytes, uint32_t seed);

/* Returns the tuning that bench_set_tuning (shim.h) has set for the kernel, or null. */
const rapt_tuning *bench_tuning(const char *isa);

#endif
