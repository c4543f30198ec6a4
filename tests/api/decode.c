/* SPDX-License-Identifier: Apache-2.0 */
/* The step of a decoder is compared, bit for bit on every kernel, with the three calls that it stands for: random problems of
 * every type and kind of cache, in every way of running, all memory around what is written included. Then a prompt at once
 * against a token at a time, rope tables, and what is refused. */
#define _GNU_SOURCE
#include <stdio.h>

#include "barrier.h"
#include "kv_types.h"
#include "rapt_pool.h"
#include "refusals.h"
#include "serial.h"
#include "tap.h"
#include "tensors.h"

enum { MOST_ENTRIES = 3, MOST_HEADS = 2, MOST_TOKENS = 40, MOST_KEYS = 1200, MOST_ISAS = 16 };

static const char *isas[MOST_ISAS];
static int isa_count;

/* ---- Rotary tables --------------------------------------------------------------------------------------------------- */

/* Rows of c and of s, each followed by a gap; numbers of the unit interval. */
typedef struct angle_table {
    tensor c, s;
    rapt_rope_table table;
} angle_table;

static angle_table new_angles(rapt_type type, int64_t positions, int64_t pairs) {
    rapt_layout l = {.type = type, .token_stride = reference_row_bytes(type, pairs) + 3 * below(2)};
    angle_table t = {.c = new_tensor(&l, 1, 1, positions, pairs, true), .s = new_tensor(&l, 1, 1, positions, pairs, true)};
    draw_bytes(&t.c), draw_bytes(&t.s);
    for (int64_t p = 0; p < positions; p++)
        for (int64_t i = 0; i < pairs; i++) {
            int64_t at = reference_row_bytes(type, i);
            reference_store(type, row_of(&t.c, 0, 0, p) + at, (float)(below(2001) - 1000) / 1000);
            reference_store(type, row_of(&t.s, 0, 0, p) + at, (float)(below(2001) - 1000) / 1000);
        }
    bool dense = l.token_stride == t.c.row;
    t.table = (rapt_rope_table){type, t.c.at, t.s.at, positions, dense ? 0 : l.token_stride};
    return t;
}

static void free_angles(angle_table *t) {
    free_tensor(&t->c);
    free_tensor(&t->s);
}

/* ---- Problems ------------------------------------------------------------------------------------------------------------ */

/* What a step writes; scales that are given are only read, and must not change. */
enum { K, V, K_SCALES, V_SCALES, O, LSE, SCORES, WRITTEN };

typedef struct problem {
    rapt_desc attention;
    rapt_decode_desc desc;
    rapt_args args;
    rapt_decode_args call;
    tensor q, new_rows[2], mask, written[WRITTEN];
    angle_table angles;
    int32_t q_starts[MOST_ENTRIES + 1], starts[MOST_ENTRIES], kv_lengths[MOST_ENTRIES], q_offsets[MOST_ENTRIES],
        k_offsets[MOST_ENTRIES];
    int32_t ring_starts[MOST_ENTRIES], positions[MOST_ENTRIES * MOST_TOKENS];
    int32_t table[MOST_ENTRIES * MOST_HEADS * MOST_KEYS + 1], table_starts[MOST_ENTRIES + 1];
    double frequencies[RAPT_MAX_HEAD_DIM / 2];
    float sinks[16];
} problem;

static int64_t tokens_of(const problem *p) {
    return p->desc.tokens < 0 || p->attention.q_starts ? p->attention.q_len : p->desc.tokens;
}
static int64_t new_tokens(const problem *p, int64_t b) {
    return p->attention.q_starts ? p->q_starts[b + 1] - p->q_starts[b] : tokens_of(p);
}
static int64_t start_of(const problem *p, int64_t b) { return p->call.starts ? p->starts[b] : 0; }
static int64_t length_of(const problem *p, int64_t b) {
    return p->args.kv_lengths ? p->kv_lengths[b] : start_of(p, b) + new_tokens(p, b);
}

/* Pages for each entry, and for each head if heads have their own; all of one head's differ. As a matrix, or one entry's after
 * the other's. */
static void make_pages(problem *p) {
    rapt_desc *a = &p->attention;
    int64_t most = (a->kv_len + a->page_size - 1) / a->page_size, heads = one_in(3) ? a->kv_heads : 1;
    static int32_t pages[MOST_ENTRIES * MOST_KEYS + 3];
    a->pages = a->batch * most + below(3);
    a->table = (rapt_layout){RAPT_I32, heads * most * 4, heads > 1 ? most * 4 : 0, 0};
    for (int64_t h = 0; h < heads; h++) {
        for (int32_t i = 0; i < a->pages; i++) pages[i] = i;
        shuffle(pages, a->pages);
        for (int64_t n = 0; n < a->batch * most; n++) p->table[(n / most * heads + h) * most + n % most] = pages[n];
    }
    p->args.table = p->table;
    if (heads > 1 || one_in(2)) return;
    memmove(p->table + 1, p->table, (size_t)(a->batch * most) * sizeof *p->table);
    for (int64_t b = 0; b <= a->batch; b++) p->table_starts[b] = (int32_t)(1 + b * most);
    p->table[0] = -1;
    p->args.table_starts = p->table_starts;
}

/* Factors that are found, for each token and head; or given, for each head or channel. */
static void make_scales(problem *p, int side, const int64_t length[3]) {
    rapt_desc *a = &p->attention;
    rapt_scales *s = side ? &a->v_scales : &a->k_scales;
    tensor *t = &p->written[K_SCALES + side];
    int kind = (int)below(3);
    if (!is_byte(p->written[side].layout.type) || kind == 2) return;
    int64_t entries = kind ? a->batch : length[0], rows = kind ? p->written[side].channels : length[2];
    *t = random_tensor(RAPT_F32, entries, length[1], rows, 1);
    fill(t);
    const rapt_layout *l = &t->layout;
    *s = kind ? (rapt_scales){1, l->batch_stride, l->head_stride, 0, l->token_stride}
              : (rapt_scales){1, l->batch_stride, l->head_stride, l->token_stride, 0};
}

static void make_rotary(problem *p) {
    rapt_rope *r = &p->desc.rope;
    const rapt_desc *a = &p->attention;
    r->channels = one_in(2) ? a->d_k / 2 * 2 : 2 * (1 + below(a->d_k / 2));
    r->interleaved = one_in(2);
    if (one_in(2)) {
        rapt_rope_frequencies(ONE_OF(10000, 500000), r->channels, p->frequencies);
        r->frequencies = p->frequencies;
        r->amplitude = one_in(3) ? 1.25 : 1.0;
        r->offset = one_in(3) ? below(2000) - 1000 : 0;
    } else {
        r->offset = MOST_TOKENS; /* a length may be shorter than there are queries */
        p->angles = new_angles(random_float_type(), a->kv_len + 3 * MOST_TOKENS, r->channels / 2);
        p->call.rope_table = p->angles.table;
    }
}

static void make_queries(problem *p) {
    rapt_desc *a = &p->attention;
    int64_t tokens = ONE_OF(1, 1, 2, 5, 8, MOST_TOKENS);
    a->q_len = tokens;
    if (one_in(3)) { /* ragged, with tokens before and after that belong to no entry */
        a->q_len = below(3) + 1;
        for (int64_t b = 0; b <= a->batch; b++) {
            p->q_starts[b] = (int32_t)(b ? p->q_starts[b - 1] + ONE_OF(1, 0, 1, 6, 20) : below(3));
            a->q_len = p->q_starts[b] + below(2);
        }
        a->q_starts = p->q_starts;
        p->desc.tokens = ONE_OF(-1, 3); /* not used */
    } else if (one_in(4)) {             /* some of the tokens, as the last of a prompt */
        p->desc.tokens = tokens;
        a->q_len = below(tokens + 1);
    }
}

