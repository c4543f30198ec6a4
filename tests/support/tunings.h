/* SPDX-License-Identifier: Apache-2.0 */
/* Tunings for tests: none may change a bit. */
#ifndef RAPT_TESTS_TUNINGS_H
#define RAPT_TESTS_TUNINGS_H

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "random_streams.h"
#include "rapt.h"

/* The numbers of a tuning, which follow each other. */
enum { TUNING_NUMBERS = (offsetof(rapt_tuning, short_ahead) - offsetof(rapt_tuning, few_rows)) / sizeof(int) + 1 };

static inline void tuning_numbers(const rapt_tuning *t, int numbers[TUNING_NUMBERS]) {
    memcpy(numbers, (const char *)t + offsetof(rapt_tuning, few_rows), TUNING_NUMBERS * sizeof *numbers);
}
static inline void set_tuning_numbers(rapt_tuning *t, const int numbers[TUNING_NUMBERS]) {
    memcpy((char *)t + offsetof(rapt_tuning, few_rows), numbers, TUNING_NUMBERS * sizeof *numbers);
}

enum { TUNING_LEAST = 1, TUNING_MOST = 2 }; /* seeds: all that it can be at least, and at most */

/* A tuning for the kernel by a seed. Of each number the kernel's own, either end of its range, or any, small ones more often. */
static inline rapt_tuning tuning_of(const char *isa, uint64_t seed) {
    rapt_tuning t, ends[2];
    int numbers[TUNING_NUMBERS], least[TUNING_NUMBERS], most[TUNING_NUMBERS];
    rapt_tuning_init(&t), rapt_tuning_init(&ends[0]), rapt_tuning_init(&ends[1]);
    if (rapt_tuning_query(isa, NULL, &ends[0], &ends[1]) != RAPT_OK) abort();
    if (seed == TUNING_LEAST || seed == TUNING_MOST) return ends[seed == TUNING_MOST];
    tuning_numbers(&t, numbers), tuning_numbers(&ends[0], least), tuning_numbers(&ends[1], most);
    for (int i = 0; i < TUNING_NUMBERS; i++) {
        const int64_t span = (int64_t)most[i] - least[i] + 1, kind = draw_below(&seed, 6);
        const int64_t small = draw_below(&seed, span), smaller = draw_below(&seed, small + 1);
        numbers[i] = kind == 0 ? -1 : kind == 1 ? least[i] : kind == 2 ? most[i] : least[i] + (int)(kind == 3 ? small : smaller);
    }
    set_tuning_numbers(&t, numbers);
    t.isa = draw_below(&seed, 2) ? ends[0].isa : NULL;
    return t;
}

#endif
