/* SPDX-License-Identifier: Apache-2.0 */
/* A decoder's step as one call. Phase 0 rotates the queries into the workspace and appends the new keys and values to the cache;
 * the phases of attention follow. */
#include <string.h>

#include "cache/append.h"
#include "attention/attention.h"
#include "core/float_modes.h"
#include "cache/rope.h"
#include "cache/rotate.h"
#include "core/structs.h"

static const rapt_decode_desc default_decode_desc = {.tokens = -1, .rope.amplitude = 1.0};
static const rapt_decode_args default_decode_args = {0};

void rapt_decode_desc_init_sized(rapt_decode_desc *desc, size_t size) {
    rapt_init_struct(desc, size, &default_decode_desc, sizeof default_decode_desc);
}

void rapt_decode_args_init_sized(rapt_decode_args *args, size_t size) {
    rapt_init_struct(args, size, &default_decode_args, sizeof default_decode_args);
}

/* ---- The plan ------------------------------------------------------------------------------------------------------------ */

typedef struct full_decode {
    uint64_t made;                  /* DECODE_MADE, or this is not a plan */
    uint64_t attention[PLAN_WORDS]; /* a full_plan */
    append_call append;             /* without args and tokens, which each call brings */
    rapt_rope_args rope;
    uint64_t q_bytes, new_k_bytes, new_v_bytes; /* what the caller's tensors span */
    uint64_t rotated_bytes;                     /* of the rotated queries, with which the workspace begins; 0: q is not rotated */
} full_decode;

#define DECODE_MADE UINT64_C(0x35302e6465630000) /* changes with the layout of struct full_decode */

_Static_assert(sizeof(full_decode) <= sizeof(rapt_decode_plan), "rapt_decode_plan is too small");

static const full_plan *decode_attention(const full_decode *p) { return plan_of((const rapt_plan *)(const void *)p->attention); }

/* Refuses features of attention that a decoder's step does not have. */
static rapt_status decode_check_features(rapt_report *r, const rapt_desc *a) {
    if (a->unmerged)
        return rapt_refuse_number(r, RAPT_ERR_FEATURE, "attention.unmerged", a->unmerged, "must be 0 in a decoder's step");
    if (a->kv_first)
        return rapt_refuse_number(r, RAPT_ERR_FEATURE, "attention.kv_first", a->kv_first, "must be 0 in a decoder's step");
    if (a->kv_total)
        return rapt_refuse_number(r, RAPT_ERR_FEATURE, "attention.kv_total", a->kv_total, "must be 0 in a decoder's step");
    if (a->k_starts)
        return rapt_refuse(r, RAPT_ERR_FEATURE, "attention.k_starts = %p: a cache with ragged keys cannot be appended to",
                           (const void *)a->k_starts);
    return RAPT_OK;
}

/* Makes the plan. Errors: those of rapt_decode_plan_init. */
static rapt_status decode_make_plan(rapt_report *r, full_decode *p, const rapt_decode_desc *desc) {
    rapt_decode_desc d;
    rapt_desc a;
    rapt_status status = rapt_read_struct(r, "desc", &d, &default_decode_desc, sizeof d, sizeof d, desc);
    if (status == RAPT_OK) status = rapt_read_desc(r, "attention", &a, d.attention);
    if (status == RAPT_OK) status = decode_check_features(r, &a);
    if (status != RAPT_OK) return status;
    const rapt_layout q = a.q;
    const int64_t tokens = a.q_starts || d.tokens == -1 ? a.q_len : d.tokens;
    bool rotated = d.rope.channels != 0;
    memset(p, 0, sizeof *p);
    if (rotated) a.q = rapt_layout_bshd(RAPT_F32, a.heads, a.q_len, a.d_k);
    r->owner = "attention.";
    status = rapt_make_plan(r, p->attention, sizeof p->attention, &a);
    const rapt_tokens queries = {.batch = a.batch, .tokens = a.q_len, .token_starts = a.q_starts};
    if (status == RAPT_OK) status = rapt_measure_heads(r, "q", &queries, &q, a.heads, a.d_k, false, &p->q_bytes);
    if (status == RAPT_OK && rotated) p->rotated_bytes = rapt_aligned_bytes(decode_attention(p)->bytes.q);
    r->owner = "";
    if (status != RAPT_OK) return status;
    if (!rapt_within(tokens, 0, RAPT_MAX_LENGTH))
        return rapt_refuse_number(r, RAPT_ERR_SHAPE, "tokens", tokens, "must be 0 to 2147483647, or -1 for attention.q_len");
    p->append.desc = rapt_kv_append_desc_of(&a, tokens, d.new_k, d.new_v, &d.rope);
    if (!d.new_v.type) { /* V is not appended to */
        p->append.desc.v.type = RAPT_NONE;
        p->append.desc.v_scales.present = 0;
    }
    p->rope = (rapt_rope_args){.batch = a.batch,
                               .heads = a.heads,
                               .tokens = a.q_len,
                               .d = a.d_k,
                               .in = q,
                               .out = a.q,
                               .rope = d.rope,
                               .token_starts = a.q_starts};
    status = rapt_check_rope(r, &d.rope, a.d_k);
    r->owner = "attention.";
    if (status == RAPT_OK) status = rapt_check_append_desc(r, &p->append);
    r->owner = "";
    const rapt_tokens new_tokens = {.batch = a.batch, .tokens = tokens, .token_starts = a.q_starts};
    if (status == RAPT_OK)
        status = rapt_measure_heads(r, "new_k", &new_tokens, &d.new_k, a.kv_heads, a.d_k, false, &p->new_k_bytes);
    if (status == RAPT_OK && d.new_v.type)
        status = rapt_measure_heads(r, "new_v", &new_tokens, &d.new_v, a.kv_heads, a.d_v, false, &p->new_v_bytes);
    p->made = DECODE_MADE;
    return status;
}

