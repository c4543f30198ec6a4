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
} rapt_work;

rapt_status rapt_work_alone(const rapt_work *w); /* RAPT_OK */
rapt_status rapt_work_parallel(rapt_report *r, const rapt_work *w, int64_t nth, rapt_parallel_for parallel_for, void *pool);
rapt_status rapt_work_share(rapt_report *r, const rapt_work *w, int64_t ith, int64_t nth, rapt_barrier barrier,
                            void *barrier_arg);
rapt_status rapt_work_phase(rapt_report *r, const rapt_work *w, int phase, int64_t ith, int64_t nth);

/* Part i of n parts of a range of elements, which come in whole units but for the last one. */
static inline void rapt_cut_range(int64_t elements, int64_t unit, int64_t i, int64_t n, int64_t *first, int64_t *count) {
    int64_t units = elements / unit + (elements % unit != 0), from = units / n * i + (i < units % n ? i : units % n);
    int64_t end = (from + units / n + (i < units % n)) * unit;
    *first = from * unit < elements ? from * unit : elements;
    *count = (end < elements ? end : elements) - *first;
}

#endif
