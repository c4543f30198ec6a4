/* SPDX-License-Identifier: Apache-2.0 */
/* The threads of an OpenMP runtime that the process already has, such as PyTorch's, as a rapt_parallel_for: two pools of threads
 * beside each other would wait for the same CPUs. The runtime is called by the addresses that the caller found in it, so that
 * this library neither needs one nor brings one. */
#include "rapt.h"

/* What is used of the runtime: GOMP_parallel, which LLVM's and Intel's have too, omp_get_thread_num and omp_get_num_threads. */
typedef struct rapt_openmp {
    void (*parallel)(void (*body)(void *), void *arg, unsigned threads, unsigned flags);
    int (*thread)(void);
    int (*threads)(void);
} rapt_openmp;

/* A loop that all threads of a team share. */
typedef struct openmp_loop {
    const rapt_openmp *runtime;
    int64_t n;
    rapt_body body;
    void *arg;
} openmp_loop;

/* Does one thread's share; a team may have fewer threads than were asked for, as it has inside another team. */
static void share(void *arg) {
    const openmp_loop *loop = arg;
    int64_t step = loop->runtime->threads();
    for (int64_t i = loop->runtime->thread(); i < loop->n; i += step) loop->body(loop->arg, i);
}

/* A rapt_parallel_for whose pool is a rapt_openmp. */
RAPT_API void rapt_openmp_for(void *pool, int64_t n, rapt_body body, void *arg);
RAPT_API void rapt_openmp_for(void *pool, int64_t n, rapt_body body, void *arg) {
    openmp_loop loop = {pool, n, body, arg};
    loop.runtime->parallel(share, &loop, (unsigned)n, 0);
}
