/* SPDX-License-Identifier: Apache-2.0 */
/* The f32 peak is avx512's. */
#define ISA amx
#include "peak_avx512.c"
