/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of a kernel: the list of kernels, best first, what the CPU can run, and the process-wide choice. */
#include "cpu/select.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/cpu.h"

/* kernels.inc has a line RAPT_KERNEL(name, exact, int8, bf16) for each kernel, best first. For each arithmetic the line names the
 * kernel that brings it: this one, or the one that it inherits from. */
#define RAPT_KERNEL(name, exact, int8, bf16)                                                                                     \
    extern const rapt_base rapt_exact_##exact;                                                                                   \
    extern const rapt_arithmetic rapt_int8_##int8;                                                                               \
    extern const rapt_arithmetic rapt_bf16_##bf16;
#include "kernels.inc"
#undef RAPT_KERNEL

static const rapt_kernel kernels[] = {
#define RAPT_KERNEL(name, exact, int8, bf16) {#name, &rapt_exact_##exact, &rapt_int8_##int8, &rapt_bf16_##bf16},
#include "kernels.inc"
#undef RAPT_KERNEL
};
enum { KERNELS = sizeof kernels / sizeof *kernels };

/* The process-wide choice; null until it is made. It points to constant data, so a relaxed access is enough. The atomic variables
 * below and the trace (report.c) are the only others that the library writes outside the caller's memory. */
static _Atomic(const rapt_kernel *) chosen;

/* The CPU's features and FEATURES_KNOWN; 0 until they are asked for. They are kept, since asking takes microseconds in a virtual
 * machine. */
static _Atomic(uint32_t) features_found;
#define FEATURES_KNOWN (UINT32_C(1) << 31)

/* The result of rapt_l2_bytes; 0 until it is asked for. */
static _Atomic(uint32_t) l2_found;

static const char *const feature_names[] = {RAPT_CPU_NAMES};
enum { FEATURES = sizeof feature_names / sizeof *feature_names };

const rapt_arithmetic *rapt_few_rows_bf16(const rapt_kernel *kernel) {
    for (const rapt_kernel *k = kernel; k < kernels + KERNELS && kernel->bf16->least_rows > 1; k++)
        if (k->base == kernel->base && k->bf16->least_rows <= 1 && !(k->bf16->needs & ~kernel->bf16->needs)) return k->bf16;
    return kernel->bf16;
}

const rapt_kernel *rapt_find_kernel(const char *name) {
    for (int i = 0; i < KERNELS; i++)
        if (strcmp(kernels[i].name, name) == 0) return &kernels[i];
    return NULL;
}

/* Returns the CPU features that the kernel needs, in all of its arithmetics. */
static uint32_t needs_of(const rapt_kernel *kernel) {
    return kernel->base->exact.needs | kernel->int8->needs | kernel->bf16->needs;
}

/* Returns the CPU's features, and FEATURES_KNOWN. */
static uint32_t features(void) {
    uint32_t known = atomic_load_explicit(&features_found, memory_order_relaxed);
    if (!(known & FEATURES_KNOWN)) { /* several threads may be first; they all store the same */
        known = FEATURES_KNOWN | rapt_cpu_features_detect();
        atomic_store_explicit(&features_found, known, memory_order_relaxed);
    }
    return known;
}

/* Bounds the size that the CPU reports: a cache of more than 2 MiB is shared by several cores, and one of less than 256 KiB is an
 * emulator's invention. */
size_t rapt_l2_bytes(void) {
    enum { LEAST = 256 << 10, USUAL = 1 << 20, MOST = 2 << 20 };
    size_t known = atomic_load_explicit(&l2_found, memory_order_relaxed);
    if (!known) {
        known = rapt_cpu_l2_detect();
        known = !known ? USUAL : known < LEAST ? LEAST : known > MOST ? MOST : known;
        atomic_store_explicit(&l2_found, (uint32_t)known, memory_order_relaxed);
    }
    return known;
}

/* Writes the names of these features, separated by spaces and cut to `bytes` with the terminator. */
static void name_features(uint32_t of, char *names, size_t bytes) {
    size_t used = 0;
    if (bytes == 0) return;
    for (int i = 0; i < FEATURES; i++) {
        if (!(of >> i & 1)) continue;
        if (used && used + 1 < bytes) names[used++] = ' ';
        for (const char *c = feature_names[i]; *c && used + 1 < bytes; c++) names[used++] = *c;
    }
    names[used] = '\0';
}

