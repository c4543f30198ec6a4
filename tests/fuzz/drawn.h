/* SPDX-License-Identifier: Apache-2.0 */
/* For targets that take the problems of a test: an input makes the choices by which the test draws one (../random.h), and random
 * numbers, of a seed of two bytes, are what it has in its elements. The test's source, whose main becomes test_main, is included
 * before this. */
#ifndef RAPT_FUZZ_DRAWN_H
#define RAPT_FUZZ_DRAWN_H

#include <string.h>

#include "bytes.h"

static input choices;

/* Larger numbers, as positions are, are as good at random; and so is everything when the input has ended. */
static int64_t choose_or_draw(int64_t n) { return n <= 4096 && choices.size ? choose(&choices, n) : value_below(n); }

/* From here on problems are those of this input. */
static inline void draw_from(const input *in) {
    choices = *in;
    random_state = (uint64_t)choose(&choices, 65536);
    random_choice = choose_or_draw;
}

/* The number and the name of two kernels of a class that can run here: the plain one, and another, unless there is none. */
static inline int take_pair(input *in, const char *names[2]) {
    static const char *const twins[] = {"scalar", "scalar_fma"};
    const char *of_class[16];
    int count = 0;
    names[0] = twins[choose(in, 2)];
    const int64_t first = choose(in, 16);
    for (const char *name; count < 16 && (name = rapt_isa_name(count)); count++) of_class[count] = name;
    for (int64_t n = 0; n < count; n++) {
        names[1] = of_class[(first + n) % count];
        if (strcmp(names[1], names[0]) != 0 && !strcmp(rapt_isa_rounding(names[1]), rapt_isa_rounding(names[0])) &&
            rapt_isa_usable(names[1], NULL, 0) == RAPT_OK)
            return 2;
    }
    return 1;
}

#endif
