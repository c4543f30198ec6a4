/* SPDX-License-Identifier: Apache-2.0 */
/* Copying within caches. Random ranges of caches of every type and layout are compared with one row after the other, all memory
 * around them included. Then what it is for, on every kernel, bit for bit: a prefix that two sequences share, pages that are
 * moved; and what is refused. */
#define _GNU_SOURCE
#include <stdio.h>

#include "kv_types.h"
#include "tap.h"
#include "tensors.h"

/* ---- Random ranges -------------------------------------------------------------------------------------------------------- */

enum { K, V, K_SCALES, V_SCALES, PARTS, MOST_RANGES = 6 };

/* Two caches of one kind, the tensors of each in one piece of memory. */
typedef struct problem {
    rapt_kv_copy_desc desc;
    rapt_layout layout[PARTS]; /* RAPT_NONE: not copied */
    int64_t row[PARTS], at[PARTS];
    size_t bytes;
    unsigned char *to, *from; /* the same, or not */
    rapt_kv_range ranges[MOST_RANGES];
    int64_t count;
} problem;

/* Strides for rows of `row` bytes, the dimensions in any order, dense or with gaps; returns the bytes of all. */
static int64_t draw_strides(rapt_layout *l, const int64_t length[3], int64_t row) {
    int64_t span = row, gap = one_in(2) ? 1 + below(9) : 0, *stride[3] = {&l->batch_stride, &l->head_stride, &l->token_stride};
    int32_t order[3] = {0, 1, 2};
    shuffle(order, 3);
    for (int i = 0; i < 3; i++) {
        int32_t d = order[i];
        *stride[d] = span + gap;
        if (length[d] > 1) span = (length[d] - 1) * *stride[d] + span;
    }
    return span;
}

/* Lays out the tensors one after the other, or side by side: the rows of each token and head one after the other, so that the
 * rows of each tensor lie in the gaps of the others. */
static void lay_out(problem *p, const int64_t length[3]) {
    bool within = one_in(3);
    int64_t all = 0;
    for (int i = 0; i < PARTS; i++) {
        if (!p->layout[i].type) continue;
        p->at[i] = all;
        all += within ? p->row[i] : draw_strides(&p->layout[i], length, p->row[i]) + below(3);
    }
    rapt_layout shared;
    if (within) all = draw_strides(&shared, length, all);
    for (int i = 0; i < PARTS && within; i++) {
        if (!p->layout[i].type) continue;
        shared.type = p->layout[i].type;
        p->layout[i] = shared;
    }
    p->bytes = (size_t)all;
}

static rapt_scales scales_of(const rapt_layout *l) {
    return (rapt_scales){l->type != 0, l->batch_stride, l->head_stride, l->type ? l->token_stride : 0, 0};
}

static void make_problem(problem *p, rapt_type k, rapt_type v) {
    *p = (problem){.desc.size = 0};
    rapt_kv_copy_desc *d = &p->desc;
    rapt_kv_copy_desc_init(d);
    d->entries = 1 + below(4), d->kv_heads = 1 + below(3), d->tokens = 1 + below(12);
    const int64_t length[3] = {d->entries, d->kv_heads, d->tokens};
    int only = (int)below(5); /* 0: K, as of latent attention; 1: V */
    if (only != 1) p->layout[K].type = k, d->d_k = is_grouped(k) ? reference_group(k) * (1 + below(2)) : ONE_OF(1, 7, 16, 33);
    if (only != 0) p->layout[V].type = v, d->d_v = is_grouped(v) ? reference_group(v) * (1 + below(2)) : ONE_OF(1, 7, 16, 33);
    for (int side = 0; side < 2; side++)
        if (p->layout[side].type && one_in(2)) p->layout[K_SCALES + side].type = RAPT_F32;
    for (int i = 0; i < PARTS; i++)
        if (p->layout[i].type) p->row[i] = reference_row_bytes(p->layout[i].type, i == K ? d->d_k : i == V ? d->d_v : 1);
    lay_out(p, length);
    d->k = p->layout[K], d->v = p->layout[V], d->k_scales = scales_of(&p->layout[K_SCALES]),
    d->v_scales = scales_of(&p->layout[V_SCALES]);
    p->to = malloc(p->bytes + 1), p->from = one_in(3) ? malloc(p->bytes + 1) : p->to;
    if (!p->to || !p->from) abort();
    for (size_t i = 0; i <= p->bytes; i++) p->to[i] = (unsigned char)random_bits();
    for (size_t i = 0; i <= p->bytes && p->from != p->to; i++) p->from[i] = (unsigned char)random_bits();
    p->count = below(MOST_RANGES + 1);
    for (int64_t n = 0; n < p->count; n++) {
        rapt_kv_range *r = &p->ranges[n];
        r->tokens = (int32_t)below(d->tokens + 1);
        r->from = (int32_t)below(d->entries), r->to = one_in(2) ? r->from : (int32_t)below(d->entries);
        r->from_token = (int32_t)below(d->tokens - r->tokens + 1), r->to_token = (int32_t)below(d->tokens - r->tokens + 1);
    }
}

