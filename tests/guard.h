/* SPDX-License-Identifier: Apache-2.0 */
/* What is refused: the status, and that nothing is written. */
#ifndef RAPT_TESTS_GUARD_H
#define RAPT_TESTS_GUARD_H

#include <string.h>

#include "rapt.h"
#include "tap.h"

static unsigned char guard[4096], guarded[4096]; /* what a refused call would write, and a copy of it */

static inline void fill_guard(void) {
    for (size_t i = 0; i < sizeof guard; i++) guard[i] = guarded[i] = (unsigned char)(i * 7);
}

/* One thing wrong at a time: the status, and nothing written. */
static inline void refused(rapt_status got, rapt_status expected, const char *what) {
    tap_ok(got == expected && !memcmp(guard, guarded, sizeof guard), "%s is refused: %s", what, rapt_status_string(got));
}

#endif
