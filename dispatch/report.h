/* SPDX-License-Identifier: Apache-2.0 */
/* Why a call is refused: one line that names the field and its value, written where it is validated. */
#ifndef RAPT_REPORT_H
#define RAPT_REPORT_H

#include <inttypes.h>
#include <stdbool.h>

#include "rapt.h"

typedef struct rapt_report {
    const char *call; /* the public function that was called */
    const char
        *owner; /* what stands before the names of fields: "", or the part of a larger call that they belong to, "attention." */
    char *text; /* where the line goes, cut to bytes with its terminator; null: to the trace, if there is one */
    size_t bytes;
} rapt_report;

/* For a call, and for an explanation of it; text becomes "". */
rapt_report rapt_report_of(const char *call);
rapt_report rapt_explanation_of(const char *call, char *text, size_t bytes);

/* The formats that gcc looks for. On Windows its `printf` is Microsoft's. */
#if defined(_WIN32) && !defined(__clang__)
#define RAPT_PRINTF gnu_printf
#else
#define RAPT_PRINTF printf
#endif

/* Writes the line, "field = value: what is wrong with it", with the owner before it, and returns the status. Of printf's formats
 * it knows %s, %d, PRId64, PRIx64, %zu, %p and %g. */
#if defined(__GNUC__)
__attribute__((format(RAPT_PRINTF, 3, 4), cold))
#endif
rapt_status
rapt_refuse(rapt_report *r, rapt_status status, const char *format, ...);

/* The usual forms: an integer, one of an array, a stride or the like of a tensor, a missing pointer, a type. */
rapt_status rapt_refuse_number(rapt_report *r, rapt_status status, const char *field, int64_t value, const char *what);
rapt_status rapt_refuse_element(rapt_report *r, rapt_status status, const char *array, int64_t index, int64_t value,
                                const char *what);
rapt_status rapt_refuse_member(rapt_report *r, rapt_status status, const char *tensor, const char *member, int64_t value,
                               const char *what);
rapt_status rapt_refuse_null(rapt_report *r, const char *field, const char *what);
rapt_status rapt_refuse_type(rapt_report *r, rapt_status status, const char *tensor, const char *member, rapt_type type,
                             const char *what);

/* A type that is not of a set, as bits (layout.h), of which the line names all. Returns TYPE. */
rapt_status rapt_refuse_other_type(rapt_report *r, const char *tensor, const char *member, rapt_type type, uint64_t allowed);

/* "array[index]", followed by after, for names that a report makes on the way. */
enum { RAPT_NAME_BYTES = 48 };
const char *rapt_name_element(char name[RAPT_NAME_BYTES], const char *array, int64_t index, const char *after);

/* The name of a type in rapt.h; null for a number that is no type. And the same, but such a number in figures. */
const char *rapt_type_enumerator(rapt_type type);
const char *rapt_name_type(char name[RAPT_NAME_BYTES], rapt_type type);

/* Writes text, cut to bytes with its terminator, and returns its length. Formats are those of rapt_refuse. */
#if defined(__GNUC__)
__attribute__((format(RAPT_PRINTF, 3, 4)))
#endif
size_t
rapt_format(char *text, size_t bytes, const char *format, ...);

/* Are traces wanted? Then a line that tells what was done, rather than what was refused. */
bool rapt_traced(void);
#if defined(__GNUC__)
__attribute__((format(RAPT_PRINTF, 1, 2), cold))
#endif
void rapt_trace_line(const char *format, ...);

/* A thread number, which many functions take. */
rapt_status rapt_check_thread(rapt_report *r, int64_t ith, int64_t nth);

static inline bool rapt_within(int64_t x, int64_t least, int64_t most) { return x >= least && x <= most; }

#endif
