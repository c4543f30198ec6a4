/* SPDX-License-Identifier: Apache-2.0 */
/* The constants of the exponential whose results are bf16: v_exp2_bf16 (exp.h), and the matrix units' own versions of it. */
#ifndef RAPT_BF16_EXP_H
#define RAPT_BF16_EXP_H

/* 1.5 * 2^16. Adding it rounds a number up to 2 to a multiple of 2^-7, the last place of a bf16 in [1, 2). */
#define RAPT_BF16_MAGIC 98304.0f

/* The coefficients of f, f^2 and f^3 of a polynomial for 2^f, 0 <= f <= 1, whose constant term is 1. Fitted by tools/fit_exp.py.
 */
#define RAPT_BF16_EXP_1 0x1.63e658p-1f
#define RAPT_BF16_EXP_2 0x1.d23798p-3f
#define RAPT_BF16_EXP_3 0x1.3baa9p-4f

#endif
