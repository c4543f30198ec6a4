/* SPDX-License-Identifier: Apache-2.0 */
/* Linear layers, their activations and gates. Drawn problems of every type, layout and number of threads are compared, bit for
 * bit on every kernel, with docs/order.md written down a second time, and within its bound with plain loops in double, all memory
 * around what is written included. Results are hashed: the hash is that of every machine. Then what is refused, and that it
 * touches nothing. --few: only 1, 3 and 17 tokens with each type of weights, which takes an emulator
 * about a second a kernel. */
#define _DEFAULT_SOURCE
#include "each_kernel.h"
#include "guard.h"
#include "rapt_pool.h"
#include "refusals.h"
#include "tensors.h"
#include "tunings.h"

/* ---- Problems ------------------------------------------------------------------------------------------------------------ */

static const char *const arithmetic_names[] = {
    [RAPT_EXACT] = "", [RAPT_INT8_DOT] = ", in integer arithmetic", [RAPT_BF16_DOT] = ", in bf16 arithmetic"};

enum { RESIDUAL_NONE, RESIDUAL_OWN, RESIDUAL_IN_PLACE, RESIDUALS };

typedef struct weights {
    tensor rows;
    float *values, *bias, *scales; /* values: [out, in], as f32 */
} weights;

typedef struct linear {
    int64_t batch, tokens, in, out;
    tensor x, y, residual;
    weights weight, gate; /* a gate without memory is none */
    rapt_activation activation;
    rapt_arith arith;
    int with_residual;
} linear;

static weights draw_weights(rapt_type type, int64_t out, int64_t in) {
    weights w = {.rows = random_rows(type, 1, out, in, one_in(3) ? 5 : 0, 1.0f / sqrtf((float)in))};
    w.values = new_floats(out * in);
    for (int64_t n = 0; n < out; n++) load_row(&w.rows, 0, n, w.values + n * in);
    return w;
}

static void draw_ends(weights *w, int64_t out) {
    bool int8 = w->rows.layout.type == RAPT_INT8;
    w->bias = one_in(2) ? random_floats(out, 0.5f) : NULL;
    w->scales = int8 || one_in(4) ? random_floats(out, int8 ? 0.02f : 1.0f) : NULL;
}

static void draw_sizes(linear *l) {
    l->batch = ONE_OF(1, 1, 2, 3);
    l->tokens = ONE_OF(0, 1, 1, 2, 3, 4, 5, 7, 12, 13, 16, 33, 50, 70) / l->batch;
}

static void draw_residual(linear *l, int64_t gap) {
    if (l->with_residual == RESIDUAL_OWN) l->residual = random_rows(random_float_type(), l->batch, l->tokens, l->out, 3, 1.0f);
    if (l->with_residual != RESIDUAL_IN_PLACE) return;
    free_tensor(&l->y);
    l->residual = l->y = random_rows(RAPT_F32, l->batch, l->tokens, l->out, gap, 1.0f);
}

static void free_weights(weights *w) { free_tensor(&w->rows), free(w->values), free(w->bias), free(w->scales); }

static void free_linear(linear *l) {
    free_tensor(&l->x), free_tensor(&l->y), free_weights(&l->weight), free_weights(&l->gate);
    if (l->with_residual == RESIDUAL_OWN) free_tensor(&l->residual);
}

/* Output n of a token, before its residual and rounding. */
static float output_of(const linear *l, const weights *w, rapt_activation activation, const float *x, int64_t n) {
    float sum = l->arith == RAPT_INT8_DOT
                    ? reference_integer_linear(fused, x, w->rows.layout.type, row_of(&w->rows, 0, 0, n), l->in)
                    : reference_linear(fused, l->arith, x, w->values + n * l->in, l->in);
    return reference_activated(fused, activation,
                               reference_multiply_add(fused, sum, w->scales ? w->scales[n] : 1.0f, w->bias ? w->bias[n] : 0.0f));
}

static reference_value exact_output(const linear *l, const weights *w, rapt_activation activation, const float *x, int64_t n) {
    reference_value sum = l->arith == RAPT_INT8_DOT
                              ? reference_integer_linearped(fused, x, w->rows.layout.type, row_of(&w->rows, 0, 0, n), l->in)
                              : reference_linearped(fused, l->arith, x, w->values + n * l->in, l->in);
    sum = reference_product(sum, (reference_value){w->scales ? w->scales[n] : 1.0f, 0.0});
    return reference_activation(activation, reference_sum(sum, (reference_value){w->bias ? w->bias[n] : 0.0f, 0.0}));
}

/* What y must be; false where that is not within the bound. */
static bool model(const linear *l, tensor *want) {
    bool gated = l->gate.rows.memory != NULL, accurate = true;
    float *x = new_floats(l->in);
    for (int64_t b = 0; b < l->batch; b++)
        for (int64_t t = 0; t < l->tokens; t++) {
            load_row(&l->x, b, t, x);
            for (int64_t n = 0; n < l->out; n++) {
                rapt_activation own = gated ? RAPT_ACTIVATION_NONE : l->activation;
                float got = output_of(l, &l->weight, own, x, n);
                reference_value exact = bounded ? exact_output(l, &l->weight, own, x, n) : (reference_value){0};
                if (gated) {
                    got = output_of(l, &l->gate, l->activation, x, n) * got;
                    if (bounded) exact = reference_product(exact_output(l, &l->gate, l->activation, x, n), exact);
                }
                if (l->with_residual) {
                    float r = value_at(l->with_residual == RESIDUAL_OWN ? &l->residual : want, b, t, n);
                    got += r;
                    exact = reference_sum(exact, (reference_value){r, 0.0});
                }
                accurate = accurate && (!bounded || reference_near(RAPT_F32, got, exact));
                set_value(want, b, t, n, got);
            }
        }
    free(x);
    return accurate;
}

enum { GUARD = 64 };

/* Returns memory of that many bytes, followed by others, which must stay. */
static unsigned char *new_guarded(size_t bytes) {
    unsigned char *at = new_workspace(bytes + GUARD);
    memset(at + bytes, 0x5a, GUARD);
    return at;
}

static bool intact(const unsigned char *at, size_t bytes) {
    unsigned char after[GUARD];
    memset(after, 0x5a, GUARD);
    return memcmp(at + bytes, after, GUARD) == 0;
}

