/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a linear layer that the test of linear layers could have drawn, which two kernels of a class must compute as
 * docs/order.md says, within the bound of the double reference; or as a good description and call with some fields changed, which
 * must be refused with nothing written, or give the same bits by two kernels, prepacked or not, in memory of exactly that size.
 */
#define main test_main
#include "../api/linear.c" /* NOLINT(bugprone-suspicious-include): whose problems are taken */
#undef main

#include "described.h"
#include "drawn.h"

static void as_drawn(input *in) {
    static bool (*const problems[])(const char *isa, uint64_t *h) = {linear_problem, gated_problem, bf16_problem, integer_problem,
                                                                     block_problem};
    const char *names[2];
    const int64_t which = choose(in, 5);
    uint64_t h[2] = {0};
    const int count = take_pair(in, names);
    for (int i = 0; i < count; i++) {
        fused = !strcmp(rapt_isa_rounding(names[i]), "fused");
        h[i] = hash_start, tunings = 11;
        draw_from(in);
        require(problems[which](names[i], &h[i]), "a linear layer is not as docs/order.md says");
    }
    require(count == 1 || h[0] == h[1], "two kernels differ");
}

static const field fields[] = {
    FIELD(rapt_linear_desc, batch),     FIELD(rapt_linear_desc, tokens),  FIELD(rapt_linear_desc, in),
    FIELD(rapt_linear_desc, out),       LAYOUT(rapt_linear_desc, x),      LAYOUT(rapt_linear_desc, y),
    LAYOUT(rapt_linear_desc, residual), LAYOUT(rapt_linear_desc, weight), FIELD(rapt_linear_desc, activation),
    LAYOUT(rapt_linear_desc, gate),     FIELD(rapt_linear_desc, arith)};

static rapt_linear_desc take_description(input *in) {
    static const rapt_type types[] = {RAPT_F32, RAPT_F16, RAPT_BF16},
                           weight_types[] = {RAPT_F32,  RAPT_F16,  RAPT_BF16, RAPT_INT8, RAPT_Q8_0,
                                             RAPT_Q4_0, RAPT_Q4_1, RAPT_Q4_K, RAPT_Q6_K};
    rapt_linear_desc d;
    rapt_linear_desc_init(&d);
    d.batch = 1 + choose(in, 3), d.tokens = choose(in, 40);
    d.in = choose(in, 2) ? 32 * (1 + choose(in, 8)) : 1 + choose(in, 70), d.out = 1 + choose(in, 40);
    d.activation = (rapt_activation)choose(in, 5), d.arith = (rapt_arith)choose(in, 3);
    d.x = rapt_layout_bshd(types[choose(in, 3)], 1, d.tokens, d.in);
    d.y = rapt_layout_bshd(types[choose(in, 3)], 1, d.tokens, d.out);
    const int64_t least = d.arith == RAPT_INT8_DOT ? 3 : 0, blocks = d.in % 256 == 0 ? 2 : 0,
                  types_of_width = (d.in % 32 ? 4 : 7) + blocks - least;
    const rapt_type weight = weight_types[least + choose(in, types_of_width)],
                    gate = weight_types[least + choose(in, types_of_width)];
    d.weight = rapt_layout_bshd(weight, 1, d.out, d.in);
    if (maybe(in, 2)) d.gate = rapt_layout_bshd(gate, 1, d.out, d.in);
    if (maybe(in, 2)) d.residual = rapt_layout_bshd(types[choose(in, 3)], 1, d.tokens, d.out);
    for (int64_t n = choose(in, 5); n > 0; n--) change_field(&d, FIELDS(fields), in);
    return d;
}

/* Memory for all of it, and a call; false where that would be more than is tried. Of rows, head_stride and that of weights' batch
 * are not used. */
