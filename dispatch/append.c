/* SPDX-License-Identifier: Apache-2.0 */
/* Writing caches: new tokens' keys and values, rotated and quantised on one lane; rotary embedding and weights by themselves. */
#include "parts.h"
#include "layout.h"
#include "plan.h"
#include "rotary.h"

/* The words on one lane, without a product and sum together, which rounding classes differ in. */
static inline float s_fma(float a, float b, float c) { return a * b + c; }

#include "scalar_words.h"
#include "types.h"
#include "type_f32.h"
#include "type_f16.h"
#include "type_bf16.h"
#include "groups.h"
#include "type_f8_e4m3.h"
#include "type_f8_e5m2.h"
#include "type_int8.h"
#include "type_int4.h"
#include "type_int4_min.h"
#include "type_q8_0.h"
#include "type_q4_0.h"
#include "type_q4_1.h"
#include "type_q5_0.h"
#include "type_q5_1.h"

/* ---- Rows ------------------------------------------------------------------------------------------------------------ */

void rapt_load_row(rapt_type type, float *to, const char *from, int64_t channels) {
    switch (type) {
#define RAPT_TYPE(name, suffix, bytes)                                                                                           \
    case name:                                                                                                                   \
        for (int64_t i = 0; i < channels; i++) to[i] = v_load_##suffix(from + i * bytes);                                        \
        break;
        RAPT_TYPES(RAPT_TYPE)
#undef RAPT_TYPE
    default:
        break;
    }
}

static void store_row(rapt_type type, char *to, const float *from, int64_t channels) {
    switch (type) {
#define RAPT_TYPE(name, suffix, bytes)                                                                                           \
    case name:                                                                                                                   \
        for (int64_t i = 0; i < channels; i++) v_store_##suffix(to + i * bytes, from[i]);                                        \
        break;
        RAPT_TYPES(RAPT_TYPE)
#undef RAPT_TYPE
#define RAPT_TYPE(name, suffix, group, bytes)                                                                                    \
    case name:                                                                                                                   \
        for (int64_t i = 0; i < channels / group; i++) store_group_##suffix((uint8_t *)to + i * bytes, from + i * group);        \
        break;
        RAPT_KV_TYPES(RAPT_TYPE)
#undef RAPT_TYPE
    default:
        break;
    }
}

/* The largest finite number of the types whose factors are found; 0 for the others. */
static float largest_of(rapt_type type) {
    return type == RAPT_INT8 ? 127.0f : type == RAPT_F8_E4M3 ? 448.0f : type == RAPT_F8_E5M2 ? 57344.0f : 0.0f;
}

static float quotient(float x, float factor) { return factor == 0.0f ? 0.0f : x / factor; }

static void divide_row(float *row, int64_t channels, const char *factors, int64_t stride) {
    for (int64_t i = 0; i < channels; i++) row[i] = quotient(row[i], v_load(factors + i * stride));
}

/* What a factor is found from: the largest magnitude, and 0, or NaN if an element is not finite. */
typedef struct extent {
    float most, none;
} extent;

static void extend(extent *e, const float *row, int64_t channels) {
    for (int64_t i = 0; i < channels; i++) {
        float size = magnitude_of(row[i]);
        e->most = size > e->most ? size : e->most;
        e->none += row[i] - row[i];
    }
}

static float factor_of(rapt_type type, const extent *e) {
    return e->none == 0.0f ? e->most / largest_of(type) : v_as_float(0x7fc00000);
}

static void divide_by(float *row, int64_t channels, const extent *e, float factor) {
    for (int64_t i = 0; i < channels; i++) row[i] = e->none == 0.0f ? quotient(row[i], factor) : 0.0f;
}

/* Divides a row by the factor that takes its largest magnitude to the type's largest number, and returns that. */
static float find_factor(rapt_type type, float *row, int64_t channels) {
    extent e = {0};
    extend(&e, row, channels);
    float factor = factor_of(type, &e);
    divide_by(row, channels, &e, factor);
    return factor;
}

