/* SPDX-License-Identifier: Apache-2.0 */
/* Google Benchmark for C: shim.cc holds all the C++ there is. */
#ifndef BENCH_SHIM_H
#define BENCH_SHIM_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bench_state bench_state; /* a benchmark::State */
typedef void (*bench_function)(bench_state *state, const void *arg);

/* arg has to live until the program ends. */
void bench_register(const char *name, bench_function function, const void *arg);

bool bench_keep_running(bench_state *state);
void bench_counter(bench_state *state, const char *name, double value);
void bench_label(bench_state *state, const char *label);
/* Reports the benchmark as failed, and makes the program end with status 1. */
void bench_fail(bench_state *state, const char *why);

/* At most so many numbers of threads are run. */
enum { BENCH_THREAD_COUNTS = 3 };

/* Ours: a line of rapt_tuning_parse, by which the kernel that it names, or any, is measured. False, with a line on stderr, where
 * it is refused. */
bool bench_set_tuning(const char *line);

/* Ours, called once by main: registers every case. False, with a line on stderr, if it cannot. */
bool bench_register_cases(void);

/* Parts of that: those of layers.c and copies.c, for these numbers of threads. False when memory is out. */
bool bench_register_layers(const int64_t *threads, int thread_counts);
bool bench_register_copies(const int64_t *threads, int thread_counts);
/* That of machine.c, which needs no memory. */
void bench_register_machine(const int64_t *threads, int thread_counts);

#ifdef __cplusplus
}
#endif

#endif
