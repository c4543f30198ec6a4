/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of a kernel. */
#ifndef RAPT_SELECT_H
#define RAPT_SELECT_H

#include "kernel.h"
#include "core/report.h"

/* Sets *kernel to the kernel of that name if it can run here; with a null name, to the process-wide choice, or to null on an
 * error. Errors: ISA_UNKNOWN, ISA_MISSING. */
rapt_status rapt_select(rapt_report *r, const char *name, const rapt_kernel **kernel);

/* Returns the kernel of that name, whether or not it can run here; null if there is none. */
const rapt_kernel *rapt_find_kernel(const char *name);

/* Returns the bf16 arithmetic for tasks of fewer rows than the kernel's own computes well (rapt_arithmetic.least_rows): that of a
 * kernel with the same base that needs no more features, or the kernel's own. */
const rapt_arithmetic *rapt_few_rows_bf16(const rapt_kernel *kernel);

/* Refuses the name in a field, which no kernel has, by a line that lists all kernels. Returns ISA_UNKNOWN. */
rapt_status rapt_refuse_kernel(rapt_report *r, const char *field, const char *name);

/* Returns the bytes of the L2 cache by which work is cut: 256 KiB to 2 MiB, or 1 MiB where the CPU does not tell. */
size_t rapt_l2_bytes(void);

#endif
