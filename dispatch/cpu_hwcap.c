/* SPDX-License-Identifier: Apache-2.0 */
/* Architectures of which Linux says in the auxiliary vector what they have; elsewhere nobody is known to ask. */
#include "cpu.h"

size_t rapt_cpu_l2_detect(void) { return 0; }

#if defined(__linux__)
#include <sys/auxv.h>
uint32_t rapt_cpu_features_detect(void) {
#if defined(__powerpc64__)
    return rapt_power_decode(getauxval(AT_HWCAP));
#elif defined(__s390x__)
    return rapt_s390x_decode(getauxval(AT_HWCAP));
#elif defined(__loongarch64)
    return rapt_loongarch_decode(getauxval(AT_HWCAP));
#elif defined(__riscv)
    unsigned long hwcap = getauxval(AT_HWCAP), bytes = 0;
    if (rapt_riscv_decode(hwcap, 0)) __asm__("csrr %0, 0xc22" : "=r"(bytes)); /* vlenb, which only V has; its name, only compilers for V */
    return rapt_riscv_decode(hwcap, (uint32_t)bytes);
#else
    return rapt_arm_decode(getauxval(AT_HWCAP));
#endif
}
#else
uint32_t rapt_cpu_features_detect(void) { return 0; }
#endif
