/* SPDX-License-Identifier: Apache-2.0 */
/* The thread pool: every index once, on as many threads as asked for, call after call; in forked children, on one; where traces
 * go; and that nothing is left when a call on the way to a pool fails. Linked with --wrap=pthread_mutex_unlock, to fork while the
 * lock is held, and of what may fail. With --emulated, for an emulator, which cannot fork a process with threads and is slow to
 * yield, that part is skipped; on Windows, where nothing forks and locks cannot fail, both are. Ends with TAP. */
#define _POSIX_C_SOURCE 200809L
#include "rapt_pool.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(_WIN32)
#include <fcntl.h>
#include <io.h>
#include <process.h>
#else
#include <sys/wait.h>
#include <unistd.h>
#endif

#include "barrier.h"
#include "sample.h"

static int tests, failures;

static void ok(int good, const char *what, long long detail) {
    failures += !good;
    printf("%sok %d - %s, %lld\n", good ? "" : "not ", ++tests, what, detail);
}

enum { MOST = 1000 };

/* Plain ints: two threads on one index would be a race, and the caller must see the counts without any synchronisation but
 * the pool's own. */
typedef struct counts {
    int at[MOST];
} counts;

static void count(void *arg, int64_t i) { ((counts *)arg)->at[i]++; }

static int each_once(rapt_pool *pool, int64_t n) {
    counts c = {{0}};
    rapt_pool_for(pool, n, count, &c);
    for (int64_t i = 0; i < MOST; i++)
        if (c.at[i] != (i < n)) return 0;
    return 1;
}

/* Returns only when as many threads have come, and notes which of them block the process's signals. */
typedef struct meeting {
    barrier barrier;
    _Atomic int64_t deaf;
} meeting;

#if defined(_WIN32) /* where a signal comes in a thread of its own */
enum { HAS_SIGNALS = 0 };
static int is_deaf(void) { return 0; }
#else
enum { HAS_SIGNALS = 1 };
static int is_deaf(void) {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    return sigismember(&mask, SIGINT);
}
#endif

static void meet(void *arg, int64_t i) {
    meeting *m = arg;
    (void)i;
    atomic_fetch_add(&m->deaf, is_deaf());
    barrier_wait(&m->barrier);
}

/* Counts waits on conditions, which begin when a thread stops polling. */
static _Atomic int64_t waits;
#if !defined(_WIN32)
int __real_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m);
int __wrap_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m);
int __wrap_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m) {
    atomic_fetch_add(&waits, 1);
    return __real_pthread_cond_wait(c, m);
}
#endif

/* Yields until so many threads wait on conditions. They do soon: after five seconds it returns all the same. */
static void until_asleep(int64_t threads) {
#if !defined(_WIN32)
    const time_t start = time(NULL);
    while (atomic_load(&waits) < threads && time(NULL) - start < 5) rapt_thread_yield();
#else
    (void)threads;
#endif
}

/* Index 0 does not end before all the others have, so they must be handed out one by one; nor before all other threads sleep,
 * which must then have left the call, though it is still open. */
typedef struct uneven {
    _Atomic int64_t ended;
    int64_t n, others; /* indices; threads but the one of index 0 */
} uneven;

static void hold_first(void *arg, int64_t i) {
    uneven *u = arg;
    if (i == 0) {
        atomic_store(&waits, 0);
        while (atomic_load(&u->ended) < u->n - 1) rapt_thread_yield();
        until_asleep(u->others);
    }
    atomic_fetch_add(&u->ended, 1);
}

/* For two indices on two threads. The worker's does not end before the caller, whose own has ended, sleeps. */
static _Thread_local bool is_caller;

typedef struct late {
    _Atomic bool worker_came, worker_ended;
} late;

static void hold_worker(void *arg, int64_t i) {
    late *l = arg;
    (void)i;
    if (is_caller) {
        while (!atomic_load(&l->worker_came)) rapt_thread_yield();
        return;
    }
    atomic_store(&waits, 0);
    atomic_store(&l->worker_came, true);
    until_asleep(1);
    atomic_store(&l->worker_ended, true);
}

