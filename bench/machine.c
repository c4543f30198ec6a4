/* SPDX-License-Identifier: Apache-2.0 */
/* limits/tN: the limits of the machine, without running any code of rapt, for scripts that compute shares of their own:
 *
 *     f32_peak       GFLOP/s of multiplications and additions of f32 in registers, with the best instruction set
 *     matrix_peak    GFLOP/s of the matrix unit on bf16, or of other instructions for it; missing if the best set has none
 *     integer_peak   10^9 operations per second of integer products; f32_peak if the best instruction set has none
 *     GBs            GB/s of reading memory
 *
 * Each is the best of all iterations. The label names the instruction set. */
#include <math.h>
#include <stdio.h>

#include "limits.h"
#include "shim.h"

static void run_limits(bench_state *state, const void *arg) {
    const int64_t *threads = arg;
    const char *isa = bench_best_isa();
    rapt_pool *pool = rapt_pool_create(*threads);
    const bool matrix = isa && bench_has_matrix_unit(isa);
    double f32_peak = 0.0, matrix_peak = 0.0, integer_peak = 0.0, bandwidth = 0.0;
    while (isa && pool && bench_keep_running(state)) {
        f32_peak = fmax(f32_peak, bench_peak(isa, RAPT_EXACT, pool));
        if (matrix) matrix_peak = fmax(matrix_peak, bench_peak(isa, RAPT_BF16_DOT, pool));
        integer_peak = fmax(integer_peak, bench_peak(isa, RAPT_INT8_DOT, pool));
        bandwidth = fmax(bandwidth, bench_bandwidth(BENCH_COLD_BYTES, pool));
    }
    rapt_pool_destroy(pool);
    if (f32_peak == 0.0 || bandwidth == 0.0) {
        bench_fail(state, "the limits could not be measured");
        return;
    }
    bench_counter(state, "f32_peak", 1e-9 * f32_peak);
    if (matrix) bench_counter(state, "matrix_peak", 1e-9 * matrix_peak);
    bench_counter(state, "integer_peak", 1e-9 * integer_peak);
    bench_counter(state, "GBs", 1e-9 * bandwidth);
    bench_label(state, isa);
}

void bench_register_machine(const int64_t *threads, int thread_counts) {
    static int64_t kept[BENCH_THREAD_COUNTS];
    for (int n = 0; n < thread_counts; n++) {
        char name[32];
        kept[n] = threads[n];
        snprintf(name, sizeof name, "limits/t%lld", (long long)kept[n]);
        bench_register(name, run_limits, &kept[n]);
    }
}
