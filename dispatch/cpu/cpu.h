/* SPDX-License-Identifier: Apache-2.0 */
/* Detection of CPU features that the operating system lets programs use, as RAPT_CPU_* bits of kernels/kernel.h. Decoding is done
 * by pure functions that compile everywhere, so that every machine can test them on recorded values; a file for each architecture
 * reads the registers. */
#ifndef RAPT_CPU_H
#define RAPT_CPU_H

#include "kernel.h"

/* Returns the features of this machine. */
uint32_t rapt_cpu_features_detect(void);

/* Returns the features that this machine has, but whose instructions are slower than what other kernels use instead: a kernel
 * that needs one runs only if it is asked for by name. */
uint32_t rapt_cpu_slow_detect(void);

/* Returns the bytes of the L2 cache of the core that runs this; 0 if the CPU does not tell. */
size_t rapt_cpu_l2_detect(void);

#define RAPT_X86_OSXSAVE (1u << 27)

typedef struct rapt_x86_registers {
    uint32_t max_leaf;    /* CPUID.0:EAX */
    uint32_t leaf1_ecx;   /* CPUID.1:ECX */
    uint32_t leaf7_ebx;   /* CPUID.(7,0):EBX */
    uint32_t leaf7_ecx;   /* CPUID.(7,0):ECX */
    uint32_t leaf7_edx;   /* CPUID.(7,0):EDX */
    uint32_t leaf7_max;   /* CPUID.(7,0):EAX, the highest subleaf of leaf 7 */
    uint32_t leaf7_1_eax; /* CPUID.(7,1):EAX */
    uint64_t xcr0;        /* XGETBV(0); 0 where CPUID.1:ECX.OSXSAVE is 0, without which it may not be executed */
    bool tiles_allowed;   /* the operating system has granted the tile registers */
} rapt_x86_registers;

/* True if the CPU has tile registers and the operating system saves them (XTILECFG and XTILEDATA). The operating system must then
 * be asked for them. */
static inline bool rapt_x86_has_tiles(const rapt_x86_registers *r) {
    return r->max_leaf >= 7 && (r->leaf1_ecx & RAPT_X86_OSXSAVE) && (r->xcr0 & 0x60000) == 0x60000 && (r->leaf7_edx >> 24 & 1);
}

/* Returns the features of an x86 CPU (Intel SDM volume 1, sections 14.3 and 15.2). AVX and later may be used only if the
 * operating system saves their registers. */
static inline uint32_t rapt_x86_decode(const rapt_x86_registers *r) {
    uint32_t ecx = r->max_leaf >= 1 ? r->leaf1_ecx : 0, ebx = r->max_leaf >= 7 ? r->leaf7_ebx : 0, features = 0;
    uint64_t state = ecx & RAPT_X86_OSXSAVE ? r->xcr0 : 0;
    if (ecx >> 19 & 1) features |= RAPT_CPU_SSE41;
    if ((state & 0x6) != 0x6 || !(ecx >> 28 & 1)) return features; /* XMM and YMM */
    features |= RAPT_CPU_AVX;
    if (ecx >> 29 & 1) features |= RAPT_CPU_F16C;
    if (ecx >> 12 & 1) features |= RAPT_CPU_FMA;
    if (ebx >> 5 & 1) features |= RAPT_CPU_AVX2;
    if (r->max_leaf >= 7 && r->leaf7_max >= 1 && (r->leaf7_1_eax >> 4 & 1)) features |= RAPT_CPU_AVXVNNI;
    if ((state & 0xe6) != 0xe6 || !(ebx >> 16 & 1)) return features; /* opmask, upper halves, ZMM16 to 31, too */
    features |= RAPT_CPU_AVX512F;
    if (ebx >> 17 & 1) features |= RAPT_CPU_AVX512DQ;
    if (ebx >> 30 & 1) features |= RAPT_CPU_AVX512BW;
    if (ebx >> 31 & 1) features |= RAPT_CPU_AVX512VL;
    if (r->leaf7_ecx >> 11 & 1) features |= RAPT_CPU_AVX512VNNI;
    if (r->leaf7_max >= 1 && (r->leaf7_1_eax >> 5 & 1)) features |= RAPT_CPU_AVX512BF16;
    if (!rapt_x86_has_tiles(r)) return features;
    features |= RAPT_CPU_AMX_TILE;
    if (r->leaf7_edx >> 22 & 1) features |= RAPT_CPU_AMX_BF16;
    if (r->leaf7_edx >> 25 & 1) features |= RAPT_CPU_AMX_INT8;
    if (r->tiles_allowed) features |= RAPT_CPU_AMX_PERMISSION;
    return features;
}

/* Returns the slow features of an x86 CPU by its vendor, CPUID.0:EBX, EDX and ECX. Intel's VDPBF16PS multiplies at half the rate
 * of FMA (115 of 220 GFLOP/s, Granite Rapids), AMD's at twice that rate. */
static inline uint32_t rapt_x86_slow(uint32_t ebx, uint32_t edx, uint32_t ecx) {
    const bool intel = ebx == 0x756e6547 && edx == 0x49656e69 && ecx == 0x6c65746e; /* "Genu", "ineI", "ntel" */
    return intel ? RAPT_CPU_AVX512BF16 : 0;
}

/* Returns the bytes of the L2 cache by CPUID.80000006H:ECX, whose upper half has KiB (AMD APM volume 3, appendix E.4.5; Intel SDM
 * volume 2A, CPUID). */
