/* SPDX-License-Identifier: Apache-2.0 */
/* Cases about the contract itself, but for its errors (refusals.c): nothing to do, workspaces, names, conversions, the golden
 * hashes. */
#include "harness.h"

#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serial.h"

/* ---- Sizes ------------------------------------------------------------------------------------------------------------ */

/* Nothing to do is no error, and needs no pointers. */
static void case_empty(check *c) {
    enum { PLAIN, RAGGED, PAGED, MASKED, UNMERGED, KINDS };
    static const int64_t sizes[][2] = {{0, 5}, {5, 0}, {0, 0}}; /* batch, q_len */
    static const int32_t no_tokens[6] = {0};
    FOR_EACH_KERNEL(c, k) {
        check_step(c, k);
        for (int64_t n = 0; n < KINDS * LENGTH_OF(sizes); n++) {
            rapt_desc d;
            rapt_args a;
            rapt_plan plan;
            rapt_plan_info info = {.size = sizeof info};
            size_t bytes = 0;
            rapt_desc_init(&d);
            rapt_args_init(&a);
            d.isa = k->name;
            d.batch = sizes[n / KINDS][0];
            d.q_len = sizes[n / KINDS][1];
            d.kv_len = 7;
            d.heads = d.kv_heads = d.d_k = d.d_v = 1;
            d.q = d.o = d.lse = rapt_layout_bhsd(RAPT_F32, 1, 5, 1);
            d.k = d.v = rapt_layout_bhsd(RAPT_F32, 1, 7, 1);
            float keys[5 * 7] = {0};
            a.k = a.v = keys; /* there are keys, where there is a batch */
            if (n % KINDS == RAGGED) d.q_starts = no_tokens, d.q_len = 0;
            if (n % KINDS == PAGED) d.page_size = d.pages = 5, d.table = (rapt_layout){RAPT_I32, 8, 0, 0};
            if (n % KINDS == MASKED) d.mask = (rapt_layout){RAPT_BOOL, 35, 0, 7}, d.bias = (rapt_layout){RAPT_F16, 70, 0, 14};
            if (n % KINDS == UNMERGED) d.unmerged = 1, d.state_stride = 128, d.states = (rapt_layout){RAPT_F32, 640, 640, 128};
            rapt_status status = rapt_plan_init(&plan, &d);
            if (status == RAPT_OK) status = rapt_plan_query(&plan, &info);
            if (status == RAPT_OK) status = rapt_workspace_size(&plan, 1, &bytes);
            fence workspace = fence_create((bytes + 63) / 64 * 64, 0, 0);
            a.workspace = workspace.data;
            a.workspace_bytes = bytes;
            if (status == RAPT_OK && (!info.path || !info.arith))
                check_fail(c, k, "batch %d: a plan without a path", (int)d.batch);
            if (status == RAPT_OK) status = rapt_run(&plan, &a);
            if (status != RAPT_OK)
                check_fail(c, k, "kind %d, batch %d, q_len %d: %s", (int)(n % KINDS), (int)d.batch, (int)d.q_len,
                           rapt_status_string(status));
            fence_destroy(&workspace);
            k->runs++;
            k->compared++;
        }
    }
}

/* ---- Workspace ---------------------------------------------------------------------------------------------------------- */

