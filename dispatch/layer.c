/* SPDX-License-Identifier: Apache-2.0 */
/* Multi-head attention as one call: projections, the cache, attention and the output's projection, each a phase of what the
 * public functions do, with what lies between them in the workspace. */
#include <string.h>

#include "parts.h"
#include "plan.h"
#include "rotary.h"
#include "select.h"

void rapt_layer_desc_init_sized(rapt_layer_desc *desc, size_t size) {
    if (!desc || size < sizeof *desc) return;
    memset(desc, 0, size);
    desc->size = size;
    desc->rotary.amplitude = 1.0;
}

void rapt_layer_args_init_sized(rapt_layer_args *args, size_t size) {
    if (!args || size < sizeof *args) return;
    memset(args, 0, size);
    args->size = size;
}

enum { QUERIES, KEYS, VALUES, PROJECTIONS };

/* What a phase does. Of ATTEND and WEIGH there may be several, WEIGH for each part of the columns. */
typedef enum step { ADD_POSITIONS, PROJECT, PLACE, ATTEND, WEIGH, REVERSE, OUTPUT } step;

/* Rows [batch, tokens] of channels of the caller's, and where their sum with positions lies. */
typedef struct token_rows {
    int64_t batch, tokens, width;
    rapt_layout layout;
    size_t summed;
} token_rows;

typedef struct full_layer {
    uint64_t made; /* LAYER_MADE, or this is no plan */
    rapt_plan attention, weighing;
    rapt_linear_plan project[PROJECTIONS], output;
    rapt_append_desc append;
    rapt_rope_args rope[2]; /* of Q, and of K where there is no cache */
    token_rows x[PROJECTIONS];
    int64_t batch, q_len, kv_len, heads;
    int64_t projected[PROJECTIONS]; /* channels */
    int64_t wq_rows[PROJECTIONS];   /* of packed weights, where each begins */
    int projections;                /* 1 without new keys, else all */
    bool self, values_as_keys, cached, packed, positions, has_output;
    rapt_layout weights, out, weight[PROJECTIONS + 1];
    int64_t out_width, columns, column_parts;
    int attend_phases, weigh_phases;
    const int32_t *q_starts, *k_starts;
    size_t between[PROJECTIONS], o, identity, scratch; /* offsets in the workspace */
    rapt_plan_info info;
} full_layer;

#define LAYER_MADE UINT64_C(0x33302e72656c0000) /* changes with the layout of struct full_layer */

_Static_assert(sizeof(full_layer) <= sizeof(rapt_layer_plan), "rapt_layer_plan is too small");

static const full_layer *layer_of(const rapt_layer_plan *opaque) {
    const full_layer *p = (const full_layer *)(const void *)opaque;
    return p && p->made == LAYER_MADE ? p : NULL;
}

/* Is this input the one before it? */
static bool same_input(const full_layer *p, int i) { return (i == KEYS && p->self) || (i == VALUES && p->values_as_keys); }

/* ---- The plan ------------------------------------------------------------------------------------------------------------ */

static rapt_layout dense(int64_t tokens, int64_t channels) { return rapt_layout_bshd(RAPT_F32, 1, tokens, channels); }

/* Room in the workspace for so many rows. */
static bool reserve(size_t *used, size_t *at, int64_t rows, int64_t channels) {
    *at = *used;
    int64_t floats = rapt_product(rows, channels), bytes = floats < 0 || floats > INT64_MAX / 8 ? -1 : floats * 4 + 63;
    return bytes >= 0 && !__builtin_add_overflow(*used, (size_t)bytes / 64 * 64, used);
}

