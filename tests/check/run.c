/* SPDX-License-Identifier: Apache-2.0 */
/* One run of one kernel, by any of the library's ways, with every promise that can be checked around it. */
#define _DEFAULT_SOURCE
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "barrier.h"
#include "serial.h"

void *allocate(size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory) no_memory();
    return memory;
}

void *allocate_zeros(size_t n, size_t size) {
    void *memory = calloc(n, size);
    if (!memory) no_memory();
    return memory;
}

reference reference_of(const subject *s) {
    reference r;
    if (!reference_attention(&r, &s->desc, &s->args)) no_memory();
    return r;
}

/* ---- Threads ------------------------------------------------------------------------------------------------------------ */

typedef struct thread {
    rapt_thread id;
    rapt_body body;
    void *arg;
    int64_t i;
} thread;

static rapt_thread_end RAPT_THREAD_CALL thread_main(void *arg) {
    thread *t = arg;
    t->body(t->arg, t->i);
    return 0;
}

/* A rapt_parallel_for with a thread for each body. */
static void for_threads(void *pool, int64_t n, rapt_body body, void *arg) {
    (void)pool;
    thread *threads = allocate((size_t)n * sizeof *threads);
    for (int64_t i = 0; i < n; i++) {
        threads[i] = (thread){.body = body, .arg = arg, .i = i};
        if (!rapt_thread_start(&threads[i].id, thread_main, &threads[i])) {
            fprintf(stderr, "check: cannot start %d threads\n", (int)n);
            exit(2);
        }
    }
    for (int64_t i = 0; i < n; i++) rapt_thread_join(threads[i].id);
    free(threads);
}

typedef struct share {
    const rapt_plan *plan;
    const rapt_args *args;
    int64_t nth;
    barrier barrier;
    rapt_status status[64];
} share;

static void share_body(void *arg, int64_t i) {
    share *s = arg;
    s->status[i] = rapt_run_share(s->plan, s->args, i, s->nth, barrier_wait, &s->barrier);
}

static rapt_status run_share(const rapt_plan *plan, const rapt_args *args, int64_t nth) {
    share s = {.plan = plan, .args = args, .nth = nth};
    if (!barrier_create(&s.barrier, nth)) no_memory();
    for_threads(NULL, nth, share_body, &s);
    barrier_destroy(&s.barrier);
    for (int64_t i = 0; i < nth; i++)
        if (s.status[i] != RAPT_OK) return s.status[i];
    return RAPT_OK;
}

/* ---- Ways --------------------------------------------------------------------------------------------------------------- */

