/* SPDX-License-Identifier: Apache-2.0 */
/* What every benchmark reports. */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include "limits.h"
#include "shim.h"

/* Reports the counters that all cases have (cases.c), relative to the better of the limits before and after. Fails the case if a
 * limit could not be measured. */
void bench_report(bench_state *state, bench_work work, double seconds, bench_limits before, bench_limits after);

#endif