/* Which inputs there are, and of what shape. */
static rapt_status plan_inputs(full_layer *p, const rapt_layer_desc *d, const rapt_desc *a) {
    int64_t widths[] = {d->x_width, d->y_width ? d->y_width : d->x_width, 0};
    widths[VALUES] = d->z_width ? d->z_width : widths[KEYS];
    int64_t keys = p->self ? a->q_len : d->keys, key_batch = (p->self ? p->q_starts : p->k_starts) ? 1 : a->batch;
    if (keys < 0 || keys > RAPT_MAX_LENGTH) return RAPT_ERR_SHAPE;
    for (int i = 0; i < PROJECTIONS; i++)
        p->x[i] = (token_rows){i == QUERIES ? (p->q_starts ? 1 : a->batch) : key_batch, i == QUERIES ? a->q_len : keys, widths[i],
                               i == QUERIES || p->self          ? d->x
                               : i == KEYS || p->values_as_keys ? d->y
                                                                : d->z,
                               0};
    if ((p->self && widths[KEYS] != widths[QUERIES]) || (p->values_as_keys && widths[VALUES] != widths[KEYS]) ||
        ((d->packed || d->position_table) && (widths[KEYS] != widths[QUERIES] || widths[VALUES] != widths[QUERIES])))
        return RAPT_ERR_SHAPE;
    p->projections = p->cached && !p->self && keys == 0 ? 1 : PROJECTIONS;
    rapt_status status = RAPT_OK;
    for (int i = 0; i < p->projections && status == RAPT_OK; i++) { /* with positions, no linear map reads them */
        const token_rows *x = &p->x[i];
        rapt_type type = x->layout.type;
        uint64_t bytes;
        if (x->width < 1 || x->width > RAPT_MAX_WIDTH) return RAPT_ERR_SHAPE;
        if (type != RAPT_F32 && type != RAPT_F16 && type != RAPT_BF16) return RAPT_ERR_TYPE;
        status = rapt_measure(&x->layout, x->batch, 1, x->tokens, x->width, false, &bytes);
    }
    return status;
}

static rapt_status plan_projections(full_layer *p, const rapt_layer_desc *d, const rapt_desc *a) {
    int64_t outs[] = {a->heads * a->d_k, a->kv_heads * a->d_k, a->kv_heads * a->d_v};
    int64_t rows = 0;
    rapt_status status = RAPT_OK;
    for (int i = 0; i < PROJECTIONS; i++) {
        p->projected[i] = outs[i];
        p->wq_rows[i] = d->packed ? rows : 0;
        p->weight[i] = d->packed || i == QUERIES ? d->wq : i == KEYS ? d->wk : d->wv;
        rows += outs[i];
        if (i >= p->projections || status != RAPT_OK) continue;
        rapt_linear_desc l;
        rapt_linear_desc_init(&l);
        l.batch = p->x[i].batch, l.tokens = p->x[i].tokens, l.in = p->x[i].width, l.out = outs[i];
        l.x = p->positions ? dense(l.tokens, l.in) : p->x[i].layout;
        l.y = dense(l.tokens, l.out);
        l.weight = p->weight[i];
        l.isa = a->isa;
        status = rapt_linear_plan_init(&p->project[i], &l);
    }
    if (status != RAPT_OK || !p->has_output) return status;
    rapt_linear_desc l;
    rapt_linear_desc_init(&l);
    l.batch = p->x[QUERIES].batch, l.tokens = a->q_len, l.in = a->heads * a->d_v, l.out = p->out_width;
    l.x = dense(l.tokens, l.in);
    l.y = d->out, l.residual = d->residual, l.weight = d->wo, l.isa = a->isa;
    return rapt_linear_plan_init(&p->output, &l);
}

/* Where the new keys and values go, and how they and the queries are rotated. */
static rapt_status plan_places(full_layer *p, const rapt_layer_desc *d, const rapt_desc *a) {
    rapt_status status = rapt_check_rotary(&d->rotary, a->d_k);
    if (status != RAPT_OK) return status;
    int64_t keys = p->x[KEYS].tokens;
    rapt_layout new_k = rapt_layout_bshd(RAPT_F32, a->kv_heads, keys, a->d_k);
    rapt_layout new_v = rapt_layout_bshd(RAPT_F32, a->kv_heads, keys, a->d_v);
    for (int i = 0; i < 2; i++) {
        rapt_rope_args_init(&p->rope[i]);
        p->rope[i].batch = a->batch;
        p->rope[i].heads = i == QUERIES ? a->heads : a->kv_heads;
        p->rope[i].tokens = p->x[i].tokens;
        p->rope[i].d = a->d_k;
        p->rope[i].in = p->rope[i].out = rapt_layout_bshd(RAPT_F32, p->rope[i].heads, p->x[i].tokens, a->d_k);
        p->rope[i].rotary = d->rotary;
        p->rope[i].token_starts = i == QUERIES || p->self ? p->q_starts : p->k_starts;
    }
    rapt_append_desc_init(&p->append);
    p->append.batch = a->batch, p->append.kv_heads = a->kv_heads, p->append.tokens = keys, p->append.kv_len = a->kv_len;
    p->append.d_k = a->d_k, p->append.d_v = a->d_v, p->append.new_k = new_k, p->append.new_v = new_v;
    p->append.k = a->k, p->append.v = a->v, p->append.k_scales = a->k_scales, p->append.v_scales = a->v_scales;
    p->append.page_size = a->page_size, p->append.pages = a->pages, p->append.table = a->table;
    p->append.trust_table = a->trust_table, p->append.rotary = d->rotary;
    return RAPT_OK;
}