/* ---- Which tokens ---------------------------------------------------------------------------------------------------- */

typedef struct token_set {
    int64_t batch, tokens;
    const int32_t *starts, *lengths, *token_starts, *positions;
} token_set;

/* A row: a token of an entry, and a head. */
typedef struct cursor {
    int64_t b, i, head;
} cursor;

static int64_t count_of(const token_set *t, int64_t b) {
    return t->token_starts ? (int64_t)t->token_starts[b + 1] - t->token_starts[b] : t->lengths ? t->lengths[b] : t->tokens;
}

static int64_t start_of(const token_set *t, int64_t b) { return t->starts ? t->starts[b] : 0; }

/* Where a row lies in a tensor of tokens. */
static int64_t offset_of(const token_set *t, const rapt_layout *layout, cursor at) {
    int64_t entry = t->token_starts ? 0 : at.b * layout->batch_stride,
            token = t->token_starts ? t->token_starts[at.b] + at.i : at.i;
    return entry + at.head * layout->head_stride + token * layout->token_stride;
}

static int64_t position_of(const token_set *t, int64_t b, int64_t i) {
    if (!t->positions) return start_of(t, b) + i;
    return t->positions[(t->token_starts ? t->token_starts[b] : b * t->tokens) + i];
}

static rapt_status check_tokens(const token_set *t) {
    if (t->token_starts && t->lengths) return RAPT_ERR_FEATURE;
    if (t->token_starts && t->token_starts[0] < 0) return RAPT_ERR_TABLE;
    for (int64_t b = 0; b < t->batch; b++) {
        if (t->token_starts && (t->token_starts[b + 1] < t->token_starts[b] || t->token_starts[b + 1] > t->tokens))
            return RAPT_ERR_TABLE;
        if (t->lengths && (t->lengths[b] < 0 || t->lengths[b] > t->tokens)) return RAPT_ERR_TABLE;
        if (start_of(t, b) < 0) return RAPT_ERR_TABLE;
    }
    return RAPT_OK;
}

static rapt_status measure_tokens(const token_set *t, const rapt_layout *layout, int64_t heads, int64_t channels, bool output,
                                  uint64_t *bytes) {
    if (layout->type != RAPT_F32 && layout->type != RAPT_F16 && layout->type != RAPT_BF16) return RAPT_ERR_TYPE;
    if (!t->token_starts) return rapt_measure(layout, t->batch, heads, t->tokens, channels, output, bytes);
    rapt_layout flat = *layout;
    flat.batch_stride = 0;
    return layout->batch_stride < 0 ? RAPT_ERR_STRIDE : rapt_measure(&flat, 1, heads, t->tokens, channels, output, bytes);
}

/* The row after this one, of which there is one: a token's heads, then the next token, then the next entry that has any. */
static cursor next_row(const token_set *t, int64_t heads, cursor at) {
    if (++at.head == heads) at.head = 0, at.i++;
    while (at.b < t->batch && at.i == count_of(t, at.b)) at.b++, at.i = 0;
    return at;
}

/* The rows of thread ith: so many, from the one at *at. */
static int64_t share(const token_set *t, int64_t heads, int64_t ith, int64_t nth, cursor *at) {
    int64_t total = 0;
    for (int64_t b = 0; b < t->batch; b++) total += count_of(t, b) * heads;
    int64_t first = total / nth * ith + (ith < total % nth ? ith : total % nth);
    int64_t rows = total / nth + (ith < total % nth);
    *at = (cursor){0};
    if (rows == 0) return 0;
    for (; first >= count_of(t, at->b) * heads; at->b++) first -= count_of(t, at->b) * heads;
    at->i = first / heads;
    at->head = first % heads;
    return rows;
}

/* ---- Memory ---------------------------------------------------------------------------------------------------------- */

/* A tensor that is written, of rows of so many bytes. Its strides are those of a checked output. */
typedef struct written {
    rapt_range range;
    int64_t length[3], stride[3], row; /* by stride, descending */
} written;

