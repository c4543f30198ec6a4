/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of a path: keys in lanes, or queries in lanes. Both give the same bits (docs/order.md), so only speed depends on it.
 * rapt_cut_entry (plan.c) asks for the rows that can share a pass; rapt_plan_info tells the caller what was chosen. */
#ifndef RAPT_PATH_H
#define RAPT_PATH_H

#include "kernel.h"

/* Rows of a full tile, when queries or tokens lie in lanes. */
static inline int rapt_tile_rows(const rapt_kernel *kernel, bool bf16) {
    return bf16 ? kernel->bf16_tile_rows : kernel->tile_rows;
}

/* True if keys lie in lanes: a key/value head, or a token that has a page table of its own, has few rows. In integer arithmetic
 * only kernels that include few_dots.h have that path; others have a limit of 0 rows. */
static inline bool rapt_keys_in_lanes(const rapt_tuning *tuning, const rapt_problem *problem, int64_t rows) {
    return rows <= (problem->integer ? tuning->few_integer_rows : tuning->few_rows);
}

/* Returns how many of the last rows of a task with queries in lanes have keys in lanes even so: those that would fill only a few
 * lanes of a last vector, behind at least one full vector. */
static inline int rapt_left_over(const rapt_kernel *kernel, const rapt_problem *problem, int64_t rows) {
    int rest = (int)(rows % kernel->vector);
    return rows > kernel->vector && rest <= problem->left_over ? rest : 0;
}

#endif
