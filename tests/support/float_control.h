/* SPDX-License-Identifier: Apache-2.0 */
/* What callers do to the floating-point modes of their thread, as far as this machine has it, and what the library's lines say of
 * it. What is computed in between must be in a call that the compiler cannot see through, since no pragma tells it of modes. */
#ifndef RAPT_TESTS_FLOAT_CONTROL_H
#define RAPT_TESTS_FLOAT_CONTROL_H

#include <fenv.h>
#include <stdbool.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "core/float_modes.h"

typedef struct float_mode {
    const char *what, *words;
    unsigned modes; /* as float_modes.h has them */
} float_mode;

#define FAST_MATH "as linking with -ffast-math makes it"
static const float_mode float_modes[] = {
    {"rounding up", "rounds up", RAPT_ROUNDS_UP},
    {"rounding down", "rounds down", RAPT_ROUNDS_DOWN},
    {"rounding to zero", "rounds to zero", RAPT_ROUNDS_TO_ZERO},
    {"FTZ", "flushes denormal results to 0 (FTZ), " FAST_MATH, RAPT_FLUSHES_RESULTS},
    {"DAZ", "takes denormal operands for 0 (DAZ), " FAST_MATH, RAPT_FLUSHES_OPERANDS},
    {"FTZ and DAZ", "flushes denormal results to 0 (FTZ), takes denormal operands for 0 (DAZ), " FAST_MATH,
     RAPT_FLUSHES_RESULTS | RAPT_FLUSHES_OPERANDS},
    {"traps", "traps on exceptions", RAPT_TRAPS},
};
enum { FLOAT_MODES = sizeof float_modes / sizeof *float_modes };

/* What every machine of this architecture has of them. */
#if defined(__SSE__)
#define FLOAT_MODES_HERE                                                                                                         \
    (RAPT_ROUNDS_UP | RAPT_ROUNDS_DOWN | RAPT_ROUNDS_TO_ZERO | RAPT_FLUSHES_RESULTS | RAPT_FLUSHES_OPERANDS | RAPT_TRAPS)
#elif defined(__aarch64__) || defined(__arm__)
#define FLOAT_MODES_HERE (RAPT_ROUNDS_UP | RAPT_ROUNDS_DOWN | RAPT_ROUNDS_TO_ZERO | RAPT_FLUSHES_RESULTS | RAPT_FLUSHES_OPERANDS)
#elif defined(__wasm__)
#define FLOAT_MODES_HERE 0
#else
#define FLOAT_MODES_HERE (RAPT_ROUNDS_UP | RAPT_ROUNDS_DOWN | RAPT_ROUNDS_TO_ZERO)
#endif

static _Thread_local fenv_t usual_environment;
#if defined(__SSE__) /* MXCSR, which MinGW's fesetenv leaves as it is */
static _Thread_local unsigned usual_mxcsr;
#endif

static inline void round_by(unsigned modes) {
#if defined(FE_UPWARD) && defined(FE_DOWNWARD) && defined(FE_TOWARDZERO)
    fesetround(modes & RAPT_ROUNDS_UP ? FE_UPWARD : modes & RAPT_ROUNDS_DOWN ? FE_DOWNWARD : FE_TOWARDZERO);
#endif
    (void)modes;
}

/* Traps of the exceptions that C knows: x86 has one more, of denormal operands. */
static inline void flush_or_trap(unsigned modes) {
#if defined(__SSE__)
    unsigned mxcsr = _mm_getcsr();
    if (modes & RAPT_FLUSHES_RESULTS) mxcsr |= 1u << 15;
    if (modes & RAPT_FLUSHES_OPERANDS) mxcsr |= 1u << 6;
    if (modes & RAPT_TRAPS) mxcsr &= ~0x1e80u & ~0x3fu;
    _mm_setcsr(mxcsr);
#elif defined(__aarch64__)
    uint64_t fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    if (modes & RAPT_FLUSHES_RESULTS) fpcr |= 1 << 24;
    if (modes & RAPT_TRAPS) fpcr |= 0x1f00;
    __asm__ volatile("msr fpcr, %0" : : "r"(fpcr));
#elif defined(__arm__) && defined(__ARM_FP)
    uint32_t fpscr;
    __asm__ volatile("vmrs %0, fpscr" : "=r"(fpscr));
    if (modes & RAPT_FLUSHES_RESULTS) fpscr |= 1 << 24;
    if (modes & RAPT_TRAPS) fpscr |= 0x1f00;
    __asm__ volatile("vmsr fpscr, %0" : : "r"(fpscr));
#elif defined(__s390x__)
    uint32_t fpc;
    __asm__ volatile("efpc %0" : "=d"(fpc));
    if (modes & RAPT_TRAPS) fpc = (fpc & 0xff) | 0xf8000000;
    __asm__ volatile("sfpc %0" : : "d"(fpc));
#endif
    (void)modes;
}

/* Back to what they were before set_float_mode. */
static inline void reset_float_mode(void) {
    fesetenv(&usual_environment);
#if defined(__SSE__)
    _mm_setcsr(usual_mxcsr);
#endif
}

/* False where this machine does not have just that mode; then nothing has changed. */
static inline bool set_float_mode(const float_mode *m) {
    fegetenv(&usual_environment);
#if defined(__SSE__)
    usual_mxcsr = _mm_getcsr();
#endif
    if (m->modes & (RAPT_ROUNDS_UP | RAPT_ROUNDS_DOWN | RAPT_ROUNDS_TO_ZERO)) round_by(m->modes);
    else flush_or_trap(m->modes);
    const bool set = rapt_float_modes(rapt_float_control()) == m->modes;
    if (!set) reset_float_mode();
    return set;
}

/* The control register with that mode, and whether it can be had. */
static inline bool float_control_with(const float_mode *m, uint64_t *control) {
    if (!set_float_mode(m)) return false;
    *control = rapt_float_control();
    reset_float_mode();
    return true;
}

#endif
