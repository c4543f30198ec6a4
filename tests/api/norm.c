/* SPDX-License-Identifier: Apache-2.0 */
/* Normalisation. Drawn problems of every type, layout and number of threads are compared, bit for bit on every kernel, with
 * docs/order.md written down a second time, and within its bound with plain loops in double, all memory around what is written
 * included. Results are hashed: the hash is that of every machine. Then means far from 0, what may lie where something else does,
 * and what is refused. */
#define _DEFAULT_SOURCE
#include "each_kernel.h"
#include "guard.h"
#include "rapt_pool.h"
#include "refusals.h"
#include "tensors.h"

/* ---- Problems ------------------------------------------------------------------------------------------------------------ */

typedef enum sum_place { SUM_NONE, SUM_OWN, SUM_AS_X, SUM_AS_RESIDUAL } sum_place;

typedef struct norm {
    int64_t batch, tokens, channels;
    tensor x, y, residual, sum; /* one without memory is none */
    bool in_place, rms;         /* in_place: y is x */
    sum_place sum_place;
    float *weight, *bias, *mean, *inverse, epsilon;
} norm;

static tensor *sum_of(norm *n) {
    return n->sum_place == SUM_AS_X ? &n->x : n->sum_place == SUM_AS_RESIDUAL ? &n->residual : &n->sum;
}

static void free_norm(norm *n) {
    free_tensor(&n->x), free_tensor(&n->residual), free_tensor(&n->sum);
    if (!n->in_place) free_tensor(&n->y);
    free(n->weight), free(n->bias), free(n->mean), free(n->inverse);
}

/* What is wanted. */
typedef struct results {
    tensor y, sum;
    float *mean, *inverse;
} results;

/* False where what must be is not within the bound. */
static bool model(norm *n, results *want) {
    const int64_t channels = n->channels;
    float *z = new_floats(channels), *y = new_floats(channels);
    reference_value *exact = malloc((size_t)channels * sizeof *exact), mean = {0}, inverse;
    bool accurate = true;
    if (!exact) abort();
    for (int64_t b = 0; b < n->batch; b++)
        for (int64_t t = 0; t < n->tokens; t++) {
            float *m = &want->mean[b * n->tokens + t], *f = &want->inverse[b * n->tokens + t];
            load_row(&n->x, b, t, z);
            for (int64_t i = 0; i < channels && n->residual.memory; i++) z[i] += value_at(&n->residual, b, t, i);
            reference_normalise(fused, n->rms, z, channels, n->epsilon, n->weight, n->bias, y, n->rms ? NULL : m, f);
            reference_normalised(n->rms, z, channels, n->epsilon, n->weight, n->bias, exact, n->rms ? NULL : &mean, &inverse);
            accurate = accurate && reference_near(RAPT_F32, *f, inverse) && (n->rms || reference_near(RAPT_F32, *m, mean));
            for (int64_t i = 0; i < channels; i++) {
                accurate = accurate && reference_near(RAPT_F32, y[i], exact[i]);
                set_value(&want->y, b, t, i, y[i]);
                if (n->sum_place) set_value(&want->sum, b, t, i, z[i]);
            }
        }
    free(z), free(y), free(exact);
    return accurate;
}

static rapt_norm_args arguments(norm *n, const char *isa) {
    rapt_norm_args a;
    rapt_norm_args_init(&a);
    a.batch = n->batch, a.tokens = n->tokens, a.channels = n->channels, a.x = n->x.layout, a.y = n->y.layout;
    a.from = n->x.at, a.to = n->y.at, a.weight = n->weight, a.bias = n->bias, a.isa = isa, a.epsilon = n->epsilon;
    a.residual = n->residual.layout, a.residual_from = n->residual.at;
    if (n->sum_place) a.sum = sum_of(n)->layout, a.sum_to = sum_of(n)->at;
    a.mean = n->mean, a.inverse_deviation = n->inverse;
    return a;
}