static void case_workspace(check *c) {
    for (int n = 0; n < 24; n++) {
        problem p = problem_of(c, UP_TO(2), 4, 2, n % 2 ? 1 : 30, UP_TO(1100), UP_TO(30), UP_TO(30));
        problem_draw_types(&p, &c->random);
        if (!problem_wanted(c, &p)) continue;
        subject s = subject_create(c, &p);
        FOR_EACH_KERNEL(c, k) {
            rapt_plan plan;
            size_t bytes;
            const int64_t nth = 1 + n % 5;
            s.desc.isa = k->name;
            s.desc.threads = nth;
            if (rapt_plan_init(&plan, &s.desc) != RAPT_OK || rapt_workspace_size(&plan, nth, &bytes) != RAPT_OK) {
                check_fail(c, k, "no plan");
                continue;
            }
            fence workspace = fence_create((bytes + 63) / 64 * 64, 0, 0);
            s.args.workspace = workspace.data;
            s.args.workspace_bytes = bytes - 1;
            rapt_status status = rapt_run_parallel(&plan, &s.args, nth, serial, NULL);
            if (bytes && (status != RAPT_ERR_WORKSPACE || !fence_intact(&s.o) || !fence_intact(&workspace)))
                check_fail(c, k, "%zu of %zu bytes of workspace: %s", bytes - 1, bytes, rapt_status_string(status));
            s.args.workspace_bytes = bytes;
            status = rapt_run_parallel(&plan, &s.args, nth, serial, NULL);
            if (status != RAPT_OK) check_fail(c, k, "%zu bytes of workspace as asked for: %s", bytes, rapt_status_string(status));
            fence_destroy(&workspace);
            fence_fill(&s.o, FENCE_CANARY);
            k->runs++;
            k->compared += 2;
        }
        subject_destroy(&s);
    }
}

/* ---- Names -------------------------------------------------------------------------------------------------------------- */

static void case_names(check *c) {
    if (rapt_isa_name(-1) || rapt_isa_name(c->kernel_count)) check_fail(c, NULL, "rapt_isa_name beyond the list is not null");
    for (int i = 0; i < c->kernel_count; i++) {
        kernel *k = &c->kernels[i];
        if (!k->rounding || (strcmp(k->rounding, "fused") != 0 && strcmp(k->rounding, "unfused") != 0))
            check_fail(c, k, "its rounding class is \"%s\"", k->rounding ? k->rounding : "null");
        if (k->usable != RAPT_OK && k->usable != RAPT_ERR_ISA_MISSING)
            check_fail(c, k, "rapt_isa_usable: %s", rapt_status_string(k->usable));
        if ((k->usable == RAPT_OK) != (k->missing[0] == 0))
            check_fail(c, k, "is missing \"%s\", but %s", k->missing, rapt_status_string(k->usable));
        char cut[4] = {1, 1, 1, 1};
        if (rapt_isa_usable(k->name, cut, 3) != k->usable || cut[2] > 1 || cut[3] != 1)
            check_fail(c, k, "rapt_isa_usable overruns its text");
        if (rapt_isa_force(k->name) != k->usable) check_fail(c, k, "rapt_isa_force does not agree with rapt_isa_usable");
        const char *now = NULL;
        if (k->usable == RAPT_OK && (rapt_isa_current(&now) != RAPT_OK || !now || strcmp(now, k->name) != 0))
            check_fail(c, k, "forced, but %s is current", now ? now : "none");
    }
    if (rapt_isa_usable("no such kernel", NULL, 0) != RAPT_ERR_ISA_UNKNOWN) check_fail(c, NULL, "an unknown kernel is usable");
    if (rapt_isa_force("no such kernel") != RAPT_ERR_ISA_UNKNOWN) check_fail(c, NULL, "an unknown kernel was forced");
    if (rapt_isa_rounding("no such kernel")) check_fail(c, NULL, "an unknown kernel has a rounding class");
    if (rapt_isa_force(NULL) != RAPT_OK) check_fail(c, NULL, "rapt_isa_force(NULL) failed");
    const kernel *best = c->kernels;
    while (best->usable != RAPT_OK) best++; /* ends: scalar code always can */
    const char *now = NULL;
    const bool forced = getenv("RAPT_ISA") && *getenv("RAPT_ISA");
    if (!forced && (rapt_isa_current(&now) != RAPT_OK || !now || strcmp(now, best->name) != 0))
        check_fail(c, NULL, "%s is current, not the first that can run, %s", now ? now : "none", best->name);
    for (int status = 2; status > -40; status--) {
        const char *text = rapt_status_string((rapt_status)status);
        if (!text || !*text || strchr(text, '\n')) check_fail(c, NULL, "status %d has no line of text", status);
    }
    for (int status = RAPT_ERR_ARITH; status < RAPT_OK; status++)
        for (int other = RAPT_ERR_ARITH - 1; other < status; other++)
            if (strcmp(rapt_status_string((rapt_status)status), rapt_status_string((rapt_status)other)) == 0)
                check_fail(c, NULL, "statuses %d and %d have the same text", status, other);
    if (!rapt_version() || !*rapt_version()) check_fail(c, NULL, "no version");
    char features[4] = {1, 1, 1, 1};
    if (rapt_cpu_features(NULL, 10) != RAPT_ERR_NULL) check_fail(c, NULL, "rapt_cpu_features(NULL) was accepted");
    if (rapt_cpu_features(features, 3) != RAPT_OK || features[3] != 1) check_fail(c, NULL, "rapt_cpu_features overruns its text");
    if (rapt_layout_bhsd(RAPT_F32, INT64_MAX, INT64_MAX, 2).batch_stride >= 0 ||
        rapt_layout_bshd(RAPT_F32, INT64_MAX, 2, INT64_MAX).batch_stride >= 0)
        check_fail(c, NULL, "a layout that overflows has a good stride");
}

