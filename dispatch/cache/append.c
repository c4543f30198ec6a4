/* SPDX-License-Identifier: Apache-2.0 */
/* Appends tokens to a cache: rotates keys, and converts keys and values to the cache's types, row by row. */
#include "cache/append.h"

#include <string.h>

#include "core/float_modes.h"
#include "attention/plan.h"
#include "cache/rotate.h"
#include "cache/rows.h"
#include "core/structs.h"
#include "core/work.h"

static const rapt_kv_append_desc default_append_desc = {.batch = 1, .rope.amplitude = 1.0};
static const rapt_kv_append_args default_append_args = {0};

void rapt_kv_append_desc_init_sized(rapt_kv_append_desc *desc, size_t size) {
    rapt_init_struct(desc, size, &default_append_desc, sizeof default_append_desc);
}

void rapt_kv_append_args_init_sized(rapt_kv_append_args *args, size_t size) {
    rapt_init_struct(args, size, &default_append_args, sizeof default_append_args);
}

/* ---- Validation ---------------------------------------------------------------------------------------------------------- */

/* The fields of a call that belong to K, or those that belong to V. */
typedef struct side {
    const char *name, *new_name, *scales_name;
    const rapt_layout *in, *cache;
    const rapt_scales *scales_layout;
    const void *new_rows;
    void *rows;
    float *scales;
    int64_t d;
} side;

/* Returns the fields of a call that belong to K, or to V if value is 1. */
static side side_of(const append_call *c, int value) {
    const rapt_kv_append_desc *d = &c->desc;
    const rapt_kv_append_args *a = &c->args;
    return value ? (side){"v", "new_v", "v_scales", &d->new_v, &d->v, &d->v_scales, a->new_v, a->v, a->v_scales, d->d_v}
                 : (side){"k", "new_k", "k_scales", &d->new_k, &d->k, &d->k_scales, a->new_k, a->k, a->k_scales, d->d_k};
}

/* True if the call computes scales, one for each token, and writes them; other scales, if there are any, are the caller's, and
 * are read. */
static bool computes_scales(const side *s) { return rapt_scales_of_tokens(s->scales_layout); }

/* Sets length to the cache's dimensions: entries, heads, tokens; if it is paged, pages, heads, tokens of a page. */
static void cache_dimensions(const rapt_kv_append_desc *d, int64_t length[3]) {
    length[0] = d->page_size ? d->pages : d->batch;
    length[1] = d->kv_heads;
    length[2] = d->page_size ? d->page_size : d->kv_len;
}

/* Checks the cache and the scales of K or V, and computes the bytes that they span. */
static rapt_status measure_side(rapt_report *r, append_call *c, int value) {
    const side s = side_of(c, value);
    int64_t length[3];
    cache_dimensions(&c->desc, length);
    if (s.cache->type == RAPT_NONE) return RAPT_OK;
    rapt_status status =
        rapt_measure(r, s.name, s.cache, RAPT_KV, length[0], length[1], length[2], s.d, true, &c->cache_bytes[value]);
    if (status == RAPT_OK && computes_scales(&s) && rapt_largest_of(s.cache->type) == 0.0f)
        return rapt_refuse_member(r, RAPT_ERR_FEATURE, s.scales_name, "token_stride", s.scales_layout->token_stride,
                                  "scales of tokens are found for fp8 and int8 only");
    if (status == RAPT_OK)
        status = rapt_measure_scales(r, s.scales_name, s.scales_layout, length[0], c->desc.batch, length[1], length[2], s.d,
                                     computes_scales(&s), &c->scales_bytes[value]);
    return status;
}

