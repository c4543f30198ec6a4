/* SPDX-License-Identifier: Apache-2.0 */
/* rapt_layer: the layers around attention, and multi-head attention as one call: the projections of "Attention Is All You Need"
 * (Vaswani et al. 2017, section 3.2.2), the linear layers of its position-wise networks (3.3) with activations and gates,
 * positional encodings (3.5), layer and RMS normalisation (Ba, Kiros & Hinton 2016; Zhang & Sennrich 2019). Multi-head attention
 * is
 *
 *     Q = X Wq^T + bq,  K = Y Wk^T + bk,  V = Z Wv^T + bv,   out = concat(softmax(scale Q_h K_h^T + mask) V_h) Wo^T + bo
 *
 * The rules of rapt.h apply: memory and threads are the caller's, nothing is allocated, and everything is checked before anything
 * is written. So does its promise: a token's output is a function of that token (in attention, of what it attends to) and of the
 * weights, and of nothing else. docs/order.md specifies the order of operations.
 *
 * Weights are stored as in torch.nn.Linear: [out, in], so row n makes output channel n. */
#ifndef RAPT_LAYER_H
#define RAPT_LAYER_H

#include "rapt.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Linear ---------------------------------------------------------------------------------------------------------- */

/* The function that a linear layer applies to each of its sums, x. */
typedef enum rapt_activation {
    RAPT_ACTIVATION_NONE = 0, /* x */
    RAPT_RELU = 1,            /* max(x, 0) */
    RAPT_GELU = 2,            /* x * Phi(x), Phi the distribution function of the normal distribution (Hendrycks & Gimpel 2016) */
    RAPT_GELU_TANH = 3,       /* 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) (ibid.) */
    RAPT_SILU = 4             /* x / (1 + exp(-x)) (Elfwing et al. 2018; also called swish) */
} rapt_activation;

/* The most channels that a token may have. */
#define RAPT_MAX_WIDTH (1 << 20)

/* A linear layer:
 *
 *     Y = activation(X W^T * scales + bias) + residual
 *
 * or, with a gate (Shazeer 2020, "GLU Variants Improve Transformer"; SwiGLU is a gate with RAPT_SILU, GeGLU one with RAPT_GELU):
 *
 *     Y = activation(X G^T * gate_scales + gate_bias) * (X W^T * scales + bias) + residual
 *
 * Call rapt_linear_desc_init first, then set tokens, in, out, x, y and weight. Here and below, head_stride of layouts of tokens
 * is not used. */
typedef struct rapt_linear_desc {
    size_t size; /* Set by rapt_linear_desc_init, as in rapt_desc. */

    int64_t batch;        /* Batch entries, 0..RAPT_MAX_LENGTH. The default is 1. */
    int64_t tokens;       /* Tokens of each entry, 0..RAPT_MAX_LENGTH. */
    int64_t in;           /* Channels of a token of X, 1..RAPT_MAX_WIDTH. */
    int64_t out;          /* Channels of a token of Y, 1..RAPT_MAX_WIDTH. */
    rapt_layout x;        /* [batch, tokens] rows of in channels of RAPT_F32, RAPT_F16 or RAPT_BF16. */
    rapt_layout y;        /* [batch, tokens] rows of out channels of the same types, rounded once from f32, to nearest even. */
    rapt_layout residual; /* [batch, tokens] rows of out channels of the same types. RAPT_NONE, the default: there is none. */

    /* W, [out] rows of in channels of the same types, of RAPT_INT8, of RAPT_Q8_0, RAPT_Q4_0 or RAPT_Q4_1, for which in must be a
     * multiple of 32, or of RAPT_Q4_K or RAPT_Q6_K, for which it must be a multiple of 256. They are converted to f32 as they are
     * read, unless arith says otherwise. token_stride is the distance of two rows; batch_stride is not used. */
    rapt_layout weight;

    rapt_activation activation; /* The default is RAPT_ACTIVATION_NONE. */
    const char *isa;            /* The name of the kernel to use, as in rapt_desc. */

    /* ---- Since 0.2. */

    rapt_layout gate; /* G, [out] rows as in weight; its type and stride may differ. RAPT_NONE, the default: there is none. */

    /* ---- Since 0.4. */

    /* The arithmetic of products, while biases, the scales of rows and all later steps stay in f32: RAPT_EXACT, the default; or
     * RAPT_BF16_DOT, in which the elements of X, W and G are rounded to bf16 and their products summed as in attention; or
     * RAPT_INT8_DOT, in which each token of X is quantised to 8 bits by groups of 32 channels, for RAPT_Q4_K and RAPT_Q6_K by
     * blocks of 256, and products are summed in integers within a group. W and G are then of RAPT_INT8 or of a type with groups;
     * they may differ in this, and X is then quantised for each. Prepacked weights save the most time. */
    rapt_arith arith;

    const rapt_tuning *tuning; /* Numbers by which the work is cut, as in rapt_desc. */
} rapt_linear_desc;

