/* SPDX-License-Identifier: Apache-2.0 */
/* Architectures whose features Linux lists in the auxiliary vector. On other systems no features are found. */
#include "cpu/cpu.h"

uint32_t rapt_cpu_slow_detect(void) { return 0; }

size_t rapt_cpu_l2_detect(void) { return 0; }

#if defined(__linux__)
#include <sys/auxv.h>
#if defined(__riscv)
/* Sets *extensions to the extensions of key 4, IMA_EXT_0, that all CPUs have. This is the system call riscv_hwprobe itself, since
 * glibc has a function for it only since 2.40. Returns false if Linux does not know the call or the key. */
static bool probe_extensions(uint64_t *extensions) {
    struct {
        int64_t key;
        uint64_t value;
    } pair = {4, 0};
    register long pairs __asm__("a0") = (long)&pair, count __asm__("a1") = 1, set_bytes __asm__("a2") = 0, cpus __asm__("a3") = 0,
                        flags __asm__("a4") = 0, number __asm__("a7") = 258;
    __asm__ volatile("ecall" : "+r"(pairs) : "r"(count), "r"(set_bytes), "r"(cpus), "r"(flags), "r"(number) : "memory");
    *extensions = pair.value;
    return pairs == 0 && pair.key == 4; /* Linux sets a key that it does not know to -1 */
}
#endif
uint32_t rapt_cpu_features_detect(void) {
#if defined(__powerpc64__)
    return rapt_power_decode(getauxval(AT_HWCAP));
#elif defined(__s390x__)
    return rapt_s390x_decode(getauxval(AT_HWCAP));
#elif defined(__loongarch64)
    return rapt_loongarch_decode(getauxval(AT_HWCAP));
#elif defined(__riscv)
    uint64_t extensions = 0;
    long vtype;
    unsigned long bytes;
    const bool probed = probe_extensions(&extensions);
    if (!rapt_riscv_has_vectors(getauxval(AT_HWCAP), probed, extensions)) return 0;
    /* vsetvli bytes, zero, e8, m1, ta, ma; csrr vtype, vtype: as encodings, since assemblers know the names only where V is
     * allowed. */
    __asm__ volatile(".insn i 0x57, 7, %0, x0, 0xc0\n\tcsrr %1, 0xc21" : "=r"(bytes), "=r"(vtype));
    return rapt_riscv_decode(vtype, bytes);
#else
    return rapt_arm_decode(getauxval(AT_HWCAP));
#endif
}
#else
uint32_t rapt_cpu_features_detect(void) { return 0; }
#endif
