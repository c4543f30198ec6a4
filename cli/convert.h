/* SPDX-License-Identifier: Apache-2.0 */
/* Conversion of RAPT_F32, RAPT_F16 and RAPT_BF16 to and from float. */
#ifndef RAPT_CLI_CONVERT_H
#define RAPT_CLI_CONVERT_H

#include "rapt.h"

/* Returns the value of an element, given its bits; types of 16 bits have them in the low half of the word. */
float convert_to_float(rapt_type type, uint32_t bits);

/* Returns the bits of the element nearest to a value, ties to even. A NaN stays a NaN. */
uint32_t convert_from_float(rapt_type type, float value);

/* Returns the bytes of an element of these types or of RAPT_BOOL. */
static inline size_t convert_size(rapt_type type) { return type == RAPT_F32 ? 4 : type == RAPT_BOOL ? 1 : 2; }

#endif
