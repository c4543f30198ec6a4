/* SPDX-License-Identifier: Apache-2.0 */
/* The floating-point modes of a thread: the direction of rounding, the treatment of denormal numbers, traps (docs/numerics.md,
 * "The thread's floating-point modes"). A caller may have set them, and bits depend on them. The library sets none; it only reads
 * them. Control registers are decoded by pure functions, which every machine can test on recorded values. */
#ifndef RAPT_FLOAT_MODES_H
#define RAPT_FLOAT_MODES_H

#include "core/report.h"

/* 1 in a build that refuses to compute on a thread whose modes are not the default ones, else 0. */
#ifndef RAPT_CHECK_FP
#define RAPT_CHECK_FP 0
#endif

/* Modes other than the default ones, as bits. */
enum {
    RAPT_ROUNDS_UP = 1 << 0,
    RAPT_ROUNDS_DOWN = 1 << 1,
    RAPT_ROUNDS_TO_ZERO = 1 << 2,
    RAPT_ROUNDS_OTHERWISE = 1 << 3,  /* ties away from 0, to odd numbers, or as no standard says */
    RAPT_FLUSHES_RESULTS = 1 << 4,   /* a denormal result becomes 0 */
    RAPT_FLUSHES_OPERANDS = 1 << 5,  /* a denormal operand is taken for 0 */
    RAPT_HANDLES_OTHERWISE = 1 << 6, /* Arm's alternative half precision, or its alternate handling of floating point */
    RAPT_TRAPS = 1 << 7,             /* an exception, such as an inexact result, ends in a signal */
};

/* Returns the mode that a field of a register chooses: the bits of `mask`, from bit `lowest` on, are an index of modes. */
static inline unsigned rapt_chosen_mode(const unsigned *modes, uint64_t control, int lowest, unsigned mask) {
    return modes[control >> lowest & mask];
}

/* Returns the mode if one of these bits is set, else 0. */
static inline unsigned rapt_mode_if(uint64_t control, uint64_t bits, unsigned mode) { return control & bits ? mode : 0; }

/* The *_float_modes functions return the modes that a machine's control register has set, as bits; the *_CONTROL constants are
 * the register's bits that control something, without its flags of past exceptions. */

/* x86: MXCSR (Intel SDM volume 1, section 10.2.3): bit 6 is DAZ, 7 to 12 mask the six exceptions, 13 and 14 are rounding, 15 is
 * FTZ.
 */
#define RAPT_X86_CONTROL UINT64_C(0xffc0)
static inline unsigned rapt_x86_float_modes(uint64_t mxcsr) {
    static const unsigned rounding[4] = {0, RAPT_ROUNDS_DOWN, RAPT_ROUNDS_UP, RAPT_ROUNDS_TO_ZERO};
    return rapt_chosen_mode(rounding, mxcsr, 13, 3) | rapt_mode_if(mxcsr, 1 << 15, RAPT_FLUSHES_RESULTS) |
           rapt_mode_if(mxcsr, 1 << 6, RAPT_FLUSHES_OPERANDS) | rapt_mode_if(~mxcsr, 0x1f80, RAPT_TRAPS);
}

/* The bits that FPCR of AArch64 and FPSCR of AArch32 have in common (Arm ARM, C5.2.8 and G8.2.55): 8 to 12 and 15 enable traps,
 * 22 and 23 are rounding, 26 is alternative half precision (AHP). Default NaN (25) affects no bit that is promised; nor does FZ16
 * (19), which affects arithmetic in f16 but not its conversion. */
static inline unsigned rapt_arm_common_modes(uint64_t control) {
    static const unsigned rounding[4] = {0, RAPT_ROUNDS_UP, RAPT_ROUNDS_DOWN, RAPT_ROUNDS_TO_ZERO};
    return rapt_chosen_mode(rounding, control, 22, 3) | rapt_mode_if(control, 1 << 26, RAPT_HANDLES_OTHERWISE) |
           rapt_mode_if(control, 0x9f00, RAPT_TRAPS);
}

/* AArch64: FPCR: bit 24 (FZ) flushes results, and also operands unless bit 1 (AH, FEAT_AFP) is set; bit 0 (FIZ) flushes operands.
 */
#define RAPT_AARCH64_CONTROL UINT64_C(0x7ff9f07)
static inline unsigned rapt_aarch64_float_modes(uint64_t fpcr) {
    return rapt_arm_common_modes(fpcr) | rapt_mode_if(fpcr, 1 << 24, RAPT_FLUSHES_RESULTS) |
           rapt_mode_if(fpcr, 1, RAPT_FLUSHES_OPERANDS) | rapt_mode_if(fpcr, 2, RAPT_HANDLES_OTHERWISE) |
           (fpcr & 2 ? 0 : rapt_mode_if(fpcr, 1 << 24, RAPT_FLUSHES_OPERANDS));
}