typedef struct nest {
    rapt_pool *inner;
    counts c[4];
} nest;

static void nested(void *arg, int64_t i) {
    nest *n = arg;
    rapt_pool_for(i == 0 ? n->inner : NULL, 10, count, &n->c[i]);
}

/* ---- What is computed ---------------------------------------------------------------------------------------------------- */

/* For sample_run. */
static rapt_pool *samples_pool;
static rapt_status run_on_pool(const rapt_plan *plan, const rapt_args *args) {
    return rapt_run_parallel(plan, args, rapt_pool_threads(samples_pool), rapt_pool_for, samples_pool);
}

static int computes(rapt_pool *pool, sample *out) {
    static const sample_calls library = {rapt_desc_init_sized, rapt_args_init_sized, rapt_plan_init_sized, run_on_pool};
    samples_pool = pool;
    return sample_run(&library, NULL, out) == RAPT_OK;
}

/* What the calling thread computes, before the others are compared with it. */
static sample want;
static int computes_the_same(rapt_pool *pool) {
    static sample got;
    memset(&got, 0, sizeof got);
    return computes(pool, &got) && memcmp(&got, &want, sizeof want) == 0;
}

/* ---- Forked children ----------------------------------------------------------------------------------------------------- */

#if !defined(_WIN32)
/* Of a pool that a child creates; under ThreadSanitizer it cannot start any. */
#if defined(__SANITIZE_THREAD__)
enum { CHILDS_THREADS = 1 };
#else
enum { CHILDS_THREADS = 3 };
#endif

/* As fork(); a child that hangs is ended by a signal. */
static pid_t fork_child(void) {
    pid_t child = fork();
    if (child == 0) alarm(200);
    return child;
}

static int ended_well(pid_t child) {
    int status = -1;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* In a child: what the header promises of a pool of the parent's. */
_Noreturn static void use_parents_pool(rapt_pool *pool) {
    int good = rapt_pool_threads(pool) == 1 && each_once(pool, 100);
    rapt_pool_destroy(pool);
    pool = rapt_pool_create(CHILDS_THREADS);
    good &= rapt_pool_threads(pool) == CHILDS_THREADS && each_once(pool, 100) && computes_the_same(pool);
    rapt_pool_destroy(pool);
    _exit(!good);
}

/* Where the lock is left for the n-th time from now on, the thread that holds it forks. */
static rapt_pool *forking_pool;
static _Atomic int unlocks_before_fork = -1;
static _Atomic pid_t forked;

int __real_pthread_mutex_unlock(pthread_mutex_t *);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *lock) {
    if (unlocks_before_fork >= 0 && unlocks_before_fork-- == 0) {
        pid_t child = fork_child();
        if (child == 0) use_parents_pool(forking_pool);
        forked = child;
    }
    return __real_pthread_mutex_unlock(lock);
}

static void test_forks(void) {
    rapt_pool *pool = rapt_pool_create(3);
    ok(pool && each_once(pool, 100), "a pool whose process will fork", 3);
    pid_t child = fork_child();
    if (child == 0) {
        child = fork_child();
        if (child == 0) use_parents_pool(pool);
        _exit(!ended_well(child));
    }
    ok(ended_well(child), "a child of a child has a pool of one thread", 1);
    forking_pool = pool;
    for (int unlocks = 0; unlocks < 6; unlocks++) { /* the caller's or a worker's, which of them being chance */
        forked = 0;
        unlocks_before_fork = unlocks;
        int good = 1;
        while (!forked) good &= each_once(pool, 100);
        ok(ended_well(forked) && good, "a child that was forked while the lock was held", unlocks);
    }
    ok(each_once(pool, 100) && rapt_pool_threads(pool) == 3, "the parent's pool is as before", 3);
    rapt_pool_destroy(pool);
}
#endif

