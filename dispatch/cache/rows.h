/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of elements, processed one element at a time: loading, storing in any type, and scales, which are computed or given. */
#ifndef RAPT_ROWS_H
#define RAPT_ROWS_H

#include "rapt.h"

/* Loads a row of RAPT_F32, RAPT_F16 or RAPT_BF16 as f32. */
void rapt_load_row(rapt_type type, float *to, const char *from, int64_t channels);

/* Stores a row of f32 in any type of K and V; channels is a multiple of the type's group. */
void rapt_store_row(rapt_type type, char *to, const float *from, int64_t channels);

/* Returns the largest finite number of a type whose scales are computed (int8 and fp8); 0 for the others. */
float rapt_largest_of(rapt_type type);

/* The range of some elements, from which a scale is computed. */
typedef struct rapt_extent {
    float most; /* the largest magnitude */
    float none; /* 0; NaN if an element is not finite */
} rapt_extent;

/* Extends e, which begins as {0}, so that it covers the elements of a row, or of a part of one. */
void rapt_extend(rapt_extent *e, const float *row, int64_t channels);

/* Returns the scale of elements with that extent: the largest magnitude divided by rapt_largest_of, NaN if one is not finite. */
float rapt_scale_of(rapt_type type, const rapt_extent *e);

/* Divides a row by the scale that rapt_scale_of returned for its extent. If the scale is 0 or NaN, all elements become 0. */
void rapt_divide_by(float *row, int64_t channels, const rapt_extent *e, float scale);

/* Divides each element of a row by a scale of its own, stride bytes apart; elements with a scale of 0 become 0. */
void rapt_divide_row(float *row, int64_t channels, const char *scales, int64_t stride);

/* Computes the scale of a row, divides the row by it in place, and returns the scale. */
float rapt_find_scale(rapt_type type, float *row, int64_t channels);

#endif
