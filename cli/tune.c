/* SPDX-License-Identifier: Apache-2.0 */
/* rapt tune: searches for the numbers of a rapt_tuning with which a kernel is fastest on this machine, one number after the
 * other. */
#define _POSIX_C_SOURCE 200112L
#include "aligned.h"
#include "cli.h"
#include "clock.h"
#include "measure.h"
#include "rapt_layer.h"
#include "rapt_pool.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if !defined(__wasi__)
#include <signal.h>
#endif

#define CLI_TUNE "rapt tune"

static const char help[] =
    "usage: rapt tune [options]\n"
    "\n"
    "Searches for the tuning (the numbers by which work is cut: rapt_tuning in rapt.h) with which a kernel is fastest here.\n"
    "Calls with one number changed are timed in turns with unchanged calls. These are also timed against themselves, which\n"
    "gives the spread. A change that gains more than the spread is kept, unless it slows one of the cases by more than that\n"
    "case's own spread. All must give the same bits. It uses all of the time given, since longer comparisons have a smaller\n"
    "spread, and reports progress on standard error. The best tuning is printed, for rapt run --tuning, rapt_tuning_parse, or\n"
    "attention(tuning=...) in Python: the kernel's name alone where its own numbers are the best. After SIGINT (Ctrl-C) or\n"
    "SIGTERM the best so far is printed, and the exit status is 130 or 143.\n"
    "\n"
    "  --isa NAME        the kernel; see rapt info (default: $RAPT_ISA, or the best one that can run here)\n"
    "  --threads N       how many threads share each call, 1 to 1024 (default 1)\n"
    "  --seconds N       how long to look, 1 to 86400 (default 60); preparing the cases, which takes 300 MB, comes before\n"
    "  --cases NAME,...  which to time: prefill, prefill-bf16, ragged; few-8, few-12, few-16 (rows of a key/value head);\n"
    "                    decode, decode-int8 (where a kernel has another way for few rows); linear-1, linear-1-short,\n"
    "                    linear-8, linear-16, linear-32, linear-256, linear-bf16-8, linear-bf16-16 (tokens). A name may\n"
    "                    have wildcards: 'linear-*' is all of them, ? one character (default: all)\n"
    "  --quiet           say nothing on standard error but errors\n"
    "  -h, --help        print this\n";

/* ---- Cases --------------------------------------------------------------------------------------------------------------- */

/* A problem that is timed: attention, or a linear layer if out is not 0. */
typedef struct tune_case {
    const char *name;
    int64_t batch; /* above 1: entries of a ragged batch, each with one query and key more than the one before */
    int64_t heads, kv_heads, queries, keys, d;
    int64_t tokens, in, out;
    rapt_type type; /* of K and V, or of the weights */
    rapt_arith arith;
    bool cold; /* K and V, or the weights, come from memory rather than from a cache */
} tune_case;

/* For numbers that are thresholds (few_rows, few_tokens, ...), there is a case at each value that is tried. */
#define FEW(rows)    .batch = 1, .heads = 8, .kv_heads = 2, .queries = (rows) / 4, .keys = 2048, .d = 128, .type = RAPT_BF16
#define DECODE       .batch = 1, .heads = 16, .kv_heads = 8, .queries = 1, .keys = 4096, .d = 128, .cold = true
#define PREFILL      .batch = 1, .heads = 8, .kv_heads = 2, .queries = 500, .keys = 1024, .d = 64
#define LINEAR(many) .tokens = many, .in = 1024, .out = 1024
static const tune_case cases[] = {
    {.name = "prefill", PREFILL, .type = RAPT_F32},
    {.name = "prefill-bf16", PREFILL, .type = RAPT_BF16, .arith = RAPT_BF16_DOT},
    {.name = "ragged", .batch = 16, .heads = 8, .kv_heads = 8, .queries = 61, .keys = 61, .d = 64, .type = RAPT_F32},
    {.name = "few-8", FEW(8)},
    {.name = "few-12", FEW(12)},
    {.name = "few-16", FEW(16)},
    {.name = "decode", DECODE, .type = RAPT_BF16},
    {.name = "decode-int8", DECODE, .type = RAPT_INT8, .arith = RAPT_INT8_DOT},
    {.name = "linear-1", .tokens = 1, .in = 4096, .out = 4096, .type = RAPT_BF16, .cold = true},
    {.name = "linear-1-short", .tokens = 1, .in = 768, .out = 3072, .type = RAPT_F32, .cold = true},
    {.name = "linear-8", LINEAR(8), .type = RAPT_F32},
    {.name = "linear-16", LINEAR(16), .type = RAPT_F32},
    {.name = "linear-32", LINEAR(32), .type = RAPT_F32},
    {.name = "linear-256", LINEAR(256), .type = RAPT_F32},
    {.name = "linear-bf16-8", LINEAR(8), .type = RAPT_BF16, .arith = RAPT_BF16_DOT},
    {.name = "linear-bf16-16", LINEAR(16), .type = RAPT_BF16, .arith = RAPT_BF16_DOT},
};
enum { CASES = sizeof cases / sizeof *cases, COLD_BYTES = 64 << 20, MOST_BATCH = 16 };

