/* SPDX-License-Identifier: Apache-2.0 */
/* Copies tokens within a cache, or from another cache of the same layout. */
#include <string.h>

#include "core/layout.h"
#include "core/memory.h"
#include "core/structs.h"
#include "core/work.h"

static const rapt_kv_copy_desc default_copy_desc = {.entries = 1};
static const rapt_kv_copy_args default_copy_args = {0};

void rapt_kv_copy_desc_init_sized(rapt_kv_copy_desc *desc, size_t size) {
    rapt_init_struct(desc, size, &default_copy_desc, sizeof default_copy_desc);
}

void rapt_kv_copy_args_init_sized(rapt_kv_copy_args *args, size_t size) {
    rapt_init_struct(args, size, &default_copy_args, sizeof default_copy_args);
}

/* A tensor whose rows are copied: K, V, or scales of their tokens. */
typedef struct copied_tensor {
    const char *name, *from_name;
    rapt_layout layout; /* of type RAPT_NONE: there is no such tensor */
    int64_t row;        /* bytes of a row */
    char *to;
    const char *from;
} copied_tensor;

enum { K, V, K_SCALES, V_SCALES, TENSORS };

typedef struct copy_call {
    rapt_kv_copy_desc desc;
    rapt_kv_copy_args args;
    copied_tensor tensors[TENSORS];
} copy_call;

/* Checks the scales of one tensor. */
static rapt_status check_scales(rapt_report *r, const char *name, const rapt_scales *s, const rapt_layout *of) {
    if (s->present && of->type == RAPT_NONE)
        return rapt_refuse_member(r, RAPT_ERR_FEATURE, name, "present", s->present, "their tensor is not copied");
    if (s->present && s->token_stride && s->channel_stride)
        return rapt_refuse_member(r, RAPT_ERR_STRIDE, name, "channel_stride", s->channel_stride,
                                  "there is a token_stride, and scales are of tokens or of channels");
    return RAPT_OK;
}

/* Checks the description: sizes, types and scales. */
static rapt_status copy_check_shape(rapt_report *r, const rapt_kv_copy_desc *d) {
    if (!rapt_within(d->entries, 0, RAPT_MAX_LENGTH))
        return rapt_refuse_number(r, RAPT_ERR_SHAPE, "entries", d->entries, "must be 0 to 2147483647");
    if (!rapt_within(d->kv_heads, 1, RAPT_MAX_LENGTH))
        return rapt_refuse_number(r, RAPT_ERR_SHAPE, "kv_heads", d->kv_heads, "must be 1 to 2147483647");
    if (!rapt_within(d->tokens, 0, RAPT_MAX_LENGTH))
        return rapt_refuse_number(r, RAPT_ERR_SHAPE, "tokens", d->tokens, "must be 0 to 2147483647");
    if (d->k.type == RAPT_NONE && d->v.type == RAPT_NONE)
        return rapt_refuse(r, RAPT_ERR_TYPE, "k.type = RAPT_NONE: nor has v one, so nothing is copied");
    if (d->k.type != RAPT_NONE && !rapt_within(d->d_k, 1, RAPT_MAX_HEAD_DIM))
        return rapt_refuse_number(r, RAPT_ERR_SHAPE, "d_k", d->d_k, "must be 1 to 1024");
    if (d->v.type != RAPT_NONE && !rapt_within(d->d_v, 1, RAPT_MAX_HEAD_DIM))
        return rapt_refuse_number(r, RAPT_ERR_SHAPE, "d_v", d->d_v, "must be 1 to 1024");
    rapt_status status = check_scales(r, "k_scales", &d->k_scales, &d->k);
    return status == RAPT_OK ? check_scales(r, "v_scales", &d->v_scales, &d->v) : status;
}

/* Registers one tensor, and sets its row. other: the call reads from another cache than the one that it writes. */
static void register_tensor(rapt_memory *m, copy_call *c, int which, bool other) {
    const rapt_kv_copy_desc *d = &c->desc;
    copied_tensor *p = &c->tensors[which];
    const int64_t length[3] = {d->entries, d->kv_heads, d->tokens}, channels[TENSORS] = {d->d_k, d->d_v, 1, 1};
    uint64_t bytes = 0;
    if (p->layout.type == RAPT_NONE) {
        rapt_unused(m, p->name, p->to, "it is not copied");
        rapt_unused(m, p->from_name, p->from, "it is not copied");
        return;
    }
    if (m->status == RAPT_OK)
        m->status =
            rapt_measure(m->report, p->name, &p->layout, RAPT_KV, length[0], length[1], length[2], channels[which], true, &bytes);
    p->row = m->status == RAPT_OK ? rapt_row_bytes(p->layout.type, channels[which]) : 0;
    rapt_spread(m, rapt_writes(m, p->name, p->to, bytes), &p->layout, length, p->row);
    if (other) rapt_reads(m, p->from_name, p->from, bytes);
    else p->from = p->to;
}

/* Checks that range n lies within the cache. */
static rapt_status check_range(rapt_report *r, const rapt_kv_copy_desc *d, int64_t n, const rapt_kv_range *range) {
    char name[RAPT_NAME_BYTES];
    rapt_name_element(name, "ranges", n, "");
    if (!rapt_within(range->from, 0, d->entries - 1))
        return rapt_refuse_member(r, RAPT_ERR_TABLE, name, "from", range->from, "there is no such entry");
    if (!rapt_within(range->to, 0, d->entries - 1))
        return rapt_refuse_member(r, RAPT_ERR_TABLE, name, "to", range->to, "there is no such entry");
    if (!rapt_within(range->tokens, 0, d->tokens))
        return rapt_refuse_member(r, RAPT_ERR_TABLE, name, "tokens", range->tokens, "an entry has not as many");
    if (!rapt_within(range->from_token, 0, d->tokens - range->tokens))
        return rapt_refuse_member(r, RAPT_ERR_TABLE, name, "from_token", range->from_token,
                                  "the tokens from there on exceed the entry");
    if (!rapt_within(range->to_token, 0, d->tokens - range->tokens))
        return rapt_refuse_member(r, RAPT_ERR_TABLE, name, "to_token", range->to_token,
                                  "the tokens from there on exceed the entry");
    return RAPT_OK;
}

