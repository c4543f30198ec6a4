/* SPDX-License-Identifier: Apache-2.0 */
/* rapt_layer.h. Linear maps and layer normalisation are compared, bit for bit on every kernel, with docs/order.md written down a
 * second time, in random problems of every type, layout and number of threads, all memory around what is written included. The
 * layer is compared with the calls it stands for, bit for bit, and with plain loops in double. Results are hashed: the hash is
 * that of every machine. Then what is refused, and that it touches nothing. */
#define _DEFAULT_SOURCE
#include "rapt_layer.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "rapt_pool.h"
#include "reference.h"
#include "tap.h"

static uint64_t random_state;
static uint32_t random_bits(void) {
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(random_state >> 32);
}
static int64_t below(int64_t n) { return (int64_t)(random_bits() % (uint64_t)n); }
static bool one_in(int64_t n) { return below(n) == 0; }
static int64_t one_of(const int64_t *values, int64_t n) { return values[below(n)]; }
#define ONE_OF(...) one_of((const int64_t[]){__VA_ARGS__}, (int64_t)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)))

/* About normally distributed, without libm. */
static float random_value(void) {
    int64_t sum = 0;
    for (int i = 0; i < 4; i++) sum += below(1 << 20) - (1 << 19);
    return (float)sum / (1 << 19);
}

static uint64_t hash_bytes(uint64_t h, const void *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) h = (h ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
    return h;
}
static const uint64_t hash_start = UINT64_C(0xcbf29ce484222325);

/* By rounding class, fused first. */
static const uint64_t golden_linear[2] = {UINT64_C(0x2d297e404d3fdc90), UINT64_C(0x1fb48bf59b25aeef)},
                      golden_norm[2] = {UINT64_C(0x721ec7f0615e06c1), UINT64_C(0xa4ec8fe7fa5460a3)},
                      golden_layer[2] = {UINT64_C(0xe044fbafc6483957), UINT64_C(0xdf65244719578b69)},
                      golden_tables = UINT64_C(0x236d502e8cf6269d);

static void *allocate(size_t bytes) {
    void *memory;
    if (posix_memalign(&memory, 64, bytes + 64)) abort();
    return memory;
}

/* ---- Rows of tokens ------------------------------------------------------------------------------------------------------ */

/* [batch, tokens] rows, exactly as large as they must be, at an odd address, perhaps with gaps between them. */
typedef struct rows {
    rapt_layout layout;
    int64_t batch, tokens, channels;
    size_t bytes;
    unsigned char *memory, *at;
} rows;

static rapt_type random_type(void) { return (rapt_type)ONE_OF(RAPT_F32, RAPT_F32, RAPT_F16, RAPT_BF16); }

static rows new_rows(rapt_type type, int64_t batch, int64_t tokens, int64_t channels, int64_t gap) {
    rows r = {.layout = rapt_layout_bshd(type, 1, tokens, channels), .batch = batch, .tokens = tokens, .channels = channels};
    int64_t row = reference_row_bytes(type, channels);
    r.layout.token_stride = row + gap;
    r.layout.batch_stride = tokens * r.layout.token_stride + gap;
    r.bytes =
        batch * tokens == 0 ? 0 : (size_t)((batch - 1) * r.layout.batch_stride + (tokens - 1) * r.layout.token_stride + row);
    r.memory = malloc(r.bytes + 1); /* a byte before or behind */
    if (!r.memory) abort();
    r.at = r.memory + (gap != 0);
    memset(r.memory, 0x5a, r.bytes + 1);
    return r;
}

static void *row_at(const rows *r, int64_t b, int64_t t) {
    return r->at + b * r->layout.batch_stride + t * r->layout.token_stride;
}

static rows random_rows(rapt_type type, int64_t batch, int64_t tokens, int64_t channels, int64_t gap, float size) {
    rows r = new_rows(type, batch, tokens, channels, gap);
    for (int64_t b = 0; b < batch; b++)
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t i = 0; i < channels; i++) {
                char *to = (char *)row_at(&r, b, t) + i * (type == RAPT_INT8 ? 1 : reference_type_bytes(type));
                if (type == RAPT_INT8) *to = (char)(below(255) - 127);
                else reference_store(type, to, random_value() * size);
            }
    return r;
}

static rows copy_of(const rows *r) {
    rows copy = *r;
    if (!r->memory) return copy;
    copy.memory = malloc(r->bytes + 1);
    if (!copy.memory) abort();
    memcpy(copy.memory, r->memory, r->bytes + 1);
    copy.at = copy.memory + (r->at - r->memory);
    return copy;
}

static float value_at(const rows *r, int64_t b, int64_t t, int64_t i) {
    return reference_element(r->layout.type, row_at(r, b, t), i);
}

