/* SPDX-License-Identifier: Apache-2.0 */
/* The floating-point modes of threads: recorded control registers are decoded, this machine's own is read, and in a build that
 * looks at modes (RAPT_CHECK_FP) every call of calls.c is refused on a thread that has others, writes nothing, and has its bits
 * again on one that has not. Other builds refuse nothing: float_bits.c is about those. */
#include <float.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "float_control.h"
#include "tap.h"

/* ---- Registers ----------------------------------------------------------------------------------------------------------- */

enum {
    UP = RAPT_ROUNDS_UP,
    DOWN = RAPT_ROUNDS_DOWN,
    TO_ZERO = RAPT_ROUNDS_TO_ZERO,
    OTHERWISE = RAPT_ROUNDS_OTHERWISE,
    RESULTS = RAPT_FLUSHES_RESULTS,
    OPERANDS = RAPT_FLUSHES_OPERANDS,
    HANDLES = RAPT_HANDLES_OTHERWISE,
    TRAPS = RAPT_TRAPS,
};

/* With flags of what has happened, too, which are no modes. */
static const struct {
    const char *name;
    unsigned (*decode)(uint64_t);
    uint64_t control;
    unsigned modes;
} registers[] = {
    {"x86, as programs begin", rapt_x86_float_modes, 0x1f80, 0},
    {"x86, all flags", rapt_x86_float_modes, 0x1fbf, 0},
    {"x86, AMD's misaligned exceptions masked", rapt_x86_float_modes, 0x21fa0, 0},
    {"x86, fesetround(FE_DOWNWARD)", rapt_x86_float_modes, 0x3fa0, DOWN},
    {"x86, fesetround(FE_UPWARD)", rapt_x86_float_modes, 0x5f80, UP},
    {"x86, fesetround(FE_TOWARDZERO)", rapt_x86_float_modes, 0x7f80, TO_ZERO},
    {"x86, FTZ", rapt_x86_float_modes, 0x9f80, RESULTS},
    {"x86, DAZ", rapt_x86_float_modes, 0x1fc0, OPERANDS},
    {"x86, linked with -ffast-math", rapt_x86_float_modes, 0x9fe0, RESULTS | OPERANDS},
    {"x86, feenableexcept(FE_INVALID)", rapt_x86_float_modes, 0x1f00, TRAPS},
    {"x86, feenableexcept(FE_INEXACT)", rapt_x86_float_modes, 0x0f80, TRAPS},
    {"x86, nothing set", rapt_x86_float_modes, 0, TRAPS},
    {"AArch64, as programs begin", rapt_aarch64_float_modes, 0, 0},
    {"AArch64, fesetround(FE_UPWARD)", rapt_aarch64_float_modes, 0x00400000, UP},
    {"AArch64, fesetround(FE_DOWNWARD)", rapt_aarch64_float_modes, 0x00800000, DOWN},
    {"AArch64, fesetround(FE_TOWARDZERO)", rapt_aarch64_float_modes, 0x00c00000, TO_ZERO},
    {"AArch64, FZ", rapt_aarch64_float_modes, 0x01000000, RESULTS | OPERANDS},
    {"AArch64, FZ and AH", rapt_aarch64_float_modes, 0x01000002, RESULTS | HANDLES},
    {"AArch64, FIZ", rapt_aarch64_float_modes, 0x00000001, OPERANDS},
    {"AArch64, AHP", rapt_aarch64_float_modes, 0x04000000, HANDLES},
    {"AArch64, default NaN and FZ16, which change no promised bit", rapt_aarch64_float_modes, 0x02080000, 0},
    {"AArch64, feenableexcept(FE_DIVBYZERO)", rapt_aarch64_float_modes, 0x00000200, TRAPS},
    {"AArch64, traps of denormal operands", rapt_aarch64_float_modes, 0x00008000, TRAPS},
    {"Arm, as programs begin, with flags and conditions", rapt_arm_float_modes, 0xf800009f, 0},
    {"Arm, fesetround(FE_UPWARD)", rapt_arm_float_modes, 0x00400010, UP},
    {"Arm, fesetround(FE_DOWNWARD)", rapt_arm_float_modes, 0x00800000, DOWN},
    {"Arm, fesetround(FE_TOWARDZERO)", rapt_arm_float_modes, 0x00c00000, TO_ZERO},
    {"Arm, FZ", rapt_arm_float_modes, 0x01000000, RESULTS | OPERANDS},
    {"Arm, AHP", rapt_arm_float_modes, 0x04000000, HANDLES},
    {"Arm, feenableexcept(FE_INEXACT)", rapt_arm_float_modes, 0x00001000, TRAPS},
    {"RISC-V, as programs begin, with flags", rapt_riscv_float_modes, 0x1f, 0},
    {"RISC-V, RTZ", rapt_riscv_float_modes, 0x20, TO_ZERO},
    {"RISC-V, RDN", rapt_riscv_float_modes, 0x41, DOWN},
    {"RISC-V, RUP", rapt_riscv_float_modes, 0x60, UP},
    {"RISC-V, RMM", rapt_riscv_float_modes, 0x80, OTHERWISE},
    {"RISC-V, reserved", rapt_riscv_float_modes, 0xa0, OTHERWISE},
    {"POWER, as programs begin, with flags", rapt_power_float_modes, 0x82064000, 0},
    {"POWER, fesetround(FE_TOWARDZERO)", rapt_power_float_modes, 1, TO_ZERO},
    {"POWER, fesetround(FE_UPWARD)", rapt_power_float_modes, 2, UP},
    {"POWER, fesetround(FE_DOWNWARD)", rapt_power_float_modes, 3, DOWN},
    {"POWER, NI", rapt_power_float_modes, 4, RESULTS},
    {"POWER, feenableexcept(FE_INVALID)", rapt_power_float_modes, 0x80, TRAPS},
    {"POWER, feenableexcept(FE_INEXACT)", rapt_power_float_modes, 0x08, TRAPS},
    {"IBM Z, as programs begin, with flags and decimal rounding", rapt_s390x_float_modes, 0x00f80070, 0},
    {"IBM Z, fesetround(FE_TOWARDZERO)", rapt_s390x_float_modes, 1, TO_ZERO},
    {"IBM Z, fesetround(FE_UPWARD)", rapt_s390x_float_modes, 2, UP},
    {"IBM Z, fesetround(FE_DOWNWARD)", rapt_s390x_float_modes, 3, DOWN},
    {"IBM Z, rounding for shorter precision", rapt_s390x_float_modes, 7, OTHERWISE},
    {"IBM Z, feenableexcept(FE_INVALID)", rapt_s390x_float_modes, 0x80000000, TRAPS},
    {"IBM Z, feenableexcept(FE_INEXACT)", rapt_s390x_float_modes, 0x08000000, TRAPS},
    {"LoongArch, as programs begin, with flags and causes", rapt_loongarch_float_modes, 0x1f1f0000, 0},
    {"LoongArch, fesetround(FE_TOWARDZERO)", rapt_loongarch_float_modes, 0x100, TO_ZERO},
    {"LoongArch, fesetround(FE_UPWARD)", rapt_loongarch_float_modes, 0x200, UP},
    {"LoongArch, fesetround(FE_DOWNWARD)", rapt_loongarch_float_modes, 0x300, DOWN},
    {"LoongArch, feenableexcept(FE_INEXACT)", rapt_loongarch_float_modes, 0x01, TRAPS},
};