/* Do rows of a and b, distance apart, meet in dimensions i and on? As a row's inner dimensions span less than a stride, only
 * three steps of each dimension come near. */
static bool rows_meet(const written *a, const written *b, int64_t distance, int i) {
    if (i == 3) return distance < a->row && -distance < b->row;
    if (a->length[i] == 1) return rows_meet(a, b, distance, i + 1);
    int64_t steps = distance / a->stride[i];
    for (int64_t step = steps - 1; step <= steps + 1; step++)
        if (step > -a->length[i] && step < a->length[i] && rows_meet(a, b, distance - step * a->stride[i], i + 1)) return true;
    return false;
}

static bool written_meet(const written *a, const written *b) {
    if (!rapt_ranges_meet(a->range, b->range)) return false;
    for (int i = 0; i < 3; i++)
        if (a->length[i] != b->length[i] || a->stride[i] != b->stride[i]) return true;
    return rows_meet(a, b, (int64_t)(b->range.first - a->range.first), 0);
}

static written written_of(const rapt_layout *layout, const void *at, uint64_t bytes, const int64_t *length, int64_t row) {
    written w = {.range = {(uintptr_t)at, bytes}, .row = row};
    int64_t stride[3] = {layout->batch_stride, layout->head_stride, layout->token_stride};
    for (int i = 0; i < 3; i++)
        if (length[i] == 1) stride[i] = 0; /* not used, and may be anything */
    for (int i = 0; i < 3; i++) {
        int place = 0; /* equal ones in the order of the dimensions */
        for (int j = 0; j < 3; j++) place += stride[j] > stride[i] || (stride[j] == stride[i] && j < i);
        w.length[place] = length[i];
        w.stride[place] = stride[i];
    }
    return w;
}

static rapt_status check_range(rapt_range range) {
    if (range.bytes && !range.first) return RAPT_ERR_NULL;
    return range.bytes > UINTPTR_MAX - range.first ? RAPT_ERR_STRIDE : RAPT_OK;
}

static rapt_range array(const void *at, int64_t elements, size_t bytes) {
    return (rapt_range){(uintptr_t)at, at ? (uint64_t)elements * bytes : 0};
}

/* ---- rapt_kv_append -------------------------------------------------------------------------------------------------- */

typedef struct append_call {
    rapt_append_desc desc;
    rapt_append_args args;
    token_set tokens;
} append_call;

void rapt_append_desc_init_sized(rapt_append_desc *desc, size_t size) {
    if (!desc || size < sizeof *desc) return;
    memset(desc, 0, size);
    desc->size = size;
    desc->rotary.amplitude = 1.0;
}

void rapt_append_args_init_sized(rapt_append_args *args, size_t size) {
    if (!args || size < sizeof *args) return;
    memset(args, 0, size);
    args->size = size;
}

/* One of K and V. */
typedef struct side {
    const rapt_layout *in, *cache;
    const rapt_scales *scales;
    const void *new_rows;
    void *rows;
    float *factors;
    int64_t d;
} side;

static side side_of(const append_call *c, int value) {
    const rapt_append_desc *d = &c->desc;
    const rapt_append_args *a = &c->args;
    return value ? (side){&d->new_v, &d->v, &d->v_scales, a->new_v, a->v, a->v_scales, d->d_v}
                 : (side){&d->new_k, &d->k, &d->k_scales, a->new_k, a->k, a->k_scales, d->d_k};
}

static bool finds_factors(const side *s) { return s->scales->present && s->scales->token_stride > 0; }

static rapt_layout layout_of_scales(const rapt_scales *s) {
    return (rapt_layout){RAPT_F32, s->batch_stride, s->head_stride, s->token_stride};
}

static bool in_range(int64_t x, int64_t least, int64_t most) { return x >= least && x <= most; }