static float *random_floats(int64_t n, float size) {
    float *x = allocate((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = random_value() * size;
    return x;
}

/* ---- docs/order.md again ------------------------------------------------------------------------------------------------- */

static bool fused; /* the class of the kernel that is tested */

static float multiply_add(float a, float b, float c) {
    if (fused) return fmaf(a, b, c);
    volatile float product = a * b;
    return product + c;
}

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* E(d), factor c. */
static float power_of_two(float d, float c, float least) {
    float x = d < least ? least : d, t = multiply_add(x, c, 12583039.0f), n = 12583039.0f - t, f = multiply_add(x, c, n);
    static const float b[] = {0x1.5f082ep-10f, 0x1.3b2dep-7f, 0x1.c6af7cp-5f, 0x1.ebfbdcp-3f, 0x1.62e43p-1f, 1.0f};
    float p = 0x1.416b5ep-13f;
    uint32_t bits;
    for (int i = 0; i < 6; i++) p = multiply_add(p, f, b[i]);
    memcpy(&bits, &t, sizeof bits);
    return p * float_of(bits << 23);
}

static float hyperbolic_tangent(float x) {
    float a = fabsf(x), z = a * a, p = -0x1.750ce4p-8f;
    static const float b[] = {0x1.51f8cep-6f, -0x1.b835a4p-5f, 0x1.1106f6p-3f, -0x1.555532p-2f};
    for (int i = 0; i < 4; i++) p = multiply_add(p, z, b[i]);
    float e = power_of_two(-a, 0x1.715476p+1f, -127.0f / 0x1.715476p+1f);
    return copysignf(a < 0.625f ? multiply_add(a * z, p, a) : (1.0f - e) / (1.0f + e), x);
}

static float activated(rapt_activation activation, float x) {
    static const float h[] = {-0x1.9833cap-22f, 0x1.894d92p-18f, -0x1.8c04ecp-15f, 0x1.7d4d4ep-13f, 0x1.99fcbap-13f,
                              -0x1.d649c8p-8f,  0x1.aecfcep-5f,  0x1.d631f4p-2f,   0x1.26af14p+0f,  1.0f};
    float a = fabsf(x), p = 0x1.60a846p-27f, below_zero;
    switch (activation) {
    case RAPT_RELU:
        return x > 0.0f || x != x ? x : 0.0f;
    case RAPT_GELU:
        for (int i = 0; i < 10; i++) p = multiply_add(p, a, h[i]);
        below_zero = power_of_two(-p, 1.0f, -127.0f);
        return x * (x < 0.0f ? below_zero : 1.0f - below_zero);
    case RAPT_GELU_TANH:
        return 0.5f * x * (1.0f + hyperbolic_tangent(multiply_add(x * x * x, 0.044715f, x) * 0x1.988454p-1f));
    default:
        return x;
    }
}

/* Output n of a token. */
static float linear_of(const rows *x, int64_t b, int64_t t, const rows *weight, int64_t n) {
    float total = 0.0f;
    for (int64_t part = 0; part < x->channels; part += 1024) {
        float sums[16] = {0};
        for (int64_t i = part; i < part + 1024 && i < x->channels; i++)
            sums[i % 16] = multiply_add(value_at(weight, 0, n, i), value_at(x, b, t, i), sums[i % 16]);
        for (int i = 0; i < 16; i++) total += sums[i];
    }
    return total;
}

/* Is that within the bound of docs/numerics.md? */
static bool near_exact(const rows *x, int64_t b, int64_t t, const rows *weight, int64_t n, float got) {
    double exact = 0.0, sizes = 0.0, u = ldexp(1.0, -24);
    for (int64_t i = 0; i < x->channels; i++) {
        double product = (double)value_at(weight, 0, n, i) * value_at(x, b, t, i);
        exact += product;
        sizes += fabs(product);
    }
    double roundings =
        ceil((double)(x->channels < 1024 ? x->channels : 1024) / 16) + 16.0 * (double)((x->channels + 1023) / 1024);
    if (!fused) roundings += 1;
    return fabs(got - exact) <= roundings * u / (1.0 - roundings * u) * sizes + ldexp((double)x->channels, -149);
}

static float sum_of(const rows *x, int64_t b, int64_t t, float mean, float rest, bool squares) {
    float sums[16] = {0}, total = 0.0f;
    for (int64_t i = 0; i < x->channels; i++) {
        float d = (value_at(x, b, t, i) - mean) - rest;
        sums[i % 16] = squares ? multiply_add(d, d, sums[i % 16]) : sums[i % 16] + d;
    }
    for (int i = 0; i < 16; i++) total += sums[i];
    return total;
}

/* ---- Linear maps --------------------------------------------------------------------------------------------------------- */

/* Equal bytes; NaN as a class is not needed here, for there is none. */
static bool same(const rows *a, const rows *b) { return !memcmp(a->memory, b->memory, a->bytes + 1); }

static bool linear_problem(const char *isa, uint64_t *h) {
    int64_t batch = ONE_OF(1, 1, 2, 3), tokens = ONE_OF(0, 1, 1, 2, 3, 4, 5, 7, 12, 13, 16, 33, 50, 70) / batch;
    int64_t in = ONE_OF(1, 3, 15, 16, 17, 32, 47, 100, 1000, 1024, 1025, 2070), out = ONE_OF(1, 2, 15, 16, 17, 40, 100, 250);
    if (in >= 1000 && out > 40) out = 33;
    if (in <= 17 && one_in(8)) tokens = ONE_OF(97, 400), out = ONE_OF(490, 600), batch = 1; /* several groups and passes */
    int64_t gap = one_in(2) ? 0 : ONE_OF(1, 2, 24);
    rapt_type weight_type = (rapt_type)ONE_OF(RAPT_F32, RAPT_F32, RAPT_F16, RAPT_BF16, RAPT_INT8);
    float size = weight_type == RAPT_INT8 ? 0.02f : 1.0f;
    rows x = random_rows(random_type(), batch, tokens, in, gap, 1.0f);
    rows weight = random_rows(weight_type, 1, out, in, one_in(3) ? 5 : 0, 1.0f / sqrtf((float)in));
    rows y = new_rows(random_type(), batch, tokens, out, gap), want, residual = {0};
    float *bias = one_in(2) ? random_floats(out, 0.5f) : NULL;
    float *scales = weight_type == RAPT_INT8 || one_in(4) ? random_floats(out, size) : NULL;
    int with_residual = (int)below(3); /* none, of its own, in place */
    rapt_activation activation = (rapt_activation)below(4);
    if (with_residual == 1) residual = random_rows(random_type(), batch, tokens, out, 3, 1.0f);
    if (with_residual == 2) {
        free(y.memory);
        residual = y = random_rows(RAPT_F32, batch, tokens, out, gap, 1.0f);
    }
    want = copy_of(&y);
    bool accurate = true;
    for (int64_t b = 0; b < batch; b++)
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t n = 0; n < out; n++) {
                float r = with_residual ? value_at(with_residual == 2 ? &want : &residual, b, t, n) : 0.0f;
                float sum = linear_of(&x, b, t, &weight, n) + 0.0f;
                accurate = accurate && near_exact(&x, b, t, &weight, n, sum);
                float got = activated(activation, multiply_add(sum, scales ? scales[n] : 1.0f, bias ? bias[n] : 0.0f));
                if (with_residual) got += r;
                reference_store(y.layout.type, (char *)row_at(&want, b, t) + n * reference_type_bytes(y.layout.type), got);
            }

    rapt_linear_desc desc;
    rapt_linear_plan plan;
    rapt_linear_args args;
    rapt_linear_desc_init(&desc);
    desc.batch = batch, desc.tokens = tokens, desc.in = in, desc.out = out, desc.x = x.layout, desc.y = y.layout;
    desc.weight = weight.layout, desc.activation = activation, desc.isa = isa;
    if (with_residual) desc.residual = residual.layout;
    int64_t nth = ONE_OF(1, 1, 2, 3, 7);
    size_t bytes = 0;
    rapt_status status = rapt_linear_plan_init(&plan, &desc);
    if (status == RAPT_OK) status = rapt_linear_workspace_size(&plan, nth, &bytes);
    rapt_linear_args_init(&args);
    args.x = x.at, args.weight = weight.at, args.bias = bias, args.scales = scales, args.y = y.at;
    args.residual = with_residual == 2 ? y.at : residual.at;
    args.workspace = allocate(bytes), args.workspace_bytes = bytes;
    memset(args.workspace, 0xff, bytes); /* NaN, if it were read */
    if (one_in(2)) status = status == RAPT_OK ? rapt_linear_run_parallel(&plan, &args, nth, rapt_pool_for, NULL) : status;
    else
        for (int64_t ith = nth - 1; ith >= 0 && status == RAPT_OK; ith--) status = rapt_linear_run(&plan, &args, ith, nth);
    bool ok = status == RAPT_OK && accurate && same(&y, &want);
    if (!ok)
        printf("# %s: %s; batch %d, tokens %d, in %d, out %d, weights %d, activation %d, residual %d, threads %d\n", isa,
               rapt_status_string(status), (int)batch, (int)tokens, (int)in, (int)out, weight_type, activation, with_residual,
               (int)nth);
    *h = hash_bytes(*h, y.at, y.bytes);
    free(args.workspace), free(x.memory), free(weight.memory), free(y.memory), free(want.memory), free(bias), free(scales);
    if (with_residual == 1) free(residual.memory);
    return ok;
}

static bool norm_problem(const char *isa, uint64_t *h) {
    int64_t batch = ONE_OF(1, 2), tokens = ONE_OF(0, 1, 3, 9), channels = ONE_OF(1, 2, 15, 16, 17, 31, 48, 384, 1000);
    int64_t gap = one_in(2) ? 0 : ONE_OF(1, 2, 24);
    rapt_type type = random_type();
    rows x = random_rows(type, batch, tokens, channels, gap, one_in(3) ? 100.0f : 1.0f), y = x, want;
    bool in_place = one_in(2);
    if (!in_place) y = new_rows(random_type(), batch, tokens, channels, gap);
    want = copy_of(&y);
    float *weight = one_in(2) ? random_floats(channels, 1.0f) : NULL, *bias = one_in(2) ? random_floats(channels, 1.0f) : NULL;
    rapt_norm_args args;
    rapt_norm_args_init(&args);
    if (one_in(2)) args.epsilon = 1e-12f;
    for (int64_t b = 0; b < batch; b++)
        for (int64_t t = 0; t < tokens; t++) {
            float mean = sum_of(&x, b, t, 0.0f, 0.0f, false) / (float)channels;
            float rest = sum_of(&x, b, t, mean, 0.0f, false) / (float)channels;
            float factor = 1.0f / sqrtf(sum_of(&x, b, t, mean, rest, true) / (float)channels + args.epsilon);
            for (int64_t i = 0; i < channels; i++) {
                float d = ((value_at(&x, b, t, i) - mean) - rest) * factor;
                reference_store(y.layout.type, (char *)row_at(&want, b, t) + i * reference_type_bytes(y.layout.type),
                                multiply_add(d, weight ? weight[i] : 1.0f, bias ? bias[i] : 0.0f));
            }
        }
    args.batch = batch, args.tokens = tokens, args.channels = channels, args.x = x.layout, args.y = y.layout;
    args.from = x.at, args.to = y.at, args.weight = weight, args.bias = bias, args.isa = isa;
    int64_t nth = ONE_OF(1, 2, 5);
    rapt_status status = RAPT_OK;
    if (one_in(2)) status = rapt_layer_norm_parallel(&args, nth, rapt_pool_for, NULL);
    else
        for (int64_t ith = 0; ith < nth && status == RAPT_OK; ith++) status = rapt_layer_norm(&args, ith, nth);
    bool ok = status == RAPT_OK && same(&y, &want);
    if (!ok)
        printf("# %s: %s; batch %d, tokens %d, channels %d, in place %d\n", isa, rapt_status_string(status), (int)batch,
               (int)tokens, (int)channels, in_place);
    *h = hash_bytes(*h, y.at, y.bytes);
    free(x.memory), free(want.memory), free(weight), free(bias);
    if (!in_place) free(y.memory);
    return ok;
}

/* Where the mean is large beside the deviations: as exact as where it is 0. */
static void far_means(const char *isa) {
    enum { TOKENS = 20, CHANNELS = 384 };
    static const double means[] = {0.0, 10.0, 1000.0, -1000.0, 10000.0};
    static float x[TOKENS][CHANNELS], y[TOKENS][CHANNELS];
    double worst = 0.0;
    random_state = 7;
    for (size_t m = 0; m < sizeof means / sizeof *means; m++) {
        rapt_norm_args args;
        rapt_norm_args_init(&args);
        args.tokens = TOKENS, args.channels = CHANNELS, args.x = args.y = rapt_layout_bshd(RAPT_F32, 1, TOKENS, CHANNELS);
        args.from = x, args.to = y, args.isa = isa;
        for (int t = 0; t < TOKENS; t++)
            for (int i = 0; i < CHANNELS; i++) x[t][i] = (float)(means[m] + random_value());
        if (rapt_layer_norm(&args, 0, 1) != RAPT_OK) abort();
        for (int t = 0; t < TOKENS; t++) {
            double mean = 0.0, variance = 0.0;
            for (int i = 0; i < CHANNELS; i++) mean += x[t][i] / (double)CHANNELS;
            for (int i = 0; i < CHANNELS; i++) variance += (x[t][i] - mean) * (x[t][i] - mean) / CHANNELS;
            for (int i = 0; i < CHANNELS; i++) {
                double want = (x[t][i] - mean) / sqrt(variance + 1e-5f);
                worst = fmax(worst, fabs(y[t][i] - want) / fmax(1.0, fabs(want)));
            }
        }
    }
    tap_ok(worst <= 2.5e-7, "%s: layer normalisation, means up to 10^4 deviations: at most 2.5e-7 of 1 and |y| (%.2e)", isa,
           worst);
}

/* A linear map with the unit as its weights is its activation. */
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
    args.x = from, args.weight = &one, args.y = to, args.workspace = allocate(bytes), args.workspace_bytes = bytes;
    if (rapt_linear_run(&plan, &args, 0, 1)) abort();
    free(args.workspace);
}

