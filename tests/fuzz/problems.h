/* SPDX-License-Identifier: Apache-2.0 */
/* Inputs as problems of attention, for the targets that look at them as `check` does (../check/harness.h). */
#ifndef RAPT_FUZZ_PROBLEMS_H
#define RAPT_FUZZ_PROBLEMS_H

#include "bytes.h"
#include "harness.h"

/* Begins a check of the classes' twins and one other kernel, or of all kernels that can run here. */
void take_kernels(check *c, const char *target, input *in);
void all_kernels(check *c, const char *target);

/* Small, with any features. */
problem take_problem(check *c, input *in);

/* Ends the program where one has been reported. */
void require_no_failures(const check *c);

#endif
