/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary position embedding of one row at a time, by frequencies or by a table. */
#ifndef RAPT_ROTATE_H
#define RAPT_ROTATE_H

#include "tokens.h"

/* Each pair's cosine and sine at one position, times the amplitude. */
typedef struct rapt_angles {
    float c[RAPT_MAX_HEAD_DIM / 2], s[RAPT_MAX_HEAD_DIM / 2];
} rapt_angles;

/* Checks the rotation of rows of that many channels. Errors: ALIGNMENT, FEATURE. */
rapt_status rapt_check_rope(rapt_report *r, const rapt_rope *rope, int64_t channels);

/* Adds the frequencies, or the table in their place. Errors: NULL, TYPE, SHAPE, STRIDE, UNUSED. */
void rapt_add_rope(rapt_memory *m, const rapt_rope *rope, const rapt_rope_table *table);

/* Adds the positions of tokens, which only rotation asks for. Errors: STRIDE, ALIGNMENT, UNUSED. */
void rapt_add_positions(rapt_memory *m, const rapt_rope *rope, const rapt_tokens *tokens);

/* Has the table, if it is used, a row for every token? Errors: TABLE. */
rapt_status rapt_check_positions(rapt_report *r, const rapt_rope *rope, const rapt_rope_table *table, const rapt_tokens *tokens);

void rapt_find_angles(const rapt_rope *rope, const rapt_rope_table *table, int64_t position, rapt_angles *angles);
void rapt_rotate(const rapt_rope *rope, const rapt_angles *angles, float *row);

/* cos and sin of position * frequency, |position| < 2^33, |frequency| <= 16, in explicit operations of double that are the same
 * on every machine. */
void rapt_find_angle(double position, double frequency, double *cosine, double *sine);

#endif
