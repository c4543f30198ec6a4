/* SPDX-License-Identifier: Apache-2.0 */
/* Writing caches. Random problems of every type and kind of cache are compared with a model that is written down as plainly as
 * possible, all memory around what is written included, and hashed; the hash is the same on every machine. Then what is
 * refused, and that it touches nothing. */
#define _DEFAULT_SOURCE
#include <inttypes.h>
#include <stddef.h>

#include "hash.h"
#include "kv_types.h"
#include "refusals.h"
#include "tap.h"
#include "tensors.h"

static const uint64_t golden_caches = UINT64_C(0x28174ce0e1a7d065), golden_rope = UINT64_C(0x23cce56c91ac8d5d);

/* Now and then zero, or of another size. */
static float odd_value(void) {
    float value = random_value() / 2;
    return one_in(64) ? 0.0f : one_in(64) ? value * 0x1p10f : one_in(64) ? value * 0x1p-12f : value;
}

/* ---- Tensors ----------------------------------------------------------------------------------------------------------- */

/* special: some are not finite, or as large or as small as that. */
static void fill_oddly(tensor *t, bool special) {
    for (int64_t b = 0; b < t->batch; b++)
        for (int64_t h = 0; h < t->heads; h++)
            for (int64_t i = 0; i < t->tokens; i++) {
                float values[RAPT_MAX_HEAD_DIM];
                bool zeros = one_in(20);
                for (int64_t c = 0; c < t->channels; c++) {
                    values[c] = zeros ? 0.0f : odd_value();
                    if (special && one_in(200)) values[c] = one_in(2) ? INFINITY : one_in(2) ? 3e38f : -1e-40f;
                    if (special && one_in(400) && t->layout.type == RAPT_F32) values[c] = NAN;
                }
                reference_store_row(t->layout.type, row_of(t, b, h, i), values, t->channels);
            }
}

/* ---- The model ------------------------------------------------------------------------------------------------------- */

/* Of a table: c, or s. */
static float angle_at(const rapt_rope *r, const rapt_rope_table *t, const void *numbers, int64_t position, int64_t i) {
    const int64_t row = t->row_stride ? t->row_stride : r->channels / 2 * reference_type_bytes(t->type);
    return reference_element(t->type, (const char *)numbers + (position + r->offset) * row, i);
}

static void rotate(float *x, const rapt_rope *r, const rapt_rope_table *t, int64_t position) {
    for (int64_t i = 0; i < r->channels / 2; i++) {
        float c, s;
        if (r->frequencies) {
            const long double angle = (long double)(position + r->offset) * (long double)r->frequencies[i];
            c = (float)((double)cosl(angle) * r->amplitude), s = (float)((double)sinl(angle) * r->amplitude);
        } else {
            c = angle_at(r, t, t->c, position, i), s = angle_at(r, t, t->s, position, i);
        }
        float *const a = &x[r->interleaved ? 2 * i : i], *const b = &x[r->interleaved ? 2 * i + 1 : i + r->channels / 2];
        const float was = *a;
        *a = was * c - *b * s;
        *b = *b * c + was * s;
    }
}

enum { MOST_ENTRIES = 3, MOST_HEADS = 3, MOST_TOKENS = 12, MOST_KEYS = 70 };

typedef struct problem {
    rapt_kv_append_desc desc;
    rapt_kv_append_args args;
    tensor new_rows[2], cache[2], scales[2]; /* of K and V */
    int32_t starts[MOST_ENTRIES], lengths[MOST_ENTRIES], token_starts[MOST_ENTRIES + 1], ring_starts[MOST_ENTRIES];
    int32_t positions[MOST_ENTRIES * MOST_TOKENS], table[MOST_ENTRIES * MOST_HEADS * MOST_KEYS], table_starts[MOST_ENTRIES + 1];
    double frequencies[RAPT_MAX_HEAD_DIM / 2];
} problem;

static int64_t tokens_of(const problem *p, int64_t b) {
    if (p->args.token_starts) return p->token_starts[b + 1] - p->token_starts[b];
    return p->args.lengths ? p->lengths[b] : p->desc.tokens;
}

static int64_t start_of(const problem *p, int64_t b) { return p->args.starts ? p->starts[b] : 0; }

/* What cache and scales must be afterwards. */
static void model(const problem *p, tensor *cache, tensor *scales) {
    const rapt_kv_append_desc *d = &p->desc;
    for (int side = 0; side < 2; side++)
        for (int64_t b = 0; b < d->batch && cache[side].memory; b++)
            for (int64_t i = 0; i < tokens_of(p, b); i++)
                for (int64_t h = 0; h < d->kv_heads; h++) {
                    const int64_t channels = side ? d->d_v : d->d_k, token = p->args.token_starts ? p->token_starts[b] + i : i;
                    const rapt_type type = cache[side].layout.type;
                    const rapt_scales *s = side ? &d->v_scales : &d->k_scales;
                    float x[RAPT_MAX_HEAD_DIM], most = 0;
                    const unsigned char *from = row_of(&p->new_rows[side], p->args.token_starts ? 0 : b, h, token);
                    for (int64_t c = 0; c < channels; c++) x[c] = reference_element(p->new_rows[side].layout.type, from, c);
                    int64_t position = start_of(p, b) + i;
                    if (p->args.positions) position = p->positions[p->args.token_starts ? token : b * d->tokens + i];
                    if (side == 0) rotate(x, &d->rope, &p->args.rope_table, position);

                    int64_t slot = start_of(p, b) + i, place = b;
                    if (p->args.ring_starts) slot = (slot + p->ring_starts[b]) % d->kv_len;
                    if (d->page_size) {
                        int64_t entry = p->args.table_starts ? p->table_starts[b] : b * d->table.batch_stride / 4;
                        place = p->table[entry + h * d->table.head_stride / 4 + slot / d->page_size];
                        slot %= d->page_size;
                    }
                    if (s->present && s->token_stride) {
                        const float largest = type == RAPT_INT8 ? 127 : type == RAPT_F8_E4M3 ? 448 : 57344;
                        bool finite = true;
                        for (int64_t c = 0; c < channels; c++) finite = finite && isfinite(x[c]), most = fmaxf(most, fabsf(x[c]));
                        const float scale = finite ? most / largest : NAN;
                        memcpy(row_of(&scales[side], place, h, slot), &scale, sizeof scale);
                        for (int64_t c = 0; c < channels; c++) x[c] = !finite || scale == 0 ? 0 : x[c] / scale;
                    } else if (s->present) {
                        for (int64_t c = 0; c < channels; c++) {
                            float factor;
                            memcpy(&factor, scales[side].at + b * s->batch_stride + h * s->head_stride + c * s->channel_stride,
                                   sizeof factor);
                            x[c] = factor == 0 ? 0 : x[c] / factor;
                        }
                    }
                    reference_store_row(type, row_of(&cache[side], place, h, slot), x, channels);
                }
}

/* ---- Random problems ------------------------------------------------------------------------------------------------- */

static const rapt_type float_types[] = {RAPT_F32, RAPT_F16, RAPT_BF16};

/* Pages for each entry, and for each head if heads have their own; all of one head's differ. */
static void make_table(problem *p) {
    rapt_kv_append_desc *d = &p->desc;
    const int64_t most = (d->kv_len + d->page_size - 1) / d->page_size, heads = one_in(3) ? d->kv_heads : 1;
    d->pages = d->batch * most + below(3) + 1;
    d->table = (rapt_layout){RAPT_I32, heads * most * 4, heads > 1 ? most * 4 : 0, 0};
    const bool rows = one_in(3) && heads == 1;
    for (int64_t h = 0; h < heads; h++) {
        int32_t pages[MOST_ENTRIES * MOST_KEYS + 4], taken = 0;
        for (int32_t i = 0; i < d->pages; i++) pages[i] = i;
        shuffle(pages, d->pages);
        for (int64_t b = 0; b < d->batch; b++)
            for (int64_t i = 0; i < most; i++) p->table[(b * heads + h) * most + i] = pages[taken++];
    }
    if (rows) { /* those rows again, one after the other, each as long as it must be */
        int32_t end = 1;
        p->table[0] = -1;
        for (int64_t b = 0; b < d->batch; b++) {
            p->table_starts[b] = end;
            for (int64_t i = 0; i < most; i++) p->table[end++] = (int32_t)(b * most + i);
        }
        p->table_starts[d->batch] = end;
        shuffle(p->table + 1, end - 1);
        p->args.table_starts = p->table_starts;
    }
    p->args.table = p->table;
}

static void make_scales(problem *p, int side, const int64_t *length) {
    rapt_kv_append_desc *d = &p->desc;
    rapt_scales *s = side ? &d->v_scales : &d->k_scales;
    const rapt_type type = p->cache[side].layout.type;
    const int64_t channels = side ? d->d_v : d->d_k;
    const int kind = (int)below(is_byte(type) ? 4 : 8);
    if (kind > 2) return;
    s->present = 1;
    if (kind == 0 && is_byte(type)) { /* found: for each token */
        p->scales[side] = random_tensor(RAPT_F32, length[0], length[1], length[2], 1);
        const rapt_layout *l = &p->scales[side].layout;
        s->batch_stride = l->batch_stride, s->head_stride = l->head_stride, s->token_stride = l->token_stride;
    } else { /* given, with pages too, of an entry: for each head, or for each head and channel, or one */
        p->scales[side] = random_tensor(RAPT_F32, d->batch, length[1], channels, 1);
        rapt_layout *l = &p->scales[side].layout;
        for (int64_t b = 0; b < d->batch; b++)
            for (int64_t h = 0; h < length[1]; h++)
                for (int64_t c = 0; c < channels; c++) {
                    const float factor = one_in(20) ? 0.0f : (float)(1 + below(1000)) / 256.0f;
                    memcpy(row_of(&p->scales[side], b, h, c), &factor, sizeof factor);
                }
        if (kind == 1) s->batch_stride = l->batch_stride, s->channel_stride = l->token_stride;
        if (kind != 0) s->head_stride = l->head_stride;
    }
    if (side) p->args.v_scales = (float *)(void *)p->scales[side].at;
    else p->args.k_scales = (float *)(void *)p->scales[side].at;
}

