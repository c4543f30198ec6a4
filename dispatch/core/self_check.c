/* SPDX-License-Identifier: Apache-2.0 */
/* rapt_self_check: tests whether this build computes what docs/order.md says, by the hashes of the results of small problems. It
 * is for those who compile the library in their own way; tests/check has thousands of problems, and a reference. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "core/float_modes.h"
#include "kernel.h"
#include "core/memory.h"
#include "core/report.h"
#include "cache/rows.h"
#include "cpu/select.h"

/* Sizes of the problems. */
enum {
    CHECK_KEYS = 530, /* two chunks, the second one a part of a block */
    BF16_KEYS = 60,   /* few, since the workspace holds the staged keys of a chunk */
    D_K = 20,
    D_V = 12,
    ROWS = 80,
    WIDE = 136,
    IN = 1056,
    FEW_IN = 40,
    GROUPS_IN = 64,
    BLOCK = 256, /* channels of a block of weights alone */
    BLOCKS_IN = 2 * BLOCK,
    OUT = 16,
    TOKENS = 26,
    CHANNELS = 50,
    STORED = 64
};

/* All memory of a check; the stack of a small thread may not have room for it, hence rapt_self_check_in. */
typedef struct room {
    _Alignas(RAPT_WORKSPACE_ALIGNMENT) char workspace[96 << 10];
    char k[CHECK_KEYS * D_K * 2], v[CHECK_KEYS * D_V * 2]; /* CHECK_KEYS rows of two-byte elements, or fewer, larger rows */
    float q[ROWS * D_K], bias[CHECK_KEYS], out[ROWS * D_V], lse[ROWS], row[IN];
    rapt_linear_plan linear;
    rapt_plan plan;
} room;
_Static_assert(sizeof(room) <= RAPT_SELF_CHECK_BYTES, "rapt: RAPT_SELF_CHECK_BYTES");

/* Fills an array with random numbers from -2 to 2, which are exact in f32. */
static void fill(float *to, int64_t n, uint32_t seed) {
    for (int64_t i = 0; i < n; i++) {
        seed = seed * UINT32_C(1664525) + UINT32_C(1013904223);
        to[i] = (float)((int32_t)(seed >> 8) - (1 << 23)) * 0x1p-22f;
    }
}

/* Fills rows of any type with random numbers times factor. row: scratch for a row of f32. */
static void fill_rows(rapt_type type, char *to, int64_t rows, int64_t channels, float factor, uint32_t seed, float *row) {
    for (int64_t n = 0; n < rows; n++, to += rapt_row_bytes(type, channels)) {
        fill(row, channels, seed + (uint32_t)n);
        for (int64_t i = 0; i < channels; i++) row[i] *= factor;
        rapt_store_row(type, to, row, channels);
    }
}

/* Fills consecutive blocks of a type of weights alone, which nothing stores, with random bytes, and their scales of f16 with
 * random numbers from 2^-10 to 2^-9. */
static void fill_blocks(rapt_type type, char *to, int64_t blocks, uint32_t seed) {
    const int64_t bytes = rapt_row_bytes(type, BLOCK);
    for (int64_t i = 0; i < blocks * bytes; i++) {
        const int64_t at = i % bytes;
        const bool exponent = type == RAPT_Q6_K ? at == bytes - 1 : at == 1 || at == 3; /* the byte that has it */
        seed = seed * UINT32_C(1664525) + UINT32_C(1013904223);
        to[i] = (char)(exponent ? UINT32_C(0x14) : seed >> 24);
    }
}

/* Adds a byte to a hash, by a step of FNV-1a. */
static uint64_t hash_byte(uint64_t h, uint64_t byte) { return (h ^ byte) * UINT64_C(0x100000001b3); }

/* Adds n numbers to a hash: the lowest byte first on every machine, and every NaN as the same one. */
static uint64_t hash(uint64_t h, const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        if ((bits & 0x7fffffff) > 0x7f800000) bits = 0x7fc00000;
        for (int b = 0; b < 32; b += 8) h = hash_byte(h, bits >> b & 255);
    }
    return h;
}
#define HASH_START UINT64_C(0xcbf29ce484222325)

/* ---- The problems -------------------------------------------------------------------------------------------------------- */

