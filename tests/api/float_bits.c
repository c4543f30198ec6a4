/* SPDX-License-Identifier: Apache-2.0 */
/* What the floating-point modes of a thread do to bits, where the library does not refuse them: measured by the calls of calls.c
 * on every kernel that runs here, and held against the table of docs/numerics.md. Arguments: its path, then --quick for fewer
 * numbers. */
#define _POSIX_C_SOURCE 200809L /* fork */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if !defined(__wasi__)
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

#include "calls.h"
#include "float_control.h"
#include "tap.h"

/* ---- The table ----------------------------------------------------------------------------------------------------------- */

/* What a mode does: nothing; something where a number is subnormal, be it read, written, or a result on the way; something to
 * ordinary numbers. In the table the last is "signal" of traps, and "other", for other bits, of all else. */
typedef enum effect { SAME, SUBNORMALS, OTHER, UNKNOWN } effect;
static const char *const words[] = {"same", "subnormals", "other"};

/* Lines of the table. A call belongs to the first one that has its function and arithmetic, and no other name than its own; a
 * decoder's step and multi-head attention are made of these. */
static const struct {
    const char *what, *function;
    rapt_arith arith;
    const char *name; /* null: of any call */
} rows[] = {
    {"attention, exact", "rapt_run", RAPT_EXACT, NULL},
    {"attention, integers", "rapt_run", RAPT_INT8_DOT, NULL},
    {"attention, bf16, of f32 without scales and biases", "rapt_run", RAPT_BF16_DOT, "bf16, keys among threads"},
    {"attention, bf16", "rapt_run", RAPT_BF16_DOT, NULL},
    {"merging", "rapt_merge_states_run", RAPT_EXACT, NULL},
    {"merging", "rapt_merge", RAPT_EXACT, NULL},
    {"linear layers, exact", "rapt_linear_run", RAPT_EXACT, NULL},
    {"linear layers, integers", "rapt_linear_run", RAPT_INT8_DOT, NULL},
    {"linear layers, bf16", "rapt_linear_run", RAPT_BF16_DOT, NULL},
    {"packing weights", "rapt_linear_prepack_run", RAPT_EXACT, NULL},
    {"packing weights", "rapt_linear_prepack_run", RAPT_BF16_DOT, NULL},
    {"packing weights", "rapt_linear_prepack_run", RAPT_INT8_DOT, NULL},
    {"quantising weights", "rapt_quantise_weights", RAPT_EXACT, NULL},
    {"quantising weights", "rapt_quantise_groups", RAPT_EXACT, NULL},
    {"normalisation", "rapt_layer_norm_run", RAPT_EXACT, NULL},
    {"normalisation", "rapt_rms_norm_run", RAPT_EXACT, NULL},
    {"rotary embedding", "rapt_rope_run", RAPT_EXACT, NULL},
    {"writing caches of f32 and bf16 from such rows", "rapt_kv_append_run", RAPT_EXACT, "as they come"},
    {"writing caches", "rapt_kv_append_run", RAPT_EXACT, NULL},
    {"copying tokens", "rapt_kv_copy_run", RAPT_EXACT, NULL},
    {"tables of positions", "rapt_rope_frequencies", RAPT_EXACT, NULL},
    {"tables of positions", "rapt_sinusoidal", RAPT_EXACT, NULL},
    {"tables of positions", "rapt_alibi_slopes", RAPT_EXACT, NULL},
};
enum { ROWS = sizeof rows / sizeof *rows };

static bool belongs(const call *c, int row) {
    for (int i = 0; i <= row; i++)
        if (!strcmp(rows[i].function, c->api->ways[0].function) && rows[i].arith == arith_of_call(c) &&
            (!rows[i].name || !strcmp(rows[i].name, c->name)))
            return i == row;
    return false;
}

static const char *word_of(effect e, int mode) {
    return e == OTHER && float_modes[mode].modes == RAPT_TRAPS ? "signal" : words[e];
}