static void free_problem(problem *p) {
    if (p->from != p->to) free(p->from);
    free(p->to);
}

/* One range after the other, each read whole before any of it is written. */
static void model(const problem *p, unsigned char *to) {
    unsigned char *read = malloc(p->bytes + 1);
    if (!read) abort();
    for (int64_t n = 0; n < p->count; n++) {
        const rapt_kv_range *r = &p->ranges[n];
        memcpy(read, p->from == p->to ? to : p->from, p->bytes + 1);
        for (int i = 0; i < PARTS; i++)
            for (int64_t token = 0; token < r->tokens && p->layout[i].type; token++)
                for (int64_t h = 0; h < p->desc.kv_heads; h++) {
                    const rapt_layout *l = &p->layout[i];
                    int64_t head = p->at[i] + h * l->head_stride;
                    memcpy(to + head + r->to * l->batch_stride + (r->to_token + token) * l->token_stride,
                           read + head + r->from * l->batch_stride + (r->from_token + token) * l->token_stride,
                           (size_t)p->row[i]);
                }
    }
    free(read);
}

static void *part_of(const problem *p, unsigned char *memory, int part) {
    return p->layout[part].type ? memory + p->at[part] : NULL;
}

static rapt_kv_copy_args args_of(const problem *p) {
    rapt_kv_copy_args a;
    rapt_kv_copy_args_init(&a);
    a.k = part_of(p, p->to, K), a.v = part_of(p, p->to, V);
    a.k_scales = part_of(p, p->to, K_SCALES), a.v_scales = part_of(p, p->to, V_SCALES);
    a.ranges = p->ranges, a.count = p->count;
    if (p->from == p->to) return a;
    a.from_k = part_of(p, p->from, K), a.from_v = part_of(p, p->from, V);
    a.from_k_scales = part_of(p, p->from, K_SCALES), a.from_v_scales = part_of(p, p->from, V_SCALES);
    return a;
}

/* True if 1, 2, 5 and 64 threads copy what the model does. */
static bool copy_agrees(problem *p) {
    static const int64_t threads[] = {1, 2, 5, 64};
    unsigned char *before = malloc(p->bytes + 1), *want = malloc(p->bytes + 1);
    if (!before || !want) abort();
    memcpy(before, p->to, p->bytes + 1), memcpy(want, p->to, p->bytes + 1);
    model(p, want);
    const rapt_kv_copy_args a = args_of(p);
    bool same = true;
    for (int n = 0; n < 4; n++) {
        memcpy(p->to, before, p->bytes + 1);
        for (int64_t ith = threads[n] - 1; ith >= 0; ith--) {
            rapt_status status = rapt_kv_copy_run_share(&p->desc, &a, ith, threads[n]);
            if (status != RAPT_OK) printf("# refused: %s\n", rapt_status_string(status));
            same = same && status == RAPT_OK;
        }
        same = same && memcmp(p->to, want, p->bytes + 1) == 0;
    }
    free(before), free(want);
    return same;
}