/* Returns a description of attention over one key/value head, with dense tensors. */
static rapt_desc describe(const char *isa, int64_t heads, int64_t q_len, int64_t kv_len, int64_t d_k, int64_t d_v,
                          rapt_type k_type, rapt_type v_type) {
    rapt_desc d;
    rapt_desc_init(&d);
    d.heads = heads, d.kv_heads = 1, d.q_len = q_len, d.kv_len = kv_len, d.d_k = d_k, d.d_v = d_v;
    d.q = rapt_layout_bhsd(RAPT_F32, heads, q_len, d_k);
    d.k = rapt_layout_bhsd(k_type, 1, kv_len, d_k);
    d.v = rapt_layout_bhsd(v_type, 1, kv_len, d_v);
    d.o = rapt_layout_bhsd(RAPT_F32, heads, q_len, d_v);
    d.lse = (rapt_layout){RAPT_F32, heads * q_len * 4, q_len * 4, 4};
    d.isa = isa;
    return d;
}

/* Computes attention on the tensors of r, and sets *h to the hash of the results. */
static rapt_status attend(room *r, const rapt_desc *d, rapt_args *a, uint64_t *h) {
    rapt_status status = rapt_plan_init(&r->plan, d);
    a->q = r->q, a->k = r->k, a->v = r->v, a->o = r->out, a->lse = r->lse, a->workspace = r->workspace;
    a->workspace_bytes = sizeof r->workspace;
    if (status == RAPT_OK) status = rapt_run(&r->plan, a);
    if (status != RAPT_OK) return status;
    *h = hash(hash(HASH_START, r->out, d->heads * d->q_len * d->d_v), r->lse, d->heads * d->q_len);
    return status;
}

/* Fills Q, K and V; v_factor: what V is multiplied by. */
static void fill_attention(room *r, const rapt_desc *d, float v_factor) {
    fill(r->q, d->heads * d->q_len * d->d_k, 1);
    fill_rows(d->k.type, r->k, d->kv_len, d->d_k, 1.0f, 2, r->row);
    fill_rows(d->v.type, r->v, d->kv_len, d->d_v, v_factor, 3, r->row);
}

/* Hashes attention of many rows: two chunks, several tiles of queries, a partial last block, a window. */
static rapt_status check_many_rows(const char *isa, room *r, uint64_t *h) {
    rapt_args a;
    rapt_desc d = describe(isa, 2, 40, CHECK_KEYS, D_K, D_V, RAPT_F16, RAPT_BF16);
    d.causal = RAPT_CAUSAL_BOTTOM_RIGHT;
    d.window_left = 505;
    fill_attention(r, &d, 1.0f);
    rapt_args_init(&a);
    return attend(r, &d, &a, h);
}

/* Hashes attention of few rows: one token of three heads, with modified logits and with values below the normal range of f32. */
static rapt_status check_few_rows(const char *isa, room *r, uint64_t *h) {
    const float slopes[3] = {0.5f, 0.25f, 0.125f}, sinks[3] = {1.0f, -1.0f, 0.5f};
    rapt_args a;
    rapt_desc d = describe(isa, 3, 1, CHECK_KEYS, D_K, D_V, RAPT_BF16, RAPT_BF16);
    d.softcap = 5.0f;
    d.alibi = RAPT_ALIBI_DISTANCE;
    d.slopes = d.sinks = (rapt_layout){.type = RAPT_F32, .head_stride = sizeof(float)};
    d.bias.type = RAPT_F32;
    fill_attention(r, &d, 0x1p-130f);
    fill(r->bias, CHECK_KEYS, 4);
    for (int j = 0; j < CHECK_KEYS; j += 7) r->bias[j] = -INFINITY;
    rapt_args_init(&a);
    a.slopes = slopes, a.sinks = sinks, a.bias = r->bias;
    return attend(r, &d, &a, h);
}

/* Hashes wide heads: scores that are summed in parts, a NaN in V that all rows mask, an infinite value that one row attends to, a
 * row without keys. */
static rapt_status check_wide(const char *isa, room *r, uint64_t *h) {
    rapt_args a;
    rapt_desc d = describe(isa, 1, 3, 70, WIDE, D_V, RAPT_F16, RAPT_F32);
    d.mask.type = RAPT_BIT;
    d.mask.token_stride = 9;
    const unsigned char mask[3][9] = {{0}, {255 - 16, 1, 2, 3, 4, 5, 6, 7, 8}, {170 - 32, 255, 255, 0, 0, 0, 0, 255, 63}};
    fill_attention(r, &d, 1.0f);
    const float nan = NAN, infinite = INFINITY;
    memcpy(r->v + 4 * D_V * sizeof nan, &nan, sizeof nan);
    memcpy(r->v + 5 * D_V * sizeof infinite, &infinite, sizeof infinite);
    rapt_args_init(&a);
    a.mask = mask;
    return attend(r, &d, &a, h);
}