static void make_masks(problem *p) {
    rapt_desc *a = &p->attention;
    a->causal = (rapt_causal)below(3);
    if (one_in(4)) a->window_left = below(30);
    if (one_in(4)) a->softcap = 5;
    if (one_in(4)) a->scale = 0.3f;
    if (one_in(4)) {
        a->sinks = (rapt_layout){RAPT_F32, 0, sizeof(float), 0};
        for (int i = 0; i < 16; i++) p->sinks[i] = random_value();
        p->args.sinks = p->sinks;
    }
    if (one_in(5)) {
        p->mask = random_tensor(RAPT_F16, 1, a->heads, a->q_len, (a->kv_len + 1) / 2); /* bytes, two for each element */
        for (size_t i = 0; i < p->mask.bytes; i++) p->mask.at[i] &= 1;
        a->mask = p->mask.layout, a->mask.type = RAPT_BOOL, a->mask.batch_stride = 0;
        a->mask_keys = a->kv_len, a->mask_rest = (rapt_rest)ONE_OF(RAPT_REST_MASKED, RAPT_REST_ATTENDED);
        p->args.mask = p->mask.at;
    }
}

static void make_entries(problem *p) {
    rapt_desc *a = &p->attention;
    for (int64_t b = 0; b < a->batch; b++) {
        p->starts[b] = (int32_t)below(a->kv_len - new_tokens(p, b) + 1);
        p->ring_starts[b] = (int32_t)below(a->kv_len);
        p->k_offsets[b] = (int32_t)below(MOST_TOKENS);
        p->q_offsets[b] = (int32_t)below(a->kv_len);
        p->kv_lengths[b] = (int32_t)below(a->kv_len + 1);
    }
    bool exact = one_in(2);
    if (!one_in(4)) p->call.starts = p->starts;
    for (int64_t b = 0; b < a->batch && exact; b++) p->kv_lengths[b] = (int32_t)(start_of(p, b) + new_tokens(p, b));
    if (one_in(3)) p->args.kv_lengths = p->kv_lengths;
    if (one_in(2)) p->args.ring_starts = p->ring_starts;
    if (one_in(3)) p->args.k_offsets = p->k_offsets;
    if (one_in(3)) p->args.q_offsets = p->q_offsets;
    for (int i = 0; i < MOST_ENTRIES * MOST_TOKENS; i++) p->positions[i] = (int32_t)below(a->kv_len);
    if (one_in(3) && tokens_of(p) == a->q_len) p->call.positions = p->positions;
}

/* The cache of V: its own, or that of K, or one that somebody else fills. */
static void make_caches(problem *p, rapt_type k, rapt_type v) {
    rapt_desc *a = &p->attention;
    bool latent = k == v && a->d_v <= a->d_k && one_in(2), within = latent && !one_in(4);
    const int64_t length[3] = {a->page_size ? a->pages : a->batch, a->kv_heads, a->page_size ? a->page_size : a->kv_len};
    for (int side = 0; side < 2; side++) {
        int64_t channels = side ? a->d_v : a->d_k;
        if (side && within) break;
        p->written[side] = random_tensor(side ? v : k, length[0], length[1], length[2], channels);
        fill(&p->written[side]);
        make_scales(p, side, length);
        if (side && latent) break;
        p->new_rows[side] = random_tensor(random_float_type(), a->q_starts ? 1 : a->batch, a->kv_heads, tokens_of(p), channels);
        fill(&p->new_rows[side]);
    }
    a->k = p->written[K].layout, a->v = p->written[within ? K : V].layout;
    p->desc.new_k = p->new_rows[0].layout, p->desc.new_v = p->new_rows[1].layout;
    p->call.new_k = p->new_rows[0].at, p->call.new_v = p->new_rows[1].at;
    p->call.k = p->written[K].at, p->call.v = p->written[V].at;
    p->call.k_scales = (float *)(void *)p->written[K_SCALES].at, p->call.v_scales = (float *)(void *)p->written[V_SCALES].at;
    if (within) {
        int64_t first = below((a->d_k - a->d_v) / reference_group(k) + 1) * reference_group(k);
        a->v_scales = a->k_scales;
        p->call.v = p->written[K].at + reference_row_bytes(k, first);
        if (a->k_scales.present)
            p->call.v_scales = (float *)(void *)(p->written[K_SCALES].at + first * a->k_scales.channel_stride);
    }
}

static void make_outputs(problem *p) {
    rapt_desc *a = &p->attention;
    int64_t entries = a->q_starts ? 1 : a->batch;
    p->q = random_tensor(random_float_type(), entries, a->heads, a->q_len, a->d_k);
    fill(&p->q);
    p->written[O] = random_tensor(random_float_type(), entries, a->heads, a->q_len, a->d_v);
    a->q = p->q.layout, a->o = p->written[O].layout;
    p->args.q = p->q.at, p->args.o = p->written[O].at;
    if (one_in(2)) {
        p->written[LSE] = random_tensor(RAPT_F32, entries, a->heads, a->q_len, 1);
        a->lse = p->written[LSE].layout;
        p->args.lse = (float *)(void *)p->written[LSE].at;
    }
    if (one_in(5) && a->kv_len <= RAPT_MAX_HEAD_DIM) {
        p->written[SCORES] = random_tensor(RAPT_F32, entries, a->heads, a->q_len, a->kv_len);
        a->scores = p->written[SCORES].layout;
        a->scores_stage = (rapt_scores_stage)(1 + below(4));
        p->args.scores = (float *)(void *)p->written[SCORES].at;
    }
}

static void make_problem(problem *p, rapt_type k, rapt_type v) {
    *p = (problem){.attention.size = 0};
    rapt_desc *a = &p->attention;
    rapt_desc_init(a);
    rapt_args_init(&p->args);
    rapt_decode_desc_init(&p->desc);
    rapt_decode_args_init(&p->call);
    p->desc.attention = a;
    p->call.attention = &p->args;
    a->batch = 1 + below(MOST_ENTRIES);
    a->kv_heads = 1 + below(MOST_HEADS);
    a->heads = a->kv_heads * (1 + below(4));
    a->d_k = is_grouped(k) ? reference_group(k) * (1 + below(3)) : ONE_OF(2, 5, 16, 40, 64, 67);
    a->d_v = is_grouped(v) ? reference_group(v) * (1 + below(3)) : ONE_OF(1, 5, 16, 40, 64, 67);
    a->kv_len = one_in(8) ? 500 + below(MOST_KEYS - 500 + 1) : MOST_TOKENS + below(60);
    a->threads = ONE_OF(1, 2, 7);
    if (k == RAPT_INT8 && v == RAPT_INT8 && one_in(2)) a->arith = RAPT_INT8_DOT;
    else if (one_in(3)) a->arith = RAPT_BF16_DOT;
    make_queries(p);
    if (one_in(2)) a->page_size = ONE_OF(1, 16, 1 + below(20));
    if (a->page_size) make_pages(p);
    make_caches(p, k, v);
    make_entries(p);
    make_masks(p);
    make_outputs(p);
    if (!one_in(4)) make_rotary(p);
    else p->call.positions = NULL;
}

static void copy_written(tensor *to, const tensor *from) {
    for (int i = 0; i < WRITTEN; i++) to[i] = copy_of(&from[i]);
}
static void restore_written(tensor *to, const tensor *from) {
    for (int i = 0; i < WRITTEN; i++) copy_bytes(&to[i], &from[i]);
}
static void free_written(tensor *t) {
    for (int i = 0; i < WRITTEN; i++) free_tensor(&t[i]);
}
/* The first that differs, or -1. */
static int differing(const tensor *a, const tensor *b) {
    for (int i = 0; i < WRITTEN; i++)
        if (!same_tensor(&a[i], &b[i])) return i;
    return -1;
}

static void free_problem(problem *p) {
    free_tensor(&p->q), free_tensor(&p->mask);
    free_tensor(&p->new_rows[0]), free_tensor(&p->new_rows[1]);
    free_written(p->written);
    free_angles(&p->angles);
}

/* ---- The three calls -------------------------------------------------------------------------------------------------- */

