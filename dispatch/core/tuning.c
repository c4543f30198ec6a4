/* SPDX-License-Identifier: Apache-2.0 */
/* A caller's numbers for cutting work: validation, queries, and their form as a line of text. */
#include "core/tuning.h"

#include <limits.h>
#include <string.h>

#include "cpu/select.h"
#include "core/structs.h"

/* A number of a rapt_tuning, and its bounds. */
typedef struct field {
    const char *name;
    size_t at;       /* its offset in the struct */
    int least, most; /* most = 0: the kernel's room (rapt_base) is the bound */
} field;

#define FIELD(name, least, most) {#name, offsetof(rapt_tuning, name), least, most}
#define ROOM(name, least)        FIELD(name, least, 0)
static const field fields[] = {ROOM(few_rows, 0),
                               ROOM(few_integer_rows, 0),
                               ROOM(left_over, 0),
                               ROOM(joined_rows, 1),
                               FIELD(joined_bytes, 1, 1 << 20),
                               ROOM(pass_tiles, 1),
                               FIELD(pass_l2, 1, 256),
                               FIELD(thread_tasks, 1, 64),
                               FIELD(ragged_tasks, 1, 64),
                               FIELD(states_part, 1, 1024),
                               ROOM(few_tokens, 0),
                               ROOM(bf16_few_tokens, 0),
                               FIELD(weights_l2, 1, 256),
                               FIELD(staging_outputs, 0, 1 << 20),
                               FIELD(long_row, 1, 1 << 24),
                               FIELD(long_ahead, 0, 1 << 20),
                               FIELD(short_ahead, 0, 1 << 20)};
enum { FIELDS = sizeof fields / sizeof *fields };

static const rapt_tuning defaults = {.few_rows = -1,
                                     .few_integer_rows = -1,
                                     .left_over = -1,
                                     .joined_rows = -1,
                                     .joined_bytes = -1,
                                     .pass_tiles = -1,
                                     .pass_l2 = -1,
                                     .thread_tasks = -1,
                                     .ragged_tasks = -1,
                                     .states_part = -1,
                                     .few_tokens = -1,
                                     .bf16_few_tokens = -1,
                                     .weights_l2 = -1,
                                     .staging_outputs = -1,
                                     .long_row = -1,
                                     .long_ahead = -1,
                                     .short_ahead = -1};

void rapt_tuning_init_sized(rapt_tuning *tuning, size_t size) { rapt_init_struct(tuning, size, &defaults, sizeof defaults); }

/* Returns a number of a tuning. */
static int get(const rapt_tuning *t, const field *f) {
    int number;
    memcpy(&number, (const char *)t + f->at, sizeof number);
    return number;
}

/* Sets a number of a tuning. */
static void set(rapt_tuning *t, const field *f, int number) { memcpy((char *)t + f->at, &number, sizeof number); }

/* Returns the kernel's defaults. */
static rapt_tuning own_tuning(const rapt_kernel *kernel) {
    rapt_tuning t = kernel->base->tuning;
    t.few_rows = kernel->base->exact.few_rows;
    t.few_integer_rows = kernel->int8->few_rows;
    t.few_tokens = kernel->base->exact.few_tokens;
    t.bf16_few_tokens = kernel->bf16->few_tokens;
    return t;
}

/* Returns the upper bound of a field in a kernel. */
static int most_of(const rapt_kernel *kernel, const field *f) {
    if (f->most) return f->most;
    rapt_tuning room = kernel->base->room;
    room.few_integer_rows = room.few_rows;
    room.bf16_few_tokens = room.few_tokens;
    return get(&room, f);
}