static void random_ranges(void) {
    for (int i = 0; i < KV_TYPES; i++) {
        const rapt_type type = kv_types[i];
        int wrong = 0, turns = 400;
        for (int turn = 0; turn < turns; turn++) {
            problem p;
            random_state = (uint64_t)type * 1000 + (uint64_t)turn;
            const rapt_type other = kv_types[below(KV_TYPES)];
            make_problem(&p, turn % 2 ? type : other, turn % 2 ? other : type);
            const bool same = copy_agrees(&p);
            if (!same) printf("# %s: problem %d differs\n", rapt_type_name(type), turn);
            wrong += !same;
            free_problem(&p);
        }
        tap_ok(wrong == 0, "%s: %d caches by 1, 2, 5 and 64 threads, %d wrong", rapt_type_name(type), turns, wrong);
    }
}

/* ---- Sequences in pages ------------------------------------------------------------------------------------------------ */

enum {
    SEQUENCES = 2,
    HEADS = 4,
    KV_HEADS = 2,
    D_K = 64,
    D_V = 32,
    PAGE = 16,
    PAGES = 24,
    ROW_PAGES = 8,
    PROMPT = 41,
    STEPS = 30
};

/* A paged pool of one type, K and V with their scales of tokens where it is of bytes, and the sequences' page tables. */
typedef struct pool {
    rapt_type type;
    rapt_rope rope;
    unsigned char k[PAGES * KV_HEADS * PAGE * D_K * 4], v[PAGES * KV_HEADS * PAGE * D_V * 4];
    float k_scales[PAGES * KV_HEADS * PAGE], v_scales[PAGES * KV_HEADS * PAGE];
    int32_t table[SEQUENCES * ROW_PAGES], starts[SEQUENCES];
} pool;

typedef struct tokens {
    float q[HEADS * D_K], k[KV_HEADS * D_K], v[KV_HEADS * D_V];
} tokens;

static void draw_token(tokens *t) {
    for (int i = 0; i < HEADS * D_K; i++) t->q[i] = random_value();
    for (int i = 0; i < KV_HEADS * D_K; i++) t->k[i] = random_value();
    for (int i = 0; i < KV_HEADS * D_V; i++) t->v[i] = random_value();
}

static rapt_scales scales(rapt_type type) {
    const rapt_layout l = rapt_layout_bhsd(RAPT_F32, KV_HEADS, PAGE, 1);
    return (rapt_scales){is_byte(type), l.batch_stride, l.head_stride, l.token_stride, 0};
}

/* One more token of each of `sequences` sequences, from the first one on. */
static rapt_status step(pool *c, const char *isa, const tokens *t, int64_t sequences, float *o) {
    rapt_desc d;
    rapt_decode_desc s;
    rapt_args a;
    rapt_decode_args call;
    rapt_decode_plan plan;
    rapt_desc_init(&d), rapt_decode_desc_init(&s), rapt_args_init(&a), rapt_decode_args_init(&call);
    d.batch = sequences, d.heads = HEADS, d.kv_heads = KV_HEADS, d.q_len = 1, d.kv_len = ROW_PAGES * PAGE, d.d_k = D_K,
    d.d_v = D_V;
    d.q = (rapt_layout){RAPT_F32, sizeof *t, D_K * 4, 0}, d.o = rapt_layout_bhsd(RAPT_F32, HEADS, 1, D_V);
    d.k = rapt_layout_bhsd(c->type, KV_HEADS, PAGE, D_K), d.v = rapt_layout_bhsd(c->type, KV_HEADS, PAGE, D_V);
    d.k_scales = d.v_scales = scales(c->type);
    d.page_size = PAGE, d.pages = PAGES, d.table = (rapt_layout){RAPT_I32, ROW_PAGES * 4, 0, 0}, d.isa = isa;
    s.attention = &d, s.rope = c->rope;
    s.new_k = (rapt_layout){RAPT_F32, sizeof *t, D_K * 4, 0}, s.new_v = (rapt_layout){RAPT_F32, sizeof *t, D_V * 4, 0};
    a.q = t->q, a.o = o, a.table = c->table;
    call.attention = &a, call.new_k = t->k, call.new_v = t->v, call.k = c->k, call.v = c->v, call.starts = c->starts;
    if (is_byte(c->type)) call.k_scales = c->k_scales, call.v_scales = c->v_scales;
    rapt_status status = rapt_decode_plan_init(&plan, &s);
    if (status == RAPT_OK) status = rapt_decode_workspace_size(&plan, 1, &call.workspace_bytes);
    if (status != RAPT_OK) return status;
    call.workspace = new_workspace(call.workspace_bytes);
    status = rapt_decode_run(&plan, &call);
    aligned_destroy(call.workspace);
    for (int64_t b = 0; b < sequences; b++) c->starts[b]++;
    return status;
}

