/* SPDX-License-Identifier: Apache-2.0 */
#include "core/report.h"

#include <stdarg.h>
#include <stdatomic.h>

#include "core/type_info.h"

enum { LINE_BYTES = 512 }; /* a line is cut to this, with its terminator */
_Static_assert(sizeof PRId64 <= 4, "rapt: formats of 64-bit integers are those of long or long long");

static _Atomic(const rapt_trace *) tracer;

void rapt_trace_to(const rapt_trace *trace) { atomic_store_explicit(&tracer, trace, memory_order_release); }

/* ---- Text ---------------------------------------------------------------------------------------------------------------- */

/* The library does not call printf, which may allocate, lock, and print numbers as the locale says. */

/* A line of text in the making; what exceeds its room is dropped. */
typedef struct line {
    char *text;
    size_t bytes, used; /* the room, with the terminator; characters so far, without it */
} line;

static void add_text(line *l, const char *text) {
    for (; *text && l->used + 1 < l->bytes; text++) l->text[l->used++] = *text;
    if (l->bytes) l->text[l->used] = '\0';
}

/* Adds a string that may come from the caller, with \xNN for each byte that is not printable ASCII, so that a line stays one
 * line.
 */
static void add_string(line *l, const char *text) {
    for (; *text; text++) {
        const unsigned char byte = (unsigned char)*text;
        const char *const digits = "0123456789abcdef";
        if (byte >= ' ' && byte <= '~') add_text(l, (char[]){*text, '\0'});
        else add_text(l, (char[]){'\\', 'x', digits[byte / 16], digits[byte % 16], '\0'});
    }
}

static void add_unsigned(line *l, uint64_t x, unsigned base) {
    char digits[24], *at = digits + sizeof digits;
    *--at = '\0';
    do *--at = "0123456789abcdef"[x % base];
    while (x /= base);
    add_text(l, at);
}

static void add_signed(line *l, int64_t x) {
    if (x < 0) add_text(l, "-");
    add_unsigned(l, x < 0 ? -(uint64_t)x : (uint64_t)x, 10);
}

/* Adds a number as %g prints it: at most six significant digits, without trailing zeros, with an exponent if it is below -4 or
 * above 5. */
static void add_float(line *l, double x) {
    if (x != x || x - x != 0.0) {
        add_text(l, x != x ? "nan" : x > 0 ? "inf" : "-inf");
        return;
    }
    if (x < 0) add_text(l, "-"), x = -x;
    int exponent = 0;
    while (x >= 10.0) x /= 10.0, exponent++;
    while (x > 0.0 && x < 1.0) x *= 10.0, exponent--;
    uint64_t digits = (uint64_t)(x * 1e5 + 0.5); /* d.ddddd */
    if (digits >= 1000000) digits /= 10, exponent++;
    int places = 5; /* after the first digit */
    while (places > 0 && digits % 10 == 0) digits /= 10, places--;
    bool small = exponent >= -4 && exponent < 0, plain = exponent >= 0 && exponent < 6;
    if (small) add_text(l, "0.");
    for (int i = -1; small && i > exponent; i--) add_text(l, "0");
    char text[8];
    int n = places + 1;
    for (int i = n; i-- > 0; digits /= 10) text[i] = (char)('0' + digits % 10);
    for (int i = 0; i < n; i++) {
        if (!small && i == (plain ? exponent : 0) + 1) add_text(l, ".");
        add_text(l, (char[]){text[i], '\0'});
    }
    for (int i = n; plain && i <= exponent; i++) add_text(l, "0");
    if (!small && !plain) add_text(l, "e"), add_signed(l, exponent);
}

/* Adds formatted text; the comment of rapt_refuse lists the formats. */
static void add_format(line *l, const char *format, va_list args) {
    for (; *format; format++) {
        if (*format != '%') {
            add_text(l, (char[]){*format, '\0'});
            continue;
        }
        int longs = 0;
        bool size = *++format == 'z';
        while (*format == 'l' || *format == 'z') longs += *format++ == 'l';
        if (*format == 's') add_string(l, va_arg(args, const char *));
        else if (*format == 'p') add_text(l, "0x"), add_unsigned(l, (uintptr_t)va_arg(args, const void *), 16);
        else if (*format == 'g') add_float(l, va_arg(args, double));
        else if (size) add_unsigned(l, va_arg(args, size_t), 10);
        else if (*format == 'x') add_unsigned(l, longs == 2 ? va_arg(args, unsigned long long) : va_arg(args, unsigned long), 16);
        else if (longs == 2) add_signed(l, va_arg(args, long long));
        else add_signed(l, longs ? va_arg(args, long) : va_arg(args, int));
    }
}

/* ---- Lines --------------------------------------------------------------------------------------------------------------- */

rapt_report rapt_report_of(const char *call) { return (rapt_report){.call = call, .owner = ""}; }