/* Packs the weights, and the gate's if there is one, by nth threads; free them. */
static rapt_status prepack(const rapt_linear_plan *plan, rapt_linear_args *args, int64_t nth, bool pool) {
    rapt_linear_prepack_args a;
    rapt_linear_prepack_args_init(&a);
    size_t bytes = 0;
    rapt_status status = rapt_linear_prepacked_size(plan, &bytes);
    if (status != RAPT_OK) return status;
    unsigned char *const packed = new_guarded(bytes), *const gate = args->gate ? new_guarded(bytes) : NULL;
    a.weight = args->weight, a.gate = args->gate, a.prepacked = packed, a.gate_prepacked = gate, a.prepacked_bytes = bytes;
    if (pool) status = rapt_linear_prepack_run_parallel(plan, &a, nth, rapt_pool_for, NULL);
    else
        for (int64_t ith = nth - 1; ith >= 0 && status == RAPT_OK; ith--)
            status = rapt_linear_prepack_run_share(plan, &a, ith, nth);
    if (!intact(packed, bytes) || (gate && !intact(gate, bytes))) status = RAPT_ERR_OVERLAP;
    args->prepacked = packed, args->gate_prepacked = gate;
    return status;
}

static uint64_t tunings = 11;

/* By nth threads, on a pool or each on its own, the last one first. Half of the calls have a tuning, and some weights that are
 * packed before, drawn apart from all else, so that hashes do not depend on it; the memory after the workspace must stay. */
static rapt_status run_linear(const linear *l, const char *isa, int64_t nth, bool pool) {
    const rapt_tuning tuning = tuning_of(isa, draw(&tunings));
    rapt_linear_desc desc;
    rapt_linear_plan plan;
    rapt_linear_args args;
    rapt_linear_desc_init(&desc), rapt_linear_args_init(&args);
    desc.batch = l->batch, desc.tokens = l->tokens, desc.in = l->in, desc.out = l->out, desc.x = l->x.layout,
    desc.y = l->y.layout;
    desc.weight = l->weight.rows.layout, desc.gate = l->gate.rows.layout, desc.activation = l->activation, desc.arith = l->arith,
    desc.isa = isa;
    if (l->with_residual) desc.residual = l->residual.layout;
    if (draw_below(&tunings, 2)) desc.tuning = &tuning;
    size_t bytes = 0;
    rapt_status status = rapt_linear_plan_init(&plan, &desc);
    if (status == RAPT_OK) status = rapt_linear_workspace_size(&plan, nth, &bytes);
    args.x = l->x.at, args.y = l->y.at, args.residual = l->with_residual == RESIDUAL_IN_PLACE ? l->y.at : l->residual.at;
    args.weight = l->weight.rows.at, args.bias = l->weight.bias, args.scales = l->weight.scales;
    args.gate = l->gate.rows.at, args.gate_bias = l->gate.bias, args.gate_scales = l->gate.scales;
    unsigned char *workspace = new_guarded(bytes);
    args.workspace = workspace, args.workspace_bytes = bytes;
    if (status == RAPT_OK && draw_below(&tunings, 2)) {
        const int64_t packers = 1 + draw_below(&tunings, 3), which = draw_below(&tunings, 4);
        status = prepack(&plan, &args, packers, draw_below(&tunings, 2));
        if (which == 0) aligned_destroy((void *)(uintptr_t)args.prepacked), args.prepacked = NULL;
        if (which == 1) aligned_destroy((void *)(uintptr_t)args.gate_prepacked), args.gate_prepacked = NULL;
    }
    if (pool) status = status == RAPT_OK ? rapt_linear_run_parallel(&plan, &args, nth, rapt_pool_for, NULL) : status;
    else
        for (int64_t ith = nth - 1; ith >= 0 && status == RAPT_OK; ith--) status = rapt_linear_run_share(&plan, &args, ith, nth);
    if (!intact(workspace, bytes)) status = RAPT_ERR_WORKSPACE;
    aligned_destroy(workspace);
    aligned_destroy((void *)(uintptr_t)args.prepacked), aligned_destroy((void *)(uintptr_t)args.gate_prepacked);
    return status;
}

static bool agrees(linear *l, const char *isa, uint64_t *h) {
    tensor want = copy_of(&l->y);
    bool accurate = model(l, &want);
    int64_t nth = ONE_OF(1, 1, 2, 3, 7);
    rapt_status status = run_linear(l, isa, nth, one_in(2));
    bool ok = status == RAPT_OK && accurate && same_tensor(&l->y, &want);
    if (!ok)
        printf("# %s: %s%s; batch %d, tokens %d, in %d, out %d, weights %d, gate %d, activation %d, residual %d, threads %d\n",
               isa, rapt_status_string(status), accurate ? "" : ", inaccurate", (int)l->batch, (int)l->tokens, (int)l->in,
               (int)l->out, l->weight.rows.layout.type, l->gate.rows.layout.type, l->activation, l->with_residual, (int)nth);
    *h = hash_tensor(*h, &l->y);
    free_tensor(&want);
    return ok;
}

/* In bf16 arithmetic some tokens are so small that a part of their channels counts as 0. */
static float size_of_tokens(rapt_arith arith) { return arith == RAPT_BF16_DOT && one_in(4) ? 0x1p-55f : 1.0f; }

static bool linear_problem_in(rapt_arith arith, const char *isa, uint64_t *h) {
    linear l = {.arith = arith};
    draw_sizes(&l);
    l.in = ONE_OF(1, 3, 15, 16, 17, 32, 47, 100, 1000, 1024, 1025, 2070), l.out = ONE_OF(1, 2, 15, 16, 17, 40, 100, 250);
    if (l.in >= 1000 && l.out > 40) l.out = 33;
    if (l.in <= 17 && one_in(8))
        l.tokens = ONE_OF(97, 400), l.out = ONE_OF(490, 600), l.batch = 1; /* several groups and passes */
    int64_t gap = one_in(2) ? 0 : ONE_OF(1, 2, 24);
    rapt_type weight_type = (rapt_type)ONE_OF(RAPT_F32, RAPT_F32, RAPT_F16, RAPT_BF16, RAPT_INT8);
    const float size = size_of_tokens(arith); /* drawn before the call, whose arguments come in any order */
    l.x = random_rows(random_float_type(), l.batch, l.tokens, l.in, gap, size);
    l.weight = draw_weights(weight_type, l.out, l.in);
    l.y = new_rows(random_float_type(), l.batch, l.tokens, l.out, gap);
    draw_ends(&l.weight, l.out);
    l.with_residual = (int)below(RESIDUALS);
    l.activation = (rapt_activation)below(4);
    draw_residual(&l, gap);
    bool ok = agrees(&l, isa, h);
    free_linear(&l);
    return ok;
}

