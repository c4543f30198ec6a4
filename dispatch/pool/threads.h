/* SPDX-License-Identifier: Apache-2.0 */
/* Locks, conditions and threads, as far as the pool and the tests need them, over POSIX or Windows. */
#ifndef RAPT_THREADS_H
#define RAPT_THREADS_H

#include <stdbool.h>
#include <stddef.h>

#if defined(_WIN32)
#include <process.h>
#endif
#if !defined(_WIN32) /* not #else: tools/amalgamate moves each include together with its condition */
#include <pthread.h>
#include <sched.h>
#endif

#if defined(_WIN32)
/* Declared here, since windows.h defines macros such as near and IN, which are names elsewhere. */
typedef struct rapt_mutex {
    void *lock; /* an SRWLOCK */
} rapt_mutex;
typedef struct rapt_condition {
    void *variable; /* a CONDITION_VARIABLE */
} rapt_condition;
typedef struct rapt_once {
    void *state; /* an INIT_ONCE */
} rapt_once;
void __stdcall AcquireSRWLockExclusive(rapt_mutex *);
void __stdcall ReleaseSRWLockExclusive(rapt_mutex *);
int __stdcall SleepConditionVariableSRW(rapt_condition *, rapt_mutex *, unsigned long milliseconds, unsigned long flags);
void __stdcall WakeConditionVariable(rapt_condition *);
void __stdcall WakeAllConditionVariable(rapt_condition *);
int __stdcall InitOnceExecuteOnce(rapt_once *, int(__stdcall *)(rapt_once *, void *, void **), void *arg, void **context);
unsigned long __stdcall WaitForSingleObject(void *handle, unsigned long milliseconds);
int __stdcall CloseHandle(void *handle);
int __stdcall SwitchToThread(void);

/* The two functions that create something return false if the system has no more of it, as does rapt_thread_start. */
static inline bool rapt_mutex_create(rapt_mutex *m) { return m->lock = NULL, true; }
static inline void rapt_mutex_destroy(rapt_mutex *m) { (void)m; }
static inline void rapt_mutex_lock(rapt_mutex *m) { AcquireSRWLockExclusive(m); }
static inline void rapt_mutex_unlock(rapt_mutex *m) { ReleaseSRWLockExclusive(m); }

static inline bool rapt_condition_create(rapt_condition *c) { return c->variable = NULL, true; }
static inline void rapt_condition_destroy(rapt_condition *c) { (void)c; }
static inline void rapt_condition_wait(rapt_condition *c, rapt_mutex *m) { SleepConditionVariableSRW(c, m, ~0ul, 0); }
static inline void rapt_condition_signal(rapt_condition *c) { WakeConditionVariable(c); }
static inline void rapt_condition_broadcast(rapt_condition *c) { WakeAllConditionVariable(c); }

#define RAPT_ONCE_INIT {0}
static inline int __stdcall rapt_once_body(rapt_once *once, void *body, void **context) {
    (void)once, (void)context;
    (*(void (**)(void))body)();
    return 1;
}
static inline void rapt_once_run(rapt_once *once, void (*body)(void)) { InitOnceExecuteOnce(once, rapt_once_body, &body, NULL); }

/* A thread runs a function that is declared as `static rapt_thread_end RAPT_THREAD_CALL name(void *arg)` and returns 0. */
typedef void *rapt_thread;
typedef unsigned rapt_thread_end;
#define RAPT_THREAD_CALL __stdcall
static inline bool rapt_thread_start(rapt_thread *t, rapt_thread_end(RAPT_THREAD_CALL *body)(void *), void *arg) {
    return (*t = (rapt_thread)_beginthreadex(NULL, 0, body, arg, 0, NULL));
}
static inline void rapt_thread_join(rapt_thread t) { WaitForSingleObject(t, ~0ul), CloseHandle(t); }
static inline void rapt_thread_yield(void) { SwitchToThread(); }
#else
typedef pthread_mutex_t rapt_mutex;
static inline bool rapt_mutex_create(rapt_mutex *m) { return !pthread_mutex_init(m, NULL); }
static inline void rapt_mutex_destroy(rapt_mutex *m) { pthread_mutex_destroy(m); }
static inline void rapt_mutex_lock(rapt_mutex *m) { pthread_mutex_lock(m); }
static inline void rapt_mutex_unlock(rapt_mutex *m) { pthread_mutex_unlock(m); }

typedef pthread_cond_t rapt_condition;
static inline bool rapt_condition_create(rapt_condition *c) { return !pthread_cond_init(c, NULL); }
static inline void rapt_condition_destroy(rapt_condition *c) { pthread_cond_destroy(c); }
static inline void rapt_condition_wait(rapt_condition *c, rapt_mutex *m) { pthread_cond_wait(c, m); }
static inline void rapt_condition_signal(rapt_condition *c) { pthread_cond_signal(c); }
static inline void rapt_condition_broadcast(rapt_condition *c) { pthread_cond_broadcast(c); }

typedef pthread_once_t rapt_once;
#define RAPT_ONCE_INIT PTHREAD_ONCE_INIT
static inline void rapt_once_run(rapt_once *once, void (*body)(void)) { pthread_once(once, body); }

typedef pthread_t rapt_thread;
typedef void *rapt_thread_end;
#define RAPT_THREAD_CALL
static inline bool rapt_thread_start(rapt_thread *t, rapt_thread_end (*body)(void *), void *arg) {
    return !pthread_create(t, NULL, body, arg);
}
static inline void rapt_thread_join(rapt_thread t) { pthread_join(t, NULL); }
static inline void rapt_thread_yield(void) { sched_yield(); }
#endif

#endif
