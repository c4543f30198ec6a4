/* SPDX-License-Identifier: Apache-2.0 */
/* The ways to run a call whose work comes in phases, each of which threads share. The call has been checked. */
#ifndef RAPT_WORK_H
#define RAPT_WORK_H

#include <stdatomic.h>

#include "report.h"

typedef struct rapt_work {
    const void *call;
    int phases;
    /* Thread ith's share of a phase. next: null, or the first task that nobody has taken, for phases whose tasks are handed out
     * as threads become free. */
    void (*share)(const void *call, int phase, int64_t ith, int64_t nth, atomic_llong *next);
    bool copies_only; /* it computes nothing, so the threads' floating-point modes do not matter */
} rapt_work;

/* One of the ways to run that rapt.h lists, with what its function was given. */
typedef struct rapt_way {
    enum { RAPT_WAY_ALONE, RAPT_WAY_PARALLEL, RAPT_WAY_SHARE, RAPT_WAY_PHASE } kind;
    int64_t ith, nth;
    int phase;
    rapt_parallel_for parallel_for;
    void *pool;
    rapt_barrier barrier;
    void *barrier_arg;
} rapt_way;

static inline rapt_way rapt_alone(void) { return (rapt_way){.kind = RAPT_WAY_ALONE, .nth = 1}; }
static inline rapt_way rapt_parallel(int64_t nth, rapt_parallel_for parallel_for, void *pool) {
    return (rapt_way){.kind = RAPT_WAY_PARALLEL, .nth = nth, .parallel_for = parallel_for, .pool = pool};
}
static inline rapt_way rapt_share(int64_t ith, int64_t nth, rapt_barrier barrier, void *barrier_arg) {
    return (rapt_way){.kind = RAPT_WAY_SHARE, .ith = ith, .nth = nth, .barrier = barrier, .barrier_arg = barrier_arg};
}
static inline rapt_way rapt_phase(int phase, int64_t ith, int64_t nth) {
    return (rapt_way){.kind = RAPT_WAY_PHASE, .ith = ith, .nth = nth, .phase = phase};
}

/* Runs work that way. Errors: NULL, RANGE, FLOAT_MODE. */
rapt_status rapt_work_run(rapt_report *r, const rapt_work *w, const rapt_way *way);

/* Part i of n parts of a range of elements, which come in whole units but for the last one. */
static inline void rapt_cut_range(int64_t elements, int64_t unit, int64_t i, int64_t n, int64_t *first, int64_t *count) {
    int64_t units = elements / unit + (elements % unit != 0), from = units / n * i + (i < units % n ? i : units % n);
    int64_t end = (from + units / n + (i < units % n)) * unit;
    *first = from * unit < elements ? from * unit : elements;
    *count = (end < elements ? end : elements) - *first;
}

#endif
