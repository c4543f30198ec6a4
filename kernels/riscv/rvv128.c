/* SPDX-License-Identifier: Apache-2.0 */
/* rvv128: RISC-V's vector extension with registers of 128 bits. */
#define RAPT_RVV_BITS 128
#include "riscv/rvv_words.h"

#define RAPT_KERNEL_NAME  rvv128
#define RAPT_KERNEL_NEEDS (RAPT_CPU_RVV | RAPT_CPU_RVV_OF_128)

#include "attend.h"
