/* SPDX-License-Identifier: Apache-2.0 */
#define ISA rvv512
#include "peak_rvv256.c"
