/* SPDX-License-Identifier: Apache-2.0 */
/* Attention on examples small enough for paper and pencil. Each test is a step that a tutorial would take, with its numbers. */
#include <math.h>
#include <string.h>

#include "random.h"
#include "rapt_layer.h"
#include "tap.h"

static _Alignas(RAPT_WORKSPACE_ALIGNMENT) char workspace[1 << 20];

/* ---- Helpers --------------------------------------------------------------------------------------------------------- */

static rapt_layout rows_of(int64_t channels) {
    const int64_t bytes = channels * (int64_t)sizeof(float);
    return (rapt_layout){RAPT_F32, 0, bytes, bytes};
}

/* One batch entry, one head: Q is m x d_k, K is n x d_k, V is n x d_v, so O is m x d_v. */
static rapt_desc shape(int64_t m, int64_t n, int64_t d_k, int64_t d_v) {
    rapt_desc desc;
    rapt_desc_init(&desc);
    desc.batch = desc.heads = desc.kv_heads = 1;
    desc.q_len = m, desc.kv_len = n, desc.d_k = d_k, desc.d_v = d_v;
    return desc;
}

static rapt_desc problem(int64_t m, int64_t n, int64_t d_k, int64_t d_v) {
    rapt_desc desc = shape(m, n, d_k, d_v);
    desc.q = desc.k = rows_of(d_k), desc.v = desc.o = rows_of(d_v);
    return desc;
}

static rapt_status attend_with(const rapt_desc *desc, rapt_args args, const float *q, const float *k, const float *v, float *o) {
    rapt_plan plan;
    args.q = q, args.k = k, args.v = v, args.o = o;
    args.workspace = workspace, args.workspace_bytes = sizeof workspace;
    const rapt_status status = rapt_plan_init(&plan, desc);
    return status == RAPT_OK ? rapt_run(&plan, &args) : status;
}

static rapt_status attend(const rapt_desc *desc, const float *q, const float *k, const float *v, float *o) {
    rapt_args args;
    rapt_args_init(&args);
    return attend_with(desc, args, q, k, v, o);
}

/* y = x W^T; weight: [out, in] */
static rapt_status project(int64_t tokens, int64_t in, int64_t out, const float *x, const float *weight, float *y) {
    rapt_linear_desc desc;
    rapt_linear_desc_init(&desc);
    desc.tokens = tokens, desc.in = in, desc.out = out;
    desc.x = desc.weight = rows_of(in), desc.y = rows_of(out);
    rapt_linear_plan plan;
    rapt_linear_args args;
    rapt_linear_args_init(&args);
    args.x = x, args.weight = weight, args.y = y, args.workspace = workspace, args.workspace_bytes = sizeof workspace;
    const rapt_status status = rapt_linear_plan_init(&plan, &desc);
    return status == RAPT_OK ? rapt_linear_run(&plan, &args) : status;
}

static rapt_status run_mha(const rapt_mha_desc *desc, rapt_mha_args *args) {
    rapt_mha_plan plan;
    args->workspace = workspace, args->workspace_bytes = sizeof workspace;
    const rapt_status status = rapt_mha_plan_init(&plan, desc);
    return status == RAPT_OK ? rapt_mha_run(&plan, args) : status;
}

static float distance(const float *a, const float *b, int n) {
    float most = 0;
    for (int i = 0; i < n; i++) most = fmaxf(most, fabsf(a[i] - b[i]));
    return most;
}

/* As printed with four digits. */
static int is(const float *got, const float *wanted, int n) { return distance(got, wanted, n) <= 0.5e-4f; }

static int rows_sum_to_one(const float *weights, int rows, int columns) {
    for (int i = 0; i < rows; i++, weights += columns) {
        float sum = 0;
        for (int j = 0; j < columns; j++) {
            if (!(weights[j] >= 0)) return 0;
            sum += weights[j];
        }
        if (!(fabsf(sum - 1) <= 4e-7f)) return 0;
    }
    return 1;
}

/* ---- Three tokens ---------------------------------------------------------------------------------------------------- */

/* Three tokens of four channels, and what makes queries, keys and values of three channels of them. */
static const float tokens3[3 * 4] = {1, 0, 1, 0, /**/ 0, 2, 0, 2, /**/ 1, 1, 1, 1};
static const float weight_q[3 * 4] = {1, 1, 0, 0, /**/ 0, 0, 0, 1, /**/ 1, 0, 1, 1};
static const float weight_k[3 * 4] = {0, 1, 0, 1, /**/ 0, 1, 1, 1, /**/ 1, 0, 0, 0};
static const float weight_v[3 * 4] = {0, 0, 1, 1, /**/ 2, 3, 0, 1, /**/ 0, 0, 3, 0};