/* Gives every field its default, or 0 where it has none; call it before you set any. */
#define rapt_linear_desc_init(desc) rapt_linear_desc_init_sized((desc), sizeof *(desc))

/* Implements the macro rapt_linear_desc_init, which passes the size of the caller's struct. */
RAPT_API void rapt_linear_desc_init_sized(rapt_linear_desc *desc, size_t size);

/* A validated linear layer in plain memory of the caller's, like rapt_plan. It keeps no addresses. */
typedef struct rapt_linear_plan {
    uint64_t opaque[64]; /* Private to the library. */
} rapt_linear_plan;

/* Validates a linear layer and chooses the kernel. Errors: NULL, STRUCT, SHAPE, TYPE, STRIDE, ALIGNMENT (the plan), FEATURE
 * (activation), ARITH, ISA_UNKNOWN, ISA_MISSING, TUNING. The function of this name, for callers in other languages and clients of
 * 0.1, takes a plan of 64 uint64_t. */
RAPT_API rapt_status rapt_linear_plan_init(rapt_linear_plan *plan, const rapt_linear_desc *desc);
#define rapt_linear_plan_init(plan, desc) rapt_linear_plan_init_sized((plan), sizeof *(plan), (desc))

/* Implements the macro rapt_linear_plan_init, which passes the size of the caller's plan. */
RAPT_API rapt_status rapt_linear_plan_init_sized(rapt_linear_plan *plan, size_t bytes, const rapt_linear_desc *desc);

/* Returns what rapt_linear_plan_init would return, and writes the reason to text, as rapt_plan_explain does. */
RAPT_API rapt_status rapt_linear_explain(const rapt_linear_desc *desc, char *text, size_t bytes);

/* Sets *bytes to the size of the workspace that a call by nth threads needs. Errors: NULL, PLAN, RANGE (nth < 1), SHAPE
 * (overflow). */
RAPT_API rapt_status rapt_linear_workspace_size(const rapt_linear_plan *plan, int64_t nth, size_t *bytes);

/* The tensors and arrays of a call of a linear layer. */
typedef struct rapt_linear_args {
    size_t size; /* Set by rapt_linear_args_init. */

    const void *x;          /* X, the tokens. */
    const void *weight;     /* W, the weights. */
    const float *bias;      /* [out]: is added to each output channel. Null: 0. */
    const float *scales;    /* [out]: the scale of each row of weight; required for RAPT_INT8. Null: 1. */
    const void *residual;   /* Is added last. It may be y itself if their layouts are the same; else it must not overlap y. */
    void *y;                /* Y, the result. */
    void *workspace;        /* Memory as in rapt_args, private to the call until all threads are done. */
    size_t workspace_bytes; /* At least what rapt_linear_workspace_size gives. */

    /* ---- Since 0.2. */

    const void *gate;                     /* G, if the plan has a gate. */
    const float *gate_bias, *gate_scales; /* The bias and the scales of the gate, like bias and scales for weight. */

    /* ---- Since 0.4. */

    /* W and G as rapt_linear_prepack_run has laid them out, from the same rows, by a plan with the same in, out, types, arith and
     * kernel. Calls with many tokens read them instead of weight and gate, in RAPT_INT8_DOT all calls do. Calls with few
     * tokens do not, but for those in RAPT_BF16_DOT of the kernel avx512_bf16 whose weight and gate, if there is one, are both
     * prepacked. Null, the default: each call lays the weights out for the kernel. The bits are the same. */
    const void *prepacked, *gate_prepacked;
} rapt_linear_args;

