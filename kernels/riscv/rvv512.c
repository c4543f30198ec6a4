/* SPDX-License-Identifier: Apache-2.0 */
/* rvv512: RISC-V's vector extension with registers of 512 bits. */
#define RAPT_RVV_BITS 512
#include "riscv/rvv_words.h"

#define RAPT_KERNEL_NAME  rvv512
#define RAPT_KERNEL_NEEDS (RAPT_CPU_RVV | RAPT_CPU_RVV_OF_512)

#include "attend.h"