static void test_three_tokens(void) {
    static const float wanted_q[] = {1, 0, 2, /**/ 2, 2, 2, /**/ 2, 1, 3};
    static const float wanted_k[] = {0, 1, 1, /**/ 4, 4, 0, /**/ 2, 3, 1};
    static const float wanted_v[] = {1, 2, 3, /**/ 2, 8, 0, /**/ 2, 6, 3};
    float q[9], k[9], v[9], o[9], p[9];
    int ok = project(3, 4, 3, tokens3, weight_q, q) == RAPT_OK && project(3, 4, 3, tokens3, weight_k, k) == RAPT_OK &&
             project(3, 4, 3, tokens3, weight_v, v) == RAPT_OK;
    tap_ok(ok && !memcmp(q, wanted_q, sizeof q) && !memcmp(k, wanted_k, sizeof k) && !memcmp(v, wanted_v, sizeof v),
           "three tokens: Q = X Wq^T, K = X Wk^T, V = X Wv^T");

    /* Values that are the identity show the weights, and a logarithm of the sum shows the scores: of a single key it is its
     * score. */
    static const float identity[] = {1, 0, 0, /**/ 0, 1, 0, /**/ 0, 0, 1};
    static const float wanted_scores[] = {2, 4, 4, /**/ 4, 16, 12, /**/ 4, 12, 10};
    float scores[9];
    rapt_desc desc = problem(3, 1, 3, 3);
    rapt_args args;
    rapt_args_init(&args);
    desc.lse = rows_of(3), desc.scale = 1;
    ok = 1;
    for (int j = 0; j < 3; j++) {
        args.lse = scores + j;
        ok &= attend_with(&desc, args, q, k + 3 * j, v, o) == RAPT_OK;
    }
    tap_ok(ok && !memcmp(scores, wanted_scores, sizeof scores), "three tokens: Q K^T");

    /* Not scaled. Row 1: 1, e^2, e^2 of 15.7781. */
    static const float plain_weights[] = {0.0634f, 0.4683f, 0.4683f, 0.0000f, 0.9820f, 0.0180f, 0.0003f, 0.8805f, 0.1192f};
    static const float plain[] = {1.9366f, 6.6831f, 1.5951f, 2.0000f, 7.9640f, 0.0540f, 1.9997f, 7.7599f, 0.3584f};
    desc = problem(3, 3, 3, 3);
    desc.scale = 1;
    ok = attend(&desc, q, k, identity, p) == RAPT_OK && attend(&desc, q, k, v, o) == RAPT_OK;
    tap_ok(ok && is(p, plain_weights, 9) && rows_sum_to_one(p, 3, 3), "three tokens: softmax(Q K^T)");
    tap_ok(ok && is(o, plain, 9), "three tokens: softmax(Q K^T) V");

    /* Scaled by 1 / sqrt(3). Row 1: scores 1.1547, 2.3094, 2.3094, so e^-1.1547 = 0.3152, 1, 1 of 2.3152. */
    static const float scaled_weights[] = {0.1361f, 0.4319f, 0.4319f, 0.0009f, 0.9088f, 0.0903f, 0.0074f, 0.7547f, 0.2378f};
    static const float scaled[] = {1.8639f, 6.3194f, 1.7042f, 1.9991f, 7.8141f, 0.2735f, 1.9926f, 7.4796f, 0.7359f};
    desc.scale = NAN; /* the default again */
    ok = attend(&desc, q, k, identity, p) == RAPT_OK && attend(&desc, q, k, v, o) == RAPT_OK;
    tap_ok(ok && is(p, scaled_weights, 9) && rows_sum_to_one(p, 3, 3), "three tokens: softmax(Q K^T / sqrt(d_k))");
    tap_ok(ok && is(o, scaled, 9), "three tokens: softmax(Q K^T / sqrt(d_k)) V");

    /* All of it as one call of multi-head attention. */
    float mha_o[9] = {0}, mha_p[9] = {0};
    rapt_mha_desc mha;
    rapt_mha_args mha_args;
    rapt_mha_desc_init(&mha);
    rapt_mha_args_init(&mha_args);
    desc = shape(3, 3, 3, 3);
    mha.attention = &desc;
    mha.x_width = 4, mha.x = mha.wq = mha.wk = mha.wv = rows_of(4), mha.out = mha.weights = rows_of(3);
    mha.out_width = 3;
    mha_args.x = tokens3, mha_args.wq = weight_q, mha_args.wk = weight_k, mha_args.wv = weight_v;
    mha_args.out = mha_o, mha_args.weights = mha_p;
    ok = run_mha(&mha, &mha_args) == RAPT_OK;
    tap_ok(ok && !memcmp(mha_o, o, sizeof o) && !memcmp(mha_p, p, sizeof p),
           "three tokens: multi-head attention has the same bits");
}

