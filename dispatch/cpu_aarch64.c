/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu.h"

size_t rapt_cpu_l2_detect(void) { return 0; } /* only the operating system may read CCSIDR_EL1 */

#if defined(__linux__)
#include <sys/auxv.h>
uint32_t rapt_cpu_features_detect(void) { return rapt_aarch64_decode(getauxval(AT_HWCAP), getauxval(AT_HWCAP2)); }
#else
/* Apple and Windows require Advanced SIMD. */
uint32_t rapt_cpu_features_detect(void) { return RAPT_CPU_NEON; }
#endif
