/* SPDX-License-Identifier: Apache-2.0 */
/* The small thread pool of rapt_pool.h. */
#define _POSIX_C_SOURCE 200809L
#include "rapt_pool.h"

#if !defined(__wasi__) && !defined(_WIN32)
#include <signal.h>
#endif
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pool/threads.h"

/* How often a waiting thread polls, yielding in between, before it sleeps. Waking a sleeping thread takes about 50 us on a
 * virtual machine, longer than the gap between an engine's calls. Measured on an AMD EPYC: P1 on two threads is 1.75 times as
 * fast as on one without polling, 1.92 times with it. */
enum { SPINS = 200 };

/* A call is open while body is not null. Workers that wake up join it and take indices; so does the caller, until none is left.
 * It then closes the call and waits for the workers that joined, so a worker that wakes up too late delays nobody. The lock
 * guards all members but next; call, joined and stop are also polled without it. */
struct rapt_pool {
    rapt_mutex lock;
    rapt_condition opened, left; /* a call was opened, or stop was set; the last worker left the call */
    rapt_body body;
    void *body_arg;
    int64_t n;              /* indices of the call */
    _Atomic int64_t next;   /* the first index that no thread has taken */
    _Atomic uint64_t call;  /* counts the calls, so that no worker joins one twice */
    _Atomic int64_t joined; /* workers inside the open call */
    int64_t workers;        /* that were started */
    uint64_t forks;         /* the value of `forks` in the process that started them */
    _Atomic int stop;
    rapt_thread threads[];
};

/* Incremented in each forked child. A pool whose `forks` differs was created by an ancestor of this process: its workers do not
 * exist here, and its lock may be held for ever. getpid() would not do: it is a system call, and process numbers are reused. */
static uint64_t forks;

/* Makes every forked child count itself from now on. Returns 0 if the system cannot. */
#if defined(__wasi__) || defined(_WIN32) /* where processes do not fork */
static int count_forks(void) { return 1; }
#else
static void count_fork(void) { forks++; } /* runs in the child, which has one thread */
static int count_forks(void) { return pthread_atfork(NULL, NULL, count_fork) == 0; }
#endif

/* True if this process started the pool's workers. */
static int lives_here(const rapt_pool *pool) { return pool->forks == forks; }
static int has_workers(const rapt_pool *pool) { return pool && pool->workers > 0 && lives_here(pool); }

static void print_trace(void *arg, const char *line) { (void)arg, fprintf(stderr, "rapt: %s\n", line); }

/* Runs once, before a process creates its first pool. */
static rapt_once begun = RAPT_ONCE_INIT;
static int forks_are_counted;
static void begin(void) {
    static const rapt_trace printer = {.body = print_trace};
    const char *verbose = getenv("RAPT_VERBOSE");
    if (verbose && strcmp(verbose, "1") == 0) rapt_trace_to(&printer);
    forks_are_counted = count_forks();
}

/* Runs the body for indices that no other thread has taken, until none is left. */
static void take_indices(rapt_pool *pool, int64_t n, rapt_body body, void *body_arg) {
    int64_t i;
    while ((i = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed)) < n) body(body_arg, i);
}

/* The body of a worker: joins calls until the pool is destroyed. */
static rapt_thread_end RAPT_THREAD_CALL worker(void *arg) {
    rapt_pool *pool = arg;
    uint64_t seen = 0;
    rapt_mutex_lock(&pool->lock);
    while (!pool->stop) {
        if (!pool->body || pool->call == seen) {
            rapt_condition_wait(&pool->opened, &pool->lock);
            continue;
        }
        const int64_t n = pool->n;
        const rapt_body body = pool->body;
        void *body_arg = pool->body_arg;
        seen = pool->call;
        pool->joined++;
        rapt_mutex_unlock(&pool->lock);
        take_indices(pool, n, body, body_arg);
        rapt_mutex_lock(&pool->lock);
        if (--pool->joined == 0) rapt_condition_signal(&pool->left);
        rapt_mutex_unlock(&pool->lock);
        for (int i = 0; i < SPINS && pool->call == seen && !pool->stop; i++) rapt_thread_yield();
        rapt_mutex_lock(&pool->lock);
    }
    rapt_mutex_unlock(&pool->lock);
    return 0;
}