/* Gives every field its default, or 0 where it has none; call it before you set any. */
#define rapt_linear_args_init(args) rapt_linear_args_init_sized((args), sizeof *(args))

/* Implements the macro rapt_linear_args_init, which passes the size of the caller's struct. */
RAPT_API void rapt_linear_args_init_sized(rapt_linear_args *args, size_t size);

/* Computes a linear layer on the calling thread. Errors, also of the ways to run below: NULL, STRUCT, PLAN, SHAPE (the workspace
 * for nth threads overflows), STRIDE, OVERLAP, WORKSPACE, ALIGNMENT, UNUSED, PREPACKED. */
RAPT_API rapt_status rapt_linear_run(const rapt_linear_plan *plan, const rapt_linear_args *args);

/* Does what rapt_linear_run does through the caller's parallel_for, in nth slots (see rapt_run_parallel). */
RAPT_API rapt_status rapt_linear_run_parallel(const rapt_linear_plan *plan, const rapt_linear_args *args, int64_t nth,
                                              rapt_parallel_for parallel_for, void *pool);

/* Does the share of thread ith of nth in what rapt_linear_run does; the threads need not wait for each other. */
RAPT_API rapt_status rapt_linear_run_share(const rapt_linear_plan *plan, const rapt_linear_args *args, int64_t ith, int64_t nth);

/* Returns what rapt_linear_run with nth threads would return, and writes the reason to text, as rapt_args_explain does. */
RAPT_API rapt_status rapt_linear_args_explain(const rapt_linear_plan *plan, const rapt_linear_args *args, int64_t nth, char *text,
                                              size_t bytes);

/* Sets *bytes to the size of prepacked weights of the plan, of W and of G each; to SIZE_MAX if it would exceed the address space.
 * It is about 4 bytes for each weight; 2 in bf16 arithmetic in the kernels amx and avx512_bf16; 16 in sse41, which stores each
 * weight four times; in integer arithmetic 0.56 to 0.75 for types of 4 bits and 1.1 for the others, but 2.1 to 2.3 in the kernels
 * scalar and scalar_fma. If W and G differ in type, it is the larger one of their sizes. Rows are padded to a multiple of 256
 * channels, or, above 1024, of 1024; in bf16 arithmetic to one of 32, or, above 1024, of 1024; in integer arithmetic to one
 * of 32. Errors: NULL, PLAN. */
RAPT_API rapt_status rapt_linear_prepacked_size(const rapt_linear_plan *plan, size_t *bytes);

/* The tensors of a call of rapt_linear_prepack_run. Call rapt_linear_prepack_args_init first, then set weight, prepacked and
 * prepacked_bytes. */
typedef struct rapt_linear_prepack_args {
    size_t size; /* Set by rapt_linear_prepack_args_init. */

    const void *weight; /* W, as in rapt_linear_args. */
    const void *gate;   /* G, if the plan has a gate. */

    /* Memory for the prepacked W and G, aligned to RAPT_WORKSPACE_ALIGNMENT. gate_prepacked must be null if the plan has no gate.
     */
    void *prepacked, *gate_prepacked;
    size_t prepacked_bytes; /* The bytes of each, at least what rapt_linear_prepacked_size gives. */
} rapt_linear_prepack_args;

/* Gives every field its default, or 0 where it has none; call it before you set any. */
#define rapt_linear_prepack_args_init(args) rapt_linear_prepack_args_init_sized((args), sizeof *(args))

/* Implements the macro rapt_linear_prepack_args_init, which passes the size of the caller's struct. */
RAPT_API void rapt_linear_prepack_args_init_sized(rapt_linear_prepack_args *args, size_t size);

/* Lays constant weights out for the kernel, once, on the calling thread, so that calls need not do it each time: see
 * rapt_linear_args.prepacked.
 * Prepacked weights are not a file format: only this version of the library and the plan's kernel can use them. Errors, also of
 * the ways to run below: NULL, STRUCT, PLAN, STRIDE, OVERLAP, ALIGNMENT, PREPACKED (prepacked_bytes), UNUSED. */
