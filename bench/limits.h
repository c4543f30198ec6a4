/* SPDX-License-Identifier: Apache-2.0 */
/* What this machine can do, measured: the yardstick of every benchmark. */
#ifndef BENCH_LIMITS_H
#define BENCH_LIMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rapt.h"
#include "rapt_pool.h"
#include "shim.h"

/* One instruction set's loops, for one thread. What they return serves to keep them from being optimised away. There is a peak
 * for each rapt_arith. */
enum { BENCH_ARITHS = 3 };
typedef struct bench_peak_loop {
    int64_t operations; /* of a round */
    float (*run)(int64_t rounds, float a, float b);
} bench_peak_loop;

typedef struct bench_isa {
    const char *name;
    bench_peak_loop peaks[BENCH_ARITHS];              /* by rapt_arith; f32's again where it has no products of its own */
    uint32_t (*read)(const void *from, size_t bytes); /* from is aligned to 64, bytes a multiple of 4 KiB */
} bench_isa;

/* More than any cache holds: the bytes over which a case that shall come from memory rotates, and over which its limit is
 * measured. */
#define BENCH_COLD_BYTES ((size_t)256 << 20)

/* Page-aligned memory in huge pages where the system has them, so that tensors and limits see the same TLB. Null if there is
 * none. Freed by free(). */
void *bench_alloc(size_t bytes);

/* Seconds of a clock that only goes forward. */
double bench_now(void);

/* Multiplications and additions per second of all the pool's threads together, in the registers of one instruction set: in bf16
 * arithmetic those of its matrix unit, in integer arithmetic those of its integer products, else, or where it has none, of f32.
 * Fused ones count two. 0 if there is no loop for isa. */
double bench_peak(const char *isa, rapt_arith arith, rapt_pool *pool);

/* The best instruction set that this machine has, of those that there is a loop for; null if there is none. */
const char *bench_best_isa(void);

/* Has it a matrix unit, whose peak is another than that of f32? */
bool bench_has_matrix_unit(const char *isa);

/* Bytes per second that the pool's threads together read from a buffer of that size (at least 4 KiB for each, and at most
 * BENCH_COLD_BYTES in all), again and again, with the widest vectors that this machine has. 0 if there is no memory. */
double bench_bandwidth(size_t bytes, rapt_pool *pool);

/* The limits of a case: of its arithmetic, of f32 on the same instruction set, and of reading. */
typedef struct bench_limits {
    double peak, f32_peak, bandwidth;
} bench_limits;

bench_limits bench_limits_of(const char *isa, rapt_arith arith, size_t bytes, rapt_pool *pool);

/* What a call has to do at least: multiplications and additions, and bytes of its tensors, each once. */
typedef struct bench_work {
    double operations, bytes;
} bench_work;

/* Reports the counters that all cases have, which cases.c describes, beside the better of the limits measured before and after.
 * A limit that could not be measured fails the case. */
void bench_report(bench_state *state, bench_work work, double seconds, bench_limits before, bench_limits after);

#endif