/* ---- Traces -------------------------------------------------------------------------------------------------------------- */

static void count_line(void *arg, const char *line) { (void)line, ++*(int *)arg; }

/* A line for rapt_isa_force, which is refused. */
static void refuse(void) { rapt_isa_force("none"); }

/* In a process that has created no pool: its traces go to stderr, as RAPT_VERBOSE says, until it sends them elsewhere. Returns 0
 * if those arrive there. */
static int send_traces(void) {
    int own = 0;
    const rapt_trace trace = {.body = count_line, .arg = &own};
    refuse();
    rapt_pool *first = rapt_pool_create(1);
    refuse();
    rapt_trace_to(&trace);
    rapt_pool *second = rapt_pool_create(2);
    refuse();
    rapt_trace_to(NULL);
    rapt_pool_destroy(second);
    rapt_pool_destroy(first);
    return own != 1;
}

/* True if a process with that RAPT_VERBOSE prints this to stderr, and ends well. */
#if defined(_WIN32)
static const char *self; /* the program, which runs itself with --traces */

static int traces_are(const char *verbose, const char *expected) {
    int ends[2];
    char text[1000];
    const int usual = _dup(2);
    if (_putenv_s("RAPT_VERBOSE", verbose ? verbose : "") || _pipe(ends, sizeof text, _O_BINARY)) return 0;
    _dup2(ends[1], 2);
    const intptr_t status = _spawnl(_P_WAIT, self, "pool", "--traces", NULL);
    _dup2(usual, 2);
    _close(usual), _close(ends[1]);
    const int n = _read(ends[0], text, sizeof text - 1);
    _close(ends[0]);
    text[n > 0 ? n : 0] = '\0';
    return status == 0 && strcmp(text, expected) == 0;
}
#else
static int traces_are(const char *verbose, const char *expected) {
    int ends[2];
    char text[1000];
    if (pipe(ends)) return 0;
    pid_t child = fork_child();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        _exit((verbose ? setenv("RAPT_VERBOSE", verbose, 1) : unsetenv("RAPT_VERBOSE")) || send_traces());
    }
    close(ends[1]);
    size_t n = 0;
    for (ssize_t got; n < sizeof text - 1 && (got = read(ends[0], text + n, sizeof text - 1 - n)) > 0;) n += (size_t)got;
    text[n] = '\0';
    close(ends[0]);
    return ended_well(child) && strcmp(text, expected) == 0;
}
#endif

static void test_traces(void) {
    char line[400];
    int used = snprintf(line, sizeof line, "rapt: rapt_isa_force: name = none: there is no kernel of that name; there are ");
    for (int i = 0; rapt_isa_name(i); i++)
        used += snprintf(line + used, sizeof line - (size_t)used, "%s%s", i ? ", " : "", rapt_isa_name(i));
    line[used] = '\n', line[used + 1] = '\0';
    ok(traces_are("1", line), "RAPT_VERBOSE=", 1);
    ok(traces_are("0", ""), "RAPT_VERBOSE=", 0);
    ok(traces_are(NULL, ""), "no RAPT_VERBOSE, lines", 0);
}

/* ---- Calls that fail ----------------------------------------------------------------------------------------------------- */

#if !defined(_WIN32)
/* The call after as many others, of those that take something from the system, fails; none does below 0. */
static int calls_before_failure = -1;
static int fails(void) { return calls_before_failure >= 0 && calls_before_failure-- == 0; }

/* Memory, locks, conditions and threads that were taken and not given back. */
static int held;
static int take(int error) { return held += !error, error; }