RAPT_API rapt_status rapt_linear_prepack_run(const rapt_linear_plan *plan, const rapt_linear_prepack_args *args);

/* Does what rapt_linear_prepack_run does through the caller's parallel_for, in nth slots (see rapt_run_parallel). */
RAPT_API rapt_status rapt_linear_prepack_run_parallel(const rapt_linear_plan *plan, const rapt_linear_prepack_args *args,
                                                      int64_t nth, rapt_parallel_for parallel_for, void *pool);

/* Does the share of thread ith of nth in what rapt_linear_prepack_run does; the threads need not wait for each other. */
RAPT_API rapt_status rapt_linear_prepack_run_share(const rapt_linear_plan *plan, const rapt_linear_prepack_args *args,
                                                   int64_t ith, int64_t nth);

/* Returns what rapt_linear_prepack_run with nth threads would return, and writes the reason to text, as rapt_args_explain does.
 */
RAPT_API rapt_status rapt_linear_prepack_args_explain(const rapt_linear_plan *plan, const rapt_linear_prepack_args *args,
                                                      int64_t nth, char *text, size_t bytes);

/* Quantises rows of weights to int8 as rapt_kv_append_run does: scales[n] is the largest magnitude of row n, divided by 127, and
 * each element x becomes the integer nearest to x / scales[n], ties to even. A row with an element that is not finite gets a
 * scale of NaN and elements of 0. from is [out, in] of RAPT_F32, RAPT_F16 or RAPT_BF16, with row_stride bytes from a row to the
 * next; to is [out, in], dense; scales is [out]; out and in are 1..RAPT_MAX_WIDTH. Errors: NULL, SHAPE, TYPE, STRIDE, ALIGNMENT
 * (scales), OVERLAP. */
RAPT_API rapt_status rapt_quantise_weights(int64_t out, int64_t in, rapt_type type, int64_t row_stride, const void *from,
                                           int8_t *to, float *scales);

/* Returns what rapt_quantise_weights would return, and writes the reason to text, as rapt_plan_explain does. */
RAPT_API rapt_status rapt_quantise_weights_explain(int64_t out, int64_t in, rapt_type type, int64_t row_stride, const void *from,
                                                   int8_t *to, float *scales, char *text, size_t bytes);

/* Quantises rows of weights to groups of to_type, RAPT_Q8_0, RAPT_Q4_0 or RAPT_Q4_1, as rapt_kv_append_run does; nothing is
 * quantised to RAPT_Q4_K and RAPT_Q6_K. from is as in rapt_quantise_weights, in is a multiple of 32, and to is [out] dense rows
 * of in channels. Errors: NULL, SHAPE, TYPE, STRIDE, OVERLAP. */
RAPT_API rapt_status rapt_quantise_groups(int64_t out, int64_t in, rapt_type type, int64_t row_stride, const void *from,
                                          rapt_type to_type, void *to);

/* Returns what rapt_quantise_groups would return, and writes the reason to text, as rapt_plan_explain does. */
RAPT_API rapt_status rapt_quantise_groups_explain(int64_t out, int64_t in, rapt_type type, int64_t row_stride, const void *from,
                                                  rapt_type to_type, void *to, char *text, size_t bytes);

/* ---- Normalisation --------------------------------------------------------------------------------------------------- */

/* Layer and RMS normalisation: each token is normalised over its channels, with z = x + residual, in f32.
 *
 * - rapt_layer_norm_run: y = (z - mean) / sqrt(variance + epsilon) * weight + bias (Ba, Kiros & Hinton 2016).
 * - rapt_rms_norm_run: y = z / sqrt(mean of z^2 + epsilon) * weight + bias (Zhang & Sennrich 2019).
 *
 * Call rapt_norm_args_init first, then set tokens, channels, x, y, from and to. */
