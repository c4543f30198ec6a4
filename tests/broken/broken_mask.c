/* SPDX-License-Identifier: Apache-2.0 */
/* A wrong mask: ranges of keys include their end. */
#define RAPT_KERNEL_NAME broken_mask
#include "words.h"

static inline vm v_le(vf a, vf b) { return a <= b; }
#define v_lt v_le
#include "attend.h"
