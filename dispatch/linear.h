/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RAPT_LINEAR_H
#define RAPT_LINEAR_H

#include "kernel.h"

/* All that rapt_linear_run checks, but ith. */
rapt_status rapt_linear_check(const rapt_linear_plan *plan, const rapt_linear_args *args, int64_t nth);

#endif