static void activations(const char *isa) {
    enum { N = 40001 };
    static float x[N], y[N];
    double worst[2] = {0}, relative = 0.0;
    for (int i = 0; i < N; i++) x[i] = (float)(i - N / 2) / (N / 20.0f); /* -10 .. 10 */
    for (int kind = 0; kind < 2; kind++) {
        apply(isa, kind ? RAPT_GELU_TANH : RAPT_GELU, x, y, N);
        for (int i = 0; i < N; i++) {
            double v = x[i], phi = 0.5 * erfc(-v / sqrt(2.0));
            double want =
                kind ? 0.5 * v * (1.0 + tanh(sqrt(2.0 / 3.14159265358979323846) * (v + 0.044715 * v * v * v))) : v * phi;
            double error = fabs(y[i] - want), scale = fabs(v) > 1.0 ? fabs(v) : 1.0;
            if (error / scale > worst[kind]) worst[kind] = error / scale;
            if (!kind && v < -0.01 && v > -8.0 && error / fabs(want) > relative) relative = error / fabs(want);
        }
    }
    tap_ok(worst[0] <= 1e-7, "%s: GELU is off by at most 1e-7 of the larger of 1 and |x| (%.2e)", isa, worst[0]);
    tap_ok(relative <= 1e-4, "%s: GELU of -8 to 0 by at most 1e-4 of itself (%.2e)", isa, relative);
    tap_ok(worst[1] <= 2e-7, "%s: GELU by tanh, by at most 2e-7 (%.2e)", isa, worst[1]);
    const float odd[] = {NAN, INFINITY, -1e30f, 0.0f, -40.0f};
    bool ok = true;
    for (int kind = RAPT_ACTIVATION_NONE; kind <= RAPT_GELU_TANH; kind++) {
        float got[5];
        apply(isa, (rapt_activation)kind, odd, got, 5);
        ok = ok && isnan(got[0]) && got[1] == INFINITY && got[3] == 0.0f && !signbit(got[3]);
        if (kind != RAPT_ACTIVATION_NONE) ok = ok && got[2] == 0.0f && got[4] == 0.0f;
    }
    tap_ok(ok, "%s: activations of NaN, infinity, and far below 0", isa);
}

/* ---- The layer ----------------------------------------------------------------------------------------------------------- */

/* A problem of the layer: what describes it, all its tensors, and the layer's own calls one after the other. */
typedef struct layer {
    rapt_desc attention;
    rapt_layer_desc desc;
    rapt_args attention_args;
    rapt_layer_args args;
    rows x, y, z, out, residual, weight[4];
    float *bias[4], *scales[4], *table;
    rows k_cache, v_cache; /* [batch, kv_len] rows of all heads */
    int32_t starts[4], lengths[4], q_starts[5];
    double *frequencies;
    int64_t widths[3], outs[4];
    bool self, cached;
} layer;

static void free_layer(layer *l) {
    rows *all[] = {&l->x,         &l->y,         &l->z,         &l->out,     &l->residual, &l->weight[0],
                   &l->weight[1], &l->weight[2], &l->weight[3], &l->k_cache, &l->v_cache};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]->memory);
    for (int i = 0; i < 4; i++) free(l->bias[i]), free(l->scales[i]);
    free(l->table), free(l->frequencies);
}

static rapt_layout head_layout(const rows *r, int64_t head_channels) {
    rapt_layout layout = r->layout;
    layout.head_stride = reference_row_bytes(layout.type, head_channels);
    return layout;
}

