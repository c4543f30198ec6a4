/* SPDX-License-Identifier: Apache-2.0 */
/* The ways to run a call that has been checked. Its work comes in phases, and threads share each phase. */
#ifndef RAPT_WORK_H
#define RAPT_WORK_H

#include <stdatomic.h>

#include "core/report.h"

/* The work of a call. */
typedef struct rapt_work {
    const void *call; /* is passed to share */
    int phases;
    /* Runs thread ith's share of a phase. next: a counter that threads share, the first task that none of them has taken, by
     * which a phase may hand out its tasks as threads become free; null: there is no such counter. */
    void (*share)(const void *call, int phase, int64_t ith, int64_t nth, atomic_llong *next);
    bool copies_only; /* the call only copies bytes, so the threads' floating-point modes do not matter */
} rapt_work;

/* One of the ways to run that rapt.h lists, with the arguments of its function. */
typedef struct rapt_way {
    enum { RAPT_WAY_ALONE, RAPT_WAY_PARALLEL, RAPT_WAY_SHARE, RAPT_WAY_PHASE } kind;
    int64_t ith, nth;
    int phase;
    rapt_parallel_for parallel_for;
    void *pool;
    rapt_barrier barrier;
    void *barrier_arg;
} rapt_way;

/* Returns the way of X_run. */
static inline rapt_way rapt_alone(void) { return (rapt_way){.kind = RAPT_WAY_ALONE, .nth = 1}; }

/* Returns the way of X_run_parallel. */
static inline rapt_way rapt_parallel(int64_t nth, rapt_parallel_for parallel_for, void *pool) {
    return (rapt_way){.kind = RAPT_WAY_PARALLEL, .nth = nth, .parallel_for = parallel_for, .pool = pool};
}

/* Returns the way of X_run_share; barrier is null where the function takes none. */
static inline rapt_way rapt_share(int64_t ith, int64_t nth, rapt_barrier barrier, void *barrier_arg) {
    return (rapt_way){.kind = RAPT_WAY_SHARE, .ith = ith, .nth = nth, .barrier = barrier, .barrier_arg = barrier_arg};
}

/* Returns the way of X_run_phase. */
static inline rapt_way rapt_phase(int phase, int64_t ith, int64_t nth) {
    return (rapt_way){.kind = RAPT_WAY_PHASE, .ith = ith, .nth = nth, .phase = phase};
}

/* Runs the work in that way. Errors: NULL, RANGE, FLOAT_MODE. */
rapt_status rapt_work_run(rapt_report *r, const rapt_work *w, const rapt_way *way);

/* Cuts `elements` elements into n parts of whole units, as equal as possible; the last unit may be incomplete. Sets *first and
 * *count to part i. */
static inline void rapt_cut_range(int64_t elements, int64_t unit, int64_t i, int64_t n, int64_t *first, int64_t *count) {
    int64_t units = elements / unit + (elements % unit != 0), from = units / n * i + (i < units % n ? i : units % n);
    int64_t end = (from + units / n + (i < units % n)) * unit;
    *first = from * unit < elements ? from * unit : elements;
    *count = (end < elements ? end : elements) - *first;
}

#endif
