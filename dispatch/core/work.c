/* SPDX-License-Identifier: Apache-2.0 */
/* The ways to run a call. */
#include "core/work.h"

#include "core/float_modes.h"

/* Checks the calling thread's floating-point modes, unless the call only copies. Errors: FLOAT_MODE. */
static rapt_status check_floats(rapt_report *r, const rapt_work *w) { return w->copies_only ? RAPT_OK : rapt_check_floats(r); }

static rapt_status run_alone(rapt_report *r, const rapt_work *w) {
    const rapt_status status = check_floats(r, w);
    if (status != RAPT_OK) return status;
    for (int phase = 0; phase < w->phases; phase++) w->share(w->call, phase, 0, 1, NULL);
    return RAPT_OK;
}

/* A phase that parallel_for runs. */
typedef struct parallel_phase {
    const rapt_work *work;
    int phase;
    int64_t nth;
    atomic_llong next;
    atomic_llong refused; /* the control register of a thread whose modes were refused; NONE: there is no such thread */
} parallel_phase;

enum { NONE = -1 };

/* The body of parallel_for: runs a share. A thread whose floating-point modes are refused leaves its share undone. */
static void run_slot(void *arg, int64_t slot) {
    parallel_phase *p = arg;
    if (RAPT_CHECK_FP && !p->work->copies_only) {
        const uint64_t control = rapt_float_control();
        if (rapt_float_modes(control)) {
            atomic_store_explicit(&p->refused, (long long)control, memory_order_relaxed);
            return;
        }
    }
    p->work->share(p->work->call, p->phase, slot, p->nth, &p->next);
}

/* Runs each phase through parallel_for. Refuses the call if a thread's floating-point modes were refused. */
static rapt_status run_parallel(rapt_report *r, const rapt_work *w, const rapt_way *way) {
    if (!way->parallel_for) return rapt_refuse_null(r, "parallel_for", "there is nobody to run it");
    const rapt_status status = check_floats(r, w);
    if (status != RAPT_OK) return status;
    for (int phase = 0; phase < w->phases; phase++) {
        parallel_phase p = {.work = w, .phase = phase, .nth = way->nth};
        atomic_init(&p.next, 0);
        atomic_init(&p.refused, NONE);
        way->parallel_for(way->pool, way->nth, run_slot, &p);
        const long long control = atomic_load_explicit(&p.refused, memory_order_relaxed);
        if (control != NONE)
            return rapt_refuse_float_modes(r, RAPT_ERR_FLOAT_MODE, "a thread of parallel_for", (uint64_t)control);
    }
    return RAPT_OK;
}

/* Runs one thread's share of all phases. A thread whose floating-point modes are refused leaves its shares undone, but still
 * calls every barrier, since the other threads wait for it there. */
static rapt_status run_share(rapt_report *r, const rapt_work *w, const rapt_way *way) {
    if (w->phases > 1 && way->nth > 1 && !way->barrier)
        return rapt_refuse_null(r, "barrier", "the phases of several threads need one between them");
    const rapt_status status = check_floats(r, w);
    for (int phase = 0; phase < w->phases; phase++) {
        if (phase > 0 && way->barrier) way->barrier(way->barrier_arg);
        if (status == RAPT_OK) w->share(w->call, phase, way->ith, way->nth, NULL);
    }
    return status;
}

static rapt_status run_phase(rapt_report *r, const rapt_work *w, const rapt_way *way) {
    if (way->phase < 0 || way->phase >= w->phases)
        return rapt_refuse(r, RAPT_ERR_RANGE, "phase = %d: there are %d", way->phase, w->phases);
    const rapt_status status = check_floats(r, w);
    if (status == RAPT_OK) w->share(w->call, way->phase, way->ith, way->nth, NULL);
    return status;
}

rapt_status rapt_work_run(rapt_report *r, const rapt_work *w, const rapt_way *way) {
    if (way->kind == RAPT_WAY_ALONE) return run_alone(r, w);
    rapt_status status = rapt_check_thread(r, way->ith, way->nth);
    if (status != RAPT_OK) return status;
    if (way->kind == RAPT_WAY_PARALLEL) return run_parallel(r, w, way);
    return way->kind == RAPT_WAY_SHARE ? run_share(r, w, way) : run_phase(r, w, way);
}
