/* SPDX-License-Identifier: Apache-2.0 */
/* The first calls come from 64 threads at once, released by a barrier: dispatch is lock-free and idempotent. Meant for gcc's
 * ThreadSanitizer; each thread checks its own result. And a kernel that is forced while another thread is in the middle of its
 * first choice stays forced: linked with --wrap=getenv, which is what a choice begins with. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>

#include "barrier.h"
#include "rapt.h"
#include "tap.h"

enum { THREADS = 64, LENGTH = 5, CHANNELS = 9 };

static barrier start;
static float q[LENGTH * CHANNELS], k[LENGTH * CHANNELS], v[LENGTH * CHANNELS], outputs[THREADS][LENGTH * CHANNELS];

typedef struct caller {
    rapt_thread thread;
    float *o;
    rapt_status status;
} caller;

static rapt_thread_end RAPT_THREAD_CALL call(void *arg) {
    caller *c = arg;
    _Alignas(RAPT_WORKSPACE_ALIGNMENT) char workspace[1 << 17];
    rapt_desc desc;
    rapt_desc_init(&desc);
    desc.batch = desc.heads = desc.kv_heads = 1;
    desc.q_len = desc.kv_len = LENGTH;
    desc.d_k = desc.d_v = CHANNELS;
    desc.q = desc.k = desc.v = desc.o = rapt_layout_bhsd(RAPT_F32, 1, LENGTH, CHANNELS);
    rapt_args args;
    rapt_args_init(&args);
    args.q = q, args.k = k, args.v = v, args.o = c->o, args.workspace = workspace, args.workspace_bytes = sizeof workspace;
    barrier_wait(&start);
    rapt_plan plan;
    c->status = rapt_plan_init(&plan, &desc);
    if (c->status == RAPT_OK) c->status = rapt_run(&plan, &args);
    return 0;
}

/* Unless null, a thread that asks for RAPT_ISA waits twice: to tell that it is there, and to be let go on. */
static barrier *inside;

char *__real_getenv(const char *);
char *__wrap_getenv(const char *);
char *__wrap_getenv(const char *name) {
    if (inside && strcmp(name, "RAPT_ISA") == 0) {
        barrier_wait(inside);
        barrier_wait(inside);
    }
    return __real_getenv(name);
}

static rapt_thread_end RAPT_THREAD_CALL choose(void *chosen) {
    const char **name = chosen;
    rapt_isa_current(name);
    return 0;
}

static void force_during_first_choice(void) {
    const char *usual, *other = NULL, *name, *chosen = NULL;
    barrier both;
    rapt_thread thread;
    if (rapt_isa_current(&usual) != RAPT_OK) usual = NULL;
    for (int i = 0; (name = rapt_isa_name(i)); i++)
        if ((!usual || strcmp(name, usual) != 0) && rapt_isa_usable(name, NULL, 0) == RAPT_OK) other = name;
    rapt_isa_force(NULL);
    if (!barrier_create(&both, 2)) abort();
    inside = &both;
    if (!rapt_thread_start(&thread, choose, &chosen)) abort();
    barrier_wait(&both);
    rapt_status forced = rapt_isa_force(other);
    barrier_wait(&both);
    rapt_thread_join(thread);
    inside = NULL;
    rapt_status current = rapt_isa_current(&name);
    tap_ok(forced == RAPT_OK && current == RAPT_OK && name == other, "%s, forced during the first choice, stays: %s", other,
           name ? name : "none");
    tap_ok(chosen == other, "and is what that choice gives: %s", chosen ? chosen : "none");
}

int main(void) {
    static caller callers[THREADS];
    for (int i = 0; i < LENGTH * CHANNELS; i++) q[i] = (float)(i % 7) - 3.0f, k[i] = (float)(i % 5) - 2.0f, v[i] = (float)i;
    if (!barrier_create(&start, THREADS)) return 1;
    for (int i = 0; i < THREADS; i++) {
        callers[i].o = outputs[i];
        if (!rapt_thread_start(&callers[i].thread, call, &callers[i])) return 1;
    }
    int failed = 0, different = 0;
    for (int i = 0; i < THREADS; i++) {
        rapt_thread_join(callers[i].thread);
        failed += callers[i].status != RAPT_OK;
        different += memcmp(outputs[i], outputs[0], sizeof outputs[0]) != 0;
    }
    tap_ok(failed == 0, "%d of %d first calls failed", failed, THREADS);
    tap_ok(different == 0, "%d of %d results differ", different, THREADS);
    force_during_first_choice();
    return tap_done();
}