static bool agrees(norm *n, const char *isa, uint64_t *h) {
    const int64_t tokens = n->batch * n->tokens;
    const size_t bytes = (size_t)tokens * sizeof(float);
    results want = {copy_of(&n->y), copy_of(sum_of(n)), new_floats(tokens), new_floats(tokens)};
    bool accurate = model(n, &want);
    rapt_norm_args a = arguments(n, isa);
    int64_t nth = ONE_OF(1, 2, 5);
    rapt_status status = RAPT_OK;
    if (one_in(2)) status = (n->rms ? rapt_rms_norm_run_parallel : rapt_layer_norm_run_parallel)(&a, nth, rapt_pool_for, NULL);
    else
        for (int64_t ith = 0; ith < nth && status == RAPT_OK; ith++)
            status = (n->rms ? rapt_rms_norm_run_share : rapt_layer_norm_run_share)(&a, ith, nth);
    bool ok = status == RAPT_OK && accurate && same_tensor(&n->y, &want.y);
    if (n->sum_place) ok = ok && same_tensor(sum_of(n), &want.sum);
    if (n->mean) ok = ok && !memcmp(n->mean, want.mean, bytes);
    if (n->inverse) ok = ok && !memcmp(n->inverse, want.inverse, bytes);
    if (!ok)
        printf("# %s: %s%s; batch %d, tokens %d, channels %d, rms %d, in place %d, residual %d, sum %d\n", isa,
               rapt_status_string(status), accurate ? "" : ", inaccurate", (int)n->batch, (int)n->tokens, (int)n->channels,
               n->rms, n->in_place, n->residual.layout.type, n->sum_place);
    *h = hash_tensor(*h, &n->y);
    if (n->sum_place) *h = hash_tensor(*h, sum_of(n));
    if (n->mean) *h = hash_numbers(*h, n->mean, bytes, sizeof *n->mean);
    if (n->inverse) *h = hash_numbers(*h, n->inverse, bytes, sizeof *n->inverse);
    free_tensor(&want.y), free_tensor(&want.sum), free(want.mean), free(want.inverse);
    return ok;
}

static void draw_rows(norm *n, int64_t gap) {
    rapt_type type = random_float_type();
    n->x = n->y = random_rows(type, n->batch, n->tokens, n->channels, gap, one_in(3) ? 100.0f : 1.0f);
    n->in_place = one_in(2);
    if (!n->in_place) n->y = new_rows(random_float_type(), n->batch, n->tokens, n->channels, gap);
    n->weight = one_in(2) ? random_floats(n->channels, 1.0f) : NULL,
    n->bias = one_in(2) ? random_floats(n->channels, 1.0f) : NULL;
    n->epsilon = one_in(2) ? 1e-12f : 1e-5f;
}

static bool plain_problem(const char *isa, uint64_t *h) {
    norm n = {.batch = ONE_OF(1, 2)};
    n.tokens = ONE_OF(0, 1, 3, 9), n.channels = ONE_OF(1, 2, 15, 16, 17, 31, 48, 384, 1000);
    draw_rows(&n, one_in(2) ? 0 : ONE_OF(1, 2, 24));
    bool ok = agrees(&n, isa, h);
    free_norm(&n);
    return ok;
}

/* Both normalisations, with sums and statistics. Rows of more than 8192 channels are converted in parts, of those that are
 * rounded 512 at a time. */
