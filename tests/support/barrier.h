/* SPDX-License-Identifier: Apache-2.0 */
/* A barrier, of the words that all systems have: macOS has none of POSIX's. */
#ifndef RAPT_TESTS_BARRIER_H
#define RAPT_TESTS_BARRIER_H

#include <stdint.h>

#include "pool/threads.h"

typedef struct barrier {
    rapt_mutex lock;
    rapt_condition all_here;
    int64_t waiting, size, generation;
} barrier;

/* False where the system has no more of what it takes. */
static inline bool barrier_create(barrier *b, int64_t size) {
    *b = (barrier){.size = size};
    if (!rapt_mutex_create(&b->lock)) return false;
    if (rapt_condition_create(&b->all_here)) return true;
    rapt_mutex_destroy(&b->lock);
    return false;
}

static inline void barrier_destroy(barrier *b) {
    rapt_condition_destroy(&b->all_here);
    rapt_mutex_destroy(&b->lock);
}

/* Returns when as many threads have called it: a rapt_barrier. */
static inline void barrier_wait(void *of) {
    barrier *b = of;
    rapt_mutex_lock(&b->lock);
    const int64_t generation = b->generation;
    if (++b->waiting == b->size) {
        b->waiting = 0;
        b->generation++;
        rapt_condition_broadcast(&b->all_here);
    }
    while (b->generation == generation) rapt_condition_wait(&b->all_here, &b->lock);
    rapt_mutex_unlock(&b->lock);
}

#endif
