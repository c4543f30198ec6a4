/* SPDX-License-Identifier: Apache-2.0 */
/* The limits of this machine, measured, to which every benchmark is compared. */
#ifndef BENCH_LIMITS_H
#define BENCH_LIMITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rapt.h"
#include "rapt_pool.h"

/* The loops of one instruction set, for one thread. Their results only keep them from being optimised away. */
enum { BENCH_ARITHS = 3 }; /* one peak for each rapt_arith */
typedef struct bench_peak_loop {
    int64_t operations; /* of a round */
    float (*run)(int64_t rounds, float a, float b);
} bench_peak_loop;

typedef struct bench_isa {
    const char *name;
    bench_peak_loop peaks[BENCH_ARITHS];              /* by rapt_arith; that of f32 where there are no other instructions */
    uint32_t (*read)(const void *from, size_t bytes); /* from is aligned to 64, bytes a multiple of 4 KiB */
} bench_isa;

/* More bytes than any cache holds: a case whose data comes from memory rotates over them, and its limit is measured over them. */
#define BENCH_COLD_BYTES ((size_t)256 << 20)

/* Returns the multiplications and additions per second that all threads of the pool do together in the registers of an
 * instruction set: in bf16 arithmetic those of its products of bf16, in integer arithmetic those of its integer products, else,
 * or if it has none, those of f32. A fused one counts as two. Returns 0 if there is no loop for isa. */
double bench_peak(const char *isa, rapt_arith arith, rapt_pool *pool);

/* Returns the best instruction set of this machine for which there is a loop; null if there is none. */
const char *bench_best_isa(void);

/* True if an instruction set has a peak of its own for bf16: a matrix unit, or instructions that multiply bf16. */
bool bench_has_matrix_unit(const char *isa);

/* Returns the bytes per second that all threads of the pool read together, with the widest vectors of this machine, from a buffer
 * of `bytes` bytes (at least 4 KiB for each thread, at most BENCH_COLD_BYTES), over and over. Returns 0 if there is no memory. */
double bench_bandwidth(size_t bytes, rapt_pool *pool);

/* The limits of a case: of its arithmetic, of f32 on the same instruction set, and of reading. */
typedef struct bench_limits {
    double peak, f32_peak, bandwidth;
} bench_limits;

/* Measures the limits of a case that reads `bytes` bytes. */
bench_limits bench_limits_of(const char *isa, rapt_arith arith, size_t bytes, rapt_pool *pool);

/* The least that a call has to do: multiplications and additions, and the bytes of its tensors, each once. */
typedef struct bench_work {
    double operations, bytes;
} bench_work;

#endif