static void make_problem(problem *p, rapt_type k, rapt_type v) {
    static const int64_t some_channels[] = {1, 2, 5, 16, 40, 64, 67};
    *p = (problem){.desc.size = 0};
    rapt_kv_append_desc *d = &p->desc;
    rapt_kv_append_desc_init(d);
    rapt_kv_append_args_init(&p->args);
    d->batch = 1 + below(MOST_ENTRIES);
    d->kv_heads = 1 + below(MOST_HEADS);
    d->d_k = is_grouped(k) ? reference_group(k) * (1 + below(3)) : some_channels[below(7)];
    d->d_v = is_grouped(v) ? reference_group(v) * (1 + below(3)) : some_channels[below(7)];
    d->kv_len = MOST_TOKENS + below(MOST_KEYS - MOST_TOKENS);
    d->tokens = below(MOST_TOKENS + 1);
    d->page_size = one_in(2) ? 0 : one_in(3) ? 1 : one_in(2) ? 16 : 1 + below(20);
    if (d->page_size) make_table(p);

    if (one_in(3)) { /* ragged, or of different lengths, or all the same */
        for (int64_t b = 0; b <= d->batch; b++) p->token_starts[b] = (int32_t)below(d->tokens + 1);
        for (int64_t i = 0; i <= d->batch; i++)
            for (int64_t j = 0; j < d->batch; j++)
                if (p->token_starts[j] > p->token_starts[j + 1]) {
                    const int32_t swapped = p->token_starts[j];
                    p->token_starts[j] = p->token_starts[j + 1];
                    p->token_starts[j + 1] = swapped;
                }
        p->args.token_starts = p->token_starts;
    } else if (one_in(2)) {
        for (int64_t b = 0; b < d->batch; b++) p->lengths[b] = (int32_t)below(d->tokens + 1);
        p->args.lengths = p->lengths;
    }
    for (int64_t b = 0; b < d->batch; b++) {
        p->starts[b] = (int32_t)below(d->kv_len - d->tokens + 1);
        p->ring_starts[b] = (int32_t)below(d->kv_len);
    }
    if (!one_in(4)) p->args.starts = p->starts;
    if (one_in(2)) p->args.ring_starts = p->ring_starts;
    for (int i = 0; i < MOST_ENTRIES * MOST_TOKENS; i++) p->positions[i] = (int32_t)below(100000);
    if (one_in(3)) p->args.positions = p->positions;

    rapt_rope *r = &d->rope;
    if (d->d_k > 1 && one_in(2)) {
        r->channels = one_in(2) ? d->d_k / 2 * 2 : 2 * (1 + below(d->d_k / 2));
        r->interleaved = one_in(2);
        r->amplitude = one_in(3) ? 1.25 : 1.0;
        r->offset = one_in(3) ? below(2000) - 1000 : 0;
        rapt_rope_frequencies(one_in(2) ? 10000.0 : 500000.0, r->channels, p->frequencies);
        r->frequencies = p->frequencies;
    }
    const int64_t entries = p->args.token_starts ? 1 : d->batch;
    const int64_t length[3] = {d->page_size ? d->pages : d->batch, d->kv_heads, d->page_size ? d->page_size : d->kv_len};
    for (int side = 0; side < 2; side++) {
        const rapt_type type = side ? v : k;
        const int64_t channels = side ? d->d_v : d->d_k;
        p->new_rows[side] = random_tensor(float_types[below(3)], entries, d->kv_heads, d->tokens, channels);
        fill_oddly(&p->new_rows[side], side == 1 || r->channels == 0);
        if (one_in(12)) continue; /* not written */
        p->cache[side] = random_tensor(type, length[0], length[1], length[2], channels);
        make_scales(p, side, length);
    }
    if (!p->cache[0].memory && !p->cache[1].memory) p->cache[0] = random_tensor(k, length[0], length[1], length[2], d->d_k);
    if (!p->cache[0].memory) r->channels = 0;
    if (!r->channels) p->args.positions = NULL;
    d->new_k = p->new_rows[0].layout, d->new_v = p->new_rows[1].layout;
    d->k = p->cache[0].layout, d->v = p->cache[1].layout;
    p->args.k = p->cache[0].at, p->args.v = p->cache[1].at;
    if (p->cache[0].memory) p->args.new_k = p->new_rows[0].at;
    if (p->cache[1].memory) p->args.new_v = p->new_rows[1].at;
}

static void free_tensors(tensor *t, int n) {
    for (int i = 0; i < n; i++) free_tensor(&t[i]);
}

static void free_problem(problem *p) {
    free_tensors(p->new_rows, 2);
    free_tensors(p->cache, 2);
    free_tensors(p->scales, 2);
}

/* True if calls of 1, 2, 5 and 64 threads give what the model says; else says what differs. */
static bool append_agrees(problem *p) {
    tensor cache[2], scales[2], before[4];
    for (int side = 0; side < 2; side++) {
        cache[side] = copy_of(&p->cache[side]);
        scales[side] = copy_of(&p->scales[side]);
        before[side] = copy_of(&p->cache[side]);
        before[2 + side] = copy_of(&p->scales[side]);
    }
    model(p, cache, scales);
    const int64_t threads[] = {1, 2, 5, 64};
    bool same = true;
    for (int n = 0; n < 4; n++) {
        for (int side = 0; side < 2 && n > 0; side++) {
            copy_bytes(&p->cache[side], &before[side]);
            copy_bytes(&p->scales[side], &before[2 + side]);
        }
        for (int64_t ith = threads[n] - 1; ith >= 0; ith--) {
            const rapt_status status = rapt_kv_append_run_share(&p->desc, &p->args, ith, threads[n]);
            if (status != RAPT_OK) printf("# refused: %s\n", rapt_status_string(status));
            same = same && status == RAPT_OK;
        }
        for (int side = 0; side < 2; side++) {
            const bool values = same_tensor(&p->cache[side], &cache[side]),
                       factors = same_tensor(&p->scales[side], &scales[side]);
            if (!values || !factors)
                printf("# %s of %s differs by %d threads: %s\n", side ? "V" : "K",
                       rapt_type_name((side ? p->desc.v : p->desc.k).type), (int)threads[n],
                       values ? "its scales" : "its values");
            same = same && values && factors;
        }
    }
    free_tensors(cache, 2);
    free_tensors(scales, 2);
    free_tensors(before, 4);
    return same;
}

static void random_problems(void) {
    uint64_t h = hash_start;
    for (int i = 0; i < KV_TYPES; i++) {
        const rapt_type type = kv_types[i];
        const bool recorded = i < KV_TYPES_OF_0_1;
        int wrong = 0, turns = 150;
        uint64_t of_type = hash_start;
        for (int turn = 0; turn < turns; turn++) {
            problem p;
            random_state = (uint64_t)type * 1000 + (uint64_t)turn;
            const rapt_type other = kv_types[below(recorded ? KV_TYPES_OF_0_1 : KV_TYPES)];
            make_problem(&p, turn % 2 ? type : other, turn % 2 ? other : type);
            const bool same = append_agrees(&p);
            if (!same) printf("# in problem %d of %s\n", turn, rapt_type_name(type));
            wrong += !same;
            for (int side = 0; side < 2; side++) {
                of_type = hash_tensor(of_type, &p.cache[side]);
                of_type = hash_tensor(of_type, &p.scales[side]);
            }
            free_problem(&p);
        }
        tap_ok(wrong == 0, "%s: %d random caches by 1, 2, 5 and 64 threads, %d wrong", rapt_type_name(type), turns, wrong);
        if (recorded) h = hash_numbers(h, &of_type, sizeof of_type, sizeof of_type);
    }
    tap_ok(h == golden_caches, "the hash of all caches of 0.1's types is %016" PRIx64, h);
}

/* ---- Caches that lie in each other's gaps ---------------------------------------------------------------------------- */