static void test_registers(void) {
    for (size_t i = 0; i < sizeof registers / sizeof *registers; i++) {
        const unsigned modes = registers[i].decode(registers[i].control);
        tap_ok(modes == registers[i].modes, "%s: modes %#x", registers[i].name, modes);
    }
}

/* What modes do, told by their effect; the compiler, who knows nothing of modes, must leave every step to the CPU. */
static unsigned felt_modes(void) {
    volatile float one = 1.0f, tiny = 0x1p-30f, least = FLT_MIN, half = 0.5f, below = 0x1p-140f, above, up, down;
    above = one + tiny, up = -one - tiny, down = one - tiny;
    unsigned modes = above > one ? UP : up < -one ? DOWN : down < one ? TO_ZERO : 0;
    above = least * half, up = below * 0x1p20f;
    const float result = above, product = up;
    uint32_t bits;
    memcpy(&bits, &result, sizeof bits);
    if (!bits) modes |= RESULTS;
    memcpy(&bits, &product, sizeof bits);
    return bits ? modes : modes | OPERANDS;
}

static void test_own_register(void) {
    unsigned had = 0;
    tap_ok(rapt_float_modes(rapt_float_control()) == 0 && felt_modes() == 0, "this thread begins with the default modes");
    for (int m = 0; m < FLOAT_MODES; m++) {
        if (!set_float_mode(&float_modes[m])) continue;
        had |= float_modes[m].modes;
        const unsigned felt = float_modes[m].modes == TRAPS ? TRAPS : felt_modes();
        reset_float_mode();
        tap_ok(felt == float_modes[m].modes && felt_modes() == 0, "%s is felt, and told by the register", float_modes[m].what);
    }
    tap_ok((had & FLOAT_MODES_HERE) == FLOAT_MODES_HERE, "modes %#x; this architecture has at least %#x", had,
           (unsigned)FLOAT_MODES_HERE);
}

