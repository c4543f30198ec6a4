/* SPDX-License-Identifier: Apache-2.0 */
#define ISA sve512
#include "peak_sve256.c"