void *__real_calloc(size_t, size_t);
void __real_free(void *);
int __real_pthread_mutex_init(pthread_mutex_t *, const pthread_mutexattr_t *);
int __real_pthread_mutex_destroy(pthread_mutex_t *);
int __real_pthread_cond_init(pthread_cond_t *, const pthread_condattr_t *);
int __real_pthread_cond_destroy(pthread_cond_t *);
int __real_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int __real_pthread_join(pthread_t, void **);
int __real_pthread_atfork(void (*)(void), void (*)(void), void (*)(void));
void *__wrap_calloc(size_t, size_t);
void __wrap_free(void *);
int __wrap_pthread_mutex_init(pthread_mutex_t *, const pthread_mutexattr_t *);
int __wrap_pthread_mutex_destroy(pthread_mutex_t *);
int __wrap_pthread_cond_init(pthread_cond_t *, const pthread_condattr_t *);
int __wrap_pthread_cond_destroy(pthread_cond_t *);
int __wrap_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
int __wrap_pthread_join(pthread_t, void **);
int __wrap_pthread_atfork(void (*)(void), void (*)(void), void (*)(void));

void *__wrap_calloc(size_t n, size_t bytes) {
    void *memory = fails() ? NULL : __real_calloc(n, bytes);
    return take(!memory) ? NULL : memory;
}
void __wrap_free(void *memory) { held -= memory != NULL, __real_free(memory); }
int __wrap_pthread_mutex_init(pthread_mutex_t *lock, const pthread_mutexattr_t *how) {
    return take(fails() ? ENOMEM : __real_pthread_mutex_init(lock, how));
}
int __wrap_pthread_mutex_destroy(pthread_mutex_t *lock) { return held--, __real_pthread_mutex_destroy(lock); }
int __wrap_pthread_cond_init(pthread_cond_t *condition, const pthread_condattr_t *how) {
    return take(fails() ? EAGAIN : __real_pthread_cond_init(condition, how));
}
int __wrap_pthread_cond_destroy(pthread_cond_t *condition) { return held--, __real_pthread_cond_destroy(condition); }
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*body)(void *), void *arg) {
    return take(fails() ? EAGAIN : __real_pthread_create(thread, how, body, arg));
}
int __wrap_pthread_join(pthread_t thread, void **result) { return held--, __real_pthread_join(thread, result); }
int __wrap_pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void)) {
    return fails() ? ENOMEM : __real_pthread_atfork(prepare, parent, child);
}

/* Of a process that cannot learn of forks: there is no pool, and everything runs on the calling thread. No pool was created
 * before. */
static void test_unknown_forks(void) {
    pid_t child = fork_child();
    if (child == 0) {
        calls_before_failure = 0;
        rapt_pool *pool = rapt_pool_create(3);
        _exit(pool || calls_before_failure != -1 || held || rapt_pool_create(2) || !each_once(NULL, 100));
    }
    ok(ended_well(child), "pthread_atfork fails: no pool", 0);
}

/* Each of them in turn, until a pool comes of it; then memory, a lock, two conditions and the threads have failed. */
static void test_failures(int64_t threads) {
    int calls = 0, good = 1;
    for (int failed = 1; failed; calls++) {
        held = 0;
        calls_before_failure = calls;
        rapt_pool *pool = rapt_pool_create(threads);
        failed = calls_before_failure < 0;
        calls_before_failure = -1;
        good &= failed ? !pool : pool && rapt_pool_threads(pool) == threads && each_once(pool, 100);
        rapt_pool_destroy(pool);
        good &= held == 0;
        pool = rapt_pool_create(threads);
        good &= pool && each_once(pool, 100) && computes_the_same(pool);
        rapt_pool_destroy(pool);
    }
    ok(good, "a call fails: no pool, nothing is left, and the next pool has the same bits; threads", (long long)threads);
    ok(calls - 1 == 4 + threads - 1, "calls that failed", calls - 1);
}
#endif

/* -------------------------------------------------------------------------------------------------------------------------- */