static rapt_status plan_attention(full_layer *p, const rapt_layer_desc *d, rapt_desc *a) {
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
    p->kv_len = a->kv_len;
    rapt_status status = rapt_plan_init(&p->attention, a);
    p->info.size = sizeof p->info;
    if (status == RAPT_OK) status = rapt_plan_query(&p->attention, &p->info);
    p->attend_phases = p->info.phases;
    p->weights = d->weights;
    if (status != RAPT_OK || !d->weights.type) return status;
    if (a->page_size || a->arith != RAPT_EXACT) return RAPT_ERR_FEATURE;
    /* V = identity, its columns in reverse order: row j begins j elements further on in zeros with a single one. */
    rapt_desc w = *a;
    p->column_parts = (a->kv_len + RAPT_MAX_HEAD_DIM - 1) / RAPT_MAX_HEAD_DIM;
    p->columns = p->column_parts ? (a->kv_len + p->column_parts - 1) / p->column_parts : 1;
    w.d_v = p->columns;
    w.v = (rapt_layout){.type = RAPT_F32, .token_stride = sizeof(float)};
    w.o = d->weights;
    memset(&w.lse, 0, sizeof w.lse);
    memset(&w.v_scales, 0, sizeof w.v_scales);
    if (w.o.type != RAPT_F32) return RAPT_ERR_TYPE;
    uint64_t bytes;
    status = rapt_measure(&w.o, w.q_starts ? 1 : w.batch, w.heads, w.q_len, a->kv_len, true, &bytes);
    if (status == RAPT_OK) status = rapt_plan_init(&p->weighing, &w);
    rapt_plan_info info = {.size = sizeof info};
    if (status == RAPT_OK) status = rapt_plan_query(&p->weighing, &info);
    p->weigh_phases = info.phases;
    return status;
}

static rapt_status plan_workspace(full_layer *p, const rapt_desc *a) {
    size_t used = 0;
    bool fits = true;
    for (int i = 0; i < p->projections && p->positions; i++) {
        if (same_input(p, i)) p->x[i].summed = p->x[i - 1].summed;
        else fits = fits && reserve(&used, &p->x[i].summed, p->x[i].batch * p->x[i].tokens, p->x[i].width);
    }
    for (int i = 0; i < p->projections; i++)
        fits = fits && reserve(&used, &p->between[i], p->x[i].batch * p->x[i].tokens, p->projected[i]);
    if (p->has_output) fits = fits && reserve(&used, &p->o, p->x[QUERIES].batch * a->q_len, a->heads * a->d_v);
    if (p->weights.type) fits = fits && reserve(&used, &p->identity, 2, a->kv_len);
    p->scratch = used;
    return fits ? RAPT_OK : RAPT_ERR_SHAPE;
}