/* ---- Storage types ------------------------------------------------------------------------------------------------------ */

/* With one key the output is the value itself. So every pattern of a 16-bit type can be sent through a load, and through a store
 * f32 of few bits, which often lie halfway between two neighbours. */
static float halfway(rapt_type type, uint64_t *random) {
    const int64_t exponent = type == RAPT_F16 ? draw_below(random, 34) - 30 : draw_below(random, 255) - 140;
    const float value = ldexpf((float)draw_below(random, 1 << 14), (int)exponent);
    static const uint32_t specials[] = {0x7f800000, 0xff800000, 0x7fc00000, 0x7fffffff, 0xffffffff}; /* infinities and NaNs */
    if (draw_below(random, 50)) return draw_below(random, 2) ? value : -value;
    const uint32_t special = DRAW_OF(random, specials);
    return reference_load(RAPT_F32, &special);
}

static void conversions(check *c, rapt_type type, bool load, int64_t q_len) {
    problem p = problem_of(c, 1, 64, 64, q_len, 1, 1, 1024);
    p.desc.arith = RAPT_EXACT; /* bf16 arithmetic rounds values */
    if (load) p.desc.v.type = type;
    else p.desc.o.type = type;
    p.lse = false;
    subject s = subject_create(c, &p);
    unsigned char *want = allocate((size_t)subject_output_bytes(&s)), *to = want;
    fence_protect(&s.v, false);
    for (int64_t h = 0; h < p.desc.heads; h++) {
        for (int64_t i = 0; i < q_len; i++) {
            for (int64_t ch = 0; ch < p.desc.d_v; ch++, to += reference_type_bytes(p.desc.o.type)) {
                unsigned char *const v = s.v.data + (h * p.desc.d_v + ch) * reference_type_bytes(p.desc.v.type);
                const uint16_t pattern = (uint16_t)(h * p.desc.d_v + ch);
                if (i == 0 && load) memcpy(v, &pattern, sizeof pattern);
                if (i == 0 && !load) reference_store(RAPT_F32, v, halfway(type, &c->random));
                reference_store(p.desc.o.type, to, reference_load(p.desc.v.type, v) + 0.0f); /* outputs have no -0 */
            }
        }
    }
    fence_protect(&s.v, true);
    FOR_EACH_KERNEL(c, k) {
        const how plainly = {WAY_RUN, 1, 1, 1, 0};
        unsigned char *got = subject_run(c, &s, k, &plainly);
        if (got) same_rows(c, k, load ? "the loaded value" : "the rounded value", &s, got, &s, want, 0, 0, 0);
        free(got);
    }
    free(want);
    subject_destroy(&s);
}

static void case_conversions(check *c) {
    static const int64_t few_and_many[] = {1, 20};
    for (int64_t n = 0; n < LENGTH_OF(few_and_many); n++) {
        for (rapt_type type = RAPT_F16; type <= RAPT_BF16; type++) {
            conversions(c, type, true, few_and_many[n]);
            conversions(c, type, false, few_and_many[n]);
        }
    }
}

