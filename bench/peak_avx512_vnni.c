/* SPDX-License-Identifier: Apache-2.0 */
/* The f32 peak is avx512's. */
#define ISA avx512_vnni
#include "peak_avx512.c"
