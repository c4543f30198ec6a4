/* SPDX-License-Identifier: Apache-2.0 */
/* Why a call is refused. Each row of the table takes a good call, makes one mistake, and says the status and the whole line that
 * must come of it: from the function that explains, from the function itself by its trace, and cut to any size. Built with the
 * sources that explain.py marks, it also shows that no place that may refuse, and no name, is missing from the table. */
#define _POSIX_C_SOURCE 200809L /* setenv */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#if defined(_WIN32)
#define setenv(name, value, overwrite) _putenv_s(name, value)
#define unsetenv(name)                 _putenv_s(name, "")
#endif

#include "explain.h"
#include "float_control.h"
#include "rapt_layer.h"
#include "serial.h"
#include "tap.h"

/* ---- Good calls ------------------------------------------------------------------------------------------------------ */

/* What the calls below take, all of it set anew before each row. Memory of tensors, each shorter than its place: */
enum { Q, K, V, O, LSE, NEW_K, NEW_V, FROM_K, FROM_V, X, Y, Z, WQ, WK, WV, WO, OUT, RESIDUAL, SUM, MASK, FACTORS, TABLE, PLACES };
static _Alignas(RAPT_WORKSPACE_ALIGNMENT) float memory[PLACES][2048];
static _Alignas(RAPT_WORKSPACE_ALIGNMENT) char workspace[1 << 20];
static int32_t starts[5], lengths[4], token_starts[4], positions[8], pages[16], offsets[4];
static double frequencies[4];
static rapt_kv_range ranges[2];

static rapt_desc d, u; /* attention, and such that leaves states */
static rapt_args a, ua;
static rapt_kv_append_desc ad; /* writing caches */
static rapt_kv_append_args aa;
static rapt_kv_copy_desc cd; /* copying */
static rapt_kv_copy_args ca;
static rapt_rope_args ra;   /* rotating */
static rapt_decode_desc dd; /* the step of a decoder, of d and a */
static rapt_decode_args da;
static rapt_linear_desc ld; /* linear layers */
static rapt_linear_args la;
static rapt_linear_prepack_args pa;
static rapt_norm_args na; /* normalisation */
static rapt_mha_desc yd;  /* multi-head attention, of e and, where it is given, ea */
static rapt_mha_args ya;
static rapt_desc e;
static rapt_tuning tuned, lowest, highest; /* of d, e and ld, where they have one; its ranges */
static rapt_args ea;
static rapt_states states[2]; /* merging */
static const float *sources_o[2], *sources_lse[2];
static float *o_out, *lse_out;
static rapt_plan plan, merging;
static rapt_decode_plan decoding;
static rapt_linear_plan linear;
static rapt_mha_plan mha;
static rapt_plan_info info;
static rapt_mha_plan_info mha_info;

/* Numbers and pointers that functions take as they are. */
static int64_t ith, nth, task, slot, n, rows, channels, out, in, row_stride, first, count;
static int phase;
static double base;
static rapt_type type, to_type;
static rapt_parallel_for parallel;
static const float_mode *moded; /* the thread's modes during the call; null: the usual ones */
static rapt_barrier barrier;
static const char *isa, *name, *words;
static float *scales, *table;
static void *from, *to;
static _Alignas(uint64_t) char trial[sizeof(rapt_mha_plan) + 8];

/* And the structs' addresses, for calls that lack one. */
static struct {
    const rapt_desc *d;
    const rapt_args *a, *ua;
    const rapt_kv_append_desc *ad;
    const rapt_kv_append_args *aa;
    const rapt_kv_copy_desc *cd;
    const rapt_kv_copy_args *ca;
    const rapt_rope_args *ra;
    const rapt_decode_desc *dd;
    const rapt_decode_args *da;
    const rapt_linear_desc *ld;
    const rapt_linear_args *la;
    const rapt_linear_prepack_args *pa;
    const rapt_norm_args *na;
    const rapt_mha_desc *yd;
    const rapt_mha_args *ya;
    const rapt_states *states;
    const float *const *o, *const *lse;
    const rapt_plan *plan, *merging;
    const rapt_decode_plan *decoding;
    const rapt_linear_plan *linear;
    const rapt_mha_plan *mha;
    rapt_plan_info *info;
    rapt_mha_plan_info *mha_info;
    size_t *size;
    const char **name;
    char *names, *line;
    rapt_tuning *tuned, *lowest, *highest;
    double *frequencies;
    void *trial;
    size_t trial_bytes;
} give;

static void wait(void *arg) { (void)arg; }

static rapt_layout rows_of(rapt_type of, int64_t tokens, int64_t width) { return rapt_layout_bshd(of, 1, tokens, width); }

static void set_attention(void) {
    rapt_desc_init(&d);
    d.heads = 4, d.kv_heads = 2, d.q_len = 3, d.kv_len = 8, d.d_k = 8, d.d_v = 16;
    d.q = rapt_layout_bhsd(RAPT_F32, 4, 3, 8), d.o = rapt_layout_bhsd(RAPT_F32, 4, 3, 16);
    d.k = rapt_layout_bhsd(RAPT_F32, 2, 8, 8), d.v = rapt_layout_bhsd(RAPT_F32, 2, 8, 16);
    rapt_args_init(&a);
    a.q = memory[Q], a.k = memory[K], a.v = memory[V], a.o = memory[O];
    a.workspace = workspace, a.workspace_bytes = sizeof workspace;
    u = d, ua = a;
    u.unmerged = 1, u.states = (rapt_layout){RAPT_F32, 12 * 128, 3 * 128, 128};
    u.lse = rapt_layout_bhsd(RAPT_F32, 4, 3, 1);
    ua.lse = memory[LSE];
    for (int i = 0; i < 2; i++) states[i] = (rapt_states){memory[X + i], 12 * 128, 3 * 128, 128, 128, 1};
    for (int i = 0; i < 2; i++) sources_o[i] = memory[X + i], sources_lse[i] = memory[WQ + i];
    o_out = memory[O], lse_out = memory[LSE];
}

static void set_caches(void) {
    rapt_kv_append_desc_init(&ad);
    ad.kv_heads = 2, ad.tokens = 3, ad.kv_len = 8, ad.d_k = 8, ad.d_v = 16;
    ad.new_k = rapt_layout_bhsd(RAPT_F32, 2, 3, 8), ad.new_v = rapt_layout_bhsd(RAPT_F32, 2, 3, 16);
    ad.k = d.k, ad.v = d.v;
    rapt_kv_append_args_init(&aa);
    aa.new_k = memory[NEW_K], aa.new_v = memory[NEW_V], aa.k = memory[K], aa.v = memory[V];
    rapt_kv_copy_desc_init(&cd);
    cd.kv_heads = 2, cd.tokens = 8, cd.d_k = 8, cd.d_v = 16, cd.k = d.k, cd.v = d.v;
    rapt_kv_copy_args_init(&ca);
    ca.k = memory[K], ca.v = memory[V], ca.ranges = ranges, ca.count = 2;
    ranges[0] = ranges[1] = (rapt_kv_range){.from_token = 1, .to_token = 5, .tokens = 3};
    rapt_rope_args_init(&ra);
    ra.heads = 4, ra.tokens = 3, ra.d = 8, ra.in = ra.out = d.q, ra.from = memory[Q], ra.to = memory[OUT];
    ra.rope.channels = 8, ra.rope.frequencies = frequencies;
    rapt_decode_desc_init(&dd);
    dd.attention = &d, dd.new_k = ad.new_k, dd.new_v = ad.new_v, dd.rope = ra.rope;
    rapt_decode_args_init(&da);
    da.new_k = memory[NEW_K], da.new_v = memory[NEW_V], da.k = memory[K], da.v = memory[V], da.attention = &a;
    da.workspace = workspace, da.workspace_bytes = sizeof workspace;
}

/* Multi-head attention whose Y is X, without a cache. */
static void set_mha(void) {
    rapt_tuning_init(&tuned), rapt_tuning_init(&lowest), rapt_tuning_init(&highest);
    rapt_linear_desc_init(&ld);
    ld.tokens = 3, ld.in = 32, ld.out = 4;
    ld.x = rows_of(RAPT_F32, 3, 32), ld.y = rows_of(RAPT_F32, 3, 4), ld.weight = rows_of(RAPT_F32, 4, 32);
    rapt_linear_args_init(&la);
    la.x = memory[X], la.weight = memory[WQ], la.y = memory[OUT];
    la.workspace = workspace, la.workspace_bytes = sizeof workspace;
    rapt_linear_prepack_args_init(&pa);
    pa.weight = memory[WQ], pa.prepacked = workspace, pa.prepacked_bytes = sizeof workspace;
    rapt_norm_args_init(&na);
    na.tokens = 3, na.channels = 8, na.x = na.y = rows_of(RAPT_F32, 3, 8), na.from = memory[X], na.to = memory[Y];
    rapt_desc_init(&e);
    e.heads = 4, e.kv_heads = 2, e.q_len = 3, e.d_k = 8, e.d_v = 16;
    rapt_args_init(&ea);
    rapt_mha_desc_init(&yd);
    yd.attention = &e, yd.x_width = 32;
    yd.x = yd.out = rows_of(RAPT_F32, 3, 32), yd.wq = yd.wk = yd.wv = yd.x, yd.wo = rows_of(RAPT_F32, 32, 64);
    rapt_mha_args_init(&ya);
    ya.x = memory[X], ya.out = memory[OUT], ya.wq = memory[WQ], ya.wk = memory[WK], ya.wv = memory[WV], ya.wo = memory[WO];
    ya.workspace = workspace, ya.workspace_bytes = sizeof workspace;
}

static void reset(void) {
    static size_t size;
    static const char *found;
    static char names[8], printed[RAPT_TUNING_BYTES];
    memset(memory, 0, sizeof memory);
    memset(starts, 0, sizeof starts), memset(lengths, 0, sizeof lengths), memset(offsets, 0, sizeof offsets);
    memset(token_starts, 0, sizeof token_starts), memset(positions, 0, sizeof positions);
    for (int i = 0; i < 16; i++) pages[i] = i % 3;
    for (int i = 0; i < 4; i++) frequencies[i] = 1.0 / (1 + i);
    set_attention(), set_caches(), set_mha();
    info.size = sizeof info, mha_info.size = sizeof mha_info;
    ith = 0, nth = 1, phase = 0, task = 0, slot = 0, n = 2, rows = 3, channels = 16, first = 0, count = 4;
    out = 4, in = 32, row_stride = 128, type = RAPT_F32, to_type = RAPT_Q8_0;
    base = 10000.0, parallel = serial, barrier = wait, isa = NULL, name = "scalar", words = "scalar few_rows=2";
    from = memory[WQ], to = memory[OUT], scales = memory[FACTORS], table = memory[TABLE];
    give.d = &d, give.a = &a, give.ua = &ua, give.ad = &ad, give.aa = &aa, give.cd = &cd, give.ca = &ca, give.ra = &ra;
    give.dd = &dd, give.da = &da, give.ld = &ld, give.la = &la, give.pa = &pa, give.na = &na, give.yd = &yd, give.ya = &ya;
    give.states = states, give.o = sources_o, give.lse = sources_lse, give.plan = &plan, give.merging = &merging;
    give.decoding = &decoding, give.linear = &linear, give.mha = &mha, give.info = &info, give.mha_info = &mha_info;
    give.size = &size, give.name = &found, give.names = names, give.line = printed, give.tuned = &tuned, give.lowest = &lowest,
    give.highest = &highest, give.frequencies = (double *)(void *)memory[TABLE];
    give.trial = trial, give.trial_bytes = sizeof trial - 8;
    moded = NULL;
    unsetenv("RAPT_ISA");
    rapt_isa_force(NULL);
}

/* Plans of what a row has described. */
static void make_plans(void) {
    memset(&plan, 0, sizeof plan), memset(&merging, 0, sizeof merging), memset(&decoding, 0, sizeof decoding);
    memset(&linear, 0, sizeof linear), memset(&mha, 0, sizeof mha);
    rapt_plan_init(&plan, &d), rapt_plan_init(&merging, &u), rapt_decode_plan_init(&decoding, &dd);
    rapt_linear_plan_init(&linear, &ld), rapt_mha_plan_init(&mha, &yd);
}

/* ---- The functions --------------------------------------------------------------------------------------------------- */

/* The call, and what explains it; some are explained by their trace only. Of each function of the library that is named here, or
 * made of a prefix below, it defines two: call_rapt_plan_init, explain_rapt_plan_init and so on. */
#define FUNCTION(name, call, explanation)                                                                                        \
    static rapt_status call_##name(void) { return call; }                                                                        \
    static rapt_status explain_##name(char *text, size_t bytes) { return explanation; }

static rapt_status by_trace(char *text, size_t bytes) {
    if (text && bytes) *text = '\0';
    return RAPT_OK;
}

#define MADE(function, desc) function##_sized(give.trial, give.trial_bytes, give.desc)
FUNCTION(rapt_plan_init, MADE(rapt_plan_init, d), rapt_plan_explain(give.d, text, bytes))
FUNCTION(rapt_decode_plan_init, MADE(rapt_decode_plan_init, dd), rapt_decode_explain(give.dd, text, bytes))
FUNCTION(rapt_linear_plan_init, MADE(rapt_linear_plan_init, ld), rapt_linear_explain(give.ld, text, bytes))
FUNCTION(rapt_mha_plan_init, MADE(rapt_mha_plan_init, yd), rapt_mha_explain(give.yd, text, bytes))
#undef MADE

FUNCTION(rapt_plan_query, rapt_plan_query(give.plan, give.info), by_trace(text, bytes))
FUNCTION(rapt_decode_plan_query, rapt_decode_plan_query(give.decoding, give.info), by_trace(text, bytes))
FUNCTION(rapt_mha_plan_query, rapt_mha_plan_query(give.mha, give.mha_info), by_trace(text, bytes))
FUNCTION(rapt_workspace_size, rapt_workspace_size(give.plan, nth, give.size), by_trace(text, bytes))
FUNCTION(rapt_decode_workspace_size, rapt_decode_workspace_size(give.decoding, nth, give.size), by_trace(text, bytes))
FUNCTION(rapt_linear_workspace_size, rapt_linear_workspace_size(give.linear, nth, give.size), by_trace(text, bytes))
FUNCTION(rapt_linear_prepacked_size, rapt_linear_prepacked_size(give.linear, give.size), by_trace(text, bytes))
FUNCTION(rapt_mha_workspace_size, rapt_mha_workspace_size(give.mha, nth, give.size), by_trace(text, bytes))

/* Defines call_rapt_run, call_rapt_run_parallel, call_rapt_run_share, call_rapt_run_phase, explain_rapt_run and so on, and
 * likewise those of rapt_decode and rapt_mha. */
