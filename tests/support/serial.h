/* SPDX-License-Identifier: Apache-2.0 */
/* A parallel_for without threads. */
#ifndef RAPT_TESTS_SERIAL_H
#define RAPT_TESTS_SERIAL_H

#include "rapt.h"

/* The last one first, since tasks of a phase may come in any order. */
static inline void serial(void *pool, int64_t n, rapt_body body, void *arg) {
    (void)pool;
    for (int64_t i = n - 1; i >= 0; i--) body(arg, i);
}

#endif
