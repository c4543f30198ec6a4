/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a problem, and as changes to its arrays: block tables, starts of ragged batches, of tables and of rings, lengths,
 * last pages, prefixes, positions. A call must be refused, by all ways to run and with nothing written, or two kernels of a class
 * must give the same bits, within the bound of the double reference, and touch nothing else. Arrays are exactly as long as they
 * must be, between guard pages; what they may point to is, too. */
#include <string.h>

#include "problems.h"
#include "serial.h"

static void keep_some(problem *p, input *in) {
    const int64_t page_size = 1 + choose(in, 70);
    p->unmapped = p->nan_masked = false;
    switch (choose(in, 4)) {
    case 0:
        p->ragged_queries = true;
        break;
    case 1:
        p->ragged_keys = true;
        problem_of_all_keys(p);
        p->desc.page_size = 0, p->desc.table = (rapt_layout){0}, p->table = TABLE_MATRIX;
        break;
    default:
        p->ragged_keys = false;
        problem_paged(p, page_size);
        p->table = choose(in, p->ring || p->desc.kv_total ? 2 : 3);
    }
    p->desc.trust_table = 0;
}

/* Some integers of an array become others: neighbours, small ones, any, or what is about as much as there may be. */
static void change_integers(const rapt_desc *d, fence *f, input *in) {
    const int64_t bounds[] = {d->pages, d->kv_len, d->page_size, d->q_len, d->kv_total, d->pages * d->page_size};
    const int64_t count = (int64_t)(f->bytes / sizeof(int32_t));
    int32_t number;
    fence_protect(f, false);
    for (int64_t n = 1 + choose(in, 3); n > 0; n--) {
        unsigned char *const at = f->data + choose(in, count) * (int64_t)sizeof number;
        const uint8_t kind = take_byte(in);
        memcpy(&number, at, sizeof number);
        if (kind < 100) number = (int32_t)((uint32_t)number + kind % 9 - 4);
        else if (kind < 180) number = (int32_t)(bounds[kind % 6] + kind / 6 % 3 - 1);
        else if (kind < 220) number = (int32_t)choose(in, 1000) - 4;
        else number = (int32_t)take_number(in);
        memcpy(at, &number, sizeof number);
    }
    fence_protect(f, true);
}

static void no_wait(void *arg) { (void)arg; }

static bool untouched(const subject *s) {
    return fence_intact(&s->o) && (!s->desc.lse.type || fence_intact(&s->lse)) &&
           (!s->desc.scores_stage || fence_intact(&s->scores));
}

/* Is it refused? If so, by all functions alike. */
static bool refused(subject *s, const char *isa) {
    rapt_plan plan;
    char text[256];
    s->desc.isa = isa;
    const rapt_status planned = rapt_plan_init(&plan, &s->desc);
    require(rapt_plan_explain(&s->desc, text, sizeof text) == planned, "a refusal and its explanation differ");
    if (planned != RAPT_OK) {
        /* An entry of more keys has longer rows of scores, too, which may meet. */
        const bool longer = planned == RAPT_ERR_STRIDE && s->desc.k_starts && s->desc.scores_stage;
        require(planned == RAPT_ERR_TABLE || longer, "arrays that are refused for another reason");
        return true;
    }
    size_t bytes = 0;
    require(rapt_workspace_size(&plan, 1, &bytes) == RAPT_OK, "no workspace");
    fence workspace = fence_create((bytes + 63) / 64 * 64, 0, 0);
    rapt_args args = s->args;
    args.workspace = workspace.data, args.workspace_bytes = bytes;
    const rapt_status status = rapt_args_explain(&plan, &args, 1, text, sizeof text);
    require((text[0] == 0) == (status == RAPT_OK), "a refusal without a line");
    if (status != RAPT_OK) {
        require(rapt_run(&plan, &args) == status && rapt_run_parallel(&plan, &args, 1, serial, NULL) == status &&
                    rapt_run_share(&plan, &args, 0, 1, no_wait, NULL) == status &&
                    rapt_run_phase(&plan, &args, 0, 0, 1) == status,
                "a call that is refused in one way only");
        require(untouched(s), "a refused call has written");
    }
    fence_destroy(&workspace);
    return status != RAPT_OK;
}

/* Other starts may be right, and give an entry more queries or keys than the masks and other rows here are made for. */
static bool has_room(const rapt_desc *d, const rapt_desc *made) {
    for (int64_t b = 0; b < d->batch; b++)
        if (reference_queries(d, b) > made->q_len) return false;
    return !d->k_starts || reference_columns(d) <= made->kv_len;
}

/* Returns how many pages a row of the table has, as the starts of entries say; 0 without them. */
static int64_t pages_in_table(const subject *s) { return s->args.table_starts ? s->args.table_starts[s->desc.batch] : 0; }

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static const extra arrays[] = {EXTRA_TABLE,     EXTRA_TABLE_STARTS, EXTRA_LAST_PAGE, EXTRA_RING_STARTS, EXTRA_PREFIXES,
                                   EXTRA_Q_OFFSETS, EXTRA_K_OFFSETS,    EXTRA_Q_STARTS,  EXTRA_K_STARTS};
    static check c;
    input in = {bytes, size};
    take_kernels(&c, "tables", &in);
    c.quick = true, c.thin = 1;
    input changes = {bytes, size < 24 ? size : 24}; /* the last bytes say what changes, so that these are not many problems */
    changes.bytes = bytes + size - changes.size;
    problem p = take_problem(&c, &in);
    keep_some(&p, &changes);
    if (!problem_wanted(&c, &p)) return 0;
    subject s = subject_create(&c, &p);
    require(!refused(&s, "scalar"), "a good call is refused");
    fence *present[LENGTH_OF(arrays) + 1];
    int64_t count = 0;
    if (s.lengths.bytes) present[count++] = &s.lengths;
    for (int64_t n = 0; n < LENGTH_OF(arrays); n++)
        if (s.extra[arrays[n]].bytes) present[count++] = &s.extra[arrays[n]];
    const int64_t pages = pages_in_table(&s);
    for (int64_t n = choose(&changes, 4); n > 0 && count; n--)
        change_integers(&s.desc, present[choose(&changes, count)], &changes);
    /* More pages than there are would be read, for no call knows the table's length. */
    if (pages_in_table(&s) <= pages && !refused(&s, "scalar") && has_room(&s.desc, &p.desc)) examine_subject(&c, &s, p.data_seed);
    subject_destroy(&s);
    require_no_failures(&c);
    return 0;
}