static void random_layer(layer *l, const char *isa) {
    *l = (layer){0};
    rapt_desc *a = &l->attention;
    rapt_layer_desc *d = &l->desc;
    rapt_desc_init(a), rapt_layer_desc_init(d), rapt_args_init(&l->attention_args), rapt_layer_args_init(&l->args);
    a->kv_heads = ONE_OF(1, 2, 3), a->heads = a->kv_heads * ONE_OF(1, 2), a->d_k = ONE_OF(2, 8, 16, 24),
    a->d_v = one_in(2) ? a->d_k : ONE_OF(1, 8, 20);
    a->batch = ONE_OF(1, 2, 3), a->q_len = ONE_OF(1, 2, 5, 9, 20), a->threads = ONE_OF(1, 3), a->isa = isa;
    l->self = one_in(2), l->cached = one_in(2);
    bool ragged = one_in(3), positions = one_in(3);
    int64_t keys = l->self ? a->q_len : ONE_OF(1, 4, 21);
    int64_t tokens = a->q_len, entries = a->batch;
    l->widths[0] = ONE_OF(8, 17, 40), l->widths[1] = l->self || positions || one_in(2) ? l->widths[0] : ONE_OF(8, 30);
    l->widths[2] = l->self || positions || one_in(2) ? l->widths[1] : 19;
    bool values = !l->self && l->widths[2] != l->widths[1];
    for (int64_t b = 0; b < a->batch; b++) {
        l->starts[b] = l->cached || positions ? (int32_t)below(7) : 0;
        l->q_starts[b + 1] = l->q_starts[b] + (int32_t)below(tokens + 1);
    }
    if (ragged) {
        a->q_starts = l->q_starts;
        a->q_len = tokens = l->q_starts[a->batch];
        entries = 1;
        if (l->self) keys = tokens;
    }
    int64_t gap = one_in(2) * 4; /* drawn before the call, whose arguments come in any order */
    l->x = random_rows(random_type(), entries, tokens, l->widths[0], gap, 1.0f);
    if (!l->self) l->y = random_rows(random_type(), a->batch, keys, l->widths[1], 0, 1.0f);
    if (values) l->z = random_rows(random_type(), a->batch, keys, l->widths[2], 0, 1.0f);
    l->outs[0] = a->heads * a->d_k, l->outs[1] = a->kv_heads * a->d_k, l->outs[2] = a->kv_heads * a->d_v;
    int64_t out_width = ONE_OF(8, 33);
    l->outs[3] = out_width;
    const int64_t ins[] = {l->widths[0], l->widths[1], l->widths[2], a->heads * a->d_v};
    d->packed = l->widths[1] == l->widths[0] && l->widths[2] == l->widths[0] && one_in(2);
    bool has_output = !one_in(4);
    for (int i = 0; i < 4; i++) {
        rapt_type type = (rapt_type)ONE_OF(RAPT_F32, RAPT_F32, RAPT_F16, RAPT_BF16, RAPT_INT8);
        int64_t outs = i == 0 && d->packed ? l->outs[0] + l->outs[1] + l->outs[2] : l->outs[i];
        if (i == 3 && !has_output) continue;
        if ((i == 1 || i == 2) && d->packed) continue;
        l->weight[i] = random_rows(type, 1, outs, ins[i], 0, 1.0f / sqrtf((float)ins[i]));
        if (one_in(2)) l->bias[i] = random_floats(outs, 0.3f);
        if (type == RAPT_INT8) l->scales[i] = random_floats(outs, 0.01f);
    }
    d->wq = l->weight[0].layout, d->wk = l->weight[1].layout, d->wv = l->weight[2].layout, d->wo = l->weight[3].layout;
    if (!has_output) out_width = a->heads * a->d_v;
    l->out = new_rows(random_type(), entries, tokens, out_width, gap);
    if (has_output && one_in(2)) l->residual = random_rows(random_type(), entries, tokens, out_width, 0, 1.0f);
    if (l->cached) {
        a->kv_len = 40 + keys;
        rapt_type type = (rapt_type)ONE_OF(RAPT_F32, RAPT_F16, RAPT_INT8);
        l->k_cache = random_rows(type, a->batch, a->kv_len, l->outs[1], 0, 1.0f);
        l->v_cache = random_rows(type, a->batch, a->kv_len, l->outs[2], 0, 1.0f);
        a->k = head_layout(&l->k_cache, a->d_k), a->v = head_layout(&l->v_cache, a->d_v);
        for (int64_t b = 0; b < a->batch; b++)
            l->lengths[b] = l->starts[b] + (int32_t)(ragged && l->self ? l->q_starts[b + 1] - l->q_starts[b] : keys);
        l->attention_args.kv_lengths = l->lengths;
        if (!l->self && one_in(3)) keys = 0; /* only those that there are */
    }
    a->causal = (rapt_causal)below(3);
    if (one_in(3)) a->window_left = below(10);
    if (one_in(3)) {
        d->rotary.channels = a->d_k;
        l->frequencies = malloc((size_t)a->d_k * sizeof *l->frequencies);
        if (!l->frequencies || rapt_rope_frequencies(10000.0, a->d_k, l->frequencies)) abort();
        d->rotary.frequencies = l->frequencies;
    }
    d->attention = a;
    d->x_width = l->widths[0], d->y_width = l->widths[1] == l->widths[0] ? 0 : l->widths[1],
    d->z_width = values ? l->widths[2] : 0;
    d->out_width = out_width == l->widths[0] ? 0 : out_width, d->keys = keys, d->x = l->x.layout, d->out = l->out.layout;
    if (!l->self) d->y = l->y.layout;
    if (values) d->z = l->z.layout;
    if (l->residual.memory) d->residual = l->residual.layout;
    d->position_table = positions;
    rapt_layer_args *args = &l->args;
    args->x = l->x.at, args->y = l->y.at, args->z = l->z.at, args->residual = l->residual.at, args->out = l->out.at;
    args->wq = l->weight[0].at, args->wk = l->weight[1].at, args->wv = l->weight[2].at, args->wo = l->weight[3].at;
    args->bq = l->bias[0], args->bk = l->bias[1], args->bv = l->bias[2], args->bo = l->bias[3];
    args->wq_scales = l->scales[0], args->wk_scales = l->scales[1], args->wv_scales = l->scales[2],
    args->wo_scales = l->scales[3];
    args->k_cache = l->k_cache.at, args->v_cache = l->v_cache.at, args->starts = l->starts;
    args->attention = &l->attention_args;
    if (positions) {
        args->table_positions = 60;
        l->table = random_floats(60 * l->widths[0], 0.5f);
        args->position_table = l->table;
    }
}

static float *map_rows(const layer *l, int i, const rows *x, const char *isa) {
    const rows *weight = l->desc.packed && i < 3 ? &l->weight[0] : &l->weight[i];
    int64_t first = 0;
    for (int j = 0; j < i && i < 3 && l->desc.packed; j++) first += l->outs[j];
    int from = l->desc.packed && i < 3 ? 0 : i;
    float *y = allocate((size_t)(x->batch * x->tokens * l->outs[i]) * sizeof *y);
    rapt_linear_desc desc;
    rapt_linear_plan plan;
    rapt_linear_args args;
    rapt_linear_desc_init(&desc), rapt_linear_args_init(&args);
    desc.batch = x->batch, desc.tokens = x->tokens, desc.in = x->channels, desc.out = l->outs[i], desc.x = x->layout,
    desc.isa = isa;
    desc.y = rapt_layout_bshd(RAPT_F32, 1, x->tokens, l->outs[i]), desc.weight = weight->layout;
    size_t bytes = 0;
    if (rapt_linear_plan_init(&plan, &desc) || rapt_linear_workspace_size(&plan, 1, &bytes)) abort();
    args.x = x->at, args.y = y, args.weight = weight->at + first * weight->layout.token_stride;
    args.bias = l->bias[from] ? l->bias[from] + first : NULL, args.scales = l->scales[from] ? l->scales[from] + first : NULL;
    args.workspace = allocate(bytes), args.workspace_bytes = bytes;
    if (rapt_linear_run(&plan, &args, 0, 1)) abort();
    free(args.workspace);
    return y;
}

/* X + positions. */
static rows with_positions(const layer *l, const rows *x, const int32_t *token_starts) {
    rows sum = new_rows(RAPT_F32, x->batch, x->tokens, x->channels, 0);
    for (int64_t b = 0; b < l->attention.batch; b++) {
        int64_t first = token_starts ? token_starts[b] : 0, n = token_starts ? token_starts[b + 1] - first : x->tokens;
        for (int64_t t = 0; t < n; t++)
            for (int64_t i = 0; i < x->channels; i++) {
                float *to = (float *)row_at(&sum, token_starts ? 0 : b, first + t) + i;
                *to = value_at(x, token_starts ? 0 : b, first + t, i) +
                      (l->table ? l->table[(l->starts[b] + t) * x->channels + i] : 0.0f);
            }
    }
    return sum;
}

/* The same by the public functions that the layer is made of; the output in f32, before the residual if there is no wo. */
static rapt_status by_hand(layer *l, rows *k_cache, rows *v_cache, rows *out) {
    const rapt_desc *a = &l->attention;
    const char *isa = a->isa;
    bool new_keys = !(l->cached && !l->self && l->desc.keys == 0);
    const int32_t *key_starts = l->self ? a->q_starts : NULL;
    rows x = with_positions(l, &l->x, a->q_starts), y = {0}, z = {0};
    if (!l->self) y = with_positions(l, &l->y, NULL);
    if (l->z.memory) z = with_positions(l, &l->z, NULL);
    const rows *key_input = l->self ? &x : &y, *value_input = l->z.memory ? &z : key_input;
    float *q = map_rows(l, 0, &x, isa), *k = NULL, *v = NULL;
    int64_t tokens = l->x.tokens, keys = key_input->tokens;
    rapt_rope_args rope;
    rapt_rope_args_init(&rope);
    rope.batch = a->batch, rope.heads = a->heads, rope.tokens = tokens, rope.d = a->d_k, rope.from = rope.to = q;
    rope.in = rope.out = rapt_layout_bshd(RAPT_F32, a->heads, tokens, a->d_k);
    rope.rotary = l->desc.rotary, rope.starts = l->starts, rope.token_starts = a->q_starts;
    rapt_status status = rapt_rope(&rope, 0, 1);
    rapt_desc d = *a;
    rapt_args args = l->attention_args;
    d.q = rapt_layout_bshd(RAPT_F32, a->heads, tokens, a->d_k);
    if (new_keys) k = map_rows(l, 1, key_input, isa), v = map_rows(l, 2, value_input, isa);
    if (l->cached && new_keys && status == RAPT_OK) {
        rapt_append_desc append;
        rapt_append_args append_args;
        rapt_append_desc_init(&append), rapt_append_args_init(&append_args);
        append.batch = a->batch, append.kv_heads = a->kv_heads, append.tokens = keys, append.kv_len = a->kv_len;
        append.d_k = a->d_k, append.d_v = a->d_v, append.k = a->k, append.v = a->v, append.rotary = l->desc.rotary;
        append.new_k = rapt_layout_bshd(RAPT_F32, a->kv_heads, keys, a->d_k);
        append.new_v = rapt_layout_bshd(RAPT_F32, a->kv_heads, keys, a->d_v);
        append_args.new_k = k, append_args.new_v = v, append_args.k = k_cache->at, append_args.v = v_cache->at;
        append_args.starts = l->starts, append_args.token_starts = key_starts;
        status = rapt_kv_append(&append, &append_args, 0, 1);
    }
    if (l->cached) args.k = k_cache->at, args.v = v_cache->at;
    else {
        rope.heads = a->kv_heads, rope.tokens = keys, rope.from = rope.to = k, rope.token_starts = key_starts;
        rope.in = rope.out = rapt_layout_bshd(RAPT_F32, a->kv_heads, keys, a->d_k);
        if (status == RAPT_OK) status = rapt_rope(&rope, 0, 1);
        args.k = k, args.v = v, d.kv_len = keys, d.k_starts = key_starts;
        d.k = rapt_layout_bshd(RAPT_F32, a->kv_heads, keys, a->d_k), d.v = rapt_layout_bshd(RAPT_F32, a->kv_heads, keys, a->d_v);
    }
    rows o = new_rows(RAPT_F32, l->x.batch, tokens, a->heads * a->d_v, 0);
    d.o = head_layout(&o, a->d_v);
    rapt_plan plan;
    size_t bytes = 0;
    if (status == RAPT_OK) status = rapt_plan_init(&plan, &d);
    if (status == RAPT_OK) status = rapt_workspace_size(&plan, 1, &bytes);
    args.q = q, args.o = o.at, args.workspace = allocate(bytes), args.workspace_bytes = bytes;
    if (status == RAPT_OK) status = rapt_run(&plan, &args);
    float *mapped = l->weight[3].memory ? map_rows(l, 3, &o, isa) : (float *)(void *)o.at;
    for (int64_t b = 0; b < out->batch; b++)
        for (int64_t t = 0; t < out->tokens; t++)
            for (int64_t i = 0; i < out->channels; i++)
                reference_store(out->layout.type, (char *)row_at(out, b, t) + i * reference_type_bytes(out->layout.type),
                                mapped[(b * out->tokens + t) * out->channels + i] +
                                    (l->residual.memory ? value_at(&l->residual, b, t, i) : 0.0f));
    if (l->weight[3].memory) free(mapped);
    free(args.workspace), free(o.memory), free(q), free(k), free(v), free(x.memory), free(y.memory), free(z.memory);
    return status;
}

