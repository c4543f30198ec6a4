/* SPDX-License-Identifier: Apache-2.0 */
/* The clock of the benchmarks. */
#ifndef BENCH_TIMING_H
#define BENCH_TIMING_H

/* Returns the seconds of a monotonic clock. */
double bench_now(void);

/* Returns the seconds of processor time that the calling thread has had. */
double bench_thread_now(void);

/* Returns the median of an odd number of times, which it sorts; of an even number the upper one of the two in the middle. */
double bench_median(double *seconds, int n);

#endif
