/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as results that are merged by their lse, which must be right and the same by two kernels of a class; as a problem
 * whose keys are cut into parts, whose states must merge to the bits of all keys at once; or as a call with sizes, sources and
 * memory that may be wrong, which must be refused with nothing written, or be sound. */
#include <string.h>

#include "problems.h"

static void sizes_of_merge(input *in) {
    enum { MOST = 5, ROOM = 256 };
    fence sources = fence_create(2 * MOST * ROOM, -1, 0), o = fence_create(ROOM, -1, 0), lse = fence_create(ROOM, -1, 0);
    int64_t sizes[3]; /* of sources, rows, d_v */
    for (int i = 0; i < 3; i++) sizes[i] = choose(in, 4) ? choose(in, i ? 9 : MOST + 1) : take_number(in);
    for (size_t i = 0; i < sources.bytes / 4; i++) {
        const float value = i % 13 ? (float)(i % 7) - 3 : take_float(in);
        memcpy(sources.data + 4 * i, &value, 4);
    }
    fence_protect(&sources, true);
    sizes[0] = smaller(sizes[0], MOST); /* the arrays of sources are no longer */
    const float *os[MOST], *lses[MOST];
    const bool fits = sizes[0] >= 1 && sizes[0] <= MOST && sizes[1] >= 0 && sizes[1] < 9 && sizes[2] >= 1 && sizes[2] < 9 &&
                      sizes[1] * sizes[2] * 4 <= ROOM;
    const int64_t o_bytes = fits ? sizes[1] * sizes[2] * 4 : ROOM, lse_bytes = fits ? sizes[1] * 4 : ROOM;
    float *o_out = choose(in, 8) ? (float *)(void *)(o.data + ROOM - o_bytes) : NULL;
    float *lse_out = choose(in, 8) ? (float *)(void *)(lse.data + ROOM - lse_bytes) : NULL;
    bool bad = false; /* a pointer that is not aligned, or none */
    for (int i = 0; i < MOST; i++) {
        os[i] = (const float *)(void *)(sources.data + (2 * i + 1) * ROOM - o_bytes);
        lses[i] = (const float *)(void *)(sources.data + (2 * i + 2) * ROOM - lse_bytes);
        const int64_t odd = maybe(in, 40);
        if (odd == 1) os[i] = NULL;
        if (odd == 2) lses[i] = NULL;
        if (odd == 3) lses[i] = (const float *)(const void *)((const char *)lses[i] - 1);
        bad = bad || (odd >= 1 && odd <= 3 && i < sizes[0] && fits && sizes[1] > 0);
    }
    char text[256];
    const rapt_status told = rapt_merge_explain(sizes[0], sizes[1], sizes[2], os, lses, o_out, lse_out, text, sizeof text);
    if (told != RAPT_OK || fits) /* good, and larger than this memory, is a call that must not be run */
        require(rapt_merge(sizes[0], sizes[1], sizes[2], os, lses, o_out, lse_out) == told, "an explanation differs");
    require(told != RAPT_OK || !bad, "a bad pointer is accepted");
    require(told == RAPT_OK || (fence_intact(&o) && fence_intact(&lse)), "a refused call has written");
    require((told == RAPT_OK) == !text[0], "a refusal without a line");
    fence_destroy(&sources), fence_destroy(&o), fence_destroy(&lse);
}