/* True if the table's columns are the modes, in their order. */
static bool has_columns(const char *table) {
    char line[256];
    int used = snprintf(line, sizeof line, "\n| what is computed |");
    for (int m = 0; m < FLOAT_MODES; m++) used += snprintf(line + used, sizeof line - (size_t)used, " %s |", float_modes[m].what);
    return strstr(table, line) != NULL;
}

/* A cell of the table: the line begins with what, in columns are the modes in their order. */
static effect promised(const char *table, const char *what, int mode) {
    char line[128], cell[32];
    snprintf(line, sizeof line, "\n| %s |", what);
    const char *at = strstr(table, line);
    if (!at) return UNKNOWN;
    at += strlen(line);
    for (int i = 0; i < mode && at; i++) at = strchr(at, '|') ? strchr(at, '|') + 1 : NULL;
    for (effect e = SAME; e <= OTHER && at; e++) {
        snprintf(cell, sizeof cell, " %s |", word_of(e, mode));
        if (!strncmp(at, cell, strlen(cell))) return e;
    }
    return UNKNOWN;
}

static char *read_file(const char *path) {
    enum { MOST = 1 << 20 };
    FILE *file = fopen(path, "r");
    char *text = calloc(MOST, 1);
    if (!file || !text || fread(text, 1, MOST - 1, file) == 0) return NULL;
    fclose(file);
    return text;
}

/* ---- Measuring ----------------------------------------------------------------------------------------------------------- */

static bool is_result(const pointer *p) { return p->written && p->bytes && strcmp(p->name, "workspace") != 0; }

/* With its plan, for a caller makes that in the same modes. */
static rapt_status make_call(const call *c) {
    char text[512];
    const rapt_status status = c->api->make_plan ? c->api->make_plan(text, sizeof text) : RAPT_OK;
    return status == RAPT_OK ? c->api->ways[0].run(1) : status;
}

/* Traps, as a bit of modes: a child of this process for each of them takes long. */
static unsigned traps_alone(void) {
    unsigned bit = 0;
    for (int m = 0; m < FLOAT_MODES; m++) bit |= (unsigned)(float_modes[m].modes == RAPT_TRAPS) << m;
    return bit;
}

/* True if the call ends in a signal. */
static bool is_trapped(const call *c, const float_mode *m) {
#if !defined(__wasi__)
    int end = 0;
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        signal(SIGFPE, SIG_DFL); /* which a sanitizer may have taken */
        set_float_mode(m);
        _exit(make_call(c) != RAPT_OK);
    }
    if (child > 0 && waitpid(child, &end, 0) == child && (WIFSIGNALED(end) ? WTERMSIG(end) == SIGFPE : end == 0))
        return WIFSIGNALED(end);
#endif
    printf("Bail out! %s, %s: neither done nor trapped\n", c->api->ways[0].function, c->name);
    exit(1);
}

/* Which modes change anything, as bits, when the call's tensors hold such numbers. */
static unsigned changing_modes(const call *c, numbers which, uint64_t seed, unsigned had) {
    unsigned char *usual[MOST_POINTERS];
    unsigned changing = 0;
    fill_calls_with(which, seed);
    describe_call(c, 1);
    for (int i = 0; i < now.pointers; i++)
        if (!(now.at[i].at = aligned_alloc(64, (now.at[i].bytes + 64) / 64 * 64)) || !(usual[i] = malloc(now.at[i].bytes + 1)))
            abort();
    place_pointers(-1);
    bool accepted = make_call(c) == RAPT_OK;
    for (int i = 0; i < now.pointers; i++) memcpy(usual[i], now.at[i].at, now.at[i].bytes);
    for (int m = 0; m < FLOAT_MODES; m++) {
        if (!(had >> m & 1)) continue;
        place_pointers(-1);
        if (float_modes[m].modes == RAPT_TRAPS) {
            changing |= (unsigned)is_trapped(c, &float_modes[m]) << m;
            continue;
        }
        set_float_mode(&float_modes[m]);
        const rapt_status status = make_call(c);
        reset_float_mode();
        accepted = accepted && status == RAPT_OK;
        for (int i = 0; i < now.pointers; i++)
            if (is_result(&now.at[i]) && memcmp(usual[i], now.at[i].at, now.at[i].bytes) != 0) changing |= 1u << m;
    }
    for (int i = 0; i < now.pointers; i++) free(now.at[i].at), free(usual[i]);
    if (!accepted) tap_ok(false, "%s, %s: is refused", c->api->ways[0].function, c->name);
    return changing;
}

