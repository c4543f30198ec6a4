/* SPDX-License-Identifier: Apache-2.0 */
/* vec128: 4 lanes in the compiler's own vector extensions, for POWER's VSX, IBM Z's vector facility, 32-bit Arm with VFPv4,
 * LoongArch's LSX and WebAssembly's SIMD, and for any other CPU family that list.txt gives it. It is of the fused class if the
 * CPU has an FMA, and else of the unfused class, as in WebAssembly, whose relaxed multiply-add has no defined bits. On 32-bit Arm
 * gcc computes floats one by one, because NEON would flush denormal numbers to zero; integers are vectors. */
#if (defined(__s390__) && (!defined(__VX__) || __ARCH__ < 12)) ||                                                                \
    (defined(__arm__) && (!defined(__ARM_NEON) || !defined(__ARM_FEATURE_FMA))) ||                                               \
    (defined(__loongarch__) && !defined(__loongarch_sx)) || (defined(__wasm__) && !defined(__wasm_simd128__))
#error "compile with -march=z14, -mfpu=neon-vfpv4, -mlsx or -msimd128"
#endif

#define RAPT_KERNEL_NAME vec128
#if defined(__s390__)
#define RAPT_KERNEL_NEEDS RAPT_CPU_VXE
#elif defined(__arm__)
#define RAPT_KERNEL_NEEDS (RAPT_CPU_NEON | RAPT_CPU_VFPV4)
#elif defined(__VSX__)
#define RAPT_KERNEL_NEEDS RAPT_CPU_VSX
#elif defined(__loongarch__)
#define RAPT_KERNEL_NEEDS RAPT_CPU_LSX
#else
#define RAPT_KERNEL_NEEDS 0 /* an engine without SIMD refuses a module that uses it, so every CPU that runs this has it */
#endif
/* The class depends on the CPU family, not on the compiler: clang does not define __FP_FAST_FMAF for these families, gcc does. */
#if defined(__s390__) || defined(__arm__) || defined(__VSX__) || defined(__loongarch__) || defined(__FP_FAST_FMAF)
#define RAPT_KERNEL_FUSED 1
#else
#define RAPT_KERNEL_FUSED 0
#endif

/* The constants of neon, not measured on any of these CPUs. */
#define RAPT_VL            4
#define RAPT_TILE_VECTORS  4
#define RAPT_PANEL         4
#define RAPT_ROWS_1        12
#define RAPT_ROWS_2        8
#define RAPT_ROWS_3        4
#define RAPT_ROWS_4        4
#define RAPT_ROWS_8        2
#define RAPT_KEY_CHAINS    8
#define RAPT_KEYS_AHEAD    32
#define RAPT_VALUES_AHEAD  32
#define RAPT_VALUES_DEPTH  16
#define RAPT_FEW_ROWS      4
#define RAPT_FEW_TOKENS    4
#define RAPT_LINEAR_TOKENS 2
#define RAPT_LINEAR_SUMS   2

#include "generic/vector_words.h"

#include "attend.h"
