/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary embedding of a tensor. */
#include "cache/rope.h"

#include "core/float_modes.h"
#include "cache/rotate.h"
#include "cache/rows.h"
#include "core/structs.h"
#include "core/work.h"

static const rapt_rope_args default_rope_args = {.batch = 1, .rope.amplitude = 1.0};

void rapt_rope_args_init_sized(rapt_rope_args *args, size_t size) {
    rapt_init_struct(args, size, &default_rope_args, sizeof default_rope_args);
}

static rapt_status rope_check_shape(rapt_report *r, const rapt_rope_args *a) {
    if (!rapt_within(a->batch, 0, RAPT_MAX_LENGTH))
        return rapt_refuse_number(r, RAPT_ERR_SHAPE, "batch", a->batch, "must be 0 to 2147483647");
    if (!rapt_within(a->heads, 1, RAPT_MAX_LENGTH))
        return rapt_refuse_number(r, RAPT_ERR_SHAPE, "heads", a->heads, "must be 1 to 2147483647");
    if (!rapt_within(a->tokens, 0, RAPT_MAX_LENGTH))
        return rapt_refuse_number(r, RAPT_ERR_SHAPE, "tokens", a->tokens, "must be 0 to 2147483647");
    if (!rapt_within(a->d, 1, RAPT_MAX_HEAD_DIM)) return rapt_refuse_number(r, RAPT_ERR_SHAPE, "d", a->d, "must be 1 to 1024");
    return rapt_check_rope(r, &a->rope, a->d);
}

/* Reads the caller's struct into c, and checks all of the call. */
static rapt_status read_rope(rapt_report *r, rapt_rope_call *c, const rapt_rope_args *args) {
    rapt_rope_args *a = &c->args;
    rapt_status status =
        rapt_read_struct(r, "args", a, &default_rope_args, sizeof *a, RAPT_BEFORE(rapt_rope_args, rope_table), args);
    if (status == RAPT_OK) status = rope_check_shape(r, a);
    if (status != RAPT_OK) return status;
    c->tokens = (rapt_tokens){.batch = a->batch,
                              .tokens = a->tokens,
                              .starts = a->starts,
                              .lengths = a->lengths,
                              .token_starts = a->token_starts,
                              .positions = a->positions};
    rapt_memory m;
    uint64_t in_bytes = 0, out_bytes = 0;
    rapt_memory_begin(&m, r);
    rapt_register_tokens(&m, &c->tokens);
    rapt_register_positions(&m, &a->rope, &c->tokens);
    if (m.status == RAPT_OK) m.status = rapt_check_tokens(r, &c->tokens);
    if (m.status == RAPT_OK) m.status = rapt_measure_heads(r, "in", &c->tokens, &a->in, a->heads, a->d, false, &in_bytes);
    if (m.status == RAPT_OK) m.status = rapt_measure_heads(r, "out", &c->tokens, &a->out, a->heads, a->d, true, &out_bytes);
    int in = rapt_reads(&m, "from", a->from, in_bytes), out = rapt_writes(&m, "to", a->to, out_bytes);
    if (rapt_same_layout(&a->in, &a->out)) rapt_may_be(&m, in, out);
    rapt_register_rope(&m, &a->rope, &a->rope_table);
    status = rapt_check_memory(&m);
    return status == RAPT_OK ? rapt_check_positions(r, &a->rope, &a->rope_table, &c->tokens) : status;
}

rapt_status rapt_rope_explain(const rapt_rope_args *args, char *text, size_t bytes) {
    rapt_report r = rapt_explanation_of("rapt_rope_run", text, bytes);
    rapt_rope_call c;
    const rapt_status status = read_rope(&r, &c, args);
    return status == RAPT_OK ? rapt_check_floats(&r) : status;
}

void rapt_rope_share(const rapt_rope_call *c, int64_t ith, int64_t nth) {
    const rapt_rope_args *a = &c->args;
    rapt_angles angles;
    rapt_cursor at;
    int64_t rows = rapt_share_of_rows(&c->tokens, a->heads, ith, nth, &at);
    for (int64_t n = 0; n < rows; n++, at = rapt_next_row(&c->tokens, a->heads, at)) {
        if (a->rope.channels && (n == 0 || at.head == 0))
            rapt_find_angles(&a->rope, &a->rope_table, rapt_position_of(&c->tokens, at.b, at.i), &angles);
        float row[RAPT_MAX_HEAD_DIM];
        rapt_load_row(a->in.type, row, (const char *)a->from + rapt_offset_of(&c->tokens, &a->in, at), a->d);
        if (a->rope.channels) rapt_rotate(&a->rope, &angles, row);
        rapt_store_row(a->out.type, (char *)a->to + rapt_offset_of(&c->tokens, &a->out, at), row, a->d);
    }
}

static void rope_share(const void *call, int phase, int64_t ith, int64_t nth, atomic_llong *next) {
    (void)phase, (void)next;
    rapt_rope_share(call, ith, nth);
}

static rapt_status rope_run(const char *name, const rapt_rope_args *args, rapt_way way) {
    rapt_report r = rapt_report_of(name);
    rapt_rope_call c;
    rapt_status status = read_rope(&r, &c, args);
    const rapt_work w = {.call = &c, .phases = 1, .share = rope_share};
    return status == RAPT_OK ? rapt_work_run(&r, &w, &way) : status;
}

rapt_status rapt_rope_run(const rapt_rope_args *args) { return rope_run("rapt_rope_run", args, rapt_alone()); }
rapt_status rapt_rope_run_parallel(const rapt_rope_args *args, int64_t nth, rapt_parallel_for parallel_for, void *pool) {
    return rope_run("rapt_rope_run_parallel", args, rapt_parallel(nth, parallel_for, pool));
}
rapt_status rapt_rope_run_share(const rapt_rope_args *args, int64_t ith, int64_t nth) {
    return rope_run("rapt_rope_run_share", args, rapt_share(ith, nth, NULL, NULL));
}
