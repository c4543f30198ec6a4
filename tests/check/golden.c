/* SPDX-License-Identifier: Apache-2.0 */
#include "harness.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hash.h"

enum { ARITHS = 2 };
static const rapt_arith ariths[ARITHS] = {RAPT_EXACT, RAPT_BF16_DOT};

typedef struct golden {
    const char *name;
    uint64_t hash[ARITHS][CLASSES];
} golden;
#include "golden.h"

enum { F32 = RAPT_F32, F16 = RAPT_F16, BF16 = RAPT_BF16 };

static void add_masks(problem *p) {
    p->desc.prefix = 7;
    p->desc.local_chunk = 50;
    p->desc.mask.type = RAPT_BIT;
    p->mask = PATTERN_MOST;
    p->desc.block_mask.type = RAPT_BOOL;
    p->desc.block_mask_queries = 5;
    p->desc.block_mask_keys = 64;
    p->block_mask = PATTERN_HALF;
}

static void add_softcap(problem *p) {
    p->desc.softcap = 3;
    p->desc.sinks.type = RAPT_F32;
}

static void add_alibi(problem *p) {
    p->desc.alibi = RAPT_ALIBI_DISTANCE;
    p->desc.slopes.type = RAPT_F32;
    p->desc.bias.type = RAPT_BF16;
    p->bias = PATTERN_MOST;
}

static void add_alibi_bias(problem *p) {
    add_alibi(p);
    p->desc.alibi = RAPT_ALIBI_BIAS;
    p->body = true;
}

static void add_scales(problem *p) {
    p->k_grain = GRAIN_TOKEN;
    p->v_grain = GRAIN_CHANNEL;
}

static void add_more_scales(problem *p) {
    p->k_grain = GRAIN_CHANNEL;
    p->v_grain = GRAIN_TOKEN;
    p->desc.sinks.type = RAPT_F32;
}

static void add_position(problem *p) {
    p->desc.kv_first = 1024;
    p->desc.kv_total = 1800;
    p->desc.window_left = 900;
}

static void add_bytes(problem *p) { problem_kv_types(p, RAPT_F8_E4M3, RAPT_F8_E5M2); }
static void add_groups(problem *p) { problem_kv_types(p, RAPT_Q5_1, RAPT_INT4); }

static void add_mx(problem *p) { problem_kv_types(p, RAPT_MXFP4, RAPT_MXFP8_E4M3); }

static void add_nvfp4(problem *p) { problem_kv_types(p, RAPT_NVFP4, RAPT_NVFP4); }

static void add_integers(problem *p) {
    problem_kv_types(p, RAPT_INT8, RAPT_INT8);
    p->desc.arith = RAPT_INT8_DOT;
    p->k_grain = GRAIN_TOKEN;
}

static void add_integer_groups(problem *p) {
    problem_kv_types(p, RAPT_Q8_0, RAPT_Q4_0);
    p->desc.arith = RAPT_INT8_DOT;
}

static void add_integers_of_4_and_5_bits(problem *p) {
    problem_kv_types(p, RAPT_INT4, RAPT_Q5_0);
    p->desc.arith = RAPT_INT8_DOT;
    p->v_grain = GRAIN_TOKEN;
}

static void add_weights(problem *p) {
    add_softcap(p);
    p->desc.scores_stage = RAPT_SCORES_WEIGHTS;
}

static void add_offsets(problem *p) {
    add_alibi(p);
    p->desc.slopes.type = RAPT_F16;
    p->q_offsets = p->k_offsets = true;
    p->desc.bias_keys = 333;
    p->desc.bias_rest = RAPT_REST_ATTENDED;
}

