/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary position embedding of one row at a time. */
#ifndef RAPT_ROTARY_H
#define RAPT_ROTARY_H

#include "rapt.h"

/* Each pair's cosine and sine at one position, times the amplitude. */
typedef struct rapt_angles {
    float c[RAPT_MAX_HEAD_DIM / 2], s[RAPT_MAX_HEAD_DIM / 2];
} rapt_angles;

/* Errors: NULL, FEATURE. */
rapt_status rapt_check_rotary(const rapt_rotary *rotary, int64_t channels);

void rapt_find_angles(const rapt_rotary *rotary, int64_t position, rapt_angles *angles);
void rapt_rotate(const rapt_rotary *rotary, const rapt_angles *angles, float *row);

#endif