/* Runs a layer in one of the ways that there are. */
static rapt_status run_layer(const layer *l, int way) {
    rapt_layer_plan plan;
    rapt_layer_plan_info info = {.size = sizeof info};
    rapt_layer_args args = l->args;
    int64_t nth = way == 0 ? 1 : way == 1 ? 3 : 5;
    size_t bytes = 0;
    rapt_status status = rapt_layer_plan_init(&plan, &l->desc);
    if (status == RAPT_OK) status = rapt_layer_plan_query(&plan, &info);
    if (status == RAPT_OK) status = rapt_layer_workspace_size(&plan, nth, &bytes);
    if (status != RAPT_OK) return status;
    args.workspace = allocate(bytes), args.workspace_bytes = bytes;
    memset(args.workspace, 0xff, bytes);
    if (way == 0) status = rapt_layer_run(&plan, &args);
    else if (way == 1) {
        rapt_pool *pool = rapt_pool_create(3);
        status = rapt_layer_run_parallel(&plan, &args, nth, rapt_pool_for, pool);
        rapt_pool_destroy(pool);
    } else
        for (int phase = 0; phase < info.phases; phase++)
            for (int64_t ith = nth - 1; ith >= 0 && status == RAPT_OK; ith--)
                status = rapt_layer_run_phase(&plan, &args, phase, ith, nth);
    free(args.workspace);
    return status;
}

static bool layer_problem(const char *isa, uint64_t *h) {
    layer l;
    random_layer(&l, isa);
    rows k_cache = copy_of(&l.k_cache), v_cache = copy_of(&l.v_cache), want = copy_of(&l.out);
    int way = (int)below(3);
    rapt_status status = by_hand(&l, &k_cache, &v_cache, &want), ran = run_layer(&l, way);
    bool ok = status == RAPT_OK && ran == RAPT_OK && same(&l.out, &want) &&
              (!l.cached || (same(&k_cache, &l.k_cache) && same(&v_cache, &l.v_cache)));
    if (!ok)
        printf("# %s: %s, by hand %s; way %d, self %d, cached %d, ragged %d, positions %d, rotary %d, packed %d, keys %d\n", isa,
               rapt_status_string(ran), rapt_status_string(status), way, l.self, l.cached, l.attention.q_starts != NULL,
               l.desc.position_table, l.desc.rotary.channels != 0, l.desc.packed, (int)l.desc.keys);
    *h = hash_bytes(*h, l.out.at, l.out.bytes);
    free(k_cache.memory), free(v_cache.memory), free(want.memory);
    free_layer(&l);
    return ok;
}

/* Self-attention of a decoder's layer over S tokens at once, in f32, for the tests below. */
enum { S = 37, WIDTH = 48, HEADS = 4, KV_HEADS = 2, D = 12 };

typedef struct decoder {
    rapt_desc attention;
    rapt_layer_desc desc;
    rapt_args attention_args;
    rapt_layer_args args;
    rows x, out, wq, wk, wv, wo;
} decoder;

static void new_decoder(decoder *l, const char *isa) {
    *l = (decoder){.x = random_rows(RAPT_F32, 1, S, WIDTH, 0, 1.0f), .out = new_rows(RAPT_F32, 1, S, WIDTH, 0)};
    l->wq = random_rows(RAPT_F32, 1, HEADS * D, WIDTH, 0, 0.2f), l->wk = random_rows(RAPT_F32, 1, KV_HEADS * D, WIDTH, 0, 0.2f);
    l->wv = random_rows(RAPT_F32, 1, KV_HEADS * D, WIDTH, 0, 0.2f), l->wo = random_rows(RAPT_F32, 1, WIDTH, HEADS * D, 0, 0.2f);
    rapt_desc_init(&l->attention), rapt_layer_desc_init(&l->desc), rapt_args_init(&l->attention_args),
        rapt_layer_args_init(&l->args);
    rapt_desc *a = &l->attention;
    a->batch = 1, a->heads = HEADS, a->kv_heads = KV_HEADS, a->d_k = a->d_v = D, a->q_len = S, a->isa = isa;
    a->causal = RAPT_CAUSAL_BOTTOM_RIGHT;
    l->desc.attention = a, l->desc.x_width = WIDTH, l->desc.x = l->x.layout, l->desc.out = l->out.layout;
    l->desc.wq = l->wq.layout, l->desc.wk = l->wk.layout, l->desc.wv = l->wv.layout, l->desc.wo = l->wo.layout;
    l->args.x = l->x.at, l->args.out = l->out.at, l->args.wq = l->wq.at, l->args.wk = l->wk.at, l->args.wv = l->wv.at;
    l->args.wo = l->wo.at, l->args.attention = &l->attention_args;
}

static void free_decoder(decoder *l) {
    free(l->x.memory), free(l->out.memory), free(l->wq.memory), free(l->wk.memory), free(l->wv.memory), free(l->wo.memory);
}

static rapt_status run_decoder(decoder *l) {
    rapt_layer_plan plan;
    size_t bytes = 0;
    rapt_status status = rapt_layer_plan_init(&plan, &l->desc);
    if (status == RAPT_OK) status = rapt_layer_workspace_size(&plan, 1, &bytes);
    l->args.workspace = allocate(bytes), l->args.workspace_bytes = bytes;
    if (status == RAPT_OK) status = rapt_layer_run(&plan, &l->args);
    free(l->args.workspace);
    return status;
}

