/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as tokens that are appended to a cache, as the test of caches could have drawn them, which must become what the
 * plainest code makes of them; the same with some integers changed in its arrays, which lie between guard pages: it must be
 * refused with nothing written, or be right all the same; or as a good description with some fields changed, which must be
 * refused, or give the same bits by one thread and by several, in memory of exactly that size. */
#define main test_main
#include "../api/append.c" /* NOLINT(bugprone-suspicious-include): whose problems are taken */
#undef main

#include "described.h"
#include "drawn.h"

/* ---- Arrays -------------------------------------------------------------------------------------------------------------- */

/* n numbers, the first ones copied; the others are no page of any pool. */
static const int32_t *array_of(call_memory *m, const int32_t *from, int64_t copied, int64_t n, input *in) {
    fence *const f = new_fence(m, n * (int64_t)sizeof *from, in);
    memcpy(f->data, from, (size_t)(copied < n ? copied : n) * sizeof *from);
    fence_protect(f, true);
    return (const int32_t *)(const void *)f->data;
}

/* A number of an array becomes a neighbour, a small one, any, or what is about as much as it may be. */
static void change_integer(int32_t *number, int64_t most, input *in) {
    const uint8_t sort = take_byte(in);
    if (sort < 120) *number = (int32_t)(most + sort % 4);
    else if (sort < 180) *number = (int32_t)((uint32_t)*number + sort % 9 - 4);
    else *number = sort < 220 ? sort - 182 : (int32_t)take_number(in);
}

static void with_arrays(problem *p, call_memory *m, input *in) {
    const rapt_kv_append_desc *d = &p->desc;
    rapt_kv_append_args *a = &p->args;
    const int64_t all = a->token_starts ? d->tokens : d->batch * d->tokens;
    const int64_t most = d->page_size ? (d->kv_len + d->page_size - 1) / d->page_size : 0;
    const int64_t matrix = (d->batch - 1) * d->table.batch_stride / 4 + (d->kv_heads - 1) * d->table.head_stride / 4 + most;
    const struct {
        int32_t *from;
        const int32_t **to;
        int64_t n, most;
    } arrays[] = {{p->starts, &a->starts, d->batch, d->kv_len}, /* less the entry's tokens */
                  {p->lengths, &a->lengths, d->batch, d->tokens},
                  {p->token_starts, &a->token_starts, d->batch + 1, d->tokens},
                  {p->ring_starts, &a->ring_starts, d->batch, d->kv_len - 1},
                  {p->positions, &a->positions, all, 0},
                  {p->table, &a->table, a->table_starts ? p->table_starts[d->batch] : matrix, d->pages - 1},
                  {p->table_starts, &a->table_starts, d->batch + 1, most}};
    enum { ARRAYS = sizeof arrays / sizeof *arrays };
    int present[ARRAYS] = {0}, count = 0;
    for (int i = 0; i < ARRAYS; i++)
        if (*arrays[i].to && arrays[i].n) present[count++] = i;
    for (int64_t n = choose(in, 4); n > 0 && count; n--) {
        const int which = present[choose(in, count)];
        const int64_t i = choose(in, arrays[which].n), tokens = arrays[which].to == &a->starts ? tokens_of(p, i) : 0;
        change_integer(&arrays[which].from[i], arrays[which].most - tokens, in);
    }
    int32_t *const end = &p->table_starts[d->batch]; /* the table is as long as they now say */
    if (*end > MOST_BYTES) *end = MOST_BYTES;
    for (int i = 0; i < ARRAYS; i++) {
        const bool ragged = arrays[i].from == p->table && a->table_starts;
        if (*arrays[i].to)
            *arrays[i].to = array_of(m, arrays[i].from, arrays[i].n, ragged ? (*end > 0 ? *end : 0) : arrays[i].n, in);
    }
}