int main(int argc, char **argv) {
    static const int64_t threads[] = {1, 2, 3, 7, 64};
    static const int64_t lengths[] = {0, 1, 2, 3, 8, 63, 64, 65, MOST};
    /* 200 calls, in which 64 threads yield hundreds of times each, take most of 90 s under QEMU (AArch64). */
    const bool emulated = argc > 1 && strcmp(argv[1], "--emulated") == 0;
    const int calls = emulated ? 20 : 200;
#if defined(_WIN32)
    if (argc > 1 && strcmp(argv[1], "--traces") == 0) {
        _setmode(2, _O_BINARY);
        return send_traces();
    }
    self = argv[0];
    test_traces();
    ok(computes(NULL, &want), "a sample", 0);
    printf("ok %d # SKIP forked children, and locks that fail, which Windows has not\n", ++tests);
#else
    alarm(2000);                      /* a pool that hangs is to fail soon */
    setvbuf(stdout, NULL, _IOLBF, 0); /* or a child could print a line once more */
    test_traces();
    ok(computes(NULL, &want), "a sample", 0);
    test_unknown_forks();
    if (emulated) printf("ok %d # SKIP forked children\n", ++tests);
    else test_forks();
#endif
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        rapt_pool *pool = rapt_pool_create(threads[t]);
        if (!pool) {
            ok(0, "a pool of threads", (long long)threads[t]);
            continue;
        }
        ok(rapt_pool_threads(pool) == threads[t], "its number of threads", (long long)threads[t]);
        int good = 1;
        for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++) good &= each_once(pool, lengths[n]);
        ok(good, "every index once", (long long)threads[t]);
        good = 1;
        for (int call = 0; call < calls; call++) good &= each_once(pool, call % 9);
        ok(good, "many short calls", (long long)threads[t]);
        meeting m = {.deaf = 0};
        good = barrier_create(&m.barrier, threads[t]);
        if (good) rapt_pool_for(pool, threads[t], meet, &m), barrier_destroy(&m.barrier);
        ok(good && m.deaf == (HAS_SIGNALS ? threads[t] - 1 : 0), "all threads at once, signals left to the caller",
           (long long)threads[t]);
        if (threads[t] < 64) /* for which the sample's workspace is large enough */
            ok(computes_the_same(pool), "the bits of the calling thread", (long long)threads[t]);
        if (threads[t] > 1) {
            uneven u = {0, 100, threads[t] - 1};
            rapt_pool_for(pool, u.n, hold_first, &u);
            ok(u.ended == u.n, "a long index does not hold up the others", (long long)threads[t]);
        }
        if (threads[t] == 2) {
            late l = {0};
            is_caller = true;
            rapt_pool_for(pool, 2, hold_worker, &l);
            is_caller = false;
            ok(l.worker_ended, "the caller sleeps until the worker's index has ended", 2);
        }
        rapt_pool_destroy(pool);
    }

#if !defined(_WIN32)
    test_failures(1);
    test_failures(4);
#endif

    int good = 1;
    for (int i = 0; i < 50; i++) {
        rapt_pool *pool = rapt_pool_create(1 + i % 5);
        good &= pool && (i % 2 || each_once(pool, 3));
        rapt_pool_destroy(pool);
    }
    ok(good, "created and destroyed, used or not", 50);

    ok(each_once(NULL, 20) && rapt_pool_threads(NULL) == 1, "no pool is the calling thread", 1);
    rapt_pool_destroy(NULL);
    ok(!rapt_pool_create(0) && !rapt_pool_create(-1) && !rapt_pool_create(INT64_MIN), "no threads", 0);
    ok(!rapt_pool_create(INT64_MAX), "too many threads", INT64_MAX);

    rapt_pool *outer = rapt_pool_create(3);
    nest n = {rapt_pool_create(2), {{{0}}}};
    good = outer && n.inner;
    rapt_pool_for(outer, 4, nested, &n);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < MOST; k++) good &= n.c[i].at[k] == (k < 10);
    ok(good, "a body may use another pool", 2);
    rapt_pool_destroy(n.inner);
    rapt_pool_destroy(outer);

    printf("1..%d\n", tests);
    return failures != 0;
}
