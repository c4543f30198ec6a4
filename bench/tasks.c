/* SPDX-License-Identifier: Apache-2.0 */
/* rapt-tasks CASE BATCH TYPE THREADS...: how long each task of a call takes, for bench/scaling.py. CASE is one of P1 to P6 and D1
 * to D5 of cases.c, TYPE as in data.h. For each number of threads a plan is made, as its cut depends on them, and its tasks run
 * one after the other; K and V come from the caches where they fit. Prints a line for each:
 *
 *     threads bytes real seconds,seconds,...|seconds,...
 *
 * bytes: of Q, K, V and O. real: the median time of rapt_run_parallel on a pool of as many threads, 0 if the machine has fewer.
 * Then the seconds of each task, phases separated by "|". Of many tasks every nth is timed, and stands for those up to the next.
 */
#define _DEFAULT_SOURCE /* sysconf's _SC_NPROCESSORS_ONLN */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "data.h"
#include "rapt_pool.h"

enum { TURNS = 3, MOST_TIMED = 400 };

typedef struct task_case {
    const char *name;
    int64_t heads, kv_heads, q_len, kv_len, d;
    rapt_causal causal;
} task_case;

static const task_case cases[] = {
    {"P1", 12, 12, 128, 128, 64, RAPT_CAUSAL_NONE},
    {"P2", 12, 12, 512, 512, 64, RAPT_CAUSAL_NONE},
    {"P3", 32, 8, 1024, 1024, 128, RAPT_CAUSAL_BOTTOM_RIGHT},
    {"P4", 8, 8, 4096, 4096, 64, RAPT_CAUSAL_BOTTOM_RIGHT},
    {"P5", 8, 8, 4096, 4096, 128, RAPT_CAUSAL_NONE},
    {"P6", 32, 8, 256, 4096, 128, RAPT_CAUSAL_BOTTOM_RIGHT},
    {"D1", 32, 8, 1, 4096, 128, RAPT_CAUSAL_NONE},
    {"D2", 32, 8, 1, 32768, 128, RAPT_CAUSAL_NONE},
    {"D3", 32, 32, 1, 4096, 128, RAPT_CAUSAL_NONE},
    {"D4", 8, 1, 1, 8192, 256, RAPT_CAUSAL_NONE},
    {"D5", 32, 8, 8, 4096, 128, RAPT_CAUSAL_BOTTOM_RIGHT},
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_size(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static void *filled(rapt_type type, int64_t elements, uint32_t seed) {
    const size_t bytes = ((size_t)elements * 4 + 4095) / 4096 * 4096;
    char *memory = aligned_alloc(4096, bytes);
    if (!memory) exit(2);
    const size_t some = bytes < 1 << 22 ? bytes : 1 << 22; /* the same values again and again */
    bench_fill(memory, type, some, seed);
    for (size_t at = some; at < bytes; at += some) memcpy(memory + at, memory, bytes - at < some ? bytes - at : some);
    return memory;
}

/* Returns the seconds of a task, the least of some turns. */
static double time_task(const rapt_plan *plan, const rapt_args *args, int phase, int64_t task) {
    double least = 1e9;
    for (int i = 0; i < TURNS; i++) {
        const double start = now();
        rapt_run_task(plan, args, phase, task, 0);
        const double seconds = now() - start;
        if (seconds < least) least = seconds;
    }
    return least;
}

/* Returns the median seconds of rapt_run_parallel on a pool. */
static double time_pool(const rapt_plan *plan, const rapt_args *args, int64_t threads) {
    double seconds[2 * TURNS + 1];
    rapt_pool *pool = rapt_pool_create(threads);
    if (!pool) return 0.0;
    for (int i = 0; i <= 2 * TURNS; i++) {
        const double start = now();
        rapt_run_parallel(plan, args, threads, rapt_pool_for, pool);
        seconds[i] = now() - start;
    }
    rapt_pool_destroy(pool);
    qsort(seconds, 2 * TURNS + 1, sizeof *seconds, by_size);
    return seconds[TURNS];
}

int main(int argc, char **argv) {
    const task_case *c = NULL;
    const bench_type *type = NULL;
    int count;
    const bench_type *types = bench_types(&count);
    for (size_t i = 0; argc > 4 && i < sizeof cases / sizeof *cases; i++)
        if (strcmp(argv[1], cases[i].name) == 0) c = &cases[i];
    for (int i = 0; argc > 4 && i < count; i++)
        if (strcmp(argv[3], types[i].name) == 0) type = &types[i];
    const int64_t batch = argc > 4 ? atoi(argv[2]) : 0;
    if (!c || !type || batch < 1) {
        fprintf(stderr, "usage: rapt-tasks CASE BATCH TYPE THREADS...\n");
        return 2;
    }
    const int64_t of_q = batch * c->heads * c->q_len * c->d, of_k = batch * c->kv_heads * c->kv_len * c->d;
    void *q = filled(type->q, of_q, 1), *k = filled(type->kv, of_k, 2), *v = filled(type->kv, of_k, 3),
         *o = filled(type->q, of_q, 4);
    for (int i = 4; i < argc; i++) {
        const int64_t threads = atoi(argv[i]);
        rapt_desc desc;
        rapt_desc_init(&desc);
        desc.batch = batch, desc.heads = c->heads, desc.kv_heads = c->kv_heads, desc.q_len = c->q_len, desc.kv_len = c->kv_len;
        desc.d_k = desc.d_v = c->d, desc.causal = c->causal, desc.arith = type->arith, desc.threads = threads;
        desc.q = desc.o = rapt_layout_bhsd(type->q, c->heads, c->q_len, c->d);
        desc.k = desc.v = rapt_layout_bhsd(type->kv, c->kv_heads, c->kv_len, c->d);
        rapt_plan plan;
        rapt_plan_info info = {.size = sizeof info};
        size_t bytes = 0;
        if (rapt_plan_init(&plan, &desc) || rapt_plan_query(&plan, &info) || rapt_workspace_size(&plan, threads, &bytes))
            return 2;
        rapt_args args;
        rapt_args_init(&args);
        args.q = q, args.k = k, args.v = v, args.o = o, args.workspace_bytes = bytes;
        args.workspace =
            aligned_alloc(RAPT_WORKSPACE_ALIGNMENT, (bytes / RAPT_WORKSPACE_ALIGNMENT + 1) * RAPT_WORKSPACE_ALIGNMENT);
        if (!args.workspace || rapt_run(&plan, &args)) return 2;
        const double moved = (double)(rapt_row_bytes(type->q, c->d) * 2 * batch * c->heads * c->q_len +
                                      rapt_row_bytes(type->kv, c->d) * 2 * batch * c->kv_heads * c->kv_len);
        printf("%d %.0f %.9f ", (int)threads, moved,
               threads <= sysconf(_SC_NPROCESSORS_ONLN) ? time_pool(&plan, &args, threads) : 0.0);
        for (int phase = 0; phase < info.phases; phase++) {
            const int64_t every = info.tasks[phase] / MOST_TIMED + 1;
            double seconds = 0.0;
            for (int64_t task = 0; task < info.tasks[phase]; task++) {
                if (task % every == 0) seconds = time_task(&plan, &args, phase, task);
                printf("%s%.9f", task ? "," : phase ? "|" : "", seconds);
            }
        }
        printf("\n");
        fflush(stdout);
        free(args.workspace);
    }
    free(q), free(k), free(v), free(o);
    return 0;
}