static rapt_status copy_pages(pool *c, const rapt_kv_range *ranges, int64_t count) {
    rapt_kv_copy_desc d;
    rapt_kv_copy_args a;
    rapt_kv_copy_desc_init(&d), rapt_kv_copy_args_init(&a);
    d.entries = PAGES, d.kv_heads = KV_HEADS, d.tokens = PAGE, d.d_k = D_K, d.d_v = D_V;
    d.k = rapt_layout_bhsd(c->type, KV_HEADS, PAGE, D_K), d.v = rapt_layout_bhsd(c->type, KV_HEADS, PAGE, D_V);
    d.k_scales = d.v_scales = scales(c->type);
    a.k = c->k, a.v = c->v, a.ranges = ranges, a.count = count;
    if (is_byte(c->type)) a.k_scales = c->k_scales, a.v_scales = c->v_scales;
    rapt_status status = RAPT_OK;
    for (int64_t ith = 0; ith < 3 && status == RAPT_OK; ith++) status = rapt_kv_copy_run_share(&d, &a, ith, 3);
    return status;
}

static pool *new_pool(rapt_type type, const rapt_rope *rope) {
    pool *c = calloc(1, sizeof *c);
    if (!c) abort();
    c->type = type, c->rope = *rope;
    return c;
}

/* The sequences' pages, drawn from all. */
static void draw_table(pool *c, uint64_t seed) {
    int32_t pages[PAGES];
    random_state = seed;
    for (int32_t i = 0; i < PAGES; i++) pages[i] = i;
    shuffle(pages, PAGES);
    memcpy(c->table, pages, sizeof c->table);
}

static tokens prompt[PROMPT], later[STEPS][SEQUENCES];

/* A prompt, which both sequences begin with, whose last page is not full: the first one has it alone, then the second one shares
 * its full pages and gets a copy of the last. Both go on, and give what each gives by itself. */
static int fork_sequence(const char *isa, rapt_type type, const rapt_rope *rope) {
    static float o[STEPS][SEQUENCES * HEADS * D_V], alone[HEADS * D_V], ignored[HEADS * D_V];
    int wrong = 0;
    pool *c = new_pool(type, rope);
    draw_table(c, 5);
    for (int i = 0; i < PROMPT; i++) wrong += step(c, isa, &prompt[i], 1, ignored) != RAPT_OK;
    enum { FULL = PROMPT / PAGE };
    memcpy(c->table + ROW_PAGES, c->table, FULL * sizeof *c->table);
    const rapt_kv_range last = {c->table[FULL], 0, c->table[ROW_PAGES + FULL], 0, PROMPT % PAGE};
    wrong += copy_pages(c, &last, 1) != RAPT_OK;
    c->starts[1] = PROMPT;
    for (int i = 0; i < STEPS; i++) wrong += step(c, isa, later[i], SEQUENCES, o[i]) != RAPT_OK;
    free(c);
    for (int b = 0; b < SEQUENCES; b++) {
        c = new_pool(type, rope);
        draw_table(c, (uint64_t)(6 + b));
        for (int i = 0; i < PROMPT; i++) wrong += step(c, isa, &prompt[i], 1, ignored) != RAPT_OK;
        for (int i = 0; i < STEPS; i++) {
            wrong += step(c, isa, &later[i][b], 1, alone) != RAPT_OK;
            wrong += memcmp(alone, o[i] + b * HEADS * D_V, sizeof alone) != 0;
        }
        free(c);
    }
    return wrong;
}