/* ---- Calls --------------------------------------------------------------------------------------------------------------- */

static int failures, refusals;

static void complain(const char *what, const call *c, const way *w, const char *mode, rapt_status status) {
    if (failures++ < 8) printf("# %s, %s: %s: %s: %s\n", w->function, c->name, mode, what, rapt_status_string(status));
}

/* Copies all that the call's pointers point to, and its structs, one after the other, unless `to` is null. Returns how many bytes
 * that is. */
static size_t snapshot(unsigned char *to) {
    size_t used = now.struct_bytes;
    if (to) memcpy(to, now.structs, now.struct_bytes);
    for (int i = 0; i < now.pointers; used += now.at[i++].bytes)
        if (to) memcpy(to + used, now.at[i].at, now.at[i].bytes);
    return used;
}

/* The results alone. */
static size_t results(unsigned char *to) {
    size_t used = 0;
    for (int i = 0; i < now.pointers; i++) {
        const pointer *p = &now.at[i];
        if (!p->written || !strcmp(p->name, "workspace")) continue;
        memcpy(to + used, p->at, p->bytes);
        used += p->bytes;
    }
    return used;
}

static rapt_status make_plan(const call *c) {
    char text[512];
    return c->api->make_plan ? c->api->make_plan(text, sizeof text) : RAPT_OK;
}

/* What the plan of a linear layer holds, and what a copy does, no mode changes. */
static bool plan_computes(const way *w) { return strncmp(w->function, "rapt_linear", strlen("rapt_linear")) != 0; }
static bool computes(const way *w) { return strncmp(w->function, "rapt_kv_copy", strlen("rapt_kv_copy")) != 0; }

/* The call, its plan and its explanation in that mode: each writes nothing but a line. */
static void expect_refusal(const call *c, const way *w, const float_mode *m, unsigned char *before, unsigned char *after) {
    const rapt_status wanted = computes(w) ? RAPT_ERR_FLOAT_MODE : RAPT_OK;
    char line[512] = "", want[512] = "";
    uint64_t control = 0;
    place_pointers(-1);
    if (c->api->make_plan && plan_computes(w)) {
        snapshot(before);
        set_float_mode(m);
        const rapt_status status = make_plan(c);
        reset_float_mode();
        if (status != RAPT_ERR_FLOAT_MODE) complain("the plan is not refused", c, w, m->what, status);
        if (memcmp(before, after, snapshot(after)) != 0) complain("the plan is refused, but written", c, w, m->what, status);
    }
    if (make_plan(c) != RAPT_OK) complain("no plan", c, w, m->what, RAPT_ERR_PLAN);
    snapshot(before);
    set_float_mode(m);
    control = rapt_float_control();
    const rapt_status explained = c->api->explain ? c->api->explain(w->nth, line, sizeof line) : wanted;
    const rapt_status status = w->run(w->nth);
    reset_float_mode();
    refusals += status == RAPT_ERR_FLOAT_MODE;
    if (status != wanted || explained != wanted) complain("is not refused", c, w, m->what, status);
    if (wanted == RAPT_OK) return;
    if (memcmp(before, after, snapshot(after)) != 0) complain("is refused, but writes", c, w, m->what, status);
    snprintf(want, sizeof want, "%s = 0x%" PRIx64 ": the thread %s", rapt_float_register, control, m->words);
    if (c->api->explain && strcmp(line, want) != 0) complain(line, c, w, m->what, explained);
}

/* The same bits before all that and after it. */
static void test_call(const call *c, const way *w) {
    failures = refusals = 0;
    describe_call(c, w->nth);
    for (int i = 0; i < now.pointers; i++)
        if (!(now.at[i].at = aligned_alloc(64, (now.at[i].bytes + 64) / 64 * 64))) abort();
    const size_t bytes = snapshot(NULL);
    unsigned char *before = malloc(bytes), *after = malloc(bytes), *usual = malloc(bytes);
    if (!before || !after || !usual) abort();
    place_pointers(-1);
    rapt_status status = make_plan(c);
    if (status == RAPT_OK) status = w->run(w->nth);
    if (status != RAPT_OK) complain("is refused", c, w, "no mode", status);
    results(usual);
    for (int m = 0; m < FLOAT_MODES; m++) {
        if (!set_float_mode(&float_modes[m])) continue;
        reset_float_mode();
        expect_refusal(c, w, &float_modes[m], before, after);
    }
    place_pointers(-1);
    status = make_plan(c);
    if (status == RAPT_OK) status = w->run(w->nth);
    if (status != RAPT_OK || memcmp(usual, after, results(after)) != 0)
        complain("has other bits afterwards", c, w, "no mode", status);
    tap_ok(!failures && (refusals > 0) == computes(w), "%s, %s: %d modes are refused", w->function, c->name, refusals);
    for (int i = 0; i < now.pointers; i++) free(now.at[i].at);
    free(before), free(after), free(usual);
}

