/* SPDX-License-Identifier: Apache-2.0 */
/* rapt-tasks [--work | --pools] CASE BATCH TYPE THREADS...: how long each task of a call takes, for bench/scaling.py. CASE is one
 * of P1 to P6 and D1 to D6 of cases.c (whose D6 has a batch of 32), TYPE as in data.h. For each number of threads a plan is made,
 * as its cut depends on them, and its tasks run one after the other; K and V come from the caches where they fit. Prints a line
 * for each:
 *
 *     threads bytes real seconds,seconds,...|seconds,...
 *
 * bytes: of Q, K, V and O. real: the median time of rapt_run_parallel on a pool of as many threads, 0 if the machine has fewer;
 * of long calls, of fewer of them. Then the seconds of each task, phases separated by "|". Of many tasks every nth is timed, and
 * stands for those up to the next.
 *
 * With --work, it prints in place of seconds how many pairs of a query and a key each task computes, which are the same each
 * time; none in the second phase.
 *
 * With --pools, calls on pools of these numbers of threads, which may be more than the machine has, take turns; each line is
 * the number of threads and the median time.
 */
#define _DEFAULT_SOURCE /* sysconf's _SC_NPROCESSORS_ONLN */

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data.h"
#include "rapt_pool.h"
#include "timing.h"

#define ENOUGH 4.0 /* seconds of calls on a pool, after which no other is timed */

enum { TURNS = 3, MOST_TIMED = 400, MOST_POOLS = 8, POOL_TURNS = 31 };

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
    {"D6", 32, 8, 1, 1024, 128, RAPT_CAUSAL_NONE},
};

static void *filled(rapt_type type, int64_t elements, uint32_t seed) {
    const size_t bytes = ((size_t)elements * 4 + 4095) / 4096 * 4096;
    char *memory = aligned_alloc(4096, bytes);
    if (!memory) exit(2);
    const size_t some = bytes < 1 << 22 ? bytes : 1 << 22; /* the same values again and again */
    bench_fill(memory, type, some, seed);
    for (size_t at = some; at < bytes; at += some) memcpy(memory + at, memory, bytes - at < some ? bytes - at : some);
    return memory;
}

/* Counts pairs of a query and a key (rapt_logits_body). */
static void count_pairs(void *pairs, const rapt_logits *l) { *(double *)pairs += (double)l->rows * (double)l->keys; }

/* Returns the seconds of a task, the least of some turns, in which other programs do not count; or its pairs, if they are
 * counted.
 */
static double time_task(const rapt_plan *plan, const rapt_args *args, int phase, int64_t task) {
    double least = 1e9, *const pairs = args->logits_arg;
    if (pairs) {
        *pairs = 0.0;
        if (rapt_run_task(plan, args, phase, task, 0)) exit(2);
        return *pairs;
    }
    for (int i = 0; i < TURNS; i++) {
        const double start = bench_thread_now();
        if (rapt_run_task(plan, args, phase, task, 0)) exit(2);
        const double seconds = bench_thread_now() - start;
        if (seconds < least) least = seconds;
    }
    return least;
}

/* A call on a number of threads. */
typedef struct prepared {
    rapt_plan plan;
    rapt_args args;
    rapt_plan_info info;
    rapt_pool *pool; /* of as many threads, or null */
    int64_t threads;
} prepared;

static double time_call(const prepared *p) {
    const double start = bench_now();
    if (rapt_run_parallel(&p->plan, &p->args, p->threads, rapt_pool_for, p->pool)) exit(2);
    return bench_now() - start;
}

/* Makes the plan, and creates the pool if `pooled`. Ends the program if something fails. */
static void prepare(prepared *p, const task_case *c, int64_t batch, const bench_type *type, int64_t threads, bool pooled,
                    const rapt_args *tensors) {
    rapt_desc desc;
    rapt_desc_init(&desc);
    desc.batch = batch, desc.heads = c->heads, desc.kv_heads = c->kv_heads, desc.q_len = c->q_len, desc.kv_len = c->kv_len;
    desc.d_k = desc.d_v = c->d, desc.causal = c->causal, desc.arith = type->arith, desc.threads = threads;
    if (tensors->logits_arg) desc.logits_body = count_pairs;
    desc.q = desc.o = rapt_layout_bhsd(type->q, c->heads, c->q_len, c->d);
    desc.k = desc.v = rapt_layout_bhsd(type->kv, c->kv_heads, c->kv_len, c->d);
    *p = (prepared){.args = *tensors, .info = {.size = sizeof p->info}, .threads = threads};
    if (rapt_plan_init(&p->plan, &desc) || rapt_plan_query(&p->plan, &p->info)) exit(2);
    if (pooled) p->pool = rapt_pool_create(threads);
    if (!bench_workspace(&p->plan, threads, &p->args) || (pooled && !p->pool)) exit(2);
}

