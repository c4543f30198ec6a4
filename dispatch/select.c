/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernel runs: the list, best first, and the process-wide choice. */
#include "select.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"

#define RAPT_KERNEL(name) extern const rapt_kernel rapt_kernel_##name;
#include "kernels.inc"
#undef RAPT_KERNEL

static const rapt_kernel *const kernels[] = {
#define RAPT_KERNEL(name) &rapt_kernel_##name,
#include "kernels.inc"
#undef RAPT_KERNEL
};
enum { KERNELS = sizeof kernels / sizeof *kernels };

/* The only thing this library ever writes outside the caller's memory. It points to constant data, so a relaxed access is enough,
 * and threads that come first at the same time all store the same pointer. Null: not chosen yet. */
static _Atomic(const rapt_kernel *) chosen;

static const char *const feature_names[] = {RAPT_CPU_NAMES};
enum { FEATURES = sizeof feature_names / sizeof *feature_names };

static const rapt_kernel *find(const char *name) {
    for (int i = 0; i < KERNELS; i++)
        if (strcmp(kernels[i]->name, name) == 0) return kernels[i];
    return NULL;
}

static rapt_status usable(const rapt_kernel *kernel) {
    if (!kernel) return RAPT_ERR_ISA_UNKNOWN;
    if (kernel == atomic_load_explicit(&chosen, memory_order_relaxed)) return RAPT_OK; /* CPUID costs microseconds in a VM */
    return kernel->needs & ~rapt_cpu_features_detect() ? RAPT_ERR_ISA_MISSING : RAPT_OK;
}

rapt_status rapt_select(const char *name, const rapt_kernel **kernel) {
    if (name) return usable(*kernel = find(name));
    *kernel = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (*kernel) return RAPT_OK;
    const char *forced = getenv("RAPT_ISA");
    if (forced && *forced) {
        rapt_status status = usable(*kernel = find(forced));
        if (status != RAPT_OK) return status;
    } else {
        uint32_t features = rapt_cpu_features_detect();
        int i = 0;
        while (kernels[i]->needs & ~features) i++; /* ends: the scalar kernels need nothing */
        *kernel = kernels[i];
    }
    atomic_store_explicit(&chosen, *kernel, memory_order_relaxed);
    return RAPT_OK;
}

const char *rapt_isa_name(int index) { return index >= 0 && index < KERNELS ? kernels[index]->name : NULL; }

const char *rapt_isa_rounding(const char *name) {
    const rapt_kernel *kernel = name ? find(name) : NULL;
    return !kernel ? NULL : kernel->fused ? "fused" : "unfused";
}

rapt_status rapt_isa_force(const char *name) {
    const rapt_kernel *kernel = NULL;
    if (name) {
        rapt_status status = usable(kernel = find(name));
        if (status != RAPT_OK) return status;
    }
    atomic_store_explicit(&chosen, kernel, memory_order_relaxed);
    return RAPT_OK;
}

rapt_status rapt_isa_current(const char **name) {
    if (!name) return RAPT_ERR_NULL;
    const rapt_kernel *kernel;
    rapt_status status = rapt_select(NULL, &kernel);
    *name = status == RAPT_OK ? kernel->name : NULL;
    return status;
}

/* The names of some features, space-separated, cut to bytes with the terminator. */
static void name_features(uint32_t features, char *names, size_t bytes) {
    size_t used = 0;
    if (bytes == 0) return;
    for (int i = 0; i < FEATURES; i++) {
        if (!(features >> i & 1)) continue;
        if (used && used + 1 < bytes) names[used++] = ' ';
        for (const char *c = feature_names[i]; *c && used + 1 < bytes; c++) names[used++] = *c;
    }
    names[used] = '\0';
}

rapt_status rapt_isa_usable(const char *name, char *missing, size_t missing_bytes) {
    if (!name) return RAPT_ERR_NULL;
    const rapt_kernel *kernel = find(name);
    if (missing) name_features(kernel ? kernel->needs & ~rapt_cpu_features_detect() : 0, missing, missing_bytes);
    return usable(kernel);
}

rapt_status rapt_cpu_features(char *names, size_t bytes) {
    if (!names) return RAPT_ERR_NULL;
    name_features(rapt_cpu_features_detect(), names, bytes);
    return RAPT_OK;
}