/* Pages in use anywhere in the pool are moved to its beginning while two sequences are decoded, which changes nothing. */
static int defragment(const char *isa, rapt_type type, const rapt_rope *rope) {
    static float o[2][STEPS][SEQUENCES * HEADS * D_V];
    int wrong = 0, moved = 0;
    for (int way = 0; way < 2; way++) {
        pool *c = new_pool(type, rope);
        draw_table(c, 9);
        for (int i = 0; i < STEPS; i++) {
            if (way && i == 20) {
                rapt_kv_range ranges[SEQUENCES * ROW_PAGES];
                bool used[PAGES] = {false};
                const int32_t pages = (i + PAGE - 1) / PAGE;
                int64_t count = 0;
                int32_t next = 0;
                for (int n = 0; n < SEQUENCES * pages; n++) used[c->table[n / pages * ROW_PAGES + n % pages]] = true;
                for (int n = 0; n < SEQUENCES * ROW_PAGES; n++) {
                    int32_t *page = &c->table[n];
                    if (n % ROW_PAGES >= pages) continue;
                    while (next < *page && used[next]) next++;
                    if (next >= *page) continue;
                    ranges[count++] = (rapt_kv_range){*page, 0, next, 0, PAGE};
                    used[*page] = false, used[next] = true;
                    *page = next;
                }
                wrong += copy_pages(c, ranges, count) != RAPT_OK;
                moved += (int)count;
                for (int32_t p = 0, free_page = 0; p < SEQUENCES * ROW_PAGES; p++) { /* the others get those that are left */
                    if (p % ROW_PAGES < pages) continue;
                    while (used[free_page]) free_page++;
                    c->table[p] = free_page++;
                }
                for (int p = 0; p < PAGES; p++) /* what was moved away is nobody's */
                    if (!used[p])
                        memset(c->k + p * KV_HEADS * PAGE * rapt_row_bytes(type, D_K), 0x55,
                               (size_t)(KV_HEADS * PAGE * rapt_row_bytes(type, D_K)));
            }
            wrong += step(c, isa, later[i], SEQUENCES, o[way][i]) != RAPT_OK;
        }
        free(c);
    }
    return wrong + (memcmp(o[0], o[1], sizeof o[0]) != 0) + (moved == 0);
}

static void sequences(const char *isa) {
    static const rapt_type types[] = {RAPT_F32, RAPT_F16, RAPT_F8_E4M3, RAPT_INT8, RAPT_Q8_0, RAPT_Q4_0};
    double frequencies[D_K / 2];
    rapt_rope_frequencies(10000, D_K, frequencies);
    const rapt_rope rope = {.channels = D_K, .frequencies = frequencies, .amplitude = 1.0};
    for (size_t n = 0; n < sizeof types / sizeof *types; n++) {
        int forked = fork_sequence(isa, types[n], &rope), moved = defragment(isa, types[n], &rope);
        tap_ok(forked == 0, "%s: two sequences of %s share a prefix: %d wrong", isa, rapt_type_name(types[n]), forked);
        tap_ok(moved == 0, "%s: pages of %s are moved to the pool's beginning: %d wrong", isa, rapt_type_name(types[n]), moved);
    }
}

/* ---- What is refused -------------------------------------------------------------------------------------------------- */

/* Two caches of int8, of 3 entries, 2 heads and 5 tokens, with scales; two ranges. */
typedef struct plain {
    rapt_kv_copy_desc desc;
    rapt_kv_copy_args args;
    signed char k[2][3 * 2 * 5 * 8], v[2][3 * 2 * 5 * 4];
    float k_scales[2][3 * 2 * 5], v_scales[2][3 * 2 * 5];
    rapt_kv_range ranges[2];
} plain;

