/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200112L
#include "calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../cli/aligned.h"
#include "random.h"
#include "reference.h"
#include "serial.h"

/* ---- The table of a call's memory ---------------------------------------------------------------------------------------- */

described now;

/* All structs of all calls. */
static struct {
    rapt_desc desc;
    rapt_args args;
    rapt_plan *plan;
    rapt_kv_append_desc append_desc;
    rapt_kv_append_args append_args;
    rapt_kv_copy_desc copy_desc;
    rapt_kv_copy_args copy_args;
    rapt_rope_args rope_args;
    rapt_decode_desc decode_desc;
    rapt_decode_args decode_args;
    rapt_decode_plan *decode_plan;
    rapt_linear_desc linear_desc;
    rapt_linear_args linear_args;
    rapt_linear_plan *linear_plan;
    rapt_linear_prepack_args prepack_args;
    rapt_norm_args norm_args;
    rapt_mha_desc mha_desc;
    rapt_mha_args mha_args;
    rapt_mha_plan *mha_plan;
    const rapt_states *sources;
    const float *const *o, *const *lse;
    float *o_out, *lse_out, *scales, *table;
    double *frequencies;
    const void *from;
    void *to;
    int64_t rows, in, out, row_stride;
    rapt_type type;
} s;

static void *const nowhere = (void *)(uintptr_t)1; /* of pointers that are not used */
static const char *prefix = "";                    /* before the names of fields */
static int64_t threads;

static numbers filling = ORDINARY;
static uint64_t filling_seed = 1;

void fill_calls_with(numbers which, uint64_t seed) { filling = which, filling_seed = seed; }

/* Small integers, and numbers of about the same size in any other type, wherever rows begin: each byte may be the one with most
 * of the exponent, so only some of its bits are drawn. */
static void fill(rapt_type type, unsigned char *at, size_t bytes) {
    static const struct {
        unsigned char exponent, drawn;
    } sizes[] = {[ORDINARY] = {0x3a, 0x81}, [TINY] = {0x00, 0x83}, [VARIOUS] = {0x40, 0x83}};
    const int size = filling == VARIOUS ? (int)below(VARIOUS + 1) : (int)filling;
    for (size_t i = 0; i < bytes; i++) {
        uint32_t bits = random_bits();
        at[i] = (unsigned char)(type == RAPT_BOOL   ? bits >> 31
                                : type == RAPT_BIT  ? bits >> 24
                                : type == RAPT_INT8 ? (bits >> 29) - 4
                                                    : (bits >> 24 & sizes[size].drawn) | sizes[size].exponent);
    }
}

static pointer *add_pointer(const char *owner, const char *field, void *slot, size_t bytes, size_t alignment, bool written) {
    if (now.pointers == MOST_POINTERS) abort();
    pointer *p = &now.at[now.pointers++];
    char *name = malloc(strlen(prefix) + strlen(field) + 1);
    if (!name || !(p->content = aligned_create(64, (bytes + 64) / 64 * 64))) abort();
    strcat(strcpy(name, prefix), field);
    *p = (pointer){owner, field, name, slot, p->content, bytes, alignment, written, false, p->content};
    memset(p->content, 0x5a, bytes);
    memcpy(slot, &p->at, sizeof p->at);
    return p;
}

static void add_twins(const char *output, const char *input) {
    now.twins[now.twin_count++] = (struct twins){output, input, false};
}
static void add_part(const char *output, const char *input) { now.twins[now.twin_count++] = (struct twins){output, input, true}; }

const struct twins *twins_of(const pointer *a, const pointer *b) {
    for (const struct twins *t = now.twins; t < now.twins + now.twin_count; t++)
        if ((!strcmp(t->output, a->name) && !strcmp(t->input, b->name)) ||
            (!strcmp(t->output, b->name) && !strcmp(t->input, a->name)))
            return t;
    return NULL;
}

static void add_unused(const char *name, int64_t *number) {
    if (now.unused_count == (int)(sizeof now.unused / sizeof *now.unused)) abort();
    now.unused[now.unused_count].name = name;
    now.unused[now.unused_count++].number = number;
}

/* A struct's field, as add_pointer and those below take it. */
#define OF(type)                                                                                                                 \
    type:                                                                                                                        \
    #type
#define OWNER(object)                                                                                                            \
    _Generic(*(object),                                                                                                          \
        OF(rapt_desc),                                                                                                           \
        OF(rapt_args),                                                                                                           \
        OF(rapt_states),                                                                                                         \
        OF(rapt_rope),                                                                                                           \
        OF(rapt_rope_table),                                                                                                     \
        OF(rapt_kv_append_args),                                                                                                 \
        OF(rapt_kv_copy_args),                                                                                                   \
        OF(rapt_rope_args),                                                                                                      \
        OF(rapt_decode_args),                                                                                                    \
        OF(rapt_linear_args),                                                                                                    \
        OF(rapt_linear_prepack_args),                                                                                            \
        OF(rapt_norm_args),                                                                                                      \
        OF(rapt_mha_args))
#define FIELD(object, member) OWNER(object), #member, &(object)->member

/* Strides of a tensor, dense but for odd gaps; the bytes from its first to its last. A length of -n: n times the same. Those of
 * dimensions that are not there need not be set. */
static size_t set_strides(const char *name, int64_t *const strides[], const int64_t lengths[], int n, int64_t row) {
    int64_t span = row, empty = row == 0;
    for (int i = n - 1; i >= 0; i--) {
        *strides[i] = lengths[i] < 0 ? 0 : span + 3;
        if (lengths[i] > 0) span += (lengths[i] - 1) * *strides[i];
        empty |= lengths[i] == 0;
    }
    for (int i = 0; i < n; i++)
        if (empty || lengths[i] == 1 || lengths[i] == -1) add_unused(name, strides[i]);
    return empty ? 0 : (size_t)span;
}

static void *add_tensor(const char *owner, const char *field, void *slot, rapt_layout *l, rapt_type type, int64_t batch,
                        int64_t heads, int64_t tokens, int64_t elements, bool written) {
    const int64_t lengths[] = {batch, heads, tokens}, row = reference_row_bytes(type, elements);
    int64_t *const strides[] = {&l->batch_stride, &l->head_stride, &l->token_stride};
    l->type = type;
    pointer *p = add_pointer(owner, field, slot, set_strides(field, strides, lengths, 3, row), 1, written);
    for (int64_t b = 0; b < (batch < 0 ? 1 : batch) && p->bytes; b++) /* gaps are alike everywhere */
        for (int64_t h = 0; h < (heads < 0 ? 1 : heads); h++)
            for (int64_t i = 0; i < (tokens < 0 ? 1 : tokens); i++)
                fill(type, p->content + b * l->batch_stride + h * l->head_stride + i * l->token_stride, (size_t)row);
    return p->content;
}

/* Rows of tokens without heads. */
static void *add_rows(const char *owner, const char *field, void *slot, rapt_layout *l, rapt_type type, int64_t batch,
                      int64_t tokens, int64_t channels, bool written) {
    return add_tensor(owner, field, slot, l, type, batch, 1, tokens, channels, written);
}

/* Scales of K or V: of tokens, or of channels. */
static void add_scales(const char *owner, const char *field, void *slot, rapt_scales *l, int64_t batch, int64_t heads,
                       int64_t tokens, int64_t channels, bool written) {
    const int64_t lengths[] = {batch, heads, channels ? channels : tokens};
    int64_t *const strides[] = {&l->batch_stride, &l->head_stride, channels ? &l->channel_stride : &l->token_stride};
    l->present = 1;
    pointer *p = add_pointer(owner, field, slot, set_strides(field, strides, lengths, 3, 4), 1, written);
    fill(RAPT_F32, p->content, p->bytes);
}

static void add_floats(const char *owner, const char *field, void *slot, int64_t n, bool written) {
    pointer *p = add_pointer(owner, field, slot, (size_t)n * 4, 4, written);
    fill(RAPT_F32, p->content, p->bytes);
}

/* first, first + step, ... */
static int32_t *add_integers(const char *owner, const char *field, void *slot, int64_t n, int64_t first, int64_t step) {
    int32_t *values = (int32_t *)(void *)add_pointer(owner, field, slot, (size_t)n * 4, 4, false)->content;
    for (int64_t i = 0; i < n; i++) values[i] = (int32_t)(first + i * step);
    return values;
}

static void add_frequencies(rapt_rope *rope, int64_t channels, bool table) {
    const char *before = prefix;
    rope->channels = channels;
    if (table) return;
    prefix = "rope.";
    double *f = (double *)(void *)add_pointer(FIELD(rope, frequencies), (size_t)channels / 2 * 8, 8, false)->content;
    for (int64_t i = 0; i < channels / 2; i++) f[i] = 1.0 / (double)(i + 1);
    prefix = before;
}

static void add_rotary_table(rapt_rope_table *t, int64_t channels, int64_t positions) {
    const char *before = prefix;
    prefix = "rope_table.";
    *t = (rapt_rope_table){.type = RAPT_F16, .positions = positions, .row_stride = channels / 2 * 2 + 3};
    size_t bytes = (size_t)((positions - 1) * t->row_stride + channels / 2 * 2);
    fill(RAPT_F16, add_pointer(FIELD(t, c), bytes, 1, false)->content, bytes);
    fill(RAPT_F16, add_pointer(FIELD(t, s), bytes, 1, false)->content, bytes);
    prefix = before;
}

