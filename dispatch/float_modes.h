/* SPDX-License-Identifier: Apache-2.0 */
/* The floating-point modes of a thread, which a caller may have set and bits depend on: the direction of rounding, what becomes
 * of denormal numbers, and traps (docs/numerics.md, "The thread's floating-point modes"). The library sets none; here it looks.
 * What a control register says is decoded by pure functions of recorded ones, so that they are tested on every machine. */
#ifndef RAPT_FLOAT_MODES_H
#define RAPT_FLOAT_MODES_H

#include "report.h"

/* 1 in a build that refuses to compute on a thread whose modes are not the default ones, else 0. */
#ifndef RAPT_CHECK_FP
#define RAPT_CHECK_FP 0
#endif

/* Modes that are not the default ones, as bits. */
enum {
    RAPT_ROUNDS_UP = 1 << 0,
    RAPT_ROUNDS_DOWN = 1 << 1,
    RAPT_ROUNDS_TO_ZERO = 1 << 2,
    RAPT_ROUNDS_OTHERWISE = 1 << 3,  /* ties away from 0, to odd numbers, or as no standard says */
    RAPT_FLUSHES_RESULTS = 1 << 4,   /* a denormal result becomes 0 */
    RAPT_FLUSHES_OPERANDS = 1 << 5,  /* a denormal operand counts as 0 */
    RAPT_HANDLES_OTHERWISE = 1 << 6, /* Arm's alternative half precision, or its alternate handling of floating point */
    RAPT_TRAPS = 1 << 7,             /* an exception, such as an inexact result, ends in a signal */
};

/* The bits of a register from a lowest one on choose a mode. */
static inline unsigned rapt_chosen_mode(const unsigned *modes, uint64_t control, int lowest, unsigned mask) {
    return modes[control >> lowest & mask];
}

/* A mode if one of these bits is set. */
static inline unsigned rapt_mode_if(uint64_t control, uint64_t bits, unsigned mode) { return control & bits ? mode : 0; }

/* MXCSR (Intel SDM volume 1, section 10.2.3): bit 6 DAZ, 7 to 12 the masks of the six exceptions, 13 and 14 rounding, 15 FTZ. */
#define RAPT_X86_CONTROL UINT64_C(0xffc0)
static inline unsigned rapt_x86_float_modes(uint64_t mxcsr) {
    static const unsigned rounding[4] = {0, RAPT_ROUNDS_DOWN, RAPT_ROUNDS_UP, RAPT_ROUNDS_TO_ZERO};
    return rapt_chosen_mode(rounding, mxcsr, 13, 3) | rapt_mode_if(mxcsr, 1 << 15, RAPT_FLUSHES_RESULTS) |
           rapt_mode_if(mxcsr, 1 << 6, RAPT_FLUSHES_OPERANDS) | rapt_mode_if(~mxcsr, 0x1f80, RAPT_TRAPS);
}

/* What FPCR of AArch64 and FPSCR of AArch32 have alike (Arm ARM, C5.2.8 and G8.2.55): bits 8 to 12 and 15 enable traps, 22 and 23
 * are rounding, 26 is alternative half precision (AHP). Default NaN (25) matters to no promised bit; nor does FZ16 (19), which
 * has to do with arithmetic of f16, and not with its conversion. */
static inline unsigned rapt_arm_common_modes(uint64_t control) {
    static const unsigned rounding[4] = {0, RAPT_ROUNDS_UP, RAPT_ROUNDS_DOWN, RAPT_ROUNDS_TO_ZERO};
    return rapt_chosen_mode(rounding, control, 22, 3) | rapt_mode_if(control, 1 << 26, RAPT_HANDLES_OTHERWISE) |
           rapt_mode_if(control, 0x9f00, RAPT_TRAPS);
}

