/* SPDX-License-Identifier: Apache-2.0 */
/* The Test Anything Protocol, for the small tests. */
#ifndef RAPT_TESTS_TAP_H
#define RAPT_TESTS_TAP_H

#include <stdarg.h>
#include <stdio.h>

static int tap_count, tap_failed;

__attribute__((format(printf, 2, 3))) static inline void tap_ok(int ok, const char *format, ...) {
    va_list args;
    va_start(args, format);
    printf("%sok %d - ", ok ? "" : "not ", ++tap_count);
    vprintf(format, args);
    putchar('\n');
    va_end(args);
    tap_failed += !ok;
}

/* The exit status of a test that cannot run here. */
__attribute__((format(printf, 1, 2))) static inline int tap_skip_all(const char *format, ...) {
    va_list args;
    va_start(args, format);
    printf("1..0 # SKIP ");
    vprintf(format, args);
    putchar('\n');
    va_end(args);
    return 0;
}

/* Ends the test: the plan, and the exit status. */
static inline int tap_done(void) {
    printf("1..%d\n", tap_count);
    return tap_failed != 0;
}

#endif