/* Hashes an output of 0, for its sign: four keys have the same weight, the first value is -2^-149, and the others are 0. A fourth
 * of -2^-149 is rounded to -0. In unfused kernels the last step then adds 0, which gives +0, except with clang's
 * -fno-signed-zeros, which no macro shows. In fused kernels it rounds the product and the sum together, to -0. */
static rapt_status check_zeros(const char *isa, room *r, uint64_t *h) {
    const float v[4] = {-0x1p-149f};
    rapt_args a;
    rapt_desc d = describe(isa, 1, 1, 4, 1, 1, RAPT_F32, RAPT_F32);
    memset(r->k, 0, sizeof r->k);
    memcpy(r->v, v, sizeof v);
    r->q[0] = 1.0f;
    rapt_args_init(&a);
    return attend(r, &d, &a, h);
}

/* Hashes integer arithmetic: weights near each other and values of up to 126 in magnitude, so that some sums of two products
 * exceed 16 bits. */
static rapt_status check_integers(const char *isa, room *r, uint64_t *h) {
    rapt_args a;
    rapt_desc d = describe(isa, 3, 1, CHECK_KEYS, D_K, D_V, RAPT_INT8, RAPT_INT8);
    d.arith = RAPT_INT8_DOT;
    d.scale = 0x1p-6f;
    d.k_scales = d.v_scales = (rapt_scales){.present = 1, .token_stride = sizeof(float)};
    fill_attention(r, &d, 63.0f);
    fill(r->bias, CHECK_KEYS, 4);
    rapt_args_init(&a);
    a.k_scales = a.v_scales = r->bias;
    return attend(r, &d, &a, h);
}

/* Hashes integer arithmetic at ties: all weights of the softmax are 1, so that the scales of V alone are rounded to 8 bits. A
 * scale times 255 is a tie once it is rounded to f32, but not before: if the compiler contracts this product with the sum that
 * follows it, the hash is another. With AVX2 this is the only place where a sum follows a product. */
static rapt_status check_integer_ties(const char *isa, room *r, uint64_t *h) {
    rapt_args a;
    rapt_desc d = describe(isa, 2, 40, CHECK_KEYS, D_K, D_V, RAPT_INT8, RAPT_INT8);
    d.arith = RAPT_INT8_DOT;
    d.v_scales = (rapt_scales){.present = 1, .token_stride = sizeof(float)};
    fill_attention(r, &d, 40.0f);
    memset(r->q, 0, sizeof r->q);
    for (int j = 0; j < CHECK_KEYS; j++) r->bias[j] = j % RAPT_BLOCK == 0 ? 1.0f : ((float)(j % 255) + 0.5f) / 255.0f;
    rapt_args_init(&a);
    a.v_scales = r->bias;
    return attend(r, &d, &a, h);
}

/* Hashes bf16 arithmetic, which has steps of 32 channels and keys, in prefill and decode. */
static rapt_status check_bf16(const char *isa, room *r, uint64_t *h) {
    rapt_args a;
    rapt_status status = RAPT_OK;
    *h = HASH_START;
    for (int64_t queries = 40; queries > 0 && status == RAPT_OK; queries -= 39) {
        uint64_t part = 0;
        rapt_desc d = describe(isa, 1, queries, BF16_KEYS, D_K, D_V, RAPT_BF16, RAPT_F16);
        d.arith = RAPT_BF16_DOT;
        fill_attention(r, &d, 1.0f);
        rapt_args_init(&a);
        status = attend(r, &d, &a, &part);
        for (int b = 0; b < 64; b += 8) *h = hash_byte(*h, part >> b & 255);
    }
    return status;
}

/* Hashes a linear layer. To take less memory, rows overlap: each row of weights and of tokens begins one element, group or block
 * after the row before it. */