/* Checks a tuning's kernel and numbers. owner: the prefix of the fields' names in a report. */
static rapt_status tuning_check(rapt_report *r, const char *owner, const rapt_kernel *kernel, const rapt_tuning *t) {
    if (t->isa && strcmp(t->isa, kernel->name) != 0)
        return rapt_refuse(r, RAPT_ERR_TUNING, "%sisa = %s: the kernel is %s", owner, t->isa, kernel->name);
    for (const field *f = fields; f < fields + FIELDS; f++) {
        const int number = get(t, f), most = most_of(kernel, f);
        if (number != -1 && !rapt_within(number, f->least, most))
            return rapt_refuse(r, RAPT_ERR_TUNING, "%s%s = %d: must be %d to %d in the kernel %s, or -1", owner, f->name, number,
                               f->least, most, kernel->name);
    }
    return RAPT_OK;
}

static rapt_status read_tuning(rapt_report *r, rapt_tuning *to, const rapt_tuning *from) {
    return rapt_read_struct(r, "tuning", to, &defaults, sizeof *to, sizeof *to, from);
}

rapt_status rapt_read_tuning(rapt_report *r, const rapt_kernel *kernel, const rapt_tuning *from, rapt_tuning *to) {
    *to = own_tuning(kernel);
    if (!from) return RAPT_OK;
    rapt_tuning t;
    rapt_status status = read_tuning(r, &t, from);
    if (status == RAPT_OK) status = tuning_check(r, "tuning.", kernel, &t);
    for (const field *f = fields; f < fields + FIELDS && status == RAPT_OK; f++)
        if (get(&t, f) != -1) set(to, f, get(&t, f));
    return status;
}

/* ---- Bounds, for programs that search for the best numbers ---------------------------------------------------------------- */

rapt_status rapt_tuning_query(const char *isa, rapt_tuning *own, rapt_tuning *least, rapt_tuning *most) {
    rapt_report r = rapt_report_of("rapt_tuning_query");
    const rapt_kernel *kernel;
    rapt_tuning t;
    rapt_status status = rapt_select(&r, isa, &kernel);
    if (status == RAPT_OK && own) status = rapt_read_struct(&r, "own", &t, &defaults, sizeof t, sizeof t, own);
    if (status == RAPT_OK && least) status = rapt_read_struct(&r, "least", &t, &defaults, sizeof t, sizeof t, least);
    if (status == RAPT_OK && most) status = rapt_read_struct(&r, "most", &t, &defaults, sizeof t, sizeof t, most);
    if (status != RAPT_OK) return status;
    t = own_tuning(kernel);
    t.isa = kernel->name;
    if (own) rapt_fill_struct(own, &t, sizeof t);
    for (const field *f = fields; f < fields + FIELDS; f++) set(&t, f, f->least);
    if (least) rapt_fill_struct(least, &t, sizeof t);
    for (const field *f = fields; f < fields + FIELDS; f++) set(&t, f, most_of(kernel, f));
    if (most) rapt_fill_struct(most, &t, sizeof t);
    return RAPT_OK;
}

/* ---- Text ---------------------------------------------------------------------------------------------------------------- */

static const char any_kernel[] = "any";

/* A word of a line. cut: text has only the beginning of the word, which is longer than any word that has a meaning. */
typedef struct word {
    char text[48];
    bool cut;
} word;

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/* Returns the next word of *line and advances it; at the end the word is empty. */
static word take_word(const char **line) {
    word w = {.text = ""};
    size_t n = 0;
    while (is_space(**line)) ++*line;
    for (; **line && !is_space(**line); ++*line) {
        w.cut = n + 1 == sizeof w.text;
        if (!w.cut) w.text[n++] = **line;
    }
    return w;
}

/* True if the text is decimal digits, whose value fits into an int; sets *number to it. */
static bool is_number(const char *digits, int *number) {
    *number = 0;
    for (const char *c = digits; *c; c++)
        if (*c < '0' || *c > '9' || __builtin_mul_overflow(*number, 10, number) ||
            __builtin_add_overflow(*number, *c - '0', number))
            return false;
    return *digits != '\0';
}