/* Two entries on pages of [K or V, token, head]: int8 rows, each followed by its factor. Twice: apart and side by side. */
static void interleaved(void) {
    enum { PAGES = 5, PAGE = 4, HEADS = 2, D = 24, DV = 40, TOKENS = 6 };
    static float new_k[2 * TOKENS * HEADS * D], new_v[2 * TOKENS * HEADS * DV];
    static const int32_t table[] = {4, 1, 0, 3};
    random_state = 7;
    for (size_t i = 0; i < sizeof new_k / 4; i++) new_k[i] = odd_value();
    for (size_t i = 0; i < sizeof new_v / 4; i++) new_v[i] = odd_value();
    rapt_kv_append_desc d;
    rapt_kv_append_args a;
    rapt_kv_append_desc_init(&d);
    rapt_kv_append_args_init(&a);
    d.batch = 2, d.kv_heads = HEADS, d.tokens = TOKENS, d.kv_len = 2 * PAGE, d.d_k = D, d.d_v = DV;
    d.new_k = rapt_layout_bshd(RAPT_F32, HEADS, TOKENS, D);
    d.new_v = rapt_layout_bshd(RAPT_F32, HEADS, TOKENS, DV);
    d.page_size = PAGE, d.pages = PAGES;
    d.table = (rapt_layout){RAPT_I32, 2 * sizeof(int32_t), 0, 0};
    a.new_k = new_k, a.new_v = new_v, a.table = table;

    unsigned char k[PAGES * PAGE * HEADS * D], v[PAGES * PAGE * HEADS * DV];
    float k_scales[PAGES * PAGE * HEADS], v_scales[PAGES * PAGE * HEADS];
    memset(k, 0, sizeof k), memset(v, 0, sizeof v), memset(k_scales, 0, sizeof k_scales), memset(v_scales, 0, sizeof v_scales);
    const rapt_layout f = rapt_layout_bshd(RAPT_F32, HEADS, PAGE, 1);
    d.k = rapt_layout_bshd(RAPT_INT8, HEADS, PAGE, D);
    d.v = rapt_layout_bshd(RAPT_INT8, HEADS, PAGE, DV);
    d.k_scales = d.v_scales = (rapt_scales){1, f.batch_stride, f.head_stride, f.token_stride, 0};
    a.k = k, a.v = v, a.k_scales = k_scales, a.v_scales = v_scales;
    tap_ok(rapt_kv_append_run(&d, &a) == RAPT_OK, "pages: K, V and scales apart");

    enum { ROW = D + 4 + DV + 4, HALF = PAGE * HEADS * (DV + 4) };
    static unsigned char both[2][2 * PAGES * PAGE * HEADS * ROW];
    for (int within = 0; within < 2; within++) { /* K and V of each token together; of each page one after the other */
        const int64_t row = within ? ROW : DV + 4, page = within ? PAGE * HEADS * ROW : 2 * HALF, value = within ? D + 4 : HALF;
        unsigned char *const at = both[within];
        d.k = d.v = (rapt_layout){RAPT_INT8, page, row, HEADS * row};
        d.k_scales = d.v_scales = (rapt_scales){1, page, row, HEADS * row, 0};
        a.k = at, a.k_scales = (float *)(void *)(at + D);
        a.v = at + value, a.v_scales = (float *)(void *)(at + value + DV);
        int wrong = rapt_kv_append_run(&d, &a) != RAPT_OK;
        for (int n = 0; n < PAGES * PAGE * HEADS; n++) { /* rows of pages, tokens, heads */
            const unsigned char *const both_k = at + n / (PAGE * HEADS) * page + n % (PAGE * HEADS) * row;
            wrong += memcmp(both_k, k + n * D, D) != 0 || memcmp(both_k + D, k_scales + n, 4) != 0;
            wrong += memcmp(both_k + value, v + n * DV, DV) != 0 || memcmp(both_k + value + DV, v_scales + n, 4) != 0;
        }
        tap_ok(wrong == 0, "pages: %s, the same: %d wrong", within ? "K, factor, V, factor of each token" : "K before V", wrong);
        a.v = at + value - 1;
        tap_ok(rapt_kv_append_run(&d, &a) == RAPT_ERR_OVERLAP, "... a byte less far apart is refused");
        a.v = at + value, a.v_scales = (float *)(void *)(at + value + DV + 1);
        tap_ok(rapt_kv_append_run(&d, &a) == RAPT_ERR_OVERLAP, "... and so are scales a byte further");
        a.v_scales = (float *)(void *)(at + value + DV), a.k_scales = (float *)(void *)(at + D - 1);
        tap_ok(rapt_kv_append_run(&d, &a) == RAPT_ERR_OVERLAP, "... and in the row before them");
    }
}

/* K and V of the same strides, of rows of different lengths, at any distance: refused if and only if an element is shared. */
static void meeting_tensors(void) {
    enum { BYTES = 4000 };
    static unsigned char owner[BYTES];
    int wrong = 0, met = 0, turns = 20000;
    random_state = 3;
    for (int turn = 0; turn < turns; turn++) {
        rapt_kv_append_desc d;
        rapt_kv_append_args a;
        rapt_kv_append_desc_init(&d);
        rapt_kv_append_args_init(&a);
        const int64_t length[3] = {1 + below(3), 1 + below(3), 1 + below(3)};
        d.batch = length[0], d.kv_heads = length[1], d.kv_len = length[2], d.d_k = 1 + below(6), d.d_v = 1 + below(6);
        int64_t stride[3], span = d.d_k > d.d_v ? d.d_k : d.d_v;
        int32_t order[3] = {0, 1, 2};
        shuffle(order, 3);
        for (int i = 0; i < 3; i++) {
            stride[order[i]] = span + below(span + 6);
            span = (length[order[i]] - 1) * stride[order[i]] + span;
        }
        const int64_t distance = below(2 * span) - span + 1;
        d.k = (rapt_layout){RAPT_INT8, stride[0], stride[1], stride[2]};
        d.v = (rapt_layout){RAPT_F8_E4M3, stride[0], stride[1], stride[2]};
        if (length[0] == 1) d.v.batch_stride = below(5000); /* not used */
        if (length[2] == 1) d.k.token_stride = below(5000);
        d.new_k.type = d.new_v.type = RAPT_F32; /* of no tokens */
        unsigned char *const k = owner + (distance < 0 ? -distance : 0), *const v = k + distance;
        memset(owner, 0, sizeof owner);
        a.k = k, a.v = v;
        bool meet = false;
        for (int side = 0; side < 2; side++)
            for (int64_t n = 0; n < length[0] * length[1] * length[2]; n++) {
                unsigned char *const row = (side ? v : k) + n % length[0] * stride[0] + n / length[0] % length[1] * stride[1] +
                                           n / length[0] / length[1] * stride[2];
                for (int64_t c = 0; c < (side ? d.d_v : d.d_k); c++) meet = meet || row[c], row[c] = 1;
            }
        wrong += rapt_kv_append_run(&d, &a) != (meet ? RAPT_ERR_OVERLAP : RAPT_OK);
        met += meet;
    }
    tap_ok(wrong == 0 && met > turns / 10 && met < turns * 9 / 10, "%d pairs of tensors, %d of them meet: %d wrong", turns, met,
           wrong);
}

/* Random page tables, often bad ones, of pages near and far: refused if and only if a page is not there or a place comes twice.
 */
static void page_tables(void) {
    enum { PAGES = 200000, MOST = 40 };
    static const int32_t some[] = {0, 1, 2, 65535, 65536, 65537, 131071, 131072, 140000, 199998, 199999, 3, 4, 5, 70000, 140001};
    static unsigned char cache[PAGES * 2];
    static const float rows[3 * 2 * 8];
    int wrong = 0, bad = 0, turns = 3000;
    random_state = 5;
    for (int turn = 0; turn < turns; turn++) {
        rapt_kv_append_desc d;
        rapt_kv_append_args a;
        int32_t table[3 * MOST], starts[3], ring_starts[3];
        rapt_kv_append_desc_init(&d);
        rapt_kv_append_args_init(&a);
        d.batch = 1 + below(3), d.kv_heads = 1 + below(2), d.tokens = below(8), d.kv_len = 8 + below(12), d.d_v = 1;
        d.page_size = 1 + below(4), d.pages = PAGES / 4;
        for (int64_t b = 0; b < 3; b++) {
            starts[b] = (int32_t)below(d.kv_len - d.tokens + 1);
            ring_starts[b] = (int32_t)below(d.kv_len);
        }
        if (d.page_size == 1) d.pages = PAGES;
        int32_t shuffled[16];
        memcpy(shuffled, some, sizeof some);
        for (int i = 0; i < 3 * MOST; i++) {
            if (i % 16 == 0) shuffle(shuffled, 16);
            table[i] = one_in(40) ? (int32_t)d.pages : d.page_size == 1 ? shuffled[i % 16] : (int32_t)below(d.pages);
            if (d.page_size > 1 && one_in(8)) table[i] = table[below(i + 1)];
        }
        d.new_v = rapt_layout_bhsd(RAPT_F32, d.kv_heads, d.tokens, 1);
        d.v = rapt_layout_bhsd(RAPT_INT8, d.kv_heads, d.page_size, 1);
        d.v.batch_stride = d.kv_heads * d.page_size;
        d.table = (rapt_layout){RAPT_I32, MOST * 4, one_in(2) ? 20 * 4 : 0, 0};
        a.new_v = rows, a.v = cache, a.table = table, a.starts = starts, a.ring_starts = one_in(2) ? ring_starts : NULL;
        bool fine = true;
        for (int64_t h = 0; h < d.kv_heads; h++) {
            int64_t places[3 * 8], n = 0;
            for (int64_t b = 0; b < d.batch; b++)
                for (int64_t i = 0; i < d.tokens; i++) {
                    const int64_t slot = (starts[b] + i + (a.ring_starts ? ring_starts[b] : 0)) % d.kv_len;
                    const int64_t page = table[b * MOST + h * d.table.head_stride / 4 + slot / d.page_size];
                    fine = fine && page < d.pages;
                    places[n] = page * d.page_size + slot % d.page_size;
                    for (int64_t j = 0; j < n; j++) fine = fine && places[j] != places[n];
                    n++;
                }
        }
        wrong += rapt_kv_append_run(&d, &a) != (fine ? RAPT_OK : RAPT_ERR_TABLE);
        bad += !fine;
    }
    tap_ok(wrong == 0 && bad > turns / 10 && bad < turns * 9 / 10, "%d page tables, %d of them bad: %d wrong", turns, bad, wrong);
}

