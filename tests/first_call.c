/* SPDX-License-Identifier: Apache-2.0 */
/* The first calls come from 64 threads at once, released by a barrier: dispatch is lock-free and idempotent. Meant for gcc's
 * ThreadSanitizer; each thread checks its own result. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <string.h>

#include "rapt.h"
#include "tap.h"

enum { THREADS = 64, LENGTH = 5, CHANNELS = 9 };

static pthread_barrier_t start;
static float q[LENGTH * CHANNELS], k[LENGTH * CHANNELS], v[LENGTH * CHANNELS], outputs[THREADS][LENGTH * CHANNELS];

typedef struct caller {
    pthread_t thread;
    float *o;
    rapt_status status;
} caller;

static void *call(void *arg) {
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
    pthread_barrier_wait(&start);
    rapt_plan plan;
    c->status = rapt_plan_init(&plan, &desc);
    if (c->status == RAPT_OK) c->status = rapt_run(&plan, &args);
    return NULL;
}

int main(void) {
    static caller callers[THREADS];
    for (int i = 0; i < LENGTH * CHANNELS; i++) q[i] = (float)(i % 7) - 3.0f, k[i] = (float)(i % 5) - 2.0f, v[i] = (float)i;
    pthread_barrier_init(&start, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) {
        callers[i].o = outputs[i];
        if (pthread_create(&callers[i].thread, NULL, call, &callers[i])) return 1;
    }
    int failed = 0, different = 0;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(callers[i].thread, NULL);
        failed += callers[i].status != RAPT_OK;
        different += memcmp(outputs[i], outputs[0], sizeof outputs[0]) != 0;
    }
    tap_ok(failed == 0, "%d of %d first calls failed", failed, THREADS);
    tap_ok(different == 0, "%d of %d results differ", different, THREADS);
    return tap_done();
}
