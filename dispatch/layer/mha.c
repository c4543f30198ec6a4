/* SPDX-License-Identifier: Apache-2.0 */
/* Multi-head attention as one call, in steps: positions, projections, rotation and the cache, attention, the output's projection.
 * A step has one or more phases, or is absent. It runs the code of the public function for it; intermediate results lie in the
 * workspace. */
#include <string.h>

#include "cache/append.h"
#include "attention/attention.h"
#include "core/float_modes.h"
#include "layer/prepack.h"
#include "cache/rope.h"
#include "cache/rotate.h"
#include "cache/rows.h"
#include "cpu/select.h"
#include "core/structs.h"
#include "core/tuning.h"

static const rapt_mha_desc default_mha_desc = {.rope.amplitude = 1.0};
static const rapt_mha_args default_mha_args = {0};

void rapt_mha_desc_init_sized(rapt_mha_desc *desc, size_t size) {
    rapt_init_struct(desc, size, &default_mha_desc, sizeof default_mha_desc);
}

void rapt_mha_args_init_sized(rapt_mha_args *args, size_t size) {
    rapt_init_struct(args, size, &default_mha_args, sizeof default_mha_args);
}

/* Indices of arrays: for X and its projection Q, for Y and K, for Z and V; and how many these are. */
enum { QUERIES, KEYS, VALUES, PROJECTIONS };

/* The steps of a call, in order. Each that a call has is one phase, except ATTEND, which may be two. */
typedef enum step { ADD_POSITIONS, PROJECT, ROTATE_AND_APPEND, ATTEND, OUTPUT } step;

/* An input of the caller's, X, Y or Z: [batch, tokens] rows of `width` channels. A ragged input has a batch of 1, of whose tokens
 * [first, first + count) belong to entries; in other inputs all do. */
typedef struct token_rows {
    int64_t batch, tokens, width, first, count;
    rapt_layout layout;
    uint64_t bytes; /* that the input spans */
    size_t summed;  /* offset in the workspace of its sum with the positions */
} token_rows;

typedef struct full_mha {
    uint64_t made;                            /* MHA_MADE, or this is not a plan */
    uint64_t attention[PLAN_WORDS];           /* a full_plan */
    full_linear project[PROJECTIONS], output; /* output: if has_output */
    append_call append;                       /* without args and tokens, which each call brings */
    rapt_rope_args rope[2];                   /* of Q; of K, if there is no cache: else the append rotates keys */
    token_rows x[PROJECTIONS];
    int64_t batch, q_len;
    int64_t projection_width[PROJECTIONS]; /* output channels of each projection */
    int64_t first_row_in_wq[PROJECTIONS];  /* where each projection's rows begin in packed weights; else 0 */
    int projections;                       /* 1 if attention is to the cache alone (no new keys), else all */
    bool self, values_as_keys;             /* Y is X; Z is Y */
    bool cached, packed, positions; /* K and V have a cache; wq has the weights of all projections; there is a position table */
    bool has_output, wants_attention_weights; /* there is wo; the softmax's result is wanted */
    rapt_layout out, residual;
    int64_t out_width;
    uint64_t out_bytes, residual_bytes; /* that they span */
    const int32_t *q_starts, *k_starts;
    size_t qkv_offset[PROJECTIONS], o, scratch; /* offsets in the workspace: Q, K, V; O; scratch of threads */
} full_mha;

#define MHA_MADE UINT64_C(0x36312e72656c0000) /* changes with the layout of struct full_mha */

/* Clients of 0.1, and callers of the function that has no size, bring memory of this many words. */
enum { MHA_PLAN_WORDS = 1280 };
_Static_assert(sizeof(full_mha) <= MHA_PLAN_WORDS * sizeof(uint64_t), "a plan of 0.1 is too small");

static const full_plan *mha_attention(const full_mha *p) { return plan_of((const rapt_plan *)(const void *)p->attention); }

/* True if input i is the same as input i - 1. */
static bool same_input(const full_mha *p, int i) { return (i == KEYS && p->self) || (i == VALUES && p->values_as_keys); }

static const char *const input_names[PROJECTIONS] = {"x", "y", "z"};
static const char *const width_names[PROJECTIONS] = {"x_width", "y_width", "z_width"};

/* The names of each projection's fields in reports, and those of the output's projection. */
static const rapt_linear_names names[PROJECTIONS + 1] = {
    {"x_width", "heads * d_k", "x", "the workspace", "", "wq", "bq", "wq_scales", "wq_prepacked"},
    {"y_width", "kv_heads * d_k", "y", "the workspace", "", "wk", "bk", "wk_scales", "wk_prepacked"},
    {"z_width", "kv_heads * d_v", "z", "the workspace", "", "wv", "bv", "wv_scales", "wv_prepacked"},
    {"heads * d_v", "out_width", "the workspace", "out", "residual", "wo", "bo", "wo_scales", "wo_prepacked"}};

/* ---- The plan ------------------------------------------------------------------------------------------------------------ */

/* Returns the layout of contiguous rows of f32. */
static rapt_layout dense(int64_t tokens, int64_t channels) { return rapt_layout_bshd(RAPT_F32, 1, tokens, channels); }

/* Reserves aligned memory of the workspace for rows of f32: sets *at to its offset and advances *used. Returns false if the size
 * overflows. */
static bool reserve(size_t *used, size_t *at, int64_t rows, int64_t channels) {
    *at = *used;
    const int64_t floats = rapt_product(rows, channels);
    return rapt_within(floats, 0, INT64_MAX / 8) &&
           !__builtin_add_overflow(*used, rapt_aligned_bytes((uint64_t)floats * sizeof(float)), used);
}

