/* SPDX-License-Identifier: Apache-2.0 */
/* The f32 peak is avx2's. */
#define ISA avx2_vnni
#include "peak_avx2.c"
