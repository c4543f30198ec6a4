/* SPDX-License-Identifier: Apache-2.0 */
#include "cpu.h"

size_t rapt_cpu_l2_detect(void) { return 0; } /* only the operating system may read CCSIDR_EL1 */

#if defined(__linux__)
#include <sys/auxv.h>

/* Bytes of a vector of SVE: `rdvl x0, #1`, in its encoding, for its name wants a compiler's option that allows SVE everywhere. It is that of the
 * thread that asks first: a program that gives its threads different ones (PR_SVE_SET_VL) must choose the kernel itself. */
static uint32_t read_sve_bytes(void) {
    register uint64_t bytes __asm__("x0");
    __asm__(".inst 0x04bf5020" : "=r"(bytes));
    return (uint32_t)bytes;
}

uint32_t rapt_cpu_features_detect(void) {
    unsigned long hwcap = getauxval(AT_HWCAP), hwcap2 = getauxval(AT_HWCAP2);
    bool sve = rapt_aarch64_decode(hwcap, hwcap2, 0) & RAPT_CPU_SVE;
    return rapt_aarch64_decode(hwcap, hwcap2, sve ? read_sve_bytes() : 0);
}
#else
/* Apple and Windows require Advanced SIMD. */
uint32_t rapt_cpu_features_detect(void) { return RAPT_CPU_NEON; }
#endif