static const struct fixed {
    const char *name;
    int batch, heads, kv_heads, q_len, kv_len, d_k, d_v;
    int q, k, v, o;
    int causal, left, right;
    data data;
    float scale; /* 0: the default */
    void (*add)(problem *p);
} fixed[] = {
    {"decode", 1, 8, 2, 1, 150, 64, 64, F32, F32, F32, F32, 0, -1, -1, DATA_NORMAL, 0, NULL},
    {"decode-chunks", 1, 2, 1, 1, 1300, 16, 24, F32, F16, F16, F32, 1, -1, -1, DATA_NORMAL, 0, NULL},
    {"prefill", 1, 2, 2, 40, 40, 32, 32, F32, F32, F32, F32, 1, -1, -1, DATA_NORMAL, 0, NULL},
    {"prefill-chunks", 1, 1, 1, 20, 1100, 7, 5, F32, F32, F32, F32, 0, -1, -1, DATA_NORMAL, 0, NULL},
    {"f16", 1, 3, 1, 9, 70, 24, 40, F16, F16, F16, F16, 2, -1, -1, DATA_NORMAL, 0.25f, NULL},
    {"bf16", 2, 2, 1, 9, 70, 33, 17, BF16, BF16, BF16, BF16, 1, -1, -1, DATA_NORMAL, 0, NULL},
    {"window", 1, 2, 1, 30, 90, 12, 12, F32, F32, F32, F32, 0, 20, 3, DATA_NORMAL, -0.5f, NULL},
    {"large", 1, 2, 1, 20, 130, 20, 20, F32, F32, F32, F32, 0, -1, -1, DATA_LARGE, 0, NULL},
    {"rising", 1, 1, 1, 3, 600, 8, 8, F32, F32, F32, F32, 0, -1, -1, DATA_RISING, 0, NULL},
    {"ties", 1, 2, 1, 17, 65, 3, 63, F32, F32, F32, F16, 0, -1, -1, DATA_TIES, 0, NULL},
    {"denormals", 1, 2, 1, 5, 100, 9, 9, F32, F32, F32, F32, 0, -1, -1, DATA_DENORMAL, 0, NULL},
    {"scale-tiny", 1, 2, 1, 5, 100, 15, 16, F32, F32, F32, F32, 0, -1, -1, DATA_NORMAL, 1e-30f, NULL},
    {"masks", 1, 4, 2, 20, 150, 12, 20, F32, F32, F32, F32, 1, -1, -1, DATA_NORMAL, 0, add_masks},
    {"softcap", 2, 3, 1, 20, 700, 8, 8, F32, F16, F32, F32, 0, -1, -1, DATA_NORMAL, 1, add_softcap},
    {"alibi", 2, 4, 2, 3, 600, 10, 8, F32, F32, F32, F32, 1, -1, -1, DATA_NORMAL, 0, add_alibi},
    {"alibi-bias", 1, 2, 1, 20, 130, 7, 9, F32, F32, F32, F32, 0, -1, -1, DATA_NORMAL, 0, add_alibi_bias},
    {"factors", 2, 4, 2, 3, 150, 24, 16, F32, BF16, BF16, BF16, 0, -1, -1, DATA_NORMAL, 0, add_scales},
    {"more-factors", 2, 4, 2, 20, 600, 9, 17, F32, F32, F32, F32, 0, -1, -1, DATA_NORMAL, -0.25f, add_more_scales},
    {"position", 1, 2, 1, 3, 700, 16, 16, F32, F32, F32, F32, 1, -1, -1, DATA_NORMAL, 0, add_position},
    {"bytes", 1, 4, 2, 20, 150, 20, 24, F32, F32, F32, F32, 0, -1, -1, DATA_NORMAL, 0, add_bytes},
    {"groups", 1, 4, 2, 3, 150, 64, 32, F32, F32, F32, F32, 0, -1, -1, DATA_NORMAL, 0, add_groups},
    {"mx", 1, 4, 2, 3, 150, 64, 32, F32, F32, F32, F32, 0, -1, -1, DATA_NORMAL, 0, add_mx},
    {"nvfp4", 1, 4, 2, 3, 150, 48, 16, F32, F32, F32, F32, 0, -1, -1, DATA_NORMAL, 0, add_nvfp4},
    {"wide", 1, 4, 2, 20, 150, 200, 40, F32, F32, F32, F32, 1, -1, -1, DATA_NORMAL, 0, NULL},
    {"wide-decode", 1, 4, 2, 1, 150, 576, 40, F32, F32, BF16, F32, 0, -1, -1, DATA_NORMAL, 0, NULL},
    {"weights", 1, 4, 2, 3, 700, 24, 8, F32, F32, F32, F32, 1, -1, -1, DATA_NORMAL, 0, add_weights},
    {"offsets", 2, 4, 2, 20, 600, 16, 8, F32, F32, F32, F32, 1, 200, -1, DATA_NORMAL, 0, add_offsets},
    {"integers", 1, 4, 2, 20, 600, 40, 24, F32, F32, F32, F32, 1, -1, -1, DATA_NORMAL, 0.05f, add_integers},
    {"integer-groups", 1, 4, 2, 20, 600, 64, 96, F32, F32, F32, F32, 1, -1, -1, DATA_NORMAL, 0, add_integer_groups},
    {"integers-4-5", 1, 4, 2, 3, 700, 96, 64, F32, F32, F32, F32, 1, -1, -1, DATA_NORMAL, 0, add_integers_of_4_and_5_bits},
};

