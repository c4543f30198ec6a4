/* SPDX-License-Identifier: Apache-2.0 */
#include "shim.h"

#include <benchmark/benchmark.h>
#include <cstring>

static bool failed;

static benchmark::State *unwrap(bench_state *state) { return reinterpret_cast<benchmark::State *>(state); }

void bench_register(const char *name, bench_function function, const void *arg) {
    /* UseRealTime would only add a suffix to the name: counters come from the clock of cases.c, and the thread that is measured
     * takes its share of the work in each call. */
    benchmark::RegisterBenchmark(
        name, [function, arg](benchmark::State &state) { function(reinterpret_cast<bench_state *>(&state), arg); });
}

bool bench_keep_running(bench_state *state) { return unwrap(state)->KeepRunning(); }

void bench_counter(bench_state *state, const char *name, double value) { unwrap(state)->counters[name] = value; }

void bench_label(bench_state *state, const char *label) { unwrap(state)->SetLabel(label); }

void bench_fail(bench_state *state, const char *why) {
    failed = true;
    unwrap(state)->SkipWithError(why);
}

int main(int argc, char **argv) {
    benchmark::Initialize(&argc, argv); /* which takes its own options out */
    if (argc > 1 && !strncmp(argv[1], "--tuning=", 9)) {
        if (!bench_set_tuning(argv[1] + 9)) return 2;
        argv[1] = argv[0], argv++, argc--;
    }
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    if (!bench_register_cases()) return 2;
    if (benchmark::RunSpecifiedBenchmarks() == 0) return 2; /* it has said that nothing matched */
    benchmark::Shutdown();
    return failed ? 1 : 0;
}
