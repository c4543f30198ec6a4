/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of measured times. */
#include "measure.h"

#include <math.h>
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

int measure_order(int turn, int place) {
    const int forward = turn & 1 ? MEASURE_WAYS - 1 - place : place;
    return (turn / 2 + forward) % MEASURE_WAYS;
}

void measure_round(measure_case *c, int round, double (*seconds)[MEASURE_WAYS], int turns) {
    double logs[MEASURE_WAYS], of_way[MEASURE_TURNS] = {0};
    for (int way = 0; way < MEASURE_WAYS; way++) {
        for (int i = 0; i < turns; i++) of_way[i] = seconds[i][way];
        qsort(of_way, (size_t)turns, sizeof *of_way, ascending);
        logs[way] = log(of_way[(turns - 1) / 4]);
    }
    c->same[round] = logs[MEASURE_FIRST] - logs[MEASURE_AGAIN];
    c->faster[round] = (logs[MEASURE_FIRST] + logs[MEASURE_AGAIN]) / 2 - logs[MEASURE_SECOND];
}

/* Returns the median of c->faster, and the spread, as logarithms. */
static measure_ratio logarithms(const measure_case *c) {
    measure_case sorted = *c;
    const double median = measure_quantile(sorted.faster, MEASURE_ROUNDS, 0.5);
    qsort(sorted.same, MEASURE_ROUNDS, sizeof *sorted.same, ascending);
    return (measure_ratio){median,
                           fmax(fabs(sorted.same[MEASURE_LEFT_OUT]), fabs(sorted.same[MEASURE_ROUNDS - 1 - MEASURE_LEFT_OUT]))};
}

/* Returns a ratio, given its logarithms. */
static measure_ratio ratio_of(measure_ratio logs) { return (measure_ratio){exp(logs.faster), expm1(logs.spread)}; }

measure_ratio measure_of_case(const measure_case *c) { return ratio_of(logarithms(c)); }

measure_verdict measure_judge(const measure_case *cases, const bool *counts, int count) {
    measure_verdict v = {.worst_case = 0};
    measure_case mean = {{0}, {0}};
    measure_ratio worst = {INFINITY, 0};
    int counted = 0;
    for (int i = 0; i < count; i++) {
        const measure_ratio logs = logarithms(&cases[i]);
        if (logs.faster + logs.spread < worst.faster + worst.spread) worst = logs, v.worst_case = i;
        counted += counts[i];
        for (int r = 0; r < MEASURE_ROUNDS && counts[i]; r++)
            mean.same[r] += cases[i].same[r], mean.faster[r] += cases[i].faster[r];
    }
    for (int r = 0; r < MEASURE_ROUNDS; r++) mean.same[r] /= counted, mean.faster[r] /= counted;
    const measure_ratio logs = logarithms(&mean);
    v.mean = ratio_of(logs);
    v.worst = ratio_of(worst);
    v.faster = logs.faster > logs.spread;
    int ahead = 0;
    for (int r = 0; r < MEASURE_ROUNDS; r++) ahead += mean.faster[r] > 0;
    v.promising = ahead >= MEASURE_PROMISING;
    v.slower = worst.faster < -worst.spread;
    return v;
}
