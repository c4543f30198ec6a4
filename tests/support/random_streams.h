/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers of the checks, in any number of streams, each with its state in a *random of the caller's: integers, and floats
 * made of them without libm, so that every machine draws the same data. Golden hashes were made with it, so it stays as it is. */
#ifndef RAPT_TESTS_RANDOM_STREAMS_H
#define RAPT_TESTS_RANDOM_STREAMS_H

#include <stdint.h>

/* splitmix64. */
static inline uint64_t draw(uint64_t *random) {
    uint64_t z = *random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static inline int64_t draw_below(uint64_t *random, int64_t n) { return (int64_t)(draw(random) >> 1) % n; }
#define DRAW_OF(random, of) ((of)[draw_below((random), (int64_t)(sizeof(of) / sizeof *(of)))])

/* Nearly normally distributed: a sum of four uniforms, within +-4, standard deviation 1.15. */
static inline float draw_normal(uint64_t *random) {
    const uint64_t bits = draw(random);
    const int32_t sum = (int32_t)((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48));
    return (float)(sum - 131070) * 0x1p-15f;
}

/* A seed by a text. */
static inline uint64_t hash_text(uint64_t seed, const char *text) {
    uint64_t random = seed;
    for (; *text; text++) random = draw(&random) ^ (unsigned char)*text;
    return draw(&random);
}

/* A seed by an index, whatever the order of drawing. */
static inline uint64_t hash_index(uint64_t seed, int64_t a, int64_t b, int64_t c, int64_t d) {
    uint64_t random = seed ^ (uint64_t)a * UINT64_C(0x9fb21c651e98df25);
    random = draw(&random) ^ (uint64_t)b * UINT64_C(0xd6e8feb86659fd93);
    random = draw(&random) ^ (uint64_t)c * UINT64_C(0xa0761d6478bd642f);
    random = draw(&random) ^ (uint64_t)d;
    return draw(&random);
}

#endif
