/* SPDX-License-Identifier: Apache-2.0 */
/* The library's element types to and from float, rounding to nearest even. A NaN stays a NaN. */
#ifndef RAPT_CLI_CONVERT_H
#define RAPT_CLI_CONVERT_H

#include "rapt.h"

/* The bits of an element, in the low half of the word for the 16-bit types. */
float convert_to_float(rapt_type type, uint32_t bits);
uint32_t convert_from_float(rapt_type type, float value);

static inline size_t convert_size(rapt_type type) { return type == RAPT_F32 ? 4 : type == RAPT_BOOL ? 1 : 2; }

#endif