rapt_status rapt_decode_plan_init_sized(rapt_decode_plan *plan, size_t bytes, const rapt_decode_desc *desc) {
    rapt_report r = rapt_report_of("rapt_decode_plan_init");
    full_decode p;
    rapt_status status = rapt_check_plan_memory(&r, plan, bytes, sizeof p);
    if (status == RAPT_OK) status = decode_make_plan(&r, &p, desc);
    if (status == RAPT_OK)
        status = rapt_check_kept(&r, plan, sizeof p, &p.rope.rope, "attention.", p.rope.batch, p.rope.token_starts, NULL);
    if (status != RAPT_OK) return status;
    memcpy(plan, &p, sizeof p);
    rapt_trace_plan(&r, decode_attention(&p));
    return status;
}

rapt_status rapt_decode_explain(const rapt_decode_desc *desc, char *text, size_t bytes) {
    rapt_report r = rapt_explanation_of("rapt_decode_plan_init", text, bytes);
    full_decode p;
    return decode_make_plan(&r, &p, desc);
}

static const full_decode *decode_read_plan(rapt_report *r, const rapt_decode_plan *opaque, rapt_status *status) {
    *status = rapt_check_plan(r, opaque, DECODE_MADE, "rapt_decode_plan_init");
    return (const full_decode *)(const void *)opaque;
}

static rapt_status decode_workspace(rapt_report *r, const full_decode *p, int64_t nth, size_t *bytes) {
    size_t of_attention = 0;
    rapt_status status = rapt_plan_workspace(r, decode_attention(p), nth, &of_attention);
    if (status == RAPT_OK && __builtin_add_overflow(of_attention, p->rotated_bytes, bytes))
        status = rapt_refuse_number(r, RAPT_ERR_SHAPE, "nth", nth, "the workspace would exceed the address space");
    return status;
}

rapt_status rapt_decode_workspace_size(const rapt_decode_plan *opaque, int64_t nth, size_t *bytes) {
    rapt_report r = rapt_report_of("rapt_decode_workspace_size");
    rapt_status status;
    size_t needed = 0;
    const full_decode *p = decode_read_plan(&r, opaque, &status);
    if (status == RAPT_OK && !bytes) return rapt_refuse_null(&r, "bytes", "there is nowhere to write it");
    if (status == RAPT_OK) status = decode_workspace(&r, p, nth, &needed);
    if (status == RAPT_OK) *bytes = needed;
    return status;
}

rapt_status rapt_decode_plan_query(const rapt_decode_plan *opaque, rapt_plan_info *info) {
    rapt_report r = rapt_report_of("rapt_decode_plan_query");
    rapt_status status;
    const full_decode *p = decode_read_plan(&r, opaque, &status);
    if (status != RAPT_OK) return status;
    rapt_plan_info known = rapt_plan_info_of(decode_attention(p));
    known.phases++;
    known.shared_bytes += p->rotated_bytes;
    return rapt_write_struct(&r, "info", info, &known, sizeof known, RAPT_BEFORE(rapt_plan_info, rows_keys_in_lanes));
}

/* ---- Calls --------------------------------------------------------------------------------------------------------------- */

typedef struct decode_call {
    const full_decode *plan;
    rapt_attention attention;
    append_call append;
    rapt_rope_call rope;
} decode_call;