static void make_plain(plain *p) {
    memset(p, 0, sizeof *p);
    rapt_kv_copy_desc *d = &p->desc;
    rapt_kv_copy_args *a = &p->args;
    const rapt_layout f = rapt_layout_bhsd(RAPT_F32, 2, 5, 1);
    rapt_kv_copy_desc_init(d), rapt_kv_copy_args_init(a);
    memset(p->k[0], 1, sizeof p->k[0]), memset(p->k[1], 2, sizeof p->k[1]);
    memset(p->v[0], 3, sizeof p->v[0]), memset(p->v[1], 4, sizeof p->v[1]);
    d->entries = 3, d->kv_heads = 2, d->tokens = 5, d->d_k = 8, d->d_v = 4;
    d->k = rapt_layout_bhsd(RAPT_INT8, 2, 5, 8), d->v = rapt_layout_bhsd(RAPT_INT8, 2, 5, 4);
    d->k_scales = d->v_scales = (rapt_scales){1, f.batch_stride, f.head_stride, f.token_stride, 0};
    a->k = p->k[0], a->v = p->v[0], a->k_scales = p->k_scales[0], a->v_scales = p->v_scales[0];
    p->ranges[0] = (rapt_kv_range){0, 0, 1, 1, 4}, p->ranges[1] = (rapt_kv_range){2, 3, 2, 0, 2};
    a->ranges = p->ranges, a->count = 2;
}

static void from_the_other(plain *p) {
    p->args.from_k = p->k[1], p->args.from_v = p->v[1], p->args.from_k_scales = p->k_scales[1],
    p->args.from_v_scales = p->v_scales[1];
}

static void answers(plain *p, int64_t ith, int64_t nth, rapt_status want, const char *change) {
    plain before;
    char text[256];
    memcpy(&before, p, sizeof before);
    const rapt_kv_copy_desc *d = p->desc.size ? &p->desc : NULL;
    const rapt_kv_copy_args *a = p->args.size ? &p->args : NULL;
    const rapt_status said = rapt_kv_copy_explain(d, a, text, sizeof text), got = rapt_kv_copy_run_share(d, a, ith, nth);
    bool told = want == RAPT_ERR_RANGE || (said == got && !text[0] == !got);
    tap_ok(got == want && told && (got == RAPT_OK || memcmp(&before, p, sizeof before) == 0), "%s: %s", change,
           text[0] ? text : rapt_status_string(got));
}