typedef struct rapt_norm_args {
    size_t size; /* Set by rapt_norm_args_init. */

    int64_t batch;    /* Batch entries, 0..RAPT_MAX_LENGTH. The default is 1. */
    int64_t tokens;   /* Tokens of each entry, 0..RAPT_MAX_LENGTH. */
    int64_t channels; /* Channels of a token, 1..RAPT_MAX_WIDTH. */
    rapt_layout x;    /* [batch, tokens] rows of RAPT_F32, RAPT_F16 or RAPT_BF16. */
    rapt_layout y;    /* [batch, tokens] rows of the same types, rounded once, to nearest even. */

    const void *from;    /* X, the tokens. */
    void *to;            /* Y, the result. It may be `from` if x and y are the same; else the two must not overlap. */
    const float *weight; /* [channels]: a factor of each channel. Null: 1. */
    const float *bias;   /* [channels]: is added to each channel. Null: 0. */
    float epsilon;       /* Is added to the variance or mean square; finite, 0 or more. The default is 1e-5. */
    const char *isa;     /* The name of the kernel to use, as in rapt_desc. */

    /* ---- Since 0.2. */

    rapt_layout residual;      /* [batch, tokens] rows of the same types. RAPT_NONE, the default: there is none. */
    rapt_layout sum;           /* [batch, tokens] rows of z, rounded once. RAPT_NONE, the default: z is not wanted. */
    const void *residual_from; /* The residual, if residual has a type. */

    /* Where z is written, if sum has a type: memory that overlaps nothing else; or `residual_from`; or `from`, unless `to` is
     * `from`, too. In the last two cases the layouts must be the same. */
    void *sum_to;

    float *mean; /* [batch, tokens] dense: the mean of each token's z. Null: not wanted; refused in rapt_rms_norm_run. */
    float *inverse_deviation; /* [batch, tokens] dense: 1 / sqrt(variance or mean square + epsilon). Null: not wanted. */
} rapt_norm_args;

/* Gives every field its default, or 0 where it has none; call it before you set any. */
#define rapt_norm_args_init(args) rapt_norm_args_init_sized((args), sizeof *(args))

/* Implements the macro rapt_norm_args_init, which passes the size of the caller's struct. */
RAPT_API void rapt_norm_args_init_sized(rapt_norm_args *args, size_t size);

/* Computes layer normalisation on the calling thread. Errors: NULL, STRUCT, SHAPE, TYPE, STRIDE, FEATURE (epsilon), ALIGNMENT,
 * UNUSED, OVERLAP, ISA_UNKNOWN, ISA_MISSING. */
RAPT_API rapt_status rapt_layer_norm_run(const rapt_norm_args *args);

/* Does what rapt_layer_norm_run does through the caller's parallel_for, in nth slots (see rapt_run_parallel). */
RAPT_API rapt_status rapt_layer_norm_run_parallel(const rapt_norm_args *args, int64_t nth, rapt_parallel_for parallel_for,
                                                  void *pool);

/* Does the share of thread ith of nth in what rapt_layer_norm_run does; the threads need not wait for each other. */
RAPT_API rapt_status rapt_layer_norm_run_share(const rapt_norm_args *args, int64_t ith, int64_t nth);

/* Returns what rapt_layer_norm_run would return, and writes the reason to text, as rapt_plan_explain does. */
RAPT_API rapt_status rapt_layer_norm_explain(const rapt_norm_args *args, char *text, size_t bytes);

/* Computes RMS normalisation on the calling thread. Errors: those of rapt_layer_norm_run. */
RAPT_API rapt_status rapt_rms_norm_run(const rapt_norm_args *args);

/* Does what rapt_rms_norm_run does through the caller's parallel_for, in nth slots (see rapt_run_parallel). */
RAPT_API rapt_status rapt_rms_norm_run_parallel(const rapt_norm_args *args, int64_t nth, rapt_parallel_for parallel_for,
                                                void *pool);

/* Does the share of thread ith of nth in what rapt_rms_norm_run does; the threads need not wait for each other. */
RAPT_API rapt_status rapt_rms_norm_run_share(const rapt_norm_args *args, int64_t ith, int64_t nth);

/* Returns what rapt_rms_norm_run would return, and writes the reason to text, as rapt_plan_explain does. */
RAPT_API rapt_status rapt_rms_norm_explain(const rapt_norm_args *args, char *text, size_t bytes);

