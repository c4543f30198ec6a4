/* SPDX-License-Identifier: Apache-2.0 */
/* scalar: plain C, unfused class (a*b + c rounds twice). */
#define RAPT_KERNEL_NAME  scalar
#define RAPT_KERNEL_NEEDS 0
#define RAPT_KERNEL_FUSED false

static inline float s_fma(float a, float b, float c) { return a * b + c; }

#include "generic/scalar_words.h"
#include "attend.h"
