/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "measure.h"

#include <stdlib.h>
#include <time.h>

double measure_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double measure_quantile(double *numbers, int count, double share) {
    qsort(numbers, (size_t)count, sizeof *numbers, ascending);
    const double at = share * (count - 1);
    const int before = (int)at, after = before + 1 < count ? before + 1 : before;
    return numbers[before] + (at - before) * (numbers[after] - numbers[before]);
}