/* FPCR: bit 24 (FZ) flushes results, and operands too unless bit 1 (AH, FEAT_AFP) is set; bit 0 (FIZ) flushes operands. */
#define RAPT_AARCH64_CONTROL UINT64_C(0x7ff9f07)
static inline unsigned rapt_aarch64_float_modes(uint64_t fpcr) {
    return rapt_arm_common_modes(fpcr) | rapt_mode_if(fpcr, 1 << 24, RAPT_FLUSHES_RESULTS) |
           rapt_mode_if(fpcr, 1, RAPT_FLUSHES_OPERANDS) | rapt_mode_if(fpcr, 2, RAPT_HANDLES_OTHERWISE) |
           (fpcr & 2 ? 0 : rapt_mode_if(fpcr, 1 << 24, RAPT_FLUSHES_OPERANDS));
}

/* FPSCR: bit 24 (FZ) flushes both. It says nothing of NEON's products, which flush always; no kernel has them (vec128.c). */
#define RAPT_ARM_CONTROL UINT64_C(0x7ff9f00)
static inline unsigned rapt_arm_float_modes(uint64_t fpscr) {
    return rapt_arm_common_modes(fpscr) | rapt_mode_if(fpscr, 1 << 24, RAPT_FLUSHES_RESULTS | RAPT_FLUSHES_OPERANDS);
}

/* fcsr (RISC-V, unprivileged ISA, section "Floating-Point Control and Status Register"): bits 5 to 7 are rounding. There are
 * neither flushes nor traps. */
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

/* FPSCR (Power ISA, Book I, section 4.2.2): the lowest two bits are rounding, the next is NI, with which results may be flushed,
 * and five more enable exceptions. */
#define RAPT_POWER_CONTROL UINT64_C(0xff)
static inline unsigned rapt_power_float_modes(uint64_t fpscr) {
    static const unsigned rounding[4] = {0, RAPT_ROUNDS_TO_ZERO, RAPT_ROUNDS_UP, RAPT_ROUNDS_DOWN};
    return rapt_chosen_mode(rounding, fpscr, 0, 3) | rapt_mode_if(fpscr, 1 << 2, RAPT_FLUSHES_RESULTS) |
           rapt_mode_if(fpscr, 0xf8, RAPT_TRAPS);
}

/* FPC (z/Architecture Principles of Operation, chapter 19): bits 0 to 2 are rounding, and 27 to 31 enable exceptions. */
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

/* FCSR0 (LoongArch reference manual, volume 1, section 3.1.4): the lowest five bits enable exceptions, 8 and 9 are rounding. */
#define RAPT_LOONGARCH_CONTROL UINT64_C(0x31f)
static inline unsigned rapt_loongarch_float_modes(uint64_t fcsr0) {
    static const unsigned rounding[4] = {0, RAPT_ROUNDS_TO_ZERO, RAPT_ROUNDS_UP, RAPT_ROUNDS_DOWN};
    return rapt_chosen_mode(rounding, fcsr0, 8, 3) | rapt_mode_if(fcsr0, 0x1f, RAPT_TRAPS);
}

/* The name of this machine's control register, and its bits on the calling thread, without the flags of what has happened; 0
 * where there is none, or none is known. */
extern const char rapt_float_register[];
uint64_t rapt_float_control(void);

/* The modes that such bits stand for on this machine. */
unsigned rapt_float_modes(uint64_t control);

/* Refuses modes; who: has them. */
rapt_status rapt_refuse_float_modes(rapt_report *r, rapt_status status, const char *who, uint64_t control);

/* Refuses those of the calling thread, in a build that does, before it computes. */
static inline rapt_status rapt_check_floats(rapt_report *r) {
    if (!RAPT_CHECK_FP) return RAPT_OK;
    const uint64_t control = rapt_float_control();
    return rapt_float_modes(control) ? rapt_refuse_float_modes(r, RAPT_ERR_FLOAT_MODE, "the thread", control) : RAPT_OK;
}

#endif