static rapt_status check_shape(const rapt_append_desc *d) {
    if (!in_range(d->batch, 0, RAPT_MAX_LENGTH) || !in_range(d->kv_heads, 1, RAPT_MAX_LENGTH) ||
        !in_range(d->tokens, 0, RAPT_MAX_LENGTH) || !in_range(d->kv_len, 0, RAPT_MAX_LENGTH) ||
        !in_range(d->page_size, 0, RAPT_MAX_LENGTH) || !in_range(d->pages, 0, RAPT_MAX_LENGTH))
        return RAPT_ERR_SHAPE;
    if (d->k.type == 0 && d->v.type == 0) return RAPT_ERR_TYPE;
    if ((d->k.type != 0 && !in_range(d->d_k, 1, RAPT_MAX_HEAD_DIM)) ||
        (d->v.type != 0 && !in_range(d->d_v, 1, RAPT_MAX_HEAD_DIM)))
        return RAPT_ERR_SHAPE;
    if (d->page_size > 0 && d->table.type != RAPT_I32) return RAPT_ERR_TYPE;
    if (d->page_size > 0 && (d->table.batch_stride < 0 || d->table.head_stride < 0)) return RAPT_ERR_STRIDE;
    return rapt_check_rotary(&d->rotary, d->k.type != 0 ? d->d_k : 0);
}

/* The ranges that a call reads and the tensors it writes: K, V and the factors of each. */
typedef struct memory {
    rapt_range read[16];
    written written[4];
    int reads, writes;
} memory;

static void add_read(memory *m, rapt_range range) { m->read[m->reads++] = range; }

static rapt_status add_side(const append_call *c, const side *s, memory *m) {
    const rapt_append_desc *d = &c->desc;
    const rapt_scales *f = s->scales;
    const int64_t length[3] = {d->page_size ? d->pages : d->batch, d->kv_heads, d->page_size ? d->page_size : d->kv_len};
    uint64_t bytes;
    rapt_status status = measure_tokens(&c->tokens, s->in, d->kv_heads, s->d, false, &bytes);
    if (status != RAPT_OK) return status;
    add_read(m, (rapt_range){(uintptr_t)s->new_rows, bytes});
    status = rapt_measure(s->cache, length[0], length[1], length[2], s->d, true, &bytes);
    if (status != RAPT_OK) return status;
    m->written[m->writes++] = written_of(s->cache, s->rows, bytes, length, rapt_row_bytes(s->cache->type, s->d));
    if (!f->present) return RAPT_OK;
    if (f->channel_stride < 0) return RAPT_ERR_STRIDE;
    if (f->token_stride > 0 && (f->channel_stride > 0 || largest_of(s->cache->type) == 0.0f)) return RAPT_ERR_FEATURE;
    rapt_layout layout = layout_of_scales(f);
    if (finds_factors(s)) {
        status = rapt_measure(&layout, length[0], length[1], length[2], 1, true, &bytes);
        if (status == RAPT_OK) m->written[m->writes++] = written_of(&layout, s->factors, bytes, length, sizeof(float));
        return status;
    }
    layout.token_stride = f->channel_stride;
    status = rapt_measure(&layout, length[0], length[1], s->d, 1, false, &bytes);
    if (status == RAPT_OK) add_read(m, (rapt_range){(uintptr_t)s->factors, bytes});
    return status;
}

static int64_t pages_of(const rapt_append_desc *d) { return d->kv_len / d->page_size + (d->kv_len % d->page_size != 0); }

/* The page table's bytes; its rows are of int32_t. */
static rapt_status measure_table(const append_call *c, uint64_t *bytes) {
    const rapt_append_desc *d = &c->desc;
    const int32_t *starts = c->args.table_starts;
    int64_t rows = starts ? 1 : d->batch, row = starts ? starts[d->batch] : pages_of(d);
    rapt_layout layout = {RAPT_F32, d->table.batch_stride, d->table.head_stride, sizeof(int32_t)};
    return rapt_measure(&layout, rows, d->kv_heads, row, 1, false, bytes);
}