rapt_status rapt_layer_plan_init(rapt_layer_plan *opaque, const rapt_layer_desc *desc) {
    rapt_layer_desc d;
    rapt_desc a;
    if (!opaque) return RAPT_ERR_NULL;
    rapt_status status = rapt_read_struct(&d, sizeof d, desc);
    if (status == RAPT_OK) status = rapt_read_struct(&a, sizeof a, d.attention);
    if (status != RAPT_OK) return status;
    a.size = sizeof a;
    full_layer p = {.made = LAYER_MADE,
                    .self = !d.y.type,
                    .values_as_keys = !d.z.type,
                    .cached = a.k.type || a.v.type,
                    .packed = d.packed != 0,
                    .positions = d.position_table != 0,
                    .has_output = d.wo.type != 0,
                    .batch = a.batch,
                    .q_len = a.q_len,
                    .heads = a.heads,
                    .out = d.out,
                    .q_starts = a.q_starts,
                    .k_starts = a.k_starts};
    if (p.cached && !(a.k.type && a.v.type)) return RAPT_ERR_TYPE;
    if (a.unmerged || a.kv_first || a.kv_total || (p.cached && p.k_starts && (p.self || d.keys != 0)) || (p.self && d.z.type))
        return RAPT_ERR_FEATURE;
    if (a.heads < 1 || a.heads > RAPT_MAX_WIDTH || a.kv_heads < 1 || a.kv_heads > a.heads || a.d_k < 1 || a.d_v < 1 ||
        a.d_k > RAPT_MAX_HEAD_DIM || a.d_v > RAPT_MAX_HEAD_DIM || a.batch < 0 || a.batch > RAPT_MAX_LENGTH || a.q_len < 0 ||
        a.q_len > RAPT_MAX_LENGTH)
        return RAPT_ERR_SHAPE;
    p.weight[PROJECTIONS] = d.wo;
    p.out_width = p.has_output ? (d.out_width ? d.out_width : d.x_width) : a.heads * a.d_v;
    if (!p.has_output && (d.residual.type || (d.out_width && d.out_width != p.out_width))) return RAPT_ERR_FEATURE;
    if (p.self && !p.cached) p.k_starts = p.q_starts;
    status = plan_inputs(&p, &d, &a);
    if (status == RAPT_OK) status = plan_projections(&p, &d, &a);
    if (status == RAPT_OK) status = plan_places(&p, &d, &a);
    if (status == RAPT_OK) status = plan_attention(&p, &d, &a);
    if (status == RAPT_OK) status = plan_workspace(&p, &a);
    if (status != RAPT_OK) return status;
    memset(opaque, 0, sizeof *opaque);
    memcpy(opaque, &p, sizeof p);
    return RAPT_OK;
}

/* ---- Phases -------------------------------------------------------------------------------------------------------------- */

static bool places(const full_layer *p) { return p->rope[QUERIES].rotary.channels || (p->cached && p->projections > 1); }

static int phase_count(const full_layer *p) {
    int64_t weighing = p->weights.type ? p->column_parts * p->weigh_phases + 1 : 0;
    return (int)(p->positions + 1 + places(p) + p->attend_phases + weighing + p->has_output);
}

/* What a phase is; part: of a step that has several. */
static step step_of(const full_layer *p, int phase, int *part) {
    *part = 0;
    if (p->positions && phase-- == 0) return ADD_POSITIONS;
    if (phase-- == 0) return PROJECT;
    if (places(p) && phase-- == 0) return PLACE;
    *part = phase;
    if (phase < p->attend_phases) return ATTEND;
    *part = phase -= p->attend_phases;
    if (!p->weights.type) return OUTPUT;
    if (phase < p->column_parts * p->weigh_phases) return WEIGH;
    return phase == p->column_parts * p->weigh_phases ? REVERSE : OUTPUT;
}

rapt_status rapt_layer_plan_query(const rapt_layer_plan *opaque, rapt_layer_plan_info *info) {
    if (!opaque || !info) return RAPT_ERR_NULL;
    const full_layer *p = layer_of(opaque);
    if (!p) return RAPT_ERR_PLAN;
    if (info->size < sizeof *info) return RAPT_ERR_STRUCT;
    info->isa = p->info.isa, info->rounding = p->info.rounding, info->phases = phase_count(p);
    return RAPT_OK;
}

/* Scratch of nth threads, of whichever phase needs most. */
static rapt_status scratch_bytes(const full_layer *p, int64_t nth, size_t *bytes) {
    size_t most = 0, one;
    rapt_status status = rapt_workspace_size(&p->attention, nth, &most);
    if (status == RAPT_OK && p->weights.type) {
        status = rapt_workspace_size(&p->weighing, nth, &one);
        most = one > most ? one : most;
    }
    if (status == RAPT_OK && p->has_output) {
        status = rapt_linear_workspace_size(&p->output, nth, &one);
        most = one > most ? one : most;
    }
    size_t all = 0; /* projections share a phase, so each has its own */
    for (int i = 0; i < p->projections && status == RAPT_OK; i++) {
        status = rapt_linear_workspace_size(&p->project[i], nth, &one);
        if (__builtin_add_overflow(all, one, &all)) status = RAPT_ERR_SHAPE;
    }
    most = all > most ? all : most;
    *bytes = most;
    return status;
}

rapt_status rapt_layer_workspace_size(const rapt_layer_plan *opaque, int64_t nth, size_t *bytes) {
    if (!opaque || !bytes) return RAPT_ERR_NULL;
    const full_layer *p = layer_of(opaque);
    if (!p) return RAPT_ERR_PLAN;
    size_t scratch;
    rapt_status status = scratch_bytes(p, nth, &scratch);
    if (status != RAPT_OK) return status;
    return __builtin_add_overflow(p->scratch, scratch, bytes) ? RAPT_ERR_SHAPE : RAPT_OK;
}

