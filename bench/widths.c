/* SPDX-License-Identifier: Apache-2.0 */
/* rapt-widths [--all] [KERNEL...], rapt-widths --run|--count KERNEL TYPE ROWS WIDTH: looks for widths of a head that cost more
 * than they should. For each kernel that can run here (or those named), type of K and V, and 1, 4, 8 and 40 query rows of a
 * key/value head, each width d from 33 to 257 is timed beside the next multiple of 16, in turns, on keys that stay in the cache.
 * Prints a line for each kernel, type and number of rows: the largest ratio of their times, and where it is; with --all, also
 * every ratio above the limit. The exit status is 1 if one exceeds the limit.
 *
 * --run runs one problem three times, for tools that count instructions. --count prints those of one call of it, with one
 * key/value head: a child process runs it step by step, which takes 30 us each on a virtual machine, and is for kernels that no
 * such tool knows.
 *
 * A width takes as many operations as its share of the next multiple, so a ratio of 1 is already some loss. The medians of 5
 * turns are compared, and what exceeds the limit is timed again, up to 4 times, since another program may have interfered. */
#define _DEFAULT_SOURCE /* pid_t */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

#include "data.h"
#include "timing.h"

enum { FIRST = 33, LAST = 257, KEYS = 256, KV_HEADS = 2, MOST_ROWS = 40, TURNS = 5, AGAIN = 4, WIDEST = 272 };

#define LIMIT 1.15

typedef struct subject {
    rapt_plan plan;
    rapt_args args;
    int calls; /* how often it runs in a turn */
} subject;

static char q[KV_HEADS * MOST_ROWS * WIDEST * 4], o[sizeof q], k[KV_HEADS * KEYS * WIDEST * 4], v[sizeof k];
static float scales[KV_HEADS * KEYS];

/* Plans a problem. Returns false if the type has no such width, which is one with groups. */
static bool make_subject(subject *s, const char *isa, const bench_type *type, int kv_heads, int rows, int d) {
    rapt_desc desc;
    rapt_desc_init(&desc);
    desc.isa = isa, desc.arith = type->arith;
    desc.heads = (int64_t)kv_heads * rows, desc.kv_heads = kv_heads, desc.q_len = 1, desc.kv_len = KEYS, desc.d_k = desc.d_v = d;
    desc.q = desc.o = rapt_layout_bhsd(type->q, desc.heads, 1, d);
    desc.k = desc.v = rapt_layout_bhsd(type->kv, kv_heads, KEYS, d);
    if (type->scaled) desc.k_scales = desc.v_scales = (rapt_scales){1, 0, KEYS * sizeof *scales, sizeof *scales, 0};
    if (rapt_plan_init(&s->plan, &desc) != RAPT_OK) return false;
    rapt_args_init(&s->args);
    s->args.q = q, s->args.k = k, s->args.v = v, s->args.o = o;
    if (type->scaled) s->args.k_scales = s->args.v_scales = scales;
    s->calls = 1;
    return bench_workspace(&s->plan, 1, &s->args);
}

/* Returns the seconds of a call. */
static double turn(const subject *s) {
    const double start = bench_now();
    for (int i = 0; i < s->calls; i++) rapt_run(&s->plan, &s->args);
    return (bench_now() - start) / s->calls;
}

/* Returns the time of a beside that of b. */
static double ratio_of(subject *a, subject *b) {
    double ratios[TURNS];
    a->calls = b->calls = 1;
    turn(a), turn(b);
    a->calls = b->calls = 1 + (int)(60e-6 / turn(b));
    for (int i = 0; i < TURNS; i++) {
        const double of_a = turn(a);
        ratios[i] = of_a / turn(b);
    }
    return bench_median(ratios, TURNS);
}

/* Sweeps the widths; returns the largest ratio, and sets *at to its width, 0 if the type has none that is no multiple of 16. */
static double sweep(const char *isa, const bench_type *type, int rows, bool all, int *at) {
    double worst = 0.0;
    *at = 0;
    for (int d = FIRST; d <= LAST; d++) {
        static subject of_d, of_next;
        if (d % 16 == 0 || !make_subject(&of_d, isa, type, KV_HEADS, rows, d)) continue;
        if (make_subject(&of_next, isa, type, KV_HEADS, rows, d + 16 - d % 16)) {
            double ratio = INFINITY;
            for (int i = 0; i < AGAIN && ratio > LIMIT; i++) ratio = fmin(ratio, ratio_of(&of_d, &of_next));
            if (ratio > worst) worst = ratio, *at = d;
            if (all && ratio > LIMIT) printf("    %s, %s, %d rows, %d channels: %.2f\n", isa, type->name, rows, d, ratio);
            free(of_next.args.workspace);
        }
        free(of_d.args.workspace);
    }
    return worst;
}