static rapt_status check_memory(const append_call *c) {
    const rapt_append_desc *d = &c->desc;
    const rapt_append_args *a = &c->args;
    memory m = {.reads = 0};
    rapt_status status = RAPT_OK;
    for (int value = 0; value < 2 && status == RAPT_OK; value++) {
        side s = side_of(c, value);
        if (s.cache->type != 0) status = add_side(c, &s, &m);
    }
    if (status != RAPT_OK) return status;
    add_read(&m, array(a->starts, d->batch, sizeof(int32_t)));
    add_read(&m, array(a->lengths, d->batch, sizeof(int32_t)));
    add_read(&m, array(a->token_starts, d->batch + 1, sizeof(int32_t)));
    add_read(&m, array(a->positions, a->token_starts ? d->tokens : d->batch * d->tokens, sizeof(int32_t)));
    add_read(&m, array(a->ring_starts, d->batch, sizeof(int32_t)));
    add_read(&m, array(d->rotary.frequencies, d->rotary.channels / 2, sizeof(double)));
    if (d->page_size) {
        uint64_t bytes;
        status = measure_table(c, &bytes);
        if (status != RAPT_OK) return status;
        add_read(&m, (rapt_range){(uintptr_t)a->table, bytes});
        add_read(&m, array(a->table_starts, d->batch + 1, sizeof(int32_t)));
    }
    for (int i = 0; i < m.reads && status == RAPT_OK; i++) status = check_range(m.read[i]);
    for (int i = 0; i < m.writes && status == RAPT_OK; i++) status = check_range(m.written[i].range);
    if (status != RAPT_OK) return status;
    for (int i = 0; i < m.writes; i++) {
        for (int j = 0; j < m.reads; j++)
            if (rapt_ranges_meet(m.written[i].range, m.read[j])) return RAPT_ERR_OVERLAP;
        for (int j = 0; j < i; j++)
            if (written_meet(&m.written[i], &m.written[j])) return RAPT_ERR_OVERLAP;
    }
    return RAPT_OK;
}

/* Where key j of an entry lies, as if there were no pages. */
static int64_t slot_of(const append_call *c, int64_t b, int64_t j) {
    int64_t slot = j + (c->args.ring_starts ? c->args.ring_starts[b] : 0);
    return slot < c->desc.kv_len ? slot : slot - c->desc.kv_len;
}

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

/* Adjacent keys of a page that one entry's new tokens become. */
typedef struct piece {
    int64_t page, first, end;
} piece;

typedef struct walk {
    int64_t b, i;
} walk;

/* The next piece of all entries, in the table of a head; false at the end. */
static bool next_piece(const append_call *c, int64_t head, walk *at, piece *p) {
    const rapt_append_desc *d = &c->desc;
    while (at->b < d->batch && at->i == count_of(&c->tokens, at->b)) *at = (walk){at->b + 1, 0};
    if (at->b == d->batch) return false;
    int64_t slot = slot_of(c, at->b, start_of(&c->tokens, at->b) + at->i), n = count_of(&c->tokens, at->b) - at->i;
    p->page = page_at(c, at->b, head, slot / d->page_size);
    p->first = slot % d->page_size;
    if (n > d->page_size - p->first) n = d->page_size - p->first;
    if (n > d->kv_len - slot) n = d->kv_len - slot;
    p->end = p->first + n;
    at->i += n;
    return true;
}

static bool same_place(const piece *a, const piece *b) { return a->page == b->page && a->first < b->end && b->first < a->end; }

/* Are all pages there, and no place given twice? Pages are marked in a window of their numbers at a time; only one that comes
 * again is compared with all before it. */