/* ---- Positions ------------------------------------------------------------------------------------------------------- */

/* Writes the table of sinusoidal positional encodings, [positions, width] dense (Vaswani et al. 2017, section 3.5): row p is for
 * position first + p, its channel 2i is sin((first + p) / 10000^(2i / width)), and its channel 2i + 1 the cosine of the same
 * angle, within half an ulp and 1e-11. Errors: NULL, ALIGNMENT, SHAPE (width: even, 2..RAPT_MAX_WIDTH; positions and first: 0 or
 * more, their sum at most RAPT_MAX_LENGTH). */
RAPT_API rapt_status rapt_sinusoidal(int64_t first, int64_t positions, int64_t width, float *table);

/* Writes the usual slopes of ALiBi (Press et al. 2022, section 3), one for each head: if heads is a power of two, head h has
 * 2^(-8 (h + 1) / heads); else the first heads have the slopes of the next lower power of two, and the others every second slope
 * of twice that number. Errors: NULL, ALIGNMENT, SHAPE (heads: 1..RAPT_MAX_LENGTH). */
RAPT_API rapt_status rapt_alibi_slopes(int64_t heads, float *slopes);

/* ---- Multi-head attention -------------------------------------------------------------------------------------------- */

/* Multi-head attention with its projections. (Vaswani et al. 2017, section 3.2.2.) Call rapt_mha_desc_init first, then set
 * attention, x_width, x, out, wq, wk, wv and wo. */
typedef struct rapt_mha_desc {
    size_t size; /* Set by rapt_mha_desc_init, as in rapt_desc. */

    /* The attention: heads, lengths, head dimensions, masks and everything else that rapt_run has. Only rapt_mha_plan_init reads
     * it. Its isa and tuning apply to all of multi-head attention.
     *
     * Layouts q and o are not used. If k.type and v.type are RAPT_NONE, there is no cache: k and v are not used either, and
     * kv_len is keys. Else k, v, kv_len, k_scales, v_scales, page_size, pages and table describe the cache. unmerged, kv_first
     * and kv_total are refused.
     *
     * With q_starts X is [1, q_len]; with k_starts Y and Z are [1, keys]. If Y is X, q_starts applies to both, and
     * without a cache k_starts is not used. Tokens that belong to no entry are neither read nor written. With a cache, k_starts
     * is possible only if keys is 0. */
    const rapt_desc *attention;

    int64_t x_width;   /* Channels of X, 1..RAPT_MAX_WIDTH. */
    int64_t y_width;   /* Channels of Y. 0, the default: x_width. */
    int64_t z_width;   /* Channels of Z. 0, the default: y_width. */
    int64_t out_width; /* Channels of the output. 0, the default: x_width. */

    /* New keys: the number of tokens of Y and Z in each entry, 0..RAPT_MAX_LENGTH. If Y is X, it is q_len, and this is not used.
     * With a cache and a y.type it may be 0: attention is then to the keys in the cache alone (decoding with cross-attention). */
    int64_t keys;

    rapt_layout x;        /* [batch, q_len] rows of RAPT_F32, RAPT_F16 or RAPT_BF16; head_stride is not used, here and below. */
    rapt_layout y;        /* [batch, keys] rows, from which K is computed. RAPT_NONE, the default: Y is X (self-attention). */
    rapt_layout z;        /* [batch, keys] rows, from which V is computed. RAPT_NONE, the default: Z is Y. */
    rapt_layout out;      /* [batch, q_len] rows of out_width channels. */
    rapt_layout residual; /* [batch, q_len] rows of out_width channels, added to the output. RAPT_NONE, the default: none. */

    /* The weights, as in rapt_linear_desc.weight: Wq is [heads * d_k, x_width], Wk [kv_heads * d_k, y_width], Wv [kv_heads * d_v,
     * z_width], and Wo [out_width, heads * d_v]. If wo is RAPT_NONE, the output is the concatenated heads, without a residual,
     * and out_width is heads * d_v. */
    rapt_layout wq, wk, wv, wo;

    /* Not 0: wq has the rows of Wq, then those of Wk and Wv (torch's in_proj_weight), and bq and wq_scales likewise; wk and wv
     * are not used, and X, Y and Z must have the same width. The default is 0. */
    int packed;

    /* The rotation of Q and K. The array rope.frequencies must not be moved or changed. The default is none. */
    rapt_rope rope;

    /* Not 0: rows of rapt_mha_args.position_table are added to the tokens of X, Y and Z, in f32; these must have the same width.
     * The default is 0. */
    int position_table;

    /* The layout of rapt_mha_args.weights, to which the result of the softmax is written, for teaching and debugging: like
     * attention.scores with RAPT_SCORES_WEIGHTS, together with which it is refused. RAPT_NONE, the default: it is not wanted. */
    rapt_layout weights;

    /* ---- Since 0.4. */

    /* The arithmetic of the projections and of the output, as in rapt_linear_desc.arith; attention.arith is that of attention.
     * The default is RAPT_EXACT. */
    rapt_arith arith;
} rapt_mha_desc;