/* Over the elements' bytes, lowest first. */
static uint64_t hash_of(const subject *s, const unsigned char *dense) {
    const int64_t elements = reference_rows(&s->desc) * s->desc.d_v, bytes = reference_type_bytes(s->desc.o.type);
    const int64_t floats = (subject_output_bytes(s) - elements * bytes) / 4; /* of lse and scores */
    uint64_t hash = hash_start;
    for (int64_t e = 0; e < elements + floats; e++) {
        const int64_t size = e < elements ? bytes : 4;
        uint32_t value = 0;
        uint16_t half;
        if (size == 4) {
            memcpy(&value, dense, sizeof value);
        } else {
            memcpy(&half, dense, sizeof half);
            value = half;
        }
        for (int64_t b = 0; b < size; b++, value >>= 8) hash = hash_word(hash, value & 0xff);
        dense += size;
    }
    return hash;
}

static problem fixed_problem(check *c, const struct fixed *f, rapt_arith arith) {
    problem p = problem_of(c, f->batch, f->heads, f->kv_heads, f->q_len, f->kv_len, f->d_k, f->d_v);
    problem_types(&p, (rapt_type)f->q, (rapt_type)f->k, (rapt_type)f->v, (rapt_type)f->o);
    p.desc.causal = (rapt_causal)f->causal;
    p.desc.window_left = f->left;
    p.desc.window_right = f->right;
    if (f->scale != 0) p.desc.scale = f->scale;
    p.data = f->data;
    p.data_seed = hash_text(1, f->name);
    p.desc.arith = arith;
    if (f->add) f->add(&p);
    return p;
}

static const golden *golden_of(const char *name) {
    static const golden none = {0};
    for (int64_t g = 0; g < LENGTH_OF(golden_hashes); g++)
        if (strcmp(golden_hashes[g].name, name) == 0) return &golden_hashes[g];
    return &none;
}

/* Hashes a problem's outputs by each kernel that was asked for, with its own tuning and with others, compares them, and leaves
 * one for each class. What the hashes are is known, so twins, which emulators take longest for, need not run. */
static void hash_all(check *c, const char *name, const problem *p, const uint64_t *want, uint64_t *hashes) {
    subject s = subject_create(c, p);
    FOR_EACH_KERNEL(c, k) {
        if (!k->chosen) continue;
        const int rounding = strcmp(k->rounding, class_names[FUSED]) == 0;
        const uint64_t last = c->print_golden ? 0 : c->quick ? TUNING_MOST : 12; /* 0: its own */
        for (uint64_t tuned = 0; tuned <= last; tuned++) {
            const how h = {WAY_RUN, tuned % 4 ? 1 : 3, 1, 1, tuned};
            unsigned char *dense = subject_run(c, &s, k, &h);
            if (!dense) continue;
            hashes[rounding] = hash_of(&s, dense);
            free(dense);
            k->compared++;
            if (!c->print_golden && want[rounding] != hashes[rounding])
                check_fail(c, k, "%s%s: hash %016" PRIx64 ", not %016" PRIx64 ", tuning %d", name,
                           p->desc.arith == RAPT_BF16_DOT ? ", bf16" : "", hashes[rounding], want[rounding], (int)tuned);
        }
    }
    subject_destroy(&s);
}

void case_golden(check *c) {
    if (c->print_golden)
        puts("/* SPDX-License-Identifier: Apache-2.0 */\n"
             "/* Hashes of outputs: {name, {{unfused, fused} of exact arithmetic, then of bf16}}. Made by check "
             "--print-golden. "
             "They\n"
             " * change only with the order of operations (docs/order.md). */\n"
             "/* clang-format off */\n"
             "static const golden golden_hashes[] = {");
    for (int64_t n = 0; n < LENGTH_OF(fixed); n++) {
        const golden *want = golden_of(fixed[n].name);
        golden got = {0};
        for (int a = 0; a < ARITHS; a++) {
            const problem p = fixed_problem(c, &fixed[n], ariths[a]);
            if (p.desc.arith == ariths[a] || a == 0) hash_all(c, fixed[n].name, &p, want->hash[a], got.hash[a]);
        }
        if (c->print_golden)
            printf("    {\"%s\", {{0x%016" PRIx64 ", 0x%016" PRIx64 "}, {0x%016" PRIx64 ", 0x%016" PRIx64 "}}},\n", fixed[n].name,
                   got.hash[0][UNFUSED], got.hash[0][FUSED], got.hash[1][UNFUSED], got.hash[1][FUSED]);
    }
    if (c->print_golden) puts("};");
}