static bool make_call(const rapt_linear_desc *d, const rapt_linear_plan *plan, call_memory *m, rapt_linear_args *a, fence **y,
                      input *in) {
    const int64_t sizes[] = {d->batch, d->tokens, d->in, d->out};
    double work = 1;
    for (int i = 0; i < 4; i++) work *= sizes[i] ? (double)sizes[i] : 1;
    size_t room = 0, prepacked = 0;
    rapt_layout weight = d->weight, gate = d->gate;
    weight.batch_stride = gate.batch_stride = 0;
    if (work > 1 << 21 || span_of(&d->x, d->batch, 1, d->tokens, d->in) < 0 ||
        span_of(&d->y, d->batch, 1, d->tokens, d->out) < 0 || span_of(&weight, 1, 1, d->out, d->in) < 0 ||
        (gate.type && span_of(&gate, 1, 1, d->out, d->in) < 0) ||
        (d->residual.type && span_of(&d->residual, d->batch, 1, d->tokens, d->out) < 0))
        return false;
    require(rapt_linear_workspace_size(plan, 1, &room) == RAPT_OK, "a workspace has no size");
    require(rapt_linear_prepacked_size(plan, &prepacked) == RAPT_OK, "prepacked weights have no size");
    if (room > 1 << 24 || prepacked > 1 << 24) return false;
    rapt_linear_args_init(a);
    a->x = new_input(m, &d->x, d->batch, 1, d->tokens, d->in, in);
    a->weight = new_input(m, &weight, 1, 1, d->out, d->in, in);
    if (choose(in, 2)) a->bias = new_numbers(m, d->out, in);
    if (weight.type == RAPT_INT8 || choose(in, 2)) a->scales = new_numbers(m, d->out, in);
    if (d->residual.type) a->residual = new_input(m, &d->residual, d->batch, 1, d->tokens, d->out, in);
    if (gate.type) a->gate = new_input(m, &gate, 1, 1, d->out, d->in, in);
    if (gate.type && choose(in, 2)) a->gate_bias = new_numbers(m, d->out, in);
    if (gate.type == RAPT_INT8 || (gate.type && choose(in, 2))) a->gate_scales = new_numbers(m, d->out, in);
    *y = new_fence(m, span_of(&d->y, d->batch, 1, d->tokens, d->out), in);
    a->y = (*y)->data;
    a->workspace = new_fence(m, (int64_t)(room + 63) / 64 * 64, in)->data, a->workspace_bytes = room;
    if (choose(in, 2)) return true;
    rapt_linear_prepack_args p;
    rapt_linear_prepack_args_init(&p);
    p.weight = a->weight, p.gate = a->gate, p.prepacked_bytes = prepacked;
    p.prepacked = new_fence(m, (int64_t)(prepacked + 63) / 64 * 64, in)->data;
    if (gate.type) p.gate_prepacked = new_fence(m, (int64_t)(prepacked + 63) / 64 * 64, in)->data;
    require(rapt_linear_prepack_run(plan, &p) == RAPT_OK, "good weights are not prepacked");
    a->prepacked = p.prepacked, a->gate_prepacked = p.gate_prepacked;
    return true;
}

/* One thing is wrong with it; false where there is nothing that could be. */
static bool spoil(const rapt_linear_desc *d, rapt_linear_args *a, input *in) {
    if (d->batch == 0 || d->tokens == 0) return false;
    switch (choose(in, 10)) {
    case 0:
        a->x = NULL;
        return true;
    case 1:
        a->weight = NULL;
        return true;
    case 2:
        a->y = NULL;
        return true;
    case 3:
        a->bias = (const float *)(const void *)((const char *)a->workspace + 1);
        return true;
    case 4:
        return a->workspace_bytes-- > 0;
    case 5:
        a->residual = d->residual.type ? NULL : a->x;
        return true;
    case 6:
        a->gate = d->gate.type ? NULL : a->weight;
        return true;
    case 7:
        a->scales = NULL;
        return d->weight.type == RAPT_INT8;
    case 8:
        a->gate_scales = NULL;
        return d->gate.type == RAPT_INT8;
    default:
        a->gate_bias = d->gate.type ? (const float *)(const void *)((const char *)a->workspace + 2) : (const float *)a->workspace;
        return true;
    }
}

static void as_described(input *in) {
    const rapt_linear_desc given = take_description(in);
    const char *names[2];
    float *got[2] = {NULL, NULL};
    const int count = take_pair(in, names);
    int64_t n = 0;
    for (int i = 0; i < count; i++) {
        rapt_linear_desc d = given;
        rapt_linear_plan plan;
        char text[256];
        d.isa = names[i];
        const rapt_status status = rapt_linear_plan_init(&plan, &d);
        require(rapt_linear_explain(&d, text, sizeof text) == status && !text[0] == (status == RAPT_OK),
                "a refusal and its explanation differ");
        if (status != RAPT_OK) break;
        require(d.batch >= 0 && d.tokens >= 0 && d.in > 0 && d.in <= RAPT_MAX_WIDTH && d.out > 0 && d.out <= RAPT_MAX_WIDTH,
                "a bad size was accepted");
        call_memory m = {.count = 0};
        fence *y;
        input of_call = *in;
        rapt_linear_args a;
        if (!make_call(&d, &plan, &m, &a, &y, &of_call)) break;
        rapt_linear_args bad = a;
        if (spoil(&d, &bad, &of_call)) {
            const rapt_status refused = rapt_linear_run(&plan, &bad);
            require(refused != RAPT_OK && fence_intact(y), "a bad call is accepted, or has written");
            require(rapt_linear_args_explain(&plan, &bad, 1, text, sizeof text) == refused && text[0], "no explanation");
        }
        require(rapt_linear_run(&plan, &a) == RAPT_OK, "a good call is refused");
        n = d.batch * d.tokens * d.out;
        got[i] = new_floats(n);
        gather_rows(y, &d.y, d.batch, 1, d.tokens, d.out, got[i]);
        require(fence_intact(y), "written between the rows, or around them");
        free_memory(&m);
    }
    require(!got[0] || !got[1] || same_floats(got[0], got[1], n), "two kernels differ");
    free(got[0]), free(got[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    input in = {bytes, size};
    if (choose(&in, 2)) as_described(&in);
    else as_drawn(&in);
    return 0;
}
