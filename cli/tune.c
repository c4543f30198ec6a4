/* SPDX-License-Identifier: Apache-2.0 */
/* rapt tune: the numbers with which a kernel is fastest on this machine, looked for one after the other. */
#define _POSIX_C_SOURCE 200112L
#include "aligned.h"
#include "cli.h"
#include "clock.h"
#include "measure.h"
#include "rapt_layer.h"
#include "rapt_pool.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLI_TUNE "rapt tune"

static const char help[] =
    "usage: rapt tune [options]\n"
    "\n"
    "Looks for the numbers by which a kernel's work is cut (rapt_tuning in rapt.h) with which it is fastest on this machine.\n"
    "Calls with one number changed are timed in turns with calls without, and what is faster by more than 2 % is kept, unless\n"
    "one of the cases is slower by that. Each must give the same bits. What it does is told on standard error; the best line\n"
    "is printed, for rapt run --tuning, rapt_tuning_parse, or attention(tuning=...) in Python.\n"
    "\n"
    "  --isa NAME        the kernel; see rapt info (default: $RAPT_ISA, or the best one that can run here)\n"
    "  --threads N       how many threads share each call, 1 to 1024 (default 1)\n"
    "  --seconds N       how long to look, 1 to 86400 (default 60); preparing the cases, which takes 300 MB, comes before\n"
    "  --cases NAME,...  which to time: prefill, prefill-bf16, ragged; few-8, few-12, few-16 (rows of a key/value head);\n"
    "                    decode, decode-int8 (where a kernel has another way for few rows); linear-1, linear-1-short,\n"
    "                    linear-8, linear-16, linear-32, linear-256, linear-bf16-8, linear-bf16-16 (tokens); those that\n"
    "                    begin with one of the names (default: all)\n"
    "  -h, --help        print this\n";

/* ---- Cases --------------------------------------------------------------------------------------------------------------- */

/* What is timed: attention, or a linear layer if there are out channels. */
typedef struct tune_case {
    const char *name;
    int64_t batch; /* above 1: entries of a ragged batch, each of one query and key more than the one before */
    int64_t heads, kv_heads, queries, keys, d;
    int64_t tokens, in, out;
    rapt_type type; /* of K and V, or the weights */
    rapt_arith arith;
    bool cold; /* K and V, or weights, come from memory */
} tune_case;

/* What thresholds are for has a case at each value that is tried. */
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

/* A case in memory. */
typedef struct subject {
    const tune_case *of;
    char *q, *kv, *o, *want; /* kv: copies of K and V, or of the weights, one after the other; want: the right output */
    size_t q_bytes, k_bytes, o_bytes;
    int64_t copies, next;
    int calls; /* of one measurement, so that it takes a millisecond */
    int32_t starts[MOST_BATCH + 1];
    int64_t queries, keys; /* of all entries */
} subject;

typedef struct search {
    const char *isa;
    int64_t threads;
    rapt_pool *pool;
    double end; /* of the time that there is */
    int turns;  /* for the result: many, unless there is little time */
    subject subjects[CASES];
    int count;
    rapt_tuning own, least, most, best; /* best: with -1 for what is the kernel's own */
} search;

/* Values of ordinary size in any of the types that cases have. */
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

static void subject_destroy(subject *s) { free(s->q), free(s->kv), free(s->o), free(s->want); }

/* ---- One way to run a case ----------------------------------------------------------------------------------------------- */