/* The formula in plain loops and double. weights: [HEADS][S][S], or null. */
static double by_formula(const decoder *l, double *weights) {
    double worst = 0.0;
    static double q[S][HEADS * D], k[S][KV_HEADS * D], v[S][KV_HEADS * D], o[S][HEADS * D];
    for (int t = 0; t < S; t++) {
        for (int n = 0; n < HEADS * D; n++)
            for (int i = q[t][n] = 0; i < WIDTH; i++) q[t][n] += (double)value_at(&l->x, 0, t, i) * value_at(&l->wq, 0, n, i);
        for (int n = 0; n < KV_HEADS * D; n++) {
            k[t][n] = v[t][n] = 0.0;
            for (int i = 0; i < WIDTH; i++) k[t][n] += (double)value_at(&l->x, 0, t, i) * value_at(&l->wk, 0, n, i);
            for (int i = 0; i < WIDTH; i++) v[t][n] += (double)value_at(&l->x, 0, t, i) * value_at(&l->wv, 0, n, i);
        }
    }
    for (int h = 0; h < HEADS; h++)
        for (int t = 0; t < S; t++) {
            double p[S], sum = 0.0;
            for (int j = 0; j <= t; j++) {
                double score = 0.0;
                for (int i = 0; i < D; i++) score += q[t][h * D + i] * k[j][h / 2 * D + i];
                sum += p[j] = exp(score / sqrt((double)D));
            }
            for (int i = 0; i < D; i++) o[t][h * D + i] = 0.0;
            for (int j = 0; j < S; j++) {
                if (weights) weights[(h * S + t) * S + j] = j <= t ? p[j] / sum : 0.0;
                for (int i = 0; i < D && j <= t; i++) o[t][h * D + i] += p[j] / sum * v[j][h / 2 * D + i];
            }
        }
    for (int t = 0; t < S; t++)
        for (int n = 0; n < WIDTH; n++) {
            double y = 0.0;
            for (int i = 0; i < HEADS * D; i++) y += o[t][i] * value_at(&l->wo, 0, n, i);
            worst = fmax(worst, fabs(y - value_at(&l->out, 0, t, n)));
        }
    return worst;
}

/* The same tokens in steps of several, into a cache. */
static bool steps_agree(decoder *l, const int64_t *steps, int n) {
    rows want = copy_of(&l->out);
    rows k = new_rows(RAPT_F32, 1, S, KV_HEADS * D, 0), v = new_rows(RAPT_F32, 1, S, KV_HEADS * D, 0);
    decoder step = *l;
    int32_t start = 0, length = 0;
    step.desc.attention = &step.attention, step.args.attention = &step.attention_args;
    step.attention.k = head_layout(&k, D), step.attention.v = head_layout(&v, D), step.attention.kv_len = S;
    step.attention_args.kv_lengths = &length, step.args.starts = &start, step.args.k_cache = k.at, step.args.v_cache = v.at;
    memset(l->out.at, 0, l->out.bytes);
    bool ok = true;
    for (int i = 0; ok && start < S; i++, start = length) {
        step.attention.q_len = steps[i % n] < S - start ? steps[i % n] : S - start;
        length = start + (int32_t)step.attention.q_len;
        step.args.x = row_at(&l->x, 0, start), step.args.out = row_at(&l->out, 0, start);
        ok = run_decoder(&step) == RAPT_OK;
    }
    ok = ok && same(&want, &l->out);
    free(want.memory), free(k.memory), free(v.memory);
    return ok;
}

static void whole_layer(const char *isa) {
    decoder l;
    new_decoder(&l, isa);
    rapt_status status = run_decoder(&l);
    double *weights = malloc(sizeof *weights * HEADS * S * S), worst = by_formula(&l, weights);
    tap_ok(status == RAPT_OK && worst < 2e-5, "%s: the layer is the formula in double within 2e-5 (%.1e)", isa, worst);
    tap_ok(steps_agree(&l, (const int64_t[]){1}, 1), "%s: step by step into a cache, the same bits", isa);
    tap_ok(steps_agree(&l, (const int64_t[]){13, 1, 2, 8}, 4), "%s: in chunks of 13, 1, 2 and 8, the same bits", isa);

    float *p = allocate(sizeof *p * HEADS * S * S);
    rows before = copy_of(&l.out);
    l.desc.weights = rapt_layout_bhsd(RAPT_F32, HEADS, S, S), l.args.weights = p;
    status = run_decoder(&l);
    double off = 0.0, sums = 0.0;
    for (int row = 0; row < HEADS * S; row++) {
        double sum = 0.0;
        for (int j = 0; j < S; j++) {
            off = fmax(off, fabs(p[row * S + j] - weights[row * S + j]));
            sum += p[row * S + j];
        }
        sums = fmax(sums, fabs(sum - 1.0));
    }
    tap_ok(status == RAPT_OK && off < 2e-6 && sums < 2e-6 && same(&before, &l.out),
           "%s: the weights are softmax's (%.1e), their rows sum to one (%.1e), and the output is the same", isa, off, sums);
    free(before.memory), free(p), free(weights);
    free_decoder(&l);
}

/* More keys than an attention call has channels for the identity. */
static void wide_weights(const char *isa) {
    enum { KEYS = 1500, ROWS = 3 };
    rows x = random_rows(RAPT_F32, 1, ROWS, 8, 0, 1.0f), y = random_rows(RAPT_F32, 1, KEYS, 8, 0, 1.0f),
         out = new_rows(RAPT_F32, 1, ROWS, 8, 0);
    rows w = random_rows(RAPT_F32, 1, 24, 8, 0, 0.5f);
    rapt_desc a;
    rapt_layer_desc d;
    rapt_layer_args args;
    rapt_layer_plan plan;
    rapt_desc_init(&a), rapt_layer_desc_init(&d), rapt_layer_args_init(&args);
    a.batch = 1, a.heads = a.kv_heads = 1, a.d_k = a.d_v = 8, a.q_len = ROWS, a.isa = isa, a.threads = 4;
    d.attention = &a, d.x_width = 8, d.keys = KEYS, d.x = x.layout, d.y = y.layout, d.out = out.layout, d.wq = w.layout,
    d.packed = 1;
    d.weights = rapt_layout_bhsd(RAPT_F32, 1, ROWS, KEYS);
    float *p = allocate(sizeof *p * ROWS * KEYS);
    args.x = x.at, args.y = y.at, args.out = out.at, args.wq = w.at, args.weights = p;
    size_t bytes = 0;
    rapt_status status = rapt_layer_plan_init(&plan, &d);
    if (status == RAPT_OK) status = rapt_layer_workspace_size(&plan, 2, &bytes);
    args.workspace = allocate(bytes), args.workspace_bytes = bytes;
    rapt_pool *pool = rapt_pool_create(2);
    if (status == RAPT_OK) status = rapt_layer_run_parallel(&plan, &args, 2, rapt_pool_for, pool);
    double worst = 0.0;
    for (int t = 0; t < ROWS && status == RAPT_OK; t++) { /* out = weights * V */
        double got[8] = {0}, sum = 0.0;
        for (int j = 0; j < KEYS; j++)
            for (int n = 0; n < 8; n++)
                for (int i = 0; i < 8; i++)
                    got[n] += (double)p[t * KEYS + j] * value_at(&y, 0, j, i) * value_at(&w, 0, 16 + n, i);
        for (int j = 0; j < KEYS; j++) sum += p[t * KEYS + j];
        for (int n = 0; n < 8; n++) worst = fmax(worst, fabs(got[n] - value_at(&out, 0, t, n)));
        worst = fmax(worst, fabs(sum - 1.0));
    }
    tap_ok(status == RAPT_OK && worst < 1e-5, "%s: weights of 1500 keys, times V, are the output (%.1e)", isa, worst);
    rapt_pool_destroy(pool);
    free(args.workspace), free(p), free(x.memory), free(y.memory), free(out.memory), free(w.memory);
}

/* ---- Tables -------------------------------------------------------------------------------------------------------------- */

