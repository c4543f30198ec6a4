/* SPDX-License-Identifier: Apache-2.0 */
/* The constants of the exponential whose results are bf16 (v_exp2_bf16 in exp.h), for the words of matrix units, too. */
#ifndef RAPT_BF16_EXP_H
#define RAPT_BF16_EXP_H

/* 1.5 * 2^16, to which numbers up to 2 are added to round them to multiples of 2^-7, the last place of bf16 from 1 on. */
#define RAPT_BF16_MAGIC 98304.0f

/* The coefficients of 2^f for f from 0 to 1, from that of f on, fitted by tools/fit_exp.py; that of 1 is 1. */
#define RAPT_BF16_EXP_1 0x1.63e658p-1f
#define RAPT_BF16_EXP_2 0x1.d23798p-3f
#define RAPT_BF16_EXP_3 0x1.3baa9p-4f

#endif