/* ---- Calls --------------------------------------------------------------------------------------------------------------- */

/* A call in progress: the arguments of each part. */
typedef struct call {
    const full_layer *p;
    rapt_layer_args args;
    rapt_args attention, weighing;
    rapt_linear_args project[PROJECTIONS], output;
    rapt_append_args append;
    rapt_rope_args rope[2];
    int64_t nth;
} call;

static void *at(const call *c, size_t offset) { return (char *)c->args.workspace + offset; }

static const void *input_of(const call *c, int i) {
    const full_layer *p = c->p;
    return i == QUERIES || p->self ? c->args.x : i == KEYS || p->values_as_keys ? c->args.y : c->args.z;
}

static const float *behind(const float *from, int64_t n) { return from ? from + n : NULL; }

static void lay_out_call(call *c) {
    const full_layer *p = c->p;
    const rapt_layer_args *a = &c->args;
    const void *weights[] = {a->wq, a->wk, a->wv};
    const float *biases[] = {a->bq, a->bk, a->bv}, *scales[] = {a->wq_scales, a->wk_scales, a->wv_scales};
    void *scratch = at(c, p->scratch);
    size_t scratch_left = a->workspace_bytes - p->scratch, projecting = 0;
    for (int i = 0; i < p->projections; i++) {
        int64_t rows = p->wq_rows[i];
        rapt_linear_args *l = &c->project[i];
        rapt_linear_args_init(l);
        l->x = p->positions ? at(c, p->x[i].summed) : input_of(c, i);
        l->weight = p->packed ? a->wq ? (const char *)a->wq + rows * p->weight[i].token_stride : NULL : weights[i];
        l->bias = p->packed ? behind(a->bq, rows) : biases[i];
        l->scales = p->packed ? behind(a->wq_scales, rows) : scales[i];
        l->y = at(c, p->between[i]);
        rapt_linear_workspace_size(&p->project[i], c->nth, &l->workspace_bytes);
        l->workspace = (char *)scratch + projecting;
        projecting += l->workspace_bytes;
    }
    rapt_linear_args_init(&c->output);
    c->output.x = at(c, p->o), c->output.weight = a->wo, c->output.bias = a->bo, c->output.scales = a->wo_scales;
    c->output.residual = a->residual, c->output.y = a->out;
    c->output.workspace = scratch, c->output.workspace_bytes = scratch_left;

    rapt_args *r = &c->attention;
    r->q = at(c, p->between[QUERIES]);
    r->k = p->cached ? a->k_cache : at(c, p->between[KEYS]);
    r->v = p->cached ? a->v_cache : at(c, p->between[VALUES]);
    r->o = p->has_output ? at(c, p->o) : a->out;
    r->k_scales = a->k_scales, r->v_scales = a->v_scales;
    r->workspace = scratch, r->workspace_bytes = scratch_left;
    c->weighing = *r;

    rapt_append_args_init(&c->append);
    c->append.new_k = at(c, p->between[KEYS]), c->append.new_v = at(c, p->between[VALUES]);
    c->append.k = a->k_cache, c->append.v = a->v_cache, c->append.k_scales = a->k_scales, c->append.v_scales = a->v_scales;
    c->append.starts = a->starts, c->append.token_starts = p->self ? p->q_starts : NULL;
    c->append.table = r->table, c->append.table_starts = r->table_starts, c->append.ring_starts = r->ring_starts;
    for (int i = 0; i < 2; i++) {
        c->rope[i] = p->rope[i];
        c->rope[i].from = c->rope[i].to = at(c, p->between[i]);
        c->rope[i].starts = a->starts;
    }
}

/* Positions of the tokens of X, Y and Z against the table's. */
static rapt_status check_positions(const call *c) {
    const full_layer *p = c->p;
    if (c->args.table_positions < 0 || c->args.table_positions > RAPT_MAX_LENGTH) return RAPT_ERR_SHAPE;
    for (int i = 0; i < p->projections; i++) {
        const int32_t *starts = i == QUERIES || p->self ? p->q_starts : p->k_starts;
        for (int64_t b = 0; b < p->batch; b++) {
            int64_t first = c->args.starts ? c->args.starts[b] : 0;
            int64_t tokens = starts ? (int64_t)starts[b + 1] - starts[b] : p->x[i].tokens;
            if (first < 0 || (tokens > 0 && first + tokens > c->args.table_positions)) return RAPT_ERR_TABLE;
        }
    }
    return RAPT_OK;
}