static void release(prepared *p) {
    rapt_pool_destroy(p->pool);
    free(p->args.workspace);
}

/* Prints the line of the tasks of one number of threads. */
static void print_tasks(const prepared *p, double moved) {
    double seconds[2 * TURNS + 1], real = 0.0, all = 0.0;
    int calls = 0;
    for (; calls <= 2 * TURNS && p->pool && all < ENOUGH; calls++) all += seconds[calls] = time_call(p);
    if (p->pool) real = bench_median(seconds, calls);
    printf("%d %.0f %.9f ", (int)p->threads, moved, real);
    for (int phase = 0; phase < p->info.phases; phase++) {
        const int64_t every = p->args.logits_arg ? 1 : p->info.tasks[phase] / MOST_TIMED + 1;
        double of_task = 0.0;
        for (int64_t task = 0; task < p->info.tasks[phase]; task++) {
            if (task % every == 0) of_task = time_task(&p->plan, &p->args, phase, task);
            printf("%s%.9f", task ? "," : phase ? "|" : "", of_task);
        }
    }
    printf("\n");
    fflush(stdout);
}

/* Prints the median time of each call, all in turns. */
static void print_pools(prepared *calls, int n) {
    double seconds[MOST_POOLS][POOL_TURNS];
    for (int turn = 0; turn < POOL_TURNS; turn++)
        for (int i = 0; i < n; i++) seconds[i][turn] = time_call(&calls[i]);
    for (int i = 0; i < n; i++) printf("%d %.9f\n", (int)calls[i].threads, bench_median(seconds[i], POOL_TURNS));
}

int main(int argc, char **argv) {
    const bool pools = argc > 1 && strcmp(argv[1], "--pools") == 0, work = argc > 1 && strcmp(argv[1], "--work") == 0;
    if (pools || work) argc--, argv++;
    const task_case *c = NULL;
    const bench_type *type = NULL;
    int count;
    const bench_type *types = bench_types(&count);
    for (size_t i = 0; argc > 4 && i < sizeof cases / sizeof *cases; i++)
        if (strcmp(argv[1], cases[i].name) == 0) c = &cases[i];
    for (int i = 0; argc > 4 && i < count; i++)
        if (strcmp(argv[3], types[i].name) == 0) type = &types[i];
    const int64_t batch = argc > 4 ? atoi(argv[2]) : 0;
    bool sound = c && type && batch >= 1 && (!pools || argc - 4 <= MOST_POOLS);
    for (int i = 4; i < argc; i++) sound = sound && atoi(argv[i]) >= 1;
    if (!sound) {
        fprintf(stderr, "usage: rapt-tasks [--work | --pools] CASE BATCH TYPE THREADS...\n");
        return 2;
    }
    const int64_t of_q = batch * c->heads * c->q_len * c->d, of_k = batch * c->kv_heads * c->kv_len * c->d;
    void *q = filled(type->q, of_q, 1), *k = filled(type->kv, of_k, 2), *v = filled(type->kv, of_k, 3),
         *o = filled(type->q, of_q, 4);
    const double moved = (double)(rapt_row_bytes(type->q, c->d) * 2 * batch * c->heads * c->q_len +
                                  rapt_row_bytes(type->kv, c->d) * 2 * batch * c->kv_heads * c->kv_len);
    rapt_args tensors;
    rapt_args_init(&tensors);
    tensors.q = q, tensors.k = k, tensors.v = v, tensors.o = o;
    double pairs = 0.0;
    if (work) tensors.logits_arg = &pairs;
    static prepared calls[MOST_POOLS];
    for (int i = 4; i < argc; i++) {
        const int64_t threads = atoi(argv[i]);
        prepared *p = &calls[pools ? i - 4 : 0];
        prepare(p, c, batch, type, threads, pools || (!work && threads <= sysconf(_SC_NPROCESSORS_ONLN)), &tensors);
        if (pools) continue;
        print_tasks(p, moved);
        release(p);
    }
    if (pools) {
        print_pools(calls, argc - 4);
        for (int i = 4; i < argc; i++) release(&calls[i - 4]);
    }
    free(q), free(k), free(v), free(o);
    return 0;
}