/* Derives the arguments of the append, the rotation and attention from those of the call. */
static void lay_out_call(decode_call *c, const rapt_decode_args *a) {
    const full_decode *p = c->plan;
    rapt_args *to = &c->attention.args;
    const void *q = to->q;
    c->attention.plan = decode_attention(p);
    c->attention.appended = &c->append.tokens;
    to->k = a->k, to->v = a->v, to->k_scales = a->k_scales, to->v_scales = a->v_scales;
    to->workspace =
        (void *)((uintptr_t)a->workspace + (uintptr_t)p->rotated_bytes); /* computed as a number, since it is not checked yet */
    if (p->rotated_bytes) to->q = a->workspace;

    bool values = p->append.desc.v.type != RAPT_NONE;
    c->append = p->append;
    c->append.args = (rapt_kv_append_args){.new_k = a->new_k,
                                           .new_v = a->new_v,
                                           .k = a->k,
                                           .v = values ? a->v : NULL,
                                           .k_scales = a->k_scales,
                                           .v_scales = values ? a->v_scales : NULL,
                                           .starts = a->starts,
                                           .token_starts = p->rope.token_starts,
                                           .positions = a->positions,
                                           .table = to->table,
                                           .table_starts = to->table_starts,
                                           .ring_starts = to->ring_starts,
                                           .rope_table = a->rope_table};
    c->append.tokens = (rapt_tokens){.batch = p->append.desc.batch,
                                     .tokens = p->append.desc.tokens,
                                     .starts = a->starts,
                                     .token_starts = p->rope.token_starts,
                                     .positions = a->positions,
                                     .first_position = to->k_offsets};
    c->rope.args = p->rope;
    c->rope.args.from = q, c->rope.args.to = a->workspace, c->rope.args.rope_table = a->rope_table;
    /* Queries are rotated by the positions that causal masks use (rapt_causal), unless positions are given. Query 0 has position
     * q_offset if there are q_offsets; else, with RAPT_CAUSAL_TOP_LEFT, that of key 0; else the last query has the position of
     * the last key, whose number kv_lengths give or, without them, the new tokens. */
    rapt_tokens *queries = &c->rope.tokens;
    *queries = (rapt_tokens){.batch = p->rope.batch,
                             .tokens = p->rope.tokens,
                             .starts = a->starts,
                             .token_starts = p->rope.token_starts,
                             .positions = a->positions,
                             .first_position = to->k_offsets};
    if (to->q_offsets) queries->starts = to->q_offsets, queries->first_position = NULL;
    else if (decode_attention(p)->problem.causal == RAPT_CAUSAL_TOP_LEFT) queries->starts = NULL;
    else if (to->kv_lengths) queries->ends = to->kv_lengths;
    else if (!p->rope.token_starts) queries->shift = p->append.desc.tokens - p->rope.tokens;
}

/* True if the bytes at `at` all lie within the of_bytes at `of`. */
static bool lies_within(const void *at, uint64_t bytes, const void *of, uint64_t of_bytes) {
    const uint64_t from = (uintptr_t)at - (uintptr_t)of;
    return (uintptr_t)at >= (uintptr_t)of && from <= of_bytes && bytes <= of_bytes - from;
}

/* Registers a V that is not appended to, and its scales. They are only read, and are either parts of K and its scales, which have
 * been registered as written, or memory of their own. */
static void register_values(rapt_memory *m, const decode_call *c, const rapt_decode_args *a) {
    const tensor_bytes *b = &decode_attention(c->plan)->bytes;
    const bool scaled = decode_attention(c->plan)->problem.v_scales.present;
    if (!lies_within(a->v, b->v, a->k, b->k)) rapt_reads(m, "v", a->v, b->v);
    if (!scaled || !lies_within(a->v_scales, b->v_scales, a->k_scales, b->k_scales))
        rapt_reads_if(m, scaled, "v_scales", a->v_scales, b->v_scales, "the plan has no scales");
}

/* Checks the memory of a call. q: the caller's queries; bytes: the workspace that is needed. */
static RAPT_NOINLINE rapt_status decode_check_memory(rapt_report *r, const decode_call *c, const rapt_decode_args *a,
                                                     const void *q, size_t bytes) {
    const full_decode *p = c->plan;
    rapt_memory m;
    rapt_memory_begin(&m, r);
    rapt_reads(&m, "plan", p, sizeof *p);
    rapt_reads_array(&m, "starts", a->starts, p->append.desc.batch, sizeof(int32_t), true);
    rapt_register_positions(&m, &p->rope.rope, &c->append.tokens);
    rapt_register_append(&m, &c->append, "k", "v", false);
    rapt_register_rope(&m, &p->rope.rope, &a->rope_table);
    rapt_reads(&m, "new_k", a->new_k, p->new_k_bytes);
    if (p->append.desc.v.type) {
        rapt_reads(&m, "new_v", a->new_v, p->new_v_bytes);
    } else {
        rapt_unused(&m, "new_v", a->new_v, "its layout has no type");
        register_values(&m, c, a);
    }
    r->owner = "attention.";
    rapt_reads(&m, "q", q, p->q_bytes);
    rapt_writes(&m, "o", c->attention.args.o, decode_attention(p)->bytes.o);
    rapt_writes_if(&m, decode_attention(p)->scores_stage, "scores", c->attention.args.scores, decode_attention(p)->bytes.scores,
                   "the plan has no layout for it");
    rapt_register_attention(&m, &c->attention, false, -1);
    r->owner = "";
    rapt_writes_workspace(&m, a->workspace, a->workspace_bytes, bytes);
    return rapt_check_memory(&m);
}

