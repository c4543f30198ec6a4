/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RAPT_SELECT_H
#define RAPT_SELECT_H

#include "kernel.h"
#include "report.h"

/* The kernel of that name; with null the process-wide choice, itself null on an error. Errors: ISA_UNKNOWN, ISA_MISSING. */
rapt_status rapt_select(rapt_report *r, const char *name, const rapt_kernel **kernel);

/* The kernel of that name, whether or not it can run here, or null if there is none. */
const rapt_kernel *rapt_find_kernel(const char *name);

/* Refuses a name that no kernel has, which that field gives, with the names that there are. Returns ISA_UNKNOWN. */
rapt_status rapt_refuse_kernel(rapt_report *r, const char *field, const char *name);

/* Bytes of the L2 cache, for cutting work: what the CPU says within bounds, or the usual size where it says nothing. */
size_t rapt_l2_bytes(void);

#endif