/* ---- A sentence ------------------------------------------------------------------------------------------------------ */

enum { WORDS = 5, WIDTH = 4 };
static const char *const sentence[WORDS] = {"the", "cat", "sat", "down", "quietly"};
static const float embeddings[WORDS * WIDTH] = {0.1f, 0.0f, 0.2f,      0.9f, /**/ 1.2f, 0.3f, 0.0f,      0.1f, /**/ 0.2f, 1.1f,
                                                0.4f, 0.0f, /**/ 0.0f, 0.9f, 0.8f,      0.2f, /**/ 0.3f, 0.1f, 1.3f,      0.4f};
static const float identity4[WIDTH * WIDTH] = {1, 0, 0, 0, /**/ 0, 1, 0, 0, /**/ 0, 0, 1, 0, /**/ 0, 0, 0, 1};

/* Self-attention of the sentence in which queries, keys and values are the words themselves. attention: shape(WORDS, WORDS,
 * WIDTH, WIDTH), or more. */
static rapt_mha_desc self_attention(const rapt_desc *attention) {
    rapt_mha_desc desc;
    rapt_mha_desc_init(&desc);
    desc.attention = attention;
    desc.x_width = WIDTH, desc.x = desc.out = desc.wq = desc.wk = desc.wv = rows_of(WIDTH);
    return desc;
}

static rapt_status attend_self(const rapt_mha_desc *desc, rapt_mha_args args, const float *x, float *out, float *weights) {
    args.x = x, args.wq = args.wk = args.wv = identity4, args.out = out, args.weights = weights;
    return run_mha(desc, &args);
}

static void test_sentence(void) {
    static const float wanted[WORDS * WORDS] = {0.2452f, 0.1772f,      0.1677f, 0.1891f,      0.2208f, /**/ 0.1588f, 0.3087f,
                                                0.1901f, 0.1652f,      0.1772f, /**/ 0.1358f, 0.1718f, 0.2614f,      0.2487f,
                                                0.1824f, /**/ 0.1445f, 0.1409f, 0.2347f,      0.2568f, 0.2232f,      /**/ 0.1625f,
                                                0.1456f, 0.1658f,      0.2150f, 0.3112f};
    float out[WORDS * WIDTH], weights[WORDS * WORDS];
    rapt_mha_args args;
    rapt_mha_args_init(&args);
    rapt_desc words = shape(WORDS, WORDS, WIDTH, WIDTH);
    rapt_mha_desc desc = self_attention(&words);
    desc.weights = rows_of(WORDS);
    const int ok = attend_self(&desc, args, embeddings, out, weights) == RAPT_OK;
    for (int i = 0; i < WORDS; i++)
        printf("# %-8s %.4f %.4f %.4f %.4f %.4f\n", sentence[i], weights[5 * i], weights[5 * i + 1], weights[5 * i + 2],
               weights[5 * i + 3], weights[5 * i + 4]);
    tap_ok(ok && is(weights, wanted, WORDS * WORDS), "a sentence: 5 words of 4 channels give 5 x 5 weights");
    tap_ok(ok && rows_sum_to_one(weights, WORDS, WORDS), "a sentence: each row sums to one");
    int own = 1;
    for (int i = 0; i < WORDS; i++)
        for (int j = 0; j < WORDS; j++) own &= weights[i * WORDS + j] <= weights[i * WORDS + i];
    tap_ok(ok && own, "a sentence: these words attend to themselves most");
    float mixed[WORDS * WIDTH] = {0};
    for (int i = 0; i < WORDS; i++)
        for (int j = 0; j < WORDS; j++)
            for (int c = 0; c < WIDTH; c++) mixed[i * WIDTH + c] += weights[i * WORDS + j] * embeddings[j * WIDTH + c];
    tap_ok(ok && distance(out, mixed, WORDS * WIDTH) <= 5e-7f, "a sentence: the result is the words, mixed by the weights");
}

