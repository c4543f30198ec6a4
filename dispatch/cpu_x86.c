/* SPDX-License-Identifier: Apache-2.0 */
#include <cpuid.h>

#include "cpu.h"

uint32_t rapt_cpu_features_detect(void) {
    rapt_x86_registers r = {0};
    uint32_t eax, ebx, ecx, edx;
    r.max_leaf = __get_cpuid_max(0, NULL);
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) r.leaf1_ecx = ecx;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) r.leaf7_ebx = ebx, r.leaf7_ecx = ecx;
    if (r.leaf1_ecx & RAPT_X86_OSXSAVE) {
        /* volatile, or the compiler may move it out from under the check: without OSXSAVE it is an illegal instruction */
        __asm__ volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
        r.xcr0 = (uint64_t)edx << 32 | eax;
    }
    return rapt_x86_decode(&r);
}

size_t rapt_cpu_l2_detect(void) {
    uint32_t eax, ebx, ecx, edx;
    return __get_cpuid(0x80000006, &eax, &ebx, &ecx, &edx) ? rapt_x86_l2(ecx) : 0;
}
