/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles are configured for no longer than a task: attention and linear layers in every arithmetic leave none, and the caller's
 * function of logits finds none. The kernel amx_emulated tells, whose tiles cannot be used where they are not configured. */
#include "amx_tiles.h"
#include "tap.h"
#include "rapt_layer.h"

enum { MOST_ROWS = 40, KEYS = 600, CHANNELS = 64 };

static _Alignas(RAPT_WORKSPACE_ALIGNMENT) char workspace[1 << 20];
static const char *const ariths[] = {"exact", "integer", "bf16"};
static const int64_t few_and_many[] = {1, MOST_ROWS};

typedef struct sight {
    int calls, configured;
} sight;

static void look(void *arg, const rapt_logits *logits) {
    sight *s = arg;
    (void)logits;
    s->calls++, s->configured += emulated_configured();
}

static void attend(rapt_arith arith, int64_t queries) {
    static float q[MOST_ROWS * CHANNELS], o[MOST_ROWS * CHANNELS], keys[KEYS * CHANNELS];
    const rapt_type type = arith == RAPT_INT8_DOT ? RAPT_INT8 : RAPT_F32;
    rapt_desc d;
    rapt_desc_init(&d);
    d.heads = d.kv_heads = 1, d.q_len = queries, d.kv_len = KEYS, d.d_k = d.d_v = CHANNELS;
    d.q = d.o = rapt_layout_bhsd(RAPT_F32, 1, queries, CHANNELS), d.k = d.v = rapt_layout_bhsd(type, 1, KEYS, CHANNELS);
    d.arith = arith, d.isa = "amx_emulated";
    for (int asked = 0; asked < 2; asked++) {
        sight seen = {0, 0};
        rapt_plan plan;
        rapt_args a;
        rapt_args_init(&a);
        a.q = q, a.k = a.v = keys, a.o = o, a.workspace = workspace, a.workspace_bytes = sizeof workspace;
        if (asked) d.logits_body = look, a.logits_arg = &seen;
        rapt_status status = rapt_plan_init(&plan, &d);
        if (status == RAPT_OK) status = rapt_run(&plan, &a);
        tap_ok(status == RAPT_OK && !emulated_configured() && seen.configured == 0 && !seen.calls == !asked,
               "attention of %d queries in %s arithmetic%s: %s", (int)queries, ariths[arith],
               asked ? ", with a function of logits" : "", rapt_status_string(status));
    }
}

static void map(rapt_arith arith, int64_t tokens) {
    static float x[MOST_ROWS * CHANNELS], y[MOST_ROWS * CHANNELS], weight[CHANNELS * CHANNELS];
    rapt_linear_desc d;
    rapt_linear_plan plan;
    rapt_linear_args a;
    rapt_linear_desc_init(&d), rapt_linear_args_init(&a);
    d.tokens = tokens, d.in = d.out = CHANNELS;
    d.x = d.y = rapt_layout_bshd(RAPT_F32, 1, tokens, CHANNELS), d.weight = rapt_layout_bshd(RAPT_F32, 1, CHANNELS, CHANNELS);
    d.arith = arith, d.isa = "amx_emulated";
    a.x = x, a.y = y, a.weight = weight, a.workspace = workspace, a.workspace_bytes = sizeof workspace;
    rapt_status status = rapt_linear_plan_init(&plan, &d);
    if (status == RAPT_OK) status = rapt_linear_run(&plan, &a);
    tap_ok(status == RAPT_OK && !emulated_configured(), "a linear layer of %d tokens in %s arithmetic: %s", (int)tokens,
           ariths[arith], rapt_status_string(status));
}

int main(void) {
    for (int n = 0; n < 2; n++) {
        attend(RAPT_EXACT, few_and_many[n]);
        attend(RAPT_INT8_DOT, few_and_many[n]);
        attend(RAPT_BF16_DOT, few_and_many[n]);
        map(RAPT_EXACT, few_and_many[n]);
        map(RAPT_BF16_DOT, few_and_many[n]);
    }
    return tap_done();
}