/* ---- Dimensions ------------------------------------------------------------------------------------------------------ */

static void test_dimensions(void) {
    /* Scores of 0 weigh all keys alike, so O is the mean of V; each row of the 2 x 4 is all that is written. */
    static const float q[2 * 3] = {0}, k[5 * 3] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    static const float v[5 * 4] = {1, 10, 0, -5, /**/ 2, 20, 0, -5, /**/ 3, 30, 0, -5, /**/ 4, 40, 0, -5, /**/ 5, 50, 10, -5};
    static const float wanted[2 * 4] = {3, 30, 2, -5, /**/ 3, 30, 2, -5};
    float o[2 * 4 + 1];
    const float untouched = 12345;
    o[8] = untouched;
    rapt_desc desc = problem(2, 5, 3, 4);
    tap_ok(attend(&desc, q, k, v, o) == RAPT_OK && is(o, wanted, 8) && o[8] == untouched,
           "dimensions: Q 2 x 3, K 5 x 3, V 5 x 4 give O 2 x 4");

    /* Q and K share one d_k and K and V one n, so that they disagree cannot even be said. What can be is refused. */
    struct {
        const char *what;
        rapt_desc desc;
        rapt_status status;
    } wrong[10];
    for (int i = 0; i < 10; i++) wrong[i].desc = desc, wrong[i].status = RAPT_ERR_SHAPE;
    wrong[0].what = "no channels in Q and K", wrong[0].desc.d_k = 0;
    wrong[1].what = "no channels in V", wrong[1].desc.d_v = 0;
    wrong[2].what = "fewer queries than none", wrong[2].desc.q_len = -1;
    wrong[3].what = "fewer keys than none", wrong[3].desc.kv_len = -1;
    wrong[4].what = "more channels than a head has", wrong[4].desc.d_k = RAPT_MAX_HEAD_DIM + 1;
    wrong[5].what = "no heads", wrong[5].desc.heads = 0;
    wrong[6].what = "3 query heads on 2 heads of keys", wrong[6].status = RAPT_ERR_HEADS;
    wrong[6].desc.heads = 3, wrong[6].desc.kv_heads = 2;
    wrong[7].what = "rows of O that overlap", wrong[7].status = RAPT_ERR_STRIDE, wrong[7].desc.o.token_stride = 12;
    wrong[8].what = "a tensor without a type", wrong[8].status = RAPT_ERR_TYPE, wrong[8].desc.k.type = 0;
    wrong[9].what = "5 keys and 3 channels in groups of 32", wrong[9].status = RAPT_ERR_TYPE, wrong[9].desc.k.type = RAPT_INT4;
    for (int i = 0; i < 10; i++) {
        for (int c = 0; c < 9; c++) o[c] = untouched;
        int unwritten = 1;
        const rapt_status status = attend(&wrong[i].desc, q, k, v, o);
        for (int c = 0; c < 9; c++) unwritten &= o[c] == untouched;
        tap_ok(status == wrong[i].status && unwritten, "dimensions: %s: %s", wrong[i].what, rapt_status_string(status));
    }
    static const int32_t six[] = {6};
    rapt_args args;
    rapt_args_init(&args);
    args.kv_lengths = six;
    tap_ok(attend_with(&desc, args, q, k, v, o) == RAPT_ERR_KV_LENGTH && o[0] == untouched,
           "dimensions: 6 of 5 keys are refused");
}

/* ---- The order of keys ----------------------------------------------------------------------------------------------- */

enum { KEYS = 7 };
static const int order[KEYS] = {4, 0, 6, 2, 5, 1, 3};

/* Numbers without a pattern, -1..1. */
static void fill(float *x, int n) {
    for (int i = 0; i < n; i++) x[i] = (float)(int32_t)random_bits() / 2147483648.0f;
}

static void permute(const float *from, float *to, const int *by, int rows, int channels) {
    for (int i = 0; i < rows; i++) memcpy(to + i * channels, from + by[i] * channels, (size_t)channels * sizeof *to);
}