/* Positions as rapt.h says: of new token i of entry b, and of its query i. */
static int32_t key_position(const problem *p, int64_t b, int64_t i) {
    if (p->call.positions) return p->positions[p->attention.q_starts ? p->q_starts[b] + i : b * tokens_of(p) + i];
    return (int32_t)(start_of(p, b) + i + (p->args.k_offsets ? p->k_offsets[b] : 0));
}
static int32_t query_position(const problem *p, int64_t b, int64_t i) {
    if (p->call.positions) return key_position(p, b, i);
    if (p->args.q_offsets) return (int32_t)(p->q_offsets[b] + i);
    int64_t a = p->attention.causal == RAPT_CAUSAL_TOP_LEFT ? 0 : length_of(p, b) - reference_queries(&p->attention, b);
    return (int32_t)(i + a + (p->args.k_offsets ? p->k_offsets[b] : 0));
}

static rapt_status append_by_hand(const problem *p) {
    const rapt_desc *from = &p->attention;
    int32_t positions[MOST_ENTRIES * MOST_TOKENS];
    for (int64_t b = 0; b < from->batch; b++)
        for (int64_t i = 0; i < new_tokens(p, b); i++)
            positions[from->q_starts ? p->q_starts[b] + i : b * tokens_of(p) + i] = key_position(p, b, i);
    rapt_kv_append_desc d;
    rapt_kv_append_args a;
    rapt_kv_append_desc_init(&d);
    rapt_kv_append_args_init(&a);
    d.batch = from->batch, d.kv_heads = from->kv_heads, d.tokens = tokens_of(p), d.kv_len = from->kv_len, d.d_k = from->d_k;
    d.new_k = p->desc.new_k, d.k = from->k, d.k_scales = from->k_scales, d.rope = p->desc.rope;
    d.page_size = from->page_size, d.pages = from->pages, d.table = from->table;
    a.new_k = p->call.new_k, a.k = p->call.k, a.k_scales = p->call.k_scales;
    a.starts = p->call.starts, a.token_starts = from->q_starts, a.rope_table = p->call.rope_table;
    if (d.rope.channels) a.positions = positions;
    a.table = p->args.table, a.table_starts = p->args.table_starts, a.ring_starts = p->args.ring_starts;
    if (p->desc.new_v.type) {
        d.d_v = from->d_v, d.new_v = p->desc.new_v, d.v = from->v, d.v_scales = from->v_scales;
        a.new_v = p->call.new_v, a.v = p->call.v, a.v_scales = p->call.v_scales;
    }
    return rapt_kv_append_run(&d, &a);
}

static rapt_status rotate_by_hand(const problem *p, tensor *to) {
    const rapt_desc *from = &p->attention;
    int32_t positions[MOST_ENTRIES * MOST_TOKENS];
    for (int64_t b = 0; b < from->batch; b++)
        for (int64_t i = 0; i < reference_queries(from, b); i++)
            positions[from->q_starts ? p->q_starts[b] + i : b * from->q_len + i] = query_position(p, b, i);
    rapt_rope_args a;
    rapt_rope_args_init(&a);
    a.batch = from->batch, a.heads = from->heads, a.tokens = from->q_len, a.d = from->d_k;
    a.in = from->q, a.out = to->layout, a.from = p->q.at, a.to = to->at;
    a.rope = p->desc.rope, a.rope_table = p->call.rope_table, a.token_starts = from->q_starts, a.positions = positions;
    return rapt_rope_run(&a);
}

static rapt_status attend_by_hand(const problem *p, const char *isa, const tensor *q) {
    rapt_desc d = p->attention;
    rapt_args a = p->args;
    rapt_plan plan;
    int32_t lengths[MOST_ENTRIES];
    for (int64_t b = 0; b < d.batch; b++) lengths[b] = (int32_t)length_of(p, b);
    d.isa = isa, d.threads = 1, d.q = q->layout;
    rapt_status status = rapt_plan_init(&plan, &d);
    if (status == RAPT_OK) status = rapt_workspace_size(&plan, 1, &a.workspace_bytes);
    if (status != RAPT_OK) return status;
    a.q = q->at, a.k = p->call.k, a.v = p->call.v, a.k_scales = p->call.k_scales, a.v_scales = p->call.v_scales,
    a.kv_lengths = lengths;
    a.workspace = new_workspace(a.workspace_bytes);
    status = rapt_run(&plan, &a);
    aligned_destroy(a.workspace);
    return status;
}

static rapt_status by_hand(const problem *p, const char *isa) {
    const rapt_desc *a = &p->attention;
    bool rotated = p->desc.rope.channels != 0;
    tensor q = rotated ? random_tensor(RAPT_F32, a->q_starts ? 1 : a->batch, a->heads, a->q_len, a->d_k) : copy_of(&p->q);
    rapt_status status = append_by_hand(p);
    if (status == RAPT_OK && rotated) status = rotate_by_hand(p, &q);
    if (status == RAPT_OK) status = attend_by_hand(p, isa, &q);
    free_tensor(&q);
    return status;
}

/* True if everything in the caches is as before, except the new tokens. */
static bool only_new_tokens(const problem *p, const tensor *before) {
    const rapt_desc *a = &p->attention;
    bool same = true;
    for (int i = K; i <= V_SCALES; i++) {
        const tensor *t = &p->written[i];
        const rapt_scales *s = i == K_SCALES ? &a->k_scales : &a->v_scales;
        if (!t->memory) continue;
        unsigned char *fresh = calloc(t->bytes + 1, 1);
        if (!fresh) abort();
        bool values = i == V || i == V_SCALES, found = i < K_SCALES || s->token_stride;
        for (int64_t b = 0; b < a->batch && found && !(values && !p->desc.new_v.type); b++)
            for (int64_t h = 0; h < a->kv_heads; h++)
                for (int64_t n = 0; n < new_tokens(p, b); n++) {
                    reference_place at = reference_key(a, &p->args, b, h, 0, start_of(p, b) + n);
                    memset(fresh + (row_of(t, at.batch, h, at.token) - t->at), 1, (size_t)t->row);
                }
        for (size_t n = 0; n < t->bytes; n++) same = same && (fresh[n] || t->at[n] == before[i].at[n]);
        free(fresh);
    }
    return same;
}

/* ---- The ways to run --------------------------------------------------------------------------------------------------- */

typedef struct sharing {
    const rapt_decode_plan *plan;
    const rapt_decode_args *args;
    int64_t nth;
    barrier barrier;
    _Atomic int refused;
} sharing;

static void share_one(void *arg, int64_t ith) {
    sharing *s = arg;
    if (rapt_decode_run_share(s->plan, s->args, ith, s->nth, barrier_wait, &s->barrier) != RAPT_OK) s->refused = 1;
}

typedef enum way { RUN, PARALLEL, SERIAL, SHARE, PHASES } way;
static const char *const way_names[] = {"run", "parallel", "parallel, one after the other", "share", "by phases"};

static rapt_pool *pools[4]; /* by threads */

static rapt_status run_way(const rapt_decode_plan *plan, const rapt_decode_args *args, way how, int64_t nth) {
    rapt_status status = RAPT_OK;
    rapt_plan_info info = {.size = sizeof info};
    sharing s = {.plan = plan, .args = args, .nth = nth};
    switch (how) {
    case RUN:
        return rapt_decode_run(plan, args);
    case PARALLEL:
        return rapt_decode_run_parallel(plan, args, nth, rapt_pool_for, pools[nth]);
    case SERIAL:
        return rapt_decode_run_parallel(plan, args, nth, serial, NULL);
    case SHARE:
        if (!barrier_create(&s.barrier, nth)) return RAPT_ERR_RANGE;
        rapt_pool_for(pools[nth], nth, share_one, &s);
        barrier_destroy(&s.barrier);
        return s.refused ? RAPT_ERR_RANGE : RAPT_OK;
    case PHASES:
        status = rapt_decode_plan_query(plan, &info);
        for (int phase = 0; phase < info.phases; phase++)
            for (int64_t ith = nth - 1; ith >= 0 && status == RAPT_OK; ith--)
                status = rapt_decode_run_phase(plan, args, phase, ith, nth);
        return status;
    }
    return RAPT_ERR_RANGE;
}

/* A step with a workspace of its own, exactly as large as needed. */
static rapt_status run_step(const rapt_decode_plan *plan, rapt_decode_args args, way how, int64_t nth) {
    rapt_status status = rapt_decode_workspace_size(plan, nth, &args.workspace_bytes);
    if (status != RAPT_OK) return status;
    args.workspace = new_workspace(args.workspace_bytes);
    status = run_way(plan, &args, how, nth);
    aligned_destroy(args.workspace);
    return status;
}