static bool grouped_weights(rapt_type type) { return type != 0 && is_grouped(type); }

/* The same weights as f32. */
static void widen(weights *w) {
    tensor wide = new_rows(RAPT_F32, 1, w->rows.tokens, w->rows.channels, 0);
    memcpy(wide.at, w->values, wide.bytes);
    free_tensor(&w->rows);
    w->rows = wide;
}

/* Draws the weights, those of a gate unless gate_type is 0, what follows the products, and room for Y. */
static void draw_gated(linear *l, rapt_type type, rapt_type gate_type, int64_t gap) {
    l->weight = draw_weights(type, l->out, l->in);
    draw_ends(&l->weight, l->out);
    if (gate_type) l->gate = draw_weights(gate_type, l->out, l->in), draw_ends(&l->gate, l->out);
    l->y = new_rows(random_float_type(), l->batch, l->tokens, l->out, gap);
    l->with_residual = (int)below(RESIDUALS);
    l->activation = (rapt_activation)below(RAPT_SILU + 1);
    draw_residual(l, gap);
}

/* Gates, and weights of groups: with those as f32, the same bits. */
static bool gated_problem_of(const int64_t *types, size_t count, rapt_arith arith, const char *isa, uint64_t *h) {
    linear l = {.arith = arith};
    rapt_type type = (rapt_type)one_of(types, count), gate_type = one_in(5) ? 0 : (rapt_type)one_of(types, count);
    bool grouped = grouped_weights(type) || grouped_weights(gate_type);
    const bool blocks = reference_group(type) == 256 || reference_group(gate_type) == 256;
    draw_sizes(&l);
    l.in = blocks    ? ONE_OF(256, 512, 1024, 1280, 2304)
           : grouped ? ONE_OF(32, 64, 96, 160, 992, 1024, 1056, 2080)
                     : ONE_OF(1, 17, 100, 1025);
    l.out = l.in > 900 ? ONE_OF(1, 33) : ONE_OF(1, 15, 17, 100, 130);
    if (l.in <= 64 && one_in(8)) l.tokens = ONE_OF(97, 300), l.out = ONE_OF(250, 490), l.batch = 1;
    int64_t gap = one_in(2) ? 0 : ONE_OF(1, 2, 24);
    const float size = size_of_tokens(arith); /* drawn before the call, whose arguments come in any order */
    l.x = random_rows(random_float_type(), l.batch, l.tokens, l.in, gap, size);
    draw_gated(&l, type, gate_type, gap);
    tensor before = copy_of(&l.y);
    bool ok = agrees(&l, isa, h);
    if (grouped) {
        tensor after = copy_of(&l.y);
        memcpy(l.y.memory, before.memory, l.y.bytes + 1);
        if (grouped_weights(type)) widen(&l.weight);
        if (grouped_weights(gate_type)) widen(&l.gate);
        bool same = run_linear(&l, isa, 1, false) == RAPT_OK && same_tensor(&l.y, &after);
        if (!same) printf("# %s: types %d and %d: not the bits of the same weights in f32\n", isa, type, gate_type);
        ok = ok && same;
        free_tensor(&after);
    }
    free_tensor(&before);
    free_linear(&l);
    return ok;
}

static bool gated_problem_in(rapt_arith arith, const char *isa, uint64_t *h) {
    static const int64_t types[] = {RAPT_F32, RAPT_F16, RAPT_BF16, RAPT_INT8, RAPT_Q8_0, RAPT_Q8_0, RAPT_Q4_0, RAPT_Q4_0};
    return gated_problem_of(types, sizeof types / sizeof *types, arith, isa, h);
}

static bool linear_problem(const char *isa, uint64_t *h) { return linear_problem_in(RAPT_EXACT, isa, h); }
static bool gated_problem(const char *isa, uint64_t *h) { return gated_problem_in(RAPT_EXACT, isa, h); }
static bool bf16_problem(const char *isa, uint64_t *h) {
    return one_in(2) ? linear_problem_in(RAPT_BF16_DOT, isa, h) : gated_problem_in(RAPT_BF16_DOT, isa, h);
}

/* Sets a group of channels of some tokens to 0. */
static void clear_groups(tensor *x, int64_t group) {
    const int64_t groups = (x->channels + group - 1) / group;
    for (int64_t b = 0; b < x->batch; b++)
        for (int64_t t = 0; t < x->tokens; t++) {
            if (!one_in(4)) continue;
            const int64_t first = group * below(groups);
            for (int64_t c = first; c < first + group && c < x->channels; c++) set_value(x, b, t, c, 0.0f);
        }
}

/* Gives all channels of some tokens one sign, and at least half of the largest magnitude, so that sums of products are large. */
static void make_one_sided(tensor *x) {
    for (int64_t b = 0; b < x->batch; b++)
        for (int64_t t = 0; t < x->tokens; t++) {
            const float side = ONE_OF(-1, 0, 1);
            for (int64_t c = 0; c < x->channels && side != 0.0f; c++) {
                const float value = 0.5f + 0.5f * fabsf(random_value());
                set_value(x, b, t, c, side * value);
            }
        }
}

