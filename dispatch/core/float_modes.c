/* SPDX-License-Identifier: Apache-2.0 */
/* Reads this machine's control register, and refuses floating-point modes. */
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "core/float_modes.h"

#if defined(__SSE__)
const char rapt_float_register[] = "MXCSR";
uint64_t rapt_float_control(void) { return _mm_getcsr() & RAPT_X86_CONTROL; }
unsigned rapt_float_modes(uint64_t control) { return rapt_x86_float_modes(control); }
#elif defined(__aarch64__)
const char rapt_float_register[] = "FPCR";
uint64_t rapt_float_control(void) {
    uint64_t fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    return fpcr & RAPT_AARCH64_CONTROL;
}
unsigned rapt_float_modes(uint64_t control) { return rapt_aarch64_float_modes(control); }
#elif defined(__arm__) && defined(__ARM_FP)
const char rapt_float_register[] = "FPSCR";
uint64_t rapt_float_control(void) {
    uint32_t fpscr;
    __asm__ volatile("vmrs %0, fpscr" : "=r"(fpscr));
    return fpscr & RAPT_ARM_CONTROL;
}
unsigned rapt_float_modes(uint64_t control) { return rapt_arm_float_modes(control); }
#elif defined(__riscv_flen)
const char rapt_float_register[] = "fcsr";
uint64_t rapt_float_control(void) {
    unsigned long fcsr;
    __asm__ volatile("frcsr %0" : "=r"(fcsr));
    return fcsr & RAPT_RISCV_CONTROL;
}
unsigned rapt_float_modes(uint64_t control) { return rapt_riscv_float_modes(control); }
#elif defined(__powerpc__) && !defined(__NO_FPRS__)
const char rapt_float_register[] = "FPSCR";
uint64_t rapt_float_control(void) {
    union {
        double as_double;
        uint64_t bits;
    } fpscr;
    __asm__ volatile("mffs %0" : "=d"(fpscr.as_double));
    return fpscr.bits & RAPT_POWER_CONTROL;
}
unsigned rapt_float_modes(uint64_t control) { return rapt_power_float_modes(control); }
#elif defined(__s390x__)
const char rapt_float_register[] = "FPC";
uint64_t rapt_float_control(void) {
    uint32_t fpc;
    __asm__ volatile("efpc %0" : "=d"(fpc));
    return fpc & RAPT_S390X_CONTROL;
}
unsigned rapt_float_modes(uint64_t control) { return rapt_s390x_float_modes(control); }
#elif defined(__loongarch64)
const char rapt_float_register[] = "fcsr0";
uint64_t rapt_float_control(void) { return __builtin_loongarch_movfcsr2gr(0) & RAPT_LOONGARCH_CONTROL; }
unsigned rapt_float_modes(uint64_t control) { return rapt_loongarch_float_modes(control); }
#else /* WebAssembly has no modes; how to read those of other machines is not known */
#if RAPT_CHECK_FP && !defined(__wasm__)
#error "rapt: floating-point modes cannot be read on this architecture: compile with RAPT_CHECK_FP=0 (Meson: -Dcheck_fp=false)"
#endif
const char rapt_float_register[] = "";
uint64_t rapt_float_control(void) { return 0; }
unsigned rapt_float_modes(uint64_t control) { return (void)control, 0; }
#endif

rapt_status rapt_refuse_float_modes(rapt_report *r, rapt_status status, const char *who, uint64_t control) {
    static const char *const words[] = {"rounds up",
                                        "rounds down",
                                        "rounds to zero",
                                        "rounds otherwise than to nearest even",
                                        "flushes denormal results to 0 (FTZ)",
                                        "takes denormal operands for 0 (DAZ)",
                                        "has alternative handling on (AH or AHP)",
                                        "traps on exceptions"};
    const unsigned modes = rapt_float_modes(control);
    char text[256];
    size_t used = 0;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (modes >> i & 1) used += rapt_format(text + used, sizeof text - used, "%s%s", used ? ", " : "", words[i]);
    if (modes & (RAPT_FLUSHES_RESULTS | RAPT_FLUSHES_OPERANDS))
        rapt_format(text + used, sizeof text - used, ", as linking with -ffast-math makes it");
    const char *owner = r->owner; /* modes belong to the thread, not to a part of the call */
    r->owner = "";
    rapt_refuse(r, status, "%s = 0x%" PRIx64 ": %s %s", rapt_float_register, control, who, text);
    r->owner = owner;
    return status;
}