/* States of two chunks each, of a plan of one query, and calls with numbers that may be wrong. */
static void sizes_of_states(input *in) {
    enum { D = 5, STATE = (16 + 16) * 4 };
    rapt_desc d;
    rapt_plan plan;
    rapt_desc_init(&d);
    d.heads = d.kv_heads = 2, d.q_len = 3, d.kv_len = 2 * RAPT_CHUNK_KEYS, d.d_k = d.d_v = D, d.unmerged = 1, d.isa = "scalar";
    d.q = d.o = rapt_layout_bhsd(RAPT_F32, 2, 3, D), d.k = d.v = rapt_layout_bhsd(RAPT_F32, 2, d.kv_len, D);
    d.lse = rapt_layout_bhsd(RAPT_F32, 2, 3, 1);
    d.states = (rapt_layout){RAPT_F32, 12 * STATE, 6 * STATE, 2 * STATE}, d.state_stride = STATE;
    require(rapt_plan_init(&plan, &d) == RAPT_OK, "a good plan is refused");
    fence states = fence_create(12 * STATE, -1, 0), o = fence_create(6 * D * 4, -1, 0), lse = fence_create(6 * 4, -1, 0);
    for (int i = 0; i < 12 * STATE / 4; i++) {
        const float value = i % 96 == 0 ? take_float(in) : i % 32 == 1 ? 1.5f : 0.25f;
        memcpy(states.data + 4 * i, &value, 4);
    }
    rapt_args args;
    rapt_args_init(&args);
    args.o = choose(in, 12) ? o.data : NULL, args.lse = choose(in, 12) ? (float *)(void *)lse.data : NULL;
    if (choose(in, 12) == 11) args.o = states.data + 8; /* refused, unless there is no state */
    else fence_protect(&states, true);
    const int64_t sources = choose(in, 8) ? 1 + choose(in, 2) : take_number(in) % 3;
    rapt_states s[2];
    bool fits = sources >= 0;
    for (int i = 0; i < 2; i++) {
        s[i] = (rapt_states){(const float *)(const void *)states.data, 12 * STATE, 6 * STATE, 2 * STATE, STATE, 2};
        int64_t *const fields[] = {&s[i].batch_stride, &s[i].head_stride, &s[i].token_stride, &s[i].state_stride, &s[i].chunks};
        for (int64_t n = choose(in, 3); n > 0; n--) {
            int64_t *const field = fields[choose(in, 5)];
            *field = choose(in, 2) ? take_number(in) : field == &s[i].chunks ? choose(in, 4) : STATE / 4 * choose(in, 40);
        }
        if (i >= sources) continue;
        const int64_t lengths[] = {2, 3, s[i].chunks}, strides[] = {s[i].head_stride, s[i].token_stride, s[i].state_stride};
        int64_t span = 0;
        fits =
            fits && (s[i].chunks <= 0 || (find_span(&span, (16 + D) * 4, 3, lengths, strides) && span <= (int64_t)states.bytes));
    }
    char text[256];
    const rapt_status told = rapt_merge_states_explain(&plan, &args, s, sources, text, sizeof text);
    require((told == RAPT_OK) == !text[0], "a refusal without a line");
    for (int i = 0; i < sources && told == RAPT_OK; i++)
        require(s[i].chunks >= 0 && (s[i].chunks == 0 || (s[i].head_stride >= 0 && s[i].token_stride >= 0)),
                "a negative number is accepted");
    if (told != RAPT_OK || fits) require(rapt_merge_states_run(&plan, &args, s, sources) == told, "an explanation differs");
    require(told == RAPT_OK || (fence_intact(&o) && fence_intact(&lse)), "a refused call has written");
    fence_destroy(&states), fence_destroy(&o), fence_destroy(&lse);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static check c;
    input in = {bytes, size};
    const int64_t which = choose(&in, 4);
    take_kernels(&c, "merge", &in);
    c.quick = true, c.thin = 1;
    if (which == 0) {
        uint64_t random = (uint64_t)choose(&in, 65536);
        const int64_t sources = 2 + choose(&in, 5), rows = choose(&in, 50);
        same_merged(&c, sources, rows, 1 + choose(&in, 150), &random);
    } else if (which == 1) {
        static const int64_t page_sizes[] = {1, 16, 64, 512};
        problem p = take_problem(&c, &in);
        problem_in_parts(&p);
        if (p.desc.page_size) p.desc.page_size = page_sizes[p.desc.page_size % 4];
        same_in_parts(&c, &p);
    } else if (which == 2) {
        sizes_of_merge(&in);
    } else {
        sizes_of_states(&in);
    }
    require_no_failures(&c);
    return 0;
}