/* A case with a tuning, ready to be called. */
typedef struct way {
    subject *of;
    rapt_plan plan;
    rapt_linear_plan linear;
    rapt_plan_info info; /* of attention */
    void *workspace;
    size_t bytes;
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

static int way_create(const search *t, way *w, subject *s, const rapt_tuning *tuning) {
    memset(w, 0, sizeof *w);
    w->of = s;
    const rapt_status status = s->of->out ? plan_linear(t, w, tuning) : plan_attention(t, w, tuning);
    if (status) return cli_fail(CLI_TUNE, "%s: %s", s->of->name, rapt_status_string(status));
    w->workspace = aligned_create(RAPT_WORKSPACE_ALIGNMENT, w->bytes + 1);
    return w->workspace ? 0 : cli_fail(CLI_TUNE, "%s: no memory for the workspace", s->of->name);
}

static rapt_status call_once(const search *t, const way *w) {
    subject *s = w->of;
    const char *k = s->kv + (size_t)s->next * (s->of->out ? s->k_bytes : 2 * s->k_bytes);
    s->next = (s->next + 1) % s->copies;
    if (s->of->out) {
        rapt_linear_args a;
        rapt_linear_args_init(&a);
        a.x = s->q, a.weight = k, a.y = s->o, a.workspace = w->workspace, a.workspace_bytes = w->bytes;
        return rapt_linear_run_parallel(&w->linear, &a, t->threads, rapt_pool_for, t->pool);
    }
    rapt_args a;
    rapt_args_init(&a);
    a.q = s->q, a.k = k, a.v = k + s->k_bytes, a.o = s->o, a.workspace = w->workspace, a.workspace_bytes = w->bytes;
    return rapt_run_parallel(&w->plan, &a, t->threads, rapt_pool_for, t->pool);
}

/* Seconds of a call; below 0 after cli_fail. */
static double call_time(const search *t, const way *w) {
    const double start = clock_now();
    for (int i = 0; i < w->of->calls; i++) {
        const rapt_status status = call_once(t, w);
        if (status) {
            cli_fail(CLI_TUNE, "%s: %s", w->of->of->name, rapt_status_string(status));
            return -1;
        }
    }
    return (clock_now() - start) / w->of->calls;
}

/* Runs a case by the kernel's own numbers, for the output that all others must give, and sees how long that takes. */
static int prepare(search *t, subject *s) {
    way w;
    int failed = way_create(t, &w, s, NULL);
    s->calls = 1;
    double least = INFINITY;
    for (int i = 0; i < 3 && !failed; i++) {
        const double seconds = call_time(t, &w);
        failed = seconds < 0;
        if (seconds < least) least = seconds;
    }
    if (!failed && least < 1e-3) s->calls = least < 1e-6 ? 1000 : (int)(1e-3 / least) + 1;
    memcpy(s->want, s->o, s->o_bytes);
    aligned_destroy(w.workspace);
    return failed;
}

/* ---- Comparing ----------------------------------------------------------------------------------------------------------- */

enum { FEW_TURNS = 5, MANY_TURNS = 15, WRONG_BITS = 1 };

/* How many times as fast a case is with b as with a, called in turns: the median of the ratios, and the lower quartile. b's
 * output must be right. 0, WRONG_BITS, or CLI_ERROR. */
static int compare(const search *t, const way *a, const way *b, int turns, double *median, double *quartile) {
    double ratios[MANY_TURNS];
    subject *s = b->of;
    for (int i = 0; i < turns; i++) {
        double seconds[2];
        for (int n = 0; n < 2; n++) {
            const int second = n ^ (i & 1);
            memset(s->o, 0x5a, s->o_bytes);
            seconds[second] = call_time(t, second ? b : a);
            if (seconds[second] < 0) return CLI_ERROR;
            if (memcmp(s->o, s->want, s->o_bytes) != 0) {
                cli_fail(CLI_TUNE, "%s: with another tuning the kernel %s gives other bits", s->of->name, t->isa);
                return WRONG_BITS;
            }
        }
        ratios[i] = seconds[0] / seconds[1];
    }
    *median = measure_quantile(ratios, turns, 0.5);
    *quartile = measure_quantile(ratios, turns, 0.25);
    return 0;
}

#define BETTER 1.02 /* as fast, which is more than noise leaves of the median of many turns */

typedef struct verdict {
    double gain, worst, surest; /* the mean of the cases' ratios, the least of them, and the best of their lower quartiles */
    int compared;               /* cases for which the two are not the same */
} verdict;

/* Do two plans of one description tell the same of what they cut? Then they are the same. */
static bool cut_alike(const rapt_plan_info *a, const rapt_plan_info *b) {
    return strcmp(a->path, b->path) == 0 && a->phases == b->phases && a->tasks[0] == b->tasks[0] && a->tasks[1] == b->tasks[1] &&
           a->shared_bytes == b->shared_bytes && a->thread_bytes == b->thread_bytes &&
           a->rows_keys_in_lanes == b->rows_keys_in_lanes;
}

/* Two tunings over the cases of `mask`, a bit for each. told: each case is a line on standard error. */
static int compare_all(search *t, const rapt_tuning *from, const rapt_tuning *to, unsigned mask, int turns, bool told,
                       verdict *v) {
    double logs = 0;
    *v = (verdict){1, INFINITY, 0, 0};
    for (int i = 0; i < t->count; i++) {
        if (!(mask >> (t->subjects[i].of - cases) & 1)) continue;
        way a, b;
        double median = 1, quartile = 1;
        int failed = way_create(t, &a, &t->subjects[i], from);
        if (failed) return failed;
        failed = way_create(t, &b, &t->subjects[i], to);
        const bool same = !failed && !t->subjects[i].of->out && cut_alike(&a.info, &b.info); /* linear layers tell nothing */
        if (!failed && (!same || told)) failed = compare(t, &a, &b, turns, &median, &quartile);
        aligned_destroy(a.workspace), aligned_destroy(b.workspace);
        if (failed) return failed;
        if (told) fprintf(stderr, "  %-16s %.3f times as fast\n", t->subjects[i].of->name, median);
        if (same && !told) continue;
        logs += log(median);
        if (median < v->worst) v->worst = median;
        if (quartile > v->surest) v->surest = quartile;
        v->compared++;
    }
    if (v->compared) v->gain = exp(logs / v->compared);
    return 0;
}

static bool is_better(const verdict *v) { return v->compared && v->gain > BETTER && v->worst > 2 - BETTER && v->surest > 1; }

/* ---- The search ---------------------------------------------------------------------------------------------------------- */

/* A number, the cases that it is for, and what to try. Numbers that only matter to several threads are not tried for one. */
#define NUMBER(name) #name, offsetof(rapt_tuning, name)
static const struct number {
    const char *name;
    size_t at;
    const char *cases; /* names between spaces */
    bool threads;
    int tried[10]; /* after the last, 0 again */
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

static int *number_in(rapt_tuning *t, const struct number *n) { return (int *)(void *)((char *)t + n->at); }

/* Is the name, or where that is enough its beginning, one of the words that a character separates? */
static bool is_one_of(const char *name, const char *words, char between, bool beginning) {
    for (const char *end; *words; words = *end ? end + 1 : end) {
        end = strchr(words, between) ? strchr(words, between) : words + strlen(words);
        const size_t length = (size_t)(end - words);
        if (length && !strncmp(name, words, length) && (beginning || !name[length])) return true;
    }
    return false;
}

static unsigned cases_of(const struct number *n) {
    unsigned mask = 0;
    for (int i = 0; i < CASES; i++)
        if (is_one_of(cases[i].name, n->cases, ' ', false)) mask |= 1u << i;
    return mask;
}

/* Tries one value of a number, and keeps it if it is better twice, the second time by more turns. */
static int try_value(search *t, const struct number *n, int value, bool *kept) {
    rapt_tuning to = t->best;
    verdict v;
    *number_in(&to, n) = value == *number_in(&t->own, n) ? -1 : value;
    int failed = compare_all(t, &t->best, &to, cases_of(n), FEW_TURNS, false, &v);
    if (failed || !is_better(&v)) return failed;
    failed = compare_all(t, &t->best, &to, cases_of(n), MANY_TURNS, false, &v);
    if (failed || !is_better(&v)) return failed;
    t->best = to;
    *kept = true;
    fprintf(stderr, "%s=%d: %.3f times as fast in its cases, %.3f in the worst of them\n", n->name, value, v.gain, v.worst);
    return 0;
}

/* Goes through all numbers until nothing is better any more or the time is over. */
static int look(search *t) {
    for (bool kept = true; kept && clock_now() < t->end;) {
        kept = false;
        for (const struct number *n = numbers; n < numbers + NUMBERS; n++) {
            if (n->threads && t->threads == 1) continue;
            for (const int *value = n->tried; value < n->tried + 10 && *value && clock_now() < t->end; value++) {
                const int now = *number_in(&t->best, n) == -1 ? *number_in(&t->own, n) : *number_in(&t->best, n);
                if (*value == now || *value < *number_in(&t->least, n) || *value > *number_in(&t->most, n)) continue;
                const int failed = try_value(t, n, *value, &kept);
                if (failed) return failed;
            }
        }
    }
    return 0;
}

/* The whole set against the kernel's own, over all cases: numbers that were better one by one need not be so together. */
static int finish(search *t) {
    char line[RAPT_TUNING_BYTES];
    rapt_tuning own;
    verdict v;
    rapt_tuning_init(&own);
    own.isa = t->best.isa;
    fprintf(stderr, "all of them, beside the kernel's own:\n");
    const int failed = compare_all(t, &own, &t->best, ~0u, t->turns, true, &v);
    if (failed) return failed;
    if (v.gain < 1) fputs("which is no better: the kernel's own numbers are the best that were found\n", stderr), t->best = own;
    const rapt_status status = rapt_tuning_print(&t->best, line, sizeof line);
    if (status) return cli_fail(CLI_TUNE, "%s", rapt_status_string(status));
    puts(line);
    return 0;
}

enum { ISA, THREADS, SECONDS, CASE_NAMES, HELP, OPTIONS };

static int prepare_all(search *t, const char *names) {
    for (int i = 0; i < CASES; i++) {
        if (names && !is_one_of(cases[i].name, names, ',', true)) continue;
        if (cases[i].arith == RAPT_INT8_DOT && t->most.few_integer_rows == 0) continue;
        subject *s = &t->subjects[t->count++];
        if (!subject_create(s, &cases[i])) return cli_fail(CLI_TUNE, "%s: no memory for it", cases[i].name);
        const int failed = prepare(t, s);
        if (failed) return failed;
    }
    return t->count ? 0 : cli_fail(CLI_TUNE, "--cases %s: there is none of that name; see rapt tune --help", names);
}

static int tune(search *t, int argc, char **argv) {
    static const cli_option options[OPTIONS] = {[ISA] = {"isa", CLI_VALUE},
                                                [THREADS] = {"threads", CLI_VALUE},
                                                [SECONDS] = {"seconds", CLI_VALUE},
                                                [CASE_NAMES] = {"cases", CLI_VALUE},
                                                [HELP] = {"help", CLI_FLAG}};
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
    t->pool = rapt_pool_create(t->threads);
    if (!t->pool) return cli_fail(CLI_TUNE, "--threads %" PRId64 ": that many could not be started", t->threads);
    int failed = prepare_all(t, value[CASE_NAMES]);
    if (failed) return failed;
    fprintf(stderr, "%s, %" PRId64 " threads, %d cases, %" PRId64 " s\n", t->isa, t->threads, t->count, seconds);
    t->end = clock_now() + (double)seconds;
    t->turns = seconds < 10 ? FEW_TURNS : MANY_TURNS;
    failed = look(t);
    return failed ? failed : finish(t);
}

int cli_tune(int argc, char **argv) {
    static search t;
    const int status = tune(&t, argc, argv);
    for (int i = 0; i < t.count; i++) subject_destroy(&t.subjects[i]);
    rapt_pool_destroy(t.pool);
    return status;
}