static const struct {
    way how;
    int64_t nth;
} ways[] = {{RUN, 1}, {PARALLEL, 2}, {PARALLEL, 3}, {SERIAL, 5}, {SHARE, 1}, {SHARE, 2}, {SHARE, 3}, {PHASES, 1}, {PHASES, 4}};

/* ---- Random problems ------------------------------------------------------------------------------------------------- */

/* One problem on one kernel: everything that the three calls write, a step writes, too, in every way. */
static bool steps_are_the_calls(problem *p, const tensor *before, const char *isa, const char *name) {
    tensor hand[WRITTEN];
    rapt_decode_plan plan;
    restore_written(p->written, before);
    rapt_status status = by_hand(p, isa);
    if (status != RAPT_OK) printf("# %s, %s, by hand: %s\n", name, isa, rapt_status_string(status));
    if (status != RAPT_OK) return false;
    copy_written(hand, p->written);
    p->attention.isa = isa;
    status = rapt_decode_plan_init(&plan, &p->desc);
    bool fine = status == RAPT_OK && only_new_tokens(p, before);
    for (size_t n = 0; n < sizeof ways / sizeof *ways && status == RAPT_OK && fine; n++) {
        restore_written(p->written, before);
        status = run_step(&plan, p->call, ways[n].how, ways[n].nth);
        int wrong = status == RAPT_OK ? differing(p->written, hand) : -1;
        if (wrong >= 0)
            printf("# %s, %s, %s with %d: tensor %d differs\n", name, isa, way_names[ways[n].how], (int)ways[n].nth, wrong);
        fine = wrong < 0;
    }
    if (status != RAPT_OK) {
        char text[256], line[256];
        rapt_decode_explain(&p->desc, text, sizeof text);
        rapt_decode_args_explain(&plan, &p->call, 1, line, sizeof line);
        printf("# %s, %s: %s: %s %s\n", name, isa, rapt_status_string(status), text, text[0] ? "" : line);
    }
    free_written(hand);
    return fine && status == RAPT_OK;
}

static void random_problems(int turns) {
    static problem p;
    for (int t = 0; t < KV_TYPES; t++) {
        const rapt_type type = kv_types[t];
        int wrong = 0, other_bits = 0;
        for (int turn = 0; turn < turns; turn++) {
            random_state = (uint64_t)type * 1000 + (uint64_t)turn;
            const rapt_type other = one_in(3) ? type : kv_types[below(KV_TYPES)];
            make_problem(&p, turn % 2 ? type : other, turn % 2 ? other : type);
            tensor before[WRITTEN], first[2][WRITTEN] = {{{.bytes = 0}}}; /* of each rounding class */
            copy_written(before, p.written);
            char name[64];
            snprintf(name, sizeof name, "%s problem %d", rapt_type_name(type), turn);
            for (int i = 0; i < isa_count; i++) {
                tensor *of_class = first[strcmp(rapt_isa_rounding(isas[i]), "fused") == 0];
                wrong += !steps_are_the_calls(&p, before, isas[i], name);
                if (of_class[O].memory) other_bits += differing(p.written, of_class) >= 0;
                else copy_written(of_class, p.written);
            }
            free_written(first[0]), free_written(first[1]);
            free_written(before);
            free_problem(&p);
        }
        tap_ok(wrong == 0 && other_bits == 0,
               "%s: %d random steps on %d kernels, %d not as the three calls, %d with other bits than their rounding class",
               rapt_type_name(type), turns, isa_count, wrong, other_bits);
    }
}

/* ---- Decoding ------------------------------------------------------------------------------------------------------------- */

typedef struct decoder {
    rapt_type type;
    bool paged, ring, table;
    int64_t tokens, window;
    rapt_arith arith;
} decoder;

enum { HEADS = 4, KV_HEADS = 2, D_K = 64, D_V = 32, PAGE = 16 };

/* All tokens of a sequence, `at_a_time` at a time, into o; the cache is left in memory. */
static rapt_status decode_in_steps(const decoder *c, const char *isa, int64_t at_a_time, const float *q, const float *k,
                                   const float *v, const rapt_rope *rope, const rapt_rope_table *table, unsigned char *cache,
                                   float *scales, float *o) {
    static int32_t pages[MOST_KEYS / PAGE + 1];
    int64_t capacity = (c->tokens + PAGE - 1) / PAGE * PAGE, length = c->paged ? PAGE : capacity;
    int32_t start = 0, ring_start = (int32_t)(c->ring ? capacity / 3 : 0);
    rapt_desc d;
    rapt_decode_desc s;
    rapt_args a;
    rapt_decode_args call;
    rapt_desc_init(&d), rapt_decode_desc_init(&s), rapt_args_init(&a), rapt_decode_args_init(&call);
    d.heads = HEADS, d.kv_heads = KV_HEADS, d.kv_len = capacity, d.d_k = D_K, d.d_v = D_V, d.isa = isa;
    d.causal = RAPT_CAUSAL_BOTTOM_RIGHT, d.window_left = c->window, d.arith = c->arith;
    d.q = rapt_layout_bshd(RAPT_F32, HEADS, c->tokens, D_K), d.o = rapt_layout_bshd(RAPT_F32, HEADS, c->tokens, D_V);
    d.k = rapt_layout_bhsd(c->type, KV_HEADS, length, D_K), d.v = rapt_layout_bhsd(c->type, KV_HEADS, length, D_V);
    s.new_k = rapt_layout_bshd(RAPT_F32, KV_HEADS, c->tokens, D_K),
    s.new_v = rapt_layout_bshd(RAPT_F32, KV_HEADS, c->tokens, D_V);
    s.attention = &d, s.rope = *rope;
    call.attention = &a, call.starts = &start, call.rope_table = *table;
    call.k = cache, call.v = cache + capacity * KV_HEADS * rapt_row_bytes(c->type, D_K);
    if (c->ring) a.ring_starts = &ring_start;
    if (c->paged) {
        d.page_size = PAGE, d.pages = capacity / PAGE;
        d.table = (rapt_layout){RAPT_I32, 0, 0, 0};
        for (int32_t i = 0; i < d.pages; i++) pages[i] = (int32_t)d.pages - 1 - i;
        a.table = pages;
    }
    if (is_byte(c->type)) {
        const rapt_layout l = rapt_layout_bhsd(RAPT_F32, KV_HEADS, length, 1);
        d.k_scales = d.v_scales = (rapt_scales){1, l.batch_stride, l.head_stride, l.token_stride, 0};
        call.k_scales = scales, call.v_scales = scales + capacity * KV_HEADS;
    }
    rapt_status status = RAPT_OK;
    for (; start < c->tokens && status == RAPT_OK; start += (int32_t)d.q_len) {
        rapt_decode_plan plan;
        d.q_len = at_a_time < c->tokens - start ? at_a_time : c->tokens - start;
        a.q = q + start * HEADS * D_K, a.o = o + start * HEADS * D_V;
        call.new_k = k + start * KV_HEADS * D_K, call.new_v = v + start * KV_HEADS * D_V;
        status = rapt_decode_plan_init(&plan, &s);
        if (status == RAPT_OK) status = run_step(&plan, call, RUN, 1);
    }
    return status;
}