static uint64_t seeds[] = {[ORDINARY] = 3, [TINY] = 8, [VARIOUS] = 8}; /* of each kind of numbers */

/* What each mode does to the calls of a line on the kernel that is chosen. */
static void measure(int row, unsigned had, effect found[FLOAT_MODES]) {
    for (int i = 0; i < call_count; i++) {
        if (!belongs(&calls[i], row)) continue;
        for (numbers which = ORDINARY; which <= VARIOUS; which++)
            for (uint64_t seed = 1; seed <= seeds[which]; seed++) {
                const unsigned changing = changing_modes(&calls[i], which, seed, seed == 1 ? had : had & ~traps_alone());
                const effect seen = which == ORDINARY ? OTHER : SUBNORMALS;
                for (int m = 0; m < FLOAT_MODES; m++)
                    if (changing >> m & 1 && found[m] < seen) found[m] = seen;
            }
    }
}

/* The table is of the kernel on which a mode does most, which is the plainest of either class: no CPU converts f16 for it. */
static void test_kernel(const char *table, const char *isa, unsigned had) {
    const bool plainest = !strncmp(isa, "scalar", strlen("scalar"));
    rapt_isa_force(isa);
    for (int row = 0; row < ROWS; row++) {
        effect found[FLOAT_MODES] = {SAME};
        bool good = true;
        if (row > 0 && !strcmp(rows[row].what, rows[row - 1].what)) continue;
        for (int i = row; i < ROWS && !strcmp(rows[i].what, rows[row].what); i++) measure(i, had, found);
        for (int m = 0; m < FLOAT_MODES; m++) {
            if (!(had >> m & 1)) continue;
            const effect want = promised(table, rows[row].what, m);
            if (want != UNKNOWN && (plainest ? found[m] == want : found[m] <= want)) continue;
            printf("# %s: %s is measured, and in the table is %s\n", float_modes[m].what, word_of(found[m], m),
                   want == UNKNOWN ? "no such cell" : word_of(want, m));
            good = false;
        }
        tap_ok(good, "%s: %s: as docs/numerics.md says", isa, rows[row].what);
    }
}

int main(int argc, char **argv) {
    const bool quick = argc == 3 && !strcmp(argv[2], "--quick");
    char *table = argc == 2 || quick ? read_file(argv[1]) : NULL;
    unsigned had = 0, modes = 0;
    if (!table) return fprintf(stderr, "usage: float-bits PATH/docs/numerics.md [--quick]\n"), 2;
    if (quick) seeds[ORDINARY] = seeds[TINY] = seeds[VARIOUS] = 1;
    for (int m = 0; m < FLOAT_MODES; m++) {
        const bool set = set_float_mode(&float_modes[m]);
        if (set) reset_float_mode();
        else printf("# %s cannot be had here\n", float_modes[m].what);
        had |= (unsigned)set << m;
        modes |= set ? float_modes[m].modes : 0;
    }
    for (int i = 0; rapt_isa_name(i); i++)
        if (rapt_isa_usable(rapt_isa_name(i), NULL, 0) == RAPT_OK) test_kernel(table, rapt_isa_name(i), had);
    tap_ok((modes & FLOAT_MODES_HERE) == FLOAT_MODES_HERE, "all modes that this architecture has");
    tap_ok(has_columns(table), "docs/numerics.md has a column for each mode");
    forget_call();
    free(table);
    return tap_done();
}