static rapt_status linear(const char *isa, room *r, rapt_arith arith, rapt_type weight, int64_t tokens, int64_t in,
                          rapt_activation activation, bool gated, uint64_t *h) {
    const bool blocks = rapt_type_class_of(weight) == RAPT_CLASS_MATRIX;
    const int64_t together = weight == RAPT_BF16 ? 1 : blocks ? BLOCK : 32; /* channels of an element, group or block */
    rapt_linear_desc d;
    rapt_linear_args a;
    rapt_linear_desc_init(&d);
    d.tokens = tokens, d.in = in, d.out = OUT;
    d.x = (rapt_layout){.type = RAPT_F32, .token_stride = sizeof(float)};
    d.y = rapt_layout_bshd(RAPT_F32, 1, tokens, OUT);
    d.weight = (rapt_layout){.type = weight, .token_stride = rapt_row_bytes(weight, together)};
    if (gated) d.gate = (rapt_layout){.type = RAPT_Q8_0, .token_stride = 34};
    d.activation = activation;
    d.arith = arith;
    d.isa = isa;
    fill(r->q, in + tokens, 5);
    if (blocks) fill_blocks(weight, r->k, OUT + BLOCKS_IN / BLOCK, 6);
    else fill_rows(weight, r->k, 2, IN, 0.125f, 6, r->row);
    fill_rows(RAPT_Q8_0, r->v, 2, IN, 0.125f, 7, r->row);
    fill(r->bias, OUT, 8);
    rapt_status status = rapt_linear_plan_init(&r->linear, &d);
    rapt_linear_args_init(&a);
    a.x = r->q, a.weight = r->k, a.bias = r->bias, a.y = r->out, a.workspace = r->workspace;
    a.workspace_bytes = sizeof r->workspace;
    if (gated) a.gate = r->v;
    if (status == RAPT_OK) status = rapt_linear_run(&r->linear, &a);
    if (status != RAPT_OK) return status;
    *h = hash(HASH_START, r->out, tokens * OUT);
    return status;
}

static rapt_status check_few_tokens(const char *isa, room *r, uint64_t *h) {
    return linear(isa, r, RAPT_EXACT, RAPT_BF16, 1, IN, RAPT_SILU, true, h);
}
static rapt_status check_many_tokens(const char *isa, room *r, uint64_t *h) {
    return linear(isa, r, RAPT_EXACT, RAPT_BF16, TOKENS, FEW_IN, RAPT_GELU, false, h);
}
static rapt_status check_few_bf16_tokens(const char *isa, room *r, uint64_t *h) {
    return linear(isa, r, RAPT_BF16_DOT, RAPT_BF16, 1, IN, RAPT_SILU, true, h);
}
static rapt_status check_many_bf16_tokens(const char *isa, room *r, uint64_t *h) {
    return linear(isa, r, RAPT_BF16_DOT, RAPT_BF16, TOKENS, FEW_IN, RAPT_GELU, false, h);
}
static rapt_status check_integer_tokens(const char *isa, room *r, uint64_t *h) {
    return linear(isa, r, RAPT_INT8_DOT, RAPT_Q4_0, TOKENS, GROUPS_IN, RAPT_SILU, true, h);
}
static rapt_status check_q4_1_tokens(const char *isa, room *r, uint64_t *h) {
    return linear(isa, r, RAPT_INT8_DOT, RAPT_Q4_1, TOKENS, GROUPS_IN, RAPT_ACTIVATION_NONE, false, h);
}
static rapt_status check_q4_k_tokens(const char *isa, room *r, uint64_t *h) {
    return linear(isa, r, RAPT_INT8_DOT, RAPT_Q4_K, TOKENS, BLOCKS_IN, RAPT_ACTIVATION_NONE, false, h);
}
static rapt_status check_q6_k_tokens(const char *isa, room *r, uint64_t *h) {
    return linear(isa, r, RAPT_INT8_DOT, RAPT_Q6_K, TOKENS, BLOCKS_IN, RAPT_ACTIVATION_NONE, false, h);
}

/* Hashes layer and RMS normalisation. */
static rapt_status check_norms(const char *isa, room *r, uint64_t *h) {
    rapt_norm_args a;
    rapt_norm_args_init(&a);
    a.tokens = 2, a.channels = CHANNELS;
    a.x = a.y = rapt_layout_bshd(RAPT_F32, 1, 2, CHANNELS);
    a.from = r->q, a.to = r->out, a.weight = r->bias, a.bias = r->bias + CHANNELS, a.isa = isa;
    fill(r->q, 2 * CHANNELS, 9);
    fill(r->bias, 2 * CHANNELS, 10);
    rapt_status status = rapt_layer_norm_run(&a);
    *h = hash(HASH_START, r->out, 2 * CHANNELS);
    if (status == RAPT_OK) status = rapt_rms_norm_run(&a);
    *h = hash(*h, r->out, 2 * CHANNELS);
    return status;
}