/* Reads the caller's structs into c, and checks all of the call. */
static rapt_status read_copy(rapt_report *r, copy_call *c, const rapt_kv_copy_desc *desc, const rapt_kv_copy_args *args) {
    rapt_kv_copy_desc *d = &c->desc;
    rapt_kv_copy_args *a = &c->args;
    rapt_status status = rapt_read_struct(r, "desc", d, &default_copy_desc, sizeof *d, sizeof *d, desc);
    if (status == RAPT_OK) status = rapt_read_struct(r, "args", a, &default_copy_args, sizeof *a, sizeof *a, args);
    if (status == RAPT_OK) status = copy_check_shape(r, d);
    if (status != RAPT_OK) return status;
    const copied_tensor tensors[TENSORS] = {[K] = {"k", "from_k", d->k, 0, a->k, a->from_k},
                                            [V] = {"v", "from_v", d->v, 0, a->v, a->from_v},
                                            [K_SCALES] = {"k_scales", "from_k_scales", rapt_layout_of_scales(&d->k_scales), 0,
                                                          (char *)a->k_scales, (const char *)a->from_k_scales},
                                            [V_SCALES] = {"v_scales", "from_v_scales", rapt_layout_of_scales(&d->v_scales), 0,
                                                          (char *)a->v_scales, (const char *)a->from_v_scales}};
    memcpy(c->tensors, tensors, sizeof tensors);
    bool other = a->from_k || a->from_v || a->from_k_scales || a->from_v_scales;
    rapt_memory m;
    if (a->count < 0) return rapt_refuse_number(r, RAPT_ERR_SHAPE, "count", a->count, "must be 0 or more");
    rapt_memory_begin(&m, r);
    for (int i = 0; i < TENSORS; i++) register_tensor(&m, c, i, other);
    rapt_reads_array(&m, "ranges", a->ranges, a->count, sizeof *a->ranges, a->count == 0);
    status = rapt_check_memory(&m);
    for (int64_t n = 0; n < a->count && status == RAPT_OK; n++) status = check_range(r, d, n, &a->ranges[n]);
    return status;
}

rapt_status rapt_kv_copy_explain(const rapt_kv_copy_desc *desc, const rapt_kv_copy_args *args, char *text, size_t bytes) {
    rapt_report r = rapt_explanation_of("rapt_kv_copy_run", text, bytes);
    copy_call c;
    return read_copy(&r, &c, desc, args);
}

/* Copies thread ith's bytes of each row of a range. A thread copies the same bytes of every row, so what it reads is never
 * written by another thread. Where a range overlaps its source, tokens are copied in the order in which memmove would copy them.
 */
static void copy_range(const rapt_kv_copy_desc *d, const copied_tensor *p, const rapt_kv_range *range, int64_t ith, int64_t nth) {
    const rapt_layout *l = &p->layout;
    int64_t first, bytes;
    rapt_cut_range(p->row, 1, ith, nth, &first, &bytes);
    bool up = p->from == p->to && range->from == range->to && range->to_token > range->from_token;
    for (int64_t n = 0; n < range->tokens && bytes > 0; n++) {
        int64_t token = up ? range->tokens - 1 - n : n;
        const char *from = p->from + range->from * l->batch_stride + (range->from_token + token) * l->token_stride + first;
        char *to = p->to + range->to * l->batch_stride + (range->to_token + token) * l->token_stride + first;
        for (int64_t h = 0; h < d->kv_heads; h++) memmove(to + h * l->head_stride, from + h * l->head_stride, (size_t)bytes);
    }
}

static void copy_share(const void *call, int phase, int64_t ith, int64_t nth, atomic_llong *next) {
    const copy_call *c = call;
    (void)phase, (void)next;
    for (int64_t n = 0; n < c->args.count; n++)
        for (int i = 0; i < TENSORS; i++)
            if (c->tensors[i].layout.type) copy_range(&c->desc, &c->tensors[i], &c->args.ranges[n], ith, nth);
}

static rapt_status copy_run(const char *name, const rapt_kv_copy_desc *desc, const rapt_kv_copy_args *args, rapt_way way) {
    rapt_report r = rapt_report_of(name);
    copy_call c;
    rapt_status status = read_copy(&r, &c, desc, args);
    const rapt_work w = {.call = &c, .phases = 1, .share = copy_share, .copies_only = true};
    return status == RAPT_OK ? rapt_work_run(&r, &w, &way) : status;
}

rapt_status rapt_kv_copy_run(const rapt_kv_copy_desc *desc, const rapt_kv_copy_args *args) {
    return copy_run("rapt_kv_copy_run", desc, args, rapt_alone());
}
rapt_status rapt_kv_copy_run_parallel(const rapt_kv_copy_desc *desc, const rapt_kv_copy_args *args, int64_t nth,
                                      rapt_parallel_for parallel_for, void *pool) {
    return copy_run("rapt_kv_copy_run_parallel", desc, args, rapt_parallel(nth, parallel_for, pool));
}
rapt_status rapt_kv_copy_run_share(const rapt_kv_copy_desc *desc, const rapt_kv_copy_args *args, int64_t ith, int64_t nth) {
    return copy_run("rapt_kv_copy_run_share", desc, args, rapt_share(ith, nth, NULL, NULL));
}