/* Refuses features that multi-head attention does not have, or that exclude each other. */
static rapt_status mha_check_features(rapt_report *r, const rapt_mha_desc *d, const rapt_desc *a, const full_mha *p) {
    if (a->k.type && !a->v.type) return rapt_refuse(r, RAPT_ERR_TYPE, "attention.v.type = RAPT_NONE: K has a cache, V has none");
    if (a->v.type && !a->k.type) return rapt_refuse(r, RAPT_ERR_TYPE, "attention.k.type = RAPT_NONE: V has a cache, K has none");
    if (a->unmerged) return rapt_refuse_number(r, RAPT_ERR_FEATURE, "attention.unmerged", a->unmerged, "must be 0 here");
    if (a->kv_first) return rapt_refuse_number(r, RAPT_ERR_FEATURE, "attention.kv_first", a->kv_first, "must be 0 here");
    if (a->kv_total) return rapt_refuse_number(r, RAPT_ERR_FEATURE, "attention.kv_total", a->kv_total, "must be 0 here");
    if (!p->cached && a->page_size)
        return rapt_refuse_number(r, RAPT_ERR_FEATURE, "attention.page_size", a->page_size, "there is no cache");
    if (!p->cached && a->k_scales.present)
        return rapt_refuse_member(r, RAPT_ERR_FEATURE, "attention.k_scales", "present", a->k_scales.present, "there is no cache");
    if (!p->cached && a->v_scales.present)
        return rapt_refuse_member(r, RAPT_ERR_FEATURE, "attention.v_scales", "present", a->v_scales.present, "there is no cache");
    if (p->cached && p->k_starts && (p->self || d->keys != 0))
        return rapt_refuse(r, RAPT_ERR_FEATURE, "attention.k_starts = %p: a cache with ragged keys cannot be appended to",
                           (const void *)p->k_starts);
    if (p->self && d->z.type) return rapt_refuse_type(r, RAPT_ERR_FEATURE, "z", "type", d->z.type, "there is no Y, so Z is X");
    if (d->weights.type && a->scores.type)
        return rapt_refuse_type(r, RAPT_ERR_FEATURE, "weights", "type", d->weights.type, "there are attention.scores");
    return RAPT_OK;
}

/* Checks the sizes of attention that are multiplied below, so that no product overflows, before rapt_make_plan checks them again.
 */