static void as_drawn(input *in) {
    problem p;
    const bool change = choose(in, 2), table = choose(in, 4) == 0;
    const rapt_type k = kv_types[choose(in, KV_TYPES)], v = kv_types[choose(in, KV_TYPES)];
    input changes = {in->bytes + in->size, 0}; /* of the last bytes, the others having drawn the problem */
    if (change) changes.size = in->size < 20 ? in->size : 20, changes.bytes -= changes.size, in->size -= changes.size;
    draw_from(in);
    make_problem(&p, k, v);
    call_memory m = {.count = 0};
    if (change) with_arrays(&p, &m, &changes);
    char text[256];
    const rapt_status status = rapt_kv_append_explain(&p.desc, &p.args, text, sizeof text);
    require(!text[0] == (status == RAPT_OK), "a refusal without a line");
    if (status == RAPT_OK) {
        const bool right = table && p.desc.rope.channels && !change ? rotary_table_agrees(&p) : append_agrees(&p);
        require(right, "a cache is not what the model says");
    } else {
        require(change, "a good call is refused");
        tensor before[4] = {copy_of(&p.cache[0]), copy_of(&p.cache[1]), copy_of(&p.scales[0]), copy_of(&p.scales[1])};
        require(rapt_kv_append_run(&p.desc, &p.args) == status, "an explanation differs");
        for (int i = 0; i < 2; i++)
            require(same_tensor(&p.cache[i], &before[i]) && same_tensor(&p.scales[i], &before[2 + i]),
                    "a refused call has written");
        free_tensors(before, 4);
    }
    free_memory(&m);
    free_problem(&p);
}

/* ---- Descriptions -------------------------------------------------------------------------------------------------------- */

static const field fields[] = {FIELD(rapt_kv_append_desc, batch),
                               FIELD(rapt_kv_append_desc, kv_heads),
                               FIELD(rapt_kv_append_desc, tokens),
                               FIELD(rapt_kv_append_desc, kv_len),
                               FIELD(rapt_kv_append_desc, d_k),
                               FIELD(rapt_kv_append_desc, d_v),
                               LAYOUT(rapt_kv_append_desc, new_k),
                               LAYOUT(rapt_kv_append_desc, new_v),
                               LAYOUT(rapt_kv_append_desc, k),
                               LAYOUT(rapt_kv_append_desc, v),
                               SCALES(rapt_kv_append_desc, k_scales),
                               SCALES(rapt_kv_append_desc, v_scales),
                               FIELD(rapt_kv_append_desc, rope.channels),
                               FIELD(rapt_kv_append_desc, rope.interleaved),
                               FIELD(rapt_kv_append_desc, rope.offset),
                               FIELD(rapt_kv_append_desc, rope.amplitude),
                               FIELD(rapt_kv_append_desc, page_size)};

static int64_t span_of_scales(const rapt_scales *s, int64_t batch, int64_t heads, int64_t tokens, int64_t channels) {
    const int64_t lengths[] = {batch, heads, tokens, channels};
    const int64_t strides[] = {s->batch_stride, s->head_stride, s->token_stride, s->channel_stride};
    if (batch == 0 || heads == 0 || (tokens == 0 && s->token_stride)) return 0;
    const int64_t span = accepted_span(4, 4, lengths, strides);
    return span > MOST_BYTES ? -1 : span;
}

static rapt_kv_append_desc take_description(input *in) {
    static const rapt_type types[] = {RAPT_F32, RAPT_F16, RAPT_BF16};
    rapt_kv_append_desc d;
    rapt_kv_append_desc_init(&d);
    const rapt_type k = kv_types[choose(in, KV_TYPES)], v = kv_types[choose(in, KV_TYPES)];
    d.batch = 1 + choose(in, 3), d.kv_heads = 1 + choose(in, 3), d.kv_len = 1 + choose(in, 20),
    d.tokens = choose(in, d.kv_len + 1);
    d.d_k = is_grouped(k) ? reference_group(k) * (1 + choose(in, 2)) : 1 + choose(in, 70);
    d.d_v = is_grouped(v) ? reference_group(v) * (1 + choose(in, 2)) : 1 + choose(in, 70);
    d.new_k = rapt_layout_bhsd(types[choose(in, 3)], d.kv_heads, d.tokens, d.d_k);
    d.new_v = rapt_layout_bshd(types[choose(in, 3)], d.kv_heads, d.tokens, d.d_v);
    d.k = rapt_layout_bshd(k, d.kv_heads, d.kv_len, d.d_k), d.v = rapt_layout_bhsd(v, d.kv_heads, d.kv_len, d.d_v);
    const rapt_layout one = rapt_layout_bhsd(RAPT_F32, d.kv_heads, d.kv_len, 1);
    if (is_byte(k) && choose(in, 2)) d.k_scales = (rapt_scales){1, one.batch_stride, one.head_stride, one.token_stride, 0};
    if (choose(in, 3) == 0) d.v_scales = (rapt_scales){1, 4 * d.d_v, 0, 0, 4};
    if (choose(in, 2)) d.rope.channels = d.d_k / 2 * 2;
    for (int64_t n = choose(in, 5); n > 0; n--) change_field(&d, FIELDS(fields), in);
    return d;
}

