/* SPDX-License-Identifier: Apache-2.0 */
/* How much of a thread's stack the library touches: every call of calls.c, attention of each type and arithmetic in shapes of all
 * paths, and wide layers, on each kernel that can run here, each on a thread of its own whose stack was painted before. rapt.h
 * promises RAPT_STACK_BYTES at most. */
#define _GNU_SOURCE /* NOLINT(bugprone-reserved-identifier): pthread_attr_setstack */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../cli/aligned.h"
#include "calls.h"
#include "each_kernel.h"
#include "kv_types.h"

enum { STACK = 1 << 20, PAGE = 1 << 12, PAINT = 0xa5 };

static unsigned char *stack;
static size_t own, most; /* what a thread that does nothing touches; the most of all calls above that */
static const char *most_name = "nothing";

static void *nothing(void *arg) { return arg; }

/* Bytes that a thread's function touches, from the stack's end down to the lowest one that has changed. */
static size_t touched(void *(*body)(void *), void *arg) {
    pthread_attr_t attr;
    pthread_t thread;
    memset(stack, PAINT, STACK);
    if (pthread_attr_init(&attr) || pthread_attr_setstack(&attr, stack, STACK) || pthread_create(&thread, &attr, body, arg) ||
        pthread_join(thread, NULL) || pthread_attr_destroy(&attr))
        abort();
    size_t n = 0;
    while (n < STACK && stack[n] == PAINT) n++;
    return STACK - n;
}

static void keep_most(const char *name, void *(*body)(void *), void *arg) {
    const size_t bytes = touched(body, arg) - own;
    if (bytes > most) most = bytes, most_name = name;
}

/* ---- Calls of calls.c
 * ---------------------------------------------------------------------------------------------------------------- */

typedef struct made {
    const call *of;
    int way;
    rapt_status status;
} made;

static void *make_call(void *arg) {
    static char text[256];
    made *m = arg;
    const api *a = m->of->api;
    m->status = a->make_plan ? a->make_plan(text, sizeof text) : RAPT_OK;
    if (m->status == RAPT_OK && a->explain) m->status = a->explain(a->ways[m->way].nth, text, sizeof text);
    if (m->status == RAPT_OK) m->status = a->ways[m->way].run(a->ways[m->way].nth);
    return NULL;
}

static int all_calls(void) {
    int wrong = 0;
    for (int i = 0; i < call_count; i++)
        for (int n = 0; n < 6 && calls[i].api->ways[n].run; n++) {
            made m = {.of = &calls[i], .way = n};
            describe_call(m.of, m.of->api->ways[n].nth);
            unsigned char *const memory = place_anywhere();
            keep_most(m.of->api->ways[n].function, make_call, &m);
            if (m.status != RAPT_OK)
                printf("# %s, %s: %s\n", m.of->api->ways[n].function, m.of->name, rapt_status_string(m.status));
            wrong += m.status != RAPT_OK;
            aligned_destroy(memory);
        }
    forget_call();
    return wrong;
}

/* ---- Attention of all types, and what is wide
 * ------------------------------------------------------------------------------------ */

enum { HEADS = 8, KV_HEADS = 2, QUERIES = 20, KEYS = 520, WIDEST = 1024 }; /* rows of tiles and beside them, two chunks */

typedef struct attended {
    rapt_desc desc;
    rapt_args args;
    rapt_status status;
} attended;

static void *attend(void *arg) {
    attended *a = arg;
    rapt_plan plan;
    a->status = rapt_plan_init(&plan, &a->desc);
    if (a->status == RAPT_OK) a->status = rapt_run(&plan, &a->args);
    return NULL;
}

static int all_attention(const char *isa) {
    static const int64_t shapes[][2] = {{1, 128}, {1, 72}, {2, WIDEST}, {QUERIES, 64}, {QUERIES, 160}};
    int wrong = 0;
    float *q = calloc((size_t)HEADS * QUERIES * WIDEST, sizeof *q), *o = calloc((size_t)HEADS * QUERIES * WIDEST, sizeof *o);
    char *k = calloc((size_t)KV_HEADS * KEYS * WIDEST, sizeof(float));
    if (!q || !o || !k) abort();
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int n = 0; n < KV_TYPES; n++)
            for (int arith = RAPT_EXACT; arith <= RAPT_BF16_DOT; arith++) {
                const int64_t queries = shapes[s][0], d = shapes[s][1];
                const rapt_type type = kv_types[n];
                attended a;
                rapt_desc_init(&a.desc), rapt_args_init(&a.args);
                rapt_plan plan;
                size_t bytes = 0;
                a.desc.heads = HEADS, a.desc.kv_heads = KV_HEADS, a.desc.q_len = queries, a.desc.kv_len = KEYS,
                a.desc.d_k = a.desc.d_v = d;
                a.desc.q = a.desc.o = rapt_layout_bshd(RAPT_F32, HEADS, queries, d);
                a.desc.k = a.desc.v = rapt_layout_bshd(type, KV_HEADS, KEYS, d);
                a.desc.arith = (rapt_arith)arith, a.desc.isa = isa, a.desc.softcap = 1.0f;
                if (rapt_plan_init(&plan, &a.desc) != RAPT_OK) continue; /* not of this type, or not in this arithmetic */
                if (rapt_workspace_size(&plan, 1, &bytes) != RAPT_OK) abort();
                a.args.q = q, a.args.k = a.args.v = k, a.args.o = o, a.args.workspace = aligned_create(64, bytes),
                a.args.workspace_bytes = bytes;
                keep_most(rapt_type_name(type), attend, &a);
                wrong += a.status != RAPT_OK;
                aligned_destroy(a.args.workspace);
            }
    free(q), free(o), free(k);
    return wrong;
}

/* ---- The check of itself
 * ------------------------------------------------------------------------------------------------------------- */

static void *check_self(void *isa) {
    static _Alignas(RAPT_WORKSPACE_ALIGNMENT) char workspace[RAPT_SELF_CHECK_BYTES];
    char text[256];
    if (rapt_self_check_in(workspace, sizeof workspace, isa, text, sizeof text) != RAPT_OK) abort();
    return NULL;
}

static void test_kernel(const char *isa, bool whole) {
    (void)whole;
    most = 0;
    rapt_isa_force(isa);
    int wrong = all_calls() + all_attention(isa);
    keep_most("rapt_self_check_in", check_self, (void *)(uintptr_t)isa);
    rapt_isa_force(NULL);
    tap_ok(wrong == 0 && most <= RAPT_STACK_BYTES, "%s: at most %d bytes of stack: %zu (%s), %d calls refused", isa,
           RAPT_STACK_BYTES, most, most_name, wrong);
}

int main(int argc, char **argv) {
#if !defined(RAPT_OPTIMIZED)
    return tap_skip_all("RAPT_STACK_BYTES holds for builds at -O2 or -O3, without sanitizers");
#endif
    stack = aligned_create(PAGE, STACK);
    if (!stack) abort();
    own = touched(nothing, NULL);
    each_kernel(argc, argv, test_kernel);
    aligned_destroy(stack);
    return tap_done();
}
