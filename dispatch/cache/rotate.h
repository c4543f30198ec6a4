/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary position embedding of one row, by frequencies or by a table. */
#ifndef RAPT_ROTATE_H
#define RAPT_ROTATE_H

#include "cache/tokens.h"

/* The cosine and sine of each pair of channels at one position, times the amplitude. */
typedef struct rapt_angles {
    float c[RAPT_MAX_HEAD_DIM / 2], s[RAPT_MAX_HEAD_DIM / 2];
} rapt_angles;

/* Checks a rotation of rows of `channels` channels. Errors: ALIGNMENT, FEATURE. */
rapt_status rapt_check_rope(rapt_report *r, const rapt_rope *rope, int64_t channels);

/* Registers the frequencies, or the table that is given in their place. Errors: NULL, TYPE, SHAPE, STRIDE, UNUSED. */
void rapt_register_rope(rapt_memory *m, const rapt_rope *rope, const rapt_rope_table *table);

/* Registers the tokens' positions, which are refused if nothing is rotated. Errors: STRIDE, ALIGNMENT, UNUSED. */
void rapt_register_positions(rapt_memory *m, const rapt_rope *rope, const rapt_tokens *tokens);

/* Checks that the table, if it is used, has a row for every token's position. Errors: TABLE. */
rapt_status rapt_check_positions(rapt_report *r, const rapt_rope *rope, const rapt_rope_table *table, const rapt_tokens *tokens);

/* Computes the angles at a position, or loads them from the table. */
void rapt_find_angles(const rapt_rope *rope, const rapt_rope_table *table, int64_t position, rapt_angles *angles);

/* Rotates the pairs of a row, in place. */
void rapt_rotate(const rapt_rope *rope, const rapt_angles *angles, float *row);

/* Computes cos and sin of position * frequency, |position| < 2^33, |frequency| <= 16, in operations of double that give the same
 * bits on every machine. */
void rapt_find_angle(double position, double frequency, double *cosine, double *sine);

#endif
