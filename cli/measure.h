/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of measured times. */
#ifndef RAPT_CLI_MEASURE_H
#define RAPT_CLI_MEASURE_H

#include <stdbool.h>

/* Returns a quantile of numbers, which it sorts: share is 0 to 1, and 0.5 gives the median. */
double measure_quantile(double *numbers, int count, double share);

/* ---- Comparing two ways to compute the same ------------------------------------------------------------------------------
 * A comparison has MEASURE_ROUNDS rounds of up to MEASURE_TURNS turns. In each turn the first way is timed twice and the second
 * once, in changing order. Comparing the first way with itself shows what chance alone does: the largest deviation over the
 * rounds is the spread. MEASURE_LEFT_OUT rounds at either end are left out, since a machine that does other things as well has
 * outliers. Only a difference above the spread is significant. No distribution is assumed: if the two ways are equal, all rounds
 * are numbers of the same kind, and the median of the second way's lies above the spread in one of 500 comparisons. With more
 * time, rounds are longer and the spread is smaller. */
enum { MEASURE_ROUNDS = 15, MEASURE_LEFT_OUT = 2, MEASURE_PROMISING = 11, MEASURE_TURNS = 256 };

/* The three times of a turn. */
enum { MEASURE_FIRST, MEASURE_AGAIN, MEASURE_SECOND, MEASURE_WAYS };

/* The rounds of a case, as logarithms of ratios. */
typedef struct measure_case {
    double same[MEASURE_ROUNDS];   /* the first way compared with itself */
    double faster[MEASURE_ROUNDS]; /* the second way compared with the first; above 0 where it takes less time */
} measure_case;

/* Returns which of the three is timed at a place, 0 to 2, of a turn. Six turns have all orders. */
int measure_order(int turn, int place);

/* Sets a round by the lower quartile of each way's times in the round's turns, 1 to MEASURE_TURNS of them: whatever else the
 * machine does only makes times longer. */
void measure_round(measure_case *c, int round, double (*seconds)[MEASURE_WAYS], int turns);

typedef struct measure_ratio {
    double faster; /* the speed of the second way divided by that of the first */
    double spread; /* how far that of the first, compared with itself, lies from 1 */
} measure_ratio;

typedef struct measure_verdict {
    measure_ratio mean;  /* over the cases that belong to the mean, round by round */
    measure_ratio worst; /* of the case, among all, that is slowest relative to its own spread */
    int worst_case;      /* the index of that case */
    bool promising;      /* the mean is faster in at least MEASURE_PROMISING rounds; of two equal ways, one time in seventeen */
    bool faster;         /* the mean is faster by more than its spread */
    bool slower;         /* the worst case is slower by more than its spread */
} measure_verdict;

/* Returns the ratio of one case: the median of its rounds, and the spread. */
measure_ratio measure_of_case(const measure_case *c);

/* Judges `count` cases; counts[i]: case i belongs to the mean, as at least one must. */
measure_verdict measure_judge(const measure_case *cases, const bool *counts, int count);

#endif