/* Integer arithmetic, with and without gates. Some tokens are so small that they count as 0, and some groups are of zeros. */
static bool integer_problem_of(const int64_t *types, size_t count, const char *isa, uint64_t *h) {
    linear l = {.arith = RAPT_INT8_DOT};
    const rapt_type type = (rapt_type)one_of(types, count), gate_type = one_in(2) ? 0 : (rapt_type)one_of(types, count);
    draw_sizes(&l);
    const bool blocks = reference_group(type) == 256 || reference_group(gate_type) == 256;
    l.in = blocks                                      ? ONE_OF(256, 512, 1024, 1280, 2304)
           : is_grouped(type) || is_grouped(gate_type) ? ONE_OF(32, 64, 96, 160, 992, 1024, 1056, 2080)
                                                       : ONE_OF(1, 3, 31, 32, 33, 100, 1000, 1025, 2070);
    l.out = l.in > 900 ? ONE_OF(1, 33) : ONE_OF(1, 2, 15, 16, 17, 100, 130);
    if (l.in <= 64 && one_in(8)) l.tokens = ONE_OF(97, 300), l.out = ONE_OF(250, 490), l.batch = 1;
    const int64_t gap = one_in(2) ? 0 : ONE_OF(1, 2, 24);
    const float size = one_in(4) ? 0x1p-123f : 1.0f; /* drawn before the call, whose arguments come in any order */
    l.x = random_rows(random_float_type(), l.batch, l.tokens, l.in, gap, size);
    if (blocks && one_in(2)) make_one_sided(&l.x);
    clear_groups(&l.x, blocks ? 256 : 32);
    draw_gated(&l, type, gate_type, gap);
    const bool ok = agrees(&l, isa, h);
    free_linear(&l);
    return ok;
}

static bool integer_problem(const char *isa, uint64_t *h) {
    static const int64_t types[] = {RAPT_INT8, RAPT_Q8_0, RAPT_Q4_0};
    return integer_problem_of(types, sizeof types / sizeof *types, isa, h);
}

/* Weights with minimums and in blocks of 256 channels, beside others, in every arithmetic. */
static bool block_problem(const char *isa, uint64_t *h) {
    static const int64_t any[] = {RAPT_F32, RAPT_Q8_0, RAPT_Q4_1, RAPT_Q4_K, RAPT_Q6_K},
                         of_integers[] = {RAPT_INT8, RAPT_Q4_0, RAPT_Q4_1, RAPT_Q4_K, RAPT_Q6_K};
    const rapt_arith arith = (rapt_arith)ONE_OF(RAPT_EXACT, RAPT_BF16_DOT, RAPT_INT8_DOT, RAPT_INT8_DOT);
    return arith == RAPT_INT8_DOT ? integer_problem_of(of_integers, 5, isa, h) : gated_problem_of(any, 5, arith, isa, h);
}

/* Each type of weights with one, few and many tokens; the last number of them has a gate. Each layer is computed again on 1 and
 * on 2 threads, tuned or not, its weights prepacked or not, by chance. */
static bool few_tokens(rapt_arith arith, rapt_type type, const char *isa, uint64_t *h) {
    static const int64_t tokens[] = {1, 3, 17};
    bool ok = true;
    for (int i = 0; i < 3; i++) {
        linear l = {.batch = 1, .tokens = tokens[i], .in = reference_group(type) == 256 ? 512 : 160, .out = 33, .arith = arith};
        l.x = random_rows(RAPT_F32, 1, l.tokens, l.in, 0, 1.0f);
        draw_gated(&l, type, i == 2 ? type : 0, 0);
        const tensor before = copy_of(&l.y);
        ok = agrees(&l, isa, h) && ok;
        tensor first = copy_of(&l.y);
        for (int threads = 1; threads <= 2; threads++) {
            memcpy(l.y.memory, before.memory, l.y.bytes + 1);
            ok = run_linear(&l, isa, threads, false) == RAPT_OK && same_tensor(&l.y, &first) && ok;
        }
        free(before.memory), free_tensor(&first), free_linear(&l);
    }
    return ok;
}

static void few_layers(const char *isa) {
    static const rapt_type types[] = {RAPT_F32,  RAPT_F16,  RAPT_BF16, RAPT_INT8, RAPT_Q8_0,
                                      RAPT_Q4_0, RAPT_Q4_1, RAPT_Q4_K, RAPT_Q6_K};
    static const uint64_t golden[2] = {UINT64_C(0x388e94ce968932bf), UINT64_C(0xe5d18997b3a1f4aa)}; /* unfused, fused */
    uint64_t h = hash_start;
    random_state = 19;
    for (int arith = RAPT_EXACT; arith <= RAPT_BF16_DOT; arith++)
        for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
            if (arith == RAPT_INT8_DOT && is_float(types[i])) continue;
            const bool ok = few_tokens((rapt_arith)arith, types[i], isa, &h);
            tap_ok(ok, "%s: 1, 3 and 17 tokens by weights of %s%s", isa, rapt_type_name(types[i]), arithmetic_names[arith]);
        }
    tap_ok(h == golden[fused], "%s: they have the bits of every machine (%016" PRIx64 ")", isa, h);
}

/* A NaN or an infinity makes the outputs of its token NaN, and has no part in those of the others. */
static void spoiled_tokens(const char *isa) {
    enum { TOKENS = 9, OUT = 20 };
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    static const rapt_type types[] = {RAPT_INT8, RAPT_Q8_0, RAPT_Q4_1, RAPT_Q4_K, RAPT_Q6_K};
    enum { TYPES = sizeof types / sizeof *types };
    int wrong = 0;
    random_state = 12;
    for (int n = 0; n < 3 * TYPES; n++) {
        const rapt_type type = types[n / 3];
        const int64_t in = type == RAPT_INT8 ? 70 : 512;
        linear l = {.batch = 1, .tokens = TOKENS, .in = in, .out = OUT, .arith = RAPT_INT8_DOT};
        l.x = random_rows(RAPT_F32, 1, TOKENS, in, 0, 1.0f);
        l.weight = draw_weights(type, OUT, in);
        if (type == RAPT_INT8) l.weight.scales = random_floats(OUT, 0.02f);
        l.y = new_rows(RAPT_F32, 1, TOKENS, OUT, 0);
        rapt_status status = run_linear(&l, isa, 1, false);
        tensor sound = copy_of(&l.y);
        const int64_t token = below(TOKENS);
        set_value(&l.x, 0, token, below(in), odd[n % 3]);
        if (status == RAPT_OK) status = run_linear(&l, isa, 1, false);
        for (int64_t t = 0; t < TOKENS; t++)
            for (int64_t c = 0; c < OUT; c++) {
                const float y = value_at(&l.y, 0, t, c);
                wrong += t == token ? !isnan(y) : y != value_at(&sound, 0, t, c);
            }
        wrong += status != RAPT_OK;
        free_tensor(&sound);
        free_linear(&l);
    }
    tap_ok(wrong == 0, "%s: NaN and infinities in integer arithmetic make their own tokens NaN: %d outputs wrong", isa, wrong);
}

/* ---- Activations --------------------------------------------------------------------------------------------------------- */