int64_t *shuffled(int64_t n, uint64_t *random) {
    int64_t *order = allocate((size_t)n * sizeof *order);
    for (int64_t i = 0; i < n; i++) {
        const int64_t j = draw_below(random, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    return order;
}

static rapt_status run_phases(const rapt_plan *plan, const rapt_plan_info *info, const rapt_args *args, how h) {
    rapt_status status = RAPT_OK;
    for (int phase = 0; phase < info->phases; phase++) {
        const int64_t n = h.way == WAY_TASKS ? info->tasks[phase] : h.nth;
        int64_t *order = shuffled(n, &h.random);
        for (int64_t i = 0; i < n && status == RAPT_OK; i++)
            status = h.way == WAY_TASKS ? rapt_run_task(plan, args, phase, order[i], draw_below(&h.random, h.nth))
                                        : rapt_run_phase(plan, args, phase, order[i], h.nth);
        free(order);
    }
    return status;
}

static rapt_status run_way(const rapt_plan *plan, const rapt_plan_info *info, const rapt_args *args, how h) {
    switch (h.way) {
    case WAY_TASKS:
    case WAY_PHASES:
        return run_phases(plan, info, args, h);
    case WAY_SERIAL:
        return rapt_run_parallel(plan, args, h.nth, serial, NULL);
    case WAY_PARALLEL:
        return rapt_run_parallel(plan, args, h.nth, for_threads, NULL);
    case WAY_SHARE:
        return run_share(plan, args, h.nth);
    default:
        return rapt_run(plan, args);
    }
}

how how_drawn(uint64_t *random) {
    static const int64_t counts[] = {1, 2, 3, 7, 64};
    how h = {.way = (way)draw_below(random, WAY_PARALLEL)};
    h.threads = DRAW_OF(random, counts);
    h.nth = DRAW_OF(random, counts);
    h.random = draw(random);
    if (draw_below(random, 2)) h.tuned = draw(random);
    return h;
}

/* ---- The run ------------------------------------------------------------------------------------------------------------ */

/* Exactly as much as the plan asks for, aligned as it must be, against one guard or the other where the size permits. */
static fence workspace_create(size_t bytes, uint64_t *random) {
    const size_t unit = RAPT_WORKSPACE_ALIGNMENT, aligned = (bytes + unit - 1) / unit * unit;
    fence f = fence_create(aligned, (int)draw_below(random, 2) - 1, 0);
    f.bytes = bytes;
    if (draw_below(random, 2)) {
        memset(f.data, 0xff, bytes);
    } else {
        for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
            const uint64_t drawn = draw(random);
            memcpy(f.data + i, &drawn, bytes - i < sizeof drawn ? bytes - i : sizeof drawn);
        }
    }
    return f;
}

int64_t subject_output_bytes(const subject *s) {
    const rapt_desc *d = &s->desc;
    const int64_t rows = reference_rows(d);
    const int64_t columns = d->scores_stage ? reference_columns(d) : 0;
    return rows * d->d_v * reference_type_bytes(d->o.type) + (d->lse.type ? rows * 4 : 0) + rows * columns * 4;
}

/* Moves the elements out and leaves canaries, so that what remains must be canaries. Of rows of scores, those that are written.
 */
static unsigned char *gather(unsigned char *to, const rapt_desc *d, const rapt_layout *l, unsigned char *base, int64_t channels) {
    const int64_t element = reference_type_bytes(l->type);
    for (int64_t b = 0; b < d->batch; b++) {
        int64_t first = 0, end = channels;
        if (l == &d->scores) reference_scored(d, b, &first, &end);
        const size_t before = (size_t)(first * element), bytes = (size_t)((end - first) * element);
        for (int64_t h = 0; h < d->heads; h++) {
            for (int64_t i = 0; i < reference_queries(d, b); i++) {
                unsigned char *row = reference_at(base, l, reference_query_batch(d, b), h, reference_query_token(d, b, i));
                memset(to, 0, (size_t)(channels * element));
                memcpy(to + before, row + before, bytes);
                memset(row + before, FENCE_CANARY, bytes);
                to += channels * element;
            }
        }
    }
    return to;
}

static bool plan_made(check *c, const subject *s, kernel *k, const how *h, rapt_plan *plan, rapt_plan_info *info) {
    rapt_desc desc = s->desc;
    desc.isa = k->name;
    desc.threads = h->threads;
    rapt_tuning tuning;
    if (h->tuned) tuning = tuning_of(k->name, h->tuned), desc.tuning = &tuning;
    rapt_status status = rapt_plan_init(plan, &desc);
    if (status == RAPT_OK) status = rapt_plan_query(plan, info);
    if (status != RAPT_OK) {
        check_fail(c, k, "no plan: %s", rapt_status_string(status));
        return false;
    }
    if (strcmp(info->isa, k->name) != 0 || strcmp(info->rounding, k->rounding) != 0) {
        check_fail(c, k, "the plan says %s (%s)", info->isa, info->rounding);
        return false;
    }
    if (!info->arith || strcmp(info->arith, desc.arith == RAPT_BF16_DOT   ? "bf16"
                                            : desc.arith == RAPT_INT8_DOT ? "int8"
                                                                          : "exact") != 0) {
        check_fail(c, k, "the plan's arithmetic is %s", info->arith ? info->arith : "null");
        return false;
    }
    const char *const paths[] = {"queries-in-lanes", "keys-in-lanes", "mixed"};
    int path = 0;
    while (path < LENGTH_OF(paths) && (!info->path || strcmp(info->path, paths[path]) != 0)) path++;
    if (path == LENGTH_OF(paths)) {
        check_fail(c, k, "the plan's path is %s", info->path ? info->path : "null");
        return false;
    }
    if (h->tuned) memset(&tuning, 0xff, sizeof tuning); /* the plan has a copy */
    if (path != 0) k->path_runs[1]++;
    if (path != 1) k->path_runs[0]++;
    return true;
}

bool subject_start(check *c, subject *s, kernel *k, const how *h, rapt_plan *plan) {
    check_step(c, k);
    rapt_plan_info info = {.size = sizeof info};
    if (!plan_made(c, s, k, h, plan, &info)) return false;
    size_t bytes = 0;
    rapt_status status = rapt_workspace_size(plan, h->way == WAY_RUN ? 1 : h->nth, &bytes);
    if (status != RAPT_OK || bytes != info.shared_bytes + (size_t)(h->way == WAY_RUN ? 1 : h->nth) * info.thread_bytes) {
        check_fail(c, k, "workspace of %zu bytes: %s", bytes, rapt_status_string(status));
        return false;
    }
    uint64_t random = h->random;
    fence workspace = workspace_create(bytes, &random);
    s->args.workspace = workspace.data;
    s->args.workspace_bytes = bytes;
    k->runs++;
    status = run_way(plan, &info, &s->args, *h);
    const bool workspace_intact = fence_slack_intact(&workspace);
    fence_destroy(&workspace);
    if (status == RAPT_OK && workspace_intact) return true;
    char text[SUBJECT_TEXT];
    subject_text(s, text, sizeof text);
    check_fail(c, k, "%s: %s", status != RAPT_OK ? rapt_status_string(status) : "wrote beyond the workspace", text);
    return false;
}

unsigned char *subject_finish(check *c, subject *s, kernel *k) {
    unsigned char *dense = allocate((size_t)subject_output_bytes(s));
    unsigned char *end = gather(dense, &s->desc, &s->desc.o, s->o.data, s->desc.d_v);
    if (s->desc.lse.type) end = gather(end, &s->desc, &s->desc.lse, s->lse.data, 1);
    if (s->desc.scores_stage) gather(end, &s->desc, &s->desc.scores, s->scores.data, reference_columns(&s->desc));
    if (fence_intact(&s->o) && (!s->desc.lse.type || fence_intact(&s->lse)) &&
        (!s->desc.scores_stage || fence_intact(&s->scores)))
        return dense;
    char text[SUBJECT_TEXT];
    subject_text(s, text, sizeof text);
    check_fail(c, k, "wrote between the elements of an output: %s", text);
    fence_fill(&s->o, FENCE_CANARY);
    if (s->desc.lse.type) fence_fill(&s->lse, FENCE_CANARY);
    if (s->desc.scores_stage) fence_fill(&s->scores, FENCE_CANARY);
    free(dense);
    return NULL;
}

unsigned char *subject_run(check *c, subject *s, kernel *k, const how *h) {
    rapt_plan plan;
    const bool done = subject_start(c, s, k, h, &plan);
    unsigned char *const dense = subject_finish(c, s, k);
    if (done) return dense;
    free(dense);
    return NULL;
}