/* Fills rows of K or Q with one element. */
static void fill_rows(fence *memory, const void *base, const rapt_layout *layout, int64_t tokens, int64_t channels, float value) {
    const int64_t bytes = reference_row_bytes(layout->type, 1);
    fence_protect(memory, false);
    for (int64_t i = 0; i < tokens; i++)
        for (int64_t ch = 0; ch < channels; ch++) {
            unsigned char *const to = (unsigned char *)reference_at(base, layout, 0, 0, i) + ch * bytes;
            if (bytes == 1) *to = 1; /* the least number of fp8 */
            else reference_store(layout->type, to, value);
        }
    fence_protect(memory, true);
}

/* Every product of a score vanishes from below. A fused multiply-add then gives -0; the sum of +0 and a product that was rounded
 * to -0 is +0. So it is for any number of channels: what a kernel multiplies beyond the last one must leave the sign as it is. */
static void case_negative_zeros(check *c) {
    static const struct {
        rapt_type type;
        float least;
    } keys[] = {{RAPT_F32, 0x1p-149f}, {RAPT_F16, 0x1p-24f}, {RAPT_BF16, 0x1p-133f}, {RAPT_F8_E4M3, 0}, {RAPT_F8_E5M2, 0}};
    for (int64_t n = 0; n < 64 * LENGTH_OF(keys); n++) {
        const int64_t channels = 1 + n / LENGTH_OF(keys), queries = n % 4 == 3 ? 20 : 1 + n % 4;
        problem p = problem_of(c, 1, 1, 1, queries, 70, channels, 8);
        p.desc.arith = RAPT_EXACT;
        p.desc.k.type = keys[n % LENGTH_OF(keys)].type;
        p.desc.scale = 1;
        p.desc.scores_stage = RAPT_SCORES_RAW;
        p.lse = false;
        subject s = subject_create(c, &p);
        fill_rows(&s.q, s.args.q, &s.desc.q, queries, channels, -0x1p-149f);
        fill_rows(&s.k, s.args.k, &s.desc.k, 70, channels, keys[n % LENGTH_OF(keys)].least);
        const how plainly = {WAY_RUN, 1, 1, 1, 0};
        FOR_EACH_KERNEL(c, k) {
            unsigned char *got = subject_run(c, &s, k, &plainly);
            bool all = got != NULL;
            for (int64_t i = 0; i < 70 * queries && all; i++) { /* they follow O */
                const float score = reference_load(RAPT_F32, got + (queries * p.desc.d_v + i) * 4);
                all = score == 0.0f && !signbit(score) == (strcmp(k->rounding, "unfused") == 0);
            }
            k->compared += 70 * queries;
            char text[SUBJECT_TEXT];
            if (got && !all)
                check_fail(c, k, "a score is no zero of the right sign: %s", (subject_text(&s, text, sizeof text), text));
            free(got);
        }
        subject_destroy(&s);
    }
}

