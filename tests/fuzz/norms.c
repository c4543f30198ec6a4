/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a normalisation that the test of them could have drawn, which two kernels of a class must compute as docs/order.md
 * says, within the bound of the double reference; or as a good call with some fields changed, which must be refused with nothing
 * written, or give the same bits by two kernels, in memory of exactly that size. */
#define main test_main
#include "../api/norm.c" /* NOLINT(bugprone-suspicious-include): whose problems are taken */
#undef main

#include "described.h"
#include "drawn.h"

static void as_drawn(input *in) {
    const char *names[2];
    const bool sums = choose(in, 2);
    uint64_t h[2] = {0};
    const int count = take_pair(in, names);
    for (int i = 0; i < count; i++) {
        fused = !strcmp(rapt_isa_rounding(names[i]), "fused");
        h[i] = hash_start;
        draw_from(in);
        require((sums ? sum_problem : plain_problem)(names[i], &h[i]), "a normalisation is not as docs/order.md says");
    }
    require(count == 1 || h[0] == h[1], "two kernels differ");
}

static const field fields[] = {FIELD(rapt_norm_args, batch),
                               FIELD(rapt_norm_args, tokens),
                               FIELD(rapt_norm_args, channels),
                               LAYOUT(rapt_norm_args, x),
                               LAYOUT(rapt_norm_args, y),
                               LAYOUT(rapt_norm_args, residual),
                               FLOAT_FIELD(rapt_norm_args, epsilon),
                               LAYOUT(rapt_norm_args, sum)};

static rapt_norm_args take_description(input *in) {
    static const rapt_type types[] = {RAPT_F32, RAPT_F16, RAPT_BF16};
    rapt_norm_args a;
    rapt_norm_args_init(&a);
    a.batch = 1 + choose(in, 3), a.tokens = choose(in, 6), a.channels = 1 + choose(in, 600);
    a.x = rapt_layout_bshd(types[choose(in, 3)], 1, a.tokens, a.channels);
    a.y = rapt_layout_bshd(types[choose(in, 3)], 1, a.tokens, a.channels);
    if (maybe(in, 2)) a.residual = rapt_layout_bshd(types[choose(in, 3)], 1, a.tokens, a.channels);
    if (maybe(in, 2)) a.sum = rapt_layout_bshd(types[choose(in, 3)], 1, a.tokens, a.channels);
    for (int64_t n = choose(in, 5); n > 0; n--) change_field(&a, FIELDS(fields), in);
    return a;
}

enum { Y, SUM, MEAN, INVERSE, OUTPUTS };

typedef struct outputs {
    fence *at[OUTPUTS];
    rapt_layout layout[OUTPUTS];
    int64_t channels[OUTPUTS];
} outputs;

static bool intact(const outputs *o) {
    for (int i = 0; i < OUTPUTS; i++)
        if (o->at[i] && !fence_intact(o->at[i])) return false;
    return true;
}

/* Sizes that are tried and that could be accepted: others are seen to be refused, with any memory. */
static bool is_small(const rapt_norm_args *a) {
    const rapt_layout *const rows[] = {&a->x, &a->y, &a->residual, &a->sum};
    if (a->batch < 0 || a->batch > 64 || a->tokens < 0 || a->tokens > 64 || a->channels < 1 || a->channels > 4096) return false;
    for (int i = 0; i < 4; i++) {
        const bool is_float_type = is_float(rows[i]->type), none = i > 1 && rows[i]->type == RAPT_NONE;
        if (!is_float_type && !none) return false;
        if (a->batch > 1 && (rows[i]->batch_stride < 0 || rows[i]->batch_stride > MOST_BYTES / 64)) return false;
        if (a->tokens > 1 && (rows[i]->token_stride < 0 || rows[i]->token_stride > MOST_BYTES / 64)) return false;
    }
    return true;
}

static void make_output(outputs *o, int which, call_memory *m, const rapt_layout *l, const rapt_norm_args *a, int64_t channels,
                        input *in) {
    o->layout[which] = *l, o->channels[which] = channels;
    o->at[which] = new_fence(m, span_of(l, a->batch, 1, a->tokens, channels), in);
}