/* A prompt at once, in pieces, and a token at a time: rows of the same bits, and the same cache. */
static void decoding(const char *isa, bool quick) {
    static const decoder decoders[] = {
        {RAPT_F32, false, false, false, 75, -1, RAPT_EXACT},    {RAPT_F16, true, false, true, 75, -1, RAPT_EXACT},
        {RAPT_INT8, true, true, false, 75, 20, RAPT_EXACT},     {RAPT_Q8_0, false, true, true, 75, -1, RAPT_EXACT},
        {RAPT_BF16, true, true, true, 530, 40, RAPT_EXACT},     {RAPT_F8_E4M3, false, true, false, 75, -1, RAPT_EXACT},
        {RAPT_F32, false, false, false, 75, -1, RAPT_BF16_DOT}, {RAPT_BF16, true, true, false, 75, 20, RAPT_BF16_DOT},
    };
    enum { MOST = 544, CACHE = MOST * KV_HEADS * (D_K + D_V) * 4 };
    static float q[MOST * HEADS * D_K], k[MOST * KV_HEADS * D_K], v[MOST * KV_HEADS * D_V], o[2][MOST * HEADS * D_V];
    static float scales[2][2 * MOST * KV_HEADS];
    static unsigned char cache[2][CACHE];
    double frequencies[D_K / 2];
    random_state = 17;
    for (size_t i = 0; i < sizeof q / sizeof *q; i++) q[i] = random_value();
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) k[i] = random_value();
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) v[i] = random_value();
    rapt_rope_frequencies(10000, D_K, frequencies);
    angle_table angles = new_angles(RAPT_BF16, MOST, D_K / 2);
    for (size_t n = 0; n < sizeof decoders / sizeof *decoders; n++) {
        const decoder *c = &decoders[n];
        const rapt_rope_table no_table = {.type = RAPT_NONE};
        const rapt_rope rope = {.channels = D_K, .frequencies = c->table ? NULL : frequencies, .amplitude = 1.0};
        static const int64_t pieces[] = {75, 1, 7};
        int wrong = 0;
        if (quick && c->tokens > 75) continue;
        for (int i = 0; i < 3; i++) {
            int to = i > 0;
            memset(cache[to], 0, CACHE), memset(scales[to], 0, sizeof scales[to]), memset(o[to], 0, sizeof o[to]);
            rapt_status status = decode_in_steps(c, isa, i ? pieces[i] : c->tokens, q, k, v, &rope,
                                                 c->table ? &angles.table : &no_table, cache[to], scales[to], o[to]);
            wrong += status != RAPT_OK;
            if (i > 0)
                wrong += memcmp(o[0], o[1], sizeof o[0]) != 0 || memcmp(cache[0], cache[1], CACHE) != 0 ||
                         memcmp(scales[0], scales[1], sizeof scales[0]) != 0;
        }
        tap_ok(wrong == 0, "%s: %d tokens of a %s%scache of %s%s at once, one by one and by 7: %d wrong", isa, (int)c->tokens,
               c->paged ? "paged " : "", c->ring ? "ring " : "", rapt_type_name(c->type),
               c->arith == RAPT_BF16_DOT ? ", in bf16 arithmetic," : "", wrong);
    }
    free_angles(&angles);
}

/* ---- What a plan says ---------------------------------------------------------------------------------------------------- */

/* One phase more than attention's, and room for the queries. */
static void plan_query(void) {
    static problem p;
    int wrong = 0;
    for (int turn = 0; turn < 50; turn++) {
        random_state = (uint64_t)(90000 + turn);
        make_problem(&p, RAPT_F32, RAPT_F32);
        rapt_decode_plan plan;
        rapt_plan of_attention;
        rapt_plan_info step = {.size = sizeof step}, attention = {.size = sizeof attention};
        rapt_desc a = p.attention;
        if (p.desc.rope.channels) a.q = rapt_layout_bshd(RAPT_F32, a.heads, a.q_len, a.d_k);
        size_t bytes = 0,
               rotated = p.desc.rope.channels ? (size_t)((a.q_starts ? 1 : a.batch) * a.heads * a.q_len * a.d_k * 4) : 0;
        wrong += rapt_decode_plan_init(&plan, &p.desc) || rapt_plan_init(&of_attention, &a);
        wrong += rapt_decode_plan_query(&plan, &step) || rapt_plan_query(&of_attention, &attention);
        wrong += rapt_decode_workspace_size(&plan, 3, &bytes) != RAPT_OK;
        wrong += step.phases != attention.phases + 1 || step.tasks[0] != attention.tasks[0] || step.isa != attention.isa;
        wrong += step.thread_bytes != attention.thread_bytes || bytes != step.shared_bytes + 3 * step.thread_bytes;
        wrong +=
            step.shared_bytes < attention.shared_bytes + rotated || step.shared_bytes > attention.shared_bytes + rotated + 63;
        free_problem(&p);
    }
    tap_ok(wrong == 0, "rapt_decode_plan_query and rapt_decode_workspace_size: %d wrong", wrong);
}

/* ---- Rotary tables ------------------------------------------------------------------------------------------------------- */

typedef struct rope {
    rapt_rope_args args;
    tensor in, out;
    bool in_place;
    int32_t starts[3], lengths[3], token_starts[4], positions[3 * 12];
    double frequencies[RAPT_MAX_HEAD_DIM / 2];
} rope;

enum { TABLE_ROWS = 300 };

/* Positions are those of a table of ROWS rows. */
static void make_rope(rope *r) {
    *r = (rope){.in_place = one_in(3)};
    rapt_rope_args *a = &r->args;
    rapt_rope_args_init(a);
    a->batch = 1 + below(3), a->heads = 1 + below(4), a->tokens = below(12), a->d = 2 + below(70);
    bool ragged = one_in(3);
    r->in = random_tensor(random_float_type(), ragged ? 1 : a->batch, a->heads, a->tokens, a->d);
    fill(&r->in);
    r->out = r->in_place ? copy_of(&r->in) : random_tensor(random_float_type(), r->in.batch, a->heads, a->tokens, a->d);
    a->rope.channels = 2 * (1 + below(a->d / 2)), a->rope.interleaved = one_in(2),
    a->rope.offset = one_in(2) ? below(40) - 20 : 0;
    for (int64_t b = 0; b < 3; b++) {
        r->starts[b] = (int32_t)(20 + below(TABLE_ROWS - 60));
        r->lengths[b] = (int32_t)below(a->tokens + 1);
        r->token_starts[b + 1] = (int32_t)(r->token_starts[b] + below(a->tokens - r->token_starts[b] + 1));
    }
    for (int i = 0; i < 3 * 12; i++) r->positions[i] = (int32_t)(20 + below(TABLE_ROWS - 60));
    a->starts = r->starts;
    if (one_in(2)) a->positions = r->positions;
    if (ragged) a->token_starts = r->token_starts;
    else if (one_in(2)) a->lengths = r->lengths;
    a->in = r->in.layout, a->out = r->out.layout, a->from = r->in_place ? r->out.at : r->in.at, a->to = r->out.at;
}

static rapt_status run_rope(const rapt_rope_args *a) {
    rapt_status status = RAPT_OK;
    int64_t nth = 1 + below(5);
    for (int64_t ith = 0; ith < nth && status == RAPT_OK; ith++) status = rapt_rope_run_share(a, ith, nth);
    return status;
}

/* Element c of a row rotated at a position by what the table has: as products and a sum of f32, each rounded, and in double; and
 * how far the former, stored, may be from the latter: (1 + u)^2 - 1 of both products, half the least number of f32 for each if
 * they are tiny, half an ulp of the type. */
typedef struct rotated_element {
    float rounded;
    double exact, bound;
} rotated_element;

static rotated_element rotated(const rope *r, const angle_table *t, const unsigned char *row, int64_t position, int64_t c) {
    const rapt_rope *angles = &r->args.rope;
    const double u = 0x1p-24;
    int64_t pairs = angles->channels / 2, pair = angles->interleaved ? c / 2 : c % pairs,
            other = angles->interleaved ? c ^ 1 : (c + pairs) % (2 * pairs);
    float x = reference_element(r->in.layout.type, row, c);
    rotated_element e = {x, (double)x, reference_half_ulp(r->out.layout.type, fabs((double)x))};
    if (c >= angles->channels) return e;
    int64_t at = position + angles->offset;
    bool first = angles->interleaved ? c % 2 == 0 : c < pairs;
    float y = reference_element(r->in.layout.type, row, other),
          cosine = reference_element(t->c.layout.type, row_of(&t->c, 0, 0, at), pair),
          sine = reference_element(t->s.layout.type, row_of(&t->s, 0, 0, at), pair);
    double one = (double)x * (double)cosine, two = (double)y * (double)sine * (first ? -1 : 1);
    double error = (2 * u + u * u) * (fabs(one) + fabs(two)) + 0x1p-149;
    e.exact = one + two;
    e.rounded = (float)one + (float)two;
    e.bound = error + reference_half_ulp(r->out.layout.type, fabs(e.exact) + error);
    return e;
}

