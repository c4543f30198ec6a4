/* SPDX-License-Identifier: Apache-2.0 */
/* Reports: the line of text that says why a call is refused. It names the field and its value, and is written where the field is
 * validated. */
#ifndef RAPT_REPORT_H
#define RAPT_REPORT_H

#include <inttypes.h>
#include <stdbool.h>

#include "rapt.h"

/* The destination of a call's line. */
typedef struct rapt_report {
    const char *call;  /* the public function that was called */
    const char *owner; /* the prefix of field names: "", or "attention." where the fields belong to that part of a larger call */
    char *text; /* receives the line, cut to `bytes` with its terminator; null: the line goes to the trace, if there is one */
    size_t bytes;
} rapt_report;

/* Returns the report of a call, which goes to the trace. */
rapt_report rapt_report_of(const char *call);

/* Returns the report of a call that is explained, not made: it goes to text, which becomes "". */
rapt_report rapt_explanation_of(const char *call, char *text, size_t bytes);

/* The name that makes gcc check formats against the C standard: on Windows, `printf` stands for Microsoft's formats. */
#if defined(_WIN32) && !defined(__clang__)
#define RAPT_PRINTF gnu_printf
#else
#define RAPT_PRINTF printf
#endif

/* Writes a line of the form "field = value: what is wrong with it" after the owner, and returns the status. Knows these formats
 * of printf: %s, %d, PRId64, PRIx64, %zu, %p and %g. */
#if defined(__GNUC__)
__attribute__((format(RAPT_PRINTF, 3, 4), cold))
#endif
rapt_status
rapt_refuse(rapt_report *r, rapt_status status, const char *format, ...);

/* Refuses an integer: "field = value: what". */
rapt_status rapt_refuse_number(rapt_report *r, rapt_status status, const char *field, int64_t value, const char *what);

/* Refuses an element of an array: "array[index] = value: what". */
rapt_status rapt_refuse_element(rapt_report *r, rapt_status status, const char *array, int64_t index, int64_t value,
                                const char *what);

/* Refuses an integer of a struct, such as a stride: "tensor.member = value: what", or "member = ..." where tensor is "". */
rapt_status rapt_refuse_member(rapt_report *r, rapt_status status, const char *tensor, const char *member, int64_t value,
                               const char *what);

/* Refuses a null pointer: "field = null: what". Returns NULL. */
rapt_status rapt_refuse_null(rapt_report *r, const char *field, const char *what);

/* Refuses a type, by its name: "tensor.member = RAPT_F16: what". */
rapt_status rapt_refuse_type(rapt_report *r, rapt_status status, const char *tensor, const char *member, rapt_type type,
                             const char *what);

/* Refuses a type that is not in the set `allowed` (layout.h): "tensor.member = RAPT_BIT: RAPT_F32, RAPT_F16 or RAPT_BF16 is
 * needed". Returns TYPE. */
rapt_status rapt_refuse_other_type(rapt_report *r, const char *tensor, const char *member, rapt_type type, uint64_t allowed);

enum { RAPT_NAME_BYTES = 48 }; /* room for a name that a report puts together */

/* Writes "array[index]" and then `after` to name, and returns it. */
const char *rapt_name_element(char name[RAPT_NAME_BYTES], const char *array, int64_t index, const char *after);

/* Writes the type's enumerator, or the number if it is no type, to name, and returns it. */
const char *rapt_name_type(char name[RAPT_NAME_BYTES], rapt_type type);

/* Writes text like snprintf, with the formats of rapt_refuse, cut to `bytes` with its terminator. Returns the length of what was
 * written. */
#if defined(__GNUC__)
__attribute__((format(RAPT_PRINTF, 3, 4)))
#endif
size_t
rapt_format(char *text, size_t bytes, const char *format, ...);

/* True if the caller wants a trace. */
bool rapt_traced(void);

/* Writes a line about what was done, rather than refused, to the trace, if one is wanted. */
#if defined(__GNUC__)
__attribute__((format(RAPT_PRINTF, 1, 2), cold))
#endif
void rapt_trace_line(const char *format, ...);

/* Checks the number of a thread and that of threads: 0 <= ith < nth. Errors: RANGE. */
rapt_status rapt_check_thread(rapt_report *r, int64_t ith, int64_t nth);

/* True if least <= x <= most. */
static inline bool rapt_within(int64_t x, int64_t least, int64_t most) { return x >= least && x <= most; }

#endif