static void test_order_of_keys(void) {
    float q[3 * 8], k[KEYS * 8], v[KEYS * 8], o[3 * 8], k2[KEYS * 8], v2[KEYS * 8], o2[3 * 8];
    fill(q, 3 * 8), fill(k, KEYS * 8), fill(v, KEYS * 8);
    permute(k, k2, order, KEYS, 8), permute(v, v2, order, KEYS, 8);
    rapt_desc desc = problem(3, KEYS, 8, 8);
    int ok = attend(&desc, q, k, v, o) == RAPT_OK && attend(&desc, q, k2, v2, o2) == RAPT_OK;
    /* Sums are made in the order of the keys (docs/order.md), so this is another rounding of the same sum: a few ulp of 1. */
    tap_ok(ok && distance(o, o2, 3 * 8) <= 4e-7f, "order: keys permuted with their values give the same result, within rounding");

    /* Where keys lie is free: pages of one key each, and a table that finds them in the old order. */
    int32_t table[KEYS];
    for (int i = 0; i < KEYS; i++) table[order[i]] = i;
    rapt_args args;
    rapt_args_init(&args);
    args.table = table;
    desc.page_size = 1, desc.pages = KEYS;
    desc.k.batch_stride = desc.v.batch_stride = desc.k.token_stride; /* from page to page */
    desc.table = (rapt_layout){RAPT_I32, 0, 0, 0};
    memset(o2, 0, sizeof o2);
    ok &= attend_with(&desc, args, q, k2, v2, o2) == RAPT_OK;
    tap_ok(ok && !memcmp(o, o2, sizeof o), "order: keys that lie elsewhere, in the same order, give the same bits");

    /* And where nothing is rounded, no order matters: equal scores, whole numbers, four keys. */
    static const float zero[4], whole[4 * 2] = {1, 20, /**/ 3, -7, /**/ 8, 11, /**/ 4, 0}, mean[2] = {4, 6};
    static const int other[4] = {2, 0, 3, 1};
    float whole2[4 * 2];
    permute(whole, whole2, other, 4, 2);
    desc = problem(1, 4, 1, 2);
    ok = attend(&desc, zero, zero, whole, o) == RAPT_OK && attend(&desc, zero, zero, whole2, o2) == RAPT_OK;
    tap_ok(ok && !memcmp(o, mean, sizeof mean) && !memcmp(o2, mean, sizeof mean),
           "order: a sum without rounding has the same bits");

    /* Each query is on its own. */
    static const int queries[3] = {2, 0, 1};
    float q2[3 * 8], wanted[3 * 8];
    permute(q, q2, queries, 3, 8);
    desc = problem(3, KEYS, 8, 8);
    ok = attend(&desc, q, k, v, o) == RAPT_OK && attend(&desc, q2, k, v, o2) == RAPT_OK;
    permute(o, wanted, queries, 3, 8);
    tap_ok(ok && !memcmp(o2, wanted, sizeof wanted), "order: permuted queries give permuted rows, bit for bit");
}

/* ---- The order of words ---------------------------------------------------------------------------------------------- */

/* The sentence in another order: how far the result is from the old one in that order. Negative after an error. */
static float change_by_order(const rapt_mha_desc *desc, rapt_mha_args args) {
    static const int shuffled[WORDS] = {2, 4, 0, 1, 3};
    float x[WORDS * WIDTH], out[WORDS * WIDTH], out2[WORDS * WIDTH], wanted[WORDS * WIDTH];
    permute(embeddings, x, shuffled, WORDS, WIDTH);
    if (attend_self(desc, args, embeddings, out, NULL) != RAPT_OK || attend_self(desc, args, x, out2, NULL) != RAPT_OK) return -1;
    permute(out, wanted, shuffled, WORDS, WIDTH);
    return distance(out2, wanted, WORDS * WIDTH);
}