/* A linear layer with the unit as its weights is its activation. */
static void apply(const char *isa, rapt_activation activation, const float *from, float *to, int64_t n) {
    static const float one = 1.0f;
    rapt_linear_desc desc;
    rapt_linear_plan plan;
    rapt_linear_args args;
    rapt_linear_desc_init(&desc);
    desc.tokens = n, desc.in = desc.out = 1, desc.activation = activation, desc.isa = isa;
    desc.x = desc.y = rapt_layout_bshd(RAPT_F32, 1, n, 1), desc.weight = rapt_layout_bshd(RAPT_F32, 1, 1, 1);
    size_t bytes = 0;
    if (rapt_linear_plan_init(&plan, &desc) || rapt_linear_workspace_size(&plan, 1, &bytes)) abort();
    rapt_linear_args_init(&args);
    args.x = from, args.weight = &one, args.y = to, args.workspace = new_workspace(bytes), args.workspace_bytes = bytes;
    if (rapt_linear_run(&plan, &args)) abort();
    aligned_destroy(args.workspace);
}

static void activations(const char *isa) {
    enum { N = 200001 };
    static const struct {
        const char *name;
        rapt_activation activation;
        double bound, least; /* bound: of the larger of 1 and |x|; from least on, 1e-4 of itself below 0 */
    } kinds[] = {{"GELU", RAPT_GELU, 1e-7, -8.0}, {"GELU by tanh", RAPT_GELU_TANH, 2e-7, 0.0}, {"SiLU", RAPT_SILU, 2e-7, -10.0}};
    static float x[N], y[N];
    for (int i = 0; i < N; i++) x[i] = (float)(i - N / 2) / (N / 20); /* -10 .. 10 */
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        double worst = 0.0, relative = 0.0;
        apply(isa, kinds[k].activation, x, y, N);
        for (int i = 0; i < N; i++) {
            double v = x[i], want = reference_activation(kinds[k].activation, (reference_value){v, 0.0}).value;
            worst = fmax(worst, fabs(y[i] - want) / fmax(1.0, fabs(v)));
            if (v < -0.01 && v >= kinds[k].least) relative = fmax(relative, fabs(y[i] / want - 1.0));
        }
        tap_ok(worst <= kinds[k].bound, "%s: %s of -10 to 10 is off by at most %.0e of the larger of 1 and |x| (%.2e)", isa,
               kinds[k].name, kinds[k].bound, worst);
        if (kinds[k].least < 0.0)
            tap_ok(relative <= 1e-4, "%s: %s of %g to 0 by at most 1e-4 of itself (%.2e)", isa, kinds[k].name, kinds[k].least,
                   relative);
    }
    static const float odd[] = {NAN, INFINITY, -1e30f, 0.0f, -100.0f};
    bool ok = true;
    for (int kind = RAPT_ACTIVATION_NONE; kind <= RAPT_SILU; kind++) {
        float got[5];
        apply(isa, (rapt_activation)kind, odd, got, 5);
        ok = ok && isnan(got[0]) && got[1] == INFINITY && got[3] == 0.0f && !signbit(got[3]);
        if (kind != RAPT_ACTIVATION_NONE) ok = ok && got[2] == 0.0f && got[4] == 0.0f;
    }
    tap_ok(ok, "%s: activations of NaN, infinity, and far below 0", isa);
}

/* ---- Prepacked weights --------------------------------------------------------------------------------------------------- */

enum { PACKED_TOKENS = 200, PACKED_IN = 1100, PACKED_OUT = 70 };

/* Fills the stack below with this byte, where a function that is called next has its arrays. */
static __attribute__((noinline)) void fill_stack(int byte) {
    volatile unsigned char bytes[1 << 16];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)byte;
}

/* Packed weights have the same bytes for any number of threads, and none of what was in memory before. */
static void packed_bytes(const char *isa, rapt_arith arith, const rapt_linear_plan *plan, const rapt_linear_args *args) {
    rapt_linear_args one = *args, three = *args;
    size_t bytes = 0;
    fill_stack(0x3f);
    rapt_status status = prepack(plan, &one, 1, false);
    fill_stack(0xc1);
    if (status == RAPT_OK) status = prepack(plan, &three, 3, false);
    if (status == RAPT_OK) status = rapt_linear_prepacked_size(plan, &bytes);
    tap_ok(status == RAPT_OK && memcmp(one.prepacked, three.prepacked, bytes) == 0 &&
               (!args->gate || memcmp(one.gate_prepacked, three.gate_prepacked, bytes) == 0),
           "%s: packed weights have the same bytes, whoever packs%s", isa, arithmetic_names[arith]);
    aligned_destroy((void *)(uintptr_t)one.prepacked), aligned_destroy((void *)(uintptr_t)one.gate_prepacked);
    aligned_destroy((void *)(uintptr_t)three.prepacked), aligned_destroy((void *)(uintptr_t)three.gate_prepacked);
}

typedef struct packed_case {
    int64_t tokens, in, out;
    bool gated;
    const rapt_tuning *tuning;
} packed_case;

static packed_case packed_tokens(int64_t tokens, bool gated, const rapt_tuning *tuning) {
    return (packed_case){tokens, PACKED_IN, PACKED_OUT, gated, tuning};
}

/* Many tokens, in integer arithmetic any and in bf16 arithmetic of avx512_bf16, too, read prepacked weights and none of the
 * others, which are gone by then. */