static inline size_t rapt_x86_l2(uint32_t ecx) { return (size_t)(ecx >> 16) << 10; }

/* Returns the features of an AArch64 CPU by Linux's AT_HWCAP and AT_HWCAP2 (asm/hwcap.h). AT_HWCAP: bit 0 floating point, 1
 * Advanced SIMD, 20 its dot products of bytes, 22 SVE. AT_HWCAP2: bit 13 matrix products of bytes, 14 products of bf16, both in
 * Advanced SIMD. sve_bytes: bytes of an SVE vector, 0 without SVE. */
static inline uint32_t rapt_aarch64_decode(uint64_t hwcap, uint64_t hwcap2, uint32_t sve_bytes) {
    if ((hwcap & 3) != 3) return 0;
    uint32_t features = RAPT_CPU_NEON;
    if (hwcap >> 20 & 1) features |= RAPT_CPU_DOTPROD;
    if (hwcap2 >> 13 & 1) features |= RAPT_CPU_I8MM;
    if (hwcap2 >> 14 & 1) features |= RAPT_CPU_BF16;
    if (!(hwcap >> 22 & 1)) return features;
    features |= RAPT_CPU_SVE;
    if (sve_bytes == 32) features |= RAPT_CPU_SVE_OF_256;
    if (sve_bytes == 64) features |= RAPT_CPU_SVE_OF_512;
    return features;
}

/* Returns the features of an Arm CPU of Apple's, which requires Advanced SIMD. says: whether sysctlbyname answers with a number
 * that is not 0; some systems know none of the names. */
static inline uint32_t rapt_apple_decode(bool (*says)(const char *name)) {
    return RAPT_CPU_NEON | (says("hw.optional.arm.FEAT_DotProd") ? RAPT_CPU_DOTPROD : 0) |
           (says("hw.optional.arm.FEAT_I8MM") ? RAPT_CPU_I8MM : 0) | (says("hw.optional.arm.FEAT_BF16") ? RAPT_CPU_BF16 : 0);
}

/* Returns the features of an Arm CPU under Windows, which requires Advanced SIMD. says: IsProcessorFeaturePresent, which is asked
 * for PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE (43), PF_ARM_V82_I8MM_INSTRUCTIONS_AVAILABLE (66) and
 * PF_ARM_V86_BF16_INSTRUCTIONS_AVAILABLE (68) of winnt.h. */
static inline uint32_t rapt_windows_arm_decode(bool (*says)(uint32_t number)) {
    return RAPT_CPU_NEON | (says(43) ? RAPT_CPU_DOTPROD : 0) | (says(66) ? RAPT_CPU_I8MM : 0) | (says(68) ? RAPT_CPU_BF16 : 0);
}

/* The functions below decode Linux's AT_HWCAP on other CPUs. */

/* Returns the features of a 32-bit Arm CPU (asm/hwcap.h): bit 12 is NEON, 16 VFPv4. */
static inline uint32_t rapt_arm_decode(uint64_t hwcap) {
    return (hwcap >> 12 & 1 ? RAPT_CPU_NEON : 0) | (hwcap >> 16 & 1 ? RAPT_CPU_VFPV4 : 0);
}

/* Returns the features of an IBM Z CPU (asm/elf.h): bit 11 is the vector facility, 13 the vector-enhancements facility. */
static inline uint32_t rapt_s390x_decode(uint64_t hwcap) { return (hwcap >> 11 & 1) && (hwcap >> 13 & 1) ? RAPT_CPU_VXE : 0; }

/* Returns the features of a LoongArch CPU (asm/hwcap.h): bit 4 is LSX. */
static inline uint32_t rapt_loongarch_decode(uint64_t hwcap) { return hwcap >> 4 & 1 ? RAPT_CPU_LSX : 0; }

/* Returns the features of a POWER CPU (asm/cputable.h): bit 7 is VSX. */
static inline uint32_t rapt_power_decode(uint64_t hwcap) { return hwcap >> 7 & 1 ? RAPT_CPU_VSX : 0; }

/* True if a RISC-V CPU has the vector extension. AT_HWCAP has a bit for each extension of one letter (asm/hwcap.h); Linux 6.4 and
 * later also answer riscv_hwprobe, whose key IMA_EXT_0 (asm/hwprobe.h) has vectors as bit 2. probed: whether it was answered;
 * extensions: the answer. */
static inline bool rapt_riscv_has_vectors(uint64_t hwcap, bool probed, uint64_t extensions) {
    return (hwcap >> ('v' - 'a') & 1) && (!probed || (extensions >> 2 & 1));
}

/* Returns the features of a RISC-V CPU with vectors, by the register vtype and the bytes of a vector register, both after a
 * vsetvli that asks for elements of one byte and agnostic tails. Vendors' kernels also report vectors of version 0.7.1 (T-Head
 * C910) as V; those do not have agnostic tails, and set vtype's top bit, vill. */
static inline uint32_t rapt_riscv_decode(int64_t vtype, uint64_t bytes) {
    if (vtype < 0) return 0;
    return RAPT_CPU_RVV | (bytes == 16 ? RAPT_CPU_RVV_OF_128 : 0) | (bytes == 32 ? RAPT_CPU_RVV_OF_256 : 0) |
           (bytes == 64 ? RAPT_CPU_RVV_OF_512 : 0);
}

#endif
