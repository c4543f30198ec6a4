/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as multi-head attention that its test could have drawn, which on two kernels of a class must have the bits of the
 * calls that it stands for, and the same on both; or with some fields of its description or some integers of its arrays changed:
 * it must be refused with nothing written, or have these bits all the same. */
#define main test_main
#include "../api/mha.c" /* NOLINT(bugprone-suspicious-include): whose problems are taken */
#undef main

#include "described.h"
#include "drawn.h"

static kind take_kind(input *in) {
    const int64_t cache = maybe(in, KV_TYPES + 1);
    kind k = {.cache = cache ? kv_types[cache - 1] : 0};
    k.rope_table = maybe(in, 2), k.weights = maybe(in, 2), k.bf16 = maybe(in, 2);
    return k;
}

static void as_drawn(input *in) {
    const char *names[2];
    const kind k = take_kind(in);
    uint64_t h[2] = {0};
    const int count = take_pair(in, names);
    for (int i = 0; i < count; i++) {
        h[i] = hash_start, tunings = 12, packs = 13, defaults = 14;
        draw_from(in);
        require(problem_agrees(names[i], &k, &h[i]), "multi-head attention is not the calls that it stands for");
    }
    require(count == 1 || h[0] == h[1], "two kernels differ");
}

static const field fields[] = {FIELD(rapt_mha_desc, x_width),
                               FIELD(rapt_mha_desc, y_width),
                               FIELD(rapt_mha_desc, z_width),
                               FIELD(rapt_mha_desc, out_width),
                               FIELD(rapt_mha_desc, keys),
                               LAYOUT(rapt_mha_desc, x),
                               LAYOUT(rapt_mha_desc, y),
                               LAYOUT(rapt_mha_desc, z),
                               LAYOUT(rapt_mha_desc, out),
                               LAYOUT(rapt_mha_desc, residual),
                               LAYOUT(rapt_mha_desc, wq),
                               LAYOUT(rapt_mha_desc, wk),
                               LAYOUT(rapt_mha_desc, wv),
                               LAYOUT(rapt_mha_desc, wo),
                               FIELD(rapt_mha_desc, packed),
                               FIELD(rapt_mha_desc, rope.channels),
                               FIELD(rapt_mha_desc, rope.interleaved),
                               FIELD(rapt_mha_desc, rope.offset),
                               FIELD(rapt_mha_desc, position_table),
                               LAYOUT(rapt_mha_desc, weights),
                               FIELD(rapt_mha_desc, arith)};
static const field attention_fields[] = {
    FIELD(rapt_desc, batch),       FIELD(rapt_desc, heads),    FIELD(rapt_desc, kv_heads),    FIELD(rapt_desc, q_len),
    FIELD(rapt_desc, kv_len),      FIELD(rapt_desc, d_k),      FIELD(rapt_desc, d_v),         LAYOUT(rapt_desc, k),
    LAYOUT(rapt_desc, v),          FIELD(rapt_desc, causal),   FIELD(rapt_desc, window_left), FIELD(rapt_desc, page_size),
    FIELD(rapt_desc, unmerged),    FIELD(rapt_desc, kv_first), FIELD(rapt_desc, threads),     FIELD(rapt_desc, arith),
    FIELD(rapt_desc, local_chunk), FIELD(rapt_desc, prefix),   FLOAT_FIELD(rapt_desc, scale), FLOAT_FIELD(rapt_desc, softcap)};

/* A description with other numbers, which must be refused with a line, or have a plan with a workspace of the sum of its parts,
 * which refuses a call without tensors. */
static void with_other_numbers(problem *p, input *in) {
    for (int64_t n = 1 + choose(in, 4); n > 0; n--) {
        if (choose(in, 2)) change_field(&p->desc, FIELDS(fields), in);
        else change_field(&p->attention, FIELDS(attention_fields), in);
    }
    rapt_mha_plan plan;
    char text[256];
    if (p->attention.batch >= 4) p->attention.q_starts = NULL; /* which are of no more entries */
    const rapt_status status = rapt_mha_plan_init(&plan, &p->desc);
    require(rapt_mha_explain(&p->desc, text, sizeof text) == status && !text[0] == (status == RAPT_OK),
            "a refusal and its explanation differ");
    if (status != RAPT_OK) return;
    size_t bytes[3] = {0};
    rapt_status sized = RAPT_OK;
    for (int n = 0; n < 3 && sized == RAPT_OK; n++) sized = rapt_mha_workspace_size(&plan, n + 1, &bytes[n]);
    require(sized == RAPT_OK || sized == RAPT_ERR_SHAPE, "a workspace has no size");
    require(sized != RAPT_OK || bytes[2] - bytes[1] == bytes[1] - bytes[0], "a workspace is not a sum");
    if (p->attention.batch > 1000) return;
    rapt_mha_args args;
    rapt_mha_args_init(&args);
    require(rapt_mha_run(&plan, &args) != RAPT_OK || p->attention.batch == 0 || p->attention.q_len == 0,
            "a call without tensors is accepted");
}

