/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a problem and a way to come to its result in another way. All kernels of a class that can run here must give the
 * same bits, and each of them in all ways to run and with any numbers of threads, by tunings, in other layouts, pages and rings,
 * of keys in parts whose states are merged, of a row or an entry by itself, and of a sequence in steps. */
#include "problems.h"

/* Of its features only types, data, lengths and a window. */
static problem simple(const problem *p, input *in) {
    const rapt_desc *d = &p->desc;
    problem s = {.q_factor = 1, .k_factor = 1, .data_seed = p->data_seed, .data = p->data};
    rapt_desc_init(&s.desc);
    s.desc.batch = d->batch, s.desc.heads = d->heads, s.desc.kv_heads = d->kv_heads;
    s.desc.q_len = d->q_len, s.desc.kv_len = d->kv_len, s.desc.d_k = d->d_k, s.desc.d_v = d->d_v;
    problem_types(&s, d->q.type, d->k.type, d->v.type, d->o.type);
    s.desc.arith = d->arith;
    s.desc.causal = d->causal;
    if (d->causal && d->window_left >= 0) s.desc.window_left = d->window_left;
    if (maybe(in, 2)) s.lengths = LENGTHS_DRAWN;
    s.lse = true;
    return s;
}

static void in_layouts(check *c, const problem *p, input *in) {
    enum { VARIANTS = 4 };
    problem plain = *p, variants[VARIANTS];
    plain.ragged_queries = plain.ragged_keys = plain.ring = plain.nan_masked = false;
    plain.desc.page_size = 0, plain.desc.table = (rapt_layout){0}, plain.table = TABLE_MATRIX;
    for (int v = 0; v < VARIANTS; v++) {
        variants[v] = plain;
        variants[v].q = (place)choose(in, PLACE_ONE_BATCH), variants[v].o = (place)choose(in, PLACE_ONE_BATCH);
        variants[v].k = (place)choose(in, PLACE_ONE_BATCH), variants[v].v = (place)choose(in, PLACE_ONE_BATCH);
        variants[v].offset = (int)choose(in, 64) - 1;
        if (v % 2) problem_paged(&variants[v], 1 + choose(in, 200));
        if (v % 2) variants[v].table = choose(in, plain.desc.kv_total ? 2 : 3);
        variants[v].ring = choose(in, 3) == 0 && variants[v].table != TABLE_LAST_PAGE;
        variants[v].desc.trust_table = (int)choose(in, 2);
    }
    plain.q = plain.k = plain.v = plain.o = PLACE_BHSD;
    same_as_variants(c, &plain, variants, VARIANTS);
}

static void in_parts(check *c, problem *p, input *in) {
    static const int64_t page_sizes[] = {1, 16, 64, 512};
    problem_in_parts(p);
    if (p->desc.page_size) p->desc.page_size = page_sizes[choose(in, 4)];
    same_in_parts(c, p);
}

static void in_steps(check *c, const problem *p, input *in) {
    problem s = simple(p, in);
    s.desc.batch = 1, s.desc.causal = RAPT_CAUSAL_BOTTOM_RIGHT, s.lengths = LENGTHS_NONE;
    s.desc.q_len = 1 + s.desc.q_len % 12;
    s.desc.kv_len += s.desc.q_len; /* the past, and these */
    same_in_steps(c, &s);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static check c;
    input in = {bytes, size};
    all_kernels(&c, "same");
    c.quick = true, c.thin = 1; /* few threads are started, for that is slow, and no large problem is run */
    const int64_t which = choose(&in, 8);
    problem p = take_problem(&c, &in);
    const problem s = simple(&p, &in);
    if (which == 0) examine(&c, &p);
    if (which == 1) same_by_threads(&c, &p);
    if (which == 2) same_by_tunings(&c, &p);
    if (which == 3) in_layouts(&c, &p, &in);
    if (which == 4) in_parts(&c, &p, &in);
    if (which == 5 && p.desc.q_len && p.desc.batch) same_alone(&c, &s);
    if (which == 6) same_apart(&c, &s);
    if (which == 7) in_steps(&c, &p, &in);
    require_no_failures(&c);
    return 0;
}