/* True if the whole output is what the table makes of the input, and all else is as it was. */
static bool as_rotated(const rope *r, const angle_table *t, const tensor *before) {
    const rapt_rope_args *a = &r->args;
    unsigned char *row_bytes = calloc(r->out.bytes + 1, 1);
    if (!row_bytes) abort();
    bool fine = true;
    for (int64_t b = 0; b < a->batch; b++) {
        int64_t n = a->token_starts ? r->token_starts[b + 1] - r->token_starts[b] : a->lengths ? r->lengths[b] : a->tokens;
        for (int64_t i = 0; i < n; i++)
            for (int64_t h = 0; h < a->heads; h++) {
                int64_t entry = a->token_starts ? 0 : b, token = a->token_starts ? r->token_starts[b] + i : i;
                int64_t position = a->positions ? r->positions[a->token_starts ? token : b * a->tokens + i] : r->starts[b] + i;
                const unsigned char *in = row_of(&r->in, entry, h, token), *out = row_of(&r->out, entry, h, token);
                memset(row_bytes + (out - r->out.at), 1, (size_t)r->out.row);
                for (int64_t c = 0; c < a->d; c++) {
                    rotated_element want = rotated(r, t, in, position, c);
                    unsigned char stored[sizeof(float)];
                    int64_t bytes = reference_type_bytes(r->out.layout.type);
                    reference_store(r->out.layout.type, stored, want.rounded);
                    fine = fine && fabs((double)reference_element(r->out.layout.type, out, c) - want.exact) <= want.bound;
                    fine = fine && memcmp(out + c * bytes, stored, (size_t)bytes) == 0;
                }
            }
    }
    for (size_t n = 0; n < r->out.bytes; n++) fine = fine && (row_bytes[n] || r->out.at[n] == before->at[n]);
    free(row_bytes);
    return fine;
}

/* The same rows appended to a dense f32 cache instead. */
static bool append_agrees(const rope *r) {
    const rapt_rope_args *from = &r->args;
    if (from->out.type != RAPT_F32 || from->token_starts) return true;
    rapt_kv_append_desc d;
    rapt_kv_append_args a;
    rapt_kv_append_desc_init(&d), rapt_kv_append_args_init(&a);
    tensor cache = copy_of(&r->out);
    int32_t positions[3 * 12];
    for (int64_t n = 0; n < from->batch * from->tokens; n++)
        positions[n] = from->positions ? r->positions[n] : r->starts[n / from->tokens] + (int32_t)(n % from->tokens);
    for (int64_t b = 0; b < from->batch; b++)
        for (int64_t h = 0; h < from->heads; h++)
            for (int64_t i = 0; i < (from->lengths ? r->lengths[b] : from->tokens); i++)
                memset(row_of(&cache, b, h, i), 0, (size_t)cache.row);
    d.batch = from->batch, d.kv_heads = from->heads, d.tokens = d.kv_len = from->tokens, d.d_k = from->d;
    d.new_k = from->in, d.k = cache.layout, d.rope = from->rope;
    a.new_k = r->in.at, a.k = cache.at, a.lengths = from->lengths, a.positions = positions, a.rope_table = from->rope_table;
    bool same = rapt_kv_append_run(&d, &a) == RAPT_OK && same_tensor(&cache, &r->out);
    free_tensor(&cache);
    return same;
}

static void rope_by_tables(void) {
    int other = 0, wrong = 0, appended = 0, turns = 400;
    for (int turn = 0; turn < turns; turn++) {
        static rope r;
        random_state = (uint64_t)(50000 + turn);
        make_rope(&r);
        rapt_rope_args *a = &r.args;
        const int64_t pairs = a->rope.channels / 2;
        tensor before = copy_of(&r.out), by_frequencies;

        /* c and s are found from frequencies, or read from a table that has them, correctly rounded. */
        a->rope.amplitude = one_in(2) ? 1.0 : -0.75;
        a->rope.frequencies = r.frequencies;
        rapt_rope_frequencies(10000, a->rope.channels, r.frequencies);
        other += run_rope(a) != RAPT_OK;
        by_frequencies = copy_of(&r.out);
        angle_table t = new_angles(RAPT_F32, TABLE_ROWS, pairs);
        for (int64_t p = 0; p < TABLE_ROWS; p++)
            for (int64_t i = 0; i < pairs; i++) {
                const long double angle = (long double)p * (long double)r.frequencies[i];
                reference_store(RAPT_F32, row_of(&t.c, 0, 0, p) + 4 * i, (float)((double)cosl(angle) * a->rope.amplitude));
                reference_store(RAPT_F32, row_of(&t.s, 0, 0, p) + 4 * i, (float)((double)sinl(angle) * a->rope.amplitude));
            }
        copy_bytes(&r.out, &before);
        a->rope.frequencies = NULL, a->rope_table = t.table;
        other += run_rope(a) != RAPT_OK || !same_tensor(&r.out, &by_frequencies);
        free_angles(&t);

        t = new_angles(random_float_type(), TABLE_ROWS, pairs);
        a->rope_table = t.table;
        copy_bytes(&r.out, &before);
        wrong += run_rope(a) != RAPT_OK || !as_rotated(&r, &t, &before);
        appended += !append_agrees(&r);
        free_angles(&t);
        free_tensor(&r.in), free_tensor(&r.out), free_tensor(&before), free_tensor(&by_frequencies);
    }
    tap_ok(other == 0, "%d tensors rotated by a table of what the frequencies give: %d with other bits", turns, other);
    tap_ok(wrong == 0, "%d tensors rotated by tables of f32, f16 and bf16: %d with other bits or beyond the bound", turns, wrong);
    tap_ok(appended == 0, "the same rows appended: %d differ", appended);
}

/* ---- What is refused -------------------------------------------------------------------------------------------------- */

/* Two entries of three tokens at positions 5.. and 9.., by a table of 12 rows. */
typedef struct good {
    rapt_rope_args args;
} good;

enum { TOKENS = 3, D = 4, ROWS = 12, N = 2 * TOKENS * D };
static float rope_from[2 * N], *const rope_to = rope_from + N, rope_table[2][ROWS * D / 2];

static void expect_run(good *t, const char *change, const rapt_rope_args *a, rapt_status want) {
    float before[2 * N];
    char text[256];
    (void)t;
    for (int i = 0; i < 2 * N; i++) rope_from[i] = before[i] = (float)(i + 1);
    const rapt_status said = rapt_rope_explain(a, text, sizeof text), got = rapt_rope_run(a);
    const bool same = memcmp(before, rope_from, sizeof before) == 0;
    tap_ok(got == want && said == got && (got == RAPT_OK ? !text[0] : text[0] && same), "rapt_rope_run with %s: %s", change,
           got == RAPT_OK ? rapt_status_string(got) : text);
}

