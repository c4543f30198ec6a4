/* SPDX-License-Identifier: Apache-2.0 */
/* The clock of the benchmarks. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include "timing.h"

#include <stdlib.h>
#include <time.h>

static double seconds_of(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double bench_now(void) { return seconds_of(CLOCK_MONOTONIC); }
double bench_thread_now(void) { return seconds_of(CLOCK_THREAD_CPUTIME_ID); }

static int by_size(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

double bench_median(double *seconds, int n) {
    qsort(seconds, (size_t)n, sizeof *seconds, by_size);
    return seconds[n / 2];
}
