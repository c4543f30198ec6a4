/* SPDX-License-Identifier: Apache-2.0 */
/* sve512: the Scalable Vector Extension with vectors of 512 bits (A64FX). */
#define RAPT_SVE_BITS 512
#include "arm/sve_words.h"

#define RAPT_KERNEL_NAME  sve512
#define RAPT_KERNEL_NEEDS (RAPT_CPU_NEON | RAPT_CPU_SVE | RAPT_CPU_SVE_OF_512)

#include "attend.h"
