/* SPDX-License-Identifier: Apache-2.0 */
#include "measure.h"

#include <stdlib.h>

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