typedef struct ranges {
    rapt_range at[32];
    int n;
    rapt_status status;
} ranges;

static void add_bytes(ranges *r, const void *from, uint64_t bytes) {
    if (bytes && !from) r->status = RAPT_ERR_NULL;
    else if (bytes > UINTPTR_MAX - (uintptr_t)from) r->status = RAPT_ERR_STRIDE;
    else r->at[r->n++] = (rapt_range){(uintptr_t)from, bytes};
}

static void add_rows(ranges *r, const void *from, const rapt_layout *layout, int64_t batch, int64_t heads, int64_t rows,
                     int64_t channels) {
    uint64_t bytes;
    if (rapt_measure(layout, batch, heads, rows, channels, false, &bytes) == RAPT_OK)
        add_bytes(r, from, bytes); /* else: planned */
}

/* What the parts cannot know: the workspace as a whole, and the outputs, against all else. */
static rapt_status check_memory(const call *c, rapt_range own) {
    const full_layer *p = c->p;
    const rapt_layer_args *a = &c->args;
    ranges in = {.n = 0}, out = {.n = 0};
    for (int i = 0; i < p->projections; i++) {
        const rapt_linear_args *l = &c->project[i];
        add_rows(&in, l->weight, &p->weight[i], 1, 1, p->projected[i], p->x[i].width);
        add_bytes(&in, l->bias, l->bias ? (uint64_t)p->projected[i] * sizeof(float) : 0);
        add_bytes(&in, l->scales, l->scales ? (uint64_t)p->projected[i] * sizeof(float) : 0);
    }
    if (p->has_output) {
        add_rows(&in, a->wo, &p->weight[PROJECTIONS], 1, 1, p->out_width, p->x[QUERIES].tokens ? p->heads * p->append.d_v : 0);
        add_bytes(&in, a->bo, a->bo ? (uint64_t)p->out_width * sizeof(float) : 0);
        add_bytes(&in, a->wo_scales, a->wo_scales ? (uint64_t)p->out_width * sizeof(float) : 0);
    }
    if (p->positions) add_bytes(&in, a->position_table, (uint64_t)(a->table_positions * p->x[QUERIES].width) * sizeof(float));
    add_bytes(&in, a->starts, a->starts ? (uint64_t)p->batch * sizeof *a->starts : 0);
    add_rows(&out, a->out, &p->out, p->x[QUERIES].batch, 1, p->q_len, p->out_width);
    if (p->weights.type) add_rows(&out, a->weights, &p->weights, p->x[QUERIES].batch, p->heads, p->q_len, p->kv_len);
    int outs = out.n;
    for (int i = 0; i < p->projections; i++) /* may be where out is, but not in the workspace, nor where the weights go */
        add_rows(&out, input_of(c, i), &p->x[i].layout, p->x[i].batch, 1, p->x[i].tokens, p->x[i].width);
    if (in.status != RAPT_OK || out.status != RAPT_OK) return in.status != RAPT_OK ? in.status : out.status;
    for (int i = 0; i < in.n; i++) {
        if (rapt_ranges_meet(in.at[i], own)) return RAPT_ERR_OVERLAP;
        for (int j = 0; j < outs; j++)
            if (rapt_ranges_meet(in.at[i], out.at[j])) return RAPT_ERR_OVERLAP;
    }
    for (int i = 0; i < out.n; i++) {
        if (rapt_ranges_meet(out.at[i], own)) return RAPT_ERR_OVERLAP;
        if (p->weights.type && i != 1 && rapt_ranges_meet(out.at[i], out.at[1])) return RAPT_ERR_OVERLAP;
    }
    return RAPT_OK;
}

/* Attention with a part of the identity's columns for V; the last part may repeat columns of the one before. */
static rapt_args weigh_args(const call *c, int part) {
    const full_layer *p = c->p;
    int64_t column = part / p->weigh_phases * p->columns;
    if (column > p->kv_len - p->columns) column = p->kv_len - p->columns;
    rapt_args a = c->weighing;
    a.v = (const float *)at(c, p->identity) + column;
    a.o = c->args.weights + column;
    return a;
}