static bool table_is_sound(const append_call *c, int64_t head) {
    enum { WINDOW = 1 << 16 };
    int64_t least = INT64_MAX, most = -1;
    piece p, before;
    for (walk at = {0, 0}; next_piece(c, head, &at, &p);) {
        if (p.page < 0 || p.page >= c->desc.pages) return false;
        least = p.page < least ? p.page : least;
        most = p.page > most ? p.page : most;
    }
    for (int64_t window = least; window <= most; window += WINDOW) {
        uint64_t seen[WINDOW / 64] = {0};
        for (walk at = {0, 0}; next_piece(c, head, &at, &p);) {
            if (p.page < window || p.page >= window + WINDOW) continue;
            uint64_t *word = &seen[(p.page - window) / 64], bit = UINT64_C(1) << (p.page - window) % 64;
            for (walk old = {0, 0}; *word & bit && next_piece(c, head, &old, &before) && (old.b != at.b || old.i != at.i);)
                if (same_place(&p, &before)) return false;
            *word |= bit;
        }
    }
    return true;
}

static rapt_status check_places(const append_call *c) {
    const rapt_append_desc *d = &c->desc;
    const rapt_append_args *a = &c->args;
    bool any = false;
    for (int64_t b = 0; b < d->batch; b++) {
        int64_t count = count_of(&c->tokens, b);
        if (start_of(&c->tokens, b) + count > d->kv_len) return RAPT_ERR_KV_LENGTH;
        if (a->ring_starts && (a->ring_starts[b] < 0 || (a->ring_starts[b] > 0 && a->ring_starts[b] >= d->kv_len)))
            return RAPT_ERR_TABLE;
        any = any || count > 0;
    }
    if (!d->page_size || !any) return RAPT_OK;
    if (d->pages == 0) return RAPT_ERR_TABLE;
    if (a->table_starts) /* are the pages in the table at all? */
        for (int64_t b = 0; b < d->batch; b++) {
            int64_t count = count_of(&c->tokens, b), start = start_of(&c->tokens, b);
            int64_t last = slot_of(c, b, start + count - 1);
            if (count > 0 && last < slot_of(c, b, start)) last = d->kv_len - 1; /* round the ring */
            if (count > 0 && last / d->page_size >= (int64_t)a->table_starts[b + 1] - a->table_starts[b]) return RAPT_ERR_TABLE;
        }
    for (int64_t head = 0; head < (d->table.head_stride ? d->kv_heads : 1) && !d->trust_table; head++)
        if (!table_is_sound(c, head)) return RAPT_ERR_TABLE;
    return RAPT_OK;
}

static rapt_status check_table_starts(const append_call *c) {
    const int32_t *starts = c->args.table_starts;
    if (!c->desc.page_size || !starts) return RAPT_OK;
    if (starts[0] < 0) return RAPT_ERR_TABLE;
    for (int64_t b = 0; b < c->desc.batch; b++)
        if (starts[b + 1] < starts[b]) return RAPT_ERR_TABLE;
    return RAPT_OK;
}

static rapt_status read_append(append_call *c, const rapt_append_desc *desc, const rapt_append_args *args) {
    rapt_status status = rapt_read_struct(&c->desc, sizeof c->desc, desc);
    if (status == RAPT_OK) status = rapt_read_struct(&c->args, sizeof c->args, args);
    if (status == RAPT_OK) status = check_shape(&c->desc);
    if (status != RAPT_OK) return status;
    const rapt_append_args *a = &c->args;
    c->tokens = (token_set){c->desc.batch, c->desc.tokens, a->starts, a->lengths, a->token_starts, a->positions};
    status = check_tokens(&c->tokens);
    if (status == RAPT_OK) status = check_table_starts(c);
    if (status == RAPT_OK) status = check_memory(c);
    return status == RAPT_OK ? check_places(c) : status;
}

rapt_status rapt_check_append(const rapt_append_desc *desc, const rapt_append_args *args) {
    append_call c;
    return read_append(&c, desc, args);
}