/* Hashes rotation and quantisation. They are code of dispatch/, not of a kernel, so isa is not used. */
static rapt_status check_caches(const char *isa, room *r, uint64_t *h) {
    (void)isa;
    double frequencies[STORED / 2];
    rapt_kv_append_desc d;
    rapt_kv_append_args a;
    rapt_status status = rapt_rope_frequencies(10000.0, STORED, frequencies);
    rapt_kv_append_desc_init(&d);
    d.kv_heads = 1, d.tokens = 2, d.kv_len = 2, d.d_k = d.d_v = STORED;
    d.new_k = d.new_v = rapt_layout_bhsd(RAPT_F32, 1, 2, STORED);
    d.k = rapt_layout_bhsd(RAPT_F32, 1, 2, STORED);
    d.v = rapt_layout_bhsd(RAPT_Q5_1, 1, 2, STORED);
    d.rope.channels = STORED, d.rope.frequencies = frequencies, d.rope.offset = 123456;
    fill(r->q, 2 * STORED, 11);
    memset(r->v, 0, sizeof r->v);
    rapt_kv_append_args_init(&a);
    a.new_k = a.new_v = r->q, a.k = r->out, a.v = r->v;
    if (status == RAPT_OK) status = rapt_kv_append_run(&d, &a);
    *h = hash(HASH_START, r->out, 2 * STORED);
    for (int64_t i = 0; i < 2 * rapt_row_bytes(RAPT_Q5_1, STORED); i++) *h = hash_byte(*h, (unsigned char)r->v[i]);
    return status;
}

static const struct {
    const char *what;
    rapt_status (*run)(const char *isa, room *r, uint64_t *h);
    uint64_t expected[2]; /* unfused, fused */
} problems[] = {
    {"attention of many rows", check_many_rows, {UINT64_C(0x0ae835d237d64e35), UINT64_C(0xe58d724000d5bd79)}},
    {"attention of few rows", check_few_rows, {UINT64_C(0x8631526fae3d0cae), UINT64_C(0xbb932d420ad92f29)}},
    {"attention of wide heads", check_wide, {UINT64_C(0x312524f8cf9b52dd), UINT64_C(0xa6eca5404efea2c4)}},
    {"attention to values near 0", check_zeros, {UINT64_C(0x1fddf6efb91d7c4f), UINT64_C(0xcbd261b1144b73cf)}},
    {"attention in integers", check_integers, {UINT64_C(0xfc007d0ceec57949), UINT64_C(0xc43c62763d0a5311)}},
    {"attention in integers, rounded", check_integer_ties, {UINT64_C(0x8ba9cb4f9624b2e5), UINT64_C(0x1721484cd49df685)}},
    {"attention in bf16", check_bf16, {UINT64_C(0x38db8a8e2320357f), UINT64_C(0xdd92ed1108dafdce)}},
    {"a linear layer of few tokens", check_few_tokens, {UINT64_C(0xaa8d6b2163e08b1f), UINT64_C(0xf17e7b265f634222)}},
    {"a linear layer of many tokens", check_many_tokens, {UINT64_C(0x0849bcb35ccff73f), UINT64_C(0x7c93da6790ced9fc)}},
    {"a linear layer of few tokens in bf16", check_few_bf16_tokens, {UINT64_C(0xe4009402a743789e), UINT64_C(0xf49980ff9c585465)}},
    {"a linear layer of many tokens in bf16",
     check_many_bf16_tokens,
     {UINT64_C(0x82e79083ca0fb53f), UINT64_C(0x1b886394d5243e22)}},
    {"a linear layer in integers", check_integer_tokens, {UINT64_C(0xbeea19becd20ba00), UINT64_C(0x2e0d583973614379)}},
    {"a linear layer of q4_1 in integers", check_q4_1_tokens, {UINT64_C(0x299d5549951f9e9c), UINT64_C(0x868820a1e23ad941)}},
    {"a linear layer of q4_k in integers", check_q4_k_tokens, {UINT64_C(0x768e97d197c4a344), UINT64_C(0x41c24d359e9b8012)}},
    {"a linear layer of q6_k in integers", check_q6_k_tokens, {UINT64_C(0xea943ceae66e8d9c), UINT64_C(0xa4b7c40b4b1847dc)}},
    {"normalisation", check_norms, {UINT64_C(0xffd165ac5a16d2b5), UINT64_C(0x112bd6a14c723ca6)}},
    {"rotation and quantisation", check_caches, {UINT64_C(0x3b08f467c5e9b57e), UINT64_C(0x3b08f467c5e9b57e)}},
};

