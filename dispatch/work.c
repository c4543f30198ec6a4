/* SPDX-License-Identifier: Apache-2.0 */
#include "work.h"

rapt_status rapt_work_alone(const rapt_work *w) {
    for (int phase = 0; phase < w->phases; phase++) w->share(w->call, phase, 0, 1, NULL);
    return RAPT_OK;
}

typedef struct parallel_phase {
    const rapt_work *work;
    int phase;
    int64_t nth;
    atomic_llong next;
} parallel_phase;

static void run_slot(void *arg, int64_t slot) {
    parallel_phase *p = arg;
    p->work->share(p->work->call, p->phase, slot, p->nth, &p->next);
}

rapt_status rapt_work_parallel(rapt_report *r, const rapt_work *w, int64_t nth, rapt_parallel_for parallel_for, void *pool) {
    rapt_status status = rapt_check_thread(r, 0, nth);
    if (status != RAPT_OK) return status;
    if (!parallel_for) return rapt_refuse_null(r, "parallel_for", "there is nobody to run it");
    for (int phase = 0; phase < w->phases; phase++) {
        parallel_phase p = {.work = w, .phase = phase, .nth = nth};
        atomic_init(&p.next, 0);
        parallel_for(pool, nth, run_slot, &p);
    }
    return RAPT_OK;
}

rapt_status rapt_work_share(rapt_report *r, const rapt_work *w, int64_t ith, int64_t nth, rapt_barrier barrier,
                            void *barrier_arg) {
    rapt_status status = rapt_check_thread(r, ith, nth);
    if (status != RAPT_OK) return status;
    if (w->phases > 1 && nth > 1 && !barrier)
        return rapt_refuse_null(r, "barrier", "the phases of several threads need one between them");
    for (int phase = 0; phase < w->phases; phase++) {
        if (phase > 0 && barrier) barrier(barrier_arg);
        w->share(w->call, phase, ith, nth, NULL);
    }
    return RAPT_OK;
}

rapt_status rapt_work_phase(rapt_report *r, const rapt_work *w, int phase, int64_t ith, int64_t nth) {
    rapt_status status = rapt_check_thread(r, ith, nth);
    if (status != RAPT_OK) return status;
    if (phase < 0 || phase >= w->phases) return rapt_refuse(r, RAPT_ERR_RANGE, "phase = %d: there are %d", phase, w->phases);
    w->share(w->call, phase, ith, nth, NULL);
    return RAPT_OK;
}