/* One row, in scratch, goes to its place in the cache. */
static void append_row(const append_call *c, const side *s, float *row, cursor at) {
    const rapt_append_desc *d = &c->desc;
    const rapt_scales *f = s->scales;
    int64_t token = slot_of(c, at.b, start_of(&c->tokens, at.b) + at.i), entry = at.b;
    if (d->page_size) {
        entry = page_at(c, at.b, at.head, token / d->page_size);
        token %= d->page_size;
    }
    if (f->present) {
        char *factors = (char *)s->factors + entry * f->batch_stride + at.head * f->head_stride + token * f->token_stride;
        if (finds_factors(s)) v_store(factors, find_factor(s->cache->type, row, s->d));
        else divide_row(row, s->d, factors, f->channel_stride);
    }
    store_row(s->cache->type,
              (char *)s->rows + entry * s->cache->batch_stride + at.head * s->cache->head_stride + token * s->cache->token_stride,
              row, s->d);
}

rapt_status rapt_kv_append(const rapt_append_desc *desc, const rapt_append_args *args, int64_t ith, int64_t nth) {
    append_call c;
    rapt_status status = read_append(&c, desc, args);
    if (status != RAPT_OK) return status;
    if (nth < 1 || ith < 0 || ith >= nth) return RAPT_ERR_RANGE;
    const rapt_rotary *rotary = &c.desc.rotary;
    rapt_angles angles;
    cursor at;
    int64_t rows = share(&c.tokens, c.desc.kv_heads, ith, nth, &at);
    for (int64_t n = 0; n < rows; n++, at = next_row(&c.tokens, c.desc.kv_heads, at)) {
        if (rotary->channels && (n == 0 || at.head == 0)) rapt_find_angles(rotary, position_of(&c.tokens, at.b, at.i), &angles);
        for (int value = 0; value < 2; value++) {
            side s = side_of(&c, value);
            float row[RAPT_MAX_HEAD_DIM];
            if (s.cache->type == 0) continue;
            rapt_load_row(s.in->type, row, (const char *)s.new_rows + offset_of(&c.tokens, s.in, at), s.d);
            if (!value && rotary->channels) rapt_rotate(rotary, &angles, row);
            append_row(&c, &s, row, at);
        }
    }
    return RAPT_OK;
}

/* ---- rapt_rope ------------------------------------------------------------------------------------------------------- */

void rapt_rope_args_init_sized(rapt_rope_args *args, size_t size) {
    if (!args || size < sizeof *args) return;
    memset(args, 0, size);
    args->size = size;
    args->rotary.amplitude = 1.0;
}

static bool same_layout(const rapt_layout *a, const rapt_layout *b) {
    return a->type == b->type && a->batch_stride == b->batch_stride && a->head_stride == b->head_stride &&
           a->token_stride == b->token_stride;
}

static rapt_status check_rope(const rapt_rope_args *a, const token_set *t) {
    if (!in_range(a->batch, 0, RAPT_MAX_LENGTH) || !in_range(a->heads, 1, RAPT_MAX_LENGTH) ||
        !in_range(a->tokens, 0, RAPT_MAX_LENGTH) || !in_range(a->d, 1, RAPT_MAX_HEAD_DIM))
        return RAPT_ERR_SHAPE;
    uint64_t in_bytes, out_bytes;
    rapt_status status = rapt_check_rotary(&a->rotary, a->d);
    if (status == RAPT_OK) status = check_tokens(t);
    if (status == RAPT_OK) status = measure_tokens(t, &a->in, a->heads, a->d, false, &in_bytes);
    if (status == RAPT_OK) status = measure_tokens(t, &a->out, a->heads, a->d, true, &out_bytes);
    if (status != RAPT_OK) return status;
    const rapt_range out = {(uintptr_t)a->to, out_bytes};
    const rapt_range in[] = {{(uintptr_t)a->from, in_bytes},
                             array(a->starts, a->batch, sizeof(int32_t)),
                             array(a->lengths, a->batch, sizeof(int32_t)),
                             array(a->token_starts, a->batch + 1, sizeof(int32_t)),
                             array(a->positions, a->token_starts ? a->tokens : a->batch * a->tokens, sizeof(int32_t)),
                             array(a->rotary.frequencies, a->rotary.channels / 2, sizeof(double))};
    status = check_range(out);
    for (size_t i = 0; i < sizeof in / sizeof *in && status == RAPT_OK; i++) {
        status = check_range(in[i]);
        bool in_place = i == 0 && a->from == a->to && same_layout(&a->in, &a->out);
        if (status == RAPT_OK && !in_place && rapt_ranges_meet(out, in[i])) status = RAPT_ERR_OVERLAP;
    }
    return status;
}

