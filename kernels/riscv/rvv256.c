/* SPDX-License-Identifier: Apache-2.0 */
/* rvv256: RISC-V's vector extension with registers of 256 bits. */
#define RAPT_RVV_BITS 256
#include "riscv/rvv_words.h"

#define RAPT_KERNEL_NAME  rvv256
#define RAPT_KERNEL_NEEDS (RAPT_CPU_RVV | RAPT_CPU_RVV_OF_256)

#include "attend.h"