static void change_integers(int32_t *of, int64_t n, input *in) {
    int32_t *const at = &of[choose(in, n)];
    *at = choose(in, 4) ? (int32_t)((uint32_t)*at + take_byte(in) % 9 - 4) : (int32_t)take_number(in);
}

/* Keys, positions and rings elsewhere. Where it is accepted, by hand it is accepted too, with these bits. */
static void with_other_integers(problem *p, input *in) {
    for (int64_t n = 1 + choose(in, 3); n > 0; n--) {
        const int64_t which = choose(in, p->attention.q_starts ? 7 : 3);
        if (which == 0) change_integers(p->starts, p->attention.batch, in);
        if (which == 1) change_integers(p->lengths, p->attention.batch, in);
        if (which == 2) change_integers(p->ring_starts, p->attention.batch, in);
        if (which == 3) change_integers(p->q_starts, p->attention.batch + 1, in);
        if (which >= 4 && p->q_starts[1] > 0)
            p->q_starts[0] = 1 + (int32_t)choose(in, p->q_starts[1]); /* the first are no entry's */
    }
    rapt_mha_plan plan;
    size_t bytes = 0;
    char text[256];
    if (rapt_mha_plan_init(&plan, &p->desc) != RAPT_OK || rapt_mha_workspace_size(&plan, 1, &bytes) != RAPT_OK) return;
    rapt_mha_args args = p->args;
    args.workspace = new_workspace(bytes), args.workspace_bytes = bytes;
    tensor before[] = {copy_of(&p->out), copy_of(&p->k_cache), copy_of(&p->v_cache), copy_of(&p->weights)};
    tensor *const now[] = {&p->out, &p->k_cache, &p->v_cache, &p->weights};
    const rapt_status told = rapt_mha_args_explain(&plan, &args, 1, text, sizeof text);
    require(!text[0] == (told == RAPT_OK), "a refusal without a line");
    require(rapt_mha_run(&plan, &args) == told, "an explanation differs");
    for (int i = 0; i < 4; i++) {
        require(told == RAPT_OK || same_tensor(now[i], &before[i]), "a refused call has written");
        if (before[i].memory) copy_bytes(now[i], &before[i]);
        free_tensor(&before[i]);
    }
    free(args.workspace);
    if (told != RAPT_OK) return;
    tensor k = copy_of(&p->k_cache), v = copy_of(&p->v_cache), out = copy_of(&p->out), weights = copy_of(&p->weights);
    require(by_hand(p, &k, &v, &out, &weights) == RAPT_OK, "refused by hand");
    for (int64_t t = 0; p->attention.q_starts && t < out.tokens; t++) /* by hand there is something of no entry's tokens, too */
        if (t < p->q_starts[0] || t >= p->q_starts[p->attention.batch])
            memcpy(row_at(&out, 0, t), row_at(&p->out, 0, t), (size_t)out.row);
    require(run_problem(p, 2) == RAPT_OK, "refused another time");
    require(same_tensor(&p->out, &out) && same_tensor(&p->k_cache, &k) && same_tensor(&p->v_cache, &v) &&
                same_tensor(&p->weights, &weights),
            "other bits than by hand");
    free_tensor(&k), free_tensor(&v), free_tensor(&out), free_tensor(&weights);
}

static void changed(input *in) {
    problem p;
    const char *names[2];
    const kind k = take_kind(in);
    input changes = {in->bytes + in->size, in->size < 24 ? in->size : 24};
    changes.bytes -= changes.size;
    take_pair(in, names);
    tunings = 12, packs = 13, defaults = 14;
    draw_from(in);
    random_problem(&p, names[0], &k);
    if (choose(&changes, 2)) with_other_numbers(&p, &changes);
    else with_other_integers(&p, &changes);
    free_problem(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    input in = {bytes, size};
    if (choose(&in, 2)) changed(&in);
    else as_drawn(&in);
    return 0;
}