#define ANSWERS(want, change)                                                                                                    \
    do {                                                                                                                         \
        int64_t ith = 0, nth = 1;                                                                                                \
        make_plain(&p);                                                                                                          \
        rapt_kv_copy_desc *const d = &p.desc;                                                                                    \
        rapt_kv_copy_args *const a = &p.args;                                                                                    \
        change;                                                                                                                  \
        (void)d, (void)a;                                                                                                        \
        answers(&p, ith, nth, want, #change);                                                                                    \
    } while (0)

static void refused(void) {
    static plain p;
    const int64_t too_long = (int64_t)RAPT_MAX_LENGTH + 1;
    ANSWERS(RAPT_OK, );
    ANSWERS(RAPT_OK, ith = 2; nth = 3);
    ANSWERS(RAPT_OK, from_the_other(&p));
    ANSWERS(RAPT_OK, a->count = 0; a->ranges = NULL);
    ANSWERS(RAPT_OK, p.ranges[0] = ((rapt_kv_range){2, 5, 2, 5, 0}));
    ANSWERS(RAPT_OK, d->v.type = RAPT_NONE; d->d_v = 0; d->v_scales.present = 0; a->v = a->v_scales = NULL);
    ANSWERS(RAPT_OK, d->k.type = RAPT_NONE; d->d_k = 0; d->k_scales.present = 0; a->k = a->k_scales = NULL);
    ANSWERS(RAPT_OK, d->entries = 0; a->count = 0; a->k = a->v = a->k_scales = a->v_scales = NULL);
    ANSWERS(RAPT_OK, d->k_scales.token_stride = 0; a->k_scales = NULL); /* given scales stay where they are */

    ANSWERS(RAPT_ERR_NULL, d->size = 0);
    ANSWERS(RAPT_ERR_NULL, a->size = 0);
    ANSWERS(RAPT_ERR_NULL, a->k = NULL);
    ANSWERS(RAPT_ERR_NULL, a->v = NULL);
    ANSWERS(RAPT_ERR_NULL, a->k_scales = NULL);
    ANSWERS(RAPT_ERR_NULL, a->v_scales = NULL);
    ANSWERS(RAPT_ERR_NULL, a->ranges = NULL);
    ANSWERS(RAPT_ERR_NULL, a->from_k = p.k[1]);
    ANSWERS(RAPT_ERR_NULL, a->from_v = p.v[1]);
    ANSWERS(RAPT_ERR_NULL, a->from_k_scales = p.k_scales[1]);
    ANSWERS(RAPT_ERR_NULL, a->from_v_scales = p.v_scales[1]);
    ANSWERS(RAPT_ERR_NULL, from_the_other(&p); a->from_k = NULL);
    ANSWERS(RAPT_ERR_NULL, from_the_other(&p); a->from_v = NULL);
    ANSWERS(RAPT_ERR_NULL, from_the_other(&p); a->from_k_scales = NULL);
    ANSWERS(RAPT_ERR_NULL, from_the_other(&p); a->from_v_scales = NULL);
    ANSWERS(RAPT_ERR_STRUCT, d->size = sizeof *d);
    ANSWERS(RAPT_ERR_STRUCT, a->size = sizeof *a);
    ANSWERS(RAPT_ERR_SHAPE, d->entries = -1);
    ANSWERS(RAPT_ERR_SHAPE, d->entries = too_long);
    ANSWERS(RAPT_ERR_SHAPE, d->kv_heads = 0);
    ANSWERS(RAPT_ERR_SHAPE, d->kv_heads = too_long);
    ANSWERS(RAPT_ERR_SHAPE, d->tokens = -1);
    ANSWERS(RAPT_ERR_SHAPE, d->tokens = too_long);
    ANSWERS(RAPT_ERR_SHAPE, d->d_k = 0);
    ANSWERS(RAPT_ERR_SHAPE, d->d_v = RAPT_MAX_HEAD_DIM + 1);
    ANSWERS(RAPT_ERR_SHAPE, a->count = -1);
    ANSWERS(RAPT_ERR_STRIDE, a->count = INT64_MAX);
    ANSWERS(RAPT_ERR_TYPE, d->k.type = d->v.type = RAPT_NONE);
    ANSWERS(RAPT_ERR_TYPE, d->k.type = RAPT_BOOL);
    ANSWERS(RAPT_ERR_TYPE, d->v.type = RAPT_Q8_0);
    ANSWERS(RAPT_ERR_STRIDE, d->k.token_stride = -8);
    ANSWERS(RAPT_ERR_STRIDE, d->k.token_stride = 7);
    ANSWERS(RAPT_ERR_STRIDE, d->v.batch_stride = 0);
    ANSWERS(RAPT_ERR_STRIDE, d->k_scales.token_stride = 3);
    ANSWERS(RAPT_ERR_STRIDE, d->v_scales.head_stride = 0);
    ANSWERS(RAPT_ERR_STRIDE, d->k.batch_stride = INT64_MAX);
    ANSWERS(RAPT_ERR_STRIDE, d->k_scales.channel_stride = 4);
    ANSWERS(RAPT_ERR_FEATURE, d->k.type = RAPT_NONE; a->k = a->k_scales = NULL);
    ANSWERS(RAPT_ERR_FEATURE, d->v.type = RAPT_NONE; a->v = a->v_scales = NULL);
    ANSWERS(RAPT_ERR_TABLE, p.ranges[1].from = 3);
    ANSWERS(RAPT_ERR_TABLE, p.ranges[1].from = -1);
    ANSWERS(RAPT_ERR_TABLE, p.ranges[1].to = 3);
    ANSWERS(RAPT_ERR_TABLE, p.ranges[1].to = -1);
    ANSWERS(RAPT_ERR_TABLE, p.ranges[1].tokens = 3);
    ANSWERS(RAPT_ERR_TABLE, p.ranges[1].tokens = -1);
    ANSWERS(RAPT_ERR_TABLE, p.ranges[1].tokens = INT32_MAX);
    ANSWERS(RAPT_ERR_TABLE, p.ranges[1].from_token = 4);
    ANSWERS(RAPT_ERR_TABLE, p.ranges[1].from_token = -1);
    ANSWERS(RAPT_ERR_TABLE, p.ranges[1].from_token = INT32_MAX);
    ANSWERS(RAPT_ERR_TABLE, p.ranges[0].to_token = 2);
    ANSWERS(RAPT_ERR_TABLE, p.ranges[0].to_token = -1);
    ANSWERS(RAPT_ERR_TABLE, p.ranges[0] = ((rapt_kv_range){2, 6, 2, 5, 0}));
    ANSWERS(RAPT_ERR_TABLE, d->entries = 0; a->k = a->v = a->k_scales = a->v_scales = NULL);
    ANSWERS(RAPT_ERR_ALIGNMENT, a->ranges = (rapt_kv_range *)(void *)((char *)p.ranges + 2));
    ANSWERS(RAPT_ERR_UNUSED, d->v.type = RAPT_NONE; d->v_scales.present = 0; a->v_scales = NULL);
    ANSWERS(RAPT_ERR_UNUSED, d->v_scales.present = 0);
    ANSWERS(RAPT_ERR_UNUSED, d->v_scales.token_stride = 0);
    ANSWERS(RAPT_ERR_UNUSED, from_the_other(&p); d->v_scales.present = 0; a->v_scales = NULL);
    ANSWERS(RAPT_ERR_UNUSED, from_the_other(&p); d->v.type = RAPT_NONE; d->v_scales.present = 0; a->v = a->v_scales = NULL;
            a->from_v_scales = NULL);
    ANSWERS(RAPT_ERR_RANGE, nth = 0);
    ANSWERS(RAPT_ERR_RANGE, ith = -1);
    ANSWERS(RAPT_ERR_RANGE, ith = 3; nth = 3);
    ANSWERS(RAPT_ERR_OVERLAP, a->v = a->k);
    ANSWERS(RAPT_ERR_OVERLAP, a->k_scales = a->v_scales);
    ANSWERS(RAPT_ERR_OVERLAP, a->k_scales = (float *)(void *)(p.k[0] + 8));
    ANSWERS(RAPT_ERR_OVERLAP, from_the_other(&p); a->from_k = p.k[0]);
    ANSWERS(RAPT_ERR_OVERLAP, from_the_other(&p); a->from_v = p.v[0] + sizeof p.v[0] - 1);
    ANSWERS(RAPT_ERR_OVERLAP, from_the_other(&p); a->from_k_scales = a->v_scales);
    ANSWERS(RAPT_ERR_OVERLAP, memset(p.k_scales[0], 0, sizeof p.k_scales[0]); a->ranges = (rapt_kv_range *)(void *)p.k_scales[0]);
}

int main(void) {
    random_ranges();
    random_state = 3;
    for (int i = 0; i < PROMPT; i++) draw_token(&prompt[i]);
    for (int i = 0; i < STEPS * SEQUENCES; i++) draw_token(&later[i / SEQUENCES][i % SEQUENCES]);
    for (int i = 0; rapt_isa_name(i); i++)
        if (rapt_isa_usable(rapt_isa_name(i), NULL, 0) == RAPT_OK) sequences(rapt_isa_name(i));
    refused();
    return tap_done();
}