static rapt_status start_call(call *c, const rapt_layer_plan *opaque, const rapt_layer_args *args, int64_t nth) {
    if (!opaque) return RAPT_ERR_NULL;
    const full_layer *p = c->p = layer_of(opaque);
    if (!p) return RAPT_ERR_PLAN;
    rapt_status status = rapt_read_struct(&c->args, sizeof c->args, args);
    if (status != RAPT_OK) return status;
    rapt_args_init(&c->attention);
    if (c->args.attention) status = rapt_read_struct(&c->attention, sizeof c->attention, c->args.attention);
    c->attention.size = sizeof c->attention;
    c->nth = nth;
    size_t bytes = 0;
    if (status == RAPT_OK) status = rapt_layer_workspace_size(opaque, nth, &bytes);
    if (status != RAPT_OK) return status;
    if (bytes && (!c->args.workspace || c->args.workspace_bytes < bytes)) return RAPT_ERR_WORKSPACE;
    if (bytes && (uintptr_t)c->args.workspace % RAPT_WORKSPACE_ALIGNMENT) return RAPT_ERR_ALIGNMENT;
    const rapt_range own = {(uintptr_t)c->args.workspace, bytes};
    c->args.workspace_bytes = bytes;
    lay_out_call(c);
    if (p->weights.type && c->attention.ring_starts) return RAPT_ERR_FEATURE;
    for (int i = 0; i < p->projections && status == RAPT_OK; i++) status = rapt_check_linear(&p->project[i], &c->project[i], nth);
    if (status == RAPT_OK && p->has_output) status = rapt_check_linear(&p->output, &c->output, nth);
    if (status == RAPT_OK && p->positions) status = check_positions(c);
    if (status == RAPT_OK) status = check_memory(c, own);
    if (status == RAPT_OK && p->cached && p->projections > 1) status = rapt_check_append(&p->append, &c->append);
    if (status == RAPT_OK) status = rapt_check_run(&p->attention, &c->attention, nth, own);
    if (status == RAPT_OK && p->weights.type) {
        rapt_args a = weigh_args(c, 0);
        status = rapt_check_run(&p->weighing, &a, nth, own);
    }
    for (int64_t b = 0; status == RAPT_OK && c->args.starts && b < p->batch; b++)
        if (c->args.starts[b] < 0) status = RAPT_ERR_TABLE;
    return status;
}

/* Thread ith's part of n things. */
static void share(int64_t n, int64_t ith, int64_t nth, int64_t *first, int64_t *end) {
    *first = n / nth * ith + (ith < n % nth ? ith : n % nth);
    *end = *first + n / nth + (ith < n % nth);
}

/* X + positions, in f32. */
static void add_positions(const call *c, int i, int64_t ith) {
    const full_layer *p = c->p;
    const token_rows *x = &p->x[i];
    const int32_t *starts = i == QUERIES || p->self ? p->q_starts : p->k_starts;
    int64_t first, end, entry = 0;
    share(p->batch ? x->batch * x->tokens : 0, ith, c->nth, &first, &end);
    for (int64_t n = first; n < end; n++) {
        while (starts && entry + 1 < p->batch && n >= starts[entry + 1]) entry++;
        if (!starts) entry = n / x->tokens;
        int64_t token = starts ? n - starts[entry] : n % x->tokens;
        int64_t position = token + (c->args.starts ? c->args.starts[entry] : 0);
        if (position < 0 || position >= c->args.table_positions)
            continue; /* a token before the first entry's, or behind the last's */
        const char *from =
            (const char *)input_of(c, i) + n / x->tokens * x->layout.batch_stride + n % x->tokens * x->layout.token_stride;
        float *to = (float *)at(c, x->summed) + n * x->width;
        rapt_load_row(x->layout.type, to, from, x->width);
        for (int64_t k = 0; k < x->width; k++) to[k] += c->args.position_table[position * x->width + k];
    }
}

/* The identity's columns were in reverse order, so are the weights. */
static void reverse_rows(const call *c, int64_t ith) {
    const full_layer *p = c->p;
    int64_t first, end, batch = p->x[QUERIES].batch;
    share(batch * p->heads * p->q_len, ith, c->nth, &first, &end);
    for (int64_t n = first; n < end; n++) {
        char *row = (char *)c->args.weights + n / p->q_len / p->heads * p->weights.batch_stride +
                    n / p->q_len % p->heads * p->weights.head_stride + n % p->q_len * p->weights.token_stride;
        for (int64_t i = 0, j = p->kv_len - 1; i < j; i++, j--) {
            char swapped[sizeof(float)];
            memcpy(swapped, row + i * 4, sizeof swapped);
            memcpy(row + i * 4, row + j * 4, sizeof swapped);
            memcpy(row + j * 4, swapped, sizeof swapped);
        }
    }
}

