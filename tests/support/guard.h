/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that nothing may be written to, as the output of calls that are refused (refusals.h). */
#ifndef RAPT_TESTS_GUARD_H
#define RAPT_TESTS_GUARD_H

#include <string.h>

#include "rapt.h"
#include "tap.h"

static unsigned char guard[4096], guarded[4096]; /* the latter is a copy */

static inline void fill_guard(void) {
    for (size_t i = 0; i < sizeof guard; i++) guard[i] = guarded[i] = (unsigned char)(i * 7);
}

/* The status, and nothing written. t: what refusals.h has there, which is not looked at. */
static inline void expect(const void *t, const char *call, const char *change, rapt_status got, rapt_status want) {
    (void)t;
    tap_ok(got == want && !memcmp(guard, guarded, sizeof guard), "%s with %s: %s", call, change, rapt_status_string(got));
}

#endif
