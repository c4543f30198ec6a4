/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors in memory: what they span, and whether they meet. */
#ifndef RAPT_LAYOUT_H
#define RAPT_LAYOUT_H

#include <stdbool.h>

#include "rapt.h"

/* Bytes of memory; none at all where bytes is 0. */
typedef struct rapt_range {
    uintptr_t first;
    uint64_t bytes;
} rapt_range;

bool rapt_ranges_meet(rapt_range a, rapt_range b);

/* a * b, or -1 when that overflows or a factor is negative. */
int64_t rapt_product(int64_t a, int64_t b);

/* Checks a tensor's type and strides, and measures it from its first to its last byte; of an output no two elements may meet.
 * Errors: TYPE, SHAPE (groups do not divide the channels), STRIDE. */
rapt_status rapt_measure(const rapt_layout *layout, int64_t batch, int64_t heads, int64_t tokens, int64_t channels, bool output,
                         uint64_t *bytes);

#endif