/* ---- Threads ------------------------------------------------------------------------------------------------------------- */

/* One query and two chunks of keys, which the library shares among threads: two phases. */
enum { KEYS = 1100, D = 4, THREADS = 3 };
static float q[D], k[KEYS * D], v[KEYS * D], o[D], usual_o[D];
static _Alignas(RAPT_WORKSPACE_ALIGNMENT) char workspace[1 << 16];
static rapt_plan plan;
static rapt_args args;

static bool make_problem(void) {
    rapt_desc d;
    rapt_plan_info info = {.size = sizeof info};
    rapt_desc_init(&d);
    d.heads = d.kv_heads = 1, d.q_len = 1, d.kv_len = KEYS, d.d_k = d.d_v = D, d.threads = THREADS;
    d.q = d.o = rapt_layout_bhsd(RAPT_F32, 1, 1, D), d.k = d.v = rapt_layout_bhsd(RAPT_F32, 1, KEYS, D);
    for (int i = 0; i < KEYS * D; i++) k[i] = (float)(i % 7) / 4.0f, v[i] = (float)(i % 11) / 8.0f;
    for (int i = 0; i < D; i++) q[i] = (float)(i + 1) / 4.0f;
    rapt_args_init(&args);
    args.q = q, args.k = k, args.v = v, args.o = o, args.workspace = workspace, args.workspace_bytes = sizeof workspace;
    if (rapt_plan_init(&plan, &d) || rapt_plan_query(&plan, &info) || info.phases != 2 || rapt_run(&plan, &args)) return false;
    memcpy(usual_o, o, sizeof o);
    return true;
}

/* A thread of its own for each body; that of one index rounds up. */
typedef struct task {
    rapt_body body;
    void *arg;
    int64_t i, moded;
} task;

static void *run_task(void *arg) {
    const task *t = arg;
    if (t->i == t->moded) set_float_mode(&float_modes[0]);
    t->body(t->arg, t->i);
    return NULL;
}

static void on_threads(void *moded, int64_t n, rapt_body body, void *arg) {
    for (int64_t i = 0; i < n; i++) {
        task t = {body, arg, i, *(const int64_t *)moded};
        pthread_t thread;
        if (pthread_create(&thread, NULL, run_task, &t) || pthread_join(thread, NULL)) abort();
    }
}

static int met;
static void meet(void *arg) { (void)arg, met++; }

static void test_threads(void) {
    int64_t moded = -1;
    tap_ok(make_problem(), "a problem of two phases");
    for (; moded < THREADS; moded++) {
        memset(o, 0, sizeof o);
        const rapt_status status = rapt_run_parallel(&plan, &args, THREADS, on_threads, &moded);
        tap_ok(moded < 0 ? status == RAPT_OK && !memcmp(o, usual_o, sizeof o) : status == RAPT_ERR_FLOAT_MODE,
               "a parallel_for whose thread %d rounds up: %s", (int)moded, rapt_status_string(status));
    }
    memset(o, 0, sizeof o), memset(workspace, 0x5a, sizeof workspace);
    set_float_mode(&float_modes[0]);
    const rapt_status status = rapt_run_share(&plan, &args, 1, 2, meet, NULL);
    reset_float_mode();
    bool written = false;
    for (size_t i = 0; i < sizeof workspace; i++) written = written || workspace[i] != 0x5a;
    for (int i = 0; i < D; i++) written = written || o[i] != 0.0f;
    tap_ok(status == RAPT_ERR_FLOAT_MODE && met == 1 && !written, "a share is refused, after the thread has met the others: %s",
           rapt_status_string(status));
}

int main(void) {
    test_registers();
    test_own_register();
    if (RAPT_CHECK_FP && FLOAT_MODES_HERE != 0) {
        for (int i = 0; i < call_count; i++)
            for (const way *w = calls[i].api->ways; w->function; w++) test_call(&calls[i], w);
        forget_call();
        test_threads();
    }
    return tap_done();
}
