/* SPDX-License-Identifier: Apache-2.0 */
/* rapt_pool: a small pool of persistent threads, for programs that have none of their own. It is optional, in a library of its
 * own (librapt_pool), which librapt never uses. Unlike librapt it allocates and locks. A worker without work polls for a moment,
 * yielding to other threads, before it sleeps.
 *
 * Forked children (not on Windows): the workers of a pool exist only in the process that created it. In a child, the pool has one
 * thread, whatever the parent's threads were doing at the fork: rapt_pool_for runs everything on the calling thread,
 * rapt_pool_threads returns 1, and rapt_pool_destroy frees the memory. A child that a body forks must not return from that body.
 * A pool that the child itself creates has workers.
 *
 * A worker has the floating-point modes of the thread that created the pool, or the default ones; that depends on the operating
 * system.
 *
 * With RAPT_VERBOSE=1 in the environment, the first rapt_pool_create of a process sends traces to stderr (rapt_trace_to), each
 * line after "rapt: ". That replaces an earlier rapt_trace_to of the program; a later one replaces it, and creating further pools
 * changes nothing. */
#ifndef RAPT_POOL_H
#define RAPT_POOL_H

#include "rapt.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A pool of threads; its contents are the library's. */
typedef struct rapt_pool rapt_pool;

/* Creates a pool of `threads` threads, including the one that calls rapt_pool_for (so 1 starts none). Returns null if threads <
 * 1, or if there is not enough memory or the system has no more threads. */
RAPT_API rapt_pool *rapt_pool_create(int64_t threads);

/* Ends the workers of a pool and frees it. No rapt_pool_for may be running on it. pool may be null. */
RAPT_API void rapt_pool_destroy(rapt_pool *pool);

/* Returns the number of threads of a pool, including the caller's; 1 for null. */
RAPT_API int64_t rapt_pool_threads(const rapt_pool *pool);

/* Calls body(body_arg, i) for i in 0..n-1 and returns when all are done. It is a rapt_parallel_for, to be passed together with
 * the pool to rapt_run_parallel and the like. With a null pool everything runs on the calling thread. A pool runs one call at a
 * time; body may not call rapt_pool_for on the same pool. */
RAPT_API void rapt_pool_for(void *pool, int64_t n, rapt_body body, void *body_arg);

#ifdef __cplusplus
}
#endif

#endif
