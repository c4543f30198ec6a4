/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers of a small test, which sets random_state to begin anew: integers, and floats made of them without libm, so that
 * every machine draws the same data. Golden hashes were made with it, so it stays as it is. */
#ifndef RAPT_TESTS_RANDOM_H
#define RAPT_TESTS_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

static uint64_t random_state = 1;

static inline uint32_t random_bits(void) {
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 32);
}

/* What makes the choices, if it is not null: a fuzz target's input (fuzz/drawn.h). What is rare, and what elements are, is none.
 */
static int64_t (*random_choice)(int64_t n);

static inline int64_t value_below(int64_t n) { return (int64_t)(random_bits() % (uint64_t)n); }
static inline int64_t below(int64_t n) { return random_choice ? random_choice(n) : value_below(n); }
static inline bool one_in(int64_t n) { return (n < 20 ? below(n) : value_below(n)) == 0; }
static inline int64_t one_of(const int64_t *values, int64_t n) { return values[below(n)]; }
#define ONE_OF(...) one_of((const int64_t[]){__VA_ARGS__}, (int64_t)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)))

/* About normally distributed: a sum of four uniforms, within +-4, standard deviation 1.15. */
static inline float random_value(void) {
    int64_t sum = 0;
    for (int i = 0; i < 4; i++) sum += value_below(1 << 20) - (1 << 19);
    return (float)sum / (1 << 19);
}

static inline void shuffle(int32_t *x, int64_t n) {
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = below(i + 1);
        int32_t swapped = x[i];
        x[i] = x[j], x[j] = swapped;
    }
}

#endif