/* ---- Scale by scale -------------------------------------------------------------------------------------------------- */

/* Rows that are zero, saturate, or are not finite, by hand. */
static void special_rows(void) {
    const struct {
        rapt_type type;
        float x[4], factor;
        unsigned char want[4];
        int found;
    } table[] = {
        {RAPT_INT8, {0, -0.0f, 0, 0}, 0, {0, 0, 0, 0}, 1},
        {RAPT_INT8, {127, -127, 63.5f, -0.5f}, 1, {127, 129, 64, 0}, 1},
        {RAPT_INT8, {1, -2, 0.5f, 0}, 2.0f / 127, {64, 129, 32, 0}, 1},
        {RAPT_INT8, {1, INFINITY, 0, 2}, NAN, {0, 0, 0, 0}, 1},
        {RAPT_INT8, {1, NAN, 0, 2}, NAN, {0, 0, 0, 0}, 1},
        {RAPT_INT8, {300, -300, NAN, INFINITY}, 1, {127, 129, 0, 127}, 0},
        {RAPT_INT8, {2.5f, 3.5f, -2.5f, -3.5f}, 1, {2, 4, 254, 252}, 0},
        {RAPT_INT8, {5, 6, -7, 0}, 2, {2, 3, 252, 0}, 0},
        {RAPT_INT8, {5, NAN, -7, INFINITY}, 0, {0, 0, 0, 0}, 0},
        {RAPT_F8_E4M3, {448, -1e9f, INFINITY, 464.1f}, 1, {0x7e, 0xfe, 0x7e, 0x7e}, 0},
        {RAPT_F8_E4M3, {NAN, 0x1p-9f, 0x1p-10f, 0x1.8p-9f}, 1, {0x7f, 1, 0, 2}, 0},
        {RAPT_F8_E4M3, {-0.0f, 0x1p-6f, 0x1.fp-7f, 1.0625f}, 1, {0x80, 8, 8, 0x38}, 0},
        {RAPT_F8_E4M3, {896, 1, -448, 0}, 2, {0x7e, 0x30, 0xf6, 0}, 1},
        {RAPT_F8_E5M2, {57344, -1e9f, INFINITY, 61441}, 1, {0x7b, 0xfb, 0x7b, 0x7b}, 0},
        {RAPT_F8_E5M2, {NAN, 0x1p-16f, 0x1p-17f, 0x1.8p-16f}, 1, {0x7f, 1, 0, 2}, 0},
        {RAPT_F8_E5M2, {114688, -28672, 2, 0}, 2, {0x7b, 0xf3, 0x3c, 0}, 1},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        rapt_kv_append_desc d;
        rapt_kv_append_args a;
        rapt_kv_append_desc_init(&d);
        rapt_kv_append_args_init(&a);
        float factor = table[i].found ? 77.0f : table[i].factor;
        unsigned char row[4] = {0};
        d.batch = d.kv_heads = d.tokens = d.kv_len = 1, d.d_v = 4;
        d.new_v = rapt_layout_bhsd(RAPT_F32, 1, 1, 4);
        d.v = rapt_layout_bhsd(table[i].type, 1, 1, 4);
        d.v_scales = (rapt_scales){1, 4, 4, table[i].found ? 4 : 0, 0};
        a.new_v = table[i].x, a.v = row, a.v_scales = &factor;
        const rapt_status status = rapt_kv_append_run(&d, &a);
        const bool as_found = isnan(table[i].factor) ? isnan(factor) : factor == table[i].factor;
        tap_ok(status == RAPT_OK && memcmp(row, table[i].want, 4) == 0 && as_found,
               "%s of %g %g %g %g: %02x %02x %02x %02x, factor %g", rapt_type_name(table[i].type), (double)table[i].x[0],
               (double)table[i].x[1], (double)table[i].x[2], (double)table[i].x[3], row[0], row[1], row[2], row[3],
               (double)factor);
    }
}

/* Given scales reach from the first to the last channel. */
static void given_scales(void) {
    enum { D = 64 };
    static float x[D], memory[2 * D];
    rapt_kv_append_desc d;
    rapt_kv_append_args a;
    rapt_kv_append_desc_init(&d);
    rapt_kv_append_args_init(&a);
    d.batch = d.kv_heads = d.tokens = d.kv_len = 1, d.d_v = D;
    d.new_v = rapt_layout_bhsd(RAPT_F32, 1, 1, D), d.v = rapt_layout_bhsd(RAPT_INT8, 1, 1, D);
    d.v_scales = (rapt_scales){1, 0, 0, 0, sizeof(float)};
    for (int i = 0; i < D; i++) x[i] = (float)(i + 1), memory[i] = (float)(i + 1) / 3;
    a.new_v = x, a.v_scales = memory, a.v = memory + D - 1;
    const rapt_status meets = rapt_kv_append_run(&d, &a);
    a.v = memory + D;
    const rapt_status apart = rapt_kv_append_run(&d, &a);
    int wrong = 0;
    for (int i = 0; i < D; i++) wrong += ((const signed char *)(memory + D))[i] != 3;
    tap_ok(meets == RAPT_ERR_OVERLAP && apart == RAPT_OK && wrong == 0, "a factor for each channel: %d wrong", wrong);
}

/* ---- What is refused ------------------------------------------------------------------------------------------------- */

/* int8 K with scales that are found, q4_0 V, pages of 4 keys, a ring, everything rotated. */
static void plain_problem(problem *p) {
    random_state = 11;
    *p = (problem){.desc.size = 0};
    rapt_kv_append_desc *d = &p->desc;
    rapt_kv_append_desc_init(d);
    rapt_kv_append_args_init(&p->args);
    d->batch = 2, d->kv_heads = 2, d->tokens = 3, d->kv_len = 20, d->d_k = 24, d->d_v = 64, d->page_size = 4, d->pages = 12;
    p->new_rows[0] = random_tensor(RAPT_F32, 2, 2, 3, 24), p->new_rows[1] = random_tensor(RAPT_F16, 2, 2, 3, 64);
    fill_oddly(&p->new_rows[0], false);
    fill_oddly(&p->new_rows[1], false);
    p->cache[0] = random_tensor(RAPT_INT8, 12, 2, 4, 24), p->cache[1] = random_tensor(RAPT_Q4_0, 12, 2, 4, 64);
    p->scales[0] = random_tensor(RAPT_F32, 12, 2, 4, 1);
    const rapt_layout *f = &p->scales[0].layout;
    d->k_scales = (rapt_scales){1, f->batch_stride, f->head_stride, f->token_stride, 0};
    d->new_k = p->new_rows[0].layout, d->new_v = p->new_rows[1].layout, d->k = p->cache[0].layout, d->v = p->cache[1].layout;
    p->args.new_k = p->new_rows[0].at, p->args.new_v = p->new_rows[1].at;
    p->args.k = p->cache[0].at, p->args.v = p->cache[1].at, p->args.k_scales = (float *)(void *)p->scales[0].at;
    d->table = (rapt_layout){RAPT_I32, 20, 0, 0};
    for (int32_t i = 0; i < 10; i++) p->table[i] = 11 - i, p->table_starts[i / 5] = i / 5 * 5;
    p->table_starts[2] = 10;
    p->args.table = p->table;
    d->rope.channels = 24, d->rope.frequencies = p->frequencies;
    rapt_rope_frequencies(10000, 24, p->frequencies);
    p->starts[0] = 5, p->starts[1] = 17;
    p->lengths[0] = 3, p->lengths[1] = 2;
    p->token_starts[1] = 1, p->token_starts[2] = 3;
    p->ring_starts[0] = 14;
    p->args.starts = p->starts, p->args.ring_starts = p->ring_starts;
}

static void answers(problem *p, const rapt_kv_append_desc *d, const rapt_kv_append_args *a, int64_t ith, int64_t nth,
                    rapt_status want, const char *what) {
    tensor before[3] = {copy_of(&p->cache[0]), copy_of(&p->cache[1]), copy_of(&p->scales[0])};
    const rapt_status got = rapt_kv_append_run_share(d, a, ith, nth);
    const bool same =
        same_tensor(&p->cache[0], &before[0]) && same_tensor(&p->cache[1], &before[1]) && same_tensor(&p->scales[0], &before[2]);
    tap_ok(got == want && same == (want != RAPT_OK), "%s: %s%s", what, rapt_status_string(got),
           same ? ", nothing written" : ", written");
    free_tensors(before, 3);
    free_problem(p);
}