/* 32-bit Arm: FPSCR: bit 24 (FZ) flushes both. NEON's arithmetic, which always flushes, does not obey it; no kernel uses that
 * (vec128.c). */
#define RAPT_ARM_CONTROL UINT64_C(0x7ff9f00)
static inline unsigned rapt_arm_float_modes(uint64_t fpscr) {
    return rapt_arm_common_modes(fpscr) | rapt_mode_if(fpscr, 1 << 24, RAPT_FLUSHES_RESULTS | RAPT_FLUSHES_OPERANDS);
}

/* RISC-V: fcsr (unprivileged ISA, section "Floating-Point Control and Status Register"): bits 5 to 7 are rounding. There are no
 * flushes and no traps. */
#define RAPT_RISCV_CONTROL UINT64_C(0xe0)
static inline unsigned rapt_riscv_float_modes(uint64_t fcsr) {
    static const unsigned rounding[8] = {0,
                                         RAPT_ROUNDS_TO_ZERO,
                                         RAPT_ROUNDS_DOWN,
                                         RAPT_ROUNDS_UP,
                                         RAPT_ROUNDS_OTHERWISE,
                                         RAPT_ROUNDS_OTHERWISE,
                                         RAPT_ROUNDS_OTHERWISE,
                                         RAPT_ROUNDS_OTHERWISE};
    return rapt_chosen_mode(rounding, fcsr, 5, 7);
}

/* POWER: FPSCR (Power ISA, Book I, section 4.2.2), bits counted from the lowest: 0 and 1 are rounding, 2 is NI, with which
 * results may be flushed, 3 to 7 enable exceptions. */
#define RAPT_POWER_CONTROL UINT64_C(0xff)
static inline unsigned rapt_power_float_modes(uint64_t fpscr) {
    static const unsigned rounding[4] = {0, RAPT_ROUNDS_TO_ZERO, RAPT_ROUNDS_UP, RAPT_ROUNDS_DOWN};
    return rapt_chosen_mode(rounding, fpscr, 0, 3) | rapt_mode_if(fpscr, 1 << 2, RAPT_FLUSHES_RESULTS) |
           rapt_mode_if(fpscr, 0xf8, RAPT_TRAPS);
}

/* IBM Z: FPC (z/Architecture Principles of Operation, chapter 19), bits counted from the lowest: 0 to 2 are rounding, 27 to 31
 * enable exceptions. */
#define RAPT_S390X_CONTROL UINT64_C(0xf8000007)
static inline unsigned rapt_s390x_float_modes(uint64_t fpc) {
    static const unsigned rounding[8] = {0,
                                         RAPT_ROUNDS_TO_ZERO,
                                         RAPT_ROUNDS_UP,
                                         RAPT_ROUNDS_DOWN,
                                         RAPT_ROUNDS_OTHERWISE,
                                         RAPT_ROUNDS_OTHERWISE,
                                         RAPT_ROUNDS_OTHERWISE,
                                         RAPT_ROUNDS_OTHERWISE};
    return rapt_chosen_mode(rounding, fpc, 0, 7) | rapt_mode_if(fpc, 0xf8000000, RAPT_TRAPS);
}

/* LoongArch: FCSR0 (reference manual, volume 1, section 3.1.4): bits 0 to 4 enable exceptions, 8 and 9 are rounding. */
#define RAPT_LOONGARCH_CONTROL UINT64_C(0x31f)
static inline unsigned rapt_loongarch_float_modes(uint64_t fcsr0) {
    static const unsigned rounding[4] = {0, RAPT_ROUNDS_TO_ZERO, RAPT_ROUNDS_UP, RAPT_ROUNDS_DOWN};
    return rapt_chosen_mode(rounding, fcsr0, 8, 3) | rapt_mode_if(fcsr0, 0x1f, RAPT_TRAPS);
}

/* The name of this machine's control register; "" where there is none, or none is known. */
extern const char rapt_float_register[];

/* Returns the calling thread's control register, without its flags of past exceptions; 0 where there is none, or none is known.
 */
uint64_t rapt_float_control(void);

/* Returns the modes that a control register of this machine has set. */
unsigned rapt_float_modes(uint64_t control);

/* Refuses the modes of a control register, by a line that names them; who: whose modes they are. */
rapt_status rapt_refuse_float_modes(rapt_report *r, rapt_status status, const char *who, uint64_t control);

/* In a build with RAPT_CHECK_FP, refuses the modes of the calling thread if they are not the default ones. Errors: FLOAT_MODE. */
static inline rapt_status rapt_check_floats(rapt_report *r) {
    if (!RAPT_CHECK_FP) return RAPT_OK;
    const uint64_t control = rapt_float_control();
    return rapt_float_modes(control) ? rapt_refuse_float_modes(r, RAPT_ERR_FLOAT_MODE, "the thread", control) : RAPT_OK;
}

#endif