static void make_call(rapt_norm_args *a, bool rms, call_memory *m, outputs *o, input *in) {
    const rapt_layout dense = rapt_layout_bshd(RAPT_F32, 1, a->tokens, 1);
    a->from = new_input(m, &a->x, a->batch, 1, a->tokens, a->channels, in);
    if (choose(in, 2)) a->weight = new_numbers(m, a->channels, in);
    if (choose(in, 2)) a->bias = new_numbers(m, a->channels, in);
    if (a->residual.type) a->residual_from = new_input(m, &a->residual, a->batch, 1, a->tokens, a->channels, in);
    make_output(o, Y, m, &a->y, a, a->channels, in);
    a->to = o->at[Y]->data;
    if (a->sum.type) make_output(o, SUM, m, &a->sum, a, a->channels, in), a->sum_to = o->at[SUM]->data;
    if (!rms && choose(in, 2)) make_output(o, MEAN, m, &dense, a, 1, in), a->mean = (float *)(void *)o->at[MEAN]->data;
    if (choose(in, 2)) make_output(o, INVERSE, m, &dense, a, 1, in), a->inverse_deviation = (float *)(void *)o->at[INVERSE]->data;
}

/* Run in shares, and what came out; null where it was refused. */
static float *run_and_gather(const rapt_norm_args *a, bool rms, outputs *o, int64_t nth, int64_t *n) {
    rapt_status status = RAPT_OK;
    for (int64_t ith = nth - 1; ith >= 0 && status == RAPT_OK; ith--)
        status = (rms ? rapt_rms_norm_run_share : rapt_layer_norm_run_share)(a, ith, nth);
    char text[256] = "?";
    require((rms ? rapt_rms_norm_explain : rapt_layer_norm_explain)(a, text, sizeof text) == status, "an explanation differs");
    require(!text[0] == (status == RAPT_OK), "a refusal without a line");
    if (status != RAPT_OK) {
        require(intact(o), "a refused call has written");
        return NULL;
    }
    *n = 0;
    float *got = new_floats(a->batch * a->tokens * (2 * a->channels + 2));
    for (int i = 0; i < OUTPUTS; i++) {
        if (!o->at[i]) continue;
        gather_rows(o->at[i], &o->layout[i], a->batch, 1, a->tokens, o->channels[i], got + *n);
        *n += a->batch * a->tokens * o->channels[i];
    }
    require(intact(o), "written between the rows, or around them");
    return got;
}

/* With weights at an odd address it is refused. */
static void require_aligned(const rapt_norm_args *a, bool rms, const outputs *o) {
    rapt_norm_args bad = *a;
    bad.weight = (const float *)(((uintptr_t)a->from) | 1);
    require((rms ? rapt_rms_norm_run : rapt_layer_norm_run)(&bad) != RAPT_OK && intact(o), "weights at an odd address");
}

static void as_described(input *in) {
    const rapt_norm_args given = take_description(in);
    const bool rms = choose(in, 2), small = is_small(&given);
    const char *names[2];
    float *got[2] = {NULL, NULL};
    int64_t n[2] = {0};
    const int count = take_pair(in, names);
    for (int i = 0; i < count; i++) {
        call_memory m = {.count = 0};
        outputs o = {{NULL}, {{0}}, {0}};
        rapt_norm_args a = given;
        input of_call = *in;
        a.isa = names[i];
        if (!small) { /* there is no memory for it: it may be refused */
            char text[256] = "?";
            const rapt_status status = (rms ? rapt_rms_norm_explain : rapt_layer_norm_explain)(&a, text, sizeof text);
            require(!text[0] == (status == RAPT_OK), "a refusal without a line");
            return;
        }
        make_call(&a, rms, &m, &o, &of_call);
        require_aligned(&a, rms, &o);
        got[i] = run_and_gather(&a, rms, &o, 1 + choose(&of_call, 5), &n[i]);
        free_memory(&m);
    }
    if (got[0] && got[1]) require(n[0] == n[1] && same_floats(got[0], got[1], n[0]), "two kernels differ");
    free(got[0]), free(got[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    input in = {bytes, size};
    if (choose(&in, 2)) as_described(&in);
    else as_drawn(&in);
    return 0;
}