static bool sum_problem(const char *isa, uint64_t *h) {
    norm n = {.batch = ONE_OF(1, 2)}; /* compilers differ in the order in which they would draw in one expression */
    n.rms = one_in(2), n.tokens = ONE_OF(0, 1, 3, 7), n.channels = ONE_OF(1, 15, 16, 33, 384, 511, 513, 1000, 8192, 8193, 16500);
    int64_t gap = one_in(2) ? 0 : ONE_OF(1, 2, 24);
    draw_rows(&n, gap);
    if (!one_in(4)) {
        gap = one_in(2) ? 0 : 3;
        n.residual = random_rows(random_float_type(), n.batch, n.tokens, n.channels, gap, 1.0f);
    }
    n.sum_place = (sum_place)below(4);
    if (n.sum_place == SUM_AS_RESIDUAL && !n.residual.memory) n.sum_place = SUM_AS_X;
    if (n.sum_place == SUM_AS_X && n.in_place) n.sum_place = SUM_OWN;
    if (n.sum_place == SUM_OWN) {
        gap = one_in(2) ? 0 : 5;
        n.sum = new_rows(random_float_type(), n.batch, n.tokens, n.channels, gap);
    }
    if (!n.rms && one_in(2)) n.mean = new_floats(n.batch * n.tokens);
    if (one_in(2)) n.inverse = new_floats(n.batch * n.tokens);
    bool ok = agrees(&n, isa, h);
    free_norm(&n);
    return ok;
}

/* ---- Means far from 0 ---------------------------------------------------------------------------------------------------- */

enum { TOKENS = 20, CHANNELS = 384 };

/* As one would write it, in f32. */
static void two_passes(const float *x, float *y) {
    float mean = 0.0f, variance = 0.0f;
    for (int i = 0; i < CHANNELS; i++) mean += x[i];
    mean /= CHANNELS;
    for (int i = 0; i < CHANNELS; i++) variance += (x[i] - mean) * (x[i] - mean);
    float factor = 1.0f / sqrtf(variance / CHANNELS + 1e-5f);
    for (int i = 0; i < CHANNELS; i++) y[i] = (x[i] - mean) * factor;
}

/* Where the mean is large beside the deviations: as exact as where it is 0. */
static void far_means(const char *isa) {
    static const double means[] = {0.0, 10.0, 1000.0, -1000.0, 10000.0};
    static float x[TOKENS][CHANNELS], y[TOKENS][CHANNELS], plain[CHANNELS];
    double worst = 0.0, ratio = 0.0;
    random_state = 7;
    for (size_t m = 0; m < sizeof means / sizeof *means; m++) {
        double squares[2] = {0}; /* of errors, here and in two passes */
        rapt_norm_args args;
        rapt_norm_args_init(&args);
        args.tokens = TOKENS, args.channels = CHANNELS, args.x = args.y = rapt_layout_bshd(RAPT_F32, 1, TOKENS, CHANNELS);
        args.from = x, args.to = y, args.isa = isa;
        for (int t = 0; t < TOKENS; t++)
            for (int i = 0; i < CHANNELS; i++) x[t][i] = (float)(means[m] + random_value());
        if (rapt_layer_norm_run(&args) != RAPT_OK) abort();
        for (int t = 0; t < TOKENS; t++) {
            double mean = 0.0, variance = 0.0;
            two_passes(x[t], plain);
            for (int i = 0; i < CHANNELS; i++) mean += x[t][i] / (double)CHANNELS;
            for (int i = 0; i < CHANNELS; i++) variance += (x[t][i] - mean) * (x[t][i] - mean) / CHANNELS;
            for (int i = 0; i < CHANNELS; i++) {
                double want = (x[t][i] - mean) / sqrt(variance + 1e-5f), error = y[t][i] - want, other = plain[i] - want;
                worst = fmax(worst, fabs(error) / fmax(1.0, fabs(want)));
                squares[0] += error * error, squares[1] += other * other;
            }
        }
        ratio = fmax(ratio, sqrt(squares[0] / squares[1]));
    }
    tap_ok(worst <= 2.5e-7, "%s: layer normalisation, means up to 10^4 deviations: at most 2.5e-7 of 1 and |y| (%.2e)", isa,
           worst);
    tap_ok(ratio <= 2.0, "%s: ... and at most twice the error of two passes in f32 (%.3f)", isa, ratio);
}

/* ---- What is refused ----------------------------------------------------------------------------------------------------- */

typedef struct good {
    rapt_norm_args args;
} good;

static void expect_run(good *t, const char *change, const rapt_norm_args *a, rapt_status want) {
    expect(t, "rapt_layer_norm_run", change, rapt_layer_norm_run(a), want);
}