rapt_status rapt_refuse_kernel(rapt_report *r, const char *field, const char *name) {
    char names[16 * KERNELS];
    size_t used = 0;
    for (int i = 0; i < KERNELS; i++)
        used += rapt_format(names + used, sizeof names - used, "%s%s", i ? ", " : "", kernels[i].name);
    return rapt_refuse(r, RAPT_ERR_ISA_UNKNOWN, "%s = %s: there is no kernel of that name; there are %s", field, name, names);
}

/* Checks that the kernel exists and can run here. what: where its name was given. */
static rapt_status usable(rapt_report *r, const char *what, const char *name, const rapt_kernel *kernel) {
    if (!kernel) return rapt_refuse_kernel(r, what, name);
    uint32_t missing = needs_of(kernel) & ~features();
    if (!missing) return RAPT_OK;
    char names[128];
    name_features(missing, names, sizeof names);
    return rapt_refuse(r, RAPT_ERR_ISA_MISSING, "%s = %s: this machine lacks %s", what, name, names);
}

rapt_status rapt_select(rapt_report *r, const char *name, const rapt_kernel **kernel) {
    if (name) return usable(r, "isa", name, *kernel = rapt_find_kernel(name));
    *kernel = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (*kernel) return RAPT_OK;
    const char *forced = getenv("RAPT_ISA");
    if (forced && *forced) {
        const char *owner = r->owner;
        r->owner = ""; /* RAPT_ISA is a variable of the environment, not a field */
        rapt_status status = usable(r, "RAPT_ISA", forced, *kernel = rapt_find_kernel(forced));
        r->owner = owner;
        if (status != RAPT_OK) return *kernel = NULL, status;
    } else {
        const uint32_t fast = features() & ~rapt_cpu_slow_detect();
        int i = 0;
        while (needs_of(&kernels[i]) & ~fast) i++; /* ends: the scalar kernels need nothing */
        *kernel = &kernels[i];
    }
    /* Takes the kernel that another thread has chosen or forced meanwhile, if one has. */
    const rapt_kernel *already_chosen = NULL;
    if (!atomic_compare_exchange_strong_explicit(&chosen, &already_chosen, *kernel, memory_order_relaxed, memory_order_relaxed))
        *kernel = already_chosen;
    return RAPT_OK;
}

const char *rapt_isa_name(int index) { return index >= 0 && index < KERNELS ? kernels[index].name : NULL; }

const char *rapt_isa_rounding(const char *name) {
    const rapt_kernel *kernel = name ? rapt_find_kernel(name) : NULL;
    return !kernel ? NULL : kernel->base->fused ? "fused" : "unfused";
}

rapt_status rapt_isa_force(const char *name) {
    rapt_report r = rapt_report_of("rapt_isa_force");
    const rapt_kernel *kernel = NULL;
    if (name) {
        rapt_status status = usable(&r, "name", name, kernel = rapt_find_kernel(name));
        if (status != RAPT_OK) return status;
    }
    atomic_store_explicit(&chosen, kernel, memory_order_relaxed);
    return RAPT_OK;
}

rapt_status rapt_isa_current(const char **name) {
    rapt_report r = rapt_report_of("rapt_isa_current");
    if (!name) return rapt_refuse_null(&r, "name", "there is nowhere to write it");
    const rapt_kernel *kernel;
    rapt_status status = rapt_select(&r, NULL, &kernel);
    *name = kernel ? kernel->name : NULL;
    return status;
}

rapt_status rapt_isa_usable(const char *name, char *missing, size_t missing_bytes) {
    rapt_report r = rapt_report_of("rapt_isa_usable"), untraced = rapt_explanation_of(r.call, NULL, 0);
    if (!name) return rapt_refuse_null(&r, "name", "no kernel has that name");
    const rapt_kernel *kernel = rapt_find_kernel(name);
    if (missing) name_features(kernel ? needs_of(kernel) & ~features() : 0, missing, missing_bytes);
    return usable(&untraced, "name", name, kernel); /* a question leaves no line in the trace */
}

rapt_status rapt_cpu_features(char *names, size_t bytes) {
    rapt_report r = rapt_report_of("rapt_cpu_features");
    if (!names) return rapt_refuse_null(&r, "names", "there is nowhere to write them");
    name_features(features(), names, bytes);
    return RAPT_OK;
}