static void table_refusals(void) {
    static const double frequencies[D / 2] = {1, 0.5};
    static const int32_t starts[2] = {5, 9}, last[2] = {5, ROWS - TOKENS}, late[2] = {5, ROWS - TOKENS + 1};
    static const int32_t far_positions[2 * TOKENS] = {5, 6, 7, 9, ROWS, 11}, early_positions[2 * TOKENS] = {5, -1, 7, 9, 10, 11};
    good given, *const t = &given;
    rapt_rope_args_init(&t->args);
    t->args.batch = 2, t->args.heads = 1, t->args.tokens = TOKENS, t->args.d = D;
    t->args.in = t->args.out = rapt_layout_bhsd(RAPT_F32, 1, TOKENS, D);
    t->args.from = rope_from, t->args.to = rope_to, t->args.starts = starts, t->args.rope.channels = D;
    t->args.rope_table = (rapt_rope_table){RAPT_F32, rope_table[0], rope_table[1], ROWS, 0};
    RUN(RAPT_OK, (void)a);
    RUN(RAPT_OK, a.starts = last);
    RUN(RAPT_ERR_TABLE, a.starts = late);
    RUN(RAPT_OK, a.rope.offset = -5);
    RUN(RAPT_ERR_TABLE, a.rope.offset = -6);
    RUN(RAPT_ERR_TABLE, a.positions = far_positions);
    RUN(RAPT_ERR_TABLE, a.positions = early_positions);
    RUN(RAPT_ERR_TABLE, a.rope_table.positions = 0);
    RUN(RAPT_OK, a.rope_table.positions = 0; a.tokens = 0);
    RUN(RAPT_ERR_NULL, a.rope_table.type = RAPT_NONE);
    RUN(RAPT_ERR_UNUSED, a.rope.frequencies = frequencies);
    RUN(RAPT_ERR_UNUSED, a.rope.channels = 0);
    RUN(RAPT_ERR_NULL, a.rope_table.c = NULL);
    RUN(RAPT_ERR_NULL, a.rope_table.s = NULL);
    RUN(RAPT_ERR_TYPE, a.rope_table.type = RAPT_INT8);
    RUN(RAPT_ERR_SHAPE, a.rope_table.positions = -1);
    RUN(RAPT_ERR_SHAPE, a.rope_table.positions = INT64_C(1) << 31);
    RUN(RAPT_ERR_STRIDE, a.rope_table.row_stride = -8);
    RUN(RAPT_ERR_STRIDE, a.rope_table.row_stride = INT64_MAX / 4);
    RUN(RAPT_ERR_OVERLAP, a.rope_table.c = rope_to);
    RUN(RAPT_ERR_OVERLAP, a.rope_table.s = (char *)rope_to - sizeof rope_table[1] + 1); /* the last sine */
}

/* Two entries of two tokens after 7 and 3 others, f16 caches of 10, everything rotated, a key length given. */
typedef struct plain {
    rapt_desc attention;
    rapt_decode_desc desc;
    rapt_args args;
    rapt_decode_args call;
    rapt_decode_plan plan;
    rapt_decode_plan *plan_at;
    size_t plan_bytes;
    int64_t nth;
    int phase;
    bool misses_body;
    double frequencies[8];
    int32_t starts[2], kv_lengths[2], positions[4], k_offsets[2];
    float q[2 * 2 * 4 * 16], new_rows[2][2 * 2 * 2 * 16], o[2 * 2 * 4 * 16];
    uint16_t cache[2][2 * 2 * 10 * 16];
    unsigned char workspace[1 << 18] __attribute__((aligned(RAPT_WORKSPACE_ALIGNMENT)));
} plain;

static void make_plain(plain *p) {
    memset(p, 0, sizeof *p);
    rapt_desc *a = &p->attention;
    rapt_desc_init(a), rapt_args_init(&p->args), rapt_decode_desc_init(&p->desc), rapt_decode_args_init(&p->call);
    a->batch = 2, a->heads = 4, a->kv_heads = 2, a->q_len = 2, a->kv_len = 10, a->d_k = a->d_v = 16;
    a->q = a->o = rapt_layout_bhsd(RAPT_F32, 4, 2, 16);
    a->k = a->v = rapt_layout_bhsd(RAPT_F16, 2, 10, 16);
    p->desc.attention = a;
    p->desc.new_k = p->desc.new_v = rapt_layout_bhsd(RAPT_F32, 2, 2, 16);
    p->desc.rope.channels = 16, p->desc.rope.frequencies = p->frequencies;
    rapt_rope_frequencies(10000, 16, p->frequencies);
    p->starts[0] = 7, p->starts[1] = 3, p->kv_lengths[0] = 9, p->kv_lengths[1] = 5;
    p->args.q = p->q, p->args.o = p->o, p->args.kv_lengths = p->kv_lengths;
    rapt_decode_args *c = &p->call;
    c->attention = &p->args, c->starts = p->starts, c->new_k = p->new_rows[0], c->new_v = p->new_rows[1];
    c->k = p->cache[0], c->v = p->cache[1], c->workspace = p->workspace, c->workspace_bytes = sizeof p->workspace;
    p->plan_at = &p->plan, p->plan_bytes = sizeof p->plan, p->nth = 1, p->phase = -1;
}

/* The status of a plan, then of a run; or that explaining does not agree, as 1. */
static rapt_status plain_status(plain *p, char *text, size_t bytes) {
    const rapt_status said = rapt_decode_explain(p->desc.size ? &p->desc : NULL, text, bytes);
    rapt_status got = rapt_decode_plan_init_sized(p->plan_at, p->plan_bytes, p->desc.size ? &p->desc : NULL);
    if (!p->plan_at || p->plan_bytes < sizeof p->plan) return got;
    if (said != got || !text[0] != !got) return (rapt_status)1;
    return got;
}

static rapt_status plain_run(plain *p, char *text, size_t bytes) {
    const rapt_status said = rapt_decode_args_explain(p->plan_at, p->call.size ? &p->call : NULL, p->nth, text, bytes);
    const rapt_decode_args *args = p->call.size ? &p->call : NULL;
    if (p->phase >= 0) return rapt_decode_run_phase(&p->plan, args, p->phase, p->nth < 1 ? 0 : p->nth - 1, p->nth);
    if (p->misses_body) return rapt_decode_run_parallel(&p->plan, args, 2, NULL, NULL);
    const rapt_status got = rapt_decode_run_parallel(p->plan_at, args, p->nth, serial, NULL);
    return said != got || !text[0] != !got ? (rapt_status)1 : got;
}

static bool nothing_written(const plain *a, const plain *b) {
    return !memcmp(a->q, b->q, sizeof a->q) && !memcmp(a->o, b->o, sizeof a->o) && !memcmp(a->cache, b->cache, sizeof a->cache) &&
           !memcmp(a->workspace, b->workspace, sizeof a->workspace) && !memcmp(a->new_rows, b->new_rows, sizeof a->new_rows);
}

static void answers(plain *p, rapt_status want, bool planned, const char *change) {
    static plain before;
    char text[256] = "";
    memcpy(&before, p, sizeof before);
    rapt_status got = planned ? plain_status(p, text, sizeof text) : plain_run(p, text, sizeof text);
    tap_ok(got == want && (got == RAPT_OK || nothing_written(p, &before)), "%s: %s", change,
           got == RAPT_OK || !text[0] ? rapt_status_string(got) : text);
}

