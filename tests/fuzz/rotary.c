/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a tensor that is rotated, as the test of rotary embedding could have drawn it, which must become what the plainest
 * code makes of it; or as a good call with some fields and integers changed, which must be refused with nothing written, or give
 * the same bits by one thread and by several, in memory of exactly that size. */
#define main test_main
#include "../api/append.c" /* NOLINT(bugprone-suspicious-include): whose problems are taken */
#undef main

#include "described.h"
#include "drawn.h"

static const field fields[] = {FIELD(rapt_rope_args, batch),         FIELD(rapt_rope_args, heads),
                               FIELD(rapt_rope_args, tokens),        FIELD(rapt_rope_args, d),
                               LAYOUT(rapt_rope_args, in),           LAYOUT(rapt_rope_args, out),
                               FIELD(rapt_rope_args, rope.channels), FIELD(rapt_rope_args, rope.interleaved),
                               FIELD(rapt_rope_args, rope.offset),   FIELD(rapt_rope_args, rope.amplitude)};

static const void *new_integers(call_memory *m, int64_t n, input *in) {
    fence *const f = new_fence(m, n * (int64_t)sizeof(int32_t), in);
    for (int64_t i = 0; i < n; i++) {
        const int32_t number = choose(in, 8) ? (int32_t)choose(in, 8) : (int32_t)take_number(in);
        memcpy(f->data + i * (int64_t)sizeof number, &number, sizeof number);
    }
    fence_protect(f, true);
    return f->data;
}

/* Whether the arrays are such as rapt.h wants them, and all positions in the table. */
static bool is_right(const rapt_rope_args *a) {
    const bool table = a->rope.channels && !a->rope.frequencies;
    for (int64_t b = 0; b < a->batch; b++) {
        if (a->starts && a->starts[b] < 0) return false;
        if (a->lengths && (a->lengths[b] < 0 || a->lengths[b] > a->tokens)) return false;
    }
    for (int64_t b = 0; a->token_starts && b <= a->batch; b++)
        if (a->token_starts[b] < (b ? a->token_starts[b - 1] : 0) || a->token_starts[b] > a->tokens) return false;
    for (int64_t b = 0; b < a->batch && table; b++) {
        const int64_t first = a->token_starts ? a->token_starts[b] : 0;
        const int64_t n = a->token_starts ? a->token_starts[b + 1] - first : a->lengths ? a->lengths[b] : a->tokens;
        for (int64_t i = 0; i < n; i++) {
            int64_t position = (a->starts ? a->starts[b] : 0) + i;
            if (a->positions) position = a->positions[a->token_starts ? first + i : b * a->tokens + i];
            if (position + a->rope.offset < 0 || position + a->rope.offset >= a->rope_table.positions) return false;
        }
    }
    return true;
}

static rapt_rope_args take_call(input *in) {
    static const rapt_type types[] = {RAPT_F32, RAPT_F16, RAPT_BF16};
    rapt_rope_args a;
    rapt_rope_args_init(&a);
    a.batch = 1 + choose(in, 3), a.heads = 1 + choose(in, 4), a.tokens = choose(in, 8), a.d = 1 + choose(in, 70);
    a.in = rapt_layout_bhsd(types[choose(in, 3)], a.heads, a.tokens, a.d);
    a.out = rapt_layout_bshd(types[choose(in, 3)], a.heads, a.tokens, a.d);
    a.rope.channels = 2 * choose(in, a.d / 2 + 1), a.rope.interleaved = (int)choose(in, 2);
    for (int64_t n = choose(in, 4); n > 0; n--) change_field(&a, FIELDS(fields), in);
    return a;
}

