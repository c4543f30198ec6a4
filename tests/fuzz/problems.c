/* SPDX-License-Identifier: Apache-2.0 */
#include "problems.h"

#include <string.h>

static int64_t length(input *in) {
    const int64_t kind = choose(in, 4), value = choose(in, 256);
    return kind == 0 ? value % 4 : kind == 1 ? 62 + value % 5 : kind == 2 ? value : 510 + value % 5 + value / 64 * 64;
}

static void take_sizes(problem *p, input *in) {
    rapt_desc *d = &p->desc;
    d->batch = 1 + maybe(in, 3);
    d->kv_heads = 1 + maybe(in, 3);
    d->heads = d->kv_heads * (1 + maybe(in, 4));
    d->q_len = choose(in, 4) ? choose(in, 4) : choose(in, 40);
    d->kv_len = length(in);
    d->d_k = 1 + choose(in, 40);
    d->d_v = 1 + choose(in, 40);
    problem_types(p, (rapt_type)(1 + maybe(in, 3)), (rapt_type)(1 + maybe(in, 3)), (rapt_type)(1 + maybe(in, 3)),
                  (rapt_type)(1 + maybe(in, 3)));
    const int64_t k = maybe(in, KV_TYPES + 1), v = maybe(in, KV_TYPES + 1); /* 0: as it is */
    problem_kv_types(p, k ? kv_types[k - 1] : d->k.type, v ? kv_types[v - 1] : d->v.type);
    p->data = (data)maybe(in, DATA_KINDS);
}

static void take_masks(problem *p, input *in) {
    rapt_desc *d = &p->desc;
    d->causal = (rapt_causal)choose(in, 3);
    d->window_left = maybe(in, 80) - 1;
    d->window_right = maybe(in, 80) - 1;
    d->prefix = maybe(in, 200);
    p->prefixes = maybe(in, 2);
    d->local_chunk = maybe(in, 130);
    d->mask.type = (rapt_type[]){0, RAPT_BOOL, RAPT_BIT}[maybe(in, 3)];
    p->mask = (key_pattern)choose(in, PATTERNS);
    d->block_mask.type = maybe(in, 2) ? RAPT_BOOL : 0;
    d->block_mask_queries = 1 + choose(in, 20);
    d->block_mask_keys = 64 * (1 + choose(in, 4));
    p->block_mask = (key_pattern)choose(in, PATTERNS);
    p->lengths = maybe(in, 2) ? LENGTHS_DRAWN : LENGTHS_NONE;
    p->nan_masked = maybe(in, 2);
}

static void take_logits(problem *p, input *in) {
    static const float caps[] = {0, 0.5f, 5, 50}, scales[] = {NAN, 1, -0.125f, 1e-30f};
    rapt_desc *d = &p->desc;
    d->scale = scales[maybe(in, 4)];
    d->softcap = caps[maybe(in, 4)];
    d->bias.type = (rapt_type)maybe(in, 4);
    p->bias = (key_pattern)choose(in, PATTERNS);
    p->bias_finite = maybe(in, 2);
    d->alibi = (rapt_alibi)maybe(in, d->bias.type ? 3 : 2);
    d->slopes.type = d->alibi ? RAPT_F32 : 0;
    d->sinks.type = maybe(in, 2) ? RAPT_F32 : 0;
    p->body = maybe(in, 2);
    p->k_grain = (grain)maybe(in, GRAINS);
    p->v_grain = (grain)maybe(in, GRAINS);
}

static void take_places(problem *p, input *in) {
    rapt_desc *d = &p->desc;
    p->q = (place)maybe(in, PLACE_PACKED);
    p->k = (place)maybe(in, PLACE_PACKED);
    p->v = (place)maybe(in, PLACE_PACKED);
    p->o = (place)maybe(in, PLACE_ONE_BATCH);
    p->rows = (place)maybe(in, PLACE_ONE_BATCH);
    p->lse = choose(in, 2);
    p->offset = maybe(in, 64) - 1;
    p->ragged_queries = maybe(in, 2);
    p->ragged_keys = maybe(in, 2);
    const int64_t page_size = maybe(in, 200);
    if (page_size && !p->ragged_keys) {
        problem_paged(p, page_size);
        p->table = maybe(in, 3);
        p->same[EXTRA_TABLE] = (int)maybe(in, 8) ^ (SAME_HEADS | SAME_QUERIES);
    }
    p->ring = maybe(in, 2) && p->table != TABLE_LAST_PAGE;
    if (!p->ragged_keys) d->kv_first = RAPT_CHUNK_KEYS * maybe(in, 3);
    if (d->kv_first && p->table != TABLE_LAST_PAGE && choose(in, 2)) d->kv_total = d->kv_first + length(in);
    for (int e = 0; e < EXTRA_TABLE; e++) p->same[e] = (int)maybe(in, 8);
}

/* Takes positions, and what goes with them; after everything else, so that older inputs have none. */
static void take_positions(problem *p, input *in) {
    rapt_desc *d = &p->desc;
    p->q_offsets = maybe(in, 2);
    p->k_offsets = maybe(in, 2);
    uint64_t random = (uint64_t)maybe(in, 256);
    if (p->k_offsets || random) problem_draw_rest(p, &random);
    d->scores_stage = (rapt_scores_stage)maybe(in, RAPT_SCORES_WEIGHTS + 1);
    if (d->alibi) d->slopes.type = (rapt_type)(RAPT_F32 + maybe(in, 3));
    if (d->sinks.type) d->sinks.type = (rapt_type)(RAPT_F32 + maybe(in, 3));
    if (maybe(in, 2)) d->scale = 0;
    if (d->arith == RAPT_EXACT && maybe(in, 2)) d->arith = RAPT_BF16_DOT;
}

problem take_problem(check *c, input *in) {
    problem p = {.q_factor = 1, .k_factor = 1};
    rapt_desc_init(&p.desc);
    p.data_seed = c->random = (uint64_t)choose(in, 256);
    take_sizes(&p, in);
    take_masks(&p, in);
    take_logits(&p, in);
    take_places(&p, in);
    if (maybe(in, 2)) problem_integer(&p);
    take_positions(&p, in);
    return p;
}

/* Finds all kernels that can run here. Active are those that are the twins of a class, or all. */
static void find_kernels(check *c, const char *target, bool all) {
    *c = (check){.program = target, .case_name = "fuzz"};
    for (const char *name; c->kernel_count < MAX_KERNELS && (name = rapt_isa_name(c->kernel_count)); c->kernel_count++) {
        kernel *k = &c->kernels[c->kernel_count];
        k->name = name;
        k->rounding = rapt_isa_rounding(name);
        k->usable = rapt_isa_usable(name, k->missing, sizeof k->missing);
        k->active = k->usable == RAPT_OK && (all || strncmp(name, "scalar", 6) == 0);
    }
}

void all_kernels(check *c, const char *target) { find_kernels(c, target, true); }

void take_kernels(check *c, const char *target, input *in) {
    find_kernels(c, target, false);
    const int64_t first = choose(in, c->kernel_count);
    for (int64_t n = 0; n < c->kernel_count; n++) {
        kernel *k = &c->kernels[(first + n) % c->kernel_count];
        if (k->usable != RAPT_OK || k->active) continue;
        k->active = true;
        break;
    }
}

void require_no_failures(const check *c) { require(c->failures == 0, "a check has failed"); }