static void refusals(void) {
    static float x[4 * 8], other[4 * 8], odd[9];
    good given, *const t = &given;
    rapt_norm_args_init(&t->args);
    t->args.tokens = 4, t->args.channels = 8, t->args.x = t->args.y = rapt_layout_bshd(RAPT_F32, 1, 4, 8);
    t->args.from = x, t->args.to = guard;
    RUN(RAPT_ERR_NULL, a.from = NULL);
    RUN(RAPT_ERR_NULL, a.residual = a.x);
    RUN(RAPT_ERR_NULL, a.sum = a.x);
    RUN(RAPT_ERR_SHAPE, a.channels = 0);
    RUN(RAPT_ERR_SHAPE, a.batch = -1);
    RUN(RAPT_ERR_TYPE, a.y.type = RAPT_INT8);
    RUN(RAPT_ERR_TYPE, a.residual = a.x; a.residual.type = RAPT_Q8_0; a.residual_from = other);
    RUN(RAPT_ERR_TYPE, a.sum = a.x; a.sum.type = RAPT_INT8; a.sum_to = other);
    RUN(RAPT_ERR_STRIDE, a.sum = a.x; a.sum.token_stride = 28; a.sum_to = other);
    RUN(RAPT_ERR_FEATURE, a.epsilon = -1.0f);
    RUN(RAPT_ERR_FEATURE, a.epsilon = NAN);
    RUN(RAPT_ERR_OVERLAP, a.from = guard + 32);
    RUN(RAPT_ERR_OVERLAP, a.weight = (float *)(void *)(guard + 64));
    RUN(RAPT_ERR_OVERLAP, a.residual = a.x; a.residual_from = guard);
    RUN(RAPT_ERR_OVERLAP, a.sum = a.x; a.sum_to = guard);
    RUN(RAPT_ERR_OVERLAP, a.from = guard + 1024; a.sum = a.x; a.sum_to = guard + 1028);
    RUN(RAPT_ERR_OVERLAP, a.from = guard; a.sum = a.x; a.sum_to = guard); /* the sum and Y both over X */
    RUN(RAPT_ERR_OVERLAP, a.mean = (float *)(void *)(guard + 16));
    RUN(RAPT_ERR_OVERLAP, a.weight = other; a.inverse_deviation = other + 7);
    RUN(RAPT_ERR_ALIGNMENT, a.weight = (float *)(void *)((char *)odd + 1));
    RUN(RAPT_ERR_UNUSED, a.residual_from = other);
    RUN(RAPT_ERR_UNUSED, a.sum_to = other);
    RUN(RAPT_ERR_ISA_UNKNOWN, a.isa = "abacus");
    RUN(RAPT_ERR_STRUCT, a.size -= sizeof a - offsetof(rapt_norm_args, residual) + 1);
    RUN(RAPT_ERR_STRUCT, a.size = sizeof a); /* by hand */
    CALL(RAPT_ERR_RANGE, rapt_layer_norm_run_share(&t->args, -1, 1));
    t->args.mean = other;
    CALL(RAPT_ERR_UNUSED, rapt_rms_norm_run(&t->args));
}

static void test_kernel(const char *isa, bool whole) {
    static const drawn problems[] = {{"layer normalisations have the bits of docs/order.md, within the bound",
                                      plain_problem,
                                      2,
                                      {UINT64_C(0xcf3d70efc7fced46), UINT64_C(0xfe76489a76e7131f)},
                                      20,
                                      60},
                                     {"of both kinds, with residuals, sums, means and inverse deviations, likewise",
                                      sum_problem,
                                      8,
                                      {UINT64_C(0x85ed3de74451f45d), UINT64_C(0xdea8f0d70687d3af)},
                                      40,
                                      100}};
    for (int i = 0; i < 2; i++) test_drawn(isa, whole, &problems[i]);
    far_means(isa);
}

int main(int argc, char **argv) {
    each_kernel(argc, argv, test_kernel);
    fill_guard();
    refusals();
    return tap_done();
}
