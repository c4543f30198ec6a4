/* SPDX-License-Identifier: Apache-2.0 */
/* Calls with one thing wrong each. Who includes this has at t what is good, and functions that make a call and see what it
 * answers:
 *
 *     expect_plan(t, change, &d, want)      a plan of d, a copy of t->desc
 *     expect_run(t, change, &a, want)       the call with a, a copy of t->args
 *     expect(t, "a call", call, got, want)
 *
 * A change is statements about the copy. As they are written, they are the name of what is tested. */
#ifndef RAPT_TESTS_REFUSALS_H
#define RAPT_TESTS_REFUSALS_H

#define PLAN(want, change)                                                                                                       \
    do {                                                                                                                         \
        __typeof__(t->desc) d = t->desc;                                                                                         \
        change;                                                                                                                  \
        expect_plan(t, #change, &d, want);                                                                                       \
    } while (0)

#define RUN(want, change)                                                                                                        \
    do {                                                                                                                         \
        __typeof__(t->args) a = t->args;                                                                                         \
        change;                                                                                                                  \
        expect_run(t, #change, &a, want);                                                                                        \
    } while (0)

#define CALL(want, call) expect(t, "a call", #call, call, want)

#endif