/* Both caches and their scales as the threads have left them; false where it was refused or is more than is tried. */
static bool appended(const rapt_kv_append_desc *given, int64_t nth, call_memory *m, fence *written[4], input *in) {
    rapt_kv_append_desc d = *given;
    rapt_kv_append_args a;
    rapt_kv_append_args_init(&a);
    const int64_t pairs = d.rope.channels / 2, frequencies = pairs < 0 ? 0 : pairs < 512 ? pairs : 512;
    fence *const f = new_fence(m, frequencies * (int64_t)sizeof(double), in);
    for (int64_t i = 0; i < frequencies; i++) ((double *)(void *)f->data)[i] = 1.0 / (double)(i + 1);
    d.rope.frequencies = (const double *)(const void *)f->data;
    const rapt_layout *const rows[] = {&d.new_k, &d.new_v}, *const caches[] = {&d.k, &d.v};
    const rapt_scales *const scales[] = {&d.k_scales, &d.v_scales};
    const int64_t channels[] = {d.d_k, d.d_v};
    /* Before it is known to be good there is a byte for each tensor: what is bad must be refused without a look at it. */
    static _Alignas(64) unsigned char bytes[8][64];
    if (d.k.type) a.new_k = bytes[0], a.k = bytes[1];
    if (d.v.type) a.new_v = bytes[2], a.v = bytes[3];
    if (d.k_scales.present) a.k_scales = (float *)(void *)bytes[4];
    if (d.v_scales.present) a.v_scales = (float *)(void *)bytes[5];
    char text[256];
    const rapt_status status = rapt_kv_append_explain(&d, &a, text, sizeof text);
    require(!text[0] == (status == RAPT_OK), "a refusal without a line");
    if (status != RAPT_OK && status != RAPT_ERR_OVERLAP) return false;
    if (d.batch < 0 || d.batch > 64 || d.kv_heads < 1 || d.kv_heads > 64 || d.tokens < 0 || d.kv_len > 4096 || d.page_size)
        return false;
    for (int i = 0; i < 2; i++) {
        if (!caches[i]->type) continue;
        const int64_t each = scales[i]->token_stride ? d.kv_len : 1, factors = scales[i]->token_stride ? 1 : channels[i];
        const int64_t room = scales[i]->present ? span_of_scales(scales[i], d.batch, d.kv_heads, each, factors) : 0;
        const int64_t cache = span_of(caches[i], d.batch, d.kv_heads, d.kv_len, channels[i]);
        if (room < 0 || cache < 0 || span_of(rows[i], d.batch, d.kv_heads, d.tokens, channels[i]) < 0) return false;
        const void *from = new_input(m, rows[i], d.batch, d.kv_heads, d.tokens, channels[i], in);
        written[i] = new_fence(m, cache, in), written[2 + i] = new_fence(m, room, in);
        float *const factor = (float *)(void *)written[2 + i]->data;
        if (scales[i]->present && !scales[i]->token_stride)
            for (int64_t n = 0; n + 4 <= room; n += 4) memcpy((char *)factor + n, &(float){0.125f}, 4);
        if (i) a.new_v = from, a.v = written[i]->data, a.v_scales = scales[i]->present ? factor : NULL;
        else a.new_k = from, a.k = written[i]->data, a.k_scales = scales[i]->present ? factor : NULL;
    }
    rapt_status ran = RAPT_OK;
    for (int64_t ith = nth - 1; ith >= 0 && ran == RAPT_OK; ith--) ran = rapt_kv_append_run_share(&d, &a, ith, nth);
    return ran == RAPT_OK;
}

static void as_described(input *in) {
    const rapt_kv_append_desc d = take_description(in);
    call_memory m[2] = {{.count = 0}, {.count = 0}};
    fence *written[2][4] = {{NULL}};
    input again = *in;
    const bool one = appended(&d, 1, &m[0], written[0], in), several = appended(&d, 5, &m[1], written[1], &again);
    require(one == several, "refused by the number of threads");
    for (int i = 0; i < 4 && one; i++) {
        if (!written[0][i]) continue;
        require(fence_slack_intact(written[0][i]) && fence_slack_intact(written[1][i]), "written beyond a tensor");
        require(!memcmp(written[0][i]->data, written[1][i]->data, written[0][i]->bytes), "several threads write other bits");
    }
    free_memory(&m[0]), free_memory(&m[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    input in = {bytes, size};
    if (choose(&in, 3) == 0) as_described(&in);
    else as_drawn(&in);
    return 0;
}
