/* SPDX-License-Identifier: Apache-2.0 */
#include "work.h"

static rapt_status run_alone(const rapt_work *w) {
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

static rapt_status run_parallel(rapt_report *r, const rapt_work *w, const rapt_way *way) {
    if (!way->parallel_for) return rapt_refuse_null(r, "parallel_for", "there is nobody to run it");
    for (int phase = 0; phase < w->phases; phase++) {
        parallel_phase p = {.work = w, .phase = phase, .nth = way->nth};
        atomic_init(&p.next, 0);
        way->parallel_for(way->pool, way->nth, run_slot, &p);
    }
    return RAPT_OK;
}

static rapt_status run_share(rapt_report *r, const rapt_work *w, const rapt_way *way) {
    if (w->phases > 1 && way->nth > 1 && !way->barrier)
        return rapt_refuse_null(r, "barrier", "the phases of several threads need one between them");
    for (int phase = 0; phase < w->phases; phase++) {
        if (phase > 0 && way->barrier) way->barrier(way->barrier_arg);
        w->share(w->call, phase, way->ith, way->nth, NULL);
    }
    return RAPT_OK;
}

static rapt_status run_phase(rapt_report *r, const rapt_work *w, const rapt_way *way) {
    if (way->phase < 0 || way->phase >= w->phases)
        return rapt_refuse(r, RAPT_ERR_RANGE, "phase = %d: there are %d", way->phase, w->phases);
    w->share(w->call, way->phase, way->ith, way->nth, NULL);
    return RAPT_OK;
}

rapt_status rapt_work_run(rapt_report *r, const rapt_work *w, const rapt_way *way) {
    if (way->kind == RAPT_WAY_ALONE) return run_alone(w);
    rapt_status status = rapt_check_thread(r, way->ith, way->nth);
    if (status != RAPT_OK) return status;
    if (way->kind == RAPT_WAY_PARALLEL) return run_parallel(r, w, way);
    return way->kind == RAPT_WAY_SHARE ? run_share(r, w, way) : run_phase(r, w, way);
}
