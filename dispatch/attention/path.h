/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of a path: keys in lanes, or queries in lanes. Both give the same bits (docs/order.md), so only speed depends on it.
 * rapt_cut_entry (plan.c) asks this for the rows that can share a pass; rapt_plan_info tells the caller what was chosen. */
#ifndef RAPT_PATH_H
#define RAPT_PATH_H

#include "kernel.h"

/* Returns the functions by which a kernel computes in an arithmetic: its own, or those that it inherits. */
static inline const rapt_arithmetic *rapt_arithmetic_of(const rapt_kernel *kernel, rapt_arith arith) {
    return arith == RAPT_INT8_DOT ? kernel->int8 : arith == RAPT_BF16_DOT ? kernel->bf16 : &kernel->base->exact;
}

/* True if keys lie in lanes: a key/value head, or a token that has a page table of its own, has few rows. In integer arithmetic
 * only kernels that include keys_int8.h have that path; others have a limit of 0 rows. */
static inline bool rapt_keys_in_lanes(const rapt_tuning *tuning, const rapt_problem *problem, int64_t rows) {
    return rows <= (problem->arith == RAPT_INT8_DOT ? tuning->few_integer_rows : tuning->few_rows);
}

/* Returns how many of the last rows of a task with queries in lanes have keys in lanes even so: those that would fill only a few
 * lanes of a last vector, after at least one full vector. */
static inline int rapt_left_over(const rapt_kernel *kernel, const rapt_problem *problem, int64_t rows) {
    int rest = (int)(rows % kernel->base->vector);
    return rows > kernel->base->vector && rest <= problem->left_over ? rest : 0;
}

#endif