/* Memory for it, arrays of any integers among it; false where that would be more than is tried. */
static bool make_call(rapt_rope_args *a, call_memory *m, fence **to, input *in) {
    if (a->batch < 0 || a->batch > 16 || a->heads < 1 || a->heads > 16 || a->tokens < 0 || a->tokens > 64 || a->d < 1 ||
        a->d > RAPT_MAX_HEAD_DIM || a->rope.channels < 0 || a->rope.channels > a->d || !is_float(a->in.type) ||
        !is_float(a->out.type))
        return false;
    const int64_t strides[] = {a->in.batch_stride,  a->in.head_stride,  a->in.token_stride,
                               a->out.batch_stride, a->out.head_stride, a->out.token_stride};
    for (int i = 0; i < 6; i++)
        if (strides[i] < 0 || strides[i] > MOST_BYTES) return false;
    const bool ragged = choose(in, 3) == 0;
    const int64_t entries = ragged ? a->batch > 0 : a->batch, pairs = a->rope.channels / 2;
    if (span_of(&a->in, entries, a->heads, a->tokens, a->d) < 0 || span_of(&a->out, entries, a->heads, a->tokens, a->d) < 0)
        return false;
    if (ragged) a->token_starts = new_integers(m, a->batch + 1, in);
    else if (choose(in, 3) == 0) a->lengths = new_integers(m, a->batch, in);
    if (choose(in, 2)) a->starts = new_integers(m, a->batch, in);
    if (pairs && choose(in, 2)) a->positions = new_integers(m, ragged ? a->tokens : a->batch * a->tokens, in);
    a->from = new_input(m, &a->in, entries, a->heads, a->tokens, a->d, in);
    *to = new_fence(m, span_of(&a->out, entries, a->heads, a->tokens, a->d), in);
    a->to = (*to)->data;
    if (choose(in, 2)) {
        const rapt_layout table = {.type = (rapt_type)(RAPT_F32 + choose(in, 3)), .token_stride = 0};
        const int64_t positions = choose(in, 20);
        rapt_layout rows = table;
        rows.token_stride = pairs * reference_type_bytes(table.type);
        a->rope_table = (rapt_rope_table){table.type, new_input(m, &rows, 1, 1, positions, pairs, in),
                                          new_input(m, &rows, 1, 1, positions, pairs, in), positions, 0};
        if (!pairs) a->rope_table = (rapt_rope_table){.type = RAPT_NONE};
    } else {
        fence *const f = new_fence(m, pairs * (int64_t)sizeof(double), in);
        for (int64_t i = 0; i < pairs; i++) ((double *)(void *)f->data)[i] = 16.0 / (double)(i + 1);
        a->rope.frequencies = (const double *)(const void *)f->data;
    }
    return true;
}

static void as_described(input *in) {
    const rapt_rope_args given = take_call(in);
    call_memory m[2] = {{.count = 0}, {.count = 0}};
    fence *to[2] = {NULL, NULL};
    rapt_status status[2] = {RAPT_OK, RAPT_OK};
    for (int i = 0; i < 2; i++) {
        const int64_t nth = i ? 4 : 1;
        rapt_rope_args a = given;
        input of_call = *in;
        char text[256];
        if (!make_call(&a, &m[i], &to[i], &of_call)) {
            const rapt_status told = rapt_rope_explain(&a, text, sizeof text);
            require(!text[0] == (told == RAPT_OK), "a refusal without a line");
            break;
        }
        for (int64_t ith = 0; ith < nth && status[i] == RAPT_OK; ith++) status[i] = rapt_rope_run_share(&a, ith, nth);
        require(rapt_rope_explain(&a, text, sizeof text) == status[i], "an explanation differs");
        require(status[i] == RAPT_OK || fence_intact(to[i]), "a refused call has written");
        require(fence_slack_intact(to[i]), "written beyond the tensor");
        require(status[i] != RAPT_OK || is_right(&a), "an array that is wrong is accepted");
        require(status[i] != RAPT_ERR_TABLE || !is_right(&a), "arrays that are right are refused");
    }
    if (to[0] && to[1])
        require(status[0] == status[1] && !memcmp(to[0]->data, to[1]->data, to[0]->bytes), "several threads write other bits");
    free_memory(&m[0]), free_memory(&m[1]);
}

static void as_drawn(input *in) {
    uint64_t h = hash_start;
    draw_from(in);
    require(rope_agrees(&h), "a rotated tensor is not what the model says");
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    input in = {bytes, size};
    if (choose(&in, 2)) as_described(&in);
    else as_drawn(&in);
    return 0;
}