/* Sets a field of a tuning from a word "name=number". */
static rapt_status parse_field(rapt_report *r, rapt_tuning *t, word *w) {
    char *number = w->text;
    int value;
    while (*number && *number != '=') number++;
    if (!*number || w->cut)
        return rapt_refuse(r, RAPT_ERR_TUNING, "line = ... %s ...: a field, = and its number are needed", w->text);
    *number++ = '\0';
    const field *f = fields;
    while (f < fields + FIELDS && strcmp(f->name, w->text) != 0) f++;
    if (f == fields + FIELDS) return rapt_refuse(r, RAPT_ERR_TUNING, "line = ... %s=...: there is no such field", w->text);
    if (get(t, f) != -1) return rapt_refuse(r, RAPT_ERR_TUNING, "%s = %s: is given twice", f->name, number);
    if (!is_number(number, &value)) return rapt_refuse(r, RAPT_ERR_TUNING, "%s = %s: is no number", f->name, number);
    set(t, f, value);
    return RAPT_OK;
}

/* Reads a line into the tuning; if the report is an explanation, only checks the line. */
static rapt_status parse(rapt_report *r, const char *line, rapt_tuning *tuning) {
    rapt_tuning t;
    const rapt_kernel *kernel = NULL;
    if (!line) return rapt_refuse_null(r, "line", "there is no text");
    rapt_status status = read_tuning(r, &t, tuning);
    if (status != RAPT_OK) return status;
    t = defaults;
    word w = take_word(&line);
    if (!*w.text) return rapt_refuse(r, RAPT_ERR_TUNING, "line = : a kernel's name, or any, is needed");
    if (strcmp(w.text, any_kernel) != 0) {
        kernel = rapt_find_kernel(w.text);
        if (!kernel) return rapt_refuse_kernel(r, "isa", w.text);
        t.isa = kernel->name;
    }
    for (w = take_word(&line); *w.text && status == RAPT_OK; w = take_word(&line)) status = parse_field(r, &t, &w);
    if (status == RAPT_OK && kernel) status = tuning_check(r, "", kernel, &t);
    if (status == RAPT_OK && !r->text) rapt_fill_struct(tuning, &t, sizeof t);
    return status;
}

rapt_status rapt_tuning_parse(const char *line, rapt_tuning *tuning) {
    rapt_report r = rapt_report_of("rapt_tuning_parse");
    return parse(&r, line, tuning);
}

rapt_status rapt_tuning_parse_explain(const char *line, rapt_tuning *tuning, char *text, size_t bytes) {
    rapt_report r = rapt_explanation_of("rapt_tuning_parse", text, bytes);
    return parse(&r, line, tuning);
}

rapt_status rapt_tuning_print(const rapt_tuning *tuning, char *line, size_t bytes) {
    rapt_report r = rapt_report_of("rapt_tuning_print");
    char text[RAPT_TUNING_BYTES];
    rapt_tuning t;
    rapt_status status = read_tuning(&r, &t, tuning);
    if (status == RAPT_OK && !line) status = rapt_refuse_null(&r, "line", "there is nowhere to write it");
    if (status != RAPT_OK) return status;
    const rapt_kernel *kernel = t.isa ? rapt_find_kernel(t.isa) : NULL;
    if (t.isa && !kernel) return rapt_refuse_kernel(&r, "tuning.isa", t.isa);
    if (kernel) status = tuning_check(&r, "tuning.", kernel, &t);
    if (status != RAPT_OK) return status;
    size_t used = rapt_format(text, sizeof text, "%s", t.isa ? t.isa : any_kernel);
    for (const field *f = fields; f < fields + FIELDS; f++) {
        const int number = get(&t, f);
        if (number < -1) return rapt_refuse(&r, RAPT_ERR_TUNING, "tuning.%s = %d: must be -1 or more", f->name, number);
        if (number != -1) used += rapt_format(text + used, sizeof text - used, " %s=%d", f->name, number);
    }
    if (used >= bytes) return rapt_refuse(&r, RAPT_ERR_TUNING, "bytes = %zu: the line takes %zu", bytes, used + 1);
    memcpy(line, text, used + 1);
    return RAPT_OK;
}