static void packed_alone(const char *isa, rapt_arith arith, packed_case c) {
    const int64_t sizes[] = {c.tokens * c.in, c.out * c.in, c.tokens * c.out};
    const rapt_type type = arith == RAPT_INT8_DOT ? RAPT_INT8 : RAPT_F32;
    rapt_linear_desc desc;
    rapt_linear_plan plan;
    rapt_linear_args args;
    rapt_linear_desc_init(&desc), rapt_linear_args_init(&args);
    desc.tokens = c.tokens, desc.in = c.in, desc.out = c.out, desc.arith = arith, desc.isa = isa, desc.tuning = c.tuning;
    desc.x = rapt_layout_bshd(RAPT_F32, 1, c.tokens, c.in);
    desc.y = rapt_layout_bshd(RAPT_F32, 1, c.tokens, c.out);
    desc.weight = rapt_layout_bshd(type, 1, c.out, c.in);
    if (c.gated) desc.gate = desc.weight;
    size_t bytes = 0;
    if (rapt_linear_plan_init(&plan, &desc) || rapt_linear_workspace_size(&plan, 1, &bytes)) abort();
    float *x = random_floats(sizes[0], 1.0f), *w = random_floats(sizes[1], 1.0f), *g = random_floats(sizes[1], 1.0f);
    float *y[2] = {new_floats(sizes[2]), new_floats(sizes[2])}, *scales = random_floats(c.out, 0.01f);
    args.x = x, args.weight = w, args.gate = c.gated ? g : NULL, args.y = y[0], args.workspace = new_guarded(bytes),
    args.workspace_bytes = bytes;
    if (type == RAPT_INT8) args.scales = args.gate_scales = scales; /* always with a gate */
    rapt_status status = rapt_linear_run(&plan, &args);
    packed_bytes(isa, arith, &plan, &args);
    if (status == RAPT_OK) status = prepack(&plan, &args, 1, false);
    for (int64_t i = 0; i < sizes[1]; i++) w[i] = g[i] = NAN;
    args.y = y[1];
    if (status == RAPT_OK) status = rapt_linear_run(&plan, &args);
    tap_ok(status == RAPT_OK && intact(args.workspace, bytes) && memcmp(y[0], y[1], (size_t)sizes[2] * sizeof(float)) == 0,
           "%s: %d tokens of %d channels read prepacked weights alone%s%s%s", isa, (int)c.tokens, (int)c.in,
           arithmetic_names[arith], c.gated ? "" : ", no gate", c.tuning ? ", tuned" : "");
    free(x), free(w), free(g), free(y[0]), free(y[1]), free(scales), aligned_destroy(args.workspace);
    aligned_destroy((void *)(uintptr_t)args.prepacked), aligned_destroy((void *)(uintptr_t)args.gate_prepacked);
}

/* Weights and a gate of types that take different numbers of bytes, each packed by a plan of its own, right in front of outputs:
 * neither is taken to be larger than it is. */
static void packed_apart(const char *isa) {
    enum { TOKENS = 3, IN = 512, OUT = 40 };
    static const rapt_type types[] = {RAPT_Q8_0, RAPT_Q4_1, RAPT_Q6_K};
    random_state = 13;
    for (int n = 0; n < 6; n++) {
        const rapt_type type = types[n % 3], gate_type = types[(n + 1 + n / 3) % 3];
        tensor w[] = {random_rows(type, 1, OUT, IN, 0, 1.0f), random_rows(gate_type, 1, OUT, IN, 0, 1.0f)};
        tensor x = random_rows(RAPT_F32, 1, TOKENS, IN, 0, 1.0f), y = new_rows(RAPT_F32, 1, TOKENS, OUT, 0);
        rapt_linear_desc desc;
        rapt_linear_plan plan;
        rapt_linear_args args[2];
        rapt_linear_desc_init(&desc), rapt_linear_args_init(&args[0]), rapt_linear_args_init(&args[1]);
        desc.tokens = TOKENS, desc.in = IN, desc.out = OUT, desc.arith = RAPT_INT8_DOT, desc.isa = isa;
        desc.x = x.layout, desc.y = y.layout;
        size_t bytes[2], all = (size_t)(TOKENS * OUT) * sizeof(float), workspace = 0;
        unsigned char *packed[2];
        rapt_status status = RAPT_OK;
        for (int i = 0; i < 2; i++) {
            desc.weight = w[i].layout, args[i].weight = w[i].at;
            if (rapt_linear_plan_init(&plan, &desc) || rapt_linear_prepacked_size(&plan, &bytes[i])) abort();
            packed[i] = new_workspace(bytes[i] + all);
            rapt_linear_prepack_args a;
            rapt_linear_prepack_args_init(&a);
            a.weight = w[i].at, a.prepacked = packed[i], a.prepacked_bytes = bytes[i];
            if (status == RAPT_OK) status = rapt_linear_prepack_run(&plan, &a);
        }
        desc.weight = w[0].layout, desc.gate = w[1].layout;
        if (rapt_linear_plan_init(&plan, &desc) || rapt_linear_workspace_size(&plan, 1, &workspace)) abort();
        args[0].x = x.at, args[0].gate = w[1].at, args[0].y = y.at;
        args[0].workspace = new_workspace(workspace), args[0].workspace_bytes = workspace;
        if (status == RAPT_OK) status = rapt_linear_run(&plan, &args[0]);
        args[0].prepacked = packed[0], args[0].gate_prepacked = packed[1];
        for (int i = 0; i < 2; i++) {
            args[0].y = packed[i] + bytes[i];
            if (status == RAPT_OK) status = rapt_linear_run(&plan, &args[0]);
            tap_ok(status == RAPT_OK && memcmp(args[0].y, y.at, all) == 0,
                   "%s: weights of %s with a gate of %s, packed apart: %s", isa, rapt_type_name(type), rapt_type_name(gate_type),
                   rapt_status_string(status));
        }
        for (int i = 0; i < 2; i++) free_tensor(&w[i]), aligned_destroy(packed[i]);
        free_tensor(&x), free_tensor(&y), aligned_destroy(args[0].workspace);
    }
}

/* ---- Quantised weights --------------------------------------------------------------------------------------------------- */

/* The rows as tokens of a cache, whose heads are their groups of 32. */
static bool append_groups(const tensor *from, rapt_type to_type, unsigned char *to) {
    rapt_kv_append_desc d;
    rapt_kv_append_args a;
    rapt_kv_append_desc_init(&d), rapt_kv_append_args_init(&a);
    d.kv_heads = from->channels / 32, d.tokens = d.kv_len = from->tokens, d.d_v = 32;
    d.new_v = from->layout, d.new_v.head_stride = reference_row_bytes(from->layout.type, 32);
    d.v = rapt_layout_bshd(to_type, d.kv_heads, d.kv_len, 32);
    a.new_v = from->at, a.v = to;
    return rapt_kv_append_run(&d, &a) == RAPT_OK;
}