/* Reads the caller's structs into c, and checks all of the call. */
static rapt_status decode_read_call(rapt_report *r, decode_call *c, const rapt_decode_plan *opaque, const rapt_decode_args *args,
                                    int64_t nth) {
    rapt_decode_args a;
    rapt_status status;
    size_t bytes = 0;
    const full_decode *p = c->plan = decode_read_plan(r, opaque, &status);
    if (status == RAPT_OK) status = rapt_read_struct(r, "args", &a, &default_decode_args, sizeof a, sizeof a, args);
    if (status == RAPT_OK) status = rapt_read_args(r, "attention", &c->attention.args, a.attention);
    if (status == RAPT_OK) status = decode_workspace(r, p, nth, &bytes);
    if (status != RAPT_OK) return status;
    const void *q = c->attention.args.q;
    lay_out_call(c, &a);
    if (a.positions && p->append.desc.tokens != p->rope.tokens)
        return rapt_refuse(r, RAPT_ERR_FEATURE, "positions = %p: there are %" PRId64 " new tokens and %" PRId64 " queries",
                           (const void *)a.positions, p->append.desc.tokens, p->rope.tokens);
    status = decode_check_memory(r, c, &a, q, bytes);
    if (status == RAPT_OK) status = rapt_check_tokens(r, &c->append.tokens);
    if (status == RAPT_OK) status = rapt_check_room(r, &c->append);
    if (status == RAPT_OK) status = rapt_check_rope(r, &p->rope.rope, p->rope.d); /* its frequencies may have changed */
    if (status == RAPT_OK) status = rapt_check_positions(r, &p->rope.rope, &a.rope_table, &c->append.tokens);
    r->owner = "attention.";
    if (status == RAPT_OK) status = rapt_check_places(r, &c->append);
    if (status == RAPT_OK) status = rapt_check_entries(r, &c->attention);
    r->owner = "";
    return status == RAPT_OK ? rapt_check_positions(r, &p->rope.rope, &a.rope_table, &c->rope.tokens) : status;
}

rapt_status rapt_decode_args_explain(const rapt_decode_plan *plan, const rapt_decode_args *args, int64_t nth, char *text,
                                     size_t bytes) {
    rapt_report r = rapt_explanation_of("rapt_decode_run", text, bytes);
    decode_call c;
    const rapt_status status = decode_read_call(&r, &c, plan, args, nth);
    return status == RAPT_OK ? rapt_check_floats(&r) : status;
}

static void decode_share(const void *call, int phase, int64_t ith, int64_t nth, atomic_llong *next) {
    const decode_call *c = call;
    if (phase > 0) {
        rapt_attend_share(&c->attention, phase - 1, ith, nth, next);
        return;
    }
    if (c->plan->rotated_bytes) rapt_rope_share(&c->rope, ith, nth);
    rapt_append_share(&c->append, ith, nth);
}

static rapt_status decode_run(const char *name, const rapt_decode_plan *plan, const rapt_decode_args *args, rapt_way way) {
    rapt_report r = rapt_report_of(name);
    decode_call c;
    rapt_status status = decode_read_call(&r, &c, plan, args, way.nth);
    if (status != RAPT_OK) return status;
    const rapt_work w = {.call = &c, .phases = 1 + c.attention.plan->phases, .share = decode_share};
    return rapt_work_run(&r, &w, &way);
}

rapt_status rapt_decode_run(const rapt_decode_plan *plan, const rapt_decode_args *args) {
    return decode_run("rapt_decode_run", plan, args, rapt_alone());
}
rapt_status rapt_decode_run_parallel(const rapt_decode_plan *plan, const rapt_decode_args *args, int64_t nth,
                                     rapt_parallel_for parallel_for, void *pool) {
    return decode_run("rapt_decode_run_parallel", plan, args, rapt_parallel(nth, parallel_for, pool));
}
rapt_status rapt_decode_run_share(const rapt_decode_plan *plan, const rapt_decode_args *args, int64_t ith, int64_t nth,
                                  rapt_barrier barrier, void *barrier_arg) {
    return decode_run("rapt_decode_run_share", plan, args, rapt_share(ith, nth, barrier, barrier_arg));
}
rapt_status rapt_decode_run_phase(const rapt_decode_plan *plan, const rapt_decode_args *args, int phase, int64_t ith,
                                  int64_t nth) {
    return decode_run("rapt_decode_run_phase", plan, args, rapt_phase(phase, ith, nth));
}