/* A number of a rapt_tuning, the cases that it affects, and the values to try. */
#define NUMBER(name) #name, offsetof(rapt_tuning, name)
static const struct number {
    const char *name;
    size_t at;         /* its offset in rapt_tuning */
    const char *cases; /* names, separated by spaces */
    bool threads;      /* it affects only calls with several threads, and is not tried for one */
    int tried[10];     /* in order; 0 ends them */
} numbers[] = {
    {NUMBER(pass_l2), "prefill prefill-bf16 ragged", false, {2, 4, 6, 8, 10, 12, 16, 24, 32}},
    {NUMBER(weights_l2), "linear-32 linear-256", false, {2, 4, 6, 8, 10, 12, 16, 24}},
    {NUMBER(joined_bytes), "decode", false, {256, 512, 1024, 2048, 4096, 8192}},
    {NUMBER(long_ahead), "linear-1 linear-8", false, {256, 512, 768, 1024, 1536, 2048, 4096}},
    {NUMBER(short_ahead), "linear-1-short", false, {128, 256, 512, 768, 1024, 2048}},
    {NUMBER(few_rows), "few-8 few-12 few-16", false, {4, 8, 12, 16}},
    {NUMBER(few_tokens), "linear-8 linear-16 linear-32", false, {4, 8, 16, 32}},
    {NUMBER(bf16_few_tokens), "linear-bf16-8 linear-bf16-16", false, {4, 8, 16}},
    {NUMBER(thread_tasks), "prefill few-8 decode", true, {1, 2, 3, 4, 6, 8, 16}},
    {NUMBER(ragged_tasks), "ragged", true, {1, 2, 4, 8, 16, 32}},
    {NUMBER(states_part), "decode", true, {1, 2, 4, 8, 16, 32}},
    {NUMBER(staging_outputs), "linear-256", true, {4, 8, 16, 32, 64, 128}},
    {NUMBER(long_row), "linear-1 linear-1-short linear-8", false, {1024, 2048, 4096, 8192, 16384}},
    {NUMBER(left_over), "ragged", false, {1, 2, 3, 5, 7, 9, 11}},
    {NUMBER(pass_tiles), "prefill prefill-bf16 ragged", false, {2, 4, 8, 12, 16, 24, 32}},
    {NUMBER(joined_rows), "decode", false, {4, 8, 16, 32, 64}},
    {NUMBER(few_integer_rows), "decode-int8", false, {1, 2, 4, 8, 16}},
};
enum { NUMBERS = sizeof numbers / sizeof *numbers };

/* A case in memory. */
typedef struct subject {
    const tune_case *of;
    char *q, *kv, *o; /* kv: `copies` copies of K and V, or of the weights, one after the other */
    char *want;       /* the output that every way must give */
    size_t q_bytes, k_bytes, o_bytes;
    int64_t copies, next;
    int calls;            /* of one measurement, which then takes about a millisecond */
    double spent;         /* seconds that all measurements took */
    int64_t measurements; /* their number */
    void *workspace;      /* shared by all ways to run the case, so that its address makes no difference between them */
    size_t workspace_bytes;
    int32_t starts[MOST_BATCH + 1];
    int64_t queries, keys; /* of all entries */
} subject;

typedef struct search {
    const char *isa;
    int64_t threads;
    rapt_pool *pool;
    double start, end;    /* of the time for the search */
    bool quiet, terminal; /* --quiet; standard error is a terminal */
    int turns;            /* of a round, in this pass over all numbers */
    subject subjects[CASES];
    int count;
    rapt_tuning own, least, most, best; /* best: the best so far, with -1 where the kernel's own number is best */
    measure_ratio gains[NUMBERS];       /* the gain of each number of the best, when it was kept */
    int kept;                           /* how often a value was kept */
    int compared, late;                 /* values in this pass that were compared, and for which there was no time */
    int unconfirmed;                    /* values that looked faster, but for whose confirmation there was no time */
} search;

/* ---- Progress ------------------------------------------------------------------------------------------------------------ */

static int shown; /* the length of the line of progress on the terminal, which the next line replaces */

/* Removes the line of progress. */
static void clear_line(void) {
    if (shown) fprintf(stderr, "\r%*s\r", shown, "");
    shown = 0;
}