static void test_positions(void) {
    rapt_mha_args args;
    rapt_mha_args_init(&args);
    rapt_desc words = shape(WORDS, WORDS, WIDTH, WIDTH);
    rapt_mha_desc desc = self_attention(&words);
    float change = change_by_order(&desc, args);
    tap_ok(change >= 0 && change <= 4e-7f, "positions: without them, permuted words give permuted results (%.1e apart)", change);

    float table[WORDS * WIDTH];
    const int ok = rapt_sinusoidal(0, WORDS, WIDTH, table) == RAPT_OK;
    /* Position 1: sin and cos of 1, then of 1 / 10000^(2 / 4) = 0.01. */
    static const float first_rows[2 * WIDTH] = {0, 1, 0, 1, /**/ 0.8415f, 0.5403f, 0.0100f, 0.99995f};
    tap_ok(ok && is(table, first_rows, 2 * WIDTH), "positions: the sinusoidal table");
    desc.position_table = 1;
    args.position_table = table, args.table_positions = WORDS;
    change = change_by_order(&desc, args);
    tap_ok(change >= 1e-2f, "positions: with sinusoids added, the order matters (%.1e)", change);

    double frequencies[WIDTH / 2];
    rapt_mha_args_init(&args);
    desc = self_attention(&words);
    tap_ok(rapt_rope_frequencies(10000, WIDTH, frequencies) == RAPT_OK && frequencies[0] == 1.0 &&
               fabs(frequencies[1] - 0.01) < 1e-15,
           "positions: rotary frequencies");
    desc.rope.channels = WIDTH, desc.rope.frequencies = frequencies, desc.rope.amplitude = 1;
    change = change_by_order(&desc, args);
    tap_ok(change >= 1e-2f, "positions: with rotated queries and keys, the order matters (%.1e)", change);

    float slopes[8];
    static const float halves[8] = {0.5f, 0.25f, 0.125f, 0.0625f, 0.03125f, 0.015625f, 0.0078125f, 0.00390625f};
    tap_ok(rapt_alibi_slopes(8, slopes) == RAPT_OK && !memcmp(slopes, halves, sizeof slopes),
           "positions: ALiBi's slopes for 8 heads");
    rapt_mha_args_init(&args);
    desc = self_attention(&words);
    words.alibi = RAPT_ALIBI_DISTANCE, words.slopes = (rapt_layout){RAPT_F32, 0, 0, 0};
    rapt_args more;
    rapt_args_init(&more);
    more.slopes = slopes;
    args.attention = &more;
    change = change_by_order(&desc, args);
    tap_ok(change >= 1e-2f, "positions: with ALiBi, the order matters (%.1e)", change);
}

/* ---- The future ------------------------------------------------------------------------------------------------------ */

static void test_causal(void) {
    static const float wanted[WORDS * WORDS] = {1,
                                                0,
                                                0,
                                                0,
                                                0,
                                                /**/ 0.3396f,
                                                0.6604f,
                                                0,
                                                0,
                                                0,
                                                /**/ 0.2387f,
                                                0.3019f,
                                                0.4595f,
                                                0,
                                                0,
                                                /**/ 0.1860f,
                                                0.1814f,
                                                0.3021f,
                                                0.3305f,
                                                0,
                                                /**/ 0.1625f,
                                                0.1456f,
                                                0.1658f,
                                                0.2150f,
                                                0.3112f};
    float out[WORDS * WIDTH], out2[WORDS * WIDTH], weights[WORDS * WORDS], x[WORDS * WIDTH];
    rapt_mha_args args;
    rapt_mha_args_init(&args);
    rapt_desc words = shape(WORDS, WORDS, WIDTH, WIDTH);
    rapt_mha_desc desc = self_attention(&words);
    words.causal = RAPT_CAUSAL_BOTTOM_RIGHT;
    desc.weights = rows_of(WORDS);
    int ok = attend_self(&desc, args, embeddings, out, weights) == RAPT_OK;
    tap_ok(ok && is(weights, wanted, WORDS * WORDS) && rows_sum_to_one(weights, WORDS, WORDS),
           "causal: the weights are a triangle");
    int zeros = 1;
    for (int i = 0; i < WORDS; i++)
        for (int j = i + 1; j < WORDS; j++) zeros &= weights[i * WORDS + j] == 0;
    tap_ok(ok && zeros, "causal: above the diagonal they are 0, not small");
    tap_ok(ok && !memcmp(out, embeddings, WIDTH * sizeof *out), "causal: the first word sees itself only");

    /* Another end of the sentence, even one that is no number, changes nothing before it. */
    memcpy(x, embeddings, sizeof x);
    for (int c = 0; c < WIDTH; c++) x[3 * WIDTH + c] = 7.5f, x[4 * WIDTH + c] = NAN;
    ok = attend_self(&desc, args, x, out2, weights) == RAPT_OK;
    tap_ok(ok && !memcmp(out, out2, 3 * WIDTH * sizeof *out), "causal: the future does not matter, bit for bit");
    tap_ok(ok && distance(out + 3 * WIDTH, out2 + 3 * WIDTH, WIDTH) > 1, "causal: the present does");
}

int main(void) {
    test_three_tokens();
    test_sentence();
    test_dimensions();
    test_order_of_keys();
    test_positions();
    test_causal();
    return tap_done();
}