static rapt_status mha_check_shape(rapt_report *r, const rapt_desc *a) {
    const struct {
        const char *name;
        int64_t value, least, most;
    } sizes[] = {{"attention.heads", a->heads, 1, RAPT_MAX_WIDTH},  {"attention.kv_heads", a->kv_heads, 1, RAPT_MAX_WIDTH},
                 {"attention.d_k", a->d_k, 1, RAPT_MAX_HEAD_DIM},   {"attention.d_v", a->d_v, 1, RAPT_MAX_HEAD_DIM},
                 {"attention.batch", a->batch, 0, RAPT_MAX_LENGTH}, {"attention.q_len", a->q_len, 0, RAPT_MAX_LENGTH}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (!rapt_within(sizes[i].value, sizes[i].least, sizes[i].most))
            return rapt_refuse(r, RAPT_ERR_SHAPE, "%s = %" PRId64 ": must be %" PRId64 " to %" PRId64, sizes[i].name,
                               sizes[i].value, sizes[i].least, sizes[i].most);
    return RAPT_OK;
}

/* Sets which inputs there are, checks their shapes, and computes the bytes that they span. */
static rapt_status plan_inputs(rapt_report *r, full_mha *p, const rapt_mha_desc *d, const rapt_desc *a) {
    int64_t widths[] = {d->x_width, d->y_width ? d->y_width : d->x_width, 0};
    widths[VALUES] = d->z_width ? d->z_width : widths[KEYS];
    int64_t keys = p->self ? a->q_len : d->keys;
    if (!rapt_within(keys, 0, RAPT_MAX_LENGTH))
        return rapt_refuse_number(r, RAPT_ERR_SHAPE, "keys", keys, "must be 0 to 2147483647");
    if (p->self && widths[KEYS] != widths[QUERIES])
        return rapt_refuse_number(r, RAPT_ERR_SHAPE, "y_width", widths[KEYS], "Y is X, so it has x_width");
    if (p->values_as_keys && widths[VALUES] != widths[KEYS])
        return rapt_refuse_number(r, RAPT_ERR_SHAPE, "z_width", widths[VALUES], "Z is Y, so it has y_width");
    if ((d->packed || d->position_table) && (widths[KEYS] != widths[QUERIES] || widths[VALUES] != widths[QUERIES]))
        return rapt_refuse_number(r, RAPT_ERR_SHAPE, "x_width", widths[QUERIES],
                                  "with packed weights or a table of positions y_width and z_width are equal to it");
    p->projections = p->cached && !p->self && keys == 0 ? 1 : PROJECTIONS;
    for (int i = 0; i < p->projections; i++) {
        const int32_t *starts = i == QUERIES || p->self ? p->q_starts : p->k_starts;
        token_rows *x = &p->x[i];
        *x = (token_rows){.batch = starts ? 1 : a->batch,
                          .tokens = i == QUERIES ? a->q_len : keys,
                          .width = widths[i],
                          .layout = i == QUERIES || p->self          ? d->x
                                    : i == KEYS || p->values_as_keys ? d->y
                                                                     : d->z};
        const char *name = input_names[same_input(p, i) ? (p->self ? QUERIES : KEYS) : i];
        if (!rapt_within(x->width, 1, RAPT_MAX_WIDTH))
            return rapt_refuse_number(r, RAPT_ERR_SHAPE, width_names[i], x->width, "must be 1 to 1048576");
        int64_t most;
        rapt_status status = rapt_check_starts(r, i == QUERIES || p->self ? "attention.q_starts" : "attention.k_starts", starts,
                                               a->batch, x->tokens, &most);
        if (status == RAPT_OK)
            status = rapt_measure_tokens(r, name, &x->layout, RAPT_FLOATS, x->batch, x->tokens, x->width, false, &x->bytes);
        if (status != RAPT_OK) return status;
        x->first = starts ? starts[0] : 0;
        x->count = starts ? starts[a->batch] - starts[0] : x->tokens;
    }
    return RAPT_OK;
}

/* Plans the projections of the inputs and of the output. */
static rapt_status plan_projections(rapt_report *r, full_mha *p, const rapt_mha_desc *d, const rapt_desc *a) {
    const int64_t outs[] = {a->heads * a->d_k, a->kv_heads * a->d_k, a->kv_heads * a->d_v};
    int64_t rows = 0;
    rapt_status status = RAPT_OK;
    for (int i = 0; i < PROJECTIONS; i++) {
        p->projection_width[i] = outs[i];
        p->first_row_in_wq[i] = d->packed ? rows : 0;
        rows += outs[i];
    }
    for (int i = 0; i < p->projections && status == RAPT_OK; i++) {
        const token_rows *x = &p->x[i];
        rapt_linear_desc l = rapt_default_linear_desc;
        rapt_linear_names of = names[i];
        /* NOLINTNEXTLINE(clang-analyzer-core.uninitialized.Assign): projections is at most PROJECTIONS */
        of.x = input_names[same_input(p, i) ? (p->self ? QUERIES : KEYS) : i];
        if (d->packed) of.weight = "wq", of.bias = "bq", of.scales = "wq_scales";
        l.batch = x->batch, l.tokens = x->count, l.in = x->width, l.out = outs[i];
        l.x = p->positions ? dense(x->tokens, l.in) : x->layout;
        l.y = dense(x->tokens, l.out);
        l.weight = d->packed || i == QUERIES ? d->wq : i == KEYS ? d->wk : d->wv;
        l.isa = a->isa, l.arith = d->arith, l.tuning = a->tuning;
        status = rapt_make_linear(r, &p->project[i], &l, &of);
        if (status == RAPT_OK && d->packed) /* wq spans the rows of all projections */
            status = rapt_measure_tokens(r, "wq", &l.weight, RAPT_WEIGHTS, 1, rows, l.in, false, &p->project[i].weight_bytes);
    }
    if (status != RAPT_OK || !p->has_output) return status;
    const token_rows *x = &p->x[QUERIES];
    rapt_linear_desc l = rapt_default_linear_desc;
    l.batch = x->batch, l.tokens = x->count, l.in = a->heads * a->d_v, l.out = p->out_width;
    l.x = dense(a->q_len, l.in);
    l.y = d->out, l.residual = d->residual, l.weight = d->wo, l.isa = a->isa, l.arith = d->arith, l.tuning = a->tuning;
    return rapt_make_linear(r, &p->output, &l, &names[PROJECTIONS]);
}

/* Plans the rotation of queries and keys, and the append of new keys and values to the cache. */
static rapt_status plan_rotate_and_append(rapt_report *r, full_mha *p, const rapt_mha_desc *d, const rapt_desc *a) {
    rapt_status status = rapt_check_rope(r, &d->rope, a->d_k);
    const int64_t keys = p->projections > 1 ? p->x[KEYS].tokens : 0;
    for (int i = 0; i < 2; i++) {
        const int64_t heads = i == QUERIES ? a->heads : a->kv_heads, tokens = i == QUERIES ? a->q_len : keys;
        const rapt_layout layout = rapt_layout_bshd(RAPT_F32, heads, tokens, a->d_k);
        p->rope[i] = (rapt_rope_args){.batch = a->batch,
                                      .heads = heads,
                                      .tokens = tokens,
                                      .d = a->d_k,
                                      .in = layout,
                                      .out = layout,
                                      .rope = d->rope,
                                      .token_starts = i == QUERIES || p->self ? p->q_starts : p->k_starts};
    }
    if (status != RAPT_OK || !p->cached || p->projections == 1) return status;
    p->append.desc = rapt_kv_append_desc_of(a, keys, rapt_layout_bshd(RAPT_F32, a->kv_heads, keys, a->d_k),
                                            rapt_layout_bshd(RAPT_F32, a->kv_heads, keys, a->d_v), &d->rope);
    r->owner = "attention.";
    status = rapt_check_append_desc(r, &p->append);
    r->owner = "";
    return status;
}

/* Plans attention. It reads Q from the workspace, and K and V from the cache or, without one, from the workspace; it writes O to
 * the workspace or, without wo, to the output. */
static rapt_status plan_attention(rapt_report *r, full_mha *p, const rapt_mha_desc *d, rapt_desc *a) {
    a->q = rapt_layout_bshd(RAPT_F32, a->heads, a->q_len, a->d_k);
    a->q_starts = p->q_starts, a->k_starts = p->k_starts;
    if (!p->cached) {
        a->kv_len = p->x[KEYS].tokens;
        a->k = rapt_layout_bshd(RAPT_F32, a->kv_heads, a->kv_len, a->d_k);
        a->v = rapt_layout_bshd(RAPT_F32, a->kv_heads, a->kv_len, a->d_v);
    }
    a->o = rapt_layout_bshd(RAPT_F32, a->heads, a->q_len, a->d_v);
    if (!p->has_output) {
        a->o = d->out;
        a->o.head_stride = rapt_row_bytes(d->out.type, a->d_v);
    }
    rapt_status status = RAPT_OK;
    if (p->wants_attention_weights) { /* checked here, too, so that a report names them weights rather than attention.scores */
        const int64_t batch = a->q_starts ? a->batch > 0 : a->batch;
        int64_t keys = a->kv_len;
        uint64_t bytes;
        status = rapt_check_starts(r, "attention.k_starts", a->k_starts, a->batch, a->kv_len, &keys);
        if (status == RAPT_OK)
            status = rapt_measure(r, "weights", &d->weights, 1 << RAPT_F32, batch, a->heads, a->q_len, keys, true, &bytes);
        a->scores = d->weights, a->scores_stage = RAPT_SCORES_WEIGHTS;
    }
    r->owner = "attention.";
    if (status == RAPT_OK) status = rapt_make_plan(r, p->attention, sizeof p->attention, a);
    r->owner = "";
    return status;
}

/* Checks the output and the residual, and computes the bytes that they span. */
static rapt_status plan_output(rapt_report *r, full_mha *p, const rapt_mha_desc *d) {
    const token_rows *x = &p->x[QUERIES];
    rapt_status status =
        rapt_measure_tokens(r, "out", &d->out, RAPT_FLOATS, x->batch, x->tokens, p->out_width, true, &p->out_bytes);
    if (status == RAPT_OK && d->residual.type)
        status = rapt_measure_tokens(r, "residual", &d->residual, RAPT_FLOATS, x->batch, x->tokens, p->out_width, false,
                                     &p->residual_bytes);
    return status;
}

/* Lays out the workspace. Returns false if it overflows. */
static bool plan_workspace(full_mha *p, const rapt_desc *a) {
    size_t used = 0;
    bool fits = true;
    for (int i = 0; i < p->projections && p->positions; i++) {
        if (same_input(p, i)) p->x[i].summed = p->x[i - 1].summed;
        else fits = fits && reserve(&used, &p->x[i].summed, p->x[i].batch * p->x[i].tokens, p->x[i].width);
    }
    for (int i = 0; i < p->projections; i++)
        fits = fits && reserve(&used, &p->qkv_offset[i], p->x[i].batch * p->x[i].tokens, p->projection_width[i]);
    if (p->has_output) fits = fits && reserve(&used, &p->o, p->x[QUERIES].batch * a->q_len, a->heads * a->d_v);
    p->scratch = used;
    return fits;
}

/* Makes the plan. Errors: those of rapt_mha_plan_init. */
static rapt_status mha_make_plan(rapt_report *r, full_mha *p, const rapt_mha_desc *desc) {
    rapt_mha_desc d;
    rapt_desc a;
    rapt_status status = rapt_read_struct(r, "desc", &d, &default_mha_desc, sizeof d, RAPT_BEFORE(rapt_mha_desc, arith), desc);
    if (status == RAPT_OK) status = rapt_read_desc(r, "attention", &a, d.attention);
    if (status != RAPT_OK) return status;
    *p = (full_mha){.made = MHA_MADE,
                    .self = !d.y.type,
                    .values_as_keys = !d.z.type,
                    .cached = a.k.type || a.v.type,
                    .packed = d.packed != 0,
                    .positions = d.position_table != 0,
                    .has_output = d.wo.type != RAPT_NONE,
                    .wants_attention_weights = d.weights.type != RAPT_NONE,
                    .batch = a.batch,
                    .q_len = a.q_len,
                    .out = d.out,
                    .residual = d.residual,
                    .q_starts = a.q_starts,
                    .k_starts = a.k_starts};
    status = mha_check_features(r, &d, &a, p);
    if (status == RAPT_OK) status = mha_check_shape(r, &a);
    const rapt_kernel *kernel;
    rapt_tuning tuning;
    r->owner = "attention."; /* checked here, since linear layers would report isa and tuning without this prefix */
    if (status == RAPT_OK) status = rapt_select(r, a.isa, &kernel);
    if (status == RAPT_OK) status = rapt_read_tuning(r, kernel, a.tuning, &tuning);
    r->owner = "";
    if (status != RAPT_OK) return status;
    p->out_width = p->has_output ? (d.out_width ? d.out_width : d.x_width) : a.heads * a.d_v;
    if (!p->has_output && d.residual.type)
        return rapt_refuse_type(r, RAPT_ERR_FEATURE, "residual", "type", d.residual.type, "without wo there is no residual");
    if (!p->has_output && d.out_width && d.out_width != p->out_width)
        return rapt_refuse(r, RAPT_ERR_FEATURE, "out_width = %" PRId64 ": without wo it is heads * d_v = %" PRId64, d.out_width,
                           p->out_width);
    if (p->self && !p->cached) p->k_starts = p->q_starts;
    status = plan_inputs(r, p, &d, &a);
    if (status == RAPT_OK) status = plan_projections(r, p, &d, &a);
    if (status == RAPT_OK) status = plan_output(r, p, &d);
    if (status == RAPT_OK) status = plan_attention(r, p, &d, &a);
    if (status == RAPT_OK) status = plan_rotate_and_append(r, p, &d, &a);
    if (status == RAPT_OK && !plan_workspace(p, &a))
        status =
            rapt_refuse_number(r, RAPT_ERR_SHAPE, "attention.q_len", a.q_len, "the workspace would exceed the address space");
    return status;
}

rapt_status rapt_mha_plan_init_sized(rapt_mha_plan *plan, size_t bytes, const rapt_mha_desc *desc) {
    rapt_report r = rapt_report_of("rapt_mha_plan_init");
    full_mha p;
    rapt_status status = rapt_check_plan_memory(&r, plan, bytes, sizeof p);
    if (status == RAPT_OK) status = mha_make_plan(&r, &p, desc);
    if (status == RAPT_OK)
        status = rapt_check_kept(&r, plan, sizeof p, &p.rope[QUERIES].rope, "attention.", p.batch, p.q_starts, p.k_starts);
    if (status != RAPT_OK) return status;
    memcpy(plan, &p, sizeof p);
    rapt_trace_plan(&r, mha_attention(&p));
    return RAPT_OK;
}

rapt_status(rapt_mha_plan_init)(rapt_mha_plan *plan, const rapt_mha_desc *desc) {
    return rapt_mha_plan_init_sized(plan, MHA_PLAN_WORDS * sizeof(uint64_t), desc);
}

rapt_status rapt_mha_explain(const rapt_mha_desc *desc, char *text, size_t bytes) {
    rapt_report r = rapt_explanation_of("rapt_mha_plan_init", text, bytes);
    full_mha p;
    return mha_make_plan(&r, &p, desc);
}

static const full_mha *mha_read_plan(rapt_report *r, const rapt_mha_plan *opaque, rapt_status *status) {
    *status = rapt_check_plan(r, opaque, MHA_MADE, "rapt_mha_plan_init");
    return (const full_mha *)(const void *)opaque;
}

/* ---- Phases -------------------------------------------------------------------------------------------------------------- */

/* True if there is a step ROTATE_AND_APPEND: something is rotated, or appended to the cache. */
static bool has_rotate_and_append(const full_mha *p) {
    return p->rope[QUERIES].rope.channels || (p->cached && p->projections > 1);
}

static int phase_count(const full_mha *p) {
    return p->positions + 1 + has_rotate_and_append(p) + mha_attention(p)->phases + p->has_output;
}

/* Returns the step to which a phase belongs. If that is ATTEND, sets *part to the phase's number among those of attention; else
 * *part means nothing. */
static step step_of(const full_mha *p, int phase, int *part) {
    *part = 0;
    if (p->positions && phase-- == 0) return ADD_POSITIONS;
    if (phase-- == 0) return PROJECT;
    if (has_rotate_and_append(p) && phase-- == 0) return ROTATE_AND_APPEND;
    *part = phase;
    return phase < mha_attention(p)->phases ? ATTEND : OUTPUT;
}

rapt_status rapt_mha_plan_query(const rapt_mha_plan *opaque, rapt_mha_plan_info *info) {
    rapt_report r = rapt_report_of("rapt_mha_plan_query");
    rapt_status status;
    const full_mha *p = mha_read_plan(&r, opaque, &status);
    if (status != RAPT_OK) return status;
    const rapt_kernel *kernel = mha_attention(p)->kernel;
    const rapt_mha_plan_info known = {
        .isa = kernel->name, .rounding = kernel->base->fused ? "fused" : "unfused", .phases = phase_count(p)};
    return rapt_write_struct(&r, "info", info, &known, sizeof known, sizeof known);
}

/* Sets *bytes to the workspace of nth threads: the intermediate results, followed by the scratch of the phase that needs most. */
static rapt_status mha_workspace(rapt_report *r, const full_mha *p, int64_t nth, size_t *bytes) {
    size_t of_attention = 0, output = p->has_output ? rapt_linear_scratch(&p->output) : 0, each = 0, of_linear, total;
    rapt_status status = rapt_plan_workspace(r, mha_attention(p), nth, &of_attention);
    if (status != RAPT_OK) return status;
    for (int i = 0; i < p->projections; i++) each += rapt_linear_scratch(&p->project[i]); /* these share a phase */
    if (__builtin_mul_overflow(each > output ? each : output, (size_t)nth, &of_linear) ||
        __builtin_add_overflow(p->scratch, of_linear > of_attention ? of_linear : of_attention, &total))
        return rapt_refuse_number(r, RAPT_ERR_SHAPE, "nth", nth, "the workspace would exceed the address space");
    *bytes = total;
    return RAPT_OK;
}

rapt_status rapt_mha_workspace_size(const rapt_mha_plan *opaque, int64_t nth, size_t *bytes) {
    rapt_report r = rapt_report_of("rapt_mha_workspace_size");
    rapt_status status;
    size_t needed = 0;
    const full_mha *p = mha_read_plan(&r, opaque, &status);
    if (status == RAPT_OK && !bytes) return rapt_refuse_null(&r, "bytes", "there is nowhere to write it");
    if (status == RAPT_OK) status = mha_workspace(&r, p, nth, &needed);
    if (status == RAPT_OK) *bytes = needed;
    return status;
}

/* ---- Calls --------------------------------------------------------------------------------------------------------------- */

/* A call in progress, with the arguments of each part. */
typedef struct mha_call {
    const full_mha *p;
    rapt_mha_args args;
    rapt_attention attention;
    rapt_linear_call project[PROJECTIONS], output;
    append_call append;
    rapt_rope_call rope[2];
} mha_call;

/* Returns the address at an offset of the workspace. Arguments are set before they are checked, so an address need not be valid
 * yet, and is computed as a number. */
static void *workspace_at(const mha_call *c, size_t offset) { return (void *)((uintptr_t)c->args.workspace + offset); }

/* Returns input i. */
static const void *input_of(const mha_call *c, int i) {
    const full_mha *p = c->p;
    return i == QUERIES || p->self ? c->args.x : i == KEYS || p->values_as_keys ? c->args.y : c->args.z;
}

/* Returns the address that is `bytes` bytes after from, computed as a number; null if from is null. */
static void *address_at(const void *from, int64_t bytes) { return from ? (void *)((uintptr_t)from + (uintptr_t)bytes) : NULL; }

/* Returns the offset in bytes of the first row that belongs to an entry, in a tensor of this layout. */
static size_t first_row_offset(const token_rows *x, const rapt_layout *layout) {
    return x->first ? (size_t)(x->first * layout->token_stride) : 0;
}

/* Sets the arguments of the projections of the inputs and of the output. */
static void lay_out_linear(mha_call *c, int64_t nth) {
    const full_mha *p = c->p;
    const rapt_mha_args *a = &c->args;
    const void *weights[] = {a->wq, a->wk, a->wv};
    const float *biases[] = {a->bq, a->bk, a->bv}, *scales[] = {a->wq_scales, a->wk_scales, a->wv_scales};
    const void *prepacked[] = {a->wq_prepacked, a->wk_prepacked, a->wv_prepacked};
    size_t projecting = p->scratch;
    for (int i = 0; i < p->projections; i++) {
        const full_linear *plan = &p->project[i];
        const token_rows *x = &p->x[i];
        const int from = p->packed ? QUERIES : i;
        const int64_t rows = p->first_row_in_wq[i];
        c->project[i].plan = plan;
        c->project[i].args = (rapt_linear_args){
            .x = address_at(p->positions ? workspace_at(c, x->summed) : input_of(c, i),
                            (int64_t)first_row_offset(x, &plan->problem.x)),
            .weight = address_at(weights[from], rows ? rows * plan->problem.weight.token_stride : 0),
            .bias = address_at(biases[from], rows * (int64_t)sizeof(float)),
            .scales = address_at(scales[from], rows * (int64_t)sizeof(float)),
            .prepacked = prepacked[i],
            .y = workspace_at(c, p->qkv_offset[i] + first_row_offset(x, &plan->problem.y)),
            .workspace = workspace_at(c, projecting),
        };
        projecting += rapt_linear_scratch(plan) * (size_t)nth;
    }
    if (!p->has_output) return;
    const token_rows *x = &p->x[QUERIES];
    const rapt_linear_problem *o = &p->output.problem;
    c->output.plan = &p->output;
    c->output.args = (rapt_linear_args){.x = workspace_at(c, p->o + first_row_offset(x, &o->x)),
                                        .weight = a->wo,
                                        .bias = a->bo,
                                        .scales = a->wo_scales,
                                        .prepacked = a->wo_prepacked,
                                        .residual = address_at(a->residual, (int64_t)first_row_offset(x, &o->residual)),
                                        .y = address_at(a->out, (int64_t)first_row_offset(x, &o->y)),
                                        .workspace = workspace_at(c, p->scratch)};
}

/* Sets the arguments of attention, the append and the rotations. */
static void lay_out_attention(mha_call *c) {
    const full_mha *p = c->p;
    const rapt_mha_args *a = &c->args;
    rapt_args *to = &c->attention.args;
    c->attention.plan = mha_attention(p);
    c->attention.appended = p->cached && p->projections > 1 ? &c->append.tokens : NULL;
    to->q = workspace_at(c, p->qkv_offset[QUERIES]);
    to->k = p->cached ? a->k_cache : workspace_at(c, p->qkv_offset[KEYS]);
    to->v = p->cached ? a->v_cache : workspace_at(c, p->qkv_offset[VALUES]);
    to->o = p->has_output ? workspace_at(c, p->o) : a->out;
    to->k_scales = a->k_scales, to->v_scales = a->v_scales;
    to->workspace = workspace_at(c, p->scratch);

    c->append = p->append;
    c->append.args = (rapt_kv_append_args){.new_k = workspace_at(c, p->qkv_offset[KEYS]),
                                           .new_v = workspace_at(c, p->qkv_offset[VALUES]),
                                           .k = a->k_cache,
                                           .v = a->v_cache,
                                           .k_scales = a->k_scales,
                                           .v_scales = a->v_scales,
                                           .table = to->table,
                                           .table_starts = to->table_starts,
                                           .ring_starts = to->ring_starts,
                                           .rope_table = a->rope_table};
    c->append.tokens = (rapt_tokens){
        .batch = p->batch, .tokens = p->append.desc.tokens, .starts = a->starts, .token_starts = p->self ? p->q_starts : NULL};
    for (int i = 0; i < 2; i++) {
        c->rope[i].args = p->rope[i];
        c->rope[i].args.from = c->rope[i].args.to = workspace_at(c, p->qkv_offset[i]);
        c->rope[i].args.rope_table = a->rope_table;
        c->rope[i].tokens = (rapt_tokens){
            .batch = p->batch, .tokens = p->rope[i].tokens, .starts = a->starts, .token_starts = p->rope[i].token_starts};
    }
}

/* Registers the weights of the projections, their biases and scales, one by one or packed, and prepacked weights. */
static void register_weights(rapt_memory *m, const mha_call *c) {
    const full_mha *p = c->p;
    const rapt_mha_args *a = &c->args;
    const rapt_linear_weights w[PROJECTIONS] = {{.rows = a->wq, .bias = a->bq, .scales = a->wq_scales},
                                                {.rows = a->wk, .bias = a->bk, .scales = a->wk_scales},
                                                {.rows = a->wv, .bias = a->bv, .scales = a->wv_scales}};
    const int64_t all = p->projection_width[QUERIES] + p->projection_width[KEYS] + p->projection_width[VALUES];
    for (int i = 0; i < PROJECTIONS; i++) {
        const full_linear *plan = &p->project[i];
        if (p->packed && i > QUERIES) {
            rapt_unused(m, names[i].weight, w[i].rows, "packed weights have all rows in wq");
            rapt_unused(m, names[i].bias, w[i].bias, "packed weights have all biases in bq");
            rapt_unused(m, names[i].scales, w[i].scales, "packed weights have all scales in wq_scales");
        } else if (i < p->projections) {
            rapt_register_weights(m, &plan->problem.weight, p->packed ? all : p->projection_width[i], plan->weight_bytes, &w[i],
                                  &names[i]);
        }
    }
    const rapt_linear_weights wo = {.rows = a->wo, .bias = a->bo, .scales = a->wo_scales};
    if (p->has_output) {
        rapt_register_weights(m, &p->output.problem.weight, p->out_width, p->output.weight_bytes, &wo, &names[PROJECTIONS]);
    } else {
        rapt_unused(m, "wo", wo.rows, "the plan has no layout for it");
        rapt_unused(m, "bo", wo.bias, "the plan has no wo");
        rapt_unused(m, "wo_scales", wo.scales, "the plan has no wo");
        rapt_unused(m, "wo_prepacked", a->wo_prepacked, "the plan has no wo");
    }
    for (int i = 0; i < p->projections; i++)
        rapt_reads_prepacked(m, &p->project[i], names[i].prepacked, c->project[i].args.prepacked,
                             p->project[i].problem.weight.type);
    if (p->has_output)
        rapt_reads_prepacked(m, &p->output, names[PROJECTIONS].prepacked, a->wo_prepacked, p->output.problem.weight.type);
}

/* Checks the prepacked weights of all projections, that of the output included. */
static rapt_status check_prepacked(rapt_report *r, const mha_call *c) {
    const full_mha *p = c->p;
    rapt_status status = RAPT_OK;
    for (int i = 0; i < p->projections && status == RAPT_OK; i++)
        status = rapt_check_prepacked(r, &p->project[i], names[i].prepacked, c->project[i].args.prepacked,
                                      p->project[i].problem.weight.type);
    if (status != RAPT_OK || !p->has_output) return status;
    return rapt_check_prepacked(r, &p->output, names[PROJECTIONS].prepacked, c->args.wo_prepacked, p->output.problem.weight.type);
}

/* Registers X, Y, Z, the residual and the output, which may be the same memory as one of the others if their rows are alike. */
static void register_rows(rapt_memory *m, const mha_call *c) {
    const full_mha *p = c->p;
    const rapt_mha_args *a = &c->args;
    int out = rapt_writes(m, "out", a->out, p->out_bytes);
    for (int i = 0; i < p->projections; i++) {
        const token_rows *x = &p->x[i];
        if (same_input(p, i)) continue;
        /* NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): projections is at most PROJECTIONS */
        int in = rapt_reads(m, input_names[i], input_of(c, i), x->bytes);
        if (rapt_same_rows(&x->layout, &p->out) && x->width == p->out_width) rapt_may_be(m, in, out);
    }
    if (p->self) rapt_unused(m, "y", a->y, "Y is X");
    if (p->values_as_keys) rapt_unused(m, "z", a->z, p->self ? "Z is X" : "Z is Y");
    int residual =
        rapt_reads_if(m, p->residual.type, "residual", a->residual, p->residual_bytes, "the plan has no layout for it");
    if (rapt_same_rows(&p->residual, &p->out)) rapt_may_be(m, residual, out);
}

/* Registers the cache, as written if there are new keys, else as read only. */
static void register_cache(rapt_memory *m, const mha_call *c) {
    const full_mha *p = c->p;
    const rapt_mha_args *a = &c->args;
    const tensor_bytes *b = &mha_attention(p)->bytes;
    const rapt_problem *problem = &mha_attention(p)->problem;
    const char *const no_cache = "the plan has no cache", *const no_scales = p->cached ? "the plan has no scales" : no_cache;
    if (p->cached && p->projections > 1) {
        rapt_register_append(m, &c->append, "k_cache", "v_cache", false);
        return;
    }
    rapt_reads_if(m, p->cached, "k_cache", a->k_cache, b->k, no_cache);
    rapt_reads_if(m, p->cached, "v_cache", a->v_cache, b->v, no_cache);
    rapt_reads_if(m, problem->k_scales.present, "k_scales", a->k_scales, b->k_scales, no_scales);
    rapt_reads_if(m, problem->v_scales.present, "v_scales", a->v_scales, b->v_scales, no_scales);
}

/* Checks the memory of a call. given, needed: bytes of the workspace. */
static RAPT_NOINLINE rapt_status mha_check_memory(rapt_report *r, const mha_call *c, size_t given, size_t needed) {
    const full_mha *p = c->p;
    const rapt_mha_args *a = &c->args;
    rapt_memory m;
    rapt_memory_begin(&m, r);
    rapt_reads(&m, "plan", p, sizeof *p);
    register_rows(&m, c);
    register_weights(&m, c);
    register_cache(&m, c);
    rapt_reads_array(&m, "starts", a->starts, p->batch, sizeof(int32_t), true);
    rapt_register_rope(&m, &p->rope[QUERIES].rope, &a->rope_table);
    if (p->positions) {
        if (m.status == RAPT_OK && !rapt_within(a->table_positions, 0, RAPT_MAX_LENGTH))
            m.status = rapt_refuse_number(r, RAPT_ERR_SHAPE, "table_positions", a->table_positions, "must be 0 to 2147483647");
        rapt_reads_array(&m, "position_table", a->position_table,
                         m.status == RAPT_OK ? a->table_positions * p->x[QUERIES].width : 0, sizeof(float), false);
    } else {
        rapt_unused(&m, "position_table", a->position_table, "the plan has no table of positions");
    }
    const full_plan *attention = mha_attention(p);
    const char *const no_layout = "the plan has no layout for it";
    rapt_writes_if(&m, p->wants_attention_weights, "weights", a->weights, attention->bytes.scores, no_layout);
    r->owner = "attention.";
    rapt_writes_if(&m, attention->scores_stage && !p->wants_attention_weights, "scores", c->attention.args.scores,
                   attention->bytes.scores, p->wants_attention_weights ? "weights is what these are" : no_layout);
    rapt_register_attention(&m, &c->attention, false, -1);
    r->owner = "";
    rapt_writes_workspace(&m, a->workspace, given, needed);
    const rapt_status status = rapt_check_memory(&m);
    return status == RAPT_OK ? check_prepacked(r, c) : status;
}

/* Checks that the table has a row for each position of the tokens of X, Y and Z. */
static rapt_status mha_check_positions(rapt_report *r, const mha_call *c) {
    const full_mha *p = c->p;
    for (int i = 0; i < p->projections; i++) {
        const int32_t *starts = i == QUERIES || p->self ? p->q_starts : p->k_starts;
        for (int64_t b = 0; b < p->batch; b++) {
            int64_t first = c->args.starts ? c->args.starts[b] : 0;
            int64_t tokens = starts ? (int64_t)starts[b + 1] - starts[b] : p->x[i].tokens;
            if (tokens > 0 && first + tokens > c->args.table_positions)
                return rapt_refuse(r, RAPT_ERR_TABLE,
                                   "table_positions = %" PRId64 ": entry %" PRId64 " has tokens of positions up to %" PRId64,
                                   c->args.table_positions, b, first + tokens - 1);
        }
    }
    return RAPT_OK;
}

/* Reads the caller's structs into c, sets the arguments of the parts, and checks all of the call. */
static rapt_status mha_read_call(rapt_report *r, mha_call *c, const rapt_mha_plan *opaque, const rapt_mha_args *args,
                                 int64_t nth) {
    rapt_status status;
    size_t bytes = 0;
    const full_mha *p = c->p = mha_read_plan(r, opaque, &status);
    if (status == RAPT_OK)
        status = rapt_read_struct(r, "args", &c->args, &default_mha_args, sizeof c->args, RAPT_BEFORE(rapt_mha_args, rope_table),
                                  args);
    c->attention.args = rapt_default_args;
    if (status == RAPT_OK && c->args.attention) status = rapt_read_args(r, "attention", &c->attention.args, c->args.attention);
    if (status == RAPT_OK) status = mha_workspace(r, p, nth, &bytes);
    if (status != RAPT_OK) return status;
    size_t given = c->args.workspace_bytes;
    lay_out_linear(c, nth);
    lay_out_attention(c);
    status = mha_check_memory(r, c, given, bytes);
    if (p->wants_attention_weights) c->attention.args.scores = c->args.weights;
    bool appends = p->cached && p->projections > 1;
    for (int i = 0; i < 2 && status == RAPT_OK; i++)
        if (i == QUERIES || p->projections > 1) status = rapt_check_tokens(r, &c->rope[i].tokens);
    if (status == RAPT_OK && p->positions) status = mha_check_positions(r, c);
    if (status == RAPT_OK && appends) status = rapt_check_room(r, &c->append);
    if (status == RAPT_OK)
        status = rapt_check_rope(r, &p->rope[QUERIES].rope, p->rope[QUERIES].d); /* its frequencies may have changed */
    for (int i = 0; i < 2 && status == RAPT_OK; i++)
        if (i == QUERIES || p->projections > 1)
            status = rapt_check_positions(r, &p->rope[i].rope, &c->args.rope_table, &c->rope[i].tokens);
    r->owner = "attention.";
    if (status == RAPT_OK && appends) status = rapt_check_places(r, &c->append);
    if (status == RAPT_OK) status = rapt_check_entries(r, &c->attention);
    r->owner = "";
    return status;
}

rapt_status rapt_mha_args_explain(const rapt_mha_plan *plan, const rapt_mha_args *args, int64_t nth, char *text, size_t bytes) {
    rapt_report r = rapt_explanation_of("rapt_mha_run", text, bytes);
    mha_call c;
    const rapt_status status = mha_read_call(&r, &c, plan, args, nth);
    return status == RAPT_OK ? rapt_check_floats(&r) : status;
}

/* Writes thread ith's share of the rows of input i, each plus its row of the position table, in f32, to the workspace. */
static void add_positions(const mha_call *c, int i, int64_t ith, int64_t nth) {
    const full_mha *p = c->p;
    const token_rows *x = &p->x[i];
    const int32_t *starts = i == QUERIES || p->self ? p->q_starts : p->k_starts;
    int64_t first, count, entry = 0;
    rapt_cut_range(p->batch ? x->batch * x->count : 0, 1, ith, nth, &first, &count);
    for (int64_t n = first; n < first + count; n++) {
        int64_t row = n + x->first; /* the row's number in the input, counted through all entries */
        while (starts && row >= starts[entry + 1]) entry++;
        if (!starts) entry = n / x->tokens;
        int64_t token = starts ? row - starts[entry] : n % x->tokens;
        int64_t position = token + (c->args.starts ? c->args.starts[entry] : 0);
        const char *from =
            (const char *)input_of(c, i) + row / x->tokens * x->layout.batch_stride + row % x->tokens * x->layout.token_stride;
        float *to = (float *)workspace_at(c, x->summed) + row * x->width;
        rapt_load_row(x->layout.type, to, from, x->width);
        for (int64_t k = 0; k < x->width; k++) to[k] += c->args.position_table[position * x->width + k];
    }
}

static void mha_share(const void *call, int phase, int64_t ith, int64_t nth, atomic_llong *next) {
    const mha_call *c = call;
    const full_mha *p = c->p;
    int part;
    switch (step_of(p, phase, &part)) {
    case ADD_POSITIONS:
        for (int i = 0; i < p->projections; i++)
            if (!same_input(p, i)) add_positions(c, i, ith, nth);
        break;
    case PROJECT:
        for (int i = 0; i < p->projections; i++) rapt_linear_share(&c->project[i], ith, nth);
        break;
    case ROTATE_AND_APPEND:
        if (p->rope[QUERIES].rope.channels) rapt_rope_share(&c->rope[QUERIES], ith, nth);
        if (p->projections == 1) break;
        if (p->cached) rapt_append_share(&c->append, ith, nth);
        else rapt_rope_share(&c->rope[KEYS], ith, nth);
        break;
    case ATTEND:
        rapt_attend_share(&c->attention, part, ith, nth, next);
        break;
    case OUTPUT:
        rapt_linear_share(&c->output, ith, nth);
        break;
    }
}

static rapt_status mha_run(const char *name, const rapt_mha_plan *plan, const rapt_mha_args *args, rapt_way way) {
    rapt_report r = rapt_report_of(name);
    mha_call c;
    rapt_status status = mha_read_call(&r, &c, plan, args, way.nth);
    if (status != RAPT_OK) return status;
    const rapt_work w = {.call = &c, .phases = phase_count(c.p), .share = mha_share};
    return rapt_work_run(&r, &w, &way);
}

rapt_status rapt_mha_run(const rapt_mha_plan *plan, const rapt_mha_args *args) {
    return mha_run("rapt_mha_run", plan, args, rapt_alone());
}
rapt_status rapt_mha_run_parallel(const rapt_mha_plan *plan, const rapt_mha_args *args, int64_t nth,
                                  rapt_parallel_for parallel_for, void *pool) {
    return mha_run("rapt_mha_run_parallel", plan, args, rapt_parallel(nth, parallel_for, pool));
}
rapt_status rapt_mha_run_share(const rapt_mha_plan *plan, const rapt_mha_args *args, int64_t ith, int64_t nth,
                               rapt_barrier barrier, void *barrier_arg) {
    return mha_run("rapt_mha_run_share", plan, args, rapt_share(ith, nth, barrier, barrier_arg));
}
rapt_status rapt_mha_run_phase(const rapt_mha_plan *plan, const rapt_mha_args *args, int phase, int64_t ith, int64_t nth) {
    return mha_run("rapt_mha_run_phase", plan, args, rapt_phase(phase, ith, nth));
}