rapt_report rapt_explanation_of(const char *call, char *text, size_t bytes) {
    if (text && bytes) *text = '\0';
    return (rapt_report){
        .call = call, .owner = "", .text = text ? text : "", .bytes = text ? bytes : 0}; /* "" has no bytes to write to */
}

const char *rapt_name_element(char name[RAPT_NAME_BYTES], const char *array, int64_t index, const char *after) {
    line l = {name, RAPT_NAME_BYTES, 0};
    add_text(&l, array), add_text(&l, "["), add_signed(&l, index), add_text(&l, "]"), add_text(&l, after);
    return name;
}

const char *rapt_name_type(char name[RAPT_NAME_BYTES], rapt_type type) {
    const char *known = rapt_type_enumerator(type);
    line l = {name, RAPT_NAME_BYTES, 0};
    if (known) add_text(&l, known);
    else add_signed(&l, (int)type);
    return name;
}

size_t rapt_format(char *text, size_t bytes, const char *format, ...) {
    line l = {text, bytes, 0};
    va_list args;
    va_start(args, format);
    add_format(&l, format, args);
    va_end(args);
    return l.used;
}

bool rapt_traced(void) { return atomic_load_explicit(&tracer, memory_order_acquire) != NULL; }

rapt_status rapt_refuse(rapt_report *r, rapt_status status, const char *format, ...) {
    const rapt_trace *trace = r->text ? NULL : atomic_load_explicit(&tracer, memory_order_acquire);
    if (!r->text && !trace) return status;
    char text[LINE_BYTES];
    line l = {text, sizeof text, 0};
    if (trace) add_text(&l, r->call), add_text(&l, ": ");
    else l.text = r->text, l.bytes = r->bytes;
    add_text(&l, r->owner);
    va_list args;
    va_start(args, format);
    add_format(&l, format, args);
    va_end(args);
    if (trace) trace->body(trace->arg, text);
    return status;
}

void rapt_trace_line(const char *format, ...) {
    const rapt_trace *trace = atomic_load_explicit(&tracer, memory_order_acquire);
    if (!trace) return;
    char text[LINE_BYTES];
    line l = {text, sizeof text, 0};
    va_list args;
    va_start(args, format);
    add_format(&l, format, args);
    va_end(args);
    trace->body(trace->arg, text);
}

rapt_status rapt_refuse_number(rapt_report *r, rapt_status status, const char *field, int64_t value, const char *what) {
    return rapt_refuse(r, status, "%s = %" PRId64 ": %s", field, value, what);
}

rapt_status rapt_refuse_element(rapt_report *r, rapt_status status, const char *array, int64_t index, int64_t value,
                                const char *what) {
    return rapt_refuse(r, status, "%s[%" PRId64 "] = %" PRId64 ": %s", array, index, value, what);
}

rapt_status rapt_refuse_member(rapt_report *r, rapt_status status, const char *tensor, const char *member, int64_t value,
                               const char *what) {
    return rapt_refuse(r, status, "%s%s%s = %" PRId64 ": %s", tensor, *tensor ? "." : "", member, value, what);
}

rapt_status rapt_refuse_type(rapt_report *r, rapt_status status, const char *tensor, const char *member, rapt_type type,
                             const char *what) {
    char name[RAPT_NAME_BYTES];
    return rapt_refuse(r, status, "%s%s%s = %s: %s", tensor, *tensor ? "." : "", member, rapt_name_type(name, type), what);
}

rapt_status rapt_refuse_other_type(rapt_report *r, const char *tensor, const char *member, rapt_type type, uint64_t allowed) {
    char text[LINE_BYTES], name[RAPT_NAME_BYTES];
    line l = {text, sizeof text, 0};
    for (int t = 0; t < RAPT_TYPE_LIMIT; t++) {
        if (!(allowed >> t & 1)) continue;
        if (l.used) add_text(&l, allowed >> t == 1 ? " or " : ", ");
        add_text(&l, rapt_name_type(name, (rapt_type)t));
    }
    add_text(&l, " is needed");
    return rapt_refuse_type(r, RAPT_ERR_TYPE, tensor, member, type, text);
}

rapt_status rapt_refuse_null(rapt_report *r, const char *field, const char *what) {
    return rapt_refuse(r, RAPT_ERR_NULL, "%s = null: %s", field, what);
}

rapt_status rapt_check_thread(rapt_report *r, int64_t ith, int64_t nth) {
    if (nth < 1) return rapt_refuse_number(r, RAPT_ERR_RANGE, "nth", nth, "there is no thread");
    if (ith < 0 || ith >= nth)
        return rapt_refuse(r, RAPT_ERR_RANGE, "ith = %" PRId64 ": not one of the nth = %" PRId64 " threads", ith, nth);
    return RAPT_OK;
}