#define PLANS(want, change)                                                                                                      \
    do {                                                                                                                         \
        make_plain(&p);                                                                                                          \
        change;                                                                                                                  \
        answers(&p, want, true, #change);                                                                                        \
    } while (0)

#define RUNS(want, before_plan, change)                                                                                          \
    do {                                                                                                                         \
        make_plain(&p);                                                                                                          \
        before_plan;                                                                                                             \
        if (rapt_decode_plan_init(&p.plan, &p.desc) != RAPT_OK) tap_ok(false, "%s: no plan", #before_plan);                      \
        change;                                                                                                                  \
        answers(&p, want, false, #before_plan " " #change);                                                                      \
    } while (0)

static void decode_refusals(void) {
    static plain p;
    static int32_t some[3] = {0, 1, 2};
    PLANS(RAPT_OK, );
    PLANS(RAPT_OK, p.desc.tokens = 5; p.desc.new_k = p.desc.new_v = rapt_layout_bhsd(RAPT_F32, 2, 5, 16));
    PLANS(RAPT_ERR_NULL, p.desc.size = 0);
    PLANS(RAPT_ERR_NULL, p.plan_at = NULL);
    PLANS(RAPT_ERR_STRUCT, p.plan_bytes = 100);
    PLANS(RAPT_ERR_NULL, p.desc.attention = NULL);
    PLANS(RAPT_ERR_STRUCT, p.attention.size = 0);
    PLANS(RAPT_ERR_STRUCT, p.desc.size = sizeof p.desc);
    PLANS(RAPT_ERR_FEATURE, p.attention.unmerged = 1; p.attention.states = rapt_layout_bhsd(RAPT_F32, 4, 2, 32));
    PLANS(RAPT_ERR_FEATURE, p.attention.kv_first = 512);
    PLANS(RAPT_ERR_FEATURE, p.attention.kv_total = 10);
    PLANS(RAPT_ERR_FEATURE, p.attention.k_starts = some);
    PLANS(RAPT_ERR_SHAPE, p.desc.tokens = -2);
    PLANS(RAPT_ERR_SHAPE, p.desc.tokens = (int64_t)RAPT_MAX_LENGTH + 1);
    PLANS(RAPT_ERR_TYPE, p.desc.new_k.type = RAPT_INT8);
    PLANS(RAPT_ERR_TYPE, p.desc.new_k.type = RAPT_NONE);
    PLANS(RAPT_ERR_TYPE, p.desc.new_v.type = RAPT_Q8_0);
    PLANS(RAPT_ERR_STRIDE, p.desc.new_k.token_stride = -4);
    PLANS(RAPT_ERR_STRIDE, p.desc.new_v.head_stride = -4);
    PLANS(RAPT_ERR_TYPE, p.attention.q.type = RAPT_Q8_0);
    PLANS(RAPT_ERR_STRIDE, p.attention.q.head_stride = -4);
    PLANS(RAPT_ERR_STRIDE, p.attention.k.token_stride = 0); /* readable, but not writable */
    PLANS(RAPT_ERR_STRIDE, p.attention.v.head_stride = 16);
    PLANS(RAPT_OK, p.attention.v.head_stride = 16; p.desc.new_v.type = RAPT_NONE);
    PLANS(RAPT_ERR_FEATURE, p.desc.rope.channels = 18);
    PLANS(RAPT_ERR_FEATURE, p.desc.rope.channels = 3);
    PLANS(RAPT_ERR_FEATURE, p.frequencies[1] = 17);
    PLANS(RAPT_ERR_FEATURE, p.attention.k_scales = ((rapt_scales){1, 4, 4, 4, 0})); /* of f16 there are none to be found */
    PLANS(RAPT_ERR_HEADS, p.attention.heads = 3);

    RUNS(RAPT_OK, , );
    RUNS(RAPT_OK, , p.args.kv_lengths = NULL);
    RUNS(RAPT_OK, , p.call.starts = NULL);
    RUNS(RAPT_OK, , p.call.positions = p.positions);
    RUNS(RAPT_OK, , p.nth = 3);
    RUNS(RAPT_OK, p.desc.rope.channels = 0, );
    RUNS(RAPT_ERR_UNUSED, p.desc.rope.channels = 0, p.call.positions = p.positions);
    RUNS(RAPT_ERR_PLAN, , memset(&p.plan, 0, sizeof p.plan));
    RUNS(RAPT_ERR_NULL, , p.plan_at = NULL);
    RUNS(RAPT_ERR_NULL, , p.call.size = 0);
    RUNS(RAPT_ERR_NULL, , p.call.attention = NULL);
    RUNS(RAPT_ERR_STRUCT, , p.args.size = 0);
    RUNS(RAPT_ERR_STRUCT, , p.call.size = sizeof p.call);
    RUNS(RAPT_ERR_NULL, , p.args.q = NULL);
    RUNS(RAPT_ERR_NULL, , p.args.o = NULL);
    RUNS(RAPT_ERR_NULL, , p.call.new_k = NULL);
    RUNS(RAPT_ERR_NULL, , p.call.new_v = NULL);
    RUNS(RAPT_ERR_NULL, , p.call.k = NULL);
    RUNS(RAPT_ERR_NULL, , p.call.v = NULL);
    RUNS(RAPT_ERR_NULL, p.desc.rope.frequencies = NULL, );
    RUNS(RAPT_ERR_NULL, , p.misses_body = true);
    RUNS(RAPT_ERR_KV_LENGTH, , p.starts[0] = 9);
    RUNS(RAPT_ERR_KV_LENGTH, , p.kv_lengths[1] = 11);
    RUNS(RAPT_ERR_KV_LENGTH, , p.kv_lengths[1] = -1);
    RUNS(RAPT_ERR_TABLE, , p.starts[1] = -1);
    RUNS(RAPT_ERR_TABLE, , p.args.k_offsets = p.k_offsets; p.k_offsets[1] = -1);
    RUNS(RAPT_ERR_FEATURE, p.desc.tokens = 1, p.call.positions = p.positions);
    RUNS(RAPT_ERR_UNUSED, p.desc.new_v.type = RAPT_NONE, );
    RUNS(RAPT_OK, p.desc.new_v.type = RAPT_NONE, p.call.new_v = NULL);
    RUNS(RAPT_ERR_UNUSED, , p.call.k_scales = p.o);
    RUNS(RAPT_ERR_UNUSED, , p.call.v_scales = p.o);
    RUNS(RAPT_ERR_UNUSED, , p.args.table = some);
    RUNS(RAPT_ERR_UNUSED, , p.args.lse = p.o);
    RUNS(RAPT_ERR_UNUSED, , p.call.rope_table.type = RAPT_F32);
    RUNS(RAPT_ERR_WORKSPACE, , p.call.workspace = NULL);
    RUNS(RAPT_ERR_WORKSPACE, , p.call.workspace_bytes = 2 * 4 * 2 * 16 * 4);
    RUNS(RAPT_ERR_ALIGNMENT, , p.call.workspace = p.workspace + 4; p.call.workspace_bytes -= 4);
    RUNS(RAPT_ERR_ALIGNMENT, , p.call.starts = (int32_t *)(void *)((char *)p.starts + 2));
    RUNS(RAPT_ERR_ALIGNMENT, , p.call.positions = (int32_t *)(void *)((char *)p.positions + 1));
    RUNS(RAPT_ERR_RANGE, , p.nth = 0);
    RUNS(RAPT_ERR_RANGE, , p.phase = 2);
    RUNS(RAPT_OK, , p.phase = 0);
    RUNS(RAPT_ERR_OVERLAP, , p.args.q = p.cache[0]);
    RUNS(RAPT_ERR_OVERLAP, , p.args.q = p.workspace);
    RUNS(RAPT_ERR_OVERLAP, , p.args.q = p.o);
    RUNS(RAPT_ERR_OVERLAP, , p.args.o = p.cache[1]);
    RUNS(RAPT_ERR_OVERLAP, , p.args.o = p.new_rows[1]);
    RUNS(RAPT_ERR_OVERLAP, , p.call.new_k = p.cache[1]);
    RUNS(RAPT_ERR_OVERLAP, , p.call.new_v = p.workspace);
    RUNS(RAPT_ERR_OVERLAP, , p.call.v = p.cache[0]);
    RUNS(RAPT_ERR_OVERLAP, p.attention.scores = rapt_layout_bhsd(RAPT_F32, 4, 2, 10);
         p.attention.scores_stage = RAPT_SCORES_RAW, p.args.scores = p.new_rows[0]);
    RUNS(RAPT_ERR_OVERLAP, , p.call.starts = (int32_t *)(void *)p.cache[0]);
    RUNS(RAPT_ERR_OVERLAP, , p.call.positions = (int32_t *)(void *)p.o);
    RUNS(RAPT_ERR_OVERLAP, , p.args.kv_lengths = (int32_t *)(void *)p.workspace);
    RUNS(RAPT_ERR_OVERLAP, p.desc.rope.frequencies = (double *)(void *)p.workspace, );
}

/* PROGRAM [--quick [KERNEL]]: each kernel, or the one that is named. */
int main(int argc, char **argv) {
    bool quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
    const char *only = argc > 2 ? argv[2] : NULL;
    for (int i = 0; rapt_isa_name(i) && isa_count < MOST_ISAS; i++)
        if (rapt_isa_usable(rapt_isa_name(i), NULL, 0) == RAPT_OK && (!only || strcmp(only, rapt_isa_name(i)) == 0))
            isas[isa_count++] = rapt_isa_name(i);
    if (isa_count == 0) tap_ok(false, "%s can run here", only);
    for (int n = 1; n < 4; n++)
        if (!(pools[n] = rapt_pool_create(n))) return tap_skip_all("there are no threads");
    random_problems(quick ? 8 : 30);
    for (int i = 0; i < isa_count; i++) decoding(isas[i], quick);
    plan_query();
    rope_by_tables();
    table_refusals();
    decode_refusals();
    for (int n = 1; n < 4; n++) rapt_pool_destroy(pools[n]);
    return tap_done();
}