static void add_plan(void *slot, size_t bytes) {
    prefix = "";
    add_pointer("", "plan", slot, bytes, 8, false)->plan = true;
}

static void add_workspace(const char *owner, void *slot, size_t *given, size_t bytes) {
    prefix = "";
    *given = bytes;
    add_pointer(owner, "workspace", slot, bytes, RAPT_WORKSPACE_ALIGNMENT, true);
}

void place_pointers(int last) {
    for (int i = 0; i < now.pointers; i++) memcpy(now.at[i].slot, &now.at[i].at, sizeof now.at[i].at);
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < now.pointers; i++)
            if (now.at[i].bytes && now.at[i].at && (i == last ? 2 : now.at[i].written ? 0 : 1) == round)
                memcpy(now.at[i].at, now.at[i].content, now.at[i].bytes);
}

unsigned char *place_anywhere(void) {
    size_t bytes = 0;
    for (int i = 0; i < now.pointers; i++) bytes += now.at[i].bytes / 64 * 64 + 128;
    unsigned char *const memory = aligned_create(64, bytes), *at = memory;
    if (!at) abort();
    for (int i = 0; i < now.pointers; i++) {
        now.at[i].at = now.at[i].bytes ? at : NULL;
        at += now.at[i].bytes / 64 * 64 + 128;
    }
    place_pointers(-1);
    return memory;
}

/* ---- Ways to call -------------------------------------------------------------------------------------------------------- */

static rapt_status each_thread(rapt_status (*share)(int64_t ith, int64_t nth), int64_t nth) {
    rapt_status status = RAPT_OK;
    for (int64_t ith = 0; ith < nth && status == RAPT_OK; ith++) status = share(ith, nth);
    return status;
}

static int phase; /* of the shares of a phase */
static rapt_status each_phase(rapt_status (*share)(int64_t ith, int64_t nth), int64_t nth, int phases) {
    rapt_status status = RAPT_OK;
    for (phase = 0; phase < phases && status == RAPT_OK; phase++) status = each_thread(share, nth);
    return status;
}

/* Functions of an api, named in the first place, by the call that they make. */
#define ALONE(name, ...)                                                                                                         \
    static rapt_status name(int64_t nth) { return (void)nth, __VA_ARGS__; }