/* Gives every field its default, or 0 where it has none; call it before you set any. */
#define rapt_mha_desc_init(desc) rapt_mha_desc_init_sized((desc), sizeof *(desc))

/* Implements the macro rapt_mha_desc_init, which passes the size of the caller's struct. */
RAPT_API void rapt_mha_desc_init_sized(rapt_mha_desc *desc, size_t size);

/* Validated multi-head attention in plain memory of the caller's, like rapt_plan. It keeps the addresses of q_starts, k_starts,
 * rope.frequencies and logits_body. */
typedef struct rapt_mha_plan {
    uint64_t opaque[1280]; /* Private to the library. */
} rapt_mha_plan;

/* Validates multi-head attention and chooses kernel, path and tasks. Errors: those of rapt_plan_init and rapt_linear_plan_init,
 * and those that rapt_kv_append_run finds in descriptions; FEATURE also for features that exclude each other. The function of
 * this name, for callers in other languages and clients of 0.1, takes a plan of 1280 uint64_t. */
RAPT_API rapt_status rapt_mha_plan_init(rapt_mha_plan *plan, const rapt_mha_desc *desc);
#define rapt_mha_plan_init(plan, desc) rapt_mha_plan_init_sized((plan), sizeof *(plan), (desc))

/* Implements the macro rapt_mha_plan_init, which passes the size of the caller's plan. */
RAPT_API rapt_status rapt_mha_plan_init_sized(rapt_mha_plan *plan, size_t bytes, const rapt_mha_desc *desc);

/* Returns what rapt_mha_plan_init would return, and writes the reason to text, as rapt_plan_explain does. */
RAPT_API rapt_status rapt_mha_explain(const rapt_mha_desc *desc, char *text, size_t bytes);

/* The choices of a plan of multi-head attention. */
typedef struct rapt_mha_plan_info {
    size_t size;          /* Set by the caller, to sizeof(rapt_mha_plan_info) of its header. */
    const char *isa;      /* The kernel, as in rapt_plan_info. */
    const char *rounding; /* The rounding class of the kernel, as in rapt_plan_info. */
    int phases;           /* The number of phases; all of one come before any of the next. */
} rapt_mha_plan_info;

/* Fills *info, whose size the caller has set, with what the plan has chosen. Errors: NULL, STRUCT, PLAN. */
RAPT_API rapt_status rapt_mha_plan_query(const rapt_mha_plan *plan, rapt_mha_plan_info *info);

/* Sets *bytes to the size of the workspace that a call by nth threads needs. Errors: NULL, PLAN, RANGE (nth < 1), SHAPE
 * (overflow). */
RAPT_API rapt_status rapt_mha_workspace_size(const rapt_mha_plan *plan, int64_t nth, size_t *bytes);

