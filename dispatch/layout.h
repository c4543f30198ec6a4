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

/* Bytes of a row of any type, those of masks and tables too; -1 if there is no such row. */
int64_t rapt_bytes_of(rapt_type type, int64_t elements);

typedef struct rapt_dimension {
    int64_t length, stride;
} rapt_dimension;

/* Checks the strides of a tensor, and measures it from its first to its last byte; of an output no two rows may meet. row: bytes
 * of its innermost dimension, -1 for a type that is not allowed. d is sorted. Errors: TYPE, STRIDE. */
rapt_status rapt_measure_dimensions(rapt_dimension *d, int n, int64_t row, bool output, uint64_t *bytes);
rapt_status rapt_measure_rows(const rapt_layout *layout, int64_t batch, int64_t heads, int64_t tokens, int64_t row, bool output,
                              uint64_t *bytes);
rapt_status rapt_measure(const rapt_layout *layout, int64_t batch, int64_t heads, int64_t tokens, int64_t channels, bool output,
                         uint64_t *bytes);

#endif