static void tables(void) {
    enum { POSITIONS = 300, TABLE = 130 };
    static float table[POSITIONS * TABLE], later[TABLE];
    double worst = 0.0;
    uint64_t h = hash_start;
    bool ok = rapt_sinusoidal(0, POSITIONS, TABLE, table) == RAPT_OK;
    for (int p = 0; p < POSITIONS; p++)
        for (int i = 0; i < TABLE; i++) {
            double angle = p / pow(10000.0, (double)(i / 2 * 2) / TABLE), want = i % 2 ? cos(angle) : sin(angle);
            worst = fmax(worst, fabs(table[p * TABLE + i] - want));
        }
    h = hash_bytes(h, table, sizeof table);
    tap_ok(ok && worst < 3.1e-8, "the sinusoidal table is that of the paper, rounded to f32 (%.1e)", worst);
    tap_ok(rapt_sinusoidal(299, 1, TABLE, later) == RAPT_OK && !memcmp(later, table + 299 * TABLE, sizeof later),
           "and from another position on it is the same");
    float eight[8], twelve[12];
    ok = rapt_alibi_slopes(8, eight) == RAPT_OK && rapt_alibi_slopes(12, twelve) == RAPT_OK;
    for (int i = 0; i < 8; i++) ok = ok && eight[i] == ldexpf(1.0f, -(i + 1)) && twelve[i] == eight[i];
    for (int i = 0; i < 4; i++) ok = ok && fabs(twelve[8 + i] - pow(2.0, -0.5 * (2 * i + 1))) < 5e-8;
    h = hash_bytes(h, twelve, sizeof twelve);
    tap_ok(ok, "ALiBi's slopes for 8 and for 12 heads are those of the paper");
    float wide[3000], scales[3], weights[3 * 1000];
    int8_t quantised[3000];
    for (int i = 0; i < 3000; i++) weights[i] = wide[i] = random_value();
    weights[1500] = NAN;
    memset(weights + 2000, 0, 1000 * sizeof *weights);
    ok = rapt_quantise_weights(3, 1000, RAPT_F32, 4000, weights, quantised, scales) == RAPT_OK && isnan(scales[1]) &&
         scales[2] == 0.0f;
    float most = 0.0f;
    for (int i = 0; i < 1000; i++) most = fmaxf(most, fabsf(weights[i]));
    ok = ok && scales[0] == most / 127.0f;
    for (int i = 0; i < 1000; i++)
        ok =
            ok && quantised[i] == (int)nearbyintf(weights[i] / scales[0]) && quantised[1000 + i] == 0 && quantised[2000 + i] == 0;
    ok = ok && rapt_quantise_weights(1, 3000, RAPT_F32, 0, wide, quantised, scales) == RAPT_OK;
    most = 0.0f;
    for (int i = 0; i < 3000; i++) most = fmaxf(most, fabsf(wide[i]));
    for (int i = 0; i < 3000; i++) ok = ok && quantised[i] == (int)nearbyintf(wide[i] / (most / 127.0f));
    h = hash_bytes(h, quantised, sizeof quantised);
    tap_ok(ok, "int8 weights: the scale is the largest magnitude / 127, or NaN, or 0");
    tap_ok(h == golden_tables, "tables and quantised weights are those of every machine (%016" PRIx64 ")", h);
}

/* ---- What is refused ----------------------------------------------------------------------------------------------------- */

/* One thing wrong at a time: the status, and nothing written. */
#define REFUSED(call, expected, what)                                                                                            \
    do {                                                                                                                         \
        rapt_status got = (call);                                                                                                \
        tap_ok(got == (expected) && !memcmp(guard, before, sizeof guard), "%s is refused: %s", what, rapt_status_string(got));   \
    } while (0)

static unsigned char guard[4096], before[4096];

static void linear_refusals(void) {
    static float x[4 * 8], w[6 * 8];
    float *y = (float *)(void *)guard;
    static _Alignas(64) char workspace[1 << 16];
    rapt_linear_plan plan;
    const struct {
        rapt_status status;
        const char *what;
    } descs[] = {{RAPT_OK, "nothing"},
                 {RAPT_ERR_STRUCT, "a struct that is too small"},
                 {RAPT_ERR_SHAPE, "no input channels"},
                 {RAPT_ERR_SHAPE, "too many output channels"},
                 {RAPT_ERR_SHAPE, "a negative number of tokens"},
                 {RAPT_ERR_TYPE, "X of int8"},
                 {RAPT_ERR_TYPE, "weights of q8_0"},
                 {RAPT_ERR_TYPE, "Y of no type"},
                 {RAPT_ERR_STRIDE, "rows of Y that overlap"},
                 {RAPT_ERR_STRIDE, "a negative stride"},
                 {RAPT_ERR_FEATURE, "an unknown activation"},
                 {RAPT_ERR_ISA_UNKNOWN, "a kernel that there is not"}};
    for (int i = 0; i < (int)(sizeof descs / sizeof *descs); i++) {
        rapt_linear_desc d;
        rapt_linear_desc_init(&d);
        d.tokens = 4, d.in = 8, d.out = 6, d.x = rapt_layout_bshd(RAPT_F32, 1, 4, 8), d.y = rapt_layout_bshd(RAPT_F32, 1, 4, 6);
        d.weight = rapt_layout_bshd(RAPT_F32, 1, 6, 8);
        if (i == 1) d.size = 8;
        if (i == 2) d.in = 0;
        if (i == 3) d.out = RAPT_MAX_WIDTH + 1;
        if (i == 4) d.tokens = -1;
        if (i == 5) d.x.type = RAPT_INT8;
        if (i == 6) d.weight.type = RAPT_Q8_0;
        if (i == 7) d.y.type = (rapt_type)0;
        if (i == 8) d.y.token_stride = 20;
        if (i == 9) d.x.token_stride = -32;
        if (i == 10) d.activation = (rapt_activation)9;
        if (i == 11) d.isa = "abacus";
        REFUSED(rapt_linear_plan_init(&plan, &d), descs[i].status, descs[i].what);
    }
    rapt_linear_desc d;
    rapt_linear_desc_init(&d);
    d.tokens = 4, d.in = 8, d.out = 6, d.x = rapt_layout_bshd(RAPT_F32, 1, 4, 8), d.y = rapt_layout_bshd(RAPT_F32, 1, 4, 6);
    d.weight = rapt_layout_bshd(RAPT_INT8, 1, 6, 8), d.residual = d.y;
    REFUSED(rapt_linear_plan_init(NULL, &d), RAPT_ERR_NULL, "no plan");
    if (rapt_linear_plan_init(&plan, &d)) abort();
    const struct {
        rapt_status status;
        const char *what;
    } calls[] = {{RAPT_ERR_NULL, "no X"},
                 {RAPT_ERR_NULL, "int8 without scales"},
                 {RAPT_ERR_NULL, "no residual"},
                 {RAPT_ERR_OVERLAP, "Y over X"},
                 {RAPT_ERR_OVERLAP, "a residual that is shifted against Y"},
                 {RAPT_ERR_OVERLAP, "Y in the workspace"},
                 {RAPT_ERR_WORKSPACE, "too small a workspace"},
                 {RAPT_ERR_ALIGNMENT, "a workspace at an odd address"},
                 {RAPT_ERR_RANGE, "thread 2 of 2"},
                 {RAPT_ERR_RANGE, "no threads"},
                 {RAPT_ERR_PLAN, "something that is no plan"}};
    for (int i = 0; i < (int)(sizeof calls / sizeof *calls); i++) {
        static rapt_linear_plan no_plan;
        rapt_linear_args a;
        rapt_linear_args_init(&a);
        a.x = x, a.weight = w, a.scales = x, a.residual = y, a.y = y, a.workspace = workspace,
        a.workspace_bytes = sizeof workspace;
        if (i == 0) a.x = NULL;
        if (i == 1) a.scales = NULL;
        if (i == 2) a.residual = NULL;
        if (i == 3) a.x = guard + 8;
        if (i == 4) a.residual = guard + 4;
        if (i == 5) a.y = workspace + 256, a.residual = a.y;
        if (i == 6) a.workspace_bytes = 64;
        if (i == 7) a.workspace = workspace + 4, a.workspace_bytes -= 4;
        REFUSED(rapt_linear_run(i == 10 ? &no_plan : &plan, &a, i == 8 ? 2 : 0,
                                i == 8   ? 2
                                : i == 9 ? 0
                                         : 1),
                calls[i].status, calls[i].what);
    }
}

static void norm_refusals(void) {
    static float x[4 * 8];
    const struct {
        rapt_status status;
        const char *what;
    } calls[] = {{RAPT_ERR_NULL, "normalising nothing"},
                 {RAPT_ERR_SHAPE, "no channels"},
                 {RAPT_ERR_TYPE, "int8"},
                 {RAPT_ERR_FEATURE, "an epsilon below 0"},
                 {RAPT_ERR_OVERLAP, "Y shifted against X"},
                 {RAPT_ERR_OVERLAP, "Y over the weight"},
                 {RAPT_ERR_RANGE, "thread -1"},
                 {RAPT_ERR_ISA_UNKNOWN, "a kernel that there is not"},
                 {RAPT_ERR_STRUCT, "a struct that is too small"}};
    for (int i = 0; i < (int)(sizeof calls / sizeof *calls); i++) {
        rapt_norm_args a;
        rapt_norm_args_init(&a);
        a.tokens = 4, a.channels = 8, a.x = a.y = rapt_layout_bshd(RAPT_F32, 1, 4, 8), a.from = x, a.to = guard;
        if (i == 0) a.from = NULL;
        if (i == 1) a.channels = 0;
        if (i == 2) a.y.type = RAPT_INT8;
        if (i == 3) a.epsilon = -1.0f;
        if (i == 4) a.from = guard + 32;
        if (i == 5) a.weight = (float *)(void *)(guard + 64);
        if (i == 7) a.isa = "abacus";
        if (i == 8) a.size = 8;
        REFUSED(rapt_layer_norm(&a, i == 6 ? -1 : 0, 1), calls[i].status, calls[i].what);
    }
    float slope;
    REFUSED(rapt_sinusoidal(0, 1, 3, (float *)(void *)guard), RAPT_ERR_SHAPE, "a table of odd width");
    REFUSED(rapt_sinusoidal(-1, 1, 4, (float *)(void *)guard), RAPT_ERR_SHAPE, "a table from -1 on");
    REFUSED(rapt_sinusoidal(0, 1, 4, NULL), RAPT_ERR_NULL, "no table");
    REFUSED(rapt_alibi_slopes(0, &slope), RAPT_ERR_SHAPE, "slopes of no heads");
    REFUSED(rapt_quantise_weights(1, 8, RAPT_INT8, 8, x, (int8_t *)guard, &slope), RAPT_ERR_TYPE, "quantising int8");
    REFUSED(rapt_quantise_weights(1, 8, RAPT_F32, 32, guard, (int8_t *)guard, &slope), RAPT_ERR_OVERLAP, "quantising in place");
    REFUSED(rapt_quantise_weights(0, 8, RAPT_F32, 32, x, (int8_t *)guard, &slope), RAPT_ERR_SHAPE, "quantising no rows");
}