/* The tensors and arrays of a call of multi-head attention. */
typedef struct rapt_mha_args {
    size_t size; /* Set by rapt_mha_args_init. */

    const void *x, *y, *z;          /* X, Y and Z; y and z where the plan has layouts for them. */
    const void *residual;           /* Is added to the output, where the plan has a layout for it. */
    void *out;                      /* The output. It may be x, y, z or residual, if that has its layout and width. */
    const void *wq, *wk, *wv, *wo;  /* The weights for which the plan has layouts. */
    const float *bq, *bk, *bv, *bo; /* Biases, one for each row of the weights. Null: 0. */
    const float *wq_scales, *wk_scales, *wv_scales, *wo_scales; /* Scales of the weights, as in rapt_linear_args.scales. */
    const float *position_table; /* [table_positions, x_width] dense: that of rapt_sinusoidal, or any other. */
    int64_t table_positions;     /* Rows of position_table; all positions must be below it. */

    void *k_cache, *v_cache;    /* The cache, if the plan has one, to which new keys and values are appended first. */
    float *k_scales, *v_scales; /* The scales of k and v, where the cache has scales (rapt_kv_append_desc). */

    /* [batch]: the key number of each entry's first new token. Null: 0. It is also the position of the first token of X, Y and Z
     * for rope and position_table; attention.q_offsets and k_offsets do not change that, since they apply only to masks, biases
     * and windows. attention.kv_lengths are the lengths after the new keys were appended. Null, as usual: starts + new keys, with
     * which attention.last_page, if given, must agree; or without new keys what last_page gives, if given, else the capacity of
     * the cache. */
    const int32_t *starts;

    float *weights; /* The result of the softmax, where rapt_mha_desc.weights has a type. */

    /* The other tensors and arrays of attention: lse, kv_lengths, masks, tables, scores and so on; its q, k, v, o, k_scales,
     * v_scales and workspace are not used. Null: none of them. */
    const rapt_args *attention;

    void *workspace;        /* Memory for the call, as in rapt_args. */
    size_t workspace_bytes; /* At least what rapt_mha_workspace_size gives. */

    /* ---- Since 0.2. */

    rapt_rope_table rope_table; /* c and s, where rope has no frequencies. */

    /* ---- Since 0.4. */

    /* Wq, Wk, Wv and Wo as rapt_linear_prepack_run has laid them out, like rapt_linear_args.prepacked: each by itself, also with
     * packed set, by a plan with the same in, out, type, arith and kernel. Null, the default: none. */
    const void *wq_prepacked, *wk_prepacked, *wv_prepacked, *wo_prepacked;
} rapt_mha_args;

/* Gives every field its default, or 0 where it has none; call it before you set any. */
#define rapt_mha_args_init(args) rapt_mha_args_init_sized((args), sizeof *(args))

/* Implements the macro rapt_mha_args_init, which passes the size of the caller's struct. */
RAPT_API void rapt_mha_args_init_sized(rapt_mha_args *args, size_t size);

/* Computes multi-head attention on the calling thread. Errors, also of the ways to run below: those of rapt_run, rapt_linear_run
 * and rapt_kv_append_run. */
RAPT_API rapt_status rapt_mha_run(const rapt_mha_plan *plan, const rapt_mha_args *args);

/* Does what rapt_mha_run does through the caller's parallel_for, in nth slots (see rapt_run_parallel). */
RAPT_API rapt_status rapt_mha_run_parallel(const rapt_mha_plan *plan, const rapt_mha_args *args, int64_t nth,
                                           rapt_parallel_for parallel_for, void *pool);

/* Does the share of thread ith of nth in what rapt_mha_run does; the threads wait for each other by the barrier (see
 * rapt_run_share). */
RAPT_API rapt_status rapt_mha_run_share(const rapt_mha_plan *plan, const rapt_mha_args *args, int64_t ith, int64_t nth,
                                        rapt_barrier barrier, void *barrier_arg);

/* Does the share of thread ith of nth in one phase of what rapt_mha_run does, 0..rapt_mha_plan_info.phases-1  (see
 * rapt_run_phase).
 */
RAPT_API rapt_status rapt_mha_run_phase(const rapt_mha_plan *plan, const rapt_mha_args *args, int phase, int64_t ith,
                                        int64_t nth);

/* Returns what rapt_mha_run with nth threads would return, and writes the reason to text, as rapt_args_explain does. */
RAPT_API rapt_status rapt_mha_args_explain(const rapt_mha_plan *plan, const rapt_mha_args *args, int64_t nth, char *text,
                                           size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
