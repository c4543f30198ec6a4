/* SPDX-License-Identifier: Apache-2.0 */
/* A decoder's loop: three sequences in one paged cache of f16, rotary embedding, threads of our own. The first step takes the
 * prompts as a ragged batch, each later one a token of every sequence. Q, K and V, a model's projections, are made up. */
#define _POSIX_C_SOURCE 200809L /* barriers */
#include <math.h>
#include <pthread.h>
#include <rapt.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 3, HEADS = 8, KV_HEADS = 2, D = 64, PAGE = 16, PAGES = 12, KEYS = 64, NEW = 24, STEPS = 30, THREADS = 3 };

static const int32_t prompts[BATCH] = {11, 1, 7};
static float q[NEW * HEADS * D], new_k[NEW * KV_HEADS * D], new_v[NEW * KV_HEADS * D], o[NEW * HEADS * D];
static uint16_t k[PAGES * KV_HEADS * PAGE * D], v[PAGES * KV_HEADS * PAGE * D]; /* the cache, of pages */
static int32_t table[BATCH][KEYS / PAGE], used_pages;
static int32_t q_starts[BATCH + 1], keys[BATCH]; /* where a sequence's new tokens begin; the keys that it had before the step */
static double frequencies[D / 2];
static _Alignas(RAPT_WORKSPACE_ALIGNMENT) char workspace[1 << 20];
static rapt_decode_plan plan;
static rapt_decode_args args;
static pthread_barrier_t barrier;

static void wait_for_all(void *of) { pthread_barrier_wait(of); }
static void check(rapt_status status) {
    if (status == RAPT_OK) return;
    fprintf(stderr, "decode: %s\n", rapt_status_string(status));
    exit(1);
}

/* What a step needs: its new tokens, pages for them, and a plan. */
static void prepare(int step) {
    for (int b = 0; b < BATCH; b++) {
        q_starts[b + 1] = q_starts[b] + (step ? 1 : prompts[b]);
        for (int32_t key = keys[b]; key < keys[b] + q_starts[b + 1] - q_starts[b]; key++)
            if (key % PAGE == 0) table[b][key / PAGE] = used_pages++;
    }
    const int n = q_starts[BATCH];
    for (int i = 0; i < n * HEADS * D; i++) q[i] = sinf(0.37f * (float)(i + 7 * step));
    for (int i = 0; i < n * KV_HEADS * D; i++) new_k[i] = cosf(0.1f * (float)(i + step)), new_v[i] = sinf(0.05f * (float)i);
    rapt_desc a;
    rapt_decode_desc d;
    rapt_desc_init(&a), rapt_decode_desc_init(&d);
    a.batch = BATCH, a.heads = HEADS, a.kv_heads = KV_HEADS, a.q_len = n, a.q_starts = q_starts, a.kv_len = KEYS,
    a.d_k = a.d_v = D;
    a.q = a.o = rapt_layout_bshd(RAPT_F32, HEADS, n, D), a.causal = RAPT_CAUSAL_BOTTOM_RIGHT, a.threads = THREADS;
    a.k = a.v = rapt_layout_bhsd(RAPT_F16, KV_HEADS, PAGE, D), a.page_size = PAGE, a.pages = PAGES;
    a.table = (rapt_layout){.type = RAPT_I32, .batch_stride = sizeof table[0]};
    d.attention = &a, d.new_k = d.new_v = rapt_layout_bshd(RAPT_F32, KV_HEADS, n, D);
    d.rope.channels = D, d.rope.frequencies = frequencies;
    check(rapt_decode_plan_init(&plan, &d));
}

/* A thread's share of every step; thread 0 prepares the next one while the others wait. */
static void *serve(void *number) {
    const int ith = *(int *)number;
    for (int step = 0; step < STEPS; step++) {
        if (ith == 0) prepare(step);
        wait_for_all(&barrier);
        check(rapt_decode_run_share(&plan, &args, ith, THREADS, wait_for_all, &barrier));
        wait_for_all(&barrier);
        for (int b = 0; b < BATCH && ith == 0; b++) keys[b] += q_starts[b + 1] - q_starts[b];
    }
    return NULL;
}

int main(void) {
    static rapt_args a;
    rapt_args_init(&a), rapt_decode_args_init(&args), check(rapt_rope_frequencies(10000.0, D, frequencies));
    a.q = q, a.o = o, a.table = table[0], args.attention = &a, args.starts = keys, args.new_k = new_k, args.new_v = new_v;
    args.k = k, args.v = v, args.workspace = workspace, args.workspace_bytes = sizeof workspace;
    pthread_t threads[THREADS];
    int ith[THREADS];
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) ith[i] = i, pthread_create(&threads[i], NULL, serve, &ith[i]);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int b = 0; b < BATCH; b++) printf("sequence %d: %d keys, %.6f\n", b, (int)keys[b], (double)o[(size_t)b * HEADS * D]);
}
