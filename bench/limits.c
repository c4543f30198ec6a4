/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the limits of this machine. */
#include "limits.h"

#include <string.h>

#include "data.h"
#include "timing.h"

#define RAPT_KERNEL(isa, ...) extern const bench_isa bench_isa_##isa;
#include "kernels.inc"
#undef RAPT_KERNEL
#define RAPT_KERNEL(isa, ...) &bench_isa_##isa,
static const bench_isa *const isas[] = {
#include "kernels.inc"
};

/* A limit is measured in several short windows, and the best one counts, since in it the machine was least disturbed. window: the
 * least seconds of one; span: the seconds for which windows are repeated. */
static const double window = 3e-3, span = 40e-3;
enum { MIN_WINDOWS = 5, CALIBRATION_WINDOWS = 3 };

static const bench_isa *find(const char *name) {
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++)
        if (!strcmp(isas[i]->name, name)) return isas[i];
    return NULL;
}

/* Returns the seconds that all threads of the pool take for a body. */
static double timed(rapt_pool *pool, rapt_body body, void *arg) {
    double start = bench_now();
    rapt_pool_for(pool, rapt_pool_threads(pool), body, arg);
    return bench_now() - start;
}

/* Returns the least time of a body that runs at least `times` times, and for `seconds` seconds. */
static double best_time(rapt_pool *pool, rapt_body body, void *arg, int times, double seconds) {
    double end = bench_now() + seconds, best = timed(pool, body, arg);
    for (int i = 1; i < times || bench_now() < end; i++) {
        double t = timed(pool, body, arg);
        if (t < best) best = t;
    }
    return best;
}

typedef struct peak_arg {
    bench_peak_loop loop;
    int64_t rounds;
} peak_arg;

static void peak_body(void *body_arg, int64_t i) {
    const peak_arg *p = body_arg;
    volatile float keep = p->loop.run(p->rounds, 1, (float)(i + 1));
    (void)keep;
}

double bench_peak(const char *name, rapt_arith arith, rapt_pool *pool) {
    const bench_isa *isa = find(name);
    if (!isa) return 0;
    peak_arg arg = {isa->peaks[arith], 1};
    while (best_time(pool, peak_body, &arg, CALIBRATION_WINDOWS, 0) < window) arg.rounds *= 2;
    return (double)(arg.loop.operations * arg.rounds * rapt_pool_threads(pool)) /
           best_time(pool, peak_body, &arg, MIN_WINDOWS, span);
}

bool bench_has_matrix_unit(const char *name) {
    const bench_isa *isa = find(name);
    return isa && isa->peaks[RAPT_BF16_DOT].run != isa->peaks[RAPT_EXACT].run;
}

const char *bench_best_isa(void) {
    for (int i = 0; rapt_isa_name(i); i++)
        if (rapt_isa_usable(rapt_isa_name(i), NULL, 0) == RAPT_OK && find(rapt_isa_name(i))) return rapt_isa_name(i);
    return NULL;
}

typedef struct read_arg {
    const bench_isa *isa;
    const char *from;
    size_t part;
    int64_t rounds;
} read_arg;

static void read_body(void *body_arg, int64_t i) {
    const read_arg *r = body_arg;
    for (int64_t n = 0; n < r->rounds; n++) {
        volatile uint32_t keep = r->isa->read(r->from + (size_t)i * r->part, r->part);
        (void)keep;
    }
}

double bench_bandwidth(size_t bytes, rapt_pool *pool) {
    static char *buffer;
    if (!buffer) {
        buffer = bench_alloc(BENCH_COLD_BYTES);
        if (!buffer) return 0;
        memset(buffer, 1, BENCH_COLD_BYTES); /* else all pages would be the same physical page of zeros */
    }
    const char *widest = bench_best_isa();
    if (!widest) return 0;
    const size_t threads = (size_t)rapt_pool_threads(pool), page = 4096;
    if (bytes > BENCH_COLD_BYTES) bytes = BENCH_COLD_BYTES;
    read_arg arg = {find(widest), buffer, bytes / threads / page * page, 1};
    if (arg.part < page) arg.part = page;
    /* Rounds are added until a window is long enough: reading a small buffer takes less time than starting the threads. */
    while (best_time(pool, read_body, &arg, CALIBRATION_WINDOWS, 0) < window) arg.rounds *= 2;
    return (double)(arg.part * threads) * (double)arg.rounds / best_time(pool, read_body, &arg, MIN_WINDOWS, span);
}

bench_limits bench_limits_of(const char *isa, rapt_arith arith, size_t bytes, rapt_pool *pool) {
    const double f32_peak = bench_peak(isa, RAPT_EXACT, pool);
    return (bench_limits){arith == RAPT_EXACT ? f32_peak : bench_peak(isa, arith, pool), f32_peak, bench_bandwidth(bytes, pool)};
}