/* Starts workers until there are n of them, or the system has no more threads. */
static void start_workers(rapt_pool *pool, int64_t n) {
    while (pool->workers < n && rapt_thread_start(&pool->threads[pool->workers], worker, pool)) pool->workers++;
}

/* Starts workers that block all signals, which are left to the threads that the program knows. */
#if defined(__wasi__) || defined(_WIN32) /* no thread receives signals; on WASI, none can be started without -pthread either */
static void start_without_signals(rapt_pool *pool, int64_t n) { start_workers(pool, n); }
#else
static void start_without_signals(rapt_pool *pool, int64_t n) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    start_workers(pool, n);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}
#endif

/* Creates the lock and the conditions. If the system has no more of them, returns 0 and leaves none of them created. */
static int create_lock(rapt_pool *pool) {
    if (!rapt_mutex_create(&pool->lock)) return 0;
    if (rapt_condition_create(&pool->opened)) {
        if (rapt_condition_create(&pool->left)) return 1;
        rapt_condition_destroy(&pool->opened);
    }
    rapt_mutex_destroy(&pool->lock);
    return 0;
}

rapt_pool *rapt_pool_create(int64_t threads) {
    rapt_once_run(&begun, begin);
    const size_t most = (SIZE_MAX - sizeof(rapt_pool)) / sizeof(rapt_thread);
    if (!forks_are_counted || threads < 1 || (uint64_t)threads > most) return NULL;
    rapt_pool *pool = calloc(1, sizeof *pool + (size_t)(threads - 1) * sizeof *pool->threads);
    if (!pool || !create_lock(pool)) {
        free(pool);
        return NULL;
    }
    pool->forks = forks;
    start_without_signals(pool, threads - 1);
    if (pool->workers == threads - 1) return pool;
    rapt_pool_destroy(pool);
    return NULL;
}

void rapt_pool_destroy(rapt_pool *pool) {
    if (!pool) return;
    if (lives_here(pool)) {
        rapt_mutex_lock(&pool->lock);
        pool->stop = 1;
        rapt_condition_broadcast(&pool->opened);
        rapt_mutex_unlock(&pool->lock);
        for (int64_t i = 0; i < pool->workers; i++) rapt_thread_join(pool->threads[i]);
        rapt_condition_destroy(&pool->left);
        rapt_condition_destroy(&pool->opened);
        rapt_mutex_destroy(&pool->lock);
    }
    free(pool);
}

int64_t rapt_pool_threads(const rapt_pool *pool) { return has_workers(pool) ? pool->workers + 1 : 1; }

void rapt_pool_for(void *handle, int64_t n, rapt_body body, void *body_arg) {
    rapt_pool *pool = handle;
    if (!has_workers(pool) || n <= 1) {
        for (int64_t i = 0; i < n; i++) body(body_arg, i);
        return;
    }
    rapt_mutex_lock(&pool->lock);
    pool->body = body;
    pool->body_arg = body_arg;
    pool->n = n;
    pool->call++;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    rapt_condition_broadcast(&pool->opened);
    rapt_mutex_unlock(&pool->lock);

    take_indices(pool, n, body, body_arg);

    rapt_mutex_lock(&pool->lock);
    pool->body = NULL;
    rapt_mutex_unlock(&pool->lock);
    for (int i = 0; i < SPINS && pool->joined > 0; i++) rapt_thread_yield();
    rapt_mutex_lock(&pool->lock);
    while (pool->joined > 0) rapt_condition_wait(&pool->left, &pool->lock);
    rapt_mutex_unlock(&pool->lock);
}
