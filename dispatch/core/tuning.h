/* SPDX-License-Identifier: Apache-2.0 */
/* A caller's rapt_tuning. */
#ifndef RAPT_TUNING_H
#define RAPT_TUNING_H

#include "kernel.h"
#include "core/report.h"

/* Sets *to to the numbers by which a plan cuts its work: the caller's, or the kernel's own where the caller's are -1 or `from` is
 * null. Checks the caller's against what the kernel has room for. Errors: STRUCT, TUNING. */
rapt_status rapt_read_tuning(rapt_report *r, const rapt_kernel *kernel, const rapt_tuning *from, rapt_tuning *to);

#endif