rapt_kv_append_desc rapt_kv_append_desc_of(const rapt_desc *d, int64_t tokens, rapt_layout new_k, rapt_layout new_v,
                                           const rapt_rope *rope) {
    return (rapt_kv_append_desc){.batch = d->batch,
                                 .kv_heads = d->kv_heads,
                                 .tokens = tokens,
                                 .kv_len = d->kv_len,
                                 .d_k = d->d_k,
                                 .d_v = d->d_v,
                                 .new_k = new_k,
                                 .new_v = new_v,
                                 .k = d->k,
                                 .v = d->v,
                                 .k_scales = d->k_scales,
                                 .v_scales = d->v_scales,
                                 .page_size = d->page_size,
                                 .pages = d->pages,
                                 .table = d->table,
                                 .trust_table = d->trust_table,
                                 .rope = *rope};
}

rapt_status rapt_check_append_desc(rapt_report *r, append_call *c) {
    const rapt_kv_append_desc *d = &c->desc;
    const struct {
        const char *name;
        int64_t value, least;
    } sizes[] = {{"batch", d->batch, 0}, {"kv_heads", d->kv_heads, 1}, {"tokens", d->tokens, 0}, {"kv_len", d->kv_len, 0}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (!rapt_within(sizes[i].value, sizes[i].least, RAPT_MAX_LENGTH))
            return rapt_refuse_number(r, RAPT_ERR_SHAPE, sizes[i].name, sizes[i].value,
                                      sizes[i].least ? "must be 1 to 2147483647" : "must be 0 to 2147483647");
    if (d->k.type == RAPT_NONE && d->v.type == RAPT_NONE)
        return rapt_refuse(r, RAPT_ERR_TYPE, "k.type = RAPT_NONE: nor has v one, so nothing is written");
    if (d->k.type != RAPT_NONE && !rapt_within(d->d_k, 1, RAPT_MAX_HEAD_DIM))
        return rapt_refuse_number(r, RAPT_ERR_SHAPE, "d_k", d->d_k, "must be 1 to 1024");
    if (d->v.type != RAPT_NONE && !rapt_within(d->d_v, 1, RAPT_MAX_HEAD_DIM))
        return rapt_refuse_number(r, RAPT_ERR_SHAPE, "d_v", d->d_v, "must be 1 to 1024");
    int64_t number_bytes;
    rapt_status status = rapt_check_pages(r, d->page_size, d->pages, d->table.type);
    if (status == RAPT_OK && d->page_size > 0)
        status = rapt_check_row(r, "table", "type", d->table.type, 1 << RAPT_I32, 1, &number_bytes);
    if (status != RAPT_OK) return status;
    if (d->k.type == RAPT_NONE && d->k_scales.present)
        return rapt_refuse_member(r, RAPT_ERR_FEATURE, "k_scales", "present", d->k_scales.present, "K is not written");
    if (d->v.type == RAPT_NONE && d->v_scales.present)
        return rapt_refuse_member(r, RAPT_ERR_FEATURE, "v_scales", "present", d->v_scales.present, "V is not written");
    status = rapt_check_rope(r, &d->rope, d->k.type != RAPT_NONE ? d->d_k : 0);
    if (status == RAPT_OK) status = measure_side(r, c, 0);
    return status == RAPT_OK ? measure_side(r, c, 1) : status;
}

/* Registers K or V: the cache, which is called `name` in reports, its scales, and if new_rows is true, the rows to append. */
static void register_side(rapt_memory *m, const append_call *c, int value, const char *name, bool new_rows) {
    const rapt_kv_append_desc *d = &c->desc;
    const side of = side_of(c, value), *s = &of;
    const rapt_scales *f = s->scales_layout;
    int64_t length[3];
    uint64_t bytes = 0;
    if (s->cache->type == RAPT_NONE) {
        rapt_unused(m, name, s->rows, "its layout has no type");
        rapt_unused(m, s->scales_name, s->scales, "its tensor has no type");
        if (new_rows) rapt_unused(m, s->new_name, s->new_rows, "its cache has no type");
        return;
    }
    cache_dimensions(d, length);
    if (new_rows) {
        if (m->status == RAPT_OK)
            m->status = rapt_measure_heads(m->report, s->new_name, &c->tokens, s->in, d->kv_heads, s->d, false, &bytes);
        rapt_reads(m, s->new_name, s->new_rows, bytes);
    }
    rapt_spread(m, rapt_writes(m, name, s->rows, c->cache_bytes[value]), s->cache, length, rapt_row_bytes(s->cache->type, s->d));
    if (!computes_scales(s)) {
        rapt_reads_if(m, f->present, s->scales_name, s->scales, c->scales_bytes[value], "the plan has no scales");
        return;
    }
    rapt_layout layout = rapt_layout_of_scales(f);
    rapt_spread(m, rapt_writes(m, s->scales_name, s->scales, c->scales_bytes[value]), &layout, length, sizeof(float));
}

/* Registers the page table, and checks table_starts, which say how long it is. */
static void append_register_table(rapt_memory *m, const append_call *c) {
    const rapt_kv_append_desc *d = &c->desc;
    const rapt_kv_append_args *a = &c->args;
    if (!d->page_size) {
        rapt_unused(m, "table", a->table, "there are no pages");
        rapt_unused(m, "table_starts", a->table_starts, "there are no pages");
        return;
    }
    rapt_reads_array(m, "table_starts", a->table_starts, d->batch + 1, sizeof(int32_t), true);
    if (m->status == RAPT_OK) m->status = rapt_check_ascending(m->report, "table_starts", a->table_starts, 0, d->batch);
    if (m->status != RAPT_OK) return;
    const int32_t *starts = a->table_starts;
    int64_t pages = starts ? starts[d->batch] : rapt_divide_up(d->kv_len, d->page_size);
    rapt_dimension table[] = {{starts ? 1 : d->batch, d->table.batch_stride, "batch_stride"},
                              {d->kv_heads, d->table.head_stride, "head_stride"}};
    uint64_t bytes = 0;
    if (d->batch > 0 && pages > 0)
        m->status = rapt_measure_dimensions(m->report, "table", table, 2, pages * (int64_t)sizeof(int32_t), false, &bytes);
    rapt_reads(m, "table", a->table, bytes);
}

void rapt_register_append(rapt_memory *m, const append_call *c, const char *k, const char *v, bool whole_call) {
    register_side(m, c, 0, k, whole_call);
    register_side(m, c, 1, v, whole_call);
    if (!whole_call) return; /* the call of which the append is a part registers everything else */
    rapt_register_rope(m, &c->desc.rope, &c->args.rope_table);
    rapt_reads_array(m, "ring_starts", c->args.ring_starts, c->desc.batch, sizeof(int32_t), true);
    append_register_table(m, c);
}

/* Returns the slot of key j of entry b: its place in the entry's ring, before pages are looked up. */
static int64_t slot_of(const append_call *c, int64_t b, int64_t j) {
    int64_t slot = j + (c->args.ring_starts ? c->args.ring_starts[b] : 0);
    return slot < c->desc.kv_len ? slot : slot - c->desc.kv_len;
}

/* Returns the n-th page number of entry b's page table for this head. */
static int64_t page_at(const append_call *c, int64_t b, int64_t head, int64_t n) {
    const rapt_layout *table = &c->desc.table;
    const int32_t *starts = c->args.table_starts;
    int32_t page;
    memcpy(&page,
           (const char *)c->args.table + head * table->head_stride +
               (starts ? (int64_t)starts[b] * (int64_t)sizeof page : b * table->batch_stride) + n * (int64_t)sizeof page,
           sizeof page);
    return page;
}

/* Keys [first, end) of a page, to which some of entry b's new tokens are written; page = table[b, n]. */
typedef struct page_range {
    int64_t b, n, page, first, end;
} page_range;

/* The place of a walk over all new tokens: token i of entry b is next. */
typedef struct walk {
    int64_t b, i;
} walk;

/* Sets p to the next range that new tokens are written to, by the page table of a head, and advances the walk. Returns false at
 * the end of the walk. */
static bool next_page_range(const append_call *c, int64_t head, walk *at, page_range *p) {
    const rapt_kv_append_desc *d = &c->desc;
    while (at->b < d->batch && at->i == rapt_count_of(&c->tokens, at->b)) *at = (walk){at->b + 1, 0};
    if (at->b == d->batch) return false;
    int64_t slot = slot_of(c, at->b, rapt_start_of(&c->tokens, at->b) + at->i), n = rapt_count_of(&c->tokens, at->b) - at->i;
    p->b = at->b, p->n = slot / d->page_size;
    p->page = page_at(c, p->b, head, p->n);
    p->first = slot % d->page_size;
    if (n > d->page_size - p->first) n = d->page_size - p->first;
    if (n > d->kv_len - slot) n = d->kv_len - slot;
    p->end = p->first + n;
    at->i += n;
    return true;
}

/* True if two ranges have a key of a page in common. */
static bool ranges_overlap(const page_range *a, const page_range *b) {
    return a->page == b->page && a->first < b->end && b->first < a->end;
}

/* Checks one head's table: its pages exist, and no two new tokens have the same place. Page numbers are handled in windows of a
 * fixed size, with a bit for each page that was seen, so that the memory does not grow with the pool. Only a range whose page was
 * seen before is compared with the ranges before it. */
static rapt_status check_pages(rapt_report *r, const append_call *c, int64_t head) {
    enum { WINDOW = 1 << 16 };
    int64_t least = INT64_MAX, most = -1;
    page_range p, before;
    for (walk at = {0, 0}; next_page_range(c, head, &at, &p);) {
        if (p.page < 0 || p.page >= c->desc.pages)
            return rapt_refuse(r, RAPT_ERR_TABLE,
                               "table[entry %" PRId64 ", head %" PRId64 "][%" PRId64 "] = %" PRId64 ": the pool has %" PRId64
                               " pages",
                               p.b, head, p.n, p.page, c->desc.pages);
        least = p.page < least ? p.page : least;
        most = p.page > most ? p.page : most;
    }
    for (int64_t window = least; window <= most; window += WINDOW) {
        uint64_t seen[WINDOW / 64] = {0};
        for (walk at = {0, 0}; next_page_range(c, head, &at, &p);) {
            if (p.page < window || p.page >= window + WINDOW) continue;
            uint64_t *word = &seen[(p.page - window) / 64], bit = UINT64_C(1) << (p.page - window) % 64;
            for (walk old = {0, 0}; *word & bit && next_page_range(c, head, &old, &before) && (old.b != at.b || old.i != at.i);)
                if (ranges_overlap(&p, &before))
                    return rapt_refuse(r, RAPT_ERR_TABLE,
                                       "table[entry %" PRId64 ", head %" PRId64 "][%" PRId64 "] = %" PRId64 ": key %" PRId64
                                       " of that page is given to two tokens",
                                       p.b, head, p.n, p.page, p.first > before.first ? p.first : before.first);
            *word |= bit;
        }
    }
    return RAPT_OK;
}

rapt_status rapt_check_room(rapt_report *r, const append_call *c) {
    for (int64_t b = 0; b < c->desc.batch; b++)
        if (rapt_start_of(&c->tokens, b) + rapt_count_of(&c->tokens, b) > c->desc.kv_len)
            return rapt_refuse(r, RAPT_ERR_KV_LENGTH,
                               "starts[%" PRId64 "] = %" PRId64 ": from there on, %" PRId64 " tokens exceed kv_len = %" PRId64, b,
                               rapt_start_of(&c->tokens, b), rapt_count_of(&c->tokens, b), c->desc.kv_len);
    return RAPT_OK;
}

rapt_status rapt_check_places(rapt_report *r, const append_call *c) {
    const rapt_kv_append_desc *d = &c->desc;
    const rapt_kv_append_args *a = &c->args;
    rapt_status status = RAPT_OK;
    bool any = false;
    for (int64_t b = 0; b < d->batch; b++) {
        if (a->ring_starts && (a->ring_starts[b] < 0 || (a->ring_starts[b] > 0 && a->ring_starts[b] >= d->kv_len)))
            return rapt_refuse(r, RAPT_ERR_TABLE, "ring_starts[%" PRId64 "] = %d: the ring has %" PRId64 " keys", b,
                               (int)a->ring_starts[b], d->kv_len);
        any = any || rapt_count_of(&c->tokens, b) > 0;
    }
    if (!d->page_size || !any) return RAPT_OK;
    if (d->pages == 0) return rapt_refuse_number(r, RAPT_ERR_TABLE, "pages", 0, "there are tokens to be written");
    if (a->table_starts) /* each entry's part of the table must have a number for every page that is written */
        for (int64_t b = 0; b < d->batch; b++) {
            int64_t count = rapt_count_of(&c->tokens, b), start = rapt_start_of(&c->tokens, b);
            int64_t last = slot_of(c, b, start + count - 1);
            if (count > 0 && last < slot_of(c, b, start)) last = d->kv_len - 1; /* the tokens go round the ring */
            if (count > 0 && last / d->page_size >= (int64_t)a->table_starts[b + 1] - a->table_starts[b])
                return rapt_refuse(r, RAPT_ERR_TABLE,
                                   "table_starts[%" PRId64 "] = %d: the tokens of entry %" PRId64 " need its page %" PRId64,
                                   b + 1, (int)a->table_starts[b + 1], b, last / d->page_size);
        }
    for (int64_t head = 0; head < (d->table.head_stride ? d->kv_heads : 1) && !d->trust_table && status == RAPT_OK; head++)
        status = check_pages(r, c, head);
    return status;
}

/* Reads the caller's structs into c, and checks all of the call. */
static rapt_status read_append(rapt_report *r, append_call *c, const rapt_kv_append_desc *desc, const rapt_kv_append_args *args) {
    rapt_status status = rapt_read_struct(r, "desc", &c->desc, &default_append_desc, sizeof c->desc, sizeof c->desc, desc);
    if (status == RAPT_OK)
        status = rapt_read_struct(r, "args", &c->args, &default_append_args, sizeof c->args,
                                  RAPT_BEFORE(rapt_kv_append_args, rope_table), args);
    if (status == RAPT_OK) status = rapt_check_append_desc(r, c);
    if (status != RAPT_OK) return status;
    const rapt_kv_append_args *a = &c->args;
    c->tokens = (rapt_tokens){.batch = c->desc.batch,
                              .tokens = c->desc.tokens,
                              .starts = a->starts,
                              .lengths = a->lengths,
                              .token_starts = a->token_starts,
                              .positions = a->positions};
    rapt_memory m;
    rapt_memory_begin(&m, r);
    rapt_register_tokens(&m, &c->tokens);
    rapt_register_positions(&m, &c->desc.rope, &c->tokens);
    if (m.status == RAPT_OK) m.status = rapt_check_tokens(r, &c->tokens);
    rapt_register_append(&m, c, "k", "v", true);
    status = rapt_check_memory(&m);
    if (status == RAPT_OK) status = rapt_check_room(r, c);
    if (status == RAPT_OK) status = rapt_check_places(r, c);
    return status == RAPT_OK ? rapt_check_positions(r, &c->desc.rope, &a->rope_table, &c->tokens) : status;
}

rapt_status rapt_kv_append_explain(const rapt_kv_append_desc *desc, const rapt_kv_append_args *args, char *text, size_t bytes) {
    rapt_report r = rapt_explanation_of("rapt_kv_append_run", text, bytes);
    append_call c;
    const rapt_status status = read_append(&r, &c, desc, args);
    return status == RAPT_OK ? rapt_check_floats(&r) : status;
}

/* ---- Writing ------------------------------------------------------------------------------------------------------------- */

/* Writes one row to its place in the cache, and its scale, if that is computed. If there are scales, the row is first divided by
 * them, in place. */
static void append_row(const append_call *c, const side *s, float *row, rapt_cursor at) {
    const rapt_kv_append_desc *d = &c->desc;
    const rapt_scales *f = s->scales_layout;
    int64_t token = slot_of(c, at.b, rapt_start_of(&c->tokens, at.b) + at.i), entry = at.b;
    if (d->page_size) {
        entry = page_at(c, at.b, at.head, token / d->page_size);
        token %= d->page_size;
    }
    if (computes_scales(s)) {
        float scale = rapt_find_scale(s->cache->type, row, s->d);
        char *to = (char *)s->scales + entry * f->batch_stride + at.head * f->head_stride + token * f->token_stride;
        memcpy(to, &scale, sizeof scale);
    } else if (f->present) {
        rapt_divide_row(row, s->d, (const char *)s->scales + at.b * f->batch_stride + at.head * f->head_stride,
                        f->channel_stride);
    }
    rapt_store_row(s->cache->type,
                   (char *)s->rows + entry * s->cache->batch_stride + at.head * s->cache->head_stride +
                       token * s->cache->token_stride,
                   row, s->d);
}

void rapt_append_share(const append_call *c, int64_t ith, int64_t nth) {
    const rapt_rope *rope = &c->desc.rope;
    const int64_t heads = c->desc.kv_heads;
    rapt_angles angles;
    rapt_cursor at;
    int64_t rows = rapt_share_of_rows(&c->tokens, heads, ith, nth, &at);
    for (int64_t n = 0; n < rows; n++, at = rapt_next_row(&c->tokens, heads, at)) {
        if (rope->channels && (n == 0 || at.head == 0))
            rapt_find_angles(rope, &c->args.rope_table, rapt_position_of(&c->tokens, at.b, at.i), &angles);
        for (int value = 0; value < 2; value++) {
            side s = side_of(c, value);
            float row[RAPT_MAX_HEAD_DIM];
            if (s.cache->type == RAPT_NONE) continue;
            rapt_load_row(s.in->type, row, (const char *)s.new_rows + rapt_offset_of(&c->tokens, s.in, at), s.d);
            if (!value && rope->channels) rapt_rotate(rope, &angles, row);
            append_row(c, &s, row, at);
        }
    }
}

static void append_share(const void *call, int phase, int64_t ith, int64_t nth, atomic_llong *next) {
    (void)phase, (void)next;
    rapt_append_share(call, ith, nth);
}

static rapt_status append_run(const char *name, const rapt_kv_append_desc *desc, const rapt_kv_append_args *args, rapt_way way) {
    rapt_report r = rapt_report_of(name);
    append_call c;
    rapt_status status = read_append(&r, &c, desc, args);
    const rapt_work w = {.call = &c, .phases = 1, .share = append_share};
    return status == RAPT_OK ? rapt_work_run(&r, &w, &way) : status;
}

rapt_status rapt_kv_append_run(const rapt_kv_append_desc *desc, const rapt_kv_append_args *args) {
    return append_run("rapt_kv_append_run", desc, args, rapt_alone());
}
rapt_status rapt_kv_append_run_parallel(const rapt_kv_append_desc *desc, const rapt_kv_append_args *args, int64_t nth,
                                        rapt_parallel_for parallel_for, void *pool) {
    return append_run("rapt_kv_append_run_parallel", desc, args, rapt_parallel(nth, parallel_for, pool));
}
rapt_status rapt_kv_append_run_share(const rapt_kv_append_desc *desc, const rapt_kv_append_args *args, int64_t ith, int64_t nth) {
    return append_run("rapt_kv_append_run_share", desc, args, rapt_share(ith, nth, NULL, NULL));
}
