/* SPDX-License-Identifier: Apache-2.0 */
/* AArch64: asks Linux, Apple's systems or Windows for the CPU's features. */
#include "cpu/cpu.h"

uint32_t rapt_cpu_slow_detect(void) { return 0; }

size_t rapt_cpu_l2_detect(void) { return 0; } /* only the operating system may read CCSIDR_EL1 */

#if defined(__linux__)
#include <sys/auxv.h>

/* Returns the bytes of an SVE vector, by `rdvl x0, #1`: as an encoding, since assemblers know the name only where SVE is allowed
 * everywhere. It is the length of the thread that asks first; a program whose threads have different lengths (PR_SVE_SET_VL) must
 * choose the kernel itself. */
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
#endif

#if defined(__APPLE__)
#include <sys/sysctl.h>

static bool says(const char *name) {
    int value = 0;
    size_t bytes = sizeof value;
    return sysctlbyname(name, &value, &bytes, NULL, 0) == 0 && value;
}

uint32_t rapt_cpu_features_detect(void) { return rapt_apple_decode(says); }
#endif

#if defined(_WIN32)
int __stdcall IsProcessorFeaturePresent(unsigned long);

static bool says(uint32_t number) { return IsProcessorFeaturePresent(number); }

uint32_t rapt_cpu_features_detect(void) { return rapt_windows_arm_decode(says); }
#endif

#if !defined(__linux__) && !defined(__APPLE__) && !defined(_WIN32)
/* AArch64 requires Advanced SIMD on other systems, too. */
uint32_t rapt_cpu_features_detect(void) { return RAPT_CPU_NEON; }
#endif
