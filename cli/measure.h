/* SPDX-License-Identifier: Apache-2.0 */
/* What the command says of times. */
#ifndef RAPT_CLI_MEASURE_H
#define RAPT_CLI_MEASURE_H

#include <stdbool.h>

/* Returns what lies at this share, 0 to 1, of the numbers, which it sorts; 0.5 is the median. */
double measure_quantile(double *numbers, int count, double share);

/* ---- Is one way faster than another? ------------------------------------------------------------------------------------
 * In each turn the first way is timed twice and the second once, in changing order. The first beside itself shows what chance
 * alone does to such a comparison: the largest deviation of its rounds is the spread, two on either side left out, since a
 * machine that does other things, too, has outliers. A difference counts only beyond the spread. That assumes no distribution:
 * the rounds of two equal ways are numbers of one kind, and the median of the second's lies above the spread in one of 500
 * comparisons. More time makes rounds longer, and the spread smaller. */
enum { MEASURE_ROUNDS = 15, MEASURE_LEFT_OUT = 2, MEASURE_PROMISING = 11, MEASURE_TURNS = 256 };

enum { MEASURE_FIRST, MEASURE_AGAIN, MEASURE_SECOND, MEASURE_WAYS };

/* The rounds of a case, as logarithms of ratios. */
typedef struct measure_case {
    double same[MEASURE_ROUNDS];   /* the first way beside itself */
    double faster[MEASURE_ROUNDS]; /* the second beside the first, above 0 where it takes less time */
} measure_case;

/* Returns which way is timed at a place, 0 to 2, of a turn. Six turns have all orders. */
int measure_order(int turn, int place);

/* Sets a round by the lower quartile of each way's times in its turns, 1 to MEASURE_TURNS: what else a machine does only adds to
 * them. */
void measure_round(measure_case *c, int round, double (*seconds)[MEASURE_WAYS], int turns);

typedef struct measure_ratio {
    double faster; /* how many times as fast the second way is */
    double spread; /* how far from 1 the first comes beside itself */
} measure_ratio;

typedef struct measure_verdict {
    measure_ratio mean;  /* of the cases that count: of the means of each round */
    measure_ratio worst; /* of the case that is slowest in comparison with its own spread, of all cases */
    int worst_case;      /* its index */
    bool promising;      /* the mean is faster in MEASURE_PROMISING rounds or more, as of equal ways every seventeenth is */
    bool faster;         /* the mean is faster, by more than its spread */
    bool slower;         /* the worst case is slower, by more than its spread */
} measure_verdict;

measure_ratio measure_of_case(const measure_case *c);

/* Judges some cases, one or more of which count for the mean. */
measure_verdict measure_judge(const measure_case *cases, const bool *counts, int count);

#endif
