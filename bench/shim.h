/* SPDX-License-Identifier: Apache-2.0 */
/* Google Benchmark for C. shim.cc, which implements this header, is the only C++ of the benchmarks. */
#ifndef BENCH_SHIM_H
#define BENCH_SHIM_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bench_state bench_state; /* a benchmark::State */
typedef void (*bench_function)(bench_state *state, const void *arg);

/* Registers a benchmark. arg must exist until the program ends. */
void bench_register(const char *name, bench_function function, const void *arg);

/* True while the loop of a benchmark must go on. */
bool bench_keep_running(bench_state *state);

/* Reports a counter. */
void bench_counter(bench_state *state, const char *name, double value);

/* Reports a label. */
void bench_label(bench_state *state, const char *label);

/* Reports the benchmark as failed, and makes the program end with status 1. */
void bench_fail(bench_state *state, const char *why);

/* ---- Functions of the benchmarks that main calls, or that the files of cases share. */

enum { BENCH_THREAD_COUNTS = 3 }; /* the most numbers of threads that are measured */

/* Sets the tuning, a line for rapt_tuning_parse, with which the kernel that it names, or every kernel, is measured. If the line
 * is refused, returns false and prints why to stderr. */
bool bench_set_tuning(const char *line);

/* Registers all cases; main calls it once. On failure, returns false and prints why to stderr. */
bool bench_register_cases(void);

/* Registers the cases of layers.c, for these numbers of threads. Returns false if there is no memory. */
bool bench_register_layers(const int64_t *threads, int thread_counts);

/* Registers the cases of copies.c. Returns false if there is no memory. */
bool bench_register_copies(const int64_t *threads, int thread_counts);

/* Registers the benchmark of machine.c. */
void bench_register_machine(const int64_t *threads, int thread_counts);

#ifdef __cplusplus
}
#endif

#endif
