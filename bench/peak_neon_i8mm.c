/* SPDX-License-Identifier: Apache-2.0 */
/* The f32 peak is neon's. */
#define ISA neon_i8mm
#include "peak_neon.c"