/* ---- The thread's environment -------------------------------------------------------------------------------------------- */

/* Checks the thread's floating-point modes: by the control register, and by results, since on some machines no control register
 * is known. Operands are volatile, so that the compiler does not compute the results itself. */
static rapt_status check_environment(rapt_report *r) {
    const uint64_t control = rapt_float_control();
    if (rapt_float_modes(control)) return rapt_refuse_float_modes(r, RAPT_ERR_SELF_CHECK, "the thread", control);
    volatile float one = 1.0f, tiny = 0x1p-30f, least = FLT_MIN, half = 0.5f, below = 0x1p-140f;
    if (least * half == 0.0f || below + below == 0.0f || one + tiny != 1.0f || -one - tiny != -1.0f || one - tiny != 1.0f)
        return rapt_refuse(r, RAPT_ERR_SELF_CHECK, "the thread does not round to nearest, or flushes denormal numbers to 0");
    return RAPT_OK;
}

/* ---- The checks ---------------------------------------------------------------------------------------------------------- */

/* Runs all problems on a kernel, and compares their hashes. */
static rapt_status check_kernel(rapt_report *r, const rapt_kernel *kernel, room *memory) {
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        uint64_t found, expected = problems[i].expected[kernel->base->fused];
        rapt_status status = problems[i].run(kernel->name, memory, &found);
        if (status != RAPT_OK)
            return rapt_refuse(r, RAPT_ERR_SELF_CHECK, "%s: %s: %s", kernel->name, problems[i].what, rapt_status_string(status));
        if (found != expected)
            return rapt_refuse(r, RAPT_ERR_SELF_CHECK,
                               "%s: %s: its bits, of hash %" PRIx64 ", are not those of docs/order.md, of hash %" PRIx64
                               ": was it compiled with -ffp-contract=off, and without -ffast-math?",
                               kernel->name, problems[i].what, found, expected);
    }
    return RAPT_OK;
}

/* Checks the thread's modes, then the kernel isa, or all kernels that can run here if isa is null. */
static rapt_status check_kernels(rapt_report *r, const char *isa, room *memory) {
    const rapt_kernel *kernel;
    rapt_status status = check_environment(r);
    if (status == RAPT_OK && isa) {
        status = rapt_select(r, isa, &kernel);
        return status == RAPT_OK ? check_kernel(r, kernel, memory) : status;
    }
    const char *name;
    for (int i = 0; status == RAPT_OK && (name = rapt_isa_name(i)); i++) {
        if (rapt_isa_usable(name, NULL, 0) != RAPT_OK) continue;
        status = rapt_select(r, name, &kernel);
        if (status == RAPT_OK) status = check_kernel(r, kernel, memory);
    }
    return status;
}

/* Returns a report that writes to text, or to the trace if text is null. */
static rapt_report report_of(const char *call, char *text, size_t bytes) {
    return text ? rapt_explanation_of(call, text, bytes) : rapt_report_of(call);
}

static RAPT_NOINLINE rapt_status check_workspace(rapt_report *r, const void *workspace, size_t bytes) {
    rapt_memory m;
    rapt_memory_begin(&m, r);
    rapt_writes_workspace(&m, workspace, bytes, RAPT_SELF_CHECK_BYTES);
    return m.status;
}

rapt_status rapt_self_check(const char *isa, char *text, size_t bytes) {
    rapt_report r = report_of("rapt_self_check", text, bytes);
    room memory;
    return check_kernels(&r, isa, &memory);
}

rapt_status rapt_self_check_in(void *workspace, size_t workspace_bytes, const char *isa, char *text, size_t bytes) {
    rapt_report r = report_of("rapt_self_check_in", text, bytes);
    const rapt_status status = check_workspace(&r, workspace, workspace_bytes);
    return status == RAPT_OK ? check_kernels(&r, isa, workspace) : status;
}