static void quantised_groups(void) {
    static const rapt_type to_types[] = {RAPT_Q8_0, RAPT_Q4_0, RAPT_Q4_1}, from_types[] = {RAPT_F32, RAPT_F16, RAPT_BF16};
    static const int64_t widths[] = {32, 96, 1024, 1056, 2080};
    random_state = 6;
    for (size_t n = 0; n < 3; n++) {
        int wrong = 0;
        for (size_t i = 0; i < 15; i++) {
            int64_t in = widths[i / 3], out = 1 + below(7);
            tensor from = random_rows(from_types[i % 3], 1, out, in, one_in(2) ? 0 : 7, 1.0f);
            size_t bytes = (size_t)(out * reference_row_bytes(to_types[n], in));
            if (in > 32) { /* a group that is not finite, and one of zeros */
                set_value(&from, 0, out - 1, 5, one_in(2) ? NAN : INFINITY);
                for (int64_t c = 32; c < 64; c++) set_value(&from, 0, 0, c, 0.0f);
            }
            unsigned char *got = malloc(bytes + 1), *want = malloc(bytes + 1);
            if (!got || !want) abort();
            memset(got, 0x5a, bytes + 1), memset(want, 0x5a, bytes + 1);
            wrong +=
                rapt_quantise_groups(out, in, from.layout.type, from.layout.token_stride, from.at, to_types[n], got) != RAPT_OK ||
                !append_groups(&from, to_types[n], want) || memcmp(got, want, bytes + 1) != 0;
            free_tensor(&from), free(got), free(want);
        }
        tap_ok(wrong == 0, "%s: rapt_quantise_groups stores what rapt_kv_append_run_share does: %d of 15 wrong",
               rapt_type_name(to_types[n]), wrong);
    }
}

/* ---- What is refused ----------------------------------------------------------------------------------------------------- */

/* With int8 weights, and both with a gate and a residual, or neither. */
typedef struct good {
    rapt_linear_desc desc;
    rapt_linear_args args;
    rapt_linear_plan plan;
} good;

static float x[4 * 8], w[6 * 8];
static _Alignas(RAPT_WORKSPACE_ALIGNMENT) char workspace[1 << 16];

static void make_good(good *t, bool gated) {
    rapt_linear_desc *d = &t->desc;
    rapt_linear_args *a = &t->args;
    rapt_linear_desc_init(d), rapt_linear_args_init(a);
    d->tokens = 4, d->in = 8, d->out = 6, d->x = rapt_layout_bshd(RAPT_F32, 1, 4, 8), d->y = rapt_layout_bshd(RAPT_F32, 1, 4, 6);
    d->weight = rapt_layout_bshd(RAPT_INT8, 1, 6, 8);
    a->x = x, a->weight = w, a->scales = x, a->y = guard, a->workspace = workspace, a->workspace_bytes = sizeof workspace;
    if (gated) d->residual = d->y, d->gate = d->weight;
    if (gated) a->residual = guard, a->gate = w, a->gate_scales = x, a->gate_bias = x;
    if (rapt_linear_plan_init(&t->plan, d)) abort();
}

static void expect_plan(good *t, const char *change, const rapt_linear_desc *d, rapt_status want) {
    rapt_linear_plan plan;
    expect(t, "rapt_linear_plan_init", change, rapt_linear_plan_init(&plan, d), want);
}

static void expect_run(good *t, const char *change, const rapt_linear_args *a, rapt_status want) {
    expect(t, "rapt_linear_run", change, rapt_linear_run(&t->plan, a), want);
}

static void refused_descriptions(good *t) {
    PLAN(RAPT_OK, (void)d);
    PLAN(RAPT_ERR_STRUCT, d.size -= sizeof d - offsetof(rapt_linear_desc, gate) + 1);
    PLAN(RAPT_ERR_STRUCT, d.size = sizeof d); /* by hand */
    PLAN(RAPT_ERR_SHAPE, d.in = 0);
    PLAN(RAPT_ERR_SHAPE, d.out = RAPT_MAX_WIDTH + 1);
    PLAN(RAPT_ERR_SHAPE, d.tokens = -1);
    PLAN(RAPT_ERR_TYPE, d.x.type = RAPT_INT8);
    PLAN(RAPT_ERR_TYPE, d.weight.type = RAPT_Q8_0); /* groups of 32, which do not divide 8 */
    PLAN(RAPT_ERR_TYPE, d.gate.type = RAPT_Q4_0);
    PLAN(RAPT_ERR_TYPE, d.in = 32; d.x.token_stride = d.weight.token_stride = 128; d.gate.type = RAPT_Q5_0);
    PLAN(RAPT_ERR_TYPE, d.y.type = RAPT_NONE);
    PLAN(RAPT_ERR_STRIDE, d.y.token_stride = 20);
    PLAN(RAPT_ERR_STRIDE, d.x.token_stride = -32);
    PLAN(RAPT_ERR_STRIDE, d.gate.token_stride = -32);
    PLAN(RAPT_ERR_FEATURE, d.activation = (rapt_activation)(RAPT_SILU + 1));
    PLAN(RAPT_OK, d.arith = RAPT_INT8_DOT);
    PLAN(RAPT_ERR_ARITH, d.arith = RAPT_INT8_DOT; d.weight = rapt_layout_bshd(RAPT_F16, 1, 6, 8));
    PLAN(RAPT_ERR_ARITH, d.arith = RAPT_INT8_DOT; d.gate = rapt_layout_bshd(RAPT_BF16, 1, 6, 8));
    PLAN(RAPT_ERR_ARITH, d.arith = (rapt_arith)(RAPT_BF16_DOT + 1));
    PLAN(RAPT_ERR_ISA_UNKNOWN, d.isa = "abacus");
    CALL(RAPT_ERR_NULL, rapt_linear_plan_init((rapt_linear_plan *)NULL, &t->desc));
}

static void refused_calls(good *t) {
    static const rapt_linear_plan none;
    RUN(RAPT_ERR_NULL, a.x = NULL);
    RUN(RAPT_ERR_NULL, a.scales = NULL);
    RUN(RAPT_ERR_NULL, a.residual = NULL);
    RUN(RAPT_ERR_NULL, a.gate = NULL);
    RUN(RAPT_ERR_OVERLAP, a.x = guard + 8);
    RUN(RAPT_ERR_OVERLAP, a.gate_bias = (float *)(void *)(guard + 64));
    RUN(RAPT_ERR_OVERLAP, a.residual = guard + 4); /* shifted against Y */
    RUN(RAPT_ERR_OVERLAP, a.y = workspace + 256; a.residual = a.y);
    RUN(RAPT_ERR_WORKSPACE, a.workspace_bytes = 64);
    RUN(RAPT_ERR_ALIGNMENT, a.workspace = workspace + 4; a.workspace_bytes -= 4);
    RUN(RAPT_ERR_ALIGNMENT, a.bias = (float *)(void *)((char *)x + 1));
    RUN(RAPT_ERR_STRUCT, a.size = sizeof a); /* by hand */
    CALL(RAPT_ERR_RANGE, rapt_linear_run_share(&t->plan, &t->args, 2, 2));
    CALL(RAPT_ERR_RANGE, rapt_linear_run_share(&t->plan, &t->args, 0, 0));
    CALL(RAPT_ERR_PLAN, rapt_linear_run(&none, &t->args));
}