#ifdef __linux__
/* Returns the number of instructions that a child process executes while it runs the subject, or nothing if `s` is null; -1 if
 * processes cannot be traced. */
static long steps_of(const subject *s) {
    const pid_t child = fork();
    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) _exit(1);
        raise(SIGSTOP);
        if (s) rapt_run(&s->plan, &s->args);
        raise(SIGSTOP);
        _exit(0);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) return -1;
    long steps = 0;
    while (ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) == 0 && waitpid(child, &status, 0) == child && WIFSTOPPED(status) &&
           WSTOPSIG(status) == SIGTRAP)
        steps++;
    const bool ended = WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP;
    kill(child, SIGKILL), waitpid(child, &status, 0);
    return ended && steps > 0 ? steps : -1; /* none: the kernel has no single steps */
}
#else
static long steps_of(const subject *s) { return (void)s, -1; }
#endif

/* Prints the instructions of a call; returns the exit status. */
static int count(const subject *s) {
    turn(s); /* the first call finds functions of other libraries */
    const long none = steps_of(NULL), all = steps_of(s);
    if (none < 0 || all < 0) return fprintf(stderr, "rapt-widths: no process can be traced here\n"), 3;
    printf("%ld\n", all - none);
    return 0;
}

/* Runs a problem three times, or counts its instructions; returns the exit status. */
static int one(const char *how, const char *isa, const char *type, int rows, int d) {
    static subject s;
    const bool counted = strcmp(how, "--count") == 0;
    int n, i = 0;
    const bench_type *types = bench_types(&n);
    while (i < n && strcmp(types[i].name, type) != 0) i++;
    if (rapt_isa_usable(isa, NULL, 0) == RAPT_ERR_ISA_MISSING)
        return fprintf(stderr, "rapt-widths: no kernel %s can run here\n", isa), 3;
    if (i == n || rows < 1 || rows > MOST_ROWS || d < 1 || d > WIDEST ||
        !make_subject(&s, isa, &types[i], counted ? 1 : KV_HEADS, rows, d)) {
        fprintf(stderr, "rapt-widths: no such problem: %s, %s, %d rows, %d channels\n", isa, type, rows, d);
        return 2;
    }
    s.calls = counted ? 1 : 3;
    const int status = counted ? count(&s) : (turn(&s), 0);
    free(s.args.workspace);
    return status;
}

int main(int argc, char **argv) {
    if (argc == 6 && (strcmp(argv[1], "--run") == 0 || strcmp(argv[1], "--count") == 0))
        return one(argv[1], argv[2], argv[3], atoi(argv[4]), atoi(argv[5]));
    static const int rows_of[] = {1, 4, 8, MOST_ROWS};
    const bool all = argc > 1 && strcmp(argv[1], "--all") == 0;
    const int first = all ? 2 : 1;
    int exceeded = 0, count;
    const bench_type *types = bench_types(&count);
    for (int i = first; i < argc; i++)
        if (rapt_isa_usable(argv[i], NULL, 0) != RAPT_OK) {
            fprintf(stderr, "rapt-widths: no kernel %s can run here\n", argv[i]);
            return 2;
        }
    bench_fill((char *)scales, RAPT_F32, sizeof scales, 4);
    const char *isa;
    for (int i = 0; (isa = first < argc ? (i < argc - first ? argv[first + i] : NULL) : rapt_isa_name(i)); i++) {
        if (rapt_isa_usable(isa, NULL, 0) != RAPT_OK) continue;
        for (int t = 0; t < count; t++) {
            bench_fill(q, types[t].q, sizeof q, 1), bench_fill(k, types[t].kv, sizeof k, 2),
                bench_fill(v, types[t].kv, sizeof v, 3);
            for (size_t r = 0; r < sizeof rows_of / sizeof *rows_of; r++) {
                int at;
                const double worst = sweep(isa, &types[t], rows_of[r], all, &at);
                if (at == 0) continue;
                printf("%s %-12s %-14s %2d rows: at most %.2f, at %d channels\n", worst > LIMIT ? "not ok" : "ok    ", isa,
                       types[t].name, rows_of[r], worst, at);
                fflush(stdout);
                exceeded += worst > LIMIT;
            }
        }
    }
    printf("%d exceed %.2f\n", exceeded, LIMIT);
    return exceeded > 0;
}
