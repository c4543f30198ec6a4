/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a cache and ranges of it that are copied, as the test of copies could have drawn them, which must become what the
 * plainest code makes of them; or with some numbers changed in its ranges: it must be refused with nothing written, or be right
 * all the same. */
#define main test_main
#include "../api/copy.c" /* NOLINT(bugprone-suspicious-include): whose problems are taken */
#undef main

#include "drawn.h"

static bool is_within(const problem *p, const rapt_kv_range *r) {
    const rapt_kv_copy_desc *d = &p->desc;
    return r->tokens >= 0 && r->from >= 0 && r->from < d->entries && r->to >= 0 && r->to < d->entries && r->from_token >= 0 &&
           r->to_token >= 0 && (int64_t)r->from_token + r->tokens <= d->tokens && (int64_t)r->to_token + r->tokens <= d->tokens;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    problem p;
    input in = {bytes, size};
    const int64_t changes = choose(&in, 4);
    const rapt_type k = kv_types[choose(&in, KV_TYPES)], v = kv_types[choose(&in, KV_TYPES)];
    input of_changes = {bytes + size, in.size < 12 ? in.size : 12};
    of_changes.bytes -= of_changes.size;
    draw_from(&in);
    make_problem(&p, k, v);
    for (int64_t n = 0; n < changes && p.count; n++) {
        rapt_kv_range *r = &p.ranges[choose(&of_changes, p.count)];
        int32_t *const numbers[] = {&r->from, &r->from_token, &r->to, &r->to_token, &r->tokens};
        int32_t *const number = numbers[choose(&of_changes, 5)];
        *number = choose(&of_changes, 4) ? (int32_t)((uint32_t)*number + take_byte(&of_changes) % 5 - 2)
                                         : (int32_t)take_number(&of_changes);
    }
    bool within = true;
    for (int64_t n = 0; n < p.count; n++) within = within && is_within(&p, &p.ranges[n]);
    if (within) {
        require(copy_agrees(&p), "a copy is not what the model says");
    } else {
        unsigned char *before = malloc(p.bytes + 1);
        if (!before) abort();
        memcpy(before, p.to, p.bytes + 1);
        const rapt_kv_copy_args a = args_of(&p);
        require(rapt_kv_copy_run(&p.desc, &a) != RAPT_OK, "a range beyond the cache is accepted");
        require(!memcmp(before, p.to, p.bytes + 1), "a refused copy has written");
        free(before);
    }
    free_problem(&p);
    return 0;
}