rapt_status rapt_rope(const rapt_rope_args *args, int64_t ith, int64_t nth) {
    rapt_rope_args a;
    rapt_status status = rapt_read_struct(&a, sizeof a, args);
    if (status != RAPT_OK) return status;
    const token_set t = {a.batch, a.tokens, a.starts, a.lengths, a.token_starts, a.positions};
    status = check_rope(&a, &t);
    if (status != RAPT_OK) return status;
    if (nth < 1 || ith < 0 || ith >= nth) return RAPT_ERR_RANGE;
    rapt_angles angles;
    cursor at;
    int64_t rows = share(&t, a.heads, ith, nth, &at);
    for (int64_t n = 0; n < rows; n++, at = next_row(&t, a.heads, at)) {
        if (a.rotary.channels && (n == 0 || at.head == 0)) rapt_find_angles(&a.rotary, position_of(&t, at.b, at.i), &angles);
        float row[RAPT_MAX_HEAD_DIM];
        rapt_load_row(a.in.type, row, (const char *)a.from + offset_of(&t, &a.in, at), a.d);
        if (a.rotary.channels) rapt_rotate(&a.rotary, &angles, row);
        store_row(a.out.type, (char *)a.to + offset_of(&t, &a.out, at), row, a.d);
    }
    return RAPT_OK;
}

/* ---- Weights --------------------------------------------------------------------------------------------------------- */

rapt_status rapt_quantise_weights(int64_t out, int64_t in, rapt_type type, int64_t row_stride, const void *from, int8_t *to,
                                  float *scales) {
    if (out < 1 || out > RAPT_MAX_WIDTH || in < 1 || in > RAPT_MAX_WIDTH) return RAPT_ERR_SHAPE;
    if (type != RAPT_F32 && type != RAPT_F16 && type != RAPT_BF16) return RAPT_ERR_TYPE;
    const rapt_layout rows = {.type = type, .token_stride = row_stride};
    rapt_range r[3] = {
        {(uintptr_t)from, 0}, {(uintptr_t)to, (uint64_t)(out * in)}, {(uintptr_t)scales, (uint64_t)out * sizeof *scales}};
    rapt_status status = rapt_measure(&rows, 1, 1, out, in, false, &r[0].bytes);
    for (int i = 0; i < 3 && status == RAPT_OK; i++) status = check_range(r[i]);
    if (status != RAPT_OK) return status;
    if (rapt_ranges_meet(r[0], r[1]) || rapt_ranges_meet(r[0], r[2]) || rapt_ranges_meet(r[1], r[2])) return RAPT_ERR_OVERLAP;
    enum { PART = RAPT_MAX_HEAD_DIM };
    int64_t bytes = rapt_row_bytes(type, 1);
    for (int64_t n = 0; n < out; n++) {
        const char *row = (const char *)from + n * row_stride;
        float part[PART];
        extent e = {0};
        for (int64_t i = 0; i < in; i += PART) {
            int64_t channels = in - i < PART ? in - i : PART;
            rapt_load_row(type, part, row + i * bytes, channels);
            extend(&e, part, channels);
        }
        scales[n] = factor_of(RAPT_INT8, &e);
        for (int64_t i = 0; i < in; i += PART) {
            int64_t channels = in - i < PART ? in - i : PART;
            rapt_load_row(type, part, row + i * bytes, channels);
            divide_by(part, channels, &e, scales[n]);
            store_row(RAPT_INT8, (char *)to + n * in + i, part, channels);
        }
    }
    return RAPT_OK;
}
