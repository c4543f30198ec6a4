/* SPDX-License-Identifier: Apache-2.0 */
/* rapt_pool: a small pool of persistent threads, for whoever brings none. It is an optional companion, in a library of its
 * own (librapt_pool); librapt never uses it. Unlike librapt it allocates and locks. A worker without work looks on for a moment,
 * giving way to other threads, before it sleeps.
 *
 * Forked children (there are none on Windows): the workers of a pool stay in the process that created it. In a child it is a
 * pool of one thread, whatever the parent's threads were doing when it forked: rapt_pool_for runs everything on the calling
 * thread, rapt_pool_threads is 1, and rapt_pool_destroy frees its memory. A child that is forked by a body must not return from
 * it. A pool that the child creates itself has workers.
 *
 * A worker has the floating-point modes of the thread that created the pool, or the default ones, as the operating system has it.
 *
 * With RAPT_VERBOSE=1 in the environment, the first call of rapt_pool_create in a process sends traces (rapt_trace_to) to
 * stderr, each line with "rapt: " before it. They no longer go where the program sent them before that call; where it sends them
 * to after it, they go, whatever pools are created later. */
#ifndef RAPT_POOL_H
#define RAPT_POOL_H

#include "rapt.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A pool of threads; its contents are the library's. */
typedef struct rapt_pool rapt_pool;

/* Creates a pool that runs on that many threads, the caller's of rapt_pool_for included (so 1 starts none). Returns null if
 * threads < 1 or if memory or threads could not be had. */
RAPT_API rapt_pool *rapt_pool_create(int64_t threads);

/* Ends the workers of a pool and frees it. No rapt_pool_for may be running. Null is allowed. */
RAPT_API void rapt_pool_destroy(rapt_pool *pool);

/* Returns the number of threads of a pool, the caller's included, and 1 for null. */
RAPT_API int64_t rapt_pool_threads(const rapt_pool *pool);

/* Calls body(body_arg, i) for i in 0..n-1 and returns when all are done: a rapt_parallel_for, to be passed with the pool to
 * rapt_run_parallel and the like. A null pool runs them on the calling thread. A pool takes one call at a time; body may not call
 * it on the same pool. */
RAPT_API void rapt_pool_for(void *pool, int64_t n, rapt_body body, void *body_arg);

#ifdef __cplusplus
}
#endif

#endif