static void layer_refusals(void) {
    static float x[4 * 8], w[24 * 8], table[4 * 8];
    static _Alignas(64) char workspace[1 << 18];
    static const int32_t late[1] = {3}, early[1] = {-1};
    const struct {
        rapt_status status;
        const char *what;
    } cases[] = {{RAPT_ERR_NULL, "no attention"},
                 {RAPT_ERR_HEADS, "heads that kv_heads do not divide"},
                 {RAPT_ERR_SHAPE, "no heads"},
                 {RAPT_ERR_SHAPE, "a Y of another width that is X"},
                 {RAPT_ERR_TYPE, "half a cache"},
                 {RAPT_ERR_FEATURE, "unmerged states"},
                 {RAPT_ERR_FEATURE, "Z without Y"},
                 {RAPT_ERR_FEATURE, "a residual without W_O"},
                 {RAPT_ERR_FEATURE, "odd rotary channels"},
                 {RAPT_ERR_TYPE, "weights of f16"},
                 {RAPT_ERR_STRUCT, "a struct that is too small"},
                 {RAPT_ERR_MASK, "a window of -2"},
                 {RAPT_ERR_TYPE, "X of int8, to which positions are added"},
                 {RAPT_ERR_STRIDE, "X of a negative stride, to which positions are added"},
                 /* from here on when it is run */
                 {RAPT_ERR_NULL, "no W_Q"},
                 {RAPT_ERR_NULL, "no X"},
                 {RAPT_ERR_NULL, "no output"},
                 {RAPT_ERR_NULL, "no table of positions"},
                 {RAPT_ERR_TABLE, "a position behind the table"},
                 {RAPT_ERR_TABLE, "a negative position"},
                 {RAPT_ERR_OVERLAP, "the output over W_Q"},
                 {RAPT_ERR_OVERLAP, "the output in the workspace"},
                 {RAPT_ERR_OVERLAP, "X in the workspace"},
                 {RAPT_ERR_OVERLAP, "a bias in the workspace"},
                 {RAPT_ERR_WORKSPACE, "too small a workspace"},
                 {RAPT_ERR_ALIGNMENT, "a workspace at an odd address"},
                 {RAPT_ERR_NULL, "no weights output"},
                 {RAPT_ERR_FEATURE, "weights of rings"},
                 {RAPT_ERR_KV_LENGTH, "a key length beyond the keys"}};
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        rapt_desc a;
        rapt_layer_desc d;
        rapt_layer_plan plan;
        rapt_desc_init(&a), rapt_layer_desc_init(&d);
        a.batch = 1, a.heads = 2, a.kv_heads = 2, a.q_len = 4, a.d_k = a.d_v = 4;
        d.attention = &a, d.x_width = 8, d.x = d.out = rapt_layout_bshd(RAPT_F32, 1, 4, 8), d.packed = 1;
        d.wq = rapt_layout_bshd(RAPT_F32, 1, 24, 8), d.wo = rapt_layout_bshd(RAPT_F32, 1, 8, 8);
        d.position_table = i == 12 || i == 13 || (i >= 17 && i <= 19);
        if (i == 0) d.attention = NULL;
        if (i == 1) a.heads = 3;
        if (i == 2) a.heads = 0;
        if (i == 3) d.y_width = 7;
        if (i == 4) a.k = rapt_layout_bshd(RAPT_F32, 2, 4, 4);
        if (i == 5) a.unmerged = 1;
        if (i == 6) d.z = d.x;
        if (i == 7) d.wo.type = (rapt_type)0, d.residual = d.out;
        if (i == 8) d.rotary.channels = 3;
        if (i == 9 || i == 26 || i == 27) d.weights = rapt_layout_bhsd(i == 9 ? RAPT_F16 : RAPT_F32, 2, 4, 4);
        if (i == 10) d.size = 16;
        if (i == 11) a.window_left = -2;
        if (i == 12) d.x.type = RAPT_INT8;
        if (i == 13) d.x.token_stride = -32;
        rapt_status status = rapt_layer_plan_init(&plan, &d);
        if (i < 14) {
            REFUSED(status, cases[i].status, cases[i].what);
            continue;
        }
        if (status != RAPT_OK) abort();
        rapt_args attention;
        rapt_layer_args args;
        rapt_args_init(&attention), rapt_layer_args_init(&args);
        const int32_t ring = 1, length = 5;
        args.x = x, args.out = guard, args.wq = w, args.wo = w, args.attention = &attention;
        args.workspace = workspace, args.workspace_bytes = sizeof workspace, args.position_table = table,
        args.table_positions = 4;
        if (i == 14) args.wq = NULL;
        if (i == 15) args.x = NULL;
        if (i == 16) args.out = NULL;
        if (i == 17) args.position_table = NULL;
        if (i == 18) args.starts = late;
        if (i == 19) args.starts = early;
        if (i == 20) args.wq = guard + 100;
        if (i == 21) args.out = workspace + 1000;
        if (i == 22) args.x = (float *)(void *)(workspace + 1000);
        if (i == 23) args.bq = (float *)(void *)(workspace + 1000);
        if (i == 24) args.workspace_bytes = 1000;
        if (i == 25) args.workspace = workspace + 4;
        if (i == 27) args.weights = x, attention.ring_starts = &ring;
        if (i == 28) attention.kv_lengths = &length;
        REFUSED(rapt_layer_run(&plan, &args), cases[i].status, cases[i].what);
    }
}

/* Random problems of a kind. The first ones make the hash; the others come without --quick. */
static void draw(const char *isa, bool problem(const char *isa, uint64_t *h), uint64_t seed, int quick, int all, bool whole,
                 uint64_t golden, const char *what) {
    uint64_t h = hash_start, more = 0;
    int failed = 0, n = 0;
    random_state = seed;
    for (; n < (whole ? all : quick); n++) failed += !problem(isa, n < quick ? &h : &more);
    tap_ok(failed == 0, "%s: %d %s", isa, n, what);
    tap_ok(h == golden, "%s: the first %d have the bits of every machine (%016" PRIx64 ")", isa, quick, h);
}

int main(int argc, char **argv) {
    bool whole = argc < 2 || strcmp(argv[1], "--quick");
    for (int i = 0; rapt_isa_name(i); i++) {
        const char *isa = rapt_isa_name(i);
        if (rapt_isa_usable(isa, NULL, 0) != RAPT_OK) {
            printf("# %s cannot run here\n", isa);
            continue;
        }
        fused = !strcmp(rapt_isa_rounding(isa), "fused");
        draw(isa, linear_problem, 1, 40, 150, whole, golden_linear[!fused],
             "linear maps have the bits of docs/order.md, within the bound of docs/numerics.md");
        draw(isa, norm_problem, 2, 20, 60, whole, golden_norm[!fused], "layer normalisations have the bits of docs/order.md");
        draw(isa, layer_problem, 3, 25, 80, whole, golden_layer[!fused], "layers have the bits of the calls they stand for");
        far_means(isa);
        activations(isa);
        whole_layer(isa);
        wide_weights(isa);
    }
    random_state = 4;
    tables();
    for (size_t i = 0; i < sizeof guard; i++) guard[i] = before[i] = (unsigned char)(i * 7);
    linear_refusals();
    norm_refusals();
    layer_refusals();
    return tap_done();
}
