/* SPDX-License-Identifier: Apache-2.0 */
/* neon_dot: neon with products of four bytes in a lane (FEAT_DotProd). */
#if !defined(__ARM_FEATURE_DOTPROD)
#error "compile with -march=armv8.2-a+dotprod"
#endif
#include "arm/neon_dot_words.h"

#define RAPT_KERNEL_NAME  neon_dot
#define RAPT_KERNEL_NEEDS (RAPT_CPU_NEON | RAPT_CPU_DOTPROD)

#include "attend.h"
