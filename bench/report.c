/* SPDX-License-Identifier: Apache-2.0 */
/* What every benchmark reports. */
#include "report.h"

#include <math.h>

void bench_report(bench_state *state, bench_work work, double seconds, bench_limits before, bench_limits after) {
    const double peak = fmax(before.peak, after.peak), bandwidth = fmax(before.bandwidth, after.bandwidth);
    const double flops = work.operations / seconds, bytes = work.bytes / seconds;
    if (peak == 0 || bandwidth == 0) {
        bench_fail(state, "the limits could not be measured");
        return;
    }
    bench_counter(state, "GFLOPS", 1e-9 * flops);
    bench_counter(state, "peak", 1e-9 * peak);
    bench_counter(state, "peak_share", flops / peak);
    bench_counter(state, "f32_peaks", flops / fmax(before.f32_peak, after.f32_peak));
    bench_counter(state, "GBs", 1e-9 * bytes);
    bench_counter(state, "bandwidth", 1e-9 * bandwidth);
    bench_counter(state, "read_share", bytes / bandwidth);
    bench_counter(state, "bound", fmax(flops / peak, bytes / bandwidth));
}
