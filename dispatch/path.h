/* SPDX-License-Identifier: Apache-2.0 */
/* Which path rows take, with keys or with queries in lanes. rapt_cut_entry (plan.c) says of which rows that is asked. The bits
 * are the same (docs/order.md), so it is about speed alone. A caller sees the answer in rapt_plan_info. */
#ifndef RAPT_PATH_H
#define RAPT_PATH_H

#include "kernel.h"

/* Returns what a kernel computes an arithmetic with. */
static inline const rapt_arithmetic *rapt_arithmetic_of(const rapt_kernel *kernel, rapt_arith arith) {
    return arith == RAPT_INT8_DOT ? kernel->int8 : arith == RAPT_BF16_DOT ? kernel->bf16 : &kernel->base->exact;
}

/* Are that many rows of a key/value head, or of a token that has a block table of its own, so few that keys lie in lanes? In
 * integer arithmetic that is only so for kernels that have few_dots.h. */
static inline bool rapt_keys_in_lanes(const rapt_tuning *tuning, const rapt_problem *problem, int64_t rows) {
    return rows <= (problem->arith == RAPT_INT8_DOT ? tuning->few_integer_rows : tuning->few_rows);
}

/* How many of the last rows of a task with queries in lanes have keys in lanes nevertheless: those that would fill few lanes of a
 * last vector, where there is a full one before them. */
static inline int rapt_left_over(const rapt_kernel *kernel, const rapt_problem *problem, int64_t rows) {
    int rest = (int)(rows % kernel->base->vector);
    return rows > kernel->base->vector && rest <= problem->left_over ? rest : 0;
}

#endif
