/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of dispatch/ lend to a call that is made of several others. */
#ifndef RAPT_PARTS_H
#define RAPT_PARTS_H

#include "layout.h"
#include "rapt_layer.h"

/* All that rapt_run_parallel checks, where tensors may lie in own, the memory of a larger call: nothing else of what args has may
 * meet it. */
rapt_status rapt_check_run(const rapt_plan *plan, const rapt_args *args, int64_t nth, rapt_range own);

/* As rapt_linear_run and rapt_kv_append, but for ith and nth. */
rapt_status rapt_check_linear(const rapt_linear_plan *plan, const rapt_linear_args *args, int64_t nth);
rapt_status rapt_check_append(const rapt_append_desc *desc, const rapt_append_args *args);

/* A row of RAPT_F32, RAPT_F16 or RAPT_BF16 in f32. */
void rapt_load_row(rapt_type type, float *to, const char *from, int64_t channels);

#endif