#define RUNS(prefix, plan, args)                                                                                                 \
    FUNCTION(prefix##_run, prefix##_run(give.plan, give.args), prefix##_args_explain(give.plan, give.args, 1, text, bytes))      \
    FUNCTION(prefix##_run_parallel, prefix##_run_parallel(give.plan, give.args, nth, parallel, NULL),                            \
             prefix##_args_explain(give.plan, give.args, nth, text, bytes))                                                      \
    FUNCTION(prefix##_run_share, prefix##_run_share(give.plan, give.args, ith, nth, barrier, NULL),                              \
             prefix##_args_explain(give.plan, give.args, nth, text, bytes))                                                      \
    FUNCTION(prefix##_run_phase, prefix##_run_phase(give.plan, give.args, phase, ith, nth),                                      \
             prefix##_args_explain(give.plan, give.args, nth, text, bytes))
RUNS(rapt, plan, a)
RUNS(rapt_decode, decoding, da)
RUNS(rapt_mha, mha, ya)
#undef RUNS
FUNCTION(rapt_run_task, rapt_run_task(give.plan, give.a, phase, task, slot),
         rapt_args_explain(give.plan, give.a, slot >= 0 && slot < INT64_MAX ? slot + 1 : 1, text, bytes))

/* call_rapt_linear_run, call_rapt_linear_run_parallel, call_rapt_linear_run_share, and explain_rapt_linear_run and so on; the
 * same of rapt_linear_prepack, rapt_layer_norm, rapt_rms_norm, rapt_kv_append, rapt_kv_copy, rapt_rope and rapt_merge_states. */
#define ONE_PHASE(prefix, explanation, ...)                                                                                      \
    FUNCTION(prefix##_run, prefix##_run(__VA_ARGS__), explanation)                                                               \
    FUNCTION(prefix##_run_parallel, prefix##_run_parallel(__VA_ARGS__, nth, parallel, NULL), explanation)                        \
    FUNCTION(prefix##_run_share, prefix##_run_share(__VA_ARGS__, ith, nth), explanation)
ONE_PHASE(rapt_linear, rapt_linear_args_explain(give.linear, give.la, nth, text, bytes), give.linear, give.la)
ONE_PHASE(rapt_linear_prepack, rapt_linear_prepack_args_explain(give.linear, give.pa, nth, text, bytes), give.linear, give.pa)
ONE_PHASE(rapt_layer_norm, rapt_layer_norm_explain(give.na, text, bytes), give.na)
ONE_PHASE(rapt_rms_norm, rapt_rms_norm_explain(give.na, text, bytes), give.na)
ONE_PHASE(rapt_kv_append, rapt_kv_append_explain(give.ad, give.aa, text, bytes), give.ad, give.aa)
ONE_PHASE(rapt_kv_copy, rapt_kv_copy_explain(give.cd, give.ca, text, bytes), give.cd, give.ca)
ONE_PHASE(rapt_rope, rapt_rope_explain(give.ra, text, bytes), give.ra)
ONE_PHASE(rapt_merge_states, rapt_merge_states_explain(give.merging, give.ua, give.states, n, text, bytes), give.merging, give.ua,
          give.states, n)
#undef ONE_PHASE
FUNCTION(rapt_merge, rapt_merge(n, rows, channels, give.o, give.lse, o_out, lse_out),
         rapt_merge_explain(n, rows, channels, give.o, give.lse, o_out, lse_out, text, bytes))
FUNCTION(rapt_quantise_weights, rapt_quantise_weights(out, in, type, row_stride, from, to, scales),
         rapt_quantise_weights_explain(out, in, type, row_stride, from, to, scales, text, bytes))
FUNCTION(rapt_quantise_groups, rapt_quantise_groups(out, in, type, row_stride, from, to_type, to),
         rapt_quantise_groups_explain(out, in, type, row_stride, from, to_type, to, text, bytes))

FUNCTION(rapt_rope_frequencies, rapt_rope_frequencies(base, channels, give.frequencies), by_trace(text, bytes))
FUNCTION(rapt_sinusoidal, rapt_sinusoidal(first, count, channels, table), by_trace(text, bytes))
FUNCTION(rapt_alibi_slopes, rapt_alibi_slopes(count, table), by_trace(text, bytes))
FUNCTION(rapt_isa_usable, rapt_isa_usable(name, NULL, 0), by_trace(text, bytes))
FUNCTION(rapt_isa_force, rapt_isa_force(name), by_trace(text, bytes))
FUNCTION(rapt_isa_current, rapt_isa_current(give.name), by_trace(text, bytes))
FUNCTION(rapt_cpu_features, rapt_cpu_features(give.names, 8), by_trace(text, bytes))
FUNCTION(rapt_tuning_query, rapt_tuning_query(isa, give.tuned, give.lowest, give.highest), by_trace(text, bytes))
FUNCTION(rapt_tuning_parse, rapt_tuning_parse(words, give.tuned), rapt_tuning_parse_explain(words, give.tuned, text, bytes))
FUNCTION(rapt_tuning_print, rapt_tuning_print(give.tuned, give.line, give.trial_bytes), by_trace(text, bytes))
FUNCTION(rapt_self_check, rapt_self_check(isa, NULL, 0), rapt_self_check(isa, text, bytes))
FUNCTION(rapt_self_check_in, rapt_self_check_in(to, (size_t)count, isa, NULL, 0),
         rapt_self_check_in(to, (size_t)count, isa, text, bytes))

/* ---- A row ----------------------------------------------------------------------------------------------------------- */

int explain_refusals;

enum { LINE_BYTES = 512 };
static char all_lines[1 << 17]; /* of the table, each after a newline */
static size_t all_used;

/* Lines that the trace gets from a function, the first of them, and lines of others. */
typedef struct traces {
    const char *function;
    int lines, others;
    char first[LINE_BYTES];
} traces;

static void keep(void *arg, const char *line) {
    traces *t = arg;
    const size_t length = strlen(t->function);
    if (strncmp(line, t->function, length) != 0 || line[length] != ':') t->others++;
    else if (t->lines++ == 0) snprintf(t->first, sizeof t->first, "%s", line);
}

/* True if the line is cut to `bytes`, with its terminator, and nothing is written after it. */
static bool cut_well(rapt_status (*explain)(char *, size_t), rapt_status status, const char *line, size_t bytes) {
    char text[LINE_BYTES + 1], want[LINE_BYTES + 1];
    memset(text, '#', sizeof text), memset(want, '#', sizeof want);
    if (bytes) snprintf(want, bytes, "%s", line);
    return explain(text, bytes) == status && memcmp(text, want, sizeof text) == 0;
}

/* As vsnprintf; pointers as the library writes them, which on Windows is not what %p does. */
static void format_line(char line[LINE_BYTES], const char *format, va_list values) {
#if defined(_WIN32)
    char own[LINE_BYTES], *end = own;
    for (const char *at = format; *at; at++)
        if (strncmp(at, "%p", 2) == 0) memcpy(end, "0x%llx", 6), end += 6, at++;
        else *end++ = *at;
    *end = '\0';
    format = own;
#endif
    vsnprintf(line, LINE_BYTES, format, values);
}

/* explained: what explains it says the same; else it takes nothing that is wrong, and finds nothing. */
__attribute__((format(printf, 7, 8))) static void check(const char *function, rapt_status (*call)(void),
                                                        rapt_status (*explain)(char *, size_t), bool explained,
                                                        rapt_status status, const char *mistake, const char *format, ...) {
    char line[LINE_BYTES], prefixed[LINE_BYTES + 64], text[LINE_BYTES];
    va_list values;
    va_start(values, format);
    format_line(line, format, values);
    va_end(values);
    snprintf(prefixed, sizeof prefixed, "%s: %s", function, line);
    if (*line && all_used + strlen(line) + 2 < sizeof all_lines)
        all_used += (size_t)snprintf(all_lines + all_used, sizeof all_lines - all_used, "\n%s", line);

    const rapt_status expected = explained ? status : RAPT_OK;
    const char *explanation = explained ? line : "";
    const bool set = moded && set_float_mode(moded);
    rapt_status found = explain(text, sizeof text);
    bool good =
        found == expected && strcmp(text, explanation) == 0 && explain(NULL, 0) == expected && explain(NULL, 8) == expected;
    for (size_t bytes = 0; bytes <= 8; bytes += bytes ? 7 : 1) good = good && cut_well(explain, expected, explanation, bytes);
    good = good && cut_well(explain, expected, explanation, LINE_BYTES);

    traces t = {.function = function};
    const rapt_trace trace = {keep, &t};
    rapt_trace_to(&trace);
    good = good && explain(text, sizeof text) == expected && t.lines == 0;
    rapt_status called = call();
    rapt_trace_to(NULL);
    const bool makes_plan = strstr(function, "plan_init") != NULL, makes_others = strstr(function, "rapt_self_check") != NULL;
    good = good && called == status && (t.others == 0 || makes_others);
    if (status != RAPT_OK) good = good && t.lines == 1 && strcmp(t.first, prefixed) == 0 && *line;
    else good = good && t.lines == makes_plan && (!makes_plan || strncmp(t.first, prefixed, strlen(prefixed)) == 0);
    good = good && call() == status;
    if (set) reset_float_mode();
    tap_ok(good, "%s: %s: %s", function, mistake, *line ? line : "nothing is refused");
    if (!good)
        printf("# wanted %d %s\n# explained %d %s\n# returned %d, %d + %d traced, first: %s\n", status, prefixed, found, text,
               called, t.lines, t.others, t.first);
}

enum { UNCHANGED };

/* A mistake, its status and line, printf's format and what it wants; one that what explains the call does not look at, for that
 * takes no thread numbers, plans' memory and the like; one that is made when the plans of a change have been made; and a good
 * call. */
#define ROW(function, explained, status, mistake, words, ...)                                                                    \
    (reset(), (void)(mistake), make_plans(),                                                                                     \
     check(#function, call_##function, explain_##function, explained, status, words, __VA_ARGS__))
#define REFUSED(function, mistake, status, ...) ROW(function, true, RAPT_ERR_##status, mistake, #mistake, __VA_ARGS__)
#define TRACED(function, mistake, status, ...)  ROW(function, false, RAPT_ERR_##status, mistake, #mistake, __VA_ARGS__)
#define CHANGED(function, change, mistake, status, ...)                                                                          \
    (reset(), (void)(change), make_plans(), (void)(mistake),                                                                     \
     check(#function, call_##function, explain_##function, true, RAPT_ERR_##status, #change ", then " #mistake, __VA_ARGS__))
#define GOOD(function, change) ROW(function, true, RAPT_OK, change, #change, "%s", "")

/* ---- The table ------------------------------------------------------------------------------------------------------- */

/* Addresses of nothing: they are refused before anything is read there. */
#define SOMEWHERE ((void *)64)
#define ODD       ((void *)66)
#define LAST      ((void *)(UINTPTR_MAX - 7))

/* The types that are needed, where another one is given. */
#define FLOATS          "RAPT_F32, RAPT_F16 or RAPT_BF16 is needed"
#define INTEGER_WEIGHTS "must be RAPT_INT8, Q8_0, Q4_0, Q4_1, Q4_K or Q6_K for RAPT_INT8_DOT"
#define WEIGHTS         "RAPT_F32, RAPT_F16, RAPT_BF16, RAPT_INT8, RAPT_Q8_0, RAPT_Q4_0, RAPT_Q4_1, RAPT_Q4_K or RAPT_Q6_K is needed"
#define GROUPS          "RAPT_Q8_0, RAPT_Q4_0 or RAPT_Q4_1 is needed"
#define MASKS           "RAPT_BOOL or RAPT_BIT is needed"
#define ONLY(type)      "RAPT_" type " is needed"
#define KV                                                                                                                       \
    "RAPT_F32, RAPT_F16, RAPT_BF16, RAPT_F8_E4M3, RAPT_F8_E5M2, RAPT_INT8, RAPT_INT4, RAPT_INT4_MIN, RAPT_Q8_0, RAPT_Q4_0, "     \
    "RAPT_Q4_1, RAPT_Q5_0, RAPT_Q5_1, RAPT_MXFP4, RAPT_MXFP8_E4M3 or RAPT_NVFP4 is needed"

static rapt_layout of_type(rapt_type of) { return (rapt_layout){.type = of}; }

/* The kernels that were built, as the line of an unknown one ends. */
static const char *kernel_names(void) {
    static char names[256];
    size_t used = 0;
    for (int i = 0; rapt_isa_name(i); i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", rapt_isa_name(i));
    return names;
}

/* A struct of a newer version, with bytes after what is known here. */
static void *newer(const void *known, size_t bytes, unsigned char last) {
    static _Alignas(max_align_t) unsigned char larger[2048];
    size_t size;
    memcpy(larger, known, bytes);
    memcpy(&size, known, sizeof size);
    size += 16;
    memcpy(larger, &size, sizeof size);
    memset(larger + bytes, 0, 16);
    larger[bytes + 15] = last;
    return larger;
}

/* What all structs with a size have in common. least: bytes that the first version had. */
#define STRUCTS(function, object, what, least)                                                                                   \
    do {                                                                                                                         \
        REFUSED(function, give.object = NULL, NULL, what " = null: there is no such struct");                                    \
        MARKED(function, object, what, least);                                                                                   \
        GOOD(function, give.object = newer(&object, sizeof object, 0));                                                          \
        REFUSED(function, give.object = newer(&object, sizeof object, 1), STRUCT,                                                \
                what ".size = %zu: byte %zu belongs to a field that version %s has not", sizeof object + 16, sizeof object + 15, \
                rapt_version());                                                                                                 \
    } while (0)
#define MARKED(function, object, what, least)                                                                                    \
    do {                                                                                                                         \
        REFUSED(function, memset(&object, 0, sizeof object), STRUCT, what ".size = 0: was not set by its init function");        \
        REFUSED(function, object.size = sizeof object, STRUCT, what ".size = %zu: was not set by its init function",             \
                sizeof object);                                                                                                  \
        REFUSED(function, object.size -= sizeof object - (least) + 1, STRUCT,                                                    \
                what ".size = %zu: no version had less than %zu bytes", (least) - 1, (size_t)(least));                           \
    } while (0)

/* The fewest bytes that hold a plan. */
static size_t least_bytes(rapt_status (*init)(void)) {
    for (reset(), give.trial_bytes = 0; init() == RAPT_ERR_STRUCT;) give.trial_bytes++;
    return give.trial_bytes;
}

#define PLAN_MEMORY(function)                                                                                                    \
    do {                                                                                                                         \
        const size_t least = least_bytes(call_##function);                                                                       \
        TRACED(function, give.trial = NULL, NULL, "plan = null: there is no memory for the plan");                               \
        TRACED(function, give.trial_bytes = least - 1, STRUCT, "bytes = %zu: a plan takes at least %zu", least - 1, least);      \
        TRACED(function, give.trial = trial + 2, ALIGNMENT, "plan = %p: not aligned to %d bytes", (void *)(trial + 2),           \
               (int)_Alignof(uint64_t));                                                                                         \
    } while (0)

/* What functions that take a plan have in common. */
#define PLANS(function, object, maker)                                                                                           \
    do {                                                                                                                         \
        REFUSED(function, give.object = NULL, NULL, "plan = null: there is no plan");                                            \
        REFUSED(function, give.object = (void *)workspace, PLAN, "plan = %p: was not made by " maker " of this version",         \
                (void *)workspace);                                                                                              \
        REFUSED(function, give.object = (void *)(workspace + 4), PLAN, "plan = %p: was not made by " maker " of this version",   \
                (void *)(workspace + 4));                                                                                        \
    } while (0)
#define TRACED_PLANS(function, object, maker)                                                                                    \
    do {                                                                                                                         \
        TRACED(function, give.object = NULL, NULL, "plan = null: there is no plan");                                             \
        TRACED(function, give.object = (void *)workspace, PLAN, "plan = %p: was not made by " maker " of this version",          \
               (void *)workspace);                                                                                               \
    } while (0)

/* Threads, where what explains the call takes them too, and where it does not. */
#define THREADS(function)                                                                                                        \
    do {                                                                                                                         \
        GOOD(function, (ith = 2, nth = 3));                                                                                      \
        TRACED(function, ith = -1, RANGE, "ith = -1: not one of the nth = 1 threads");                                           \
        TRACED(function, (ith = 2, nth = 2), RANGE, "ith = 2: not one of the nth = 2 threads");                                  \
    } while (0)

/* The ways to run what has one phase, where what explains it takes no threads, and where it does. */
#define WAYS(prefix, args)                                                                                                       \
    do {                                                                                                                         \
        GOOD(prefix##_run_parallel, nth = 3);                                                                                    \
        REFUSED(prefix##_run_parallel, give.args = NULL, NULL, "args = null: there is no such struct");                          \
        REFUSED(prefix##_run_share, give.args = NULL, NULL, "args = null: there is no such struct");                             \
        TRACED(prefix##_run_parallel, nth = 0, RANGE, "nth = 0: there is no thread");                                            \
        TRACED(prefix##_run_parallel, parallel = NULL, NULL, "parallel_for = null: there is nobody to run it");                  \
        TRACED(prefix##_run_share, nth = -1, RANGE, "nth = -1: there is no thread");                                             \
        THREADS(prefix##_run_share);                                                                                             \
    } while (0)
#define EXPLAINED_WAYS(prefix)                                                                                                   \
    do {                                                                                                                         \
        GOOD(prefix##_run_parallel, nth = 3);                                                                                    \
        REFUSED(prefix##_run_parallel, nth = 0, RANGE, "nth = 0: there is no thread");                                           \
        TRACED(prefix##_run_parallel, parallel = NULL, NULL, "parallel_for = null: there is nobody to run it");                  \
        REFUSED(prefix##_run_share, nth = -1, RANGE, "nth = -1: there is no thread");                                            \
        THREADS(prefix##_run_share);                                                                                             \
    } while (0)

/* The line that refuses a mode; "" where it cannot be had here. */
static const char *line_of(const float_mode *m, const char *who) {
    static char line[LINE_BYTES];
    uint64_t control;
    if (!float_control_with(m, &control)) return "";
    snprintf(line, sizeof line, "%s = 0x%" PRIx64 ": %s %s", rapt_float_register, control, who, m->words);
    return line;
}

/* What computes, on a thread that rounds up: other builds do not look. */
#define ROUNDS_UP(function)                                                                                                      \
    do {                                                                                                                         \
        if (RAPT_CHECK_FP && *line_of(&float_modes[0], "the thread"))                                                            \
            REFUSED(function, moded = &float_modes[0], FLOAT_MODE, "%s", line_of(&float_modes[0], "the thread"));                \
        else GOOD(function, moded = &float_modes[0]);                                                                            \
    } while (0)
#define TRACED_ROUNDS_UP(function)                                                                                               \
    do {                                                                                                                         \
        if (RAPT_CHECK_FP && *line_of(&float_modes[0], "the thread"))                                                            \
            TRACED(function, moded = &float_modes[0], FLOAT_MODE, "%s", line_of(&float_modes[0], "the thread"));                 \
        else GOOD(function, moded = &float_modes[0]);                                                                            \
    } while (0)

/* A parallel_for of which one thread rounds up. */
static void rounding_up(void *pool, int64_t slots, rapt_body body, void *arg) {
    (void)pool;
    for (int64_t i = 0; i < slots; i++) {
        const bool set = i == slots / 2 && set_float_mode(&float_modes[0]);
        body(arg, i);
        if (set) reset_float_mode();
    }
}

static void float_control(void) {
    for (int i = 0; i < FLOAT_MODES && RAPT_CHECK_FP; i++)
        if (*line_of(&float_modes[i], "the thread"))
            REFUSED(rapt_run, moded = &float_modes[i], FLOAT_MODE, "%s", line_of(&float_modes[i], "the thread"));
    ROUNDS_UP(rapt_plan_init);
    ROUNDS_UP(rapt_decode_plan_init);
    ROUNDS_UP(rapt_mha_plan_init);
    GOOD(rapt_linear_plan_init, moded = &float_modes[0]);
    ROUNDS_UP(rapt_run);
    ROUNDS_UP(rapt_run_parallel);
    ROUNDS_UP(rapt_run_share);
    ROUNDS_UP(rapt_run_phase);
    ROUNDS_UP(rapt_run_task);
    ROUNDS_UP(rapt_decode_run);
    ROUNDS_UP(rapt_mha_run);
    ROUNDS_UP(rapt_linear_run);
    ROUNDS_UP(rapt_linear_prepack_run);
    ROUNDS_UP(rapt_layer_norm_run);
    ROUNDS_UP(rapt_rms_norm_run);
    ROUNDS_UP(rapt_kv_append_run);
    ROUNDS_UP(rapt_rope_run);
    ROUNDS_UP(rapt_merge_states_run);
    ROUNDS_UP(rapt_merge);
    ROUNDS_UP(rapt_quantise_weights);
    ROUNDS_UP(rapt_quantise_groups);
    TRACED_ROUNDS_UP(rapt_rope_frequencies);
    TRACED_ROUNDS_UP(rapt_sinusoidal);
    TRACED_ROUNDS_UP(rapt_alibi_slopes);
    GOOD(rapt_kv_copy_run, moded = &float_modes[0]);
    GOOD(rapt_kv_copy_run_parallel, (nth = 3, parallel = rounding_up));
    GOOD(rapt_kv_copy_run_share, moded = &float_modes[0]);
    if (RAPT_CHECK_FP && *line_of(&float_modes[0], "a thread of parallel_for"))
        TRACED(rapt_run_parallel, (nth = 3, parallel = rounding_up), FLOAT_MODE, "%s",
               line_of(&float_modes[0], "a thread of parallel_for"));
}

/* Pages of 4 keys, 3 of them in the pool: entry 0 has pages 0 and 1. */
static void paged(rapt_desc *of) {
    of->page_size = 4, of->pages = 3, of->table = (rapt_layout){RAPT_I32, 8, 0, 0};
    of->k = rapt_layout_bhsd(of->k.type, 2, 4, 8), of->v = rapt_layout_bhsd(of->v.type, 2, 4, 16);
    a.table = ea.table = pages;
}

/* The same with a table by entries' starts, of 2 entries with 2 pages each. */
static void listed(void) {
    paged(&d);
    d.batch = 2;
    starts[1] = 2, starts[2] = 4;
    a.table_starts = starts;
}

/* 2 entries of 1 and 2 queries, and all keys each. */
/* Starts of one entry without tokens where a plan will be. */
static const int32_t *kept(void) {
    memset(trial, 0, sizeof trial);
    return (const int32_t *)(const void *)trial;
}

static void ragged(rapt_desc *of) {
    of->batch = 2, of->q_starts = token_starts;
    token_starts[1] = 1, token_starts[2] = 3;
}

static void attention_plans(void) {
    GOOD(rapt_plan_init, UNCHANGED);
    GOOD(rapt_plan_init, d = u);
    GOOD(rapt_plan_init, paged(&d));
    GOOD(rapt_plan_init, ragged(&d));
    PLAN_MEMORY(rapt_plan_init);
    TRACED(rapt_plan_init, d.q_starts = kept(), OVERLAP, "plan = %p: its %zu bytes meet the 8 of q_starts = %p", (void *)trial,
           RAPT_PLAN_BYTES(1), (void *)trial);
    STRUCTS(rapt_plan_init, d, "desc", offsetof(rapt_desc, mask_keys));
    /* Sizes. */
    REFUSED(rapt_plan_init, d.batch = -1, SHAPE, "batch = -1: must be 0 to 2147483647");
    REFUSED(rapt_plan_init, d.heads = 0, SHAPE, "heads = 0: must be 1 to 2147483647");
    REFUSED(rapt_plan_init, d.kv_heads = 0, SHAPE, "kv_heads = 0: must be 1 to 2147483647");
    REFUSED(rapt_plan_init, d.q_len = -3, SHAPE, "q_len = -3: must be 0 to 2147483647");
    REFUSED(rapt_plan_init, d.kv_len = INT64_C(1) << 31, SHAPE, "kv_len = 2147483648: must be 0 to 2147483647");
    REFUSED(rapt_plan_init, d.kv_len = INT64_MIN, SHAPE, "kv_len = -9223372036854775808: must be 0 to 2147483647");
    REFUSED(rapt_plan_init, d.d_k = 0, SHAPE, "d_k = 0: must be 1 to 1024");
    REFUSED(rapt_plan_init, d.d_v = 1025, SHAPE, "d_v = 1025: must be 1 to 1024");
    REFUSED(rapt_plan_init, d.heads = 3, HEADS, "heads = 3: not a multiple of kv_heads = 2");
    REFUSED(rapt_plan_init, d.threads = 0, RANGE, "threads = 0: must be 1 to 2147483647");
    /* Which keys are attended. */
    REFUSED(rapt_plan_init, d.causal = (rapt_causal)3, MASK, "causal = 3: not a rapt_causal");
    REFUSED(rapt_plan_init, d.window_left = -2, MASK, "window_left = -2: must be -1 or more");
    REFUSED(rapt_plan_init, d.window_right = -2, MASK, "window_right = -2: must be -1 or more");
    REFUSED(rapt_plan_init, d.prefix = -1, FEATURE, "prefix = -1: must be 0 or more");
    REFUSED(rapt_plan_init, d.local_chunk = -1, FEATURE, "local_chunk = -1: must be 0 or more");
    REFUSED(rapt_plan_init, d.block_mask = of_type(RAPT_BOOL), FEATURE, "block_mask_queries = 0: must be 1 or more");
    REFUSED(rapt_plan_init, (d.block_mask = of_type(RAPT_BOOL), d.block_mask_queries = 1, d.block_mask_keys = 32), FEATURE,
            "block_mask_keys = 32: must be a multiple of 64, and not 0");
    REFUSED(rapt_plan_init, (d.block_mask = of_type(RAPT_BOOL), d.block_mask_queries = 1), FEATURE,
            "block_mask_keys = 0: must be a multiple of 64, and not 0");
    REFUSED(rapt_plan_init, d.mask_keys = -1, SHAPE, "mask_keys = -1: must be 0 to 2147483647");
    REFUSED(rapt_plan_init, d.mask_rest = (rapt_rest)3, FEATURE, "mask_rest = 3: not a rapt_rest");
    REFUSED(rapt_plan_init, d.mask_key_stride = 4, FEATURE, "mask_key_stride = 4: must be 0 or 1");
    /* What becomes of scores. */
    REFUSED(rapt_plan_init, d.scale = INFINITY, SCALE, "scale = inf: must be finite, or NaN for 1/sqrt(d_k)");
    REFUSED(rapt_plan_init, d.scale = -INFINITY, SCALE, "scale = -inf: must be finite, or NaN for 1/sqrt(d_k)");
    GOOD(rapt_plan_init, d.scale = 0);
    REFUSED(rapt_plan_init, d.softcap = -1, FEATURE, "softcap = -1: must be finite, 0 or more");
    REFUSED(rapt_plan_init, d.softcap = -0.5f, FEATURE, "softcap = -0.5: must be finite, 0 or more");
    REFUSED(rapt_plan_init, d.softcap = -123456, FEATURE, "softcap = -123456: must be finite, 0 or more");
    REFUSED(rapt_plan_init, d.softcap = -0x1p-13f, FEATURE, "softcap = -0.00012207: must be finite, 0 or more");
    REFUSED(rapt_plan_init, d.softcap = -1e-10f, FEATURE, "softcap = -1e-10: must be finite, 0 or more");
    REFUSED(rapt_plan_init, d.softcap = -2.5e30f, FEATURE, "softcap = -2.5e30: must be finite, 0 or more");
    REFUSED(rapt_plan_init, d.softcap = -9999999.0f, FEATURE, "softcap = -1e7: must be finite, 0 or more");
    REFUSED(rapt_plan_init, d.softcap = NAN, FEATURE, "softcap = nan: must be finite, 0 or more");
    REFUSED(rapt_plan_init, d.bias_keys = INT64_MAX, SHAPE, "bias_keys = 9223372036854775807: must be 0 to 2147483647");
    REFUSED(rapt_plan_init, d.bias_rest = (rapt_rest)-1, FEATURE, "bias_rest = -1: not a rapt_rest");
    REFUSED(rapt_plan_init, d.bias_key_stride = -1, FEATURE, "bias_key_stride = -1: must be 0 or 1");
    REFUSED(rapt_plan_init, d.alibi = (rapt_alibi)3, FEATURE, "alibi = 3: not a rapt_alibi");
    REFUSED(rapt_plan_init, d.alibi = RAPT_ALIBI_DISTANCE, FEATURE, "slopes.type = RAPT_NONE: alibi = 1 wants slopes");
    REFUSED(rapt_plan_init, (d.alibi = RAPT_ALIBI_BIAS, d.slopes = of_type(RAPT_F32)), FEATURE,
            "bias.type = RAPT_NONE: alibi = RAPT_ALIBI_BIAS wants a bias");
    REFUSED(rapt_plan_init, d.scores_stage = (rapt_scores_stage)5, FEATURE, "scores_stage = 5: not a rapt_scores_stage");
    REFUSED(rapt_plan_init, d.scores_stage = RAPT_SCORES_RAW, FEATURE, "scores.type = RAPT_NONE: scores_stage = 1 wants scores");
    REFUSED(rapt_plan_init, d.scores = of_type(RAPT_F32), FEATURE, "scores_stage = 0: there are scores, of type RAPT_F32");
    REFUSED(rapt_plan_init, (d = u, d.scores_stage = RAPT_SCORES_WEIGHTS, d.scores = of_type(RAPT_F32)), FEATURE,
            "unmerged = 1: must be 0 where weights are wanted");
    REFUSED(rapt_plan_init, d.arith = (rapt_arith)3, ARITH, "arith = 3: not a rapt_arith");
    REFUSED(rapt_plan_init, d.arith = RAPT_INT8_DOT, ARITH,
            "k.type = RAPT_F32: must be RAPT_INT8, INT4, Q8_0, Q4_0 or Q5_0 for RAPT_INT8_DOT");
    REFUSED(rapt_plan_init, (d.arith = RAPT_INT8_DOT, d.k.type = RAPT_INT8), ARITH,
            "v.type = RAPT_F32: must be RAPT_INT8, INT4, Q8_0, Q4_0 or Q5_0 for RAPT_INT8_DOT");
    /* Pages, and parts of sequences. */
    REFUSED(rapt_plan_init, d.page_size = -1, FEATURE, "page_size = -1: must be 0 to 2147483647");
    REFUSED(rapt_plan_init, (paged(&d), d.pages = -1), FEATURE, "pages = -1: must be 0 to 2147483647");
    REFUSED(rapt_plan_init, d.page_size = 4, FEATURE, "table.type = RAPT_NONE: page_size = 4 wants a table");
    REFUSED(rapt_plan_init, (paged(&d), d.page_size = 0), FEATURE, "page_size = 0: there is a table, of type RAPT_I32");
    REFUSED(rapt_plan_init, (paged(&d), d.k_starts = starts), FEATURE, "k_starts = %p: pages have no ragged keys",
            (void *)starts);
    REFUSED(rapt_plan_init, d.kv_first = 100, FEATURE, "kv_first = 100: must be a multiple of 512");
    REFUSED(rapt_plan_init, d.kv_first = -512, FEATURE, "kv_first = -512: must be a multiple of 512");
    REFUSED(rapt_plan_init, (d.kv_first = 512, d.k_starts = starts), FEATURE, "kv_first = 512: must be 0 where keys are ragged");
    REFUSED(rapt_plan_init, (d.kv_first = 2147483136, d.kv_len = 600), SHAPE,
            "kv_first = 2147483136: with kv_len = 600 above 2147483647");
    REFUSED(rapt_plan_init, d.kv_total = -1, SHAPE, "kv_total = -1: must be 0 to 2147483647");
    /* Ragged batches. */
    REFUSED(rapt_plan_init, d.q_starts = ODD, ALIGNMENT, "q_starts = 0x42: not aligned to its elements of 4 bytes");
    REFUSED(rapt_plan_init, (ragged(&d), token_starts[0] = -1), TABLE, "q_starts[0] = -1: must be 0 or more");
    REFUSED(rapt_plan_init, (ragged(&d), token_starts[1] = 4), TABLE, "q_starts[2] = 3: below the one before");
    REFUSED(rapt_plan_init, (ragged(&d), token_starts[2] = 4), TABLE, "q_starts[2] = 4: there are 3 tokens");
    REFUSED(rapt_plan_init, (d.k_starts = starts, starts[1] = 9), TABLE, "k_starts[1] = 9: there are 8 tokens");
    /* Tensors: types, */
    REFUSED(rapt_plan_init, d.q.type = RAPT_INT8, TYPE, "q.type = RAPT_INT8: " FLOATS);
    REFUSED(rapt_plan_init, d.k.type = RAPT_NONE, TYPE, "k.type = RAPT_NONE: " KV);
    REFUSED(rapt_plan_init, d.v.type = RAPT_BOOL, TYPE, "v.type = RAPT_BOOL: " KV);
    REFUSED(rapt_plan_init, d.k.type = RAPT_Q4_K, TYPE, "k.type = RAPT_Q4_K: " KV);
    REFUSED(rapt_plan_init, d.k.type = RAPT_Q8_0, TYPE, "k.type = RAPT_Q8_0: its groups of 32 channels do not divide 8");
    REFUSED(rapt_plan_init, d.o.type = RAPT_F8_E4M3, TYPE, "o.type = RAPT_F8_E4M3: " FLOATS);
    REFUSED(rapt_plan_init, d.lse.type = RAPT_F16, TYPE, "lse.type = RAPT_F16: " ONLY("F32"));
    REFUSED(rapt_plan_init, d.mask.type = RAPT_F32, TYPE, "mask.type = RAPT_F32: " MASKS);
    REFUSED(rapt_plan_init, d.bias.type = RAPT_BOOL, TYPE, "bias.type = RAPT_BOOL: " FLOATS);
    REFUSED(rapt_plan_init, (d.block_mask.type = RAPT_BIT, d.block_mask_queries = 1, d.block_mask_keys = 64), TYPE,
            "block_mask.type = RAPT_BIT: " ONLY("BOOL"));
    REFUSED(rapt_plan_init, d.slopes.type = RAPT_I32, TYPE, "slopes.type = RAPT_I32: " FLOATS);
    REFUSED(rapt_plan_init, d.sinks.type = (rapt_type)17, TYPE, "sinks.type = 17: " FLOATS);
    REFUSED(rapt_plan_init, (d.scores.type = RAPT_BF16, d.scores_stage = RAPT_SCORES_RAW), TYPE,
            "scores.type = RAPT_BF16: " ONLY("F32"));
    REFUSED(rapt_plan_init, (d = u, d.states.type = (rapt_type)-1), TYPE, "states.type = -1: " ONLY("F32"));
    REFUSED(rapt_plan_init, (paged(&d), d.table.type = RAPT_F32), TYPE, "table.type = RAPT_F32: " ONLY("I32"));
    /* and strides. */
    REFUSED(rapt_plan_init, d.k.token_stride = -4, STRIDE, "k.token_stride = -4: strides are not negative");
    REFUSED(rapt_plan_init, d.v.head_stride = -4, STRIDE, "v.head_stride = -4: strides are not negative");
    REFUSED(rapt_plan_init, (d.batch = 2, d.q.batch_stride = -384), STRIDE, "q.batch_stride = -384: strides are not negative");
    REFUSED(rapt_plan_init, d.mask = ((rapt_layout){RAPT_BOOL, 0, 0, -8}), STRIDE,
            "mask.token_stride = -8: strides are not negative");
    REFUSED(rapt_plan_init, (d = u, d.states.token_stride = 64), STRIDE,
            "states.token_stride = 64: below the 128 bytes within it, so elements of an output meet");
    REFUSED(rapt_plan_init, (d = u, d.kv_len = 600, d.state_stride = -1), STRIDE,
            "states.state_stride = -1: strides are not negative");
    REFUSED(rapt_plan_init, d.o.head_stride = 100, STRIDE,
            "o.head_stride = 100: below the 192 bytes within it, so elements of an output meet");
    REFUSED(rapt_plan_init, d.o.token_stride = 0, STRIDE,
            "o.token_stride = 0: below the 64 bytes within it, so elements of an output meet");
    REFUSED(rapt_plan_init, d.q.head_stride = INT64_MAX, STRIDE,
            "q.head_stride = 9223372036854775807: times 4 it exceeds the address space");
    REFUSED(rapt_plan_init, d.k_scales = ((rapt_scales){1, 0, 0, 4, 4}), STRIDE,
            "k_scales.channel_stride = 4: there is a token_stride, and scales are of tokens or of channels");
    REFUSED(rapt_plan_init, d.k_scales = ((rapt_scales){1, 0, 0, -4, 0}), STRIDE,
            "k_scales.token_stride = -4: strides are not negative");
    REFUSED(rapt_plan_init, d.v_scales = ((rapt_scales){1, 0, 0, 0, -4}), STRIDE,
            "v_scales.channel_stride = -4: strides are not negative");
    /* Strides that are not used may be anything. */
    GOOD(rapt_plan_init, (d.q.batch_stride = d.k.batch_stride = d.v.batch_stride = d.o.batch_stride = -1));
    GOOD(rapt_plan_init, d.slopes = ((rapt_layout){RAPT_F32, -4, 4, -4}));
    GOOD(rapt_plan_init, (d.kv_len = 0, d.k.token_stride = d.k.head_stride = INT64_MIN));
    GOOD(rapt_plan_init, (ragged(&d), d.q.batch_stride = d.o.batch_stride = -7));
    GOOD(rapt_plan_init, (d.q_len = 1, d.q.token_stride = d.o.token_stride = -7));
    GOOD(rapt_plan_init, (d.mask = (rapt_layout){RAPT_BOOL, -1, 0, 0}));
    GOOD(rapt_plan_init, (d.table = (rapt_layout){RAPT_NONE, -1, -1, -1}));
    GOOD(rapt_plan_init, (d.k_scales = (rapt_scales){0, -1, -1, -1, -1}));
    /* Kernels. What is not printable ASCII is escaped, so that the line stays one. */
    REFUSED(rapt_plan_init, d.isa = "avx2\nrapt: all is well\x1b[31m\x7f\xc3\xa9", ISA_UNKNOWN,
            "isa = avx2\\x0arapt: all is well\\x1b[31m\\x7f\\xc3\\xa9: there is no kernel of that name; there are %s",
            kernel_names());
    REFUSED(rapt_plan_init, d.isa = "sse9", ISA_UNKNOWN, "isa = sse9: there is no kernel of that name; there are %s",
            kernel_names());
    REFUSED(rapt_plan_init, setenv("RAPT_ISA", "sse9", 1), ISA_UNKNOWN,
            "RAPT_ISA = sse9: there is no kernel of that name; there are %s", kernel_names());

    TRACED_PLANS(rapt_plan_query, plan, "rapt_plan_init");
    GOOD(rapt_plan_query, UNCHANGED);
    TRACED(rapt_plan_query, give.info = NULL, NULL, "info = null: there is no such struct");
    TRACED(rapt_plan_query, info.size = 0, STRUCT, "info.size = 0: must be the sizeof of the struct, %zu to 65535",
           offsetof(rapt_plan_info, rows_keys_in_lanes));
    TRACED_PLANS(rapt_workspace_size, plan, "rapt_plan_init");
    GOOD(rapt_workspace_size, UNCHANGED);
    TRACED(rapt_workspace_size, give.size = NULL, NULL, "bytes = null: there is nowhere to write it");
    TRACED(rapt_workspace_size, nth = 0, RANGE, "nth = 0: there is no thread");
    TRACED(rapt_workspace_size, nth = INT64_MAX, SHAPE,
           "nth = 9223372036854775807: the workspace would exceed the address space");
}

static void paged_append(void) {
    ad.page_size = 4, ad.pages = 3, ad.table = (rapt_layout){RAPT_I32, 8, 0, 0}, aa.table = pages;
    ad.k = rapt_layout_bhsd(RAPT_F32, 2, 4, 8), ad.v = rapt_layout_bhsd(RAPT_F32, 2, 4, 16);
}

static void rotate_append(void) { ad.rope.channels = 8, ad.rope.frequencies = frequencies; }

/* A table of 7 positions for a rotation of 8 channels. */
static void tabled(rapt_rope *rope, rapt_rope_table *of) {
    rope->frequencies = NULL;
    *of = (rapt_rope_table){RAPT_F32, memory[TABLE], memory[FACTORS], 7, 0};
}

/* A step whose queries are ragged. */
static void ragged_step(void) { ragged(&d); }

static void gated(void) { ld.gate = ld.weight; }

/* Multi-head attention: with Y and Z of 5 tokens, with a cache of 8 keys, and with one only; of packed weights, without wo, and
 * with a table of 5 positions. */
static void crossed(void) { yd.keys = 5, yd.y = yd.z = rows_of(RAPT_F32, 5, 32); }
static void cached(void) {
    e.kv_len = 8, e.k = d.k, e.v = d.v;
    ya.k_cache = memory[K], ya.v_cache = memory[V];
}
static void remembered(void) { cached(), crossed(), yd.keys = 0, yd.y.token_stride = yd.z.token_stride = 0; }
static void packed(void) { yd.packed = 1, ya.wk = ya.wv = NULL, e.d_v = 8, yd.wo = yd.wq; }
static void bare(void) { yd.wo.type = RAPT_NONE, yd.out = rows_of(RAPT_F32, 3, 64); }
static void placed(void) { yd.position_table = 1, ya.position_table = memory[TABLE], ya.table_positions = 5; }
static void huge(void) { e.heads = e.kv_heads = e.d_k = e.d_v = yd.x_width = 1; }

/* Bytes of workspace: needed_for_plan, needed_for_decoding, needed_for_linear, needed_for_mha. */
#define NEEDED(function, plan)                                                                                                   \
    static size_t needed_for_##plan(int64_t threads) {                                                                           \
        size_t bytes = 0;                                                                                                        \
        function(&plan, threads, &bytes);                                                                                        \
        return bytes;                                                                                                            \
    }
NEEDED(rapt_workspace_size, plan)
NEEDED(rapt_decode_workspace_size, decoding)
NEEDED(rapt_linear_workspace_size, linear)
NEEDED(rapt_mha_workspace_size, mha)
#undef NEEDED

/* Returns the most threads whose own workspace fits into the address space; together with what they share, it does not. */
static int64_t most_threads(size_t (*needed)(int64_t)) {
    make_plans();
    return (int64_t)(SIZE_MAX / (needed(2) - needed(1)));
}

/* Strides for a batch. */
static void spread(void) { d.q.batch_stride = 384, d.k.batch_stride = 512, d.v.batch_stride = 1024, d.o.batch_stride = 768; }

static int64_t tasks(void) {
    rapt_plan_query(&plan, &info);
    return info.tasks[0];
}

static void attention_calls(void) {
    GOOD(rapt_run, UNCHANGED);
    GOOD(rapt_run, (d = u, a = ua, a.states = memory[SUM]));
    GOOD(rapt_run, paged(&d));
    GOOD(rapt_run, listed());
    GOOD(rapt_run, ragged(&d));
    PLANS(rapt_run, plan, "rapt_plan_init");
    STRUCTS(rapt_run, a, "args", offsetof(rapt_args, q_offsets));
    /* Tensors that are not given, */
    REFUSED(rapt_run, a.q = NULL, NULL, "q = null: 384 bytes are read from there");
    REFUSED(rapt_run, a.k = NULL, NULL, "k = null: 512 bytes are read from there");
    REFUSED(rapt_run, a.v = NULL, NULL, "v = null: 1024 bytes are read from there");
    REFUSED(rapt_run, a.o = NULL, NULL, "o = null: 768 bytes are written there");
    REFUSED(rapt_run, (d = u, a = ua), NULL, "states = null: 1536 bytes are written there");
    REFUSED(rapt_run, d.k_scales.present = 1, NULL, "k_scales = null: 4 bytes are read from there");
    REFUSED(rapt_run, d.v_scales = ((rapt_scales){1, 0, 0, 4, 0}), NULL, "v_scales = null: 32 bytes are read from there");
    REFUSED(rapt_run, d.mask = ((rapt_layout){RAPT_BOOL, 0, 0, 8}), NULL, "mask = null: 24 bytes are read from there");
    REFUSED(rapt_run, d.mask = ((rapt_layout){RAPT_BIT, 0, 0, 1}), NULL, "mask = null: 3 bytes are read from there");
    REFUSED(rapt_run, d.bias = of_type(RAPT_F16), NULL, "bias = null: 16 bytes are read from there");
    REFUSED(rapt_run, (d.block_mask = of_type(RAPT_BOOL), d.block_mask_queries = 1, d.block_mask_keys = 64), NULL,
            "block_mask = null: 1 bytes are read from there");
    REFUSED(rapt_run, (d.alibi = RAPT_ALIBI_DISTANCE, d.slopes = (rapt_layout){RAPT_F32, 0, 4, 0}), NULL,
            "slopes = null: 16 bytes are read from there");
    REFUSED(rapt_run, d.sinks = ((rapt_layout){RAPT_F16, 0, 2, 0}), NULL, "sinks = null: 8 bytes are read from there");
    REFUSED(rapt_run, d.lse = rapt_layout_bhsd(RAPT_F32, 4, 3, 1), NULL, "lse = null: 48 bytes are written there");
    REFUSED(rapt_run, (d.scores = rapt_layout_bhsd(RAPT_F32, 4, 3, 8), d.scores_stage = RAPT_SCORES_RAW), NULL,
            "scores = null: 384 bytes are written there");
    REFUSED(rapt_run, (paged(&d), a.table = NULL), NULL, "table = null: 8 bytes are read from there");
    /* or given, where there is no use for them, */
    REFUSED(rapt_run, a.k_scales = SOMEWHERE, UNUSED, "k_scales = 0x40: the plan has no layout for it");
    REFUSED(rapt_run, a.v_scales = SOMEWHERE, UNUSED, "v_scales = 0x40: the plan has no layout for it");
    REFUSED(rapt_run, a.mask = SOMEWHERE, UNUSED, "mask = 0x40: the plan has no layout for it");
    REFUSED(rapt_run, a.block_mask = SOMEWHERE, UNUSED, "block_mask = 0x40: the plan has no layout for it");
    REFUSED(rapt_run, a.bias = SOMEWHERE, UNUSED, "bias = 0x40: the plan has no layout for it");
    REFUSED(rapt_run, a.slopes = SOMEWHERE, UNUSED, "slopes = 0x40: the plan has no layout for it");
    REFUSED(rapt_run, a.sinks = SOMEWHERE, UNUSED, "sinks = 0x40: the plan has no layout for it");
    REFUSED(rapt_run, a.lse = SOMEWHERE, UNUSED, "lse = 0x40: the plan has no layout for it");
    REFUSED(rapt_run, a.scores = SOMEWHERE, UNUSED, "scores = 0x40: the plan has no layout for it");
    REFUSED(rapt_run, a.states = SOMEWHERE, UNUSED, "states = 0x40: the plan merges them itself");
    REFUSED(rapt_run, a.logits_arg = SOMEWHERE, UNUSED, "logits_arg = 0x40: the plan has no logits_body");
    REFUSED(rapt_run, a.table = SOMEWHERE, UNUSED, "table = 0x40: the plan has no pages");
    REFUSED(rapt_run, a.table_starts = SOMEWHERE, UNUSED, "table_starts = 0x40: the plan has no pages");
    REFUSED(rapt_run, a.last_page = SOMEWHERE, UNUSED, "last_page = 0x40: the plan has no pages");
    REFUSED(rapt_run, (paged(&d), a.last_page = SOMEWHERE), UNUSED, "last_page = 0x40: there are no table_starts");
    /* or at addresses that cannot be. */
    REFUSED(rapt_run, a.q = LAST, STRIDE, "q = %p: its 384 bytes exceed the address space", LAST);
    REFUSED(rapt_run, a.o = LAST, STRIDE, "o = %p: its 768 bytes exceed the address space", LAST);
    REFUSED(rapt_run, (a.workspace = (void *)(UINTPTR_MAX - 63), a.workspace_bytes = SIZE_MAX), STRIDE,
            "workspace = %p: its %zu bytes exceed the address space", (void *)(UINTPTR_MAX - 63), needed_for_plan(1));
    REFUSED(rapt_run, a.kv_lengths = ODD, ALIGNMENT, "kv_lengths = 0x42: not aligned to its elements of 4 bytes");
    REFUSED(rapt_run, a.prefixes = ODD, ALIGNMENT, "prefixes = 0x42: not aligned to its elements of 4 bytes");
    REFUSED(rapt_run, a.ring_starts = ODD, ALIGNMENT, "ring_starts = 0x42: not aligned to its elements of 4 bytes");
    REFUSED(rapt_run, a.q_offsets = ODD, ALIGNMENT, "q_offsets = 0x42: not aligned to its elements of 4 bytes");
    REFUSED(rapt_run, a.k_offsets = ODD, ALIGNMENT, "k_offsets = 0x42: not aligned to its elements of 4 bytes");
    REFUSED(rapt_run, (listed(), a.table_starts = ODD), ALIGNMENT, "table_starts = 0x42: not aligned to its elements of 4 bytes");
    REFUSED(rapt_run, (listed(), a.last_page = ODD), ALIGNMENT, "last_page = 0x42: not aligned to its elements of 4 bytes");
    REFUSED(rapt_run, a.o = memory[Q] + 95, OVERLAP, "o = %p: its 768 bytes meet the 384 of q = %p", (void *)(memory[Q] + 95),
            (void *)memory[Q]);
    CHANGED(rapt_run, ragged(&d), token_starts[1] = 4, TABLE, "q_starts[2] = 3: below the one before");
    CHANGED(rapt_run, (ragged(&d), d.k_starts = offsets, offsets[2] = 8), offsets[0] = -1, TABLE,
            "k_starts[0] = -1: must be 0 or more");
    CHANGED(rapt_run, ragged(&d), token_starts[1] = 2, TABLE,
            "q_starts = %p, k_starts = 0x0: not as they were when the plan was made", (void *)token_starts);
    REFUSED(rapt_run, (ragged(&d), a.o = token_starts), OVERLAP, "o = %p: its 768 bytes meet the 12 of q_starts = %p",
            (void *)token_starts, (void *)token_starts);
    REFUSED(rapt_run, a.workspace = NULL, WORKSPACE, "workspace = null: %zu bytes are needed", needed_for_plan(1));
    REFUSED(rapt_run, a.workspace_bytes = 1, WORKSPACE, "workspace_bytes = 1: %zu are needed", needed_for_plan(1));
    REFUSED(rapt_run, a.workspace = workspace + 32, ALIGNMENT, "workspace = %p: not aligned to 64 bytes",
            (void *)(workspace + 32));
    /* Entries. */
    REFUSED(rapt_run, (a.kv_lengths = lengths, lengths[0] = 9), KV_LENGTH, "kv_lengths[0] = 9: there are 8 keys");
    REFUSED(rapt_run, (a.kv_lengths = lengths, lengths[0] = -1), KV_LENGTH, "kv_lengths[0] = -1: there are 8 keys");
    REFUSED(rapt_run, (a.ring_starts = offsets, offsets[0] = 8), TABLE, "ring_starts[0] = 8: the ring has 8 keys");
    REFUSED(rapt_run, (a.k_offsets = offsets, offsets[0] = -1), TABLE, "k_offsets[0] = -1: must be 0 or more");
    REFUSED(rapt_run, (d.mask = of_type(RAPT_BOOL), d.mask_keys = 6, a.mask = memory[MASK]), MASK,
            "mask_keys = 6: entry 0 has keys of positions up to 7, and nothing is said of those beyond");
    REFUSED(rapt_run, (d.bias = of_type(RAPT_F32), a.bias = memory[MASK], a.k_offsets = offsets, offsets[0] = 2), MASK,
            "bias_keys = 8: entry 0 has keys of positions up to 9, and nothing is said of those beyond");
    REFUSED(rapt_run, (listed(), starts[0] = -1), TABLE, "table_starts[0] = -1: must be 0 or more");
    REFUSED(rapt_run, (listed(), starts[2] = 1), TABLE, "table_starts[2] = 1: below the one before");
    REFUSED(rapt_run, (listed(), starts[2] = 5), TABLE,
            "table_starts[2] = 5: gives an entry more pages than its kv_len keys have");
    REFUSED(rapt_run, (listed(), starts[1] = starts[2] = 2), TABLE,
            "table_starts[2] = 2: entry 1 has 8 keys, for which it needs 2 pages");
    REFUSED(rapt_run, (listed(), a.last_page = lengths, lengths[0] = 4, lengths[1] = 5), TABLE,
            "last_page[1] = 5: pages have 4 keys");
    REFUSED(rapt_run, (listed(), d.kv_len = 7, a.last_page = lengths, lengths[0] = 4), TABLE,
            "last_page[0] = 4: entry 0 has 8 keys then, above 7");
    REFUSED(rapt_run, (paged(&d), pages[1] = 3), TABLE, "table[entry 0, head 0, query 0][1] = 3: the pool has 3 pages");
    REFUSED(rapt_run, (paged(&d), pages[0] = -1), TABLE, "table[entry 0, head 0, query 0][0] = -1: the pool has 3 pages");
    REFUSED(rapt_run, (listed(), d.table = (rapt_layout){RAPT_I32, 0, PTRDIFF_MAX - 10, 0}), STRIDE,
            "table.head_stride = %td: times 2 it exceeds the address space", PTRDIFF_MAX - 10);

    GOOD(rapt_run_parallel, nth = 3);
    REFUSED(rapt_run_parallel, nth = 0, RANGE, "nth = 0: there is no thread");
    TRACED(rapt_run_parallel, parallel = NULL, NULL, "parallel_for = null: there is nobody to run it");
    GOOD(rapt_run_share, barrier = NULL);
    REFUSED(rapt_run_share, nth = -1, RANGE, "nth = -1: there is no thread");
    THREADS(rapt_run_share);
    TRACED(rapt_run_share,
           (d.scores = rapt_layout_bhsd(RAPT_F32, 4, 3, 8), d.scores_stage = RAPT_SCORES_WEIGHTS, a.scores = memory[SUM], nth = 2,
            barrier = NULL),
           NULL, "barrier = null: the phases of several threads need one between them");
    GOOD(rapt_run_phase, nth = 2);
    REFUSED(rapt_run_phase, nth = 0, RANGE, "nth = 0: there is no thread");
    THREADS(rapt_run_phase);
    TRACED(rapt_run_phase, phase = 1, RANGE, "phase = 1: there are 1");
    TRACED(rapt_run_phase, phase = -1, RANGE, "phase = -1: there are 1");
    GOOD(rapt_run_task, slot = 1);
    PLANS(rapt_run_task, plan, "rapt_plan_init");
    CHANGED(rapt_run_task, ragged(&d), token_starts[0] = 2, TABLE, "q_starts[1] = 1: below the one before");
    CHANGED(rapt_run_task, ragged(&d), token_starts[1] = 3, TABLE,
            "q_starts = %p, k_starts = 0x0: not as they were when the plan was made", (void *)token_starts);
    TRACED(rapt_run_task, slot = -1, RANGE, "slot = -1: not a thread's");
    TRACED(rapt_run_task, slot = INT64_MAX, RANGE, "slot = 9223372036854775807: not a thread's");
    TRACED(rapt_run_task, phase = 1, RANGE, "phase = 1: there are 1");
    TRACED(rapt_run_task, phase = -1, RANGE, "phase = -1: there are 1");
    TRACED(rapt_run_task, task = -1, RANGE, "task = -1: phase 0 has %d", (int)tasks());
    TRACED(rapt_run_task, task = INT64_MAX, RANGE, "task = 9223372036854775807: phase 0 has %d", (int)tasks());
    REFUSED(rapt_run_task, a.q = NULL, NULL, "q = null: 384 bytes are read from there");
    REFUSED(rapt_run_task, (a.kv_lengths = lengths, lengths[0] = 9), KV_LENGTH, "kv_lengths[0] = 9: there are 8 keys");
    GOOD(rapt_run_task, (listed(), a.kv_lengths = lengths, lengths[0] = 4));
    REFUSED(rapt_run_task, (listed(), starts[2] = 1), TABLE, "table_starts[2] = 1: below the one before");
}

static void appending(void) {
    GOOD(rapt_kv_append_run, UNCHANGED);
    GOOD(rapt_kv_append_run, paged_append());
    GOOD(rapt_kv_append_run, (paged_append(), ad.trust_table = 1));
    GOOD(rapt_kv_append_run, (paged_append(), ad.batch = 0));
    GOOD(rapt_kv_append_run, (paged_append(), ad.kv_len = ad.tokens = 0));
    STRUCTS(rapt_kv_append_run, ad, "desc", sizeof ad);
    STRUCTS(rapt_kv_append_run, aa, "args", offsetof(rapt_kv_append_args, rope_table));
    WAYS(rapt_kv_append, aa);
    /* The description. */
    REFUSED(rapt_kv_append_run, ad.batch = -1, SHAPE, "batch = -1: must be 0 to 2147483647");
    REFUSED(rapt_kv_append_run, ad.kv_heads = 0, SHAPE, "kv_heads = 0: must be 1 to 2147483647");
    REFUSED(rapt_kv_append_run, ad.tokens = -1, SHAPE, "tokens = -1: must be 0 to 2147483647");
    REFUSED(rapt_kv_append_run, ad.kv_len = -1, SHAPE, "kv_len = -1: must be 0 to 2147483647");
    REFUSED(rapt_kv_append_run, ad.page_size = -1, FEATURE, "page_size = -1: must be 0 to 2147483647");
    REFUSED(rapt_kv_append_run, ad.pages = -1, FEATURE, "pages = -1: must be 0 to 2147483647");
    REFUSED(rapt_kv_append_run, ad.k.type = ad.v.type = RAPT_NONE, TYPE,
            "k.type = RAPT_NONE: nor has v one, so nothing is written");
    REFUSED(rapt_kv_append_run, ad.d_k = 0, SHAPE, "d_k = 0: must be 1 to 1024");
    REFUSED(rapt_kv_append_run, ad.d_v = 2000, SHAPE, "d_v = 2000: must be 1 to 1024");
    REFUSED(rapt_kv_append_run, ad.page_size = 4, FEATURE, "table.type = RAPT_NONE: page_size = 4 wants a table");
    REFUSED(rapt_kv_append_run, (paged_append(), ad.table.type = RAPT_BIT), TYPE, "table.type = RAPT_BIT: " ONLY("I32"));
    REFUSED(rapt_kv_append_run, ad.table.type = RAPT_I32, FEATURE, "page_size = 0: there is a table, of type RAPT_I32");
    REFUSED(rapt_kv_append_run, (ad.k.type = RAPT_NONE, ad.k_scales.present = 1), FEATURE,
            "k_scales.present = 1: K is not written");
    REFUSED(rapt_kv_append_run, (ad.v.type = RAPT_NONE, ad.v_scales.present = 1), FEATURE,
            "v_scales.present = 1: V is not written");
    REFUSED(rapt_kv_append_run, ad.k_scales = ((rapt_scales){1, 64, 32, 4, 0}), FEATURE,
            "k_scales.token_stride = 4: scales of tokens are found for fp8 and int8 only");
    REFUSED(rapt_kv_append_run, (ad.v.type = RAPT_INT8, ad.v_scales = (rapt_scales){1, 64, 32, 2, 0}), STRIDE,
            "v_scales.token_stride = 2: below the 4 bytes within it, so elements of an output meet");
    REFUSED(rapt_kv_append_run, ad.k.type = RAPT_I32, TYPE, "k.type = RAPT_I32: " KV);
    REFUSED(rapt_kv_append_run, ad.v.head_stride = 0, STRIDE,
            "v.head_stride = 0: below the 64 bytes within it, so elements of an output meet");
    REFUSED(rapt_kv_append_run, ad.new_k.type = RAPT_INT8, TYPE, "new_k.type = RAPT_INT8: " FLOATS);
    REFUSED(rapt_kv_append_run, ad.new_v.token_stride = -1, STRIDE, "new_v.token_stride = -1: strides are not negative");
    REFUSED(rapt_kv_append_run, ad.rope.channels = 3, FEATURE,
            "rope.channels = 3: must be even, 0 to the 8 channels that there are");
    REFUSED(rapt_kv_append_run, (ad.k.type = RAPT_NONE, ad.rope.channels = 2), FEATURE,
            "rope.channels = 2: must be even, 0 to the 0 channels that there are");
    /* Tensors, */
    REFUSED(rapt_kv_append_run, aa.new_k = NULL, NULL, "new_k = null: 192 bytes are read from there");
    REFUSED(rapt_kv_append_run, aa.new_v = NULL, NULL, "new_v = null: 384 bytes are read from there");
    REFUSED(rapt_kv_append_run, aa.k = NULL, NULL, "k = null: 512 bytes are written there");
    REFUSED(rapt_kv_append_run, aa.v = NULL, NULL, "v = null: 1024 bytes are written there");
    REFUSED(rapt_kv_append_run, ad.k_scales.present = 1, NULL, "k_scales = null: 4 bytes are read from there");
    REFUSED(rapt_kv_append_run, (ad.v.type = RAPT_INT8, ad.v_scales = (rapt_scales){1, 64, 32, 4, 0}), NULL,
            "v_scales = null: 64 bytes are written there");
    REFUSED(rapt_kv_append_run, aa.k_scales = SOMEWHERE, UNUSED, "k_scales = 0x40: the plan has no scales");
    REFUSED(rapt_kv_append_run, ad.k.type = RAPT_NONE, UNUSED, "k = %p: its layout has no type", (void *)memory[K]);
    REFUSED(rapt_kv_append_run, (ad.k.type = RAPT_NONE, aa.k = NULL, aa.k_scales = SOMEWHERE), UNUSED,
            "k_scales = 0x40: its tensor has no type");
    REFUSED(rapt_kv_append_run, (ad.k.type = RAPT_NONE, aa.k = NULL), UNUSED, "new_k = %p: its cache has no type",
            (void *)memory[NEW_K]);
    REFUSED(rapt_kv_append_run, aa.v = memory[NEW_K], OVERLAP, "v = %p: its 1024 bytes meet the 192 of new_k = %p",
            (void *)memory[NEW_K], (void *)memory[NEW_K]);
    REFUSED(rapt_kv_append_run, aa.new_v = LAST, STRIDE, "new_v = %p: its 384 bytes exceed the address space", LAST);
    /* which tokens there are, and where they go. */
    REFUSED(rapt_kv_append_run, aa.starts = ODD, ALIGNMENT, "starts = 0x42: not aligned to its elements of 4 bytes");
    REFUSED(rapt_kv_append_run, aa.lengths = ODD, ALIGNMENT, "lengths = 0x42: not aligned to its elements of 4 bytes");
    REFUSED(rapt_kv_append_run, aa.token_starts = ODD, ALIGNMENT, "token_starts = 0x42: not aligned to its elements of 4 bytes");
    REFUSED(rapt_kv_append_run, aa.positions = SOMEWHERE, UNUSED, "positions = 0x40: nothing is rotated");
    REFUSED(rapt_kv_append_run, (rotate_append(), aa.positions = ODD), ALIGNMENT,
            "positions = 0x42: not aligned to its elements of 4 bytes");
    REFUSED(rapt_kv_append_run, aa.ring_starts = ODD, ALIGNMENT, "ring_starts = 0x42: not aligned to its elements of 4 bytes");
    if (sizeof(size_t) > 4) /* or the caches would be too large, before */
        REFUSED(rapt_kv_append_run, (rotate_append(), ad.batch = ad.tokens = RAPT_MAX_LENGTH, aa.positions = SOMEWHERE), STRIDE,
                "positions = 0x40: its 4611686014132420609 elements exceed the address space");
    REFUSED(rapt_kv_append_run, (aa.token_starts = token_starts, aa.lengths = lengths), FEATURE,
            "lengths = %p: token_starts say them already", (void *)lengths);
    REFUSED(rapt_kv_append_run, (aa.token_starts = token_starts, token_starts[0] = -1), TABLE,
            "token_starts[0] = -1: must be 0 or more");
    REFUSED(rapt_kv_append_run, (aa.token_starts = token_starts, token_starts[0] = 1), TABLE,
            "token_starts[1] = 0: below the one before");
    REFUSED(rapt_kv_append_run, (aa.token_starts = token_starts, token_starts[1] = 4), TABLE,
            "token_starts[1] = 4: there are 3 tokens");
    REFUSED(rapt_kv_append_run, (aa.lengths = lengths, lengths[0] = 4), TABLE, "lengths[0] = 4: there are 3 tokens");
    REFUSED(rapt_kv_append_run, (aa.starts = starts, starts[0] = -1), TABLE, "starts[0] = -1: must be 0 or more");
    REFUSED(rapt_kv_append_run, (aa.starts = starts, starts[0] = 6), KV_LENGTH,
            "starts[0] = 6: from there on, 3 tokens exceed kv_len = 8");
    REFUSED(rapt_kv_append_run, (aa.ring_starts = offsets, offsets[0] = 8), TABLE, "ring_starts[0] = 8: the ring has 8 keys");
    REFUSED(rapt_kv_append_run, (aa.ring_starts = offsets, offsets[0] = -1), TABLE, "ring_starts[0] = -1: the ring has 8 keys");
    /* Pages. */
    REFUSED(rapt_kv_append_run, aa.table = SOMEWHERE, UNUSED, "table = 0x40: there are no pages");
    REFUSED(rapt_kv_append_run, aa.table_starts = SOMEWHERE, UNUSED, "table_starts = 0x40: there are no pages");
    REFUSED(rapt_kv_append_run, (paged_append(), aa.table = NULL), NULL, "table = null: 8 bytes are read from there");
    REFUSED(rapt_kv_append_run, (paged_append(), ad.table.head_stride = -8), STRIDE,
            "table.head_stride = -8: strides are not negative");
    REFUSED(rapt_kv_append_run, (paged_append(), ad.pages = 0), TABLE, "pages = 0: there are tokens to be written");
    REFUSED(rapt_kv_append_run, (paged_append(), aa.table_starts = ODD), ALIGNMENT,
            "table_starts = 0x42: not aligned to its elements of 4 bytes");
    REFUSED(rapt_kv_append_run, (paged_append(), aa.table_starts = starts, starts[0] = -1), TABLE,
            "table_starts[0] = -1: must be 0 or more");
    REFUSED(rapt_kv_append_run, (paged_append(), aa.table_starts = starts, starts[0] = 1), TABLE,
            "table_starts[1] = 0: below the one before");
    REFUSED(rapt_kv_append_run, (paged_append(), aa.table_starts = starts, starts[1] = 1, aa.starts = lengths, lengths[0] = 2),
            TABLE, "table_starts[1] = 1: the tokens of entry 0 need its page 1");
    REFUSED(rapt_kv_append_run, (paged_append(), pages[0] = 3), TABLE, "table[entry 0, head 0][0] = 3: the pool has 3 pages");
    REFUSED(rapt_kv_append_run, (paged_append(), pages[0] = -1), TABLE, "table[entry 0, head 0][0] = -1: the pool has 3 pages");
    REFUSED(rapt_kv_append_run, (paged_append(), pages[1] = 0, aa.starts = lengths, lengths[0] = 2, ad.tokens = 6), TABLE,
            "table[entry 0, head 0][1] = 0: key 2 of that page is given to two tokens");
    /* Rotation. */
    GOOD(rapt_kv_append_run, rotate_append());
    GOOD(rapt_kv_append_run, (rotate_append(), tabled(&ad.rope, &aa.rope_table)));
    REFUSED(rapt_kv_append_run, (rotate_append(), ad.rope.amplitude = NAN), FEATURE, "rope.amplitude = nan: must be finite");
    REFUSED(rapt_kv_append_run, aa.rope_table.type = RAPT_F32, UNUSED, "rope_table.type = RAPT_F32: nothing is rotated");
    REFUSED(rapt_kv_append_run, (rotate_append(), ad.rope.frequencies = NULL), NULL,
            "rope.frequencies = null: and there is no rope_table");
    REFUSED(rapt_kv_append_run, (rotate_append(), tabled(&ad.rope, &aa.rope_table), aa.starts = starts, starts[0] = 5), TABLE,
            "rope_table.positions = 7: token 2 of entry 0 is at position 7");
}

static void copying(void) {
    GOOD(rapt_kv_copy_run, UNCHANGED);
    STRUCTS(rapt_kv_copy_run, cd, "desc", sizeof cd);
    STRUCTS(rapt_kv_copy_run, ca, "args", sizeof ca);
    WAYS(rapt_kv_copy, ca);
    REFUSED(rapt_kv_copy_run, cd.entries = -1, SHAPE, "entries = -1: must be 0 to 2147483647");
    REFUSED(rapt_kv_copy_run, cd.kv_heads = 0, SHAPE, "kv_heads = 0: must be 1 to 2147483647");
    REFUSED(rapt_kv_copy_run, cd.tokens = -1, SHAPE, "tokens = -1: must be 0 to 2147483647");
    REFUSED(rapt_kv_copy_run, cd.k.type = cd.v.type = RAPT_NONE, TYPE, "k.type = RAPT_NONE: nor has v one, so nothing is copied");
    REFUSED(rapt_kv_copy_run, cd.d_k = -8, SHAPE, "d_k = -8: must be 1 to 1024");
    REFUSED(rapt_kv_copy_run, cd.d_v = 0, SHAPE, "d_v = 0: must be 1 to 1024");
    REFUSED(rapt_kv_copy_run, (cd.k.type = RAPT_NONE, cd.k_scales.present = 1), FEATURE,
            "k_scales.present = 1: their tensor is not copied");
    REFUSED(rapt_kv_copy_run, (cd.v.type = RAPT_NONE, cd.v_scales.present = 1), FEATURE,
            "v_scales.present = 1: their tensor is not copied");
    REFUSED(rapt_kv_copy_run, cd.k_scales = ((rapt_scales){1, 64, 32, 4, 4}), STRIDE,
            "k_scales.channel_stride = 4: there is a token_stride, and scales are of tokens or of channels");
    REFUSED(rapt_kv_copy_run, ca.count = -1, SHAPE, "count = -1: must be 0 or more");
    REFUSED(rapt_kv_copy_run, ca.count = INT64_MAX, STRIDE,
            "ranges = %p: its 9223372036854775807 elements exceed the address space", (void *)ranges);
    REFUSED(rapt_kv_copy_run, ca.ranges = ODD, ALIGNMENT, "ranges = 0x42: not aligned to its elements of 20 bytes");
    REFUSED(rapt_kv_copy_run, ca.ranges = NULL, NULL, "ranges = null: 40 bytes are read from there");
    REFUSED(rapt_kv_copy_run, cd.k.type = RAPT_BIT, TYPE, "k.type = RAPT_BIT: " KV);
    REFUSED(rapt_kv_copy_run, cd.v.token_stride = 60, STRIDE,
            "v.token_stride = 60: below the 64 bytes within it, so elements of an output meet");
    REFUSED(rapt_kv_copy_run, cd.k_scales = ((rapt_scales){1, 64, 32, 2, 0}), STRIDE,
            "k_scales.token_stride = 2: below the 4 bytes within it, so elements of an output meet");
    REFUSED(rapt_kv_copy_run, ca.k = NULL, NULL, "k = null: 512 bytes are written there");
    REFUSED(rapt_kv_copy_run, ca.v = NULL, NULL, "v = null: 1024 bytes are written there");
    REFUSED(rapt_kv_copy_run, cd.k_scales = ((rapt_scales){1, 64, 32, 4, 0}), NULL,
            "k_scales = null: 64 bytes are written there");
    REFUSED(rapt_kv_copy_run, cd.v_scales = ((rapt_scales){1, 64, 32, 4, 0}), NULL,
            "v_scales = null: 64 bytes are written there");
    REFUSED(rapt_kv_copy_run, ca.from_k = memory[FROM_K], NULL, "from_v = null: 1024 bytes are read from there");
    REFUSED(rapt_kv_copy_run, ca.from_v = memory[FROM_V], NULL, "from_k = null: 512 bytes are read from there");
    REFUSED(rapt_kv_copy_run, cd.k.type = RAPT_NONE, UNUSED, "k = %p: it is not copied", (void *)memory[K]);
    REFUSED(rapt_kv_copy_run, (cd.v.type = RAPT_NONE, ca.v = NULL, ca.from_k = memory[FROM_K], ca.from_v = SOMEWHERE), UNUSED,
            "from_v = 0x40: it is not copied");
    REFUSED(rapt_kv_copy_run, ca.k_scales = SOMEWHERE, UNUSED, "k_scales = 0x40: it is not copied");
    REFUSED(rapt_kv_copy_run, (ca.from_k = memory[FROM_K], ca.from_v = memory[FROM_V], ca.from_v_scales = SOMEWHERE), UNUSED,
            "from_v_scales = 0x40: it is not copied");
    REFUSED(rapt_kv_copy_run, ca.from_k_scales = SOMEWHERE, NULL, "from_k = null: 512 bytes are read from there");
    REFUSED(rapt_kv_copy_run, (ca.from_k = ca.from_v = memory[FROM_K], ca.from_k_scales = SOMEWHERE), UNUSED,
            "from_k_scales = 0x40: it is not copied");
    REFUSED(rapt_kv_copy_run, (ca.from_k = memory[K], ca.from_v = memory[FROM_V]), OVERLAP,
            "k = %p: its 512 bytes meet the 512 of from_k = %p", (void *)memory[K], (void *)memory[K]);
    REFUSED(rapt_kv_copy_run, ranges[1].from = 1, TABLE, "ranges[1].from = 1: there is no such entry");
    REFUSED(rapt_kv_copy_run, ranges[0].to = -1, TABLE, "ranges[0].to = -1: there is no such entry");
    REFUSED(rapt_kv_copy_run, ranges[0].tokens = 9, TABLE, "ranges[0].tokens = 9: an entry has not as many");
    REFUSED(rapt_kv_copy_run, ranges[0].from_token = 6, TABLE,
            "ranges[0].from_token = 6: the tokens from there on exceed the entry");
    REFUSED(rapt_kv_copy_run, ranges[0].to_token = -1, TABLE,
            "ranges[0].to_token = -1: the tokens from there on exceed the entry");
}

static void rotating(void) {
    GOOD(rapt_rope_run, UNCHANGED);
    GOOD(rapt_rope_run, tabled(&ra.rope, &ra.rope_table));
    STRUCTS(rapt_rope_run, ra, "args", offsetof(rapt_rope_args, rope_table));
    WAYS(rapt_rope, ra);
    REFUSED(rapt_rope_run, ra.batch = -1, SHAPE, "batch = -1: must be 0 to 2147483647");
    REFUSED(rapt_rope_run, ra.heads = 0, SHAPE, "heads = 0: must be 1 to 2147483647");
    REFUSED(rapt_rope_run, ra.tokens = -1, SHAPE, "tokens = -1: must be 0 to 2147483647");
    REFUSED(rapt_rope_run, ra.d = 0, SHAPE, "d = 0: must be 1 to 1024");
    REFUSED(rapt_rope_run, ra.rope.channels = 10, FEATURE,
            "rope.channels = 10: must be even, 0 to the 8 channels that there are");
    REFUSED(rapt_rope_run, ra.rope.amplitude = INFINITY, FEATURE, "rope.amplitude = inf: must be finite");
    REFUSED(rapt_rope_run, ra.rope.offset = INT64_MIN, FEATURE,
            "rope.offset = -9223372036854775808: must be -2147483647 to 2147483647");
    REFUSED(rapt_rope_run, ra.rope.frequencies = ODD, ALIGNMENT,
            "rope.frequencies = 0x42: not aligned to its elements of 8 bytes");
    GOOD(rapt_rope_run, (frequencies[0] = 16, frequencies[1] = -16));
    REFUSED(rapt_rope_run, frequencies[2] = 17, FEATURE, "rope.frequencies[2] = 17: must be -16 to 16");
    REFUSED(rapt_rope_run, (ra.rope.channels = 0, ra.rope.frequencies = ODD), ALIGNMENT,
            "rope.frequencies = 0x42: not aligned to its elements of 8 bytes");
    REFUSED(rapt_rope_run, frequencies[0] = NAN, FEATURE, "rope.frequencies[0] = nan: must be -16 to 16");
    REFUSED(rapt_rope_run, ra.in.type = RAPT_INT8, TYPE, "in.type = RAPT_INT8: " FLOATS);
    REFUSED(rapt_rope_run, ra.out.token_stride = 16, STRIDE,
            "out.token_stride = 16: below the 32 bytes within it, so elements of an output meet");
    REFUSED(rapt_rope_run, ra.from = NULL, NULL, "from = null: 384 bytes are read from there");
    REFUSED(rapt_rope_run, ra.to = NULL, NULL, "to = null: 384 bytes are written there");
    REFUSED(rapt_rope_run, (ra.to = memory[Q], ra.out.head_stride = 128), OVERLAP,
            "to = %p: its 480 bytes meet the 384 of from = %p", (void *)memory[Q], (void *)memory[Q]);
    REFUSED(rapt_rope_run, ra.starts = ODD, ALIGNMENT, "starts = 0x42: not aligned to its elements of 4 bytes");
    REFUSED(rapt_rope_run, (ra.starts = starts, starts[0] = -1), TABLE, "starts[0] = -1: must be 0 or more");
    REFUSED(rapt_rope_run, (ra.rope.channels = 0, ra.positions = SOMEWHERE), UNUSED, "positions = 0x40: nothing is rotated");
    REFUSED(rapt_rope_run, ra.rope_table.type = RAPT_F32, UNUSED, "rope_table.type = RAPT_F32: there are rope.frequencies");
    REFUSED(rapt_rope_run, (tabled(&ra.rope, &ra.rope_table), ra.rope_table.type = RAPT_NONE), NULL,
            "rope.frequencies = null: and there is no rope_table");
    REFUSED(rapt_rope_run, (tabled(&ra.rope, &ra.rope_table), ra.rope_table.type = RAPT_INT8), TYPE,
            "rope_table.type = RAPT_INT8: " FLOATS);
    REFUSED(rapt_rope_run, (tabled(&ra.rope, &ra.rope_table), ra.rope_table.positions = -1), SHAPE,
            "rope_table.positions = -1: must be 0 to 2147483647");
    REFUSED(rapt_rope_run, (tabled(&ra.rope, &ra.rope_table), ra.rope_table.row_stride = -4), STRIDE,
            "rope_table.row_stride = -4: strides are not negative");
    REFUSED(rapt_rope_run, (tabled(&ra.rope, &ra.rope_table), ra.rope_table.c = NULL), NULL,
            "rope_table.c = null: 112 bytes are read from there");
    REFUSED(rapt_rope_run, (tabled(&ra.rope, &ra.rope_table), ra.rope_table.s = NULL), NULL,
            "rope_table.s = null: 112 bytes are read from there");
    REFUSED(rapt_rope_run, (tabled(&ra.rope, &ra.rope_table), ra.positions = positions, positions[1] = -1), TABLE,
            "rope_table.positions = 7: token 1 of entry 0 is at position -1");
}

static void decoding_plans(void) {
    GOOD(rapt_decode_plan_init, UNCHANGED);
    GOOD(rapt_decode_plan_init, paged(&d));
    GOOD(rapt_decode_plan_init, ragged_step());
    PLAN_MEMORY(rapt_decode_plan_init);
    const size_t decode_bytes = least_bytes(call_rapt_decode_plan_init); /* before anything is changed */
    TRACED(rapt_decode_plan_init, d.q_starts = kept(), OVERLAP, "plan = %p: its %zu bytes meet the 8 of attention.q_starts = %p",
           (void *)trial, decode_bytes, (void *)trial);
    STRUCTS(rapt_decode_plan_init, dd, "desc", sizeof dd);
    REFUSED(rapt_decode_plan_init, dd.attention = NULL, NULL, "attention = null: there is no such struct");
    MARKED(rapt_decode_plan_init, d, "attention", offsetof(rapt_desc, mask_keys));
    REFUSED(rapt_decode_plan_init, d = u, FEATURE, "attention.unmerged = 1: must be 0 in a decoder's step");
    REFUSED(rapt_decode_plan_init, d.kv_first = 512, FEATURE, "attention.kv_first = 512: must be 0 in a decoder's step");
    REFUSED(rapt_decode_plan_init, d.kv_total = 8, FEATURE, "attention.kv_total = 8: must be 0 in a decoder's step");
    REFUSED(rapt_decode_plan_init, d.k_starts = starts, FEATURE,
            "attention.k_starts = %p: a cache with ragged keys cannot be appended to", (void *)starts);
    REFUSED(rapt_decode_plan_init, d.heads = 5, HEADS, "attention.heads = 5: not a multiple of kv_heads = 2");
    REFUSED(rapt_decode_plan_init, d.k.token_stride = -4, STRIDE, "attention.k.token_stride = -4: strides are not negative");
    REFUSED(rapt_decode_plan_init, d.q.type = RAPT_INT8, TYPE, "attention.q.type = RAPT_INT8: " FLOATS);
    REFUSED(rapt_decode_plan_init, dd.tokens = -2, SHAPE, "tokens = -2: must be 0 to 2147483647, or -1 for attention.q_len");
    REFUSED(rapt_decode_plan_init, dd.rope.channels = 10, FEATURE,
            "rope.channels = 10: must be even, 0 to the 8 channels that there are");
    REFUSED(rapt_decode_plan_init, d.k.head_stride = 0, STRIDE,
            "attention.k.head_stride = 0: below the 32 bytes within it, so elements of an output meet");
    REFUSED(rapt_decode_plan_init, dd.new_k.type = RAPT_NONE, TYPE, "new_k.type = RAPT_NONE: " FLOATS);
    REFUSED(rapt_decode_plan_init, dd.new_v.head_stride = -1, STRIDE, "new_v.head_stride = -1: strides are not negative");
    REFUSED(rapt_decode_plan_init, d.isa = "sse9", ISA_UNKNOWN,
            "attention.isa = sse9: there is no kernel of that name; there are %s", kernel_names());
    REFUSED(rapt_decode_plan_init, setenv("RAPT_ISA", "sse9", 1), ISA_UNKNOWN,
            "RAPT_ISA = sse9: there is no kernel of that name; there are %s", kernel_names());

    TRACED_PLANS(rapt_decode_plan_query, decoding, "rapt_decode_plan_init");
    GOOD(rapt_decode_plan_query, UNCHANGED);
    TRACED(rapt_decode_plan_query, give.info = NULL, NULL, "info = null: there is no such struct");
    TRACED_PLANS(rapt_decode_workspace_size, decoding, "rapt_decode_plan_init");
    GOOD(rapt_decode_workspace_size, UNCHANGED);
    TRACED(rapt_decode_workspace_size, give.size = NULL, NULL, "bytes = null: there is nowhere to write it");
    TRACED(rapt_decode_workspace_size, nth = 0, RANGE, "nth = 0: there is no thread");
    TRACED(rapt_decode_workspace_size, nth = INT64_MAX, SHAPE,
           "nth = 9223372036854775807: the workspace would exceed the address space");
    TRACED(rapt_decode_workspace_size, (d.batch = 1000, spread(), nth = most_threads(needed_for_decoding)), SHAPE,
           "nth = %" PRId64 ": the workspace would exceed the address space", nth);
}

static void decoding_calls(void) {
    GOOD(rapt_decode_run, UNCHANGED);
    GOOD(rapt_decode_run, paged(&d));
    GOOD(rapt_decode_run, ragged_step());
    PLANS(rapt_decode_run, decoding, "rapt_decode_plan_init");
    STRUCTS(rapt_decode_run, da, "args", sizeof da);
    REFUSED(rapt_decode_run, da.attention = NULL, NULL, "attention = null: there is no such struct");
    MARKED(rapt_decode_run, a, "attention", offsetof(rapt_args, q_offsets));
    REFUSED(rapt_decode_run, (dd.tokens = 2, da.positions = positions), FEATURE,
            "positions = %p: there are 2 new tokens and 3 queries", (void *)positions);
    REFUSED(rapt_decode_run, da.starts = ODD, ALIGNMENT, "starts = 0x42: not aligned to its elements of 4 bytes");
    REFUSED(rapt_decode_run, (dd.rope.channels = 0, da.positions = SOMEWHERE), UNUSED, "positions = 0x40: nothing is rotated");
    REFUSED(rapt_decode_run, da.positions = ODD, ALIGNMENT, "positions = 0x42: not aligned to its elements of 4 bytes");
    REFUSED(rapt_decode_run, da.new_k = NULL, NULL, "new_k = null: 192 bytes are read from there");
    REFUSED(rapt_decode_run, da.new_v = NULL, NULL, "new_v = null: 384 bytes are read from there");
    REFUSED(rapt_decode_run, da.k = NULL, NULL, "k = null: 512 bytes are written there");
    REFUSED(rapt_decode_run, da.v = NULL, NULL, "v = null: 1024 bytes are written there");
    REFUSED(rapt_decode_run, da.k_scales = SOMEWHERE, UNUSED, "k_scales = 0x40: the plan has no scales");
    REFUSED(rapt_decode_run, dd.new_v.type = RAPT_NONE, UNUSED, "new_v = %p: its layout has no type", (void *)memory[NEW_V]);
    REFUSED(rapt_decode_run, (dd.new_v.type = RAPT_NONE, da.new_v = da.v = NULL), NULL,
            "v = null: 1024 bytes are read from there");
    REFUSED(rapt_decode_run, (dd.new_v.type = RAPT_NONE, da.new_v = NULL, da.v_scales = SOMEWHERE), UNUSED,
            "v_scales = 0x40: the plan has no scales");
    REFUSED(rapt_decode_run, (dd.new_v.type = RAPT_NONE, da.new_v = NULL, d.v_scales.present = 1), NULL,
            "v_scales = null: 4 bytes are read from there");
    REFUSED(rapt_decode_run, a.q = NULL, NULL, "attention.q = null: 384 bytes are read from there");
    REFUSED(rapt_decode_run, a.o = NULL, NULL, "attention.o = null: 768 bytes are written there");
    REFUSED(rapt_decode_run, (d.scores = rapt_layout_bhsd(RAPT_F32, 4, 3, 8), d.scores_stage = RAPT_SCORES_RAW), NULL,
            "attention.scores = null: 384 bytes are written there");
    REFUSED(rapt_decode_run, a.scores = SOMEWHERE, UNUSED, "attention.scores = 0x40: the plan has no layout for it");
    REFUSED(rapt_decode_run, a.mask = SOMEWHERE, UNUSED, "attention.mask = 0x40: the plan has no layout for it");
    REFUSED(rapt_decode_run, a.o = memory[K], OVERLAP, "attention.o = %p: its 768 bytes meet the 512 of k = %p",
            (void *)memory[K], (void *)memory[K]);
    REFUSED(rapt_decode_run, da.k = memory[Q], OVERLAP, "k = %p: its 512 bytes meet the 384 of attention.q = %p",
            (void *)memory[Q], (void *)memory[Q]);
    REFUSED(rapt_decode_run, da.workspace = NULL, WORKSPACE, "workspace = null: %zu bytes are needed", needed_for_decoding(1));
    REFUSED(rapt_decode_run, (da.starts = starts, starts[0] = -1), TABLE, "starts[0] = -1: must be 0 or more");
    REFUSED(rapt_decode_run, (da.starts = starts, starts[0] = 6), KV_LENGTH,
            "starts[0] = 6: from there on, 3 tokens exceed kv_len = 8");
    REFUSED(rapt_decode_run, (paged(&d), pages[0] = 3), TABLE, "attention.table[entry 0, head 0][0] = 3: the pool has 3 pages");
    CHANGED(rapt_decode_run, ragged(&d), token_starts[1] = 4, TABLE, "attention.q_starts[2] = 3: below the one before");
    CHANGED(rapt_decode_run, UNCHANGED, frequencies[1] = 17.0, FEATURE, "rope.frequencies[1] = 17: must be -16 to 16");
    REFUSED(rapt_decode_run, (listed(), starts[0] = 0, a.last_page = lengths, lengths[0] = 4), TABLE,
            "attention.last_page[0] = 4: entry 0 has 8 keys then, and 3 by starts and new tokens");
    REFUSED(rapt_decode_run, (listed(), starts[2] = 5), TABLE,
            "attention.table_starts[2] = 5: gives an entry more pages than its kv_len keys have");
    REFUSED(rapt_decode_run, (a.ring_starts = offsets, offsets[0] = 8), TABLE,
            "attention.ring_starts[0] = 8: the ring has 8 keys");
    REFUSED(rapt_decode_run, (a.kv_lengths = lengths, lengths[0] = 9), KV_LENGTH,
            "attention.kv_lengths[0] = 9: there are 8 keys");
    REFUSED(rapt_decode_run, dd.rope.frequencies = NULL, NULL, "rope.frequencies = null: and there is no rope_table");
    REFUSED(rapt_decode_run, (tabled(&dd.rope, &da.rope_table), da.starts = starts, starts[0] = 5), TABLE,
            "rope_table.positions = 7: token 2 of entry 0 is at position 7");
    REFUSED(rapt_decode_run, (tabled(&dd.rope, &da.rope_table), a.q_offsets = offsets, offsets[0] = 6), TABLE,
            "rope_table.positions = 7: token 2 of entry 0 is at position 8");

    GOOD(rapt_decode_run_parallel, nth = 3);
    REFUSED(rapt_decode_run_parallel, nth = 0, RANGE, "nth = 0: there is no thread");
    TRACED(rapt_decode_run_parallel, parallel = NULL, NULL, "parallel_for = null: there is nobody to run it");
    REFUSED(rapt_decode_run_share, nth = 0, RANGE, "nth = 0: there is no thread");
    GOOD(rapt_decode_run_share, UNCHANGED);
    TRACED(rapt_decode_run_share, ith = 1, RANGE, "ith = 1: not one of the nth = 1 threads");
    TRACED(rapt_decode_run_share, (nth = 2, barrier = NULL), NULL,
           "barrier = null: the phases of several threads need one between them");
    REFUSED(rapt_decode_run_phase, nth = 0, RANGE, "nth = 0: there is no thread");
    GOOD(rapt_decode_run_phase, phase = 1);
    THREADS(rapt_decode_run_phase);
    TRACED(rapt_decode_run_phase, phase = 2, RANGE, "phase = 2: there are 2");
}

static void linear_layers(void) {
    GOOD(rapt_linear_plan_init, UNCHANGED);
    GOOD(rapt_linear_plan_init, gated());
    PLAN_MEMORY(rapt_linear_plan_init);
    STRUCTS(rapt_linear_plan_init, ld, "desc", offsetof(rapt_linear_desc, gate));
    REFUSED(rapt_linear_plan_init, ld.batch = -1, SHAPE, "batch = -1: must be 0 to 2147483647");
    REFUSED(rapt_linear_plan_init, ld.tokens = -1, SHAPE, "tokens = -1: must be 0 to 2147483647");
    REFUSED(rapt_linear_plan_init, ld.in = 0, SHAPE, "in = 0: must be 1 to 1048576");
    REFUSED(rapt_linear_plan_init, ld.out = 1048577, SHAPE, "out = 1048577: must be 1 to 1048576");
    REFUSED(rapt_linear_plan_init, ld.activation = (rapt_activation)5, FEATURE, "activation = 5: not a rapt_activation");
    REFUSED(rapt_linear_plan_init, ld.arith = (rapt_arith)3, ARITH, "arith = 3: not a rapt_arith");
    REFUSED(rapt_linear_plan_init, ld.arith = RAPT_INT8_DOT, ARITH, "weight.type = RAPT_F32: " INTEGER_WEIGHTS);
    REFUSED(rapt_linear_plan_init, (gated(), ld.arith = RAPT_INT8_DOT, ld.weight.type = RAPT_INT8), ARITH,
            "gate.type = RAPT_F32: " INTEGER_WEIGHTS);
    REFUSED(rapt_linear_plan_init, ld.x.type = RAPT_INT8, TYPE, "x.type = RAPT_INT8: " FLOATS);
    REFUSED(rapt_linear_plan_init, ld.y.token_stride = 8, STRIDE,
            "y.token_stride = 8: below the 16 bytes within it, so elements of an output meet");
    REFUSED(rapt_linear_plan_init, ld.residual.type = RAPT_Q8_0, TYPE, "residual.type = RAPT_Q8_0: " FLOATS);
    REFUSED(rapt_linear_plan_init, ld.weight.type = RAPT_F8_E4M3, TYPE, "weight.type = RAPT_F8_E4M3: " WEIGHTS);
    REFUSED(rapt_linear_plan_init, (ld.in = 40, ld.weight.type = RAPT_Q4_0), TYPE,
            "weight.type = RAPT_Q4_0: its groups of 32 channels do not divide 40");
    REFUSED(rapt_linear_plan_init, (ld.in = 384, ld.weight.type = RAPT_Q6_K), TYPE,
            "weight.type = RAPT_Q6_K: its groups of 256 channels do not divide 384");
    REFUSED(rapt_linear_plan_init, ld.weight.token_stride = -128, STRIDE, "weight.token_stride = -128: strides are not negative");
    REFUSED(rapt_linear_plan_init, (gated(), ld.gate.token_stride = -1), STRIDE,
            "gate.token_stride = -1: strides are not negative");
    REFUSED(rapt_linear_plan_init, ld.isa = "sse9", ISA_UNKNOWN, "isa = sse9: there is no kernel of that name; there are %s",
            kernel_names());

    TRACED_PLANS(rapt_linear_workspace_size, linear, "rapt_linear_plan_init");
    GOOD(rapt_linear_workspace_size, UNCHANGED);
    TRACED(rapt_linear_workspace_size, give.size = NULL, NULL, "bytes = null: there is nowhere to write it");
    TRACED(rapt_linear_workspace_size, nth = 0, RANGE, "nth = 0: there is no thread");
    TRACED(rapt_linear_workspace_size, nth = INT64_MAX, SHAPE,
           "nth = 9223372036854775807: the workspace would exceed the address space");

    GOOD(rapt_linear_run, UNCHANGED);
    GOOD(rapt_linear_run, (gated(), la.gate = memory[WK]));
    PLANS(rapt_linear_run, linear, "rapt_linear_plan_init");
    STRUCTS(rapt_linear_run, la, "args", offsetof(rapt_linear_args, gate));
    REFUSED(rapt_linear_run, la.x = NULL, NULL, "x = null: 384 bytes are read from there");
    REFUSED(rapt_linear_run, la.weight = NULL, NULL, "weight = null: 512 bytes are read from there");
    REFUSED(rapt_linear_run, la.bias = ODD, ALIGNMENT, "bias = 0x42: not aligned to its elements of 4 bytes");
    REFUSED(rapt_linear_run, la.scales = LAST, STRIDE, "scales = %p: its 16 bytes exceed the address space", LAST);
    REFUSED(rapt_linear_run, ld.weight.type = RAPT_INT8, NULL, "scales = null: 16 bytes are read from there");
    REFUSED(rapt_linear_run, gated(), NULL, "gate = null: 512 bytes are read from there");
    REFUSED(rapt_linear_run, (gated(), ld.gate.type = RAPT_INT8, la.gate = memory[WK]), NULL,
            "gate_scales = null: 16 bytes are read from there");
    REFUSED(rapt_linear_run, (gated(), la.gate = memory[WK], la.gate_bias = ODD), ALIGNMENT,
            "gate_bias = 0x42: not aligned to its elements of 4 bytes");
    REFUSED(rapt_linear_run, la.gate = SOMEWHERE, UNUSED, "gate = 0x40: the plan has no layout for it");
    REFUSED(rapt_linear_run, la.gate_bias = SOMEWHERE, UNUSED, "gate_bias = 0x40: the plan has no gate");
    REFUSED(rapt_linear_run, la.gate_scales = SOMEWHERE, UNUSED, "gate_scales = 0x40: the plan has no gate");
    REFUSED(rapt_linear_run, la.y = NULL, NULL, "y = null: 48 bytes are written there");
    REFUSED(rapt_linear_run, ld.residual = ld.y, NULL, "residual = null: 48 bytes are read from there");
    REFUSED(rapt_linear_run, la.residual = SOMEWHERE, UNUSED, "residual = 0x40: the plan has no layout for it");
    REFUSED(rapt_linear_run, la.y = memory[X], OVERLAP, "y = %p: its 48 bytes meet the 384 of x = %p", (void *)memory[X],
            (void *)memory[X]);
    REFUSED(rapt_linear_run, la.workspace_bytes = 8, WORKSPACE, "workspace_bytes = 8: %zu are needed", needed_for_linear(1));
    REFUSED(rapt_linear_run, la.workspace = workspace + 4, ALIGNMENT, "workspace = %p: not aligned to 64 bytes",
            (void *)(workspace + 4));
    EXPLAINED_WAYS(rapt_linear);
}

static size_t prepacked_size(void) {
    size_t bytes = 0;
    rapt_linear_prepacked_size(&linear, &bytes);
    return bytes;
}

/* What was packed by a plan of this description, to be used by that of the next row: 64 to 32 channels at most, each weight four
 * times in sse41. */
static _Alignas(RAPT_WORKSPACE_ALIGNMENT) char packed_before[1 << 18];
static void pack_before(void) {
    rapt_linear_plan of;
    rapt_linear_plan_init(&of, &ld);
    pa.prepacked = packed_before, pa.prepacked_bytes = sizeof packed_before;
    if (rapt_linear_prepack_run(&of, &pa) != RAPT_OK) abort();
    la.prepacked = packed_before;
}

static void prepacking(void) {
    TRACED_PLANS(rapt_linear_prepacked_size, linear, "rapt_linear_plan_init");
    GOOD(rapt_linear_prepacked_size, UNCHANGED);
    TRACED(rapt_linear_prepacked_size, give.size = NULL, NULL, "bytes = null: there is nowhere to write it");

    GOOD(rapt_linear_prepack_run, UNCHANGED);
    GOOD(rapt_linear_prepack_run,
         (gated(), pa.gate = memory[WK], pa.gate_prepacked = packed_before, pa.prepacked_bytes = sizeof packed_before));
    PLANS(rapt_linear_prepack_run, linear, "rapt_linear_plan_init");
    STRUCTS(rapt_linear_prepack_run, pa, "args", sizeof(rapt_linear_prepack_args));
    REFUSED(rapt_linear_prepack_run, pa.weight = NULL, NULL, "weight = null: 512 bytes are read from there");
    REFUSED(rapt_linear_prepack_run, pa.prepacked = NULL, NULL, "prepacked = null: %zu bytes are written there",
            prepacked_size());
    REFUSED(rapt_linear_prepack_run, pa.prepacked = workspace + 4, ALIGNMENT, "prepacked = %p: not aligned to 64 bytes",
            (void *)(workspace + 4));
    REFUSED(rapt_linear_prepack_run, pa.prepacked_bytes = 8, PREPACKED, "prepacked_bytes = 8: %zu are needed", prepacked_size());
    REFUSED(rapt_linear_prepack_run, gated(), NULL, "gate = null: 512 bytes are read from there");
    REFUSED(rapt_linear_prepack_run, (gated(), pa.gate = memory[WK]), NULL, "gate_prepacked = null: %zu bytes are written there",
            prepacked_size());
    REFUSED(rapt_linear_prepack_run, pa.gate = SOMEWHERE, UNUSED, "gate = 0x40: the plan has no layout for it");
    REFUSED(rapt_linear_prepack_run, pa.gate_prepacked = SOMEWHERE, UNUSED, "gate_prepacked = 0x40: the plan has no gate");
    REFUSED(rapt_linear_prepack_run, pa.weight = workspace, OVERLAP, "prepacked = %p: its %zu bytes meet the 512 of weight = %p",
            (void *)workspace, prepacked_size(), (void *)workspace);
    EXPLAINED_WAYS(rapt_linear_prepack);

    GOOD(rapt_linear_run, pack_before());
    REFUSED(rapt_linear_run, la.prepacked = LAST, STRIDE, "prepacked = %p: its %zu bytes exceed the address space", LAST,
            prepacked_size());
    REFUSED(rapt_linear_run, la.prepacked = packed_before + 4, ALIGNMENT, "prepacked = %p: not aligned to 64 bytes",
            (void *)(packed_before + 4));
    REFUSED(rapt_linear_run, (memset(packed_before, 0, sizeof packed_before), la.prepacked = packed_before), PREPACKED,
            "prepacked = %p: no prepacked weights are there", (void *)packed_before);
    REFUSED(rapt_linear_run, (pack_before(), memset(packed_before + sizeof(uint64_t), 'x', 24)), PREPACKED,
            "prepacked = %p: no prepacked weights are there", (void *)packed_before); /* the name of a kernel without an end */
    REFUSED(rapt_linear_run, (ld.isa = "scalar", pack_before(), ld.isa = "scalar_fma"), PREPACKED,
            "prepacked: packed for the kernel scalar, and the plan has scalar_fma");
    REFUSED(rapt_linear_run, (ld.out = 3, pack_before(), ld.out = 4), PREPACKED,
            "prepacked: packed of 32 to 3 channels, and the plan has 32 to 4");
    REFUSED(rapt_linear_run, (ld.weight = rows_of(RAPT_F16, 4, 32), pack_before(), ld.weight = rows_of(RAPT_F32, 4, 32)),
            PREPACKED, "prepacked: packed of f16, and the plan has f32");
    REFUSED(rapt_linear_run, (ld.arith = RAPT_BF16_DOT, pack_before(), ld.arith = RAPT_EXACT), PREPACKED,
            "prepacked: packed of f32 in bf16 arithmetic, and the plan has f32");
    REFUSED(rapt_linear_run, (pack_before(), ld.arith = RAPT_BF16_DOT), PREPACKED,
            "prepacked: packed of f32, and the plan has f32 in bf16 arithmetic");
    REFUSED(rapt_linear_run,
            (ld.weight = rows_of(RAPT_Q8_0, 4, 32), ld.arith = RAPT_INT8_DOT, pack_before(), ld.arith = RAPT_EXACT), PREPACKED,
            "prepacked: packed of q8_0 in integer arithmetic, and the plan has q8_0");
    REFUSED(rapt_linear_run, (gated(), la.gate = memory[WK], la.gate_prepacked = packed_before + 4), ALIGNMENT,
            "gate_prepacked = %p: not aligned to 64 bytes", (void *)(packed_before + 4));
    REFUSED(rapt_linear_run,
            (gated(), la.gate = memory[WK], memset(packed_before, 0, sizeof packed_before), la.gate_prepacked = packed_before),
            PREPACKED, "gate_prepacked = %p: no prepacked weights are there", (void *)packed_before);
    REFUSED(rapt_linear_run, la.gate_prepacked = SOMEWHERE, UNUSED, "gate_prepacked = 0x40: the plan has no gate");
}

static void quantising(void) {
    GOOD(rapt_quantise_weights, UNCHANGED);
    REFUSED(rapt_quantise_weights, out = 0, SHAPE, "out = 0: must be 1 to 1048576");
    REFUSED(rapt_quantise_weights, in = 1048577, SHAPE, "in = 1048577: must be 1 to 1048576");
    REFUSED(rapt_quantise_weights, type = RAPT_INT8, TYPE, "type = RAPT_INT8: " FLOATS);
    REFUSED(rapt_quantise_weights, row_stride = -128, STRIDE, "row_stride = -128: strides are not negative");
    REFUSED(rapt_quantise_weights, from = NULL, NULL, "from = null: 512 bytes are read from there");
    REFUSED(rapt_quantise_weights, to = NULL, NULL, "to = null: 128 bytes are written there");
    REFUSED(rapt_quantise_weights, scales = NULL, NULL, "scales = null: 16 bytes are written there");
    REFUSED(rapt_quantise_weights, scales = ODD, ALIGNMENT, "scales = 0x42: not aligned to its elements of 4 bytes");
    REFUSED(rapt_quantise_weights, to = memory[WQ], OVERLAP, "to = %p: its 128 bytes meet the 512 of from = %p",
            (void *)memory[WQ], (void *)memory[WQ]);
    GOOD(rapt_quantise_groups, UNCHANGED);
    REFUSED(rapt_quantise_groups, out = -1, SHAPE, "out = -1: must be 1 to 1048576");
    REFUSED(rapt_quantise_groups, to_type = RAPT_INT8, TYPE, "to_type = RAPT_INT8: " GROUPS);
    REFUSED(rapt_quantise_groups, to_type = RAPT_Q4_K, TYPE, "to_type = RAPT_Q4_K: " GROUPS);
    REFUSED(rapt_quantise_groups, in = 40, TYPE, "to_type = RAPT_Q8_0: its groups of 32 channels do not divide 40");
    REFUSED(rapt_quantise_groups, to = NULL, NULL, "to = null: 136 bytes are written there");
}

static void normalising(void) {
    GOOD(rapt_layer_norm_run, UNCHANGED);
    GOOD(rapt_layer_norm_run, (na.sum = na.residual = na.x, na.residual_from = memory[RESIDUAL], na.sum_to = memory[SUM]));
    STRUCTS(rapt_layer_norm_run, na, "args", offsetof(rapt_norm_args, residual));
    REFUSED(rapt_layer_norm_run, na.batch = -1, SHAPE, "batch = -1: must be 0 to 2147483647");
    REFUSED(rapt_layer_norm_run, na.tokens = -1, SHAPE, "tokens = -1: must be 0 to 2147483647");
    REFUSED(rapt_layer_norm_run, na.channels = 0, SHAPE, "channels = 0: must be 1 to 1048576");
    REFUSED(rapt_layer_norm_run, na.epsilon = -1e-5f, FEATURE, "epsilon = -1e-5: must be finite, 0 or more");
    REFUSED(rapt_layer_norm_run, na.epsilon = INFINITY, FEATURE, "epsilon = inf: must be finite, 0 or more");
    REFUSED(rapt_layer_norm_run, na.x.type = RAPT_INT8, TYPE, "x.type = RAPT_INT8: " FLOATS);
    REFUSED(rapt_layer_norm_run, na.y.token_stride = 0, STRIDE,
            "y.token_stride = 0: below the 32 bytes within it, so elements of an output meet");
    REFUSED(rapt_layer_norm_run, na.residual.type = RAPT_BOOL, TYPE, "residual.type = RAPT_BOOL: " FLOATS);
    REFUSED(rapt_layer_norm_run, na.sum.type = RAPT_I32, TYPE, "sum.type = RAPT_I32: " FLOATS);
    REFUSED(rapt_layer_norm_run, na.from = NULL, NULL, "from = null: 96 bytes are read from there");
    REFUSED(rapt_layer_norm_run, na.to = NULL, NULL, "to = null: 96 bytes are written there");
    REFUSED(rapt_layer_norm_run, na.residual = na.x, NULL, "residual_from = null: 96 bytes are read from there");
    REFUSED(rapt_layer_norm_run, na.sum = na.x, NULL, "sum_to = null: 96 bytes are written there");
    REFUSED(rapt_layer_norm_run, na.residual_from = SOMEWHERE, UNUSED, "residual_from = 0x40: residual has no type");
    REFUSED(rapt_layer_norm_run, na.sum_to = SOMEWHERE, UNUSED, "sum_to = 0x40: sum has no type");
    REFUSED(rapt_layer_norm_run, na.weight = ODD, ALIGNMENT, "weight = 0x42: not aligned to its elements of 4 bytes");
    REFUSED(rapt_layer_norm_run, na.bias = LAST, STRIDE, "bias = %p: its 32 bytes exceed the address space", LAST);
    REFUSED(rapt_layer_norm_run, na.mean = ODD, ALIGNMENT, "mean = 0x42: not aligned to its elements of 4 bytes");
    REFUSED(rapt_layer_norm_run, na.inverse_deviation = ODD, ALIGNMENT,
            "inverse_deviation = 0x42: not aligned to its elements of 4 bytes");
    REFUSED(rapt_layer_norm_run, na.mean = memory[X], OVERLAP, "mean = %p: its 12 bytes meet the 96 of from = %p",
            (void *)memory[X], (void *)memory[X]);
    REFUSED(rapt_layer_norm_run, na.isa = "sse9", ISA_UNKNOWN, "isa = sse9: there is no kernel of that name; there are %s",
            kernel_names());
    WAYS(rapt_layer_norm, na);
    REFUSED(rapt_layer_norm_run_parallel, na.from = NULL, NULL, "from = null: 96 bytes are read from there");
    GOOD(rapt_rms_norm_run, UNCHANGED);
    REFUSED(rapt_rms_norm_run, na.mean = SOMEWHERE, UNUSED, "mean = 0x40: RMS normalisation has none");
    REFUSED(rapt_rms_norm_run, na.channels = -8, SHAPE, "channels = -8: must be 1 to 1048576");
    WAYS(rapt_rms_norm, na);
    REFUSED(rapt_rms_norm_run_parallel, na.to = NULL, NULL, "to = null: 96 bytes are written there");
}

static void mha_plans(void) {
    /* The number of queries with which one tensor can be addressed, but not three. */
    const int many = sizeof(size_t) > 4 ? 1 << 30 : 1 << 14, entries = sizeof(size_t) > 4 ? 1 << 30 : (1 << 15) - 1;
    GOOD(rapt_mha_plan_init, UNCHANGED);
    GOOD(rapt_mha_plan_init, crossed());
    GOOD(rapt_mha_plan_init, cached());
    GOOD(rapt_mha_plan_init, (cached(), crossed(), yd.keys = 0));
    GOOD(rapt_mha_plan_init, packed());
    GOOD(rapt_mha_plan_init, ragged(&e));
    PLAN_MEMORY(rapt_mha_plan_init);
    const size_t mha_bytes = least_bytes(call_rapt_mha_plan_init); /* before anything is changed */
    TRACED(rapt_mha_plan_init, e.q_starts = kept(), OVERLAP, "plan = %p: its %zu bytes meet the 8 of attention.q_starts = %p",
           (void *)trial, mha_bytes, (void *)trial);
    STRUCTS(rapt_mha_plan_init, yd, "desc", offsetof(rapt_mha_desc, arith));
    REFUSED(rapt_mha_plan_init, yd.attention = NULL, NULL, "attention = null: there is no such struct");
    MARKED(rapt_mha_plan_init, e, "attention", offsetof(rapt_desc, mask_keys));
    /* What is not possible together. */
    REFUSED(rapt_mha_plan_init, (cached(), e.v.type = RAPT_NONE), TYPE,
            "attention.v.type = RAPT_NONE: K has a cache, V has none");
    REFUSED(rapt_mha_plan_init, (cached(), e.k.type = RAPT_NONE), TYPE,
            "attention.k.type = RAPT_NONE: V has a cache, K has none");
    REFUSED(rapt_mha_plan_init, e.unmerged = 1, FEATURE, "attention.unmerged = 1: must be 0 here");
    REFUSED(rapt_mha_plan_init, e.kv_first = 512, FEATURE, "attention.kv_first = 512: must be 0 here");
    REFUSED(rapt_mha_plan_init, e.kv_total = 8, FEATURE, "attention.kv_total = 8: must be 0 here");
    REFUSED(rapt_mha_plan_init, e.page_size = 16, FEATURE, "attention.page_size = 16: there is no cache");
    REFUSED(rapt_mha_plan_init, e.k_scales.present = 1, FEATURE, "attention.k_scales.present = 1: there is no cache");
    REFUSED(rapt_mha_plan_init, e.v_scales.present = 1, FEATURE, "attention.v_scales.present = 1: there is no cache");
    REFUSED(rapt_mha_plan_init, (cached(), e.k_starts = starts), FEATURE,
            "attention.k_starts = %p: a cache with ragged keys cannot be appended to", (void *)starts);
    REFUSED(rapt_mha_plan_init, (cached(), crossed(), e.k_starts = starts), FEATURE,
            "attention.k_starts = %p: a cache with ragged keys cannot be appended to", (void *)starts);
    REFUSED(rapt_mha_plan_init, yd.z = yd.x, FEATURE, "z.type = RAPT_F32: there is no Y, so Z is X");
    REFUSED(rapt_mha_plan_init, (yd.weights = of_type(RAPT_F32), e.scores = yd.weights), FEATURE,
            "weights.type = RAPT_F32: there are attention.scores");
    REFUSED(rapt_mha_plan_init, (yd.wo.type = RAPT_NONE, yd.residual = yd.out), FEATURE,
            "residual.type = RAPT_F32: without wo there is no residual");
    REFUSED(rapt_mha_plan_init, (yd.wo.type = RAPT_NONE, yd.out_width = 32), FEATURE,
            "out_width = 32: without wo it is heads * d_v = 64");
    /* Sizes. */
    REFUSED(rapt_mha_plan_init, e.heads = 0, SHAPE, "attention.heads = 0: must be 1 to 1048576");
    REFUSED(rapt_mha_plan_init, e.kv_heads = -2, SHAPE, "attention.kv_heads = -2: must be 1 to 1048576");
    REFUSED(rapt_mha_plan_init, e.d_k = 0, SHAPE, "attention.d_k = 0: must be 1 to 1024");
    REFUSED(rapt_mha_plan_init, e.d_v = 4096, SHAPE, "attention.d_v = 4096: must be 1 to 1024");
    REFUSED(rapt_mha_plan_init, e.batch = -1, SHAPE, "attention.batch = -1: must be 0 to 2147483647");
    REFUSED(rapt_mha_plan_init, e.q_len = -1, SHAPE, "attention.q_len = -1: must be 0 to 2147483647");
    REFUSED(rapt_mha_plan_init, (crossed(), yd.keys = -1), SHAPE, "keys = -1: must be 0 to 2147483647");
    REFUSED(rapt_mha_plan_init, yd.x_width = 0, SHAPE, "x_width = 0: must be 1 to 1048576");
    REFUSED(rapt_mha_plan_init, yd.y_width = 16, SHAPE, "y_width = 16: Y is X, so it has x_width");
    REFUSED(rapt_mha_plan_init, (crossed(), yd.z.type = RAPT_NONE, yd.y_width = 8, yd.z_width = 4), SHAPE,
            "z_width = 4: Z is Y, so it has y_width");
    REFUSED(rapt_mha_plan_init, (crossed(), yd.z_width = RAPT_MAX_WIDTH + 1), SHAPE, "z_width = 1048577: must be 1 to 1048576");
    REFUSED(rapt_mha_plan_init, (crossed(), yd.y_width = -1), SHAPE, "y_width = -1: must be 1 to 1048576");
    REFUSED(rapt_mha_plan_init, (crossed(), packed(), yd.y_width = 16), SHAPE,
            "x_width = 32: with packed weights or a table of positions y_width and z_width are equal to it");
    REFUSED(rapt_mha_plan_init, (crossed(), placed(), yd.z_width = 16), SHAPE,
            "x_width = 32: with packed weights or a table of positions y_width and z_width are equal to it");
    REFUSED(rapt_mha_plan_init, yd.out_width = -4, SHAPE, "out_width = -4: must be 1 to 1048576");
    REFUSED(rapt_mha_plan_init, (e.heads = e.kv_heads = 1 << 20), SHAPE, "heads * d_k = 8388608: must be 1 to 1048576");
    REFUSED(rapt_mha_plan_init, (e.heads = e.kv_heads = 1 << 17), SHAPE, "kv_heads * d_v = 2097152: must be 1 to 1048576");
    REFUSED(rapt_mha_plan_init, (e.heads = 1, e.kv_heads = 1 << 20), SHAPE, "kv_heads * d_k = 8388608: must be 1 to 1048576");
    REFUSED(rapt_mha_plan_init, (e.heads = 1 << 17, e.kv_heads = 1), SHAPE, "heads * d_v = 2097152: must be 1 to 1048576");
    REFUSED(rapt_mha_plan_init, e.heads = 3, HEADS, "attention.heads = 3: not a multiple of kv_heads = 2");
    REFUSED(rapt_mha_plan_init,
            (huge(), e.q_len = many, e.batch = entries, yd.x = yd.wq = yd.wk = yd.wv = of_type(RAPT_F32), yd.wo.type = RAPT_NONE,
             yd.out = rows_of(RAPT_F16, many, 1)),
            SHAPE, "attention.q_len = %d: the workspace would exceed the address space", many);
    REFUSED(rapt_mha_plan_init, (ragged(&e), token_starts[2] = 4), TABLE, "attention.q_starts[2] = 4: there are 3 tokens");
    REFUSED(rapt_mha_plan_init, (crossed(), e.batch = 2, e.k_starts = token_starts, token_starts[1] = 6), TABLE,
            "attention.k_starts[2] = 0: below the one before");
    /* Tensors. */
    REFUSED(rapt_mha_plan_init, yd.x.type = RAPT_INT8, TYPE, "x.type = RAPT_INT8: " FLOATS);
    REFUSED(rapt_mha_plan_init, (crossed(), yd.y.token_stride = -1), STRIDE, "y.token_stride = -1: strides are not negative");
    REFUSED(rapt_mha_plan_init, (crossed(), yd.z.token_stride = -1), STRIDE, "z.token_stride = -1: strides are not negative");
    REFUSED(rapt_mha_plan_init, yd.wq.type = RAPT_NONE, TYPE, "wq.type = RAPT_NONE: " WEIGHTS);
    REFUSED(rapt_mha_plan_init, yd.wk.type = RAPT_INT4, TYPE, "wk.type = RAPT_INT4: " WEIGHTS);
    REFUSED(rapt_mha_plan_init, yd.arith = RAPT_INT8_DOT, ARITH, "wq.type = RAPT_F32: " INTEGER_WEIGHTS);
    REFUSED(rapt_mha_plan_init, yd.wv.token_stride = -1, STRIDE, "wv.token_stride = -1: strides are not negative");
    REFUSED(rapt_mha_plan_init, yd.wo.token_stride = -1, STRIDE, "wo.token_stride = -1: strides are not negative");
    REFUSED(rapt_mha_plan_init, (packed(), yd.wq.token_stride = PTRDIFF_MAX / 60), STRIDE,
            "wq.token_stride = %td: times 64 it exceeds the address space", PTRDIFF_MAX / 60);
    REFUSED(rapt_mha_plan_init, (packed(), yd.wq.token_stride = INT64_MAX / 20), STRIDE,
            "wq.token_stride = 461168601842738790: times 32 it exceeds the address space");
    REFUSED(rapt_mha_plan_init, yd.out.token_stride = 4, STRIDE,
            "out.token_stride = 4: below the 128 bytes within it, so elements of an output meet");
    REFUSED(rapt_mha_plan_init, (yd.wo.type = RAPT_NONE, yd.out.type = RAPT_INT8), TYPE, "out.type = RAPT_INT8: " FLOATS);
    REFUSED(rapt_mha_plan_init, yd.residual.type = RAPT_INT8, TYPE, "residual.type = RAPT_INT8: " FLOATS);
    REFUSED(rapt_mha_plan_init, (ragged(&e), token_starts[2] = 1, yd.residual = yd.out, yd.residual.token_stride = -4), STRIDE,
            "residual.token_stride = -4: strides are not negative");
    REFUSED(rapt_mha_plan_init, yd.weights.type = RAPT_F16, TYPE, "weights.type = RAPT_F16: " ONLY("F32"));
    REFUSED(rapt_mha_plan_init, (yd.weights.type = RAPT_F32, yd.weights.token_stride = -1), STRIDE,
            "weights.token_stride = -1: strides are not negative");
    REFUSED(rapt_mha_plan_init, (remembered(), yd.weights.type = RAPT_F32, e.k_starts = starts, starts[1] = 9), TABLE,
            "attention.k_starts[1] = 9: there are 8 tokens");
    REFUSED(rapt_mha_plan_init, e.mask.type = RAPT_F32, TYPE, "attention.mask.type = RAPT_F32: " MASKS);
    REFUSED(rapt_mha_plan_init, (cached(), e.k.token_stride = 0), STRIDE,
            "attention.k.token_stride = 0: below the 32 bytes within it, so elements of an output meet");
    REFUSED(rapt_mha_plan_init, (cached(), e.v.token_stride = -1), STRIDE,
            "attention.v.token_stride = -1: strides are not negative");
    REFUSED(rapt_mha_plan_init, yd.rope.channels = 10, FEATURE,
            "rope.channels = 10: must be even, 0 to the 8 channels that there are");
    REFUSED(rapt_mha_plan_init, e.isa = "sse9", ISA_UNKNOWN,
            "attention.isa = sse9: there is no kernel of that name; there are %s", kernel_names());
    REFUSED(rapt_mha_plan_init, setenv("RAPT_ISA", "sse9", 1), ISA_UNKNOWN,
            "RAPT_ISA = sse9: there is no kernel of that name; there are %s", kernel_names());

    TRACED_PLANS(rapt_mha_plan_query, mha, "rapt_mha_plan_init");
    GOOD(rapt_mha_plan_query, UNCHANGED);
    TRACED(rapt_mha_plan_query, mha_info.size = 8, STRUCT, "info.size = 8: must be the sizeof of the struct, %zu to 65535",
           sizeof mha_info);
    TRACED_PLANS(rapt_mha_workspace_size, mha, "rapt_mha_plan_init");
    GOOD(rapt_mha_workspace_size, UNCHANGED);
    TRACED(rapt_mha_workspace_size, give.size = NULL, NULL, "bytes = null: there is nowhere to write it");
    TRACED(rapt_mha_workspace_size, nth = 0, RANGE, "nth = 0: there is no thread");
    TRACED(rapt_mha_workspace_size, nth = INT64_MAX, SHAPE,
           "nth = 9223372036854775807: the workspace would exceed the address space");
    TRACED(rapt_mha_workspace_size, (e.batch = 1000, nth = most_threads(needed_for_mha)), SHAPE,
           "nth = %" PRId64 ": the workspace would exceed the address space", nth);
}

/* Returns what a plan of these channels packs. The right ones are 32 to 32 for Wq, 32 to 16 for Wk, 32 to 32 for Wv and 64 to 32
 * for Wo. */
static const void *packed_of(int64_t wide, int64_t high) {
    ld.in = wide, ld.out = high, ld.x = rows_of(RAPT_F32, 3, wide), ld.y = rows_of(RAPT_F32, 3, high);
    ld.weight = rows_of(RAPT_F32, high, wide);
    pa.weight = memory[WO];
    pack_before();
    return packed_before;
}

static void changed_since(void) {
    CHANGED(rapt_mha_run, ragged(&e), token_starts[1] = 4, TABLE, "attention.q_starts[2] = 3: below the one before");
    CHANGED(rapt_mha_run, (yd.rope.channels = 8, yd.rope.frequencies = frequencies), frequencies[1] = NAN, FEATURE,
            "rope.frequencies[1] = nan: must be -16 to 16");
}

static void prepacked_projections(void) {
    GOOD(rapt_mha_run, ya.wq_prepacked = packed_of(32, 32));
    GOOD(rapt_mha_run, ya.wk_prepacked = packed_of(32, 16));
    GOOD(rapt_mha_run, ya.wv_prepacked = packed_of(32, 32));
    GOOD(rapt_mha_run, ya.wo_prepacked = packed_of(64, 32));
    GOOD(rapt_mha_run, (packed(), ya.wk_prepacked = packed_of(32, 16)));
    GOOD(rapt_mha_run, (remembered(), ya.wk_prepacked = ya.wv_prepacked = SOMEWHERE)); /* nothing is projected to keys */
    REFUSED(rapt_mha_run, ya.wq_prepacked = packed_of(32, 16), PREPACKED,
            "wq_prepacked: packed of 32 to 16 channels, and the plan has 32 to 32");
    REFUSED(rapt_mha_run, ya.wk_prepacked = packed_of(32, 32), PREPACKED,
            "wk_prepacked: packed of 32 to 32 channels, and the plan has 32 to 16");
    REFUSED(rapt_mha_run, ya.wv_prepacked = packed_of(32, 16), PREPACKED,
            "wv_prepacked: packed of 32 to 16 channels, and the plan has 32 to 32");
    REFUSED(rapt_mha_run, ya.wo_prepacked = packed_of(32, 32), PREPACKED,
            "wo_prepacked: packed of 32 to 32 channels, and the plan has 64 to 32");
    REFUSED(rapt_mha_run, ya.wv_prepacked = packed_before + 4, ALIGNMENT, "wv_prepacked = %p: not aligned to 64 bytes",
            (void *)(packed_before + 4));
    REFUSED(rapt_mha_run, ya.wo_prepacked = packed_before + 4, ALIGNMENT, "wo_prepacked = %p: not aligned to 64 bytes",
            (void *)(packed_before + 4));
    REFUSED(rapt_mha_run, (bare(), ya.wo = NULL, ya.wo_prepacked = SOMEWHERE), UNUSED, "wo_prepacked = 0x40: the plan has no wo");
}

static void mha_calls(void) {
    GOOD(rapt_mha_run, UNCHANGED);
    GOOD(rapt_mha_run, (crossed(), ya.y = memory[Y], ya.z = memory[Z]));
    GOOD(rapt_mha_run, cached());
    GOOD(rapt_mha_run, packed());
    GOOD(rapt_mha_run, ragged(&e));
    PLANS(rapt_mha_run, mha, "rapt_mha_plan_init");
    STRUCTS(rapt_mha_run, ya, "args", offsetof(rapt_mha_args, rope_table));
    GOOD(rapt_mha_run, ya.attention = &ea);
    REFUSED(rapt_mha_run, (ya.attention = &ea, memset(&ea, 0, sizeof ea)), STRUCT,
            "attention.size = 0: was not set by its init function");
    REFUSED(rapt_mha_run, ya.workspace = NULL, WORKSPACE, "workspace = null: %zu bytes are needed", needed_for_mha(1));
    REFUSED(rapt_mha_run, ya.workspace_bytes = 64, WORKSPACE, "workspace_bytes = 64: %zu are needed", needed_for_mha(1));
    REFUSED(rapt_mha_run, ya.workspace = workspace + 8, ALIGNMENT, "workspace = %p: not aligned to 64 bytes",
            (void *)(workspace + 8));
    /* Rows, */
    REFUSED(rapt_mha_run, ya.out = NULL, NULL, "out = null: 384 bytes are written there");
    REFUSED(rapt_mha_run, ya.x = NULL, NULL, "x = null: 384 bytes are read from there");
    REFUSED(rapt_mha_run, crossed(), NULL, "y = null: 640 bytes are read from there");
    REFUSED(rapt_mha_run, (crossed(), ya.y = memory[Y]), NULL, "z = null: 640 bytes are read from there");
    REFUSED(rapt_mha_run, ya.y = SOMEWHERE, UNUSED, "y = 0x40: Y is X");
    REFUSED(rapt_mha_run, ya.z = SOMEWHERE, UNUSED, "z = 0x40: Z is X");
    REFUSED(rapt_mha_run, (crossed(), yd.z.type = RAPT_NONE, ya.y = memory[Y], ya.z = SOMEWHERE), UNUSED, "z = 0x40: Z is Y");
    REFUSED(rapt_mha_run, yd.residual = yd.out, NULL, "residual = null: 384 bytes are read from there");
    REFUSED(rapt_mha_run, ya.residual = SOMEWHERE, UNUSED, "residual = 0x40: the plan has no layout for it");
    REFUSED(rapt_mha_run, (ya.out = memory[X] + 1), OVERLAP, "out = %p: its 384 bytes meet the 384 of x = %p",
            (void *)(memory[X] + 1), (void *)memory[X]);
    /* weights, */
    REFUSED(rapt_mha_run, ya.wq = NULL, NULL, "wq = null: 4096 bytes are read from there");
    REFUSED(rapt_mha_run, ya.wk = NULL, NULL, "wk = null: 2048 bytes are read from there");
    REFUSED(rapt_mha_run, ya.wv = NULL, NULL, "wv = null: 4096 bytes are read from there");
    REFUSED(rapt_mha_run, ya.wo = NULL, NULL, "wo = null: 8192 bytes are read from there");
    REFUSED(rapt_mha_run, ya.bq = ODD, ALIGNMENT, "bq = 0x42: not aligned to its elements of 4 bytes");
    REFUSED(rapt_mha_run, ya.bk = ODD, ALIGNMENT, "bk = 0x42: not aligned to its elements of 4 bytes");
    REFUSED(rapt_mha_run, ya.bv = ODD, ALIGNMENT, "bv = 0x42: not aligned to its elements of 4 bytes");
    REFUSED(rapt_mha_run, ya.bo = ODD, ALIGNMENT, "bo = 0x42: not aligned to its elements of 4 bytes");
    REFUSED(rapt_mha_run, yd.wq.type = RAPT_INT8, NULL, "wq_scales = null: 128 bytes are read from there");
    REFUSED(rapt_mha_run, yd.wk.type = RAPT_INT8, NULL, "wk_scales = null: 64 bytes are read from there");
    REFUSED(rapt_mha_run, yd.wv.type = RAPT_INT8, NULL, "wv_scales = null: 128 bytes are read from there");
    REFUSED(rapt_mha_run, yd.wo.type = RAPT_INT8, NULL, "wo_scales = null: 128 bytes are read from there");
    REFUSED(rapt_mha_run, (packed(), ya.wk = SOMEWHERE), UNUSED, "wk = 0x40: packed weights have all rows in wq");
    REFUSED(rapt_mha_run, (packed(), ya.bv = SOMEWHERE), UNUSED, "bv = 0x40: packed weights have all biases in bq");
    REFUSED(rapt_mha_run, (packed(), ya.wv_scales = SOMEWHERE), UNUSED,
            "wv_scales = 0x40: packed weights have all scales in wq_scales");
    REFUSED(rapt_mha_run, (packed(), ya.wq = NULL), NULL, "wq = null: 8192 bytes are read from there");
    REFUSED(rapt_mha_run, bare(), UNUSED, "wo = %p: the plan has no layout for it", (void *)memory[WO]);
    REFUSED(rapt_mha_run, (bare(), ya.wo = NULL, ya.bo = SOMEWHERE), UNUSED, "bo = 0x40: the plan has no wo");
    REFUSED(rapt_mha_run, (bare(), ya.wo = NULL, ya.wo_scales = SOMEWHERE), UNUSED, "wo_scales = 0x40: the plan has no wo");
    changed_since();
    prepacked_projections();
    /* the cache, */
    REFUSED(rapt_mha_run, ya.k_cache = SOMEWHERE, UNUSED, "k_cache = 0x40: the plan has no cache");
    REFUSED(rapt_mha_run, ya.v_cache = SOMEWHERE, UNUSED, "v_cache = 0x40: the plan has no cache");
    REFUSED(rapt_mha_run, ya.k_scales = SOMEWHERE, UNUSED, "k_scales = 0x40: the plan has no cache");
    REFUSED(rapt_mha_run, ya.v_scales = SOMEWHERE, UNUSED, "v_scales = 0x40: the plan has no cache");
    REFUSED(rapt_mha_run, (cached(), ya.k_cache = NULL), NULL, "k_cache = null: 512 bytes are written there");
    REFUSED(rapt_mha_run, (cached(), ya.v_cache = NULL), NULL, "v_cache = null: 1024 bytes are written there");
    REFUSED(rapt_mha_run, (cached(), ya.k_scales = SOMEWHERE), UNUSED, "k_scales = 0x40: the plan has no scales");
    REFUSED(rapt_mha_run, (remembered(), ya.k_cache = NULL), NULL, "k_cache = null: 512 bytes are read from there");
    REFUSED(rapt_mha_run, (remembered(), ya.v_cache = NULL), NULL, "v_cache = null: 1024 bytes are read from there");
    REFUSED(rapt_mha_run, (remembered(), ya.k_scales = SOMEWHERE), UNUSED, "k_scales = 0x40: the plan has no scales");
    REFUSED(rapt_mha_run, (remembered(), ya.v_scales = SOMEWHERE), UNUSED, "v_scales = 0x40: the plan has no scales");
    REFUSED(rapt_mha_run, (remembered(), e.k_scales.present = 1), NULL, "k_scales = null: 4 bytes are read from there");
    REFUSED(rapt_mha_run, (remembered(), e.v_scales.present = 1), NULL, "v_scales = null: 4 bytes are read from there");
    REFUSED(rapt_mha_run, (cached(), ya.starts = starts, starts[0] = 6), KV_LENGTH,
            "starts[0] = 6: from there on, 3 tokens exceed kv_len = 8");
    REFUSED(rapt_mha_run, (cached(), ya.attention = &ea, ea.ring_starts = offsets, offsets[0] = 8), TABLE,
            "attention.ring_starts[0] = 8: the ring has 8 keys");
    /* positions, and attention. */
    GOOD(rapt_mha_run, placed());
    REFUSED(rapt_mha_run, ya.starts = ODD, ALIGNMENT, "starts = 0x42: not aligned to its elements of 4 bytes");
    REFUSED(rapt_mha_run, (ya.starts = starts, starts[0] = -1), TABLE, "starts[0] = -1: must be 0 or more");
    REFUSED(rapt_mha_run, (placed(), ya.position_table = NULL), NULL, "position_table = null: 640 bytes are read from there");
    REFUSED(rapt_mha_run, (placed(), ya.position_table = ODD), ALIGNMENT,
            "position_table = 0x42: not aligned to its elements of 4 bytes");
    REFUSED(rapt_mha_run, (placed(), ya.table_positions = -1), SHAPE, "table_positions = -1: must be 0 to 2147483647");
    REFUSED(rapt_mha_run, (placed(), ya.starts = starts, starts[0] = 3), TABLE,
            "table_positions = 5: entry 0 has tokens of positions up to 5");
    REFUSED(rapt_mha_run, ya.position_table = SOMEWHERE, UNUSED, "position_table = 0x40: the plan has no table of positions");
    REFUSED(rapt_mha_run, ya.rope_table.type = RAPT_F32, UNUSED, "rope_table.type = RAPT_F32: nothing is rotated");
    REFUSED(rapt_mha_run, (yd.rope.channels = 8, tabled(&yd.rope, &ya.rope_table), ya.starts = starts, starts[0] = 5), TABLE,
            "rope_table.positions = 7: token 2 of entry 0 is at position 7");
    REFUSED(rapt_mha_run, ya.weights = SOMEWHERE, UNUSED, "weights = 0x40: the plan has no layout for it");
    REFUSED(rapt_mha_run, yd.weights = rapt_layout_bhsd(RAPT_F32, 4, 3, 3), NULL, "weights = null: 144 bytes are written there");
    REFUSED(rapt_mha_run, (e.scores = rapt_layout_bhsd(RAPT_F32, 4, 3, 3), e.scores_stage = RAPT_SCORES_LOGITS), NULL,
            "attention.scores = null: 144 bytes are written there");
    REFUSED(rapt_mha_run, (ya.attention = &ea, ea.scores = SOMEWHERE), UNUSED,
            "attention.scores = 0x40: the plan has no layout for it");
    REFUSED(
        rapt_mha_run,
        (yd.weights = rapt_layout_bhsd(RAPT_F32, 4, 3, 3), ya.weights = memory[SUM], ya.attention = &ea, ea.scores = SOMEWHERE),
        UNUSED, "attention.scores = 0x40: weights is what these are");
    REFUSED(rapt_mha_run, (ya.attention = &ea, ea.lse = SOMEWHERE), UNUSED,
            "attention.lse = 0x40: the plan has no layout for it");
    REFUSED(rapt_mha_run, (ya.attention = &ea, ea.kv_lengths = lengths, lengths[0] = 4), KV_LENGTH,
            "attention.kv_lengths[0] = 4: there are 3 keys");

    GOOD(rapt_mha_run_parallel, nth = 3);
    REFUSED(rapt_mha_run_parallel, nth = 0, RANGE, "nth = 0: there is no thread");
    TRACED(rapt_mha_run_parallel, parallel = NULL, NULL, "parallel_for = null: there is nobody to run it");
    GOOD(rapt_mha_run_share, UNCHANGED);
    REFUSED(rapt_mha_run_share, nth = 0, RANGE, "nth = 0: there is no thread");
    TRACED(rapt_mha_run_share, ith = -1, RANGE, "ith = -1: not one of the nth = 1 threads");
    TRACED(rapt_mha_run_share, (nth = 2, barrier = NULL), NULL,
           "barrier = null: the phases of several threads need one between them");
    REFUSED(rapt_mha_run_phase, nth = 0, RANGE, "nth = 0: there is no thread");
    THREADS(rapt_mha_run_phase);
    TRACED(rapt_mha_run_phase, phase = 3, RANGE, "phase = 3: there are 3");
}

static void merging_states(void) {
    GOOD(rapt_merge_states_run, UNCHANGED);
    PLANS(rapt_merge_states_run, merging, "rapt_plan_init");
    STRUCTS(rapt_merge_states_run, ua, "args", offsetof(rapt_args, q_offsets));
    WAYS(rapt_merge_states, ua);
    CHANGED(rapt_merge_states_run, ragged(&u), token_starts[1] = 2, TABLE,
            "q_starts = %p, k_starts = 0x0: not as they were when the plan was made", (void *)token_starts);
    REFUSED(rapt_merge_states_run, n = -1, RANGE, "n = -1: must be 0 or more");
    REFUSED(rapt_merge_states_run, give.states = NULL, NULL, "sources = null: %zu bytes are read from there", sizeof states);
    REFUSED(rapt_merge_states_run, ua.o = NULL, NULL, "o = null: 768 bytes are written there");
    REFUSED(rapt_merge_states_run, ua.lse = NULL, NULL, "lse = null: 48 bytes are written there");
    REFUSED(rapt_merge_states_run, u.lse.type = RAPT_NONE, UNUSED, "lse = %p: the plan has no layout for it",
            (void *)memory[LSE]);
    REFUSED(rapt_merge_states_run, u.sinks.type = RAPT_F32, NULL, "sinks = null: 4 bytes are read from there");
    REFUSED(rapt_merge_states_run, ua.sinks = SOMEWHERE, UNUSED, "sinks = 0x40: the plan has no layout for it");
    REFUSED(rapt_merge_states_run, u.v_scales.present = 1, NULL, "v_scales = null: 4 bytes are read from there");
    REFUSED(rapt_merge_states_run, ua.v_scales = SOMEWHERE, UNUSED, "v_scales = 0x40: the plan has no layout for it");
    REFUSED(rapt_merge_states_run, give.merging = &plan, PLAN, "plan = %p: was made without unmerged", (void *)&plan);
    REFUSED(rapt_merge_states_run, ua.lse = memory[O], OVERLAP, "lse = %p: its 48 bytes meet the 768 of o = %p",
            (void *)memory[O], (void *)memory[O]);
    REFUSED(rapt_merge_states_run, (ragged(&u), ua.o = token_starts), OVERLAP,
            "o = %p: its 768 bytes meet the 12 of q_starts = %p", (void *)token_starts, (void *)token_starts);
    REFUSED(rapt_merge_states_run, states[1].chunks = -1, SHAPE, "sources[1].chunks = -1: must be 0 to 4194304");
    REFUSED(rapt_merge_states_run, states[0].chunks = INT64_MAX, SHAPE,
            "sources[0].chunks = 9223372036854775807: must be 0 to 4194304");
    REFUSED(rapt_merge_states_run, (states[0].chunks = 2, states[0].state_stride = 64), STRIDE,
            "sources[0].state_stride = 64: a state has 128 bytes");
    REFUSED(rapt_merge_states_run, states[1].head_stride = -1, STRIDE, "sources[1].head_stride = -1: strides are not negative");
    REFUSED(rapt_merge_states_run, states[1].at = NULL, NULL, "sources[1].at = null: 1536 bytes are read from there");
    REFUSED(rapt_merge_states_run, states[1].at = memory[O], OVERLAP, "o = %p: its 768 bytes meet the 1536 of sources[1].at = %p",
            (void *)memory[O], (void *)memory[O]);
    GOOD(rapt_merge, UNCHANGED);
    REFUSED(rapt_merge, n = -1, SHAPE, "n = -1: must be 0 or more");
    REFUSED(rapt_merge, channels = 0, SHAPE, "d_v = 0: must be 1 to 1024");
    REFUSED(rapt_merge, rows = -1, SHAPE, "rows = -1: negative, or more than the address space has room for");
    REFUSED(rapt_merge, give.o = NULL, NULL, "o = null: %zu bytes are read from there", sizeof sources_o);
    REFUSED(rapt_merge, give.lse = NULL, NULL, "lse = null: %zu bytes are read from there", sizeof sources_lse);
    REFUSED(rapt_merge, o_out = ODD, ALIGNMENT, "o_out = 0x42: not aligned to its elements of 4 bytes");
    REFUSED(rapt_merge, lse_out = ODD, ALIGNMENT, "lse_out = 0x42: not aligned to its elements of 4 bytes");
    REFUSED(rapt_merge, lse_out = memory[O], OVERLAP, "lse_out = %p: its 12 bytes meet the 192 of o_out = %p", (void *)memory[O],
            (void *)memory[O]);
    REFUSED(rapt_merge, sources_o[1] = NULL, NULL, "o[1] = null: 192 bytes are read from there");
    REFUSED(rapt_merge, sources_lse[0] = NULL, NULL, "lse[0] = null: 12 bytes are read from there");
    REFUSED(rapt_merge, sources_lse[1] = memory[O], OVERLAP, "o_out = %p: its 192 bytes meet the 12 of lse[1] = %p",
            (void *)memory[O], (void *)memory[O]);
    REFUSED(rapt_merge, setenv("RAPT_ISA", "sse9", 1), ISA_UNKNOWN,
            "RAPT_ISA = sse9: there is no kernel of that name; there are %s", kernel_names());
}

static void tables_of_positions(void) {
    GOOD(rapt_rope_frequencies, channels = 8);
    TRACED(rapt_rope_frequencies, channels = 7, SHAPE, "channels = 7: must be even, 2 to 1024");
    TRACED(rapt_rope_frequencies, channels = 0, SHAPE, "channels = 0: must be even, 2 to 1024");
    TRACED(rapt_rope_frequencies, base = 0.5, FEATURE, "base = 0.5: must be finite, 1 or more");
    TRACED(rapt_rope_frequencies, base = 0.0, FEATURE, "base = 0: must be finite, 1 or more");
    TRACED(rapt_rope_frequencies, base = -120000.0, FEATURE, "base = -120000: must be finite, 1 or more");
    TRACED(rapt_rope_frequencies, base = INFINITY, FEATURE, "base = inf: must be finite, 1 or more");
    TRACED(rapt_rope_frequencies, give.frequencies = NULL, NULL, "frequencies = null: 64 bytes are written there");
    TRACED(rapt_rope_frequencies, give.frequencies = ODD, ALIGNMENT,
           "frequencies = 0x42: not aligned to its elements of 8 bytes");
    GOOD(rapt_sinusoidal, UNCHANGED);
    TRACED(rapt_sinusoidal, channels = 1, SHAPE, "width = 1: must be even, 2 to 1048576");
    TRACED(rapt_sinusoidal, channels = 7, SHAPE, "width = 7: must be even, 2 to 1048576");
    TRACED(rapt_sinusoidal, channels = RAPT_MAX_WIDTH + 2, SHAPE, "width = 1048578: must be even, 2 to 1048576");
    TRACED(rapt_sinusoidal, first = -1, SHAPE, "first = -1: must be 0 to 2147483647");
    TRACED(rapt_sinusoidal, first = RAPT_MAX_LENGTH - 3, SHAPE,
           "positions = 4: must be 0 or more, and with first at most 2147483647");
    TRACED(rapt_sinusoidal, table = NULL, NULL, "table = null: 256 bytes are written there");
    GOOD(rapt_alibi_slopes, UNCHANGED);
    TRACED(rapt_alibi_slopes, count = 0, SHAPE, "heads = 0: must be 1 to 2147483647");
    TRACED(rapt_alibi_slopes, table = NULL, NULL, "slopes = null: 16 bytes are written there");
}

/* What plans say of a tuning, which is that of the scalar kernel. */
#define TUNINGS(function, object, owner)                                                                                         \
    do {                                                                                                                         \
        GOOD(function, (object.isa = "scalar", object.tuning = &tuned));                                                         \
        GOOD(function,                                                                                                           \
             (object.isa = tuned.isa = "scalar", tuned.joined_rows = 64, tuned.few_rows = 16, object.tuning = &tuned));          \
        REFUSED(function, (object.isa = "scalar", tuned.isa = "sse9", object.tuning = &tuned), TUNING,                           \
                owner "tuning.isa = sse9: the kernel is scalar");                                                                \
        REFUSED(function, (object.tuning = &tuned, tuned.size = 0), STRUCT,                                                      \
                owner "tuning.size = 0: was not set by its init function");                                                      \
        REFUSED(function, (object.isa = "scalar", object.tuning = &tuned, tuned.pass_l2 = 0), TUNING,                            \
                owner "tuning.pass_l2 = 0: must be 1 to 256 in the kernel scalar, or -1");                                       \
        REFUSED(function, (object.isa = "scalar", object.tuning = &tuned, tuned.few_rows = 17), TUNING,                          \
                owner "tuning.few_rows = 17: must be 0 to 16 in the kernel scalar, or -1");                                      \
    } while (0)

/* A number below and one above its range. */
#define RANGE(field, from, to)                                                                                                   \
    do {                                                                                                                         \
        GOOD(rapt_plan_init, (d.isa = "scalar", d.tuning = &tuned, tuned.field = from));                                         \
        GOOD(rapt_plan_init, (d.isa = "scalar", d.tuning = &tuned, tuned.field = to));                                           \
        REFUSED(rapt_plan_init, (d.isa = "scalar", d.tuning = &tuned, tuned.field = -2), TUNING,                                 \
                "tuning." #field " = -2: must be " #from " to " #to " in the kernel scalar, or -1");                             \
        REFUSED(rapt_plan_init, (d.isa = "scalar", d.tuning = &tuned, tuned.field = to + 1), TUNING,                             \
                "tuning." #field " = %d: must be " #from " to " #to " in the kernel scalar, or -1", to + 1);                     \
    } while (0)

/* What functions that write to a tuning say of it. */
#define INITIALISED(function, object, what)                                                                                      \
    TRACED(function, object.size = 0, STRUCT, what ".size = 0: was not set by its init function")

static void tunings(void) {
    TUNINGS(rapt_plan_init, d, "");
    TUNINGS(rapt_linear_plan_init, ld, "");
    TUNINGS(rapt_decode_plan_init, d, "attention.");
    TUNINGS(rapt_mha_plan_init, e, "attention.");
    RANGE(few_rows, 0, 16);
    RANGE(few_integer_rows, 0, 16);
    RANGE(left_over, 0, 0);
    RANGE(joined_rows, 1, 64);
    RANGE(joined_bytes, 1, 1048576);
    RANGE(pass_tiles, 1, 32);
    RANGE(pass_l2, 1, 256);
    RANGE(thread_tasks, 1, 64);
    RANGE(ragged_tasks, 1, 64);
    RANGE(states_part, 1, 1024);
    RANGE(few_tokens, 0, 32);
    RANGE(bf16_few_tokens, 0, 32);
    RANGE(weights_l2, 1, 256);
    RANGE(staging_outputs, 0, 1048576);
    RANGE(long_row, 1, 16777216);
    RANGE(long_ahead, 0, 1048576);
    RANGE(short_ahead, 0, 1048576);

    GOOD(rapt_tuning_query, UNCHANGED);
    GOOD(rapt_tuning_query, (give.tuned = give.lowest = give.highest = NULL));
    TRACED(rapt_tuning_query, isa = "sse9", ISA_UNKNOWN, "isa = sse9: there is no kernel of that name; there are %s",
           kernel_names());
    TRACED(rapt_tuning_query, tuned.size = sizeof tuned, STRUCT, "own.size = %zu: was not set by its init function",
           sizeof tuned);
    INITIALISED(rapt_tuning_query, lowest, "least");
    INITIALISED(rapt_tuning_query, highest, "most");

    GOOD(rapt_tuning_parse, UNCHANGED);
    GOOD(rapt_tuning_parse, words = "any");
    GOOD(rapt_tuning_parse, words = "\t scalar_fma  joined_bytes=00000000000000000000007 \r\n few_rows=0\n");
    GOOD(rapt_tuning_parse, give.tuned = newer(&tuned, sizeof tuned, 0));
    REFUSED(rapt_tuning_parse, words = NULL, NULL, "line = null: there is no text");
    STRUCTS(rapt_tuning_parse, tuned, "tuning", sizeof tuned);
    REFUSED(rapt_tuning_parse, words = " \n", TUNING, "line = : a kernel's name, or any, is needed");
    REFUSED(rapt_tuning_parse, words = "sse9 few_rows=2", ISA_UNKNOWN,
            "isa = sse9: there is no kernel of that name; there are %s", kernel_names());
    REFUSED(rapt_tuning_parse, words = "few_rows=2", ISA_UNKNOWN,
            "isa = few_rows=2: there is no kernel of that name; there are %s", kernel_names());
    REFUSED(rapt_tuning_parse, words = "any few_rows", TUNING, "line = ... few_rows ...: a field, = and its number are needed");
    REFUSED(rapt_tuning_parse, words = "any joined_bytes=000000000000000000000000000000000001", TUNING,
            "line = ... joined_bytes=0000000000000000000000000000000000 ...: a field, = and its number are needed");
    REFUSED(rapt_tuning_parse, words = "any few_rows=2 cows=3", TUNING, "line = ... cows=...: there is no such field");
    REFUSED(rapt_tuning_parse, words = "any =3", TUNING, "line = ... =...: there is no such field");
    REFUSED(rapt_tuning_parse, words = "any few_rows=2 few_rows=3", TUNING, "few_rows = 3: is given twice");
    REFUSED(rapt_tuning_parse, words = "any few_rows=", TUNING, "few_rows = : is no number");
    REFUSED(rapt_tuning_parse, words = "any few_rows=-1", TUNING, "few_rows = -1: is no number");
    REFUSED(rapt_tuning_parse, words = "any few_rows=2x", TUNING, "few_rows = 2x: is no number");
    REFUSED(rapt_tuning_parse, words = "any few_rows=2147483648", TUNING, "few_rows = 2147483648: is no number");
    REFUSED(rapt_tuning_parse, words = "any few_rows=30000000000", TUNING, "few_rows = 30000000000: is no number");
    REFUSED(rapt_tuning_parse, words = "scalar few_rows=17", TUNING,
            "few_rows = 17: must be 0 to 16 in the kernel scalar, or -1");

    GOOD(rapt_tuning_print, UNCHANGED);
    GOOD(rapt_tuning_print, (tuned.isa = "scalar", tuned.few_rows = 3));
    TRACED(rapt_tuning_print, give.tuned = NULL, NULL, "tuning = null: there is no such struct");
    TRACED(rapt_tuning_print, give.line = NULL, NULL, "line = null: there is nowhere to write it");
    TRACED(rapt_tuning_print, tuned.isa = "sse9", ISA_UNKNOWN, "tuning.isa = sse9: there is no kernel of that name; there are %s",
           kernel_names());
    TRACED(rapt_tuning_print, (tuned.isa = "scalar", tuned.few_rows = 17), TUNING,
           "tuning.few_rows = 17: must be 0 to 16 in the kernel scalar, or -1");
    TRACED(rapt_tuning_print, tuned.few_rows = -2, TUNING, "tuning.few_rows = -2: must be -1 or more");
    TRACED(rapt_tuning_print, (tuned.few_rows = 2, give.trial_bytes = 14), TUNING, "bytes = 14: the line takes 15");
}

/* A kernel that is wrong on purpose, where the library was built with it, and its hashes; one that this machine cannot run, and
 * why. */
#define BROKEN "broken_ulp"
#define BROKEN_LINE                                                                                                              \
    "%s: attention of many rows: its bits, of hash %s, are not those of docs/order.md, of hash %s: was it compiled with "        \
    "-ffp-contract=off, and without -ffast-math?"
static char broken_hashes[2][17], lacks[128];
static const char *lacking;

static bool find_broken(void) {
    char text[LINE_BYTES];
    reset();
    if (!rapt_isa_rounding(BROKEN)) return false;
    rapt_self_check(BROKEN, text, sizeof text);
    sscanf(text,
           BROKEN ": attention of many rows: its bits, of hash %16[0-9a-f], are not those of docs/order.md, of hash %16[0-9a-f]:",
           broken_hashes[0], broken_hashes[1]);
    return true;
}

static bool find_lacking(void) {
    for (int i = 0; (lacking = rapt_isa_name(i)); i++)
        if (rapt_isa_usable(lacking, lacks, sizeof lacks) == RAPT_ERR_ISA_MISSING) return true;
    return false;
}

static void kernels(void) {
    GOOD(rapt_isa_usable, UNCHANGED);
    TRACED(rapt_isa_usable, name = NULL, NULL, "name = null: no kernel has that name");
    GOOD(rapt_isa_force, UNCHANGED);
    GOOD(rapt_isa_force, name = NULL);
    TRACED(rapt_isa_force, name = "sse9", ISA_UNKNOWN, "name = sse9: there is no kernel of that name; there are %s",
           kernel_names());
    GOOD(rapt_isa_current, UNCHANGED);
    TRACED(rapt_isa_current, give.name = NULL, NULL, "name = null: there is nowhere to write it");
    TRACED(rapt_isa_current, setenv("RAPT_ISA", "sse9", 1), ISA_UNKNOWN,
           "RAPT_ISA = sse9: there is no kernel of that name; there are %s", kernel_names());
    GOOD(rapt_isa_current, setenv("RAPT_ISA", "", 1));
    const char *chosen = NULL;
    reset(), setenv("RAPT_ISA", "scalar", 1);
    tap_ok(rapt_isa_current(&chosen) == RAPT_OK && strcmp(chosen, "scalar") == 0, "RAPT_ISA = scalar: that is the choice");
    GOOD(rapt_cpu_features, UNCHANGED);
    TRACED(rapt_cpu_features, give.names = NULL, NULL, "names = null: there is nowhere to write them");
    GOOD(rapt_self_check, isa = "scalar");
    GOOD(rapt_self_check_in, (to = workspace, count = RAPT_SELF_CHECK_BYTES, isa = "scalar"));
    REFUSED(rapt_self_check_in, (to = workspace, count = RAPT_SELF_CHECK_BYTES, isa = "sse9"), ISA_UNKNOWN,
            "isa = sse9: there is no kernel of that name; there are %s", kernel_names());
    REFUSED(rapt_self_check_in, (to = NULL, count = RAPT_SELF_CHECK_BYTES), WORKSPACE, "workspace = null: %d bytes are needed",
            RAPT_SELF_CHECK_BYTES);
    REFUSED(rapt_self_check_in, (to = workspace, count = RAPT_SELF_CHECK_BYTES - 1), WORKSPACE,
            "workspace_bytes = %d: %d are needed", RAPT_SELF_CHECK_BYTES - 1, RAPT_SELF_CHECK_BYTES);
    REFUSED(rapt_self_check_in, (to = workspace + 4, count = RAPT_SELF_CHECK_BYTES), ALIGNMENT,
            "workspace = %p: not aligned to 64 bytes", (void *)(workspace + 4));
    REFUSED(rapt_self_check, isa = "sse9", ISA_UNKNOWN, "isa = sse9: there is no kernel of that name; there are %s",
            kernel_names());
    for (int i = 0; i < FLOAT_MODES; i++)
        if (*line_of(&float_modes[i], "the thread"))
            REFUSED(rapt_self_check, moded = &float_modes[i], SELF_CHECK, "%s", line_of(&float_modes[i], "the thread"));
    if (find_broken()) {
        REFUSED(rapt_self_check, isa = BROKEN, SELF_CHECK, BROKEN_LINE, BROKEN, broken_hashes[0], broken_hashes[1]);
        REFUSED(rapt_self_check, isa = NULL, SELF_CHECK, BROKEN_LINE, BROKEN, broken_hashes[0], broken_hashes[1]);
    }
    if (find_lacking()) {
        TRACED(rapt_isa_force, name = lacking, ISA_MISSING, "name = %s: this machine lacks %s", lacking, lacks);
        REFUSED(rapt_plan_init, d.isa = lacking, ISA_MISSING, "isa = %s: this machine lacks %s", lacking, lacks);
        REFUSED(rapt_plan_init, setenv("RAPT_ISA", lacking, 1), ISA_MISSING, "RAPT_ISA = %s: this machine lacks %s", lacking,
                lacks);
    }
}

/* A forgotten batch is one entry. */
static void forgotten_batches(void) {
    reset();
    tap_ok(d.batch == 1 && ad.batch == 1 && cd.entries == 1 && ra.batch == 1 && ld.batch == 1 && na.batch == 1,
           "a forgotten batch is 1");
}

/* Whole lines about plans that are made. */
static void made_plans(void) {
    char want[LINE_BYTES];
    traces t = {.function = "rapt_plan_init"};
    const rapt_trace trace = {keep, &t};
    reset();
    d.isa = ld.isa = "scalar", d.causal = RAPT_CAUSAL_TOP_LEFT, d.mask.type = RAPT_BOOL, d.threads = 2;
    rapt_trace_to(&trace);
    rapt_plan_init(&plan, &d);
    rapt_plan_query(&plan, &info);
    snprintf(want, sizeof want,
             "rapt_plan_init: scalar, exact, %s; batch 1, heads 4/2, 3 queries, 8 keys, d 8/16, types f32 f32 f32 to f32 causal "
             "top-left "
             "mask; "
             "%" PRId64 " + %" PRId64 " tasks of attention, workspace %zu + %zu a thread",
             info.path, info.tasks[0], info.tasks[1], info.shared_bytes, info.thread_bytes);
    tap_ok(t.lines == 1 && strcmp(t.first, want) == 0, "%s", t.first);
    t = (traces){.function = "rapt_linear_plan_init"};
    ld.activation = RAPT_GELU;
    rapt_linear_plan_init(&linear, &ld);
    rapt_trace_to(NULL);
    tap_ok(t.lines == 1 &&
               strcmp(t.first, "rapt_linear_plan_init: scalar; 3 tokens, 32 to 4 channels, types f32 f32 to f32, activation 2") ==
                   0,
           "%s", t.first);
}

/* ---- What the table lacks -------------------------------------------------------------------------------------------- */

#if defined(__ELF__)
/* Where explain.py has marked the library: else there are none. */
extern explain_site *const __start_explain_sites[] __attribute__((weak)), *const __stop_explain_sites[] __attribute__((weak));
extern const char *const __start_explain_names[] __attribute__((weak)), *const __stop_explain_names[] __attribute__((weak));

/* Places that no call can reach. */
static const struct {
    const char *file, *function, *arguments, *why;
} unreachable[] = {
    {"plan.c", "rapt_refuse_number", "r, RAPT_ERR_SHAPE, \"threads\"",
     "o, of two bytes for each task, has fitted the address space"},
    {"run.c", "rapt_reads_array", "m, \"q_starts\"", "was read when it was planned"},
    {"run.c", "rapt_reads_array", "m, \"k_starts\"", "was read when it was planned"},
    {"merge.c", "rapt_reads_array", "&m, \"q_starts\"", "was read when it was planned"},
    {"memory.c", "rapt_writes", "&m, \"plan\"", "was looked at already"},
    {"memory.c", "rapt_reads_array", "&m, \"rope.frequencies\"", "was looked at already"},
    {"memory.c", "rapt_reads_array", "&m, \"q_starts\"", "was read already"},
    {"memory.c", "rapt_reads_array", "&m, \"k_starts\"", "was read already"},
    {"run.c", "rapt_reads", "&m, \"plan\"", "has been read"},
    {"merge.c", "rapt_reads", "&m, \"plan\"", "has been read"},
    {"decode.c", "rapt_reads", "&m, \"plan\"", "has been read"},
    {"mha.c", "rapt_reads", "&m, \"plan\"", "has been read"},
    {"linear.c", "rapt_reads", "&m, \"plan\"", "has been read"},
    {"prepack.c", "rapt_reads", "&m, \"plan\"", "has been read"},
    {"self_check.c", "rapt_refuse", "r, RAPT_ERR_SELF_CHECK, \"%s: %s: %s\"", "its own problems are good calls"},
    {"self_check.c", "rapt_select", "r, name, &kernel", "a kernel that was found usable"},
    {"self_check.c", "rapt_refuse", "r, RAPT_ERR_SELF_CHECK, \"the thread does not", "the control register has told of it"},
    {"select.c", "rapt_refuse", "r, RAPT_ERR_ISA_MISSING", "all kernels can run everywhere"},
};

enum { UNREACHABLE = sizeof unreachable / sizeof *unreachable };

/* How many of them: the last is in reach where a kernel needs what a CPU may lack. */
static int count_unreachable(void) {
    for (int i = 0; rapt_isa_name(i); i++)
        if (rapt_isa_usable(rapt_isa_name(i), NULL, 0) != RAPT_OK) return UNREACHABLE - 1;
    return UNREACHABLE;
}

/* Returns the number of the place in the list, or `places` if it is not there. */
static int unreachable_number(const explain_site *s, int places) {
    int i = 0;
    while (i < places && !(strstr(s->file, unreachable[i].file) && strcmp(s->function, unreachable[i].function) == 0 &&
                           strncmp(s->arguments, unreachable[i].arguments, strlen(unreachable[i].arguments)) == 0))
        i++;
    return i;
}

/* True if a line says something of a field of that name: before " = " or ": ", and not as a part of a longer name. */
static bool is_named(const char *field) {
    const size_t length = strlen(field);
    for (const char *at = all_lines; (at = strstr(at, field)); at++) {
        const char *begin = at, *end = at + length;
        while (begin[-1] != '\n') begin--;
        size_t head = strcspn(begin, "=:\n");
        if (end <= begin + head && (strchr("\n. ", at[-1])) && strchr(".[ :", *end)) return true;
    }
    return false;
}

static void everything_seen(void) {
    const int places = count_unreachable();
    int all = 0, missing = 0, found[UNREACHABLE + 1] = {0};
    for (explain_site *const *at = __start_explain_sites; at < __stop_explain_sites; at++, all++) {
        const explain_site *s = *at;
        const int number = unreachable_number(s, places);
        const bool reachable = number == places, wrong = s->refused != reachable;
        found[number]++;
        if (!reachable || wrong)
            printf("# %s:%d: %s(%s): %s%s\n", s->file, s->line, s->function, s->arguments, wrong ? "WRONG: " : "",
                   reachable ? "nothing was refused here" : unreachable[number].why);
        missing += wrong;
    }
    tap_ok(missing == 0, "of %d places that may refuse, %d are missing from the table", all, missing);
    for (int i = missing = 0; i < places; i++) missing += !found[i];
    tap_ok(missing == 0, "of %d places said to be out of reach, %d are no longer there", places, missing);
    all = missing = 0;
    for (const char *const *at = __start_explain_names; at < __stop_explain_names; at++, all++) {
        if (is_named(*at)) continue;
        missing++;
        printf("# %s\n", *at);
    }
    tap_ok(missing == 0, "of %d names of fields, %d are missing from the table", all, missing);
}
#endif

int main(void) {
    forgotten_batches();
    made_plans();
    attention_plans();
    attention_calls();
    appending();
    copying();
    rotating();
    decoding_plans();
    decoding_calls();
    linear_layers();
    prepacking();
    quantising();
    normalising();
    mha_plans();
    mha_calls();
    merging_states();
    tables_of_positions();
    tunings();
    kernels();
    float_control();
#if defined(__ELF__)
    if (__start_explain_sites) everything_seen();
#endif
    return tap_done();
}
