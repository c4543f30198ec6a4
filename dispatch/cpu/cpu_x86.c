/* SPDX-License-Identifier: Apache-2.0 */
/* x86: reads CPUID and XCR0, and asks for the tile registers. */
#include <cpuid.h>

#include "cpu/cpu.h"

/* Asks the operating system for the tile registers, and returns whether it grants them.
 *
 * Linux grants them to a process, 8 KiB for each of its threads, only on request (arch_prctl(2), since 5.16). From then on it
 * refuses alternate signal stacks that are too small for them, and it refuses the request if there is such a stack already. This
 * is the system call itself, since the C library may be too old to name it. Windows grants them to a thread that uses them, and
 * tells beforehand whether it would (wine, which does not ask Linux, tells that it would not). On other systems they are not
 * used. */
#if defined(_WIN32)
unsigned long long __stdcall GetEnabledXStateFeatures(void);
#endif
static bool ask_for_tiles(void) {
#if defined(__linux__) && defined(__x86_64__) && defined(__LP64__)
    enum { ARCH_PRCTL = 158, REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"((long)ARCH_PRCTL), "D"((long)REQUEST_PERMISSION), "S"((long)TILE_DATA)
                     : "rcx", "r11", "memory");
    return result == 0;
#elif defined(_WIN32)
    return (GetEnabledXStateFeatures() & 0x60000) == 0x60000;
#else
    return false;
#endif
}

uint32_t rapt_cpu_features_detect(void) {
    rapt_x86_registers r = {0};
    uint32_t eax, ebx, ecx, edx;
    r.max_leaf = __get_cpuid_max(0, NULL);
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) r.leaf1_ecx = ecx;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx))
        r.leaf7_max = eax, r.leaf7_ebx = ebx, r.leaf7_ecx = ecx, r.leaf7_edx = edx;
    if (r.leaf7_max >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) r.leaf7_1_eax = eax;
    if (r.leaf1_ecx & RAPT_X86_OSXSAVE) {
        /* volatile, so that the compiler does not move it before the check: without OSXSAVE it is an illegal instruction */
        __asm__ volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
        r.xcr0 = (uint64_t)edx << 32 | eax;
    }
    if (rapt_x86_has_tiles(&r)) r.tiles_allowed = ask_for_tiles();
    return rapt_x86_decode(&r);
}

uint32_t rapt_cpu_slow_detect(void) {
    uint32_t eax, ebx, ecx, edx;
    return __get_cpuid(0, &eax, &ebx, &ecx, &edx) ? rapt_x86_slow(ebx, edx, ecx) : 0;
}

size_t rapt_cpu_l2_detect(void) {
    uint32_t eax, ebx, ecx, edx;
    return __get_cpuid(0x80000006, &eax, &ebx, &ecx, &edx) ? rapt_x86_l2(ecx) : 0;
}