static rapt_status run_phase(const call *c, int phase, int64_t ith) {
    const full_layer *p = c->p;
    rapt_status status = RAPT_OK;
    int part;
    switch (step_of(p, phase, &part)) {
    case ADD_POSITIONS:
        for (int i = 0; i < p->projections; i++)
            if (!same_input(p, i)) add_positions(c, i, ith);
        return RAPT_OK;
    case PROJECT:
        for (int i = 0; i < p->projections && status == RAPT_OK; i++)
            status = rapt_linear_run(&p->project[i], &c->project[i], ith, c->nth);
        if (p->weights.type && ith == 0) {
            memset(at(c, p->identity), 0, (size_t)p->kv_len * 2 * sizeof(float));
            if (p->kv_len) ((float *)at(c, p->identity))[p->kv_len - 1] = 1.0f;
        }
        return status;
    case PLACE:
        if (p->rope[QUERIES].rotary.channels) status = rapt_rope(&c->rope[QUERIES], ith, c->nth);
        if (status != RAPT_OK || p->projections == 1) return status;
        if (p->cached) return rapt_kv_append(&p->append, &c->append, ith, c->nth);
        return rapt_rope(&c->rope[KEYS], ith, c->nth);
    case ATTEND:
        return rapt_run_phase(&p->attention, &c->attention, part, ith, c->nth);
    case WEIGH: {
        rapt_args a = weigh_args(c, part);
        return rapt_run_phase(&p->weighing, &a, part % p->weigh_phases, ith, c->nth);
    }
    case REVERSE:
        reverse_rows(c, ith);
        return RAPT_OK;
    case OUTPUT:
        return rapt_linear_run(&p->output, &c->output, ith, c->nth);
    }
    return RAPT_OK;
}

rapt_status rapt_layer_run_share(const rapt_layer_plan *plan, const rapt_layer_args *args, int64_t ith, int64_t nth,
                                 rapt_barrier barrier, void *barrier_arg) {
    call c;
    rapt_status status = start_call(&c, plan, args, nth);
    if (status != RAPT_OK) return status;
    if (ith < 0 || ith >= nth) return RAPT_ERR_RANGE;
    if (nth > 1 && !barrier) return RAPT_ERR_NULL;
    for (int phase = 0; phase < phase_count(c.p); phase++) {
        if (phase > 0 && barrier) barrier(barrier_arg);
        rapt_status done = run_phase(&c, phase, ith);
        if (status == RAPT_OK) status = done;
    }
    return status;
}

rapt_status rapt_layer_run(const rapt_layer_plan *plan, const rapt_layer_args *args) {
    return rapt_layer_run_share(plan, args, 0, 1, NULL, NULL);
}

rapt_status rapt_layer_run_phase(const rapt_layer_plan *plan, const rapt_layer_args *args, int phase, int64_t ith, int64_t nth) {
    call c;
    rapt_status status = start_call(&c, plan, args, nth);
    if (status != RAPT_OK) return status;
    if (phase < 0 || phase >= phase_count(c.p) || ith < 0 || ith >= nth) return RAPT_ERR_RANGE;
    return run_phase(&c, phase, ith);
}

typedef struct parallel_phase {
    const call *call;
    int phase;
} parallel_phase;

static void run_slot(void *arg, int64_t slot) {
    const parallel_phase *p = arg;
    run_phase(p->call, p->phase, slot); /* checked before */
}

rapt_status rapt_layer_run_parallel(const rapt_layer_plan *plan, const rapt_layer_args *args, int64_t nth,
                                    rapt_parallel_for parallel_for, void *pool) {
    call c;
    rapt_status status = parallel_for ? start_call(&c, plan, args, nth) : RAPT_ERR_NULL;
    if (status != RAPT_OK) return status;
    for (int phase = 0, part; phase < phase_count(c.p) && status == RAPT_OK; phase++) {
        parallel_phase p = {&c, phase};
        if (step_of(c.p, phase, &part) != ATTEND) parallel_for(pool, nth, run_slot, &p);
        else if (part == 0)
            status = rapt_run_parallel(&c.p->attention, &c.attention, nth, parallel_for, pool); /* all its phases */
    }
    return status;
}