/* Prints a line that stays. */
__attribute__((format(printf, 2, 3))) static void say(const search *t, const char *format, ...) {
    if (t->quiet) return;
    va_list args;
    va_start(args, format);
    clear_line();
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

/* Replaces the line of progress, if standard error is a terminal. */
__attribute__((format(printf, 2, 3))) static void show(const search *t, const char *format, ...) {
    if (t->quiet || !t->terminal) return;
    char line[80]; /* no longer than a terminal is wide, or clear_line would not remove all of it */
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    clear_line();
    shown = fprintf(stderr, "%s", line);
    fflush(stderr);
}

/* Calls cli_fail after removing the line of progress, so that the error has a line of its own. */
__attribute__((format(printf, 1, 2))) static int fail(const char *format, ...) {
    char line[8192];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    clear_line();
    return cli_fail(CLI_TUNE, "%s", line);
}

/* ---- Signals ------------------------------------------------------------------------------------------------------------- */

enum { SIGNALLED = 128 }; /* the exit status after a signal is this plus its number, as in shells */

#if defined(__wasi__) /* has no signals */
static const int stopped = 0;
static void heed_signals(void) {}
#else
static volatile sig_atomic_t stopped; /* the signal that asked the search to end, or 0 */

/* Ends the search; the next signal ends the process at once. */
static void stop(int number) {
    stopped = number;
    signal(number, SIG_DFL);
}

/* Installs the handler, except for signals that are ignored, as under nohup and in the background of shells. */
static void heed_signals(void) {
    static const int heeded[] = {SIGINT, SIGTERM};
    stopped = 0;
    for (size_t i = 0; i < sizeof heeded / sizeof *heeded; i++)
        if (signal(heeded[i], stop) == SIG_IGN) signal(heeded[i], SIG_IGN);
}
#endif

/* ---- Cases in memory ----------------------------------------------------------------------------------------------------- */

/* Fills memory with values of ordinary size in any of the types of the cases. */
static void fill(char *at, size_t bytes, rapt_type type) {
    uint32_t random = 1;
    for (size_t i = 0; i < bytes; i += 4) {
        random = random * UINT32_C(1664525) + UINT32_C(1013904223);
        const float value = (float)(int32_t)random * 0x1p-31f;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        if (type == RAPT_BF16) bits = bits >> 16 | (bits & 0xffff0000) >> 2 << 2;
        if (type == RAPT_INT8) bits = random;
        memcpy(at + i, &bits, sizeof bits);
    }
}

/* Creates the tensors of a case. Returns false if there is no memory. */
static bool subject_create(subject *s, const tune_case *c) {
    const bool linear = c->out > 0;
    const size_t element = c->type == RAPT_F32 ? 4 : c->type == RAPT_BF16 ? 2 : 1;
    *s = (subject){.of = c};
    for (int b = 0; b < c->batch; b++) s->starts[b + 1] = s->starts[b] + (int32_t)c->queries + b;
    s->queries = linear ? 0 : s->starts[c->batch];
    s->keys = c->batch > 1 ? s->queries : c->keys;
    s->q_bytes = (size_t)(linear ? c->tokens * c->in : s->queries * c->heads * c->d) * sizeof(float);
    s->o_bytes = (size_t)(linear ? c->tokens * c->out : s->queries * c->heads * c->d) * sizeof(float);
    s->k_bytes = (size_t)(linear ? c->in * c->out : s->keys * c->kv_heads * c->d) * element;
    const size_t copy = linear ? s->k_bytes : 2 * s->k_bytes;
    s->copies = c->cold ? (int64_t)((COLD_BYTES + copy - 1) / copy) : 1;
    s->q = malloc(s->q_bytes);
    s->kv = malloc((size_t)s->copies * copy);
    s->o = malloc(s->o_bytes);
    s->want = malloc(s->o_bytes);
    if (!s->q || !s->kv || !s->o || !s->want) return false;
    fill(s->q, s->q_bytes, RAPT_F32);
    fill(s->kv, copy, c->type);
    for (int64_t i = 1; i < s->copies; i++) memcpy(s->kv + (size_t)i * copy, s->kv, copy);
    return true;
}

static void subject_destroy(subject *s) {
    free(s->q), free(s->kv), free(s->o), free(s->want);
    aligned_destroy(s->workspace);
}

/* ---- One way to run a case ----------------------------------------------------------------------------------------------- */

/* A case with a tuning, ready to run. */
typedef struct way {
    subject *of;
    rapt_plan plan;
    rapt_linear_plan linear;
    rapt_plan_info info; /* of attention */
    size_t bytes;        /* of the workspace */
} way;

static rapt_status plan_attention(const search *t, way *w, const rapt_tuning *tuning) {
    const subject *s = w->of;
    const tune_case *c = s->of;
    rapt_desc d;
    rapt_desc_init(&d);
    d.heads = c->heads, d.kv_heads = c->kv_heads, d.q_len = s->queries, d.kv_len = s->keys;
    d.d_k = d.d_v = c->d;
    d.q = d.o = rapt_layout_bshd(RAPT_F32, d.heads, d.q_len, c->d);
    d.k = d.v = rapt_layout_bshd(c->type, d.kv_heads, d.kv_len, c->d);
    d.causal = RAPT_CAUSAL_BOTTOM_RIGHT, d.arith = c->arith, d.threads = t->threads, d.isa = t->isa, d.tuning = tuning;
    if (c->batch > 1) d.batch = c->batch, d.q_starts = d.k_starts = s->starts;
    rapt_status status = rapt_plan_init(&w->plan, &d);
    w->info.size = sizeof w->info;
    if (status == RAPT_OK) status = rapt_plan_query(&w->plan, &w->info);
    return status == RAPT_OK ? rapt_workspace_size(&w->plan, t->threads, &w->bytes) : status;
}

static rapt_status plan_linear(const search *t, way *w, const rapt_tuning *tuning) {
    const tune_case *c = w->of->of;
    rapt_linear_desc d;
    rapt_linear_desc_init(&d);
    d.tokens = c->tokens, d.in = c->in, d.out = c->out, d.arith = c->arith, d.isa = t->isa, d.tuning = tuning;
    d.x = rapt_layout_bshd(RAPT_F32, 1, c->tokens, c->in), d.y = rapt_layout_bshd(RAPT_F32, 1, c->tokens, c->out);
    d.weight = rapt_layout_bshd(c->type, 1, c->out, c->in);
    const rapt_status status = rapt_linear_plan_init(&w->linear, &d);
    return status == RAPT_OK ? rapt_linear_workspace_size(&w->linear, t->threads, &w->bytes) : status;
}

/* Plans a case with a tuning, and makes sure that the workspace is large enough. */
static int way_create(const search *t, way *w, subject *s, const rapt_tuning *tuning) {
    memset(w, 0, sizeof *w);
    w->of = s;
    const rapt_status status = s->of->out ? plan_linear(t, w, tuning) : plan_attention(t, w, tuning);
    if (status) return fail("%s: %s", s->of->name, rapt_status_string(status));
    if (s->workspace && w->bytes <= s->workspace_bytes) return 0;
    aligned_destroy(s->workspace);
    s->workspace = aligned_create(RAPT_WORKSPACE_ALIGNMENT, w->bytes + 1);
    s->workspace_bytes = w->bytes;
    return s->workspace ? 0 : fail("%s: no memory for the workspace", s->of->name);
}

/* Runs a case once, over the next copy of K and V or of the weights. */
static rapt_status call_once(const search *t, const way *w) {
    subject *s = w->of;
    const char *k = s->kv + (size_t)s->next * (s->of->out ? s->k_bytes : 2 * s->k_bytes);
    s->next = (s->next + 1) % s->copies;
    if (s->of->out) {
        rapt_linear_args a;
        rapt_linear_args_init(&a);
        a.x = s->q, a.weight = k, a.y = s->o, a.workspace = s->workspace, a.workspace_bytes = w->bytes;
        return rapt_linear_run_parallel(&w->linear, &a, t->threads, rapt_pool_for, t->pool);
    }
    rapt_args a;
    rapt_args_init(&a);
    a.q = s->q, a.k = k, a.v = k + s->k_bytes, a.o = s->o, a.workspace = s->workspace, a.workspace_bytes = w->bytes;
    return rapt_run_parallel(&w->plan, &a, t->threads, rapt_pool_for, t->pool);
}

/* Exit statuses, besides CLI_ERROR, that end a search early. */
enum { WRONG_BITS = 1, STOPPED = SIGNALLED };

/* Times the calls of a measurement, and sets *seconds to the time of one call. */
static int time_calls(const search *t, const way *w, double *seconds) {
    const double start = clock_now();
    for (int i = 0; i < w->of->calls; i++) {
        if (stopped) return STOPPED;
        const rapt_status status = call_once(t, w);
        if (status) return fail("%s: %s", w->of->of->name, rapt_status_string(status));
    }
    *seconds = (clock_now() - start) / w->of->calls;
    return 0;
}

/* Calls time_calls, and checks that the output is right. */
static int measure_way(const search *t, const way *w, double *seconds) {
    subject *s = w->of;
    const double start = clock_now();
    memset(s->o, 0x5a, s->o_bytes);
    const int failed = time_calls(t, w, seconds);
    if (failed) return failed;
    if (*seconds <= 0) *seconds = 1e-9; /* below the resolution of the clock */
    const bool right = memcmp(s->o, s->want, s->o_bytes) == 0;
    s->spent += clock_now() - start;
    s->measurements++;
    if (right) return 0;
    fail("%s: with another tuning the kernel %s gives other bits", s->of->name, t->isa);
    return WRONG_BITS;
}

/* Runs a case with the kernel's own numbers, for the output that all other ways must give, and sets how many calls a measurement
 * has. */
static int prepare(search *t, subject *s) {
    way w;
    double least = INFINITY, seconds = 0;
    s->calls = 1;
    int failed = way_create(t, &w, s, NULL);
    for (int i = 0; i < 3 && !failed; i++) {
        failed = time_calls(t, &w, &seconds);
        least = fmin(least, seconds);
    }
    if (failed) return failed;
    if (least < 1e-3) s->calls = least < 1e-6 ? 1000 : (int)(1e-3 / least) + 1;
    memcpy(s->want, s->o, s->o_bytes);
    return measure_way(t, &w, &seconds);
}

/* ---- Comparing ----------------------------------------------------------------------------------------------------------- */

/* A comparison of two tunings, over the cases that they cut differently. */
typedef struct comparison {
    way ways[CASES][2];
    measure_case rounds[CASES];
    bool counts[CASES]; /* the case belongs to the mean */
    int count;          /* of these cases */
    bool late;          /* there was no time for the comparison */
    measure_verdict verdict;
} comparison;

/* The extent of a comparison. */
typedef struct effort {
    unsigned cases, counted;     /* cases to compare, and those that belong to the mean, as bits by their index in `cases` */
    int least_turns, most_turns; /* of a round */
    double until;                /* when it must end; it is not begun if there is no time for least_turns */
    const char *what;            /* for the line of progress */
} effort;

/* True if two plans of one description give the same information on how they cut the work, so that they are the same. */
static bool cut_alike(const rapt_plan_info *a, const rapt_plan_info *b) {
    return strcmp(a->path, b->path) == 0 && a->phases == b->phases && a->tasks[0] == b->tasks[0] && a->tasks[1] == b->tasks[1] &&
           a->shared_bytes == b->shared_bytes && a->thread_bytes == b->thread_bytes &&
           a->rows_keys_in_lanes == b->rows_keys_in_lanes;
}

/* True if two tunings have the same numbers for linear layers, whose plans give no information. */
static bool tuned_alike(const rapt_tuning *a, const rapt_tuning *b) {
    return a->few_tokens == b->few_tokens && a->bf16_few_tokens == b->bf16_few_tokens && a->weights_l2 == b->weights_l2 &&
           a->staging_outputs == b->staging_outputs && a->long_row == b->long_row && a->long_ahead == b->long_ahead &&
           a->short_ahead == b->short_ahead;
}

static unsigned bit_of(const subject *s) { return 1u << (s->of - cases); }

/* Plans both ways of each case, and keeps those cases that are cut differently. */
static int plan_comparison(search *t, comparison *c, const rapt_tuning *from, const rapt_tuning *to, const effort *e) {
    memset(c, 0, sizeof *c);
    for (int i = 0; i < t->count; i++) {
        subject *s = &t->subjects[i];
        way *ways = c->ways[c->count];
        if (!(e->cases & bit_of(s)) || (s->of->out && tuned_alike(from, to))) continue;
        int failed = way_create(t, &ways[0], s, from);
        if (!failed) failed = way_create(t, &ways[1], s, to);
        if (failed) return failed;
        if (!s->of->out && cut_alike(&ways[0].info, &ways[1].info)) continue;
        c->counts[c->count++] = e->counted & bit_of(s);
    }
    return 0;
}

/* Measures a round of one case. */
static int measure_one(const search *t, comparison *c, int i, int round, int turns) {
    double seconds[MEASURE_TURNS][MEASURE_WAYS];
    for (int turn = 0; turn < turns; turn++)
        for (int place = 0; place < MEASURE_WAYS; place++) {
            const int which = measure_order(round * turns + turn, place);
            const int failed = measure_way(t, &c->ways[i][which == MEASURE_SECOND], &seconds[turn][which]);
            if (failed) return failed;
        }
    measure_round(&c->rounds[i], round, seconds, turns);
    return 0;
}

/* Compares two tunings. Each round visits all cases, so that the measurements of every case are spread over the whole time. */
static int compare(search *t, comparison *c, const rapt_tuning *from, const rapt_tuning *to, const effort *e) {
    double turn = 0; /* seconds that one turn takes, in all rounds */
    bool counted = false;
    int failed = plan_comparison(t, c, from, to, e);
    for (int i = 0; i < c->count; i++) {
        const subject *s = c->ways[i]->of;
        turn += (double)(MEASURE_ROUNDS * MEASURE_WAYS) * s->spent / (double)s->measurements;
        counted |= c->counts[i];
    }
    if (!counted) c->count = 0;
    if (failed || !c->count) return failed;
    const double fitting = fmax((e->until - clock_now()) / turn, 0);
    int turns = fitting < e->most_turns ? (int)fitting : e->most_turns;
    c->late = turns < e->least_turns;
    if (c->late) return 0;
    if (turns < 1) turns = 1;
    show(t, "%.0f s of %.0f: %s, %d turns", clock_now() - t->start, t->end - t->start, e->what, MEASURE_ROUNDS * turns);
    for (int round = 0; round < MEASURE_ROUNDS && !failed; round++)
        for (int i = 0; i < c->count && !failed; i++) failed = measure_one(t, c, i, round, turns);
    if (!failed) c->verdict = measure_judge(c->rounds, c->counts, c->count);
    return failed;
}

/* ---- The search ---------------------------------------------------------------------------------------------------------- */

static int get(const rapt_tuning *t, const struct number *n) { return *(const int *)(const void *)((const char *)t + n->at); }

static void set(rapt_tuning *t, const struct number *n, int value) { *(int *)(void *)((char *)t + n->at) = value; }

/* Returns the cases that a number affects, as bits. */
static unsigned cases_of(const struct number *n) {
    unsigned mask = 0;
    for (int i = 0; i < CASES; i++) {
        const size_t length = strlen(cases[i].name);
        for (const char *at = n->cases; (at = strstr(at, cases[i].name)); at += length)
            if ((at == n->cases || at[-1] == ' ') && (!at[length] || at[length] == ' ')) mask |= 1u << i;
    }
    return mask;
}

/* True if the best tuning so far is the kernel's own. */
static bool is_own(const search *t) {
    for (int i = 0; i < NUMBERS; i++)
        if (get(&t->best, &numbers[i]) != -1) return false;
    return true;
}

/* Returns when the search ends: if a value was kept, a quarter of the time is left for measuring all kept values together. */
static double end_of_search(const search *t) { return is_own(t) ? t->end : t->end - (t->end - t->start) / 4; }

/* Keeps a value of a number. */
static void keep(search *t, const struct number *n, int value, const rapt_tuning *to, const measure_verdict *v) {
    t->best = *to;
    t->gains[n - numbers] = v->mean;
    t->kept++;
    say(t, "%s=%d: %.3f times as fast in its cases, spread %.3f; %.3f in the worst of all: kept", n->name, value, v->mean.faster,
        v->mean.spread, v->worst.faster);
}

/* Tries one value of a number. If it looks faster, it is compared once more, with more turns and over all cases, and that
 * comparison alone decides. Updates *most, the best first comparison of any value of the number. */
static int try_value(search *t, const struct number *n, int value, measure_ratio *most) {
    static comparison c;
    rapt_tuning to = t->best;
    set(&to, n, value == get(&t->own, n) ? -1 : value);
    char what[64];
    snprintf(what, sizeof what, "%s=%d", n->name, value);
    const unsigned its = cases_of(n);
    int failed = compare(t, &c, &t->best, &to, &(effort){its, its, t->turns, t->turns, end_of_search(t), what});
    t->late += c.late;
    if (failed || !c.count || c.late) return failed;
    t->compared++;
    const measure_ratio first = c.verdict.mean;
    if (first.faster > most->faster) *most = first;
    if (!c.verdict.promising) return 0;
    failed = compare(t, &c, &t->best, &to, &(effort){~0u, its, t->turns, 4 * t->turns, t->end, what});
    t->unconfirmed += c.late;
    if (!failed && !c.late && c.verdict.faster && !c.verdict.slower) keep(t, n, value, &to, &c.verdict);
    return failed;
}

/* Tries all values of a number. */
static int try_number(search *t, const struct number *n) {
    const int compared = t->compared, late = t->late, kept = t->kept;
    measure_ratio most = {0, 0};
    for (const int *value = n->tried; value < n->tried + 10 && *value; value++) {
        const int now = get(&t->best, n) == -1 ? get(&t->own, n) : get(&t->best, n);
        if (*value == now || *value < get(&t->least, n) || *value > get(&t->most, n)) continue;
        const int failed = try_value(t, n, *value, &most);
        if (failed) return failed;
    }
    const int values = t->compared - compared;
    if (t->terminal || kept != t->kept) return 0; /* the progress has been shown already */
    if (values)
        say(t, "%.0f s of %.0f: %s: %d value%s, the best %.3f times as fast, spread %.3f: left as it is", clock_now() - t->start,
            t->end - t->start, n->name, values, values == 1 ? "" : "s", most.faster, most.spread);
    else if (late == t->late && t->turns == 1) say(t, "%s: changes nothing in these cases", n->name);
    return 0;
}

/* Goes through all numbers again and again, with twice as many turns after a pass that kept nothing, until the time is over. */
static int look(search *t) {
    for (t->turns = 1;;) {
        const int kept = t->kept;
        const bool first = t->turns == 1 && !kept;
        t->compared = t->late = 0;
        for (const struct number *n = numbers; n < numbers + NUMBERS; n++) {
            if (n->threads && t->threads == 1) continue;
            const int failed = try_number(t, n);
            if (failed) return failed;
        }
        if (first && !t->compared && !t->late)
            say(t, "none of the numbers changes anything in these cases: there is nothing to look for");
        if (first && t->late) say(t, "%d values were not tried: there was no time for them, see --seconds", t->late);
        if (!t->compared) break;
        if (kept == t->kept && 2 * t->turns <= MEASURE_TURNS / 4) t->turns *= 2;
    }
    if (t->unconfirmed)
        say(t, "%d values that looked faster were not confirmed: there was no time for it, see --seconds", t->unconfirmed);
    return 0;
}

/* Prints the best line. */
static int print_best(const search *t) {
    char line[RAPT_TUNING_BYTES];
    const rapt_status status = rapt_tuning_print(&t->best, line, sizeof line);
    if (status) return fail("%s", rapt_status_string(status));
    clear_line();
    puts(line);
    return 0;
}

/* Makes the kernel's own numbers the best. */
static void give_up(search *t, const char *why) {
    rapt_tuning_init(&t->best);
    t->best.isa = t->isa;
    say(t, "%s: the kernel's own numbers are the best that were found", why);
}

/* Compares all kept values together with the kernel's own numbers, over all cases: values that are faster one by one need not be
 * so together. Prints the result. */
static int finish(search *t) {
    static comparison c;
    char why[160];
    rapt_tuning own;
    effort e = {.cases = ~0u, .most_turns = MEASURE_TURNS, .until = t->end, .what = "all of them, beside the kernel's own"};
    rapt_tuning_init(&own);
    own.isa = t->isa;
    if (is_own(t)) {
        give_up(t, "nothing is faster beyond the spread");
        return print_best(t);
    }
    /* The mean is over the cases of the numbers that were kept. */
    for (int i = 0; i < NUMBERS; i++)
        if (get(&t->best, &numbers[i]) != -1) e.counted |= cases_of(&numbers[i]);
    const int failed = compare(t, &c, &own, &t->best, &e);
    if (failed) return failed;
    say(t, "all of them, beside the kernel's own:");
    for (int i = 0; i < c.count; i++) {
        const measure_ratio r = measure_of_case(&c.rounds[i]);
        say(t, "  %-16s %.3f times as fast, spread %.3f", c.ways[i]->of->of->name, r.faster, r.spread);
    }
    const measure_ratio mean = c.verdict.mean, worst = c.verdict.worst;
    snprintf(why, sizeof why, "%.3f times as fast in the mean of what they are for, spread %.3f", c.count ? mean.faster : 1,
             mean.spread);
    if (!c.count || !c.verdict.faster) give_up(t, why);
    else if (c.verdict.slower) {
        snprintf(why, sizeof why, "%s is %.3f times as fast, spread %.3f", c.ways[c.verdict.worst_case]->of->of->name,
                 worst.faster, worst.spread);
        give_up(t, why);
    } else say(t, "%s: recommended", why);
    return print_best(t);
}

/* Prints the values that were kept before a signal, and the gain of each. */
static int finish_early(const search *t) {
    say(t, "stopped by a signal after %.0f s; the best so far%s", clock_now() - t->start,
        is_own(t) ? ": the kernel's own numbers" : ", not yet measured as a whole:");
    for (int i = 0; i < NUMBERS; i++)
        if (get(&t->best, &numbers[i]) != -1)
            say(t, "  %s=%d: %.3f times as fast, spread %.3f", numbers[i].name, get(&t->best, &numbers[i]), t->gains[i].faster,
                t->gains[i].spread);
    const int failed = print_best(t);
    return failed ? failed : SIGNALLED + stopped;
}

/* ---- The command --------------------------------------------------------------------------------------------------------- */

/* True if the name matches a pattern, which ends before `end`: * stands for any characters, ? for one. */
/* NOLINTNEXTLINE(misc-no-recursion): as deep as a pattern has stars */
static bool matches(const char *name, const char *pattern, const char *end) {
    for (; pattern < end; pattern++, name++) {
        if (*pattern == '*') return matches(name, pattern + 1, end) || (*name && matches(name + 1, pattern, end));
        if (!*name || (*pattern != '?' && *pattern != *name)) return false;
    }
    return !*name;
}

/* Sets *mask to the cases that match the names or patterns, which are separated by commas; each must match a case. */
static int select_cases(const char *names, unsigned *mask) {
    *mask = 0;
    for (const char *at = names, *end;; at = end + 1) {
        end = strchr(at, ',') ? strchr(at, ',') : at + strlen(at);
        unsigned matched = 0;
        for (int i = 0; i < CASES; i++)
            if (matches(cases[i].name, at, end)) matched |= 1u << i;
        if (!matched) return fail("--cases %s: there is no case '%.*s'; see rapt tune --help", names, (int)(end - at), at);
        *mask |= matched;
        if (!*end) return 0;
    }
}

enum { ISA, THREADS, SECONDS, CASE_NAMES, QUIET, HELP, OPTIONS };

/* Prepares the cases of the mask. */
static int prepare_all(search *t, unsigned mask) {
    for (int i = 0; i < CASES; i++) {
        if (!(mask >> i & 1)) continue;
        subject *s = &t->subjects[t->count++];
        show(t, "preparing %s", cases[i].name);
        if (!subject_create(s, &cases[i])) return fail("%s: no memory for it", cases[i].name);
        const int failed = prepare(t, s);
        if (failed) return failed;
    }
    return 0;
}

/* Prints what is going to be tuned. */
static void say_cases(const search *t, unsigned mask, int64_t seconds) {
    char names[CASES * 20];
    size_t used = 0;
    int count = 0;
    for (int i = 0; i < CASES; i++) {
        if (!(mask >> i & 1)) continue;
        used += (size_t)snprintf(names + used, sizeof names - used, " %s", cases[i].name);
        count++;
    }
    say(t, "%s, %" PRId64 " threads, %d cases, %" PRId64 " s:%s", t->isa, t->threads, count, seconds, names);
}

/* Runs the command; the caller frees the memory. */
static int tune(search *t, int argc, char **argv) {
    static const cli_option options[OPTIONS] = {
        [ISA] = {"isa", CLI_VALUE},          [THREADS] = {"threads", CLI_VALUE}, [SECONDS] = {"seconds", CLI_VALUE},
        [CASE_NAMES] = {"cases", CLI_VALUE}, [QUIET] = {"quiet", CLI_FLAG},      [HELP] = {"help", CLI_FLAG}};
    const char *value[OPTIONS], *text;
    int64_t seconds = 60;
    if (cli_parse(CLI_TUNE, options, OPTIONS, argc, argv, value)) return CLI_ERROR;
    if (value[HELP]) {
        fputs(help, stdout);
        return 0;
    }
    t->threads = 1;
    if ((text = value[THREADS]) && !cli_integer(&text, '\0', 1, 1024, &t->threads))
        return cli_fail(CLI_TUNE, "--threads %s: an integer from 1 to 1024 is needed", value[THREADS]);
    if ((text = value[SECONDS]) && !cli_integer(&text, '\0', 1, 86400, &seconds))
        return cli_fail(CLI_TUNE, "--seconds %s: an integer from 1 to 86400 is needed", value[SECONDS]);
    if (cli_check_isa(CLI_TUNE, value[ISA])) return CLI_ERROR;
    rapt_tuning_init(&t->own), rapt_tuning_init(&t->least), rapt_tuning_init(&t->most), rapt_tuning_init(&t->best);
    const rapt_status status = rapt_tuning_query(value[ISA], &t->own, &t->least, &t->most);
    if (status) return cli_fail(CLI_TUNE, "%s", rapt_status_string(status));
    t->isa = t->best.isa = t->own.isa;
    t->quiet = value[QUIET];
    t->terminal = isatty(STDERR_FILENO);
    unsigned mask;
    if (select_cases(value[CASE_NAMES] ? value[CASE_NAMES] : "*", &mask)) return CLI_ERROR;
    t->pool = rapt_pool_create(t->threads);
    if (!t->pool) return cli_fail(CLI_TUNE, "--threads %" PRId64 ": that many could not be started", t->threads);
    heed_signals();
    t->start = clock_now();
    say_cases(t, mask, seconds);
    int failed = prepare_all(t, mask);
    if (!failed) {
        t->start = clock_now();
        t->end = t->start + (double)seconds;
        failed = look(t);
    }
    if (!failed) failed = finish(t);
    return failed == STOPPED ? finish_early(t) : failed;
}

int cli_tune(int argc, char **argv) {
    static search t;
    memset(&t, 0, sizeof t);
    const int status = tune(&t, argc, argv);
    for (int i = 0; i < t.count; i++) subject_destroy(&t.subjects[i]);
    rapt_pool_destroy(t.pool);
    return status;
}