/* Each type's name is that of no other and finds it again; its class says where it may be. */
static void case_type_names(check *c) {
    static const rapt_type elements[] = {RAPT_F32, RAPT_F16, RAPT_BF16}, masks[] = {RAPT_BOOL, RAPT_BIT, RAPT_I32};
    static const rapt_type weights[] = {RAPT_INT8, RAPT_Q8_0, RAPT_Q4_0, RAPT_Q4_1};
    for (int number = -1; number <= RAPT_TYPE_LIMIT; number++) {
        const rapt_type type = (rapt_type)number;
        rapt_type_class want = RAPT_CLASS_NONE;
        for (int i = 0; i < KV_TYPES; i++)
            if (kv_types[i] == type) want = RAPT_CLASS_CACHE;
        for (int i = 0; i < 4; i++)
            if (weights[i] == type) want = RAPT_CLASS_WEIGHT;
        for (int i = 0; i < 3; i++) {
            if (elements[i] == type) want = RAPT_CLASS_ELEMENT;
            if (masks[i] == type) want = RAPT_CLASS_MASK;
        }
        if (type == RAPT_Q4_K || type == RAPT_Q6_K) want = RAPT_CLASS_MATRIX;
        const char *name = rapt_type_name(type);
        if (rapt_type_class_of(type) != want) check_fail(c, NULL, "type %d is of class %d", number, rapt_type_class_of(type));
        if ((want != RAPT_CLASS_NONE || type == RAPT_NONE) != (name != NULL)) check_fail(c, NULL, "the name of type %d", number);
        if (name && rapt_type_of_name(name) != type) check_fail(c, NULL, "%s is not the name of type %d", name, number);
    }
#define WITH_NAME(type, ...) {type, #type},
    static const struct {
        rapt_type type;
        const char *enumerator;
    } named[] = {RAPT_TYPES(WITH_NAME, WITH_NAME, WITH_NAME, WITH_NAME, WITH_NAME)};
#undef WITH_NAME
    for (int64_t i = 0; i < LENGTH_OF(named); i++) {
        const char *lower = rapt_type_name(named[i].type), *upper = named[i].enumerator + strlen("RAPT_");
        for (; *lower && *lower == (isupper((unsigned char)*upper) ? *upper + 'a' - 'A' : *upper); lower++) upper++;
        if (*lower || *upper) check_fail(c, NULL, "%s is called %s", named[i].enumerator, rapt_type_name(named[i].type));
    }
    static const char *const no_names[] = {"", "F32", "f", "f32 ", "rapt_f32", "q6_0"};
    for (int64_t i = 0; i < LENGTH_OF(no_names); i++)
        if (rapt_type_of_name(no_names[i]) != RAPT_NONE) check_fail(c, NULL, "\"%s\" is the name of a type", no_names[i]);
    if (rapt_type_of_name(NULL) != RAPT_NONE) check_fail(c, NULL, "null is the name of a type");
}

/* The bytes of rows are those of the reference, and nothing else has rows. */
static void case_row_bytes(check *c) {
    for (int type = -1; type <= RAPT_TYPE_LIMIT; type++) {
        bool has_rows = type == RAPT_Q4_K || type == RAPT_Q6_K;
        for (int i = 0; i < KV_TYPES; i++) has_rows |= (int)kv_types[i] == type;
        for (int64_t channels = 0; channels <= RAPT_MAX_HEAD_DIM; channels++) {
            const int64_t want = has_rows ? reference_row_bytes((rapt_type)type, channels) : -1;
            if (rapt_row_bytes((rapt_type)type, channels) != want)
                check_fail(c, NULL, "a row of %d channels of type %d has not %d bytes", (int)channels, type, (int)want);
        }
        const int64_t bad[] = {-1, INT64_MIN, -32};
        for (int64_t n = 0; n < LENGTH_OF(bad); n++)
            if (rapt_row_bytes((rapt_type)type, bad[n]) >= 0) check_fail(c, NULL, "type %d has rows of negative size", type);
        if (type == RAPT_F32 && rapt_row_bytes(RAPT_F32, INT64_MAX) >= 0) check_fail(c, NULL, "a row's bytes overflow");
    }
}

const check_case contract_cases[] = {
    {"empty", "no batch, no queries: nothing to do, null pointers allowed", case_empty, 1},
    {"workspace", "exactly the size asked for works, one byte less is refused", case_workspace, 2},
    {"names", "kernels, status strings, forcing", case_names, 1},
    {"type-names", "a name for each type, and its class", case_type_names, 1},
    {"row-bytes", "of every type and number of channels", case_row_bytes, 1},
    {"negative-zeros", "scores that vanish have the sign of their chain, whatever the width", case_negative_zeros, 2},
    {"conversions", "f16 and bf16: every pattern loaded, and stores to nearest even", case_conversions, 1},
    {"golden", "hashes of outputs, the same on every machine", case_golden, 1},
    {0},
};