#define ANSWERS(want, change)                                                                                                    \
    do {                                                                                                                         \
        problem p;                                                                                                               \
        int64_t ith = 0, nth = 1;                                                                                                \
        plain_problem(&p);                                                                                                       \
        const rapt_kv_append_desc *desc = &p.desc;                                                                               \
        const rapt_kv_append_args *args = &p.args;                                                                               \
        rapt_kv_append_desc *const d = &p.desc;                                                                                  \
        rapt_kv_append_args *const a = &p.args;                                                                                  \
        change;                                                                                                                  \
        (void)d, (void)a;                                                                                                        \
        answers(&p, desc, args, ith, nth, want, #change);                                                                        \
    } while (0)

static void refused(void) {
    ANSWERS(RAPT_OK, );
    ANSWERS(RAPT_OK, ith = 1; nth = 4);
    ANSWERS(RAPT_OK, a->lengths = p.lengths);
    ANSWERS(RAPT_OK, a->table_starts = p.table_starts);
    ANSWERS(RAPT_OK, a->token_starts = p.token_starts; d->new_k.batch_stride = 0);
    ANSWERS(RAPT_OK, a->token_starts = p.token_starts; d->new_k.batch_stride = -4); /* not used */
    ANSWERS(RAPT_OK, d->k.type = RAPT_NONE; d->rope.channels = 0; d->k_scales.present = 0; a->k = NULL; a->new_k = NULL;
            a->k_scales = NULL);
    ANSWERS(RAPT_OK, d->v.type = RAPT_NONE; d->d_v = 0; a->v = NULL; a->new_v = NULL);

    ANSWERS(RAPT_ERR_NULL, desc = NULL);
    ANSWERS(RAPT_ERR_NULL, args = NULL);
    ANSWERS(RAPT_ERR_NULL, a->new_k = NULL);
    ANSWERS(RAPT_ERR_NULL, a->new_v = NULL);
    ANSWERS(RAPT_ERR_NULL, a->k = NULL);
    ANSWERS(RAPT_ERR_NULL, a->v = NULL);
    ANSWERS(RAPT_ERR_NULL, a->k_scales = NULL);
    ANSWERS(RAPT_ERR_NULL, a->table = NULL);
    ANSWERS(RAPT_ERR_NULL, d->rope.frequencies = NULL);

    enum { OLD_ARGS = offsetof(rapt_kv_append_args, rope_table) }; /* the bytes of version 0.1 */
    ANSWERS(RAPT_ERR_STRUCT, d->size--);
    ANSWERS(RAPT_ERR_STRUCT, d->size = sizeof *d);
    ANSWERS(RAPT_ERR_STRUCT, memset(d, 0, sizeof *d));
    ANSWERS(RAPT_OK, a->size -= sizeof *a - OLD_ARGS; memset(&a->rope_table, 0xff, sizeof a->rope_table));
    ANSWERS(RAPT_ERR_STRUCT, a->size -= sizeof *a - OLD_ARGS + 1);
    ANSWERS(RAPT_ERR_STRUCT, a->size = sizeof *a);
    struct {
        rapt_kv_append_desc known;
        int64_t more;
    } newer;
    struct {
        rapt_kv_append_args known;
        int64_t more;
    } newer_args;
    ANSWERS(RAPT_OK, newer.known = *d; newer.known.size += sizeof newer.more; newer.more = 0; desc = &newer.known);
    ANSWERS(RAPT_ERR_STRUCT, newer.known = *d; newer.known.size += sizeof newer.more; newer.more = 1; desc = &newer.known);
    ANSWERS(RAPT_OK, newer_args.known = *a; newer_args.known.size += sizeof newer.more; newer_args.more = 0;
            args = &newer_args.known);
    ANSWERS(RAPT_ERR_STRUCT, newer_args.known = *a; newer_args.known.size += sizeof newer.more; newer_args.more = 1;
            args = &newer_args.known);

    const int64_t too_long = (int64_t)RAPT_MAX_LENGTH + 1;
    ANSWERS(RAPT_ERR_SHAPE, d->batch = -1);
    ANSWERS(RAPT_ERR_SHAPE, d->batch = too_long);
    ANSWERS(RAPT_ERR_SHAPE, d->kv_heads = 0);
    ANSWERS(RAPT_ERR_SHAPE, d->kv_heads = too_long);
    ANSWERS(RAPT_ERR_SHAPE, d->tokens = -1);
    ANSWERS(RAPT_ERR_SHAPE, d->tokens = too_long);
    ANSWERS(RAPT_ERR_SHAPE, d->kv_len = -1);
    ANSWERS(RAPT_ERR_SHAPE, d->kv_len = too_long);
    ANSWERS(RAPT_ERR_SHAPE, d->d_k = 0; d->rope.channels = 0);
    ANSWERS(RAPT_ERR_SHAPE, d->d_k = RAPT_MAX_HEAD_DIM + 1);
    ANSWERS(RAPT_ERR_SHAPE, d->d_v = 0);
    ANSWERS(RAPT_ERR_SHAPE, d->d_v = RAPT_MAX_HEAD_DIM + 1);
    ANSWERS(RAPT_ERR_TYPE, d->d_v = 33);

    ANSWERS(RAPT_ERR_TYPE, d->k.type = d->v.type = RAPT_NONE);
    ANSWERS(RAPT_ERR_TYPE, d->new_k.type = RAPT_INT8);
    ANSWERS(RAPT_ERR_TYPE, d->new_v.type = RAPT_Q8_0);
    ANSWERS(RAPT_ERR_TYPE, d->new_v.type = RAPT_NONE);
    ANSWERS(RAPT_ERR_TYPE, d->k.type = RAPT_BOOL);
    ANSWERS(RAPT_ERR_TYPE, d->v.type = (rapt_type)-1);
    ANSWERS(RAPT_ERR_TYPE, d->table.type = RAPT_F32);

    ANSWERS(RAPT_ERR_STRIDE, d->new_k.batch_stride = -4);
    ANSWERS(RAPT_ERR_STRIDE, d->new_v.token_stride = -4);
    ANSWERS(RAPT_ERR_STRIDE, d->new_v.batch_stride = INT64_MAX);
    ANSWERS(RAPT_ERR_STRIDE, d->new_v.batch_stride = (int64_t)(UINTPTR_MAX - (uintptr_t)a->new_v) / 2;
            d->new_v.head_stride = d->new_v.batch_stride);
    ANSWERS(RAPT_ERR_STRIDE, d->k.head_stride = -24);
    ANSWERS(RAPT_ERR_STRIDE, d->k.token_stride = 23);
    ANSWERS(RAPT_ERR_STRIDE, d->v.head_stride = d->v.token_stride);
    ANSWERS(RAPT_ERR_STRIDE, d->v.batch_stride = 0);
    ANSWERS(RAPT_ERR_STRIDE, d->table.batch_stride = -20);
    ANSWERS(RAPT_ERR_STRIDE, d->table.head_stride = -20);
    ANSWERS(RAPT_ERR_STRIDE, d->k_scales.token_stride = 3);
    ANSWERS(RAPT_ERR_STRIDE, d->k_scales.channel_stride = -1);
    ANSWERS(RAPT_ERR_STRIDE, d->k_scales.channel_stride = 4); /* has a token_stride */
    ANSWERS(RAPT_ERR_STRIDE, d->k_scales.batch_stride = -1);

    ANSWERS(RAPT_ERR_KV_LENGTH, p.starts[1] = 18);
    ANSWERS(RAPT_ERR_KV_LENGTH, p.starts[0] = INT32_MAX);
    ANSWERS(RAPT_ERR_KV_LENGTH, d->kv_len = 2; a->ring_starts = NULL; a->starts = NULL);

    ANSWERS(RAPT_ERR_TABLE, p.starts[0] = -1);
    ANSWERS(RAPT_ERR_TABLE, a->lengths = p.lengths; p.lengths[1] = 4);
    ANSWERS(RAPT_ERR_TABLE, a->lengths = p.lengths; p.lengths[0] = -1);
    ANSWERS(RAPT_ERR_TABLE, a->token_starts = p.token_starts; p.token_starts[2] = 4);
    ANSWERS(RAPT_ERR_TABLE, a->token_starts = p.token_starts; p.token_starts[2] = 0);
    ANSWERS(RAPT_ERR_TABLE, a->token_starts = p.token_starts; p.token_starts[0] = -1);
    ANSWERS(RAPT_ERR_TABLE, p.ring_starts[1] = 20);
    ANSWERS(RAPT_ERR_TABLE, p.ring_starts[0] = -1);
    ANSWERS(RAPT_ERR_TABLE, p.table[4] = 12);
    ANSWERS(RAPT_ERR_TABLE, p.table[4] = -1);
    ANSWERS(RAPT_ERR_TABLE, p.table[9] = p.table[4]);
    ANSWERS(RAPT_OK, p.table[8] = p.table[3]);                     /* neither is written */
    ANSWERS(RAPT_OK, p.table[9] = p.table[4]; d->trust_table = 1); /* believed; both entries write one page, in turn */
    ANSWERS(RAPT_OK, p.table[5] = p.table[0]; p.starts[1] = 1;
            a->ring_starts = NULL); /* entry 1 has keys 1, 2, 3 of that page alone */
    ANSWERS(RAPT_ERR_TABLE, a->table_starts = p.table_starts; p.table_starts[0] = -1);
    ANSWERS(RAPT_ERR_TABLE, a->table_starts = p.table_starts; p.table_starts[1] = 11);
    ANSWERS(RAPT_ERR_TABLE, a->table_starts = p.table_starts; p.table_starts[1] = 4);
    ANSWERS(RAPT_ERR_TABLE, a->table_starts = p.table_starts; p.table_starts[2] = 9);
    ANSWERS(RAPT_ERR_TABLE, d->pages = 0);
    ANSWERS(RAPT_ERR_TABLE, d->pages = 0; d->trust_table = 1);
    ANSWERS(RAPT_OK, d->table.head_stride = 4; d->table.batch_stride = 24; p.table[11] = p.table[4]); /* of another head */
    ANSWERS(RAPT_ERR_TABLE, d->table.head_stride = 4; d->table.batch_stride = 24; p.table[11] = p.table[5]);
    ANSWERS(RAPT_ERR_TABLE, d->table.head_stride = 4; d->table.batch_stride = 24; p.table[11] = 12);

    ANSWERS(RAPT_ERR_FEATURE, d->rope.channels = 23);
    ANSWERS(RAPT_ERR_FEATURE, d->rope.channels = 26);
    ANSWERS(RAPT_ERR_FEATURE, d->rope.channels = -2);
    ANSWERS(RAPT_ERR_FEATURE, p.frequencies[11] = NAN);
    ANSWERS(RAPT_ERR_FEATURE, p.frequencies[0] = 16.01);
    ANSWERS(RAPT_ERR_FEATURE, d->rope.amplitude = INFINITY);
    ANSWERS(RAPT_ERR_FEATURE, d->rope.offset = too_long);
    ANSWERS(RAPT_ERR_FEATURE, d->rope.offset = -too_long);
    ANSWERS(RAPT_ERR_FEATURE, d->k.type = RAPT_NONE);
    ANSWERS(RAPT_ERR_FEATURE, d->k.type = RAPT_NONE; d->rope.channels = 0; a->k = NULL; a->new_k = NULL; a->k_scales = NULL);
    ANSWERS(RAPT_ERR_FEATURE, d->page_size = -1);
    ANSWERS(RAPT_ERR_FEATURE, d->page_size = too_long);
    ANSWERS(RAPT_ERR_FEATURE, d->pages = -1);
    ANSWERS(RAPT_ERR_FEATURE, d->pages = too_long);
    ANSWERS(RAPT_ERR_FEATURE, d->table.type = RAPT_NONE);
    ANSWERS(RAPT_ERR_FEATURE, d->page_size = 0; d->pages = 0; a->table = NULL);
    ANSWERS(RAPT_ERR_FEATURE, d->v_scales = d->k_scales; a->v_scales = a->k_scales);
    ANSWERS(RAPT_ERR_FEATURE, a->lengths = p.lengths; a->token_starts = p.token_starts);

    ANSWERS(RAPT_ERR_RANGE, nth = 0);
    ANSWERS(RAPT_ERR_RANGE, ith = -1);
    ANSWERS(RAPT_ERR_RANGE, ith = 3; nth = 3);

    ANSWERS(RAPT_ERR_OVERLAP, a->new_k = a->k);
    ANSWERS(RAPT_ERR_OVERLAP, a->new_k = (char *)a->v + p.cache[1].bytes - 1);
    ANSWERS(RAPT_ERR_OVERLAP, a->v = a->k);
    ANSWERS(RAPT_ERR_OVERLAP, a->k_scales = (float *)a->v);
    ANSWERS(RAPT_ERR_OVERLAP, a->k_scales = (float *)(void *)p.new_rows[0].at);
    ANSWERS(RAPT_ERR_OVERLAP, a->table = a->k);
    ANSWERS(RAPT_ERR_OVERLAP, memset(a->k, 0, 64); a->starts = (int32_t *)(void *)(p.cache[0].at + 3)); /* aligned */
    ANSWERS(RAPT_ERR_OVERLAP, memset(a->v, 0, 256); d->rope.frequencies = (double *)(void *)(p.cache[1].at + 7));

    ANSWERS(RAPT_ERR_UNUSED, a->v_scales = a->k_scales);
    ANSWERS(RAPT_ERR_UNUSED, d->v.type = RAPT_NONE; a->v = NULL);
    ANSWERS(RAPT_ERR_UNUSED, d->v.type = RAPT_NONE; a->new_v = NULL);
    ANSWERS(RAPT_ERR_UNUSED, a->rope_table.type = RAPT_F32);

    static float angles[20 * 12];
#define BY_TABLE(rows)                                                                                                           \
    d->rope.frequencies = NULL;                                                                                                  \
    a->rope_table = (rapt_rope_table){RAPT_F32, angles, angles, rows, 0}
    ANSWERS(RAPT_OK, BY_TABLE(20));
    ANSWERS(RAPT_ERR_TABLE, BY_TABLE(19)); /* the last token is at position 17 + 2 */
    ANSWERS(RAPT_ERR_TABLE, BY_TABLE(20); d->rope.offset = 1);
    ANSWERS(RAPT_ERR_TABLE, BY_TABLE(20); d->rope.offset = -6);
    ANSWERS(RAPT_OK, BY_TABLE(15); d->rope.offset = -5);
    ANSWERS(RAPT_ERR_TABLE, BY_TABLE(20); a->positions = p.positions; p.positions[4] = 20);
    ANSWERS(RAPT_ERR_TABLE, BY_TABLE(20); a->positions = p.positions; p.positions[4] = -1);
    ANSWERS(RAPT_ERR_NULL, BY_TABLE(20); a->rope_table.c = NULL);
    ANSWERS(RAPT_ERR_NULL, BY_TABLE(20); a->rope_table.s = NULL);
    ANSWERS(RAPT_ERR_SHAPE, BY_TABLE(-1));
    ANSWERS(RAPT_ERR_SHAPE, BY_TABLE(too_long));
    ANSWERS(RAPT_ERR_TYPE, BY_TABLE(20); a->rope_table.type = RAPT_INT8);
    ANSWERS(RAPT_ERR_STRIDE, BY_TABLE(20); a->rope_table.row_stride = -48);
    ANSWERS(RAPT_ERR_OVERLAP, BY_TABLE(20); a->rope_table.s = a->k);
#undef BY_TABLE

    ANSWERS(RAPT_ERR_UNUSED, d->page_size = 0; d->table.type = RAPT_NONE; d->kv_len = 4; a->starts = a->ring_starts = NULL);
    ANSWERS(RAPT_OK, d->page_size = 0; d->table.type = RAPT_NONE; d->kv_len = 4; a->starts = a->ring_starts = NULL;
            a->table = NULL);

    ANSWERS(RAPT_ERR_ALIGNMENT, a->starts = (int32_t *)(void *)((char *)p.starts + 1));
    ANSWERS(RAPT_ERR_ALIGNMENT, a->lengths = (int32_t *)(void *)((char *)p.lengths + 2));
    ANSWERS(RAPT_ERR_ALIGNMENT, a->token_starts = (int32_t *)(void *)((char *)p.token_starts + 3));
    ANSWERS(RAPT_ERR_ALIGNMENT, a->ring_starts = (int32_t *)(void *)((char *)p.ring_starts + 1));
    ANSWERS(RAPT_ERR_UNUSED, d->rope.channels = 0; a->positions = p.positions);
    ANSWERS(RAPT_ERR_ALIGNMENT, a->positions = (int32_t *)(void *)((char *)p.positions + 1));
    ANSWERS(RAPT_ERR_ALIGNMENT, d->rope.frequencies = (double *)(void *)((char *)p.frequencies + 2));
}

static void init_desc(void *to, size_t size) { rapt_kv_append_desc_init_sized(to, size); }
static void init_args(void *to, size_t size) { rapt_kv_append_args_init_sized(to, size); }
static void init_rope(void *to, size_t size) { rapt_rope_args_init_sized(to, size); }

/* An older client's struct is smaller: it gets the defaults that it has room for, and nothing after them changes. */
static void initialised(void) {
    const struct {
        const char *name;
        void (*init)(void *to, size_t size);
        size_t bytes;
    } structs[] = {{"rapt_kv_append_desc", init_desc, sizeof(rapt_kv_append_desc)},
                   {"rapt_kv_append_args", init_args, sizeof(rapt_kv_append_args)},
                   {"rapt_rope_args", init_rope, sizeof(rapt_rope_args)}};
    for (size_t i = 0; i < sizeof structs / sizeof *structs; i++) {
        _Alignas(16) unsigned char whole[1024], part[1024], untouched[1024];
        int wrong = 0;
        memset(untouched, 0x5a, sizeof untouched);
        structs[i].init(whole, structs[i].bytes);
        for (size_t bytes = 0; bytes < structs[i].bytes; bytes++) {
            const size_t known = bytes < sizeof(size_t) ? 0 : bytes;
            memcpy(part, untouched, sizeof part);
            structs[i].init(part, bytes);
            wrong += known && memcmp(part + sizeof(size_t), whole + sizeof(size_t), known - sizeof(size_t)) != 0;
            wrong += memcmp(part + known, untouched, sizeof part - known) != 0;
        }
        structs[i].init(NULL, structs[i].bytes);
        tap_ok(wrong == 0, "%s of any size gets the defaults that fit, and nothing else: %d wrong", structs[i].name, wrong);
    }
}

/* ---- Rotary embedding ------------------------------------------------------------------------------------------------ */

/* A random tensor, rotated in some of the ways that there are; its hash goes into h. */
static bool rope_agrees(uint64_t *h) {
    double frequencies[RAPT_MAX_HEAD_DIM / 2];
    int32_t starts[3], lengths[3], token_starts[4] = {0}, positions[3 * MOST_TOKENS];
    rapt_rope_args a;
    rapt_rope_args_init(&a);
    a.batch = 1 + below(3), a.heads = 1 + below(4), a.tokens = below(MOST_TOKENS), a.d = 1 + below(70);
    const bool ragged = one_in(3), in_place = one_in(3);
    tensor in = random_tensor(float_types[below(3)], ragged ? 1 : a.batch, a.heads, a.tokens, a.d);
    fill_oddly(&in, false);
    tensor out = in_place ? copy_of(&in) : random_tensor(float_types[below(3)], ragged ? 1 : a.batch, a.heads, a.tokens, a.d);
    tensor want = copy_of(&out);
    a.rope.channels = 2 * below(a.d / 2 + 1);
    a.rope.interleaved = one_in(2);
    a.rope.offset = one_in(2) ? below(100) - 50 : 0;
    a.rope.amplitude = one_in(2) ? 1.0 : -0.75;
    a.rope.frequencies = frequencies;
    if (a.rope.channels) rapt_rope_frequencies(10000, a.rope.channels, frequencies);
    for (int64_t b = 0; b < 3; b++) {
        starts[b] = (int32_t)below(100000);
        lengths[b] = (int32_t)below(a.tokens + 1);
        token_starts[b + 1] = (int32_t)(token_starts[b] + below(a.tokens - token_starts[b] + 1));
    }
    for (int i = 0; i < 3 * MOST_TOKENS; i++) positions[i] = (int32_t)below(200000) - 100000;
    if (one_in(2)) a.starts = starts;
    if (one_in(2) && a.rope.channels) a.positions = positions;
    if (ragged) a.token_starts = token_starts;
    else if (one_in(2)) a.lengths = lengths;
    a.in = in.layout, a.out = out.layout;

    for (int64_t b = 0; b < a.batch; b++) {
        const int64_t n = ragged ? token_starts[b + 1] - token_starts[b] : a.lengths ? lengths[b] : a.tokens;
        for (int64_t i = 0; i < n; i++)
            for (int64_t head = 0; head < a.heads; head++) {
                const int64_t token = ragged ? token_starts[b] + i : i, entry = ragged ? 0 : b;
                float x[RAPT_MAX_HEAD_DIM];
                for (int64_t c = 0; c < a.d; c++) x[c] = reference_element(in.layout.type, row_of(&in, entry, head, token), c);
                rotate(x, &a.rope, &a.rope_table,
                       a.positions ? positions[ragged ? token : b * a.tokens + i] : (a.starts ? starts[b] : 0) + i);
                reference_store_row(out.layout.type, row_of(&want, entry, head, token), x, a.d);
            }
    }
    a.from = in_place ? out.at : in.at, a.to = out.at;
    const int64_t nth = 1 + below(5);
    bool ok = true;
    for (int64_t ith = 0; ith < nth; ith++) ok = rapt_rope_run_share(&a, ith, nth) == RAPT_OK && ok;
    ok = ok && same_tensor(&out, &want);
    *h = hash_tensor(*h, &out);
    free_tensor(&in);
    free_tensor(&out);
    free_tensor(&want);
    return ok;
}

static void rope_problems(void) {
    uint64_t h = hash_start;
    int wrong = 0, turns = 300;
    for (int turn = 0; turn < turns; turn++) {
        random_state = (uint64_t)(100000 + turn);
        wrong += !rope_agrees(&h);
    }
    tap_ok(wrong == 0, "rope: %d random tensors, %d wrong", turns, wrong);
    tap_ok(h == golden_rope, "the hash of all rotated tensors is %016" PRIx64, h);
}

/* Far positions, by doubles alone, for long double is no wider on 32-bit Arm: what an angle loses when it is rounded is so small
 * that the first term of the sine's and cosine's series adds it. */
static void far_positions(void) {
    enum { D = 64 };
    double frequencies[D / 2], worst = 0;
    rapt_rope_args a;
    rapt_rope_args_init(&a);
    rapt_rope_frequencies(10000, D, frequencies);
    a.batch = a.heads = a.tokens = 1, a.d = D;
    a.in = a.out = rapt_layout_bhsd(RAPT_F32, 1, 1, D);
    a.rope.channels = D, a.rope.frequencies = frequencies;
    for (int n = 0; n < 20000; n++) {
        float x[D];
        int32_t position = n < 40 ? n < 20 ? n : INT32_MAX - n : (int32_t)(random_bits() >> 1);
        for (int i = 0; i < D; i++) x[i] = i < D / 2;
        a.from = a.to = x, a.positions = &position;
        if (rapt_rope_run(&a) != RAPT_OK) worst = INFINITY;
        for (int i = 0; i < D; i++) { /* x is cos, then sin */
            const double frequency = frequencies[i % (D / 2)], angle = position * frequency,
                         lost = fma(position, frequency, -angle),
                         want = i < D / 2 ? cos(angle) - sin(angle) * lost : sin(angle) + cos(angle) * lost,
                         half_ulp = want == 0 ? 0 : ldexp(1, ilogb(want) - 24);
            worst = fmax(worst, fabs((double)x[i] - want) - half_ulp);
        }
    }
    tap_ok(worst < 1e-11, "rope: positions up to 2^31, at most %.1e beyond half an ulp", worst);
}

/* Numbers for rows of positions 0 .. POSITIONS - 1, dense or with gaps. */
enum { POSITIONS = 300 };
static rapt_rope_table random_table(const rapt_rope *r, tensor numbers[2]) {
    const rapt_type type = float_types[below(3)];
    const int64_t pairs = r->channels / 2;
    numbers[0] = random_tensor(type, 1, 1, POSITIONS, pairs);
    fill_oddly(&numbers[0], false);
    numbers[1] = copy_of(&numbers[0]);
    fill_oddly(&numbers[1], false);
    const int64_t stride = numbers[0].layout.token_stride;
    return (rapt_rope_table){type, numbers[0].at, numbers[1].at, POSITIONS, stride == numbers[0].row ? 0 : stride};
}

/* A cache and its new keys, by a table in the place of frequencies. */
static bool rotary_table_agrees(problem *p) {
    tensor numbers[2], cache[2], scales[2];
    rapt_rope *r = &p->desc.rope;
    bool ok = true;
    r->frequencies = NULL, r->amplitude = one_in(2) ? 3.0 : 1.0; /* of no effect */
    r->offset = p->args.positions ? below(20) - 10 : below(20);
    for (int i = 0; i < MOST_ENTRIES * MOST_TOKENS; i++) p->positions[i] = 10 + p->positions[i] % 250;
    p->args.rope_table = random_table(r, numbers);
    for (int side = 0; side < 2; side++) cache[side] = copy_of(&p->cache[side]), scales[side] = copy_of(&p->scales[side]);
    model(p, cache, scales);
    for (int64_t ith = 0; ith < 3; ith++) ok = rapt_kv_append_run_share(&p->desc, &p->args, ith, 3) == RAPT_OK && ok;
    for (int side = 0; side < 2; side++)
        ok = ok && same_tensor(&p->cache[side], &cache[side]) && same_tensor(&p->scales[side], &scales[side]);

    rapt_rope_args a; /* a rotation of the new keys, in place */
    rapt_rope_args_init(&a);
    a.batch = p->desc.batch, a.heads = p->desc.kv_heads, a.tokens = p->desc.tokens, a.d = p->desc.d_k, a.rope = *r;
    a.in = a.out = p->desc.new_k, a.from = a.to = p->new_rows[0].at, a.rope_table = p->args.rope_table;
    a.starts = p->args.starts, a.lengths = p->args.lengths, a.token_starts = p->args.token_starts,
    a.positions = p->args.positions;
    tensor want = copy_of(&p->new_rows[0]);
    for (int64_t b = 0; b < a.batch; b++)
        for (int64_t i = 0; i < tokens_of(p, b) * a.heads; i++) {
            const int64_t token = i / a.heads + (a.token_starts ? p->token_starts[b] : 0), entry = a.token_starts ? 0 : b;
            unsigned char *const row = row_of(&want, entry, i % a.heads, token);
            float x[RAPT_MAX_HEAD_DIM];
            for (int64_t c = 0; c < a.d; c++) x[c] = reference_element(a.in.type, row, c);
            rotate(x, r, &a.rope_table,
                   a.positions ? p->positions[a.token_starts ? token : b * a.tokens + token] : start_of(p, b) + i / a.heads);
            reference_store_row(a.out.type, row, x, a.d);
        }
    for (int64_t ith = 0; ith < 2; ith++) ok = rapt_rope_run_share(&a, ith, 2) == RAPT_OK && ok;
    ok = ok && same_tensor(&p->new_rows[0], &want);
    free_tensor(&want), free_tensors(numbers, 2), free_tensors(cache, 2), free_tensors(scales, 2);
    return ok;
}

/* Caches and queries that are rotated by tables, of every type. */
static void rotary_tables(void) {
    int wrong = 0, turns = 150, rotated = 0;
    for (int turn = 0; turn < turns; turn++) {
        problem p;
        random_state = (uint64_t)(200000 + turn);
        make_problem(&p, kv_types[below(KV_TYPES)], kv_types[below(KV_TYPES)]);
        if (p.desc.rope.channels) wrong += !rotary_table_agrees(&p), rotated++;
        free_problem(&p);
    }
    tap_ok(wrong == 0 && rotated > turns / 5, "rope tables of f32, f16 and bf16: %d caches and their keys, %d wrong", rotated,
           wrong);
}

/* A table of what frequencies give: c and s are those of a pair (1, 0). */
static void table_of_frequencies(void) {
    enum { D = 24, AT = 40, N = 50 };
    static float numbers[2][N][D / 2], pairs[N][D], x[2][AT][D];
    double frequencies[D / 2];
    rapt_rope_args a;
    rapt_rope_args_init(&a);
    rapt_rope_frequencies(10000, D, frequencies);
    a.heads = 1, a.tokens = N, a.d = D, a.in = a.out = rapt_layout_bhsd(RAPT_F32, 1, N, D), a.from = a.to = pairs;
    a.rope.channels = D, a.rope.frequencies = frequencies, a.rope.amplitude = 1.1;
    for (int t = 0; t < N; t++)
        for (int i = 0; i < D / 2; i++) pairs[t][i] = 1;
    bool ok = rapt_rope_run(&a) == RAPT_OK;
    for (int t = 0; t < N; t++)
        memcpy(numbers[0][t], pairs[t], sizeof pairs / N / 2), memcpy(numbers[1][t], pairs[t] + D / 2, sizeof pairs / N / 2);
    const int32_t start = 3;
    random_state = 21;
    for (int i = 0; i < AT * D; i++) x[0][i / D][i % D] = odd_value();
    memcpy(x[1], x[0], sizeof x[0]);
    a.tokens = AT, a.starts = &start, a.rope.offset = 4, a.in = a.out = rapt_layout_bhsd(RAPT_F32, 1, AT, D);
    for (int n = 0; n < 2; n++) {
        a.from = a.to = x[n];
        if (n) a.rope.frequencies = NULL, a.rope_table = (rapt_rope_table){RAPT_F32, numbers[0], numbers[1], N, 0};
        ok = ok && rapt_rope_run(&a) == RAPT_OK;
    }
    tap_ok(ok && !memcmp(x[0], x[1], sizeof x[0]), "a rope table of what frequencies give has their bits");
}

/* Two entries of three tokens, rotated from one memory to the other. */
typedef struct good {
    rapt_rope_args args;
} good;

static float rope_memory[2][2 * 3 * 4];

static void fill_rope_memory(void) {
    memset(rope_memory, 0, sizeof rope_memory); /* which are frequencies, too */
    for (int i = 0; i < 2 * 3 * 4; i++) rope_memory[0][i] = (float)(i + 1);
}

/* The status, and that something is written if and only if nothing is wrong. */
static void expect(const good *t, const char *call, const char *change, rapt_status got, rapt_status want) {
    float after[2][2 * 3 * 4];
    memcpy(after, rope_memory, sizeof after);
    fill_rope_memory();
    const bool same = memcmp(after, rope_memory, sizeof after) == 0;
    (void)t;
    tap_ok(got == want && same == (got != RAPT_OK), "%s with %s: %s", call, change, rapt_status_string(got));
}

static void expect_run(good *t, const char *change, const rapt_rope_args *a, rapt_status want) {
    expect(t, "rapt_rope_run", change, rapt_rope_run(a), want);
}

static void rope_refused(void) {
    static const double frequencies[2] = {1, 0.5};
    static const int32_t starts[2] = {1, 2}, lengths[2] = {3, 3}, token_starts[3] = {0, 1, 3};
    static const int32_t early[2] = {1, -1}, longer[2] = {4, 3};
    good given, *const t = &given;
    float *const from = rope_memory[0], *const to = rope_memory[1];
    rapt_rope_args_init(&t->args);
    t->args.batch = 2, t->args.heads = 1, t->args.tokens = 3, t->args.d = 4;
    t->args.in = t->args.out = rapt_layout_bhsd(RAPT_F32, 1, 3, 4), t->args.from = from, t->args.to = to;
    t->args.rope.channels = 4, t->args.rope.frequencies = frequencies, t->args.starts = starts, t->args.lengths = lengths;
    fill_rope_memory();
    RUN(RAPT_OK, (void)a);
    RUN(RAPT_OK, a.to = from);
    CALL(RAPT_ERR_NULL, rapt_rope_run(NULL));
    RUN(RAPT_ERR_NULL, a.from = NULL);
    RUN(RAPT_ERR_NULL, a.to = NULL);
    RUN(RAPT_ERR_NULL, a.rope.frequencies = NULL);
    RUN(RAPT_ERR_STRUCT, a.size -= sizeof a - offsetof(rapt_rope_args, rope_table) + 1);
    RUN(RAPT_ERR_SHAPE, a.batch = -1);
    RUN(RAPT_ERR_SHAPE, a.heads = 0);
    RUN(RAPT_ERR_SHAPE, a.tokens = -1);
    RUN(RAPT_ERR_SHAPE, a.d = a.rope.channels = 0);
    RUN(RAPT_ERR_TYPE, a.in.type = RAPT_INT8);
    RUN(RAPT_ERR_TYPE, a.out.type = RAPT_INT8);
    RUN(RAPT_ERR_STRIDE, a.in.batch_stride = -1);
    RUN(RAPT_ERR_STRIDE, a.out.token_stride = 15);
    RUN(RAPT_ERR_TABLE, a.starts = early);
    RUN(RAPT_ERR_TABLE, a.lengths = longer);
    RUN(RAPT_ERR_FEATURE, a.rope.channels = 6);
    RUN(RAPT_ERR_FEATURE, a.token_starts = token_starts);
    CALL(RAPT_ERR_RANGE, rapt_rope_run_share(&t->args, 2, 2));
    CALL(RAPT_ERR_RANGE, rapt_rope_run_share(&t->args, 0, 0));
    RUN(RAPT_ERR_OVERLAP, a.to = (char *)from + 1);
    RUN(RAPT_ERR_OVERLAP, a.to = from; a.out.batch_stride += 4);
    RUN(RAPT_ERR_OVERLAP, a.rope.frequencies = (double *)(void *)to);
}

static void frequencies_refused(void) {
    double out[4] = {7, 7, 7, 7};
    tap_ok(rapt_rope_frequencies(1e4, 8, NULL) == RAPT_ERR_NULL && rapt_rope_frequencies(1e4, 7, out) == RAPT_ERR_SHAPE &&
               rapt_rope_frequencies(1e4, 0, out) == RAPT_ERR_SHAPE &&
               rapt_rope_frequencies(1e4, RAPT_MAX_HEAD_DIM + 2, out) == RAPT_ERR_SHAPE &&
               rapt_rope_frequencies(0.5, 8, out) == RAPT_ERR_FEATURE && rapt_rope_frequencies(NAN, 8, out) == RAPT_ERR_FEATURE &&
               rapt_rope_frequencies(INFINITY, 8, out) == RAPT_ERR_FEATURE && out[0] == 7,
           "frequencies: refused, nothing written");
}

static void exact_frequencies(void) {
    double worst = 0;
    static const double bases[] = {1, 1.5, 100, 1e4, 5e5, 1e6, 1.75e308};
    for (size_t n = 0; n < sizeof bases / sizeof *bases; n++)
        for (int64_t channels = 2; channels <= RAPT_MAX_HEAD_DIM; channels += channels < 200 ? 2 : 206) {
            static double got[RAPT_MAX_HEAD_DIM / 2];
            rapt_rope_frequencies(bases[n], channels, got);
            for (int64_t i = 0; i < channels / 2; i++) {
                const double want = (double)powl((long double)bases[n], -(long double)(2 * i) / (long double)channels);
                worst = fmax(worst, fabs(got[i] - want) / ldexp(1, ilogb(want) - 52));
            }
        }
    const bool wide = powl(10, 1 / 3.0L) != (long double)pow(10, 1 / 3.0); /* in some C libraries the one is the other */
    tap_ok(worst <= 2.5 || !wide, "frequencies: at most %.2f ulp off%s", worst, wide ? "" : " # SKIP powl is as coarse as pow");
}

/* ---- Sizes ----------------------------------------------------------------------------------------------------------- */

static void sizes(void) {
    int wrong = 0;
    for (int number = -1; number <= RAPT_TYPE_LIMIT; number++) {
        const rapt_type type = (rapt_type)number;
        int64_t row = -1, uneven = -1;
        for (int i = 0; i < KV_TYPES; i++)
            if (kv_types[i] == type) row = reference_row_bytes(type, 256), uneven = reference_row_bytes(type, 33);
        if (rapt_type_class_of(type) == RAPT_CLASS_MATRIX) row = reference_row_bytes(type, 256);
        wrong += rapt_row_bytes(type, 256) != row || rapt_row_bytes(type, 33) != uneven;
        wrong += rapt_row_bytes(type, -256) != -1 || rapt_row_bytes(type, 0) != (row < 0 ? -1 : 0);
        const rapt_layout a = rapt_layout_bhsd(type, 3, 5, 256), b = rapt_layout_bshd(type, 3, 5, 256);
        if (row < 0) wrong += a.token_stride >= 0 || b.head_stride >= 0;
        else
            wrong += a.token_stride != row || a.head_stride != 5 * row || a.batch_stride != 15 * row || b.head_stride != row ||
                     b.token_stride != 3 * row || b.batch_stride != 15 * row;
    }
    wrong += rapt_row_bytes(RAPT_F32, INT64_MAX) != -1;
    tap_ok(wrong == 0, "rapt_row_bytes and the dense layouts: %d wrong", wrong);
}

int main(void) {
    sizes();
    random_problems();
    interleaved();
    meeting_tensors();
    page_tables();
    special_rows();
    given_scales();
    refused();
    initialised();
    rope_problems();
    rotary_tables();
    table_of_frequencies();
    far_positions();
    rope_refused();
    frequencies_refused();
    exact_frequencies();
    return tap_done();
}
