/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of tokens, one lane at a time: loaded, and stored in any type, with scales that are found or given. */
#ifndef RAPT_ROWS_H
#define RAPT_ROWS_H

#include "rapt.h"

/* A row of RAPT_F32, RAPT_F16 or RAPT_BF16 in f32. */
void rapt_load_row(rapt_type type, float *to, const char *from, int64_t channels);

/* A row of f32 in any type of K and V; the channels are whole groups of it. */
void rapt_store_row(rapt_type type, char *to, const float *from, int64_t channels);

/* The largest finite number of the types whose scales are found; 0 for the others. */
float rapt_largest_of(rapt_type type);

/* What a scale is found from: the largest magnitude, and 0, or NaN if an element is not finite. */
typedef struct rapt_extent {
    float most, none;
} rapt_extent;

void rapt_extend(rapt_extent *e, const float *row, int64_t channels);
float rapt_scale_of(rapt_type type, const rapt_extent *e);

/* Divides a row by the scale that was found from its extent; by scales of channels, stride bytes apart; finds the scale of a
 * row, divides by it and returns it. */
void rapt_divide_by(float *row, int64_t channels, const rapt_extent *e, float scale);
void rapt_divide_row(float *row, int64_t channels, const char *scales, int64_t stride);
float rapt_find_scale(rapt_type type, float *row, int64_t channels);

#endif
