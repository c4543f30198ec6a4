/* SPDX-License-Identifier: Apache-2.0 */
/* A caller's rapt_tuning: checked against what a kernel has room for, and as text. */
#ifndef RAPT_TUNING_H
#define RAPT_TUNING_H

#include "kernel.h"
#include "report.h"

/* What a plan goes by: the caller's numbers, or where there are none (-1, or all if from is null) the kernel's. Errors: STRUCT,
 * TUNING. */
rapt_status rapt_read_tuning(rapt_report *r, const rapt_kernel *kernel, const rapt_tuning *from, rapt_tuning *to);

#endif