static void refused_beside_plan(good *t) {
    RUN(RAPT_ERR_UNUSED, a.gate = w);
    RUN(RAPT_ERR_UNUSED, a.gate_bias = x);
    RUN(RAPT_ERR_UNUSED, a.gate_scales = x);
    RUN(RAPT_ERR_UNUSED, a.residual = x);
}

static void refused_quantisations(good *t) {
    float scale;
    int8_t *const to = (int8_t *)guard;
    CALL(RAPT_ERR_TYPE, rapt_quantise_weights(1, 8, RAPT_INT8, 8, x, to, &scale));
    CALL(RAPT_ERR_OVERLAP, rapt_quantise_weights(1, 8, RAPT_F32, 32, guard, to, &scale));
    CALL(RAPT_ERR_SHAPE, rapt_quantise_weights(0, 8, RAPT_F32, 32, x, to, &scale));
    CALL(RAPT_ERR_ALIGNMENT, rapt_quantise_weights(1, 8, RAPT_F32, 32, x, to, (float *)(void *)((char *)x + 1)));
    CALL(RAPT_ERR_TYPE, rapt_quantise_groups(1, 40, RAPT_F32, 160, x, RAPT_Q8_0, to));
    CALL(RAPT_ERR_TYPE, rapt_quantise_groups(1, 64, RAPT_F32, 256, x, RAPT_Q5_0, to));
    CALL(RAPT_ERR_TYPE, rapt_quantise_groups(1, 64, RAPT_F32, 256, x, RAPT_INT8, to));
    CALL(RAPT_ERR_TYPE, rapt_quantise_groups(1, 64, RAPT_Q8_0, 68, x, RAPT_Q4_0, to));
    CALL(RAPT_ERR_STRIDE, rapt_quantise_groups(2, 64, RAPT_F32, -256, x, RAPT_Q8_0, to));
    CALL(RAPT_ERR_OVERLAP, rapt_quantise_groups(1, 64, RAPT_F32, 256, guard + 67, RAPT_Q8_0, to));
    CALL(RAPT_ERR_NULL, rapt_quantise_groups(1, 64, RAPT_F32, 256, NULL, RAPT_Q8_0, to));
}

static void refusals(void) {
    good gated, plain;
    make_good(&gated, true), make_good(&plain, false);
    refused_descriptions(&gated);
    refused_calls(&gated);
    refused_beside_plan(&plain);
    refused_quantisations(&plain);
}

static void test_kernel(const char *isa, bool whole) {
    static const drawn problems[] = {{"linear layers have the bits of docs/order.md, within the bound of docs/numerics.md",
                                      linear_problem,
                                      1,
                                      {UINT64_C(0x1fb48bf59b25aeef), UINT64_C(0x2d297e404d3fdc90)},
                                      40,
                                      150},
                                     {"gates and weights of q8_0 and q4_0 likewise, the latter as the same weights of f32",
                                      gated_problem,
                                      5,
                                      {UINT64_C(0xacb5d0f172e862fe), UINT64_C(0xe172e4b2f075f210)},
                                      40,
                                      120},
                                     {"all of these in bf16 arithmetic",
                                      bf16_problem,
                                      7,
                                      {UINT64_C(0x2f43819667e71378), UINT64_C(0x1e3143e740e89035)},
                                      60,
                                      240},
                                     {"weights of int8, q8_0 and q4_0 likewise in integer arithmetic",
                                      integer_problem,
                                      13,
                                      {UINT64_C(0x856310526f3dd77f), UINT64_C(0xc24e9a2e463bb24f)},
                                      60,
                                      240},
                                     {"weights of q4_1, q4_k and q6_k likewise",
                                      block_problem,
                                      17,
                                      {UINT64_C(0x9b8dbb0a24007861), UINT64_C(0x9354e55e60e6a04e)},
                                      60,
                                      240}};
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) test_drawn(isa, whole, &problems[i]);
    few_layers(isa);
    activations(isa);
    packed_alone(isa, RAPT_EXACT, packed_tokens(PACKED_TOKENS, true, NULL));
    packed_alone(isa, RAPT_BF16_DOT, packed_tokens(PACKED_TOKENS, true, NULL));
    packed_alone(isa, RAPT_INT8_DOT, packed_tokens(PACKED_TOKENS, true, NULL));
    packed_alone(isa, RAPT_INT8_DOT, packed_tokens(1, true, NULL));
    if (strncmp(isa, "avx512_bf16", strlen("avx512_bf16")) == 0) { /* or its emulation */
        rapt_tuning none, most;
        rapt_tuning_init(&none), rapt_tuning_init(&most);
        none.bf16_few_tokens = 0, most.bf16_few_tokens = 32;
        for (int64_t tokens = 1; tokens <= 33; tokens++) {
            packed_alone(isa, RAPT_BF16_DOT, packed_tokens(tokens, tokens % 2, NULL));
            packed_alone(isa, RAPT_BF16_DOT, packed_tokens(tokens, tokens % 3, tokens % 2 ? &none : &most));
        }
        /* of so many channels that few tokens take more scratch than many */
        packed_alone(isa, RAPT_BF16_DOT, (packed_case){.tokens = 24, .in = 9000, .out = 5});
    }
    spoiled_tokens(isa);
    packed_apart(isa);
}

static void few_alone(const char *isa, bool whole) {
    (void)whole;
    bounded = false; /* as with --quick */
    few_layers(isa);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--few") == 0) {
        each_kernel(argc - 1, argv + 1, few_alone);
        return tap_done();
    }
    each_kernel(argc, argv, test_kernel);
    quantised_groups();
    fill_guard();
    refusals();
    return tap_done();
}
