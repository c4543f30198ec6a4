/* SPDX-License-Identifier: Apache-2.0 */
/* What explain.py marks in the library's sources, so that explain.c can see whether it has been everywhere: each place that may
 * refuse, which is each call that hands a report on, and each name of a field. */
#ifndef RAPT_TESTS_EXPLAIN_H
#define RAPT_TESTS_EXPLAIN_H

typedef struct explain_site {
    const char *file;
    int line;
    const char *function, *arguments; /* of the call, as they are written */
    int refused;                      /* a refusal has come from there */
} explain_site;

/* Refusals so far. */
extern int explain_refusals;

typedef struct explain_visit {
    explain_site *site;
    int before;
} explain_visit;

static inline void explain_leave(explain_visit *v) { v->site->refused |= explain_refusals != v->before; }

/* The call, whose site stands in a section of its own, where all of them are found. refuses: it does nothing else. */
#define EXPLAIN_SITE(refuses, name, ...)                                                                                         \
    __extension__({                                                                                                              \
        static explain_site explain_here = {__FILE__, __LINE__, #name, #__VA_ARGS__, 0};                                         \
        static explain_site *const explain_listed __attribute__((section("explain_sites"), used)) = &explain_here;               \
        explain_visit explain_visited __attribute__((cleanup(explain_leave))) = {&explain_here, explain_refusals};               \
        explain_refusals += (refuses);                                                                                           \
        name(__VA_ARGS__);                                                                                                       \
    })

/* A name of a field: explain_name_0, explain_name_1 and so on, which explain.py numbers. */
#define EXPLAIN_NAME(number, name)                                                                                               \
    static const char *const explain_name_##number __attribute__((section("explain_names"), used)) = name;

#endif