/* All phases, one after the other: attend_phase, decode_phase, mha_phase; and attend_phase_share and so on, of one thread. */
#define PHASED(name, query, plan, info_type, ...)                                                                                \
    static rapt_status name##_share(int64_t ith, int64_t nth) { return __VA_ARGS__; }                                            \
    static rapt_status name(int64_t nth) {                                                                                       \
        info_type info = {.size = sizeof info};                                                                                  \
        rapt_status status = query(plan, &info);                                                                                 \
        return status == RAPT_OK ? each_phase(name##_share, nth, info.phases) : status;                                          \
    }

/* Three functions of what has one phase, as of append: append, append_parallel, append_share, and append_of_thread for the
 * latter. So of merge_states, copy, rope, linear, layer_norm, rms_norm. */
#define ONE_PHASE(name, prefix, ...)                                                                                             \
    ALONE(name, prefix##_run(__VA_ARGS__))                                                                                       \
    ALONE(name##_parallel, prefix##_run_parallel(__VA_ARGS__, nth, serial, NULL))                                                \
    static rapt_status name##_of_thread(int64_t ith, int64_t nth) { return prefix##_run_share(__VA_ARGS__, ith, nth); }          \
    ALONE(name##_share, each_thread(name##_of_thread, nth))
#define WAYS(name, prefix)                                                                                                       \
    {                                                                                                                            \
        {prefix "_run", 1, name}, {prefix "_run_parallel", 2, name##_parallel}, { prefix "_run_share", 2, name##_share }         \
    }

/* explain_attention, explain_merge_states, explain_merge, explain_append, explain_copy, explain_rope, explain_decode,
 * explain_linear, explain_layer_norm, explain_rms_norm, explain_weights, explain_groups, explain_mha. */
#define EXPLAINED(name, ...)                                                                                                     \
    static rapt_status explain_##name(int64_t nth, char *text, size_t bytes) { return (void)nth, __VA_ARGS__; }

/* Explains a plan, and makes it if that finds nothing wrong. */
#define PLANNED(name, explain, init, plan, desc)                                                                                 \
    static rapt_status name(char *text, size_t bytes) {                                                                          \
        rapt_status status = explain(desc, text, bytes);                                                                         \
        return status == RAPT_OK ? init(plan, desc) : status;                                                                    \
    }

/* ---- Attention ----------------------------------------------------------------------------------------------------------- */

enum {
    LSE = 1 << 0,
    MASK = 1 << 1,
    BITS = 1 << 2, /* the mask */
    MAP = 1 << 3,
    BIAS = 1 << 4,
    SHORT = 1 << 5,   /* fewer columns than positions */
    ONE_KEY = 1 << 6, /* one column */
    ALIBI = 1 << 7,
    SINKS = 1 << 8,
    BY_TOKEN = 1 << 9, /* scales */
    BY_CHANNEL = 1 << 10,
    LENGTHS = 1 << 11,
    PREFIXES = 1 << 12,
    RINGS = 1 << 13,
    OFFSETS = 1 << 14,
    SCORES = 1 << 15,
    WEIGHTS = 1 << 16, /* scores of that stage */
    RAGGED = 1 << 17,
    RAGGED_KEYS = 1 << 18,
    PAGES = 1 << 19,
    GATHERED = 1 << 20, /* pages of one key, a table for each query */
    CSR = 1 << 21,
    LAST_PAGE = 1 << 22,
    PART = 1 << 23, /* unmerged, of longer sequences */
    INTEGERS = 1 << 24,
    BF16 = 1 << 25, /* arithmetic, also of the others that have one */

    /* Of the others. */
    TABLE = 1 << 26, /* rotary embedding by cosines and sines */
    CROSS = 1 << 27, /* of multi-head attention: Y and Z are not X */
    CACHE = 1 << 28,
    PACKED = 1 << 29,
    PLAIN = 1 << 30, /* without what is optional */
    OLD_KEYS = PART, /* of multi-head attention: the cache has all keys, there are no new ones */
};

enum { PAGE_KEYS = 16 };

static int64_t page_keys(const call *c) { return c->features & GATHERED ? 1 : PAGE_KEYS; }
static int64_t entry_pages(const call *c) { return (c->keys + page_keys(c) - 1) / page_keys(c); }

/* Lengths of K's dimensions. */
static int64_t key_batch(const call *c) {
    return c->features & PAGES ? c->batch * entry_pages(c) : c->features & RAGGED_KEYS ? c->batch > 0 : c->batch;
}
static int64_t key_tokens(const call *c) {
    return c->features & PAGES ? page_keys(c) : c->features & RAGGED_KEYS ? 1 + c->batch * c->keys : c->keys;
}
/* The batch and the tokens of Q. If they are ragged, one token before the first entry and one after the last belong to none. */
static int64_t query_batch(const call *c) { return c->features & RAGGED ? c->batch > 0 : c->batch; }
static int64_t query_tokens(const call *c) { return c->features & RAGGED ? 2 + c->batch * c->queries : c->queries; }

/* Tensors of queries, and of keys; their scales. */
static void add_queries(const call *c, const char *owner, const char *field, void *slot, rapt_layout *l, rapt_type type,
                        int64_t heads, int64_t channels, bool written) {
    add_tensor(owner, field, slot, l, type, query_batch(c), heads, query_tokens(c), channels, written);
}
static void add_keys(const call *c, const char *owner, const char *field, void *slot, rapt_layout *l, rapt_type type,
                     int64_t channels, bool written) {
    add_tensor(owner, field, slot, l, type, key_batch(c), c->kv_heads, key_tokens(c), channels, written);
}
static void add_token_scales(const call *c, const char *owner, const char *field, void *slot, rapt_scales *l, bool written) {
    add_scales(owner, field, slot, l, key_batch(c), c->kv_heads, key_tokens(c), 0, written);
}
static void add_channel_scales(const call *c, const char *owner, const char *field, void *slot, rapt_scales *l) {
    add_scales(owner, field, slot, l, c->batch, c->kv_heads, 0, c->d, false);
}

/* Pages in order of their numbers backwards, none of them twice. */
static void add_page_table(const call *c, const char *owner, const char *field, void *slot, rapt_layout *l, int64_t queries) {
    const bool csr = c->features & CSR;
    const int64_t per_entry = entry_pages(c), all = key_batch(c), row = csr ? all + 1 : per_entry;
    char *table = add_tensor(owner, field, slot, l, RAPT_I32, csr ? 1 : c->batch, c->kv_heads, queries, row, false);
    for (int64_t b = 0; b < (csr ? 1 : c->batch); b++)
        for (int64_t h = 0; h < c->kv_heads; h++)
            for (int64_t i = 0; i < (queries < 0 ? 1 : queries); i++)
                for (int64_t n = 0; n < row; n++) {
                    int32_t page = (int32_t)(csr ? (n ? all - n : -1) : all - 1 - b * per_entry - n);
                    memcpy(table + b * l->batch_stride + h * l->head_stride + i * l->token_stride + n * 4, &page, 4);
                }
}

/* All that is neither Q, K, V, O nor scales nor workspace. */
static void add_features(const call *c, rapt_desc *d, rapt_args *a) {
    const unsigned f = c->features;
    const int64_t first = f & PART ? RAPT_CHUNK_KEYS : 0, keys = first + c->keys, offset = f & OFFSETS ? 2 : 0;
    const int64_t columns = f & ONE_KEY ? 1 : f & SHORT ? keys / 2 + 1 : keys + offset;
    if (f & (SHORT | OFFSETS)) d->mask_keys = d->bias_keys = f & SHORT ? keys / 2 + 1 : keys + offset;
    if (f & SHORT) d->mask_rest = RAPT_REST_MASKED, d->bias_rest = RAPT_REST_ATTENDED;
    if (f & ONE_KEY) d->mask_key_stride = d->bias_key_stride = 0;
    if (f & MASK)
        add_tensor(FIELD(a, mask), &d->mask, f & BITS ? RAPT_BIT : RAPT_BOOL, c->batch, f & BITS ? c->heads : -c->heads,
                   c->queries, columns, false);
    if (f & MAP) {
        d->block_mask_queries = 2, d->block_mask_keys = 64;
        add_tensor(FIELD(a, block_mask), &d->block_mask, RAPT_BOOL, -c->batch, c->heads, (c->queries + 1) / 2, (keys + 63) / 64,
                   false);
    }
    if (f & BIAS)
        add_tensor(FIELD(a, bias), &d->bias, f & BITS ? RAPT_F16 : RAPT_F32, c->batch, c->heads, c->queries, columns, false);
    if (f & ALIBI) {
        d->alibi = RAPT_ALIBI_DISTANCE;
        add_tensor(FIELD(a, slopes), &d->slopes, RAPT_BF16, c->batch, c->heads, 1, 1, false);
    }
    if (f & SINKS) add_tensor(FIELD(a, sinks), &d->sinks, RAPT_F32, c->batch, c->heads, 1, 1, false);
    if (f & LSE) add_queries(c, FIELD(a, lse), &d->lse, RAPT_F32, c->heads, 1, true);
    if (f & SCORES) {
        d->scores_stage = f & WEIGHTS ? RAPT_SCORES_WEIGHTS : RAPT_SCORES_CAPPED;
        add_queries(c, FIELD(a, scores), &d->scores, RAPT_F32, c->heads, keys, true);
    }
    if (f & LENGTHS) add_integers(FIELD(a, kv_lengths), c->batch, keys, keys > 2 ? -2 : 0);
    if (f & PREFIXES) add_integers(FIELD(a, prefixes), c->batch, 3, 1);
    if (f & RINGS) add_integers(FIELD(a, ring_starts), c->batch, c->keys > 4 ? 1 : 0, c->keys > 4);
    if (f & OFFSETS) {
        add_integers(FIELD(a, q_offsets), c->batch, keys - 1, -1);
        add_integers(FIELD(a, k_offsets), c->batch, 0, 1);
    }
    if (f & RAGGED) add_integers(FIELD(d, q_starts), c->batch + 1, 1, c->queries);
    if (f & RAGGED_KEYS) add_integers(FIELD(d, k_starts), c->batch + 1, 1, c->keys);
    if (f & PAGES) {
        d->page_size = page_keys(c), d->pages = key_batch(c);
        add_page_table(c, FIELD(a, table), &d->table, f & GATHERED ? c->queries : -c->queries);
    }
    if (f & CSR) add_integers(FIELD(a, table_starts), c->batch + 1, 1, entry_pages(c));
    if (f & LAST_PAGE) add_integers(FIELD(a, last_page), c->batch, (c->keys - 1) % PAGE_KEYS + 1, f & CACHE ? -1 : 0);
    d->causal = f & (OFFSETS | PREFIXES) ? RAPT_CAUSAL_BOTTOM_RIGHT : RAPT_CAUSAL_NONE;
    d->prefix = f & PREFIXES ? 2 : 0;
    d->threads = c->keys > RAPT_CHUNK_KEYS ? 4 : 1; /* keys among threads */
    d->kv_first = first;
}

static rapt_arith arith_of_floats(const call *c) { return c->features & BF16 ? RAPT_BF16_DOT : RAPT_EXACT; }

static void set_sizes(const call *c, rapt_desc *d) {
    rapt_desc_init(d);
    d->batch = c->batch, d->heads = c->heads, d->kv_heads = c->kv_heads;
    d->q_len = query_tokens(c), d->kv_len = c->features & PAGES ? c->keys : key_tokens(c);
    d->d_k = c->d, d->d_v = c->d;
}

static void describe_attention(const call *c) {
    rapt_desc *d = &s.desc;
    rapt_args *a = &s.args;
    const unsigned f = c->features;
    const rapt_type type = f & (INTEGERS | BY_TOKEN) ? RAPT_INT8 : RAPT_F32;
    set_sizes(c, d);
    rapt_args_init(a);
    add_queries(c, FIELD(a, q), &d->q, f & BITS ? RAPT_F16 : RAPT_F32, c->heads, c->d, false);
    add_keys(c, FIELD(a, k), &d->k, type, c->d, false);
    add_keys(c, FIELD(a, v), &d->v, type, c->d, false);
    if (f & BY_TOKEN) add_token_scales(c, FIELD(a, k_scales), &d->k_scales, false);
    if (f & BY_CHANNEL) add_channel_scales(c, FIELD(a, k_scales), &d->k_scales);
    if (f & BY_TOKEN) add_token_scales(c, FIELD(a, v_scales), &d->v_scales, false);
    if (f & BY_CHANNEL) add_channel_scales(c, FIELD(a, v_scales), &d->v_scales);
    d->arith = f & INTEGERS ? RAPT_INT8_DOT : arith_of_floats(c);
    if (f & PART) {
        const int64_t lengths[] = {query_batch(c), c->heads, query_tokens(c), (c->keys + RAPT_CHUNK_KEYS - 1) / RAPT_CHUNK_KEYS};
        int64_t *const strides[] = {&d->states.batch_stride, &d->states.head_stride, &d->states.token_stride, &d->state_stride};
        d->unmerged = 1, d->states.type = RAPT_F32;
        add_pointer(FIELD(a, states), set_strides("states", strides, lengths, 4, (int64_t)RAPT_STATE_FLOATS(c->d) * 4), 1, true);
        d->o.type = RAPT_F32; /* is the merge's, but has to be sound */
        d->o.token_stride = 4 * c->d, d->o.head_stride = 4 * c->d * query_tokens(c),
        d->o.batch_stride = c->heads * d->o.head_stride;
    } else {
        add_queries(c, FIELD(a, o), &d->o, f & BITS ? RAPT_BF16 : RAPT_F32, c->heads, c->d, true);
    }
    add_features(c, d, a);
    size_t bytes = 0;
    add_plan(&s.plan, sizeof *s.plan);
    if (rapt_plan_init(s.plan, d) == RAPT_OK) rapt_workspace_size(s.plan, threads, &bytes);
    add_workspace("rapt_args", &a->workspace, &a->workspace_bytes, bytes);
}

PLANNED(make_plan, rapt_plan_explain, rapt_plan_init, s.plan, &s.desc)

EXPLAINED(attention, rapt_args_explain(s.plan, &s.args, nth, text, bytes))

ALONE(attend, rapt_run(s.plan, &s.args))
ALONE(attend_parallel, rapt_run_parallel(s.plan, &s.args, nth, serial, NULL))
ALONE(attend_share, rapt_run_share(s.plan, &s.args, 0, nth, NULL, NULL))
PHASED(attend_phase, rapt_plan_query, s.plan, rapt_plan_info, rapt_run_phase(s.plan, &s.args, phase, ith, nth))
static rapt_status attend_task(int64_t nth) {
    rapt_plan_info info = {.size = sizeof info};
    rapt_status status = rapt_plan_query(s.plan, &info);
    if (info.tasks[0] == 0) return rapt_args_explain(s.plan, &s.args, nth, NULL, 0); /* there is nothing to call */
    for (int p = 0; p < info.phases; p++)
        for (int64_t task = 0; task < info.tasks[p] && status == RAPT_OK; task++)
            status = rapt_run_task(s.plan, &s.args, p, task, nth - 1);
    return status;
}

static const api attention = {describe_attention,
                              make_plan,
                              "rapt_args_explain",
                              explain_attention,
                              {{"rapt_run", 1, attend},
                               {"rapt_run_parallel", 2, attend_parallel},
                               {"rapt_run_share", 1, attend_share},
                               {"rapt_run_phase", 2, attend_phase},
                               {"rapt_run_task", 2, attend_task}}};

/* ---- Merging ------------------------------------------------------------------------------------------------------------- */

static void describe_merge_states(const call *c) {
    rapt_desc *d = &s.desc;
    rapt_args *a = &s.args;
    set_sizes(c, d);
    rapt_args_init(a);
    d->q = d->k = d->v = d->states = rapt_layout_bhsd(RAPT_F32, c->heads, query_tokens(c), c->d);
    d->states = rapt_layout_bhsd(RAPT_F32, c->heads, query_tokens(c), (int64_t)RAPT_STATE_FLOATS(c->d));
    d->unmerged = 1;
    add_queries(c, FIELD(a, o), &d->o, RAPT_F16, c->heads, c->d, true);
    add_queries(c, FIELD(a, lse), &d->lse, RAPT_F32, c->heads, 1, true);
    add_tensor(FIELD(a, sinks), &d->sinks, RAPT_BF16, c->batch, c->heads, 1, 1, false);
    add_channel_scales(c, FIELD(a, v_scales), &d->v_scales);
    if (c->features & RAGGED) add_integers(FIELD(d, q_starts), c->batch + 1, 1, c->queries);
    rapt_states *sources =
        (rapt_states *)(void *)add_pointer("rapt_merge_states_run_share", "sources", &s.sources, 2 * sizeof *sources, 8, false)
            ->content;
    for (int i = 0; i < 2; i++) {
        rapt_states *of = &sources[i];
        const int64_t lengths[] = {query_batch(c), c->heads, query_tokens(c), of->chunks = 1 + i};
        int64_t *const strides[] = {&of->batch_stride, &of->head_stride, &of->token_stride, &of->state_stride};
        prefix = i ? "sources[1]." : "sources[0].";
        pointer *p = add_pointer(FIELD(of, at), set_strides("sources", strides, lengths, 4, (int64_t)RAPT_STATE_FLOATS(c->d) * 4),
                                 1, false);
        fill(RAPT_F32, p->content, p->bytes);
    }
    add_plan(&s.plan, sizeof *s.plan);
}

EXPLAINED(merge_states, rapt_merge_states_explain(s.plan, &s.args, s.sources, 2, text, bytes))
ONE_PHASE(merge_states, rapt_merge_states, s.plan, &s.args, s.sources, 2)
static const api merging_states = {describe_merge_states, make_plan, "rapt_merge_states_explain", explain_merge_states,
                                   WAYS(merge_states, "rapt_merge_states")};

static void describe_merge(const call *c) {
    s.rows = c->queries, s.out = c->d;
    add_floats("rapt_merge", "o_out", &s.o_out, s.rows * s.out, true);
    add_floats("rapt_merge", "lse_out", &s.lse_out, s.rows, true);
    float **o = (float **)(void *)add_pointer("rapt_merge", "o", &s.o, 2 * sizeof *o, sizeof *o, false)->content;
    float **lse = (float **)(void *)add_pointer("rapt_merge", "lse", &s.lse, 2 * sizeof *lse, sizeof *lse, false)->content;
    add_floats("rapt_merge", "o[0]", &o[0], s.rows * s.out, false);
    add_floats("rapt_merge", "o[1]", &o[1], s.rows * s.out, false);
    add_floats("rapt_merge", "lse[0]", &lse[0], s.rows, false);
    add_floats("rapt_merge", "lse[1]", &lse[1], s.rows, false);
    add_twins("o_out", "o[0]"), add_twins("o_out", "o[1]");
    add_twins("lse_out", "lse[0]"), add_twins("lse_out", "lse[1]");
}

EXPLAINED(merge, rapt_merge_explain(2, s.rows, s.out, s.o, s.lse, s.o_out, s.lse_out, text, bytes))
ALONE(merge, rapt_merge(2, s.rows, s.out, s.o, s.lse, s.o_out, s.lse_out))
static const api merging = {describe_merge, NULL, "rapt_merge_explain", explain_merge, {{"rapt_merge", 1, merge}}};

/* ---- Caches -------------------------------------------------------------------------------------------------------------- */

/* K of f32 with scales of channels, V of int8 with scales that are found. PLAIN: K of f32 and V of bf16, as they come. */
static void describe_append(const call *c) {
    rapt_kv_append_desc *d = &s.append_desc;
    rapt_kv_append_args *a = &s.append_args;
    const unsigned f = c->features;
    rapt_kv_append_desc_init(d), rapt_kv_append_args_init(a);
    d->batch = c->batch, d->kv_heads = c->kv_heads, d->tokens = query_tokens(c), d->kv_len = c->keys, d->d_k = d->d_v = c->d;
    add_keys(c, FIELD(a, k), &d->k, RAPT_F32, c->d, true);
    add_keys(c, FIELD(a, v), &d->v, f & PLAIN ? RAPT_BF16 : RAPT_INT8, c->d, true);
    if (!(f & PLAIN)) add_channel_scales(c, FIELD(a, k_scales), &d->k_scales);
    if (!(f & PLAIN)) add_token_scales(c, FIELD(a, v_scales), &d->v_scales, true);
    add_queries(c, FIELD(a, new_k), &d->new_k, f & PLAIN ? RAPT_BF16 : RAPT_F32, c->kv_heads, c->d, false);
    add_queries(c, FIELD(a, new_v), &d->new_v, f & PLAIN ? RAPT_F32 : RAPT_F16, c->kv_heads, c->d, false);
    add_integers(FIELD(a, starts), c->batch, c->keys - c->queries, -1);
    if (!(f & PLAIN)) add_integers(FIELD(a, positions), query_batch(c) * query_tokens(c), 3, 1);
    if (f & RAGGED) add_integers(FIELD(a, token_starts), c->batch + 1, 1, c->queries);
    else add_integers(FIELD(a, lengths), c->batch, c->queries, c->queries > 2 ? -1 : 0);
    if (f & RINGS) add_integers(FIELD(a, ring_starts), c->batch, 1, 1);
    if (f & PAGES) {
        d->page_size = page_keys(c), d->pages = key_batch(c);
        add_page_table(c, FIELD(a, table), &d->table, -1);
    }
    if (f & CSR) add_integers(FIELD(a, table_starts), c->batch + 1, 1, entry_pages(c));
    if (!(f & PLAIN)) add_frequencies(&d->rope, c->d, f & TABLE);
    if (f & TABLE) add_rotary_table(&a->rope_table, c->d, 3 + query_batch(c) * query_tokens(c));
}

EXPLAINED(append, rapt_kv_append_explain(&s.append_desc, &s.append_args, text, bytes))
ONE_PHASE(append, rapt_kv_append, &s.append_desc, &s.append_args)
static const api appending = {describe_append, NULL, "rapt_kv_append_explain", explain_append, WAYS(append, "rapt_kv_append")};

/* CROSS: from another cache. */
static void describe_copy(const call *c) {
    rapt_kv_copy_desc *d = &s.copy_desc;
    rapt_kv_copy_args *a = &s.copy_args;
    rapt_kv_copy_desc_init(d), rapt_kv_copy_args_init(a);
    d->entries = c->batch, d->kv_heads = c->kv_heads, d->tokens = c->keys, d->d_k = c->d, d->d_v = c->d;
    const bool other = c->features & CROSS;
    for (int from = other; from >= 0; from--) { /* both have the same layout; its unused strides are noted once */
        now.unused_count = 0;
        add_tensor("rapt_kv_copy_args", from ? "from_k" : "k", from ? (void *)&a->from_k : &a->k, &d->k, RAPT_INT8, c->batch,
                   c->kv_heads, c->keys, c->d, !from);
        add_tensor("rapt_kv_copy_args", from ? "from_v" : "v", from ? (void *)&a->from_v : &a->v, &d->v, RAPT_F16, c->batch,
                   c->kv_heads, c->keys, c->d, !from);
        add_scales("rapt_kv_copy_args", from ? "from_k_scales" : "k_scales", from ? (void *)&a->from_k_scales : &a->k_scales,
                   &d->k_scales, c->batch, c->kv_heads, c->keys, 0, !from);
        add_scales("rapt_kv_copy_args", from ? "from_v_scales" : "v_scales", from ? (void *)&a->from_v_scales : &a->v_scales,
                   &d->v_scales, c->batch, c->kv_heads, c->keys, 0, !from);
    }
    const rapt_kv_range ranges[] = {{0, 0, (int32_t)c->batch - 1, 1, (int32_t)c->keys - 1}, {0, 1, 0, 0, (int32_t)c->keys - 1}};
    memcpy(add_pointer(FIELD(a, ranges), sizeof ranges, 4, false)->content, ranges, sizeof ranges);
    a->count = 2;
}

EXPLAINED(copy, rapt_kv_copy_explain(&s.copy_desc, &s.copy_args, text, bytes))
ONE_PHASE(copy, rapt_kv_copy, &s.copy_desc, &s.copy_args)
static const api copying = {describe_copy, NULL, "rapt_kv_copy_explain", explain_copy, WAYS(copy, "rapt_kv_copy")};

static void describe_rope(const call *c) {
    rapt_rope_args *a = &s.rope_args;
    const unsigned f = c->features;
    rapt_rope_args_init(a);
    a->batch = c->batch, a->heads = c->heads, a->tokens = query_tokens(c), a->d = c->d;
    add_queries(c, FIELD(a, to), &a->out, RAPT_F32, c->heads, c->d, true);
    add_queries(c, FIELD(a, from), &a->in, f & TABLE ? RAPT_F16 : RAPT_F32, c->heads, c->d, false);
    if (!(f & TABLE)) add_twins("to", "from");
    add_integers(FIELD(a, starts), c->batch, 1, 2);
    if (f & RAGGED) add_integers(FIELD(a, token_starts), c->batch + 1, 1, c->queries);
    else add_integers(FIELD(a, lengths), c->batch, c->queries, c->queries > 2 ? -1 : 0);
    if (!(f & PLAIN)) add_integers(FIELD(a, positions), query_batch(c) * query_tokens(c), 3, 1);
    add_frequencies(&a->rope, c->d, f & TABLE);
    if (f & TABLE) add_rotary_table(&a->rope_table, c->d, 3 + query_batch(c) * query_tokens(c));
}

EXPLAINED(rope, rapt_rope_explain(&s.rope_args, text, bytes))
ONE_PHASE(rope, rapt_rope, &s.rope_args)
static const api rotating = {describe_rope, NULL, "rapt_rope_explain", explain_rope, WAYS(rope, "rapt_rope")};

/* ---- The step of a decoder ----------------------------------------------------------------------------------------------- */

/* PLAIN: V is not written, whether it is a part of K or not. */
static void describe_decode(const call *c) {
    rapt_desc *d = &s.desc;
    rapt_args *a = &s.args;
    rapt_decode_desc *dd = &s.decode_desc;
    rapt_decode_args *da = &s.decode_args;
    const unsigned f = c->features;
    const bool values = !(f & PLAIN);
    const rapt_type type = f & BY_TOKEN ? RAPT_INT8 : RAPT_F16;
    set_sizes(c, d);
    d->arith = arith_of_floats(c);
    rapt_args_init(a), rapt_decode_desc_init(dd), rapt_decode_args_init(da);
    dd->attention = d, da->attention = a;
    a->k = a->v = a->workspace = nowhere, a->k_scales = a->v_scales = nowhere;
    add_keys(c, FIELD(da, k), &d->k, type, c->d, true);
    add_keys(c, FIELD(da, v), &d->v, type, c->d, values);
    if (f & BY_TOKEN) {
        add_token_scales(c, FIELD(da, k_scales), &d->k_scales, true);
        add_token_scales(c, FIELD(da, v_scales), &d->v_scales, values);
    }
    add_queries(c, FIELD(da, new_k), &dd->new_k, RAPT_F32, c->kv_heads, c->d, false);
    if (!values) add_part("k", "v"), add_part("k_scales", "v_scales");
    if (values) add_queries(c, FIELD(da, new_v), &dd->new_v, RAPT_BF16, c->kv_heads, c->d, false);
    add_integers(FIELD(da, starts), c->batch, c->keys - c->queries, -1);
    if (f & OFFSETS) add_integers(FIELD(da, positions), query_batch(c) * query_tokens(c), 3, 1);
    add_frequencies(&dd->rope, c->d, f & TABLE);
    if (f & TABLE) add_rotary_table(&da->rope_table, c->d, c->keys + 3 + query_batch(c) * query_tokens(c));
    prefix = "attention.";
    add_queries(c, FIELD(a, q), &d->q, RAPT_F16, c->heads, c->d, false);
    add_queries(c, FIELD(a, o), &d->o, RAPT_F32, c->heads, c->d, true);
    add_features(c, d, a);
    size_t bytes = 0;
    add_plan(&s.decode_plan, sizeof *s.decode_plan);
    if (rapt_decode_plan_init(s.decode_plan, dd) == RAPT_OK) rapt_decode_workspace_size(s.decode_plan, threads, &bytes);
    add_workspace("rapt_decode_args", &da->workspace, &da->workspace_bytes, bytes);
}

PLANNED(make_decode_plan, rapt_decode_explain, rapt_decode_plan_init, s.decode_plan, &s.decode_desc)
EXPLAINED(decode, rapt_decode_args_explain(s.decode_plan, &s.decode_args, nth, text, bytes))
ALONE(decode, rapt_decode_run(s.decode_plan, &s.decode_args))
ALONE(decode_parallel, rapt_decode_run_parallel(s.decode_plan, &s.decode_args, nth, serial, NULL))
ALONE(decode_share, rapt_decode_run_share(s.decode_plan, &s.decode_args, 0, nth, NULL, NULL))
PHASED(decode_phase, rapt_decode_plan_query, s.decode_plan, rapt_plan_info,
       rapt_decode_run_phase(s.decode_plan, &s.decode_args, phase, ith, nth))
static const api decoding = {describe_decode,
                             make_decode_plan,
                             "rapt_decode_args_explain",
                             explain_decode,
                             {{"rapt_decode_run", 1, decode},
                              {"rapt_decode_run_parallel", 2, decode_parallel},
                              {"rapt_decode_run_share", 1, decode_share},
                              {"rapt_decode_run_phase", 2, decode_phase}}};

/* ---- Linear layers, normalisation, quantisation ---------------------------------------------------------------------------- */

/* heads: channels of the output. */
static void describe_linear(const call *c) {
    rapt_linear_desc *d = &s.linear_desc;
    rapt_linear_args *a = &s.linear_args;
    const bool gate = c->features & CROSS;
    rapt_linear_desc_init(d), rapt_linear_args_init(a);
    d->batch = c->batch, d->tokens = c->queries, d->in = c->d, d->out = c->heads;
    d->activation = RAPT_SILU, d->arith = arith_of_call(c);
    add_rows(FIELD(a, y), &d->y, RAPT_F32, c->batch, c->queries, c->heads, true);
    add_rows(FIELD(a, x), &d->x, RAPT_F16, c->batch, c->queries, c->d, false);
    add_rows(FIELD(a, weight), &d->weight, gate || c->features & INTEGERS ? RAPT_INT8 : RAPT_F32, 1, c->heads, c->d, false);
    if (!(c->features & PLAIN)) {
        add_floats(FIELD(a, bias), c->heads, false);
        add_floats(FIELD(a, scales), c->heads, false);
        add_rows(FIELD(a, residual), &d->residual, RAPT_F32, c->batch, c->queries, c->heads, false);
        add_twins("y", "residual");
    } else {
        add_unused("residual", &d->residual.batch_stride), add_unused("residual", &d->residual.token_stride);
    }
    if (gate) {
        add_rows(FIELD(a, gate), &d->gate, RAPT_Q8_0, 1, c->heads, c->d, false);
        add_floats(FIELD(a, gate_bias), c->heads, false);
        add_floats(FIELD(a, gate_scales), c->heads, false);
    }
    size_t bytes = 0;
    add_plan(&s.linear_plan, sizeof *s.linear_plan);
    if (rapt_linear_plan_init(s.linear_plan, d) == RAPT_OK) rapt_linear_workspace_size(s.linear_plan, threads, &bytes);
    add_workspace("rapt_linear_args", &a->workspace, &a->workspace_bytes, bytes);
    if (c->features & PLAIN) return;
    rapt_linear_prepack_args *const p = &s.prepack_args;
    rapt_linear_prepack_args_init(p);
    p->weight = a->weight, p->gate = a->gate;
    rapt_linear_prepacked_size(s.linear_plan, &p->prepacked_bytes);
    p->prepacked = add_pointer(FIELD(a, prepacked), p->prepacked_bytes, RAPT_WORKSPACE_ALIGNMENT, false)->content;
    if (gate)
        p->gate_prepacked = add_pointer(FIELD(a, gate_prepacked), p->prepacked_bytes, RAPT_WORKSPACE_ALIGNMENT, false)->content;
    if (rapt_linear_prepack_run(s.linear_plan, p) != RAPT_OK) abort();
}

PLANNED(make_linear_plan, rapt_linear_explain, rapt_linear_plan_init, s.linear_plan, &s.linear_desc)
EXPLAINED(linear, rapt_linear_args_explain(s.linear_plan, &s.linear_args, nth, text, bytes))
ONE_PHASE(linear, rapt_linear, s.linear_plan, &s.linear_args)
static const api mapping = {describe_linear, make_linear_plan, "rapt_linear_args_explain", explain_linear,
                            WAYS(linear, "rapt_linear")};

static void describe_prepacking(const call *c) {
    rapt_linear_desc *d = &s.linear_desc;
    rapt_linear_prepack_args *a = &s.prepack_args;
    rapt_linear_desc_init(d), rapt_linear_prepack_args_init(a);
    d->in = c->d, d->out = c->heads, d->x.type = d->y.type = RAPT_F32, d->arith = arith_of_call(c);
    add_rows(FIELD(a, weight), &d->weight, RAPT_INT8, 1, c->heads, c->d, false);
    if (c->features & CROSS) add_rows(FIELD(a, gate), &d->gate, RAPT_Q8_0, 1, c->heads, c->d, false);
    add_plan(&s.linear_plan, sizeof *s.linear_plan);
    if (rapt_linear_plan_init(s.linear_plan, d) == RAPT_OK) rapt_linear_prepacked_size(s.linear_plan, &a->prepacked_bytes);
    add_pointer(FIELD(a, prepacked), a->prepacked_bytes, RAPT_WORKSPACE_ALIGNMENT, true);
    if (c->features & CROSS) add_pointer(FIELD(a, gate_prepacked), a->prepacked_bytes, RAPT_WORKSPACE_ALIGNMENT, true);
}

EXPLAINED(prepacking, rapt_linear_prepack_args_explain(s.linear_plan, &s.prepack_args, nth, text, bytes))
ONE_PHASE(prepacking, rapt_linear_prepack, s.linear_plan, &s.prepack_args)
static const api packing = {describe_prepacking, make_linear_plan, "rapt_linear_prepack_args_explain", explain_prepacking,
                            WAYS(prepacking, "rapt_linear_prepack")};

static void describe_norm(const call *c, bool mean) {
    rapt_norm_args *a = &s.norm_args;
    rapt_norm_args_init(a);
    a->batch = c->batch, a->tokens = c->queries, a->channels = c->d;
    add_rows(FIELD(a, to), &a->y, RAPT_F32, c->batch, c->queries, c->d, true);
    add_rows(FIELD(a, from), &a->x, RAPT_F32, c->batch, c->queries, c->d, false);
    add_twins("to", "from");
    if (c->features & PLAIN) return;
    add_rows(FIELD(a, sum_to), &a->sum, RAPT_F32, c->batch, c->queries, c->d, true);
    add_rows(FIELD(a, residual_from), &a->residual, RAPT_F32, c->batch, c->queries, c->d, false);
    add_twins("sum_to", "from"), add_twins("sum_to", "residual_from");
    add_floats(FIELD(a, weight), c->d, false);
    add_floats(FIELD(a, bias), c->d, false);
    if (mean) add_floats(FIELD(a, mean), c->batch * c->queries, true);
    add_floats(FIELD(a, inverse_deviation), c->batch * c->queries, true);
}

static void describe_layer_norm(const call *c) { describe_norm(c, true); }
EXPLAINED(layer_norm, rapt_layer_norm_explain(&s.norm_args, text, bytes))
ONE_PHASE(layer_norm, rapt_layer_norm, &s.norm_args)
static const api normalising = {describe_layer_norm, NULL, "rapt_layer_norm_explain", explain_layer_norm,
                                WAYS(layer_norm, "rapt_layer_norm")};

static void describe_rms_norm(const call *c) { describe_norm(c, false); }
EXPLAINED(rms_norm, rapt_rms_norm_explain(&s.norm_args, text, bytes))
ONE_PHASE(rms_norm, rapt_rms_norm, &s.norm_args)
static const api rms_normalising = {describe_rms_norm, NULL, "rapt_rms_norm_explain", explain_rms_norm,
                                    WAYS(rms_norm, "rapt_rms_norm")};

static void describe_quantised(const call *c, const char *function, rapt_type from_type, rapt_type type) {
    int64_t *const strides[] = {&s.row_stride};
    const int64_t lengths[] = {c->heads}, row = reference_row_bytes(from_type, c->d);
    s.out = c->heads, s.in = c->d, s.type = from_type;
    pointer *from = add_pointer(function, "from", &s.from, set_strides("from", strides, lengths, 1, row), 1, false);
    fill(from_type, from->content, from->bytes);
    add_pointer(function, "to", &s.to, (size_t)(c->heads * reference_row_bytes(type, c->d)), 1, true);
    if (type == RAPT_INT8) add_floats(function, "scales", &s.scales, c->heads, true);
}

static void describe_weights(const call *c) { describe_quantised(c, "rapt_quantise_weights", RAPT_F32, RAPT_INT8); }
EXPLAINED(weights, rapt_quantise_weights_explain(s.out, s.in, s.type, s.row_stride, s.from, s.to, s.scales, text, bytes))
ALONE(weights, rapt_quantise_weights(s.out, s.in, s.type, s.row_stride, s.from, s.to, s.scales))
static const api quantising_weights = {
    describe_weights, NULL, "rapt_quantise_weights_explain", explain_weights, {{"rapt_quantise_weights", 1, weights}}};

static void describe_groups(const call *c) { describe_quantised(c, "rapt_quantise_groups", RAPT_F16, RAPT_Q8_0); }
EXPLAINED(groups, rapt_quantise_groups_explain(s.out, s.in, s.type, s.row_stride, s.from, RAPT_Q8_0, s.to, text, bytes))
ALONE(groups, rapt_quantise_groups(s.out, s.in, s.type, s.row_stride, s.from, RAPT_Q8_0, s.to))
static const api quantising_groups = {
    describe_groups, NULL, "rapt_quantise_groups_explain", explain_groups, {{"rapt_quantise_groups", 1, groups}}};

/* ---- Tables of positions ------------------------------------------------------------------------------------------------- */

static void describe_frequencies(const call *c) {
    add_pointer("rapt_rope_frequencies", "frequencies", &s.frequencies, (size_t)c->d / 2 * 8, 8, true);
    s.in = c->d;
}
ALONE(frequencies, rapt_rope_frequencies(10000.0, s.in, s.frequencies))
static const api finding_frequencies = {describe_frequencies, NULL, NULL, NULL, {{"rapt_rope_frequencies", 1, frequencies}}};

static void describe_sinusoids(const call *c) {
    s.rows = c->queries, s.in = c->d;
    add_floats("rapt_sinusoidal", "table", &s.table, s.rows * s.in, true);
}
ALONE(sinusoids, rapt_sinusoidal(5, s.rows, s.in, s.table))
static const api finding_sinusoids = {describe_sinusoids, NULL, NULL, NULL, {{"rapt_sinusoidal", 1, sinusoids}}};

static void describe_slopes(const call *c) { add_floats("rapt_alibi_slopes", "slopes", &s.table, s.rows = c->heads, true); }
ALONE(slopes, rapt_alibi_slopes(s.rows, s.table))
static const api finding_slopes = {describe_slopes, NULL, NULL, NULL, {{"rapt_alibi_slopes", 1, slopes}}};

/* ---- Multi-head attention ------------------------------------------------------------------------------------------------ */

/* Weights of a projection, with bias and scales. */
static void add_weights(const char *const fields[3], void *const slots[3], rapt_layout *l, rapt_type type, int64_t out,
                        int64_t in) {
    add_rows("rapt_mha_args", fields[0], slots[0], l, type, 1, out, in, false);
    add_floats("rapt_mha_args", fields[1], slots[1], out, false);
    add_floats("rapt_mha_args", fields[2], slots[2], out, false);
}
/* Three fields for add_weights, as of wq and bq: wq, bq and wq_scales. */
#define WEIGHTS_OF(of, bias_of)                                                                                                  \
    (const char *const[]){#of, #bias_of, #of "_scales"}, (void *const[]){&a->of, &a->bias_of, &a->of##_scales}, &d->of

static void add_mha_weights(const call *c, rapt_mha_desc *d, rapt_mha_args *a, int64_t in, int64_t out) {
    const unsigned f = c->features;
    const int64_t heads = c->heads * c->d, kv_heads = c->kv_heads * c->d;
    if (f & PACKED) {
        d->packed = 1;
        add_weights(WEIGHTS_OF(wq, bq), RAPT_INT8, heads + 2 * kv_heads, in);
        add_unused("wk", &d->wk.token_stride), add_unused("wv", &d->wv.token_stride);
    } else {
        add_weights(WEIGHTS_OF(wq, bq), RAPT_F32, heads, in);
        if (!(f & OLD_KEYS)) {
            add_weights(WEIGHTS_OF(wk, bk), RAPT_F16, kv_heads, in);
            add_weights(WEIGHTS_OF(wv, bv), RAPT_INT8, kv_heads, in);
        }
    }
    if (!(f & PLAIN)) add_weights(WEIGHTS_OF(wo, bo), RAPT_BF16, out, heads);
}

/* The rows of a projection, or of the output, laid out for the kernel. */
static void add_prepacked(const char *field, void *slot, const void *weight, rapt_layout layout, int64_t out, int64_t in) {
    rapt_linear_desc d;
    rapt_linear_plan plan;
    rapt_linear_prepack_args a;
    rapt_linear_desc_init(&d), rapt_linear_prepack_args_init(&a);
    d.in = in, d.out = out, d.weight = layout, d.x.type = d.y.type = RAPT_F32, d.arith = s.mha_desc.arith;
    if (rapt_linear_plan_init(&plan, &d) || rapt_linear_prepacked_size(&plan, &a.prepacked_bytes)) abort();
    a.weight = weight;
    a.prepacked = add_pointer("rapt_mha_args", field, slot, a.prepacked_bytes, RAPT_WORKSPACE_ALIGNMENT, false)->content;
    if (rapt_linear_prepack_run(&plan, &a) != RAPT_OK) abort();
}

static void add_prepacked_projections(const call *c, const rapt_mha_desc *d, rapt_mha_args *a, int64_t in, int64_t out) {
    const int64_t heads = c->heads * c->d, kv_heads = c->kv_heads * c->d;
    const char *const rows = a->wq;
    const int64_t stride = d->wq.token_stride;
    add_prepacked("wq_prepacked", &a->wq_prepacked, rows, d->wq, heads, in);
    if (c->features & PACKED) {
        add_prepacked("wk_prepacked", &a->wk_prepacked, rows + heads * stride, d->wq, kv_heads, in);
        add_prepacked("wv_prepacked", &a->wv_prepacked, rows + (heads + kv_heads) * stride, d->wq, kv_heads, in);
    } else if (!(c->features & OLD_KEYS)) {
        add_prepacked("wk_prepacked", &a->wk_prepacked, a->wk, d->wk, kv_heads, in);
        add_prepacked("wv_prepacked", &a->wv_prepacked, a->wv, d->wv, kv_heads, in);
    }
    if (!(c->features & PLAIN)) add_prepacked("wo_prepacked", &a->wo_prepacked, a->wo, d->wo, out, heads);
}

static void add_mha_cache(const call *c, rapt_desc *of, rapt_mha_args *a) {
    const unsigned f = c->features;
    const bool written = !(f & OLD_KEYS);
    add_keys(c, FIELD(a, k_cache), &of->k, f & BY_TOKEN ? RAPT_INT8 : RAPT_F32, c->d, written);
    add_keys(c, FIELD(a, v_cache), &of->v, f & BY_TOKEN ? RAPT_INT8 : RAPT_F32, c->d, written);
    if (f & BY_TOKEN) {
        add_token_scales(c, FIELD(a, k_scales), &of->k_scales, written);
        add_token_scales(c, FIELD(a, v_scales), &of->v_scales, written);
    }
    if (f & BY_CHANNEL) {
        add_channel_scales(c, FIELD(a, k_scales), &of->k_scales);
        add_channel_scales(c, FIELD(a, v_scales), &of->v_scales);
    }
}

/* CROSS: from Y and Z; PLAIN: without wo. */
static void describe_mha(const call *c) {
    rapt_desc *of = &s.desc;
    rapt_mha_desc *d = &s.mha_desc;
    rapt_mha_args *a = &s.mha_args;
    const unsigned f = c->features;
    const int64_t in = 8, out = f & PLAIN ? c->heads * c->d : in, batch = query_batch(c), tokens = query_tokens(c);
    const int64_t new_keys = f & OLD_KEYS ? 0 : !(f & CROSS) ? c->queries : f & CACHE ? c->queries + 1 : c->keys;
    const int64_t start = f & CACHE ? c->keys - new_keys : 0;
    set_sizes(c, of);
    rapt_args_init(&s.args), rapt_mha_desc_init(d), rapt_mha_args_init(a);
    d->attention = of, a->attention = &s.args, d->arith = of->arith = arith_of_floats(c);
    s.args.q = s.args.k = s.args.v = s.args.o = s.args.workspace = nowhere, s.args.k_scales = s.args.v_scales = nowhere;
    d->x_width = in, d->out_width = f & PLAIN ? 0 : in, d->keys = f & RAGGED_KEYS ? key_tokens(c) : new_keys;
    add_rows(FIELD(a, out), &d->out, RAPT_F32, batch, tokens, out, true);
    add_rows(FIELD(a, x), &d->x, RAPT_F32, batch, tokens, in, false);
    if (out == in) add_twins("out", "x");
    if (f & CROSS) {
        add_rows(FIELD(a, y), &d->y, RAPT_F16, f & RAGGED_KEYS ? 1 : c->batch, d->keys, in, false);
        add_rows(FIELD(a, z), &d->z, RAPT_BF16, f & RAGGED_KEYS ? 1 : c->batch, d->keys, in, false);
    }
    add_mha_weights(c, d, a, in, out);
    add_prepacked_projections(c, d, a, in, out);
    if (!(f & PLAIN)) {
        add_rows(FIELD(a, residual), &d->residual, RAPT_F32, batch, tokens, out, false);
        add_twins("out", "residual");
    }
    if (f & CACHE) add_mha_cache(c, of, a);
    if (f & CACHE) add_integers(FIELD(a, starts), c->batch, start, -1);
    if (!(f & PACKED)) {
        d->position_table = 1;
        a->table_positions = start + (new_keys > c->queries ? new_keys : c->queries);
        add_floats(FIELD(a, position_table), a->table_positions * in, false);
    }
    add_frequencies(&d->rope, c->d, f & TABLE);
    if (f & TABLE) add_rotary_table(&a->rope_table, c->d, c->keys + c->queries + 1);
    if (f & WEIGHTS) add_tensor(FIELD(a, weights), &d->weights, RAPT_F32, batch, c->heads, tokens, c->keys, true);
    prefix = "attention.";
    call rest = *c;
    rest.features &= f & WEIGHTS ? ~(unsigned)(SCORES | WEIGHTS | OLD_KEYS) : ~(unsigned)OLD_KEYS;
    add_features(&rest, of, &s.args);
    size_t bytes = 0;
    add_plan(&s.mha_plan, sizeof *s.mha_plan);
    if (rapt_mha_plan_init(s.mha_plan, d) == RAPT_OK) rapt_mha_workspace_size(s.mha_plan, threads, &bytes);
    add_workspace("rapt_mha_args", &a->workspace, &a->workspace_bytes, bytes);
}

PLANNED(make_mha_plan, rapt_mha_explain, rapt_mha_plan_init, s.mha_plan, &s.mha_desc)
EXPLAINED(mha, rapt_mha_args_explain(s.mha_plan, &s.mha_args, nth, text, bytes))
ALONE(mha, rapt_mha_run(s.mha_plan, &s.mha_args))
ALONE(mha_parallel, rapt_mha_run_parallel(s.mha_plan, &s.mha_args, nth, serial, NULL))
ALONE(mha_share, rapt_mha_run_share(s.mha_plan, &s.mha_args, 0, nth, NULL, NULL))
PHASED(mha_phase, rapt_mha_plan_query, s.mha_plan, rapt_mha_plan_info,
       rapt_mha_run_phase(s.mha_plan, &s.mha_args, phase, ith, nth))
static const api multi_head_attention = {describe_mha,
                                         make_mha_plan,
                                         "rapt_mha_args_explain",
                                         explain_mha,
                                         {{"rapt_mha_run", 1, mha},
                                          {"rapt_mha_run_parallel", 2, mha_parallel},
                                          {"rapt_mha_run_share", 1, mha_share},
                                          {"rapt_mha_run_phase", 2, mha_phase}}};

/* ---- All calls ----------------------------------------------------------------------------------------------------------- */

enum { ROWS = MASK | BIAS | MAP | ALIBI | SINKS, ENTRIES = LENGTHS | PREFIXES | RINGS | OFFSETS };

const call calls[] = {
    {"few queries", &attention, 2, 4, 2, 2, 70, 8, LSE | ROWS | ENTRIES | BY_TOKEN | SCORES | WEIGHTS},
    {"many queries", &attention, 2, 4, 2, 37, 70, 7, LSE | ROWS | BITS | SHORT | ENTRIES | BY_CHANNEL | SCORES},
    {"ragged", &attention, 2, 4, 2, 3, 67, 8,
     LSE | ROWS | ONE_KEY | BY_TOKEN | LENGTHS | RAGGED | RAGGED_KEYS | RINGS | SCORES | WEIGHTS},
    {"ragged, many queries", &attention, 2, 2, 1, 40, 65, 8,
     LSE | ROWS | BITS | BY_CHANNEL | RAGGED | RAGGED_KEYS | OFFSETS | PREFIXES},
    {"pages", &attention, 2, 4, 2, 2, 70, 8, LSE | ROWS | BY_TOKEN | PAGES | ENTRIES | SCORES},
    {"pages in rows, many queries", &attention, 2, 2, 2, 33, 70, 8, LSE | ROWS | BITS | BY_CHANNEL | PAGES | CSR | LAST_PAGE},
    {"pages in rows", &attention, 2, 4, 2, 1, 70, 8, BY_TOKEN | PAGES | CSR | LAST_PAGE | LENGTHS | RAGGED | RINGS},
    {"gathered keys", &attention, 2, 4, 2, 3, 33, 8, LSE | MASK | PAGES | GATHERED | LENGTHS},
    {"a part", &attention, 2, 4, 2, 3, 70, 8, MASK | BIAS | MAP | ALIBI | ENTRIES | BY_CHANNEL | PART | SCORES},
    {"a part, many queries", &attention, 2, 2, 2, 40, 530, 4,
     MASK | BIAS | MAP | BITS | SHORT | ALIBI | LENGTHS | BY_TOKEN | PART},
    {"integers", &attention, 2, 4, 2, 2, 70, 8, LSE | ROWS | ENTRIES | BY_TOKEN | INTEGERS | SCORES},
    {"integers, many queries", &attention, 1, 4, 2, 40, 70, 8, LSE | ROWS | BITS | BY_CHANNEL | INTEGERS},
    {"keys among threads", &attention, 1, 2, 1, 1, 1100, 4, LSE | SINKS | MASK | BY_TOKEN | LENGTHS | SCORES | WEIGHTS},
    {"bf16", &attention, 2, 4, 2, 2, 70, 8, LSE | ROWS | ENTRIES | BY_TOKEN | BF16 | SCORES},
    {"bf16, many queries", &attention, 1, 4, 2, 40, 70, 7, LSE | ROWS | BITS | BY_CHANNEL | BF16},
    {"bf16, keys among threads", &attention, 1, 2, 1, 1, 1100, 4, LSE | SINKS | MASK | LENGTHS | BF16},
    {"one of everything", &attention, 1, 1, 1, 1, 1, 8, LSE | ROWS | ENTRIES | BY_TOKEN | SCORES},
    {"one of everything, ragged", &attention, 1, 1, 1, 1, 1, 1, LSE | ROWS | RAGGED | RAGGED_KEYS | BY_CHANNEL | SCORES},
    {"one of everything, in a page", &attention, 1, 1, 1, 1, 1, 8, LSE | ROWS | BY_TOKEN | PAGES | CSR | SCORES},
    {"one of everything, a part", &attention, 1, 1, 1, 1, 1, 8, MASK | BIAS | MAP | ALIBI | BY_TOKEN | PART | LENGTHS},
    {"no keys", &attention, 2, 4, 2, 2, 0, 8, LSE | ALIBI | SINKS | MAP | LENGTHS | BY_TOKEN | SCORES | WEIGHTS},
    {"no keys, many queries", &attention, 2, 4, 2, 40, 0, 8, LSE | MASK | BIAS | ALIBI | SINKS | LENGTHS | BY_CHANNEL | SCORES},
    {"no keys in pages", &attention, 2, 4, 2, 2, 0, 8, LSE | PAGES | BY_TOKEN},
    {"no queries", &attention, 2, 4, 2, 0, 70, 8, LSE | ROWS | BY_TOKEN | LENGTHS},

    {"dense", &merging_states, 2, 4, 2, 3, 1, 8, 0},
    {"ragged", &merging_states, 2, 4, 2, 3, 1, 8, RAGGED},
    {"one of everything", &merging_states, 1, 1, 1, 1, 1, 1, 0},
    {"rows", &merging, 1, 1, 1, 7, 1, 5, 0},

    {"dense", &appending, 2, 1, 2, 5, 19, 8, RINGS},
    {"ragged, in pages", &appending, 2, 1, 2, 5, 40, 8, RAGGED | PAGES | TABLE},
    {"pages in rows", &appending, 2, 1, 2, 5, 40, 8, PAGES | CSR | RINGS | TABLE},
    {"as they come", &appending, 2, 1, 2, 5, 19, 8, PLAIN},
    {"one of everything", &appending, 1, 1, 1, 1, 1, 2, 0},
    {"one of everything, in a page", &appending, 1, 1, 1, 1, 1, 2, PAGES | CSR | RAGGED},
    {"within a cache", &copying, 2, 1, 2, 1, 9, 8, 0},
    {"from another", &copying, 2, 1, 2, 1, 9, 8, CROSS},
    {"one of everything", &copying, 1, 1, 1, 1, 1, 1, CROSS},
    {"dense", &rotating, 2, 3, 1, 5, 1, 8, 0},
    {"ragged", &rotating, 2, 3, 1, 5, 1, 8, RAGGED | TABLE},
    {"one of everything", &rotating, 1, 1, 1, 1, 1, 2, PLAIN},

    {"dense", &decoding, 2, 4, 2, 2, 20, 8, LSE | ROWS | LENGTHS | OFFSETS | PREFIXES | BY_TOKEN | RINGS | SCORES},
    {"ragged, in pages", &decoding, 2, 4, 2, 2, 40, 8, LSE | RAGGED | PAGES | TABLE},
    {"pages in rows", &decoding, 2, 4, 2, 2, 40, 8, LSE | ROWS | PAGES | CSR | BY_TOKEN | SCORES | WEIGHTS | RINGS},
    {"bf16", &decoding, 2, 4, 2, 2, 20, 8, LSE | ROWS | LENGTHS | BF16},
    {"V is there", &decoding, 2, 4, 2, 2, 20, 8, PLAIN | BY_TOKEN | TABLE},
    {"one of everything", &decoding, 1, 1, 1, 1, 1, 2, LSE | ROWS},

    {"tokens", &mapping, 2, 13, 1, 5, 1, 7, 0},
    {"a gate", &mapping, 2, 13, 1, 5, 1, 64, CROSS},
    {"many tokens", &mapping, 1, 20, 1, 70, 1, 33, PLAIN},
    {"many tokens and a gate", &mapping, 1, 20, 1, 70, 1, 64, CROSS},
    {"bf16", &mapping, 2, 13, 1, 5, 1, 7, BF16},
    {"bf16, many tokens and a gate", &mapping, 1, 20, 1, 70, 1, 64, CROSS | BF16},
    {"integers", &mapping, 2, 13, 1, 5, 1, 33, INTEGERS},
    {"integers, many tokens and a gate", &mapping, 1, 20, 1, 70, 1, 64, CROSS | INTEGERS},
    {"weights to be packed", &packing, 1, 20, 1, 1, 1, 33, 0},
    {"weights to be packed in bf16", &packing, 1, 20, 1, 1, 1, 33, BF16},
    {"weights and a gate to be packed for integers", &packing, 1, 20, 1, 1, 1, 64, CROSS | INTEGERS},
    {"a gate to be packed", &packing, 1, 20, 1, 1, 1, 64, CROSS},
    {"one of everything", &mapping, 1, 1, 1, 1, 1, 1, 0},
    {"tokens", &normalising, 2, 1, 1, 5, 1, 13, 0},
    {"one of everything", &normalising, 1, 1, 1, 1, 1, 1, PLAIN},
    {"tokens", &rms_normalising, 2, 1, 1, 5, 1, 33, 0},
    {"one of everything", &rms_normalising, 1, 1, 1, 1, 1, 1, 0},
    {"rows", &quantising_weights, 1, 5, 1, 1, 1, 33, 0},
    {"a row", &quantising_weights, 1, 1, 1, 1, 1, 1, 0},
    {"rows", &quantising_groups, 1, 5, 1, 1, 1, 96, 0},

    {"10 channels", &finding_frequencies, 1, 1, 1, 1, 1, 10, 0},
    {"a table", &finding_sinusoids, 1, 1, 1, 3, 1, 6, 0},
    {"5 heads", &finding_slopes, 1, 5, 1, 1, 1, 1, 0},

    {"self", &multi_head_attention, 2, 4, 2, 3, 3, 4, LSE | ROWS | LENGTHS | OFFSETS | PREFIXES | WEIGHTS},
    {"self, packed, ragged", &multi_head_attention, 2, 4, 2, 3, 3, 4, LSE | RAGGED | PACKED | TABLE | SCORES},
    {"self, in bf16", &multi_head_attention, 2, 4, 2, 3, 3, 4, LSE | ROWS | LENGTHS | WEIGHTS | BF16},
    {"cross", &multi_head_attention, 2, 4, 2, 3, 9, 4, CROSS | PLAIN | RAGGED | RAGGED_KEYS | LSE},
    {"a cache", &multi_head_attention, 2, 4, 2, 3, 20, 4, CACHE | PACKED | BY_CHANNEL | RINGS | LSE},
    {"cross, with a cache in pages", &multi_head_attention, 2, 4, 2, 3, 40, 4,
     CACHE | CROSS | PAGES | BY_TOKEN | TABLE | WEIGHTS | LENGTHS},
    {"a cache of pages in rows", &multi_head_attention, 2, 4, 2, 3, 40, 4, CACHE | PLAIN | PAGES | CSR | LAST_PAGE | SCORES},
    {"an old cache", &multi_head_attention, 2, 4, 2, 3, 40, 4, CACHE | CROSS | OLD_KEYS | BY_TOKEN | PAGES | LSE},
    {"one of everything", &multi_head_attention, 1, 1, 1, 1, 1, 2, LSE | ROWS | WEIGHTS},
    {"no keys", &multi_head_attention, 2, 4, 2, 3, 0, 4, CROSS | WEIGHTS | LSE},
};
const int call_count = (int)(sizeof calls / sizeof *calls);

/* ---- Describing ---------------------------------------------------------------------------------------------------------- */

static struct {
    const char *owner, *field;
} fields[256];
static int field_count;
static const char *functions[64];
static int function_count;

static void note_function(const char *name) {
    if (name && !covers_function(name)) functions[function_count++] = name;
}

bool covers_field(const char *owner, const char *field) {
    for (int i = 0; i < field_count; i++)
        if (!strcmp(fields[i].owner, owner) && !strcmp(fields[i].field, field)) return true;
    return false;
}

bool covers_function(const char *name) {
    for (int i = 0; i < function_count; i++)
        if (!strcmp(functions[i], name)) return true;
    return false;
}

rapt_arith arith_of_call(const call *c) { return c->features & INTEGERS ? RAPT_INT8_DOT : arith_of_floats(c); }

void describe_call(const call *c, int64_t nth) {
    forget_call();
    memset(&s, 0, sizeof s);
    prefix = "", threads = nth, random_state = filling_seed;
    c->api->describe(c);
    now.structs = &s, now.struct_bytes = sizeof s;
    note_function(c->api->explanation);
    for (const way *w = c->api->ways; w->function; w++) note_function(w->function);
    for (int i = 0; i < now.pointers; i++) {
        const pointer *p = &now.at[i];
        if (p->bytes == 0 || covers_field(p->owner, p->field)) continue;
        fields[field_count].owner = p->owner;
        fields[field_count++].field = p->field;
    }
}

void forget_call(void) {
    for (int i = 0; i < now.pointers; i++) {
        free((void *)(uintptr_t)now.at[i].name);
        aligned_destroy(now.at[i].content);
    }
    memset(&now, 0, sizeof now);
}
