/* SPDX-License-Identifier: Apache-2.0 */
/* sve256: the Scalable Vector Extension with vectors of 256 bits (Neoverse V1: Graviton 3). */
#define RAPT_SVE_BITS 256
#include "arm/sve_words.h"

#define RAPT_KERNEL_NAME  sve256
#define RAPT_KERNEL_NEEDS (RAPT_CPU_NEON | RAPT_CPU_SVE | RAPT_CPU_SVE_OF_256)

#include "attend.h"
