/* SPDX-License-Identifier: Apache-2.0 */
/* rapt_layer: what stands around attention, and multi-head attention as one call. It has what "Attention Is All You Need"
 * (Vaswani et al. 2017) and later models put there: projections (section 3.2.2), the linear layers of the position-wise networks
 * (3.3) with activations and gates, positional encodings (3.5), layer and RMS normalisation (Ba, Kiros & Hinton 2016; Zhang &
 * Sennrich 2019). Multi-head attention is
 *
 *     Q = X Wq^T + bq,  K = Y Wk^T + bk,  V = Z Wv^T + bv,   out = concat(softmax(scale Q_h K_h^T + mask) V_h) Wo^T + bo
 *
 * The rules of rapt.h hold here: the caller's memory and threads, nothing allocated, everything checked before anything is
 * written. So does its promise: a token's output is a function of that token (in attention: of what it attends to), the weights,
 * and nothing else; docs/order.md has the order of operations.
 *
 * Weights lie as torch.nn.Linear stores them: [out, in], so that row n holds what makes output channel n. */
#ifndef RAPT_LAYER_H
#define RAPT_LAYER_H

#include "rapt.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Linear ---------------------------------------------------------------------------------------------------------- */

/* The function that a linear layer applies to each sum x. */
typedef enum rapt_activation {
    RAPT_ACTIVATION_NONE = 0, /* The sum stays x. */
    RAPT_RELU = 1,            /* x becomes max(x, 0). */
    RAPT_GELU = 2,            /* x becomes x * Phi(x), Phi the normal distribution function (Hendrycks & Gimpel 2016). */
    RAPT_GELU_TANH = 3,       /* x becomes 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) (ibid.). */
    RAPT_SILU = 4             /* x becomes x / (1 + exp(-x)) (Elfwing et al. 2018; also called swish). */
} rapt_activation;

/* A token has at most this many channels. */
#define RAPT_MAX_WIDTH (1 << 20)

/* A linear layer, Y = activation(X W^T * scales + bias) + residual; or, with a gate, Y = activation(X G^T * gate_scales +
 * gate_bias) * (X W^T * scales + bias) + residual (Shazeer 2020, "GLU Variants Improve Transformer": SwiGLU is the gate with
 * RAPT_SILU, GeGLU that with RAPT_GELU). Call rapt_linear_desc_init first, then set tokens, in, out, x, y and weight. Of layouts
 * of tokens, here and below, head_stride is not used. */
typedef struct rapt_linear_desc {
    size_t size; /* Set by rapt_linear_desc_init, as in rapt_desc. */

    int64_t batch;        /* Batch entries, 0..RAPT_MAX_LENGTH. The default is 1. */
    int64_t tokens;       /* Tokens of each entry, 0..RAPT_MAX_LENGTH. */
    int64_t in;           /* Channels of a token of X, 1..RAPT_MAX_WIDTH. */
    int64_t out;          /* Channels of a token of Y, 1..RAPT_MAX_WIDTH. */
    rapt_layout x;        /* [batch, tokens] rows of in channels of RAPT_F32, RAPT_F16 or RAPT_BF16. */
    rapt_layout y;        /* [batch, tokens] rows of out channels of the same types, rounded once from f32, to nearest even. */
    rapt_layout residual; /* [batch, tokens] rows of out channels of the same types. RAPT_NONE, the default: there is none. */

    /* [out] rows of in channels of those types, of RAPT_INT8, or of RAPT_Q8_0 or RAPT_Q4_0, for which in is a multiple of 32.
     * They are converted to f32 as they are read, and X is never quantised to integers. token_stride is the distance of two rows;
     * batch_stride is not used. */
    rapt_layout weight;

    rapt_activation activation; /* The default is RAPT_ACTIVATION_NONE. */
    const char *isa;            /* The kernel that must be used, as in rapt_desc. */

    /* ---- Since 0.2. */

    rapt_layout gate; /* G, [out] rows as of weight, of a type and stride of its own. RAPT_NONE, the default: there is none. */

    /* ---- Since 0.4. */

    /* How products are computed: RAPT_EXACT, the default, or RAPT_BF16_DOT, in which the elements of X, W and G are rounded to
     * bf16, and their products summed as in attention; scales, biases and all behind them stay f32. */
    rapt_arith arith;

    const rapt_tuning *tuning; /* How the work is cut, as in rapt_desc. */
} rapt_linear_desc;

/* Gives every field its default, or 0 where it has none; call it before you set any. */
#define rapt_linear_desc_init(desc) rapt_linear_desc_init_sized((desc), sizeof *(desc))

/* What rapt_linear_desc_init calls with the bytes of the caller's struct. */
RAPT_API void rapt_linear_desc_init_sized(rapt_linear_desc *desc, size_t size);

/* A validated linear layer, in plain memory of the caller's, as rapt_plan. It keeps no address. */
typedef struct rapt_linear_plan {
    uint64_t opaque[64]; /* Contents that only the library knows. */
} rapt_linear_plan;

/* Validates a linear layer and chooses the kernel. Errors: NULL, STRUCT, SHAPE, TYPE, STRIDE, ALIGNMENT (the plan), FEATURE
 * (activation), ARITH, ISA_UNKNOWN, ISA_MISSING, TUNING. As a function, for callers in other languages and clients of 0.1, it
 * takes a plan of 64 uint64_t. */
RAPT_API rapt_status rapt_linear_plan_init(rapt_linear_plan *plan, const rapt_linear_desc *desc);
#define rapt_linear_plan_init(plan, desc) rapt_linear_plan_init_sized((plan), sizeof *(plan), (desc))

/* What rapt_linear_plan_init calls with the bytes of the caller's plan. */
RAPT_API rapt_status rapt_linear_plan_init_sized(rapt_linear_plan *plan, size_t bytes, const rapt_linear_desc *desc);

/* Returns what rapt_linear_plan_init would return, and writes why to text, as rapt_plan_explain does. */
RAPT_API rapt_status rapt_linear_explain(const rapt_linear_desc *desc, char *text, size_t bytes);

/* Writes to bytes how many bytes of workspace a call that nth threads share needs. Errors: NULL, PLAN, RANGE (nth < 1), SHAPE
 * (overflow). */
RAPT_API rapt_status rapt_linear_workspace_size(const rapt_linear_plan *plan, int64_t nth, size_t *bytes);

/* The tensors of a call of a linear layer. */
typedef struct rapt_linear_args {
    size_t size; /* Set by rapt_linear_args_init. */

    const void *x;          /* X, the tokens. */
    const void *weight;     /* W, the weights. */
    const float *bias;      /* [out]: what is added to each output channel. Null: nothing. */
    const float *scales;    /* [out]: the scale of each row of weight. Null: none, which RAPT_INT8 does not allow. */
    const void *residual;   /* What is added last: y itself, if their layouts are the same, or memory that does not meet it. */
    void *y;                /* Y, the result. */
    void *workspace;        /* Memory as in rapt_args, private to the call until all threads are done. */
    size_t workspace_bytes; /* At least what rapt_linear_workspace_size says. */

    /* ---- Since 0.2. */

    const void *gate;                     /* G, where the plan has it. */
    const float *gate_bias, *gate_scales; /* The bias and the scales of the gate, as bias and scales are those of weight. */

    /* ---- Since 0.4. */

    /* W and G as rapt_linear_prepack_run has laid them out, from the same rows by a plan of the same in, out, types, arith and
     * kernel. Calls of many tokens read them in the place of weight and gate, and those of few tokens do not. Null, the default:
     * weights are laid out for the kernel in each call anew. No bit depends on it. */
    const void *prepacked, *gate_prepacked;
} rapt_linear_args;

/* Gives every field its default, or 0 where it has none; call it before you set any. */
#define rapt_linear_args_init(args) rapt_linear_args_init_sized((args), sizeof *(args))

/* What rapt_linear_args_init calls with the bytes of the caller's struct. */
RAPT_API void rapt_linear_args_init_sized(rapt_linear_args *args, size_t size);

/* Computes a linear layer on the calling thread. Errors, which are also those of the ways to run below: NULL, STRUCT, PLAN, SHAPE
 * (nth, whose workspace overflows), STRIDE, OVERLAP, WORKSPACE, ALIGNMENT, UNUSED, PREPACKED. */
RAPT_API rapt_status rapt_linear_run(const rapt_linear_plan *plan, const rapt_linear_args *args);

/* Does what rapt_linear_run does, by the caller's parallel_for in nth slots (see rapt_run_parallel). */
RAPT_API rapt_status rapt_linear_run_parallel(const rapt_linear_plan *plan, const rapt_linear_args *args, int64_t nth,
                                              rapt_parallel_for parallel_for, void *pool);

/* Does thread ith's share, of nth, of what rapt_linear_run does; the threads need not wait for each other. */
RAPT_API rapt_status rapt_linear_run_share(const rapt_linear_plan *plan, const rapt_linear_args *args, int64_t ith, int64_t nth);

/* Returns what rapt_linear_run with nth threads would return, and writes why to text, as rapt_args_explain does. */
RAPT_API rapt_status rapt_linear_args_explain(const rapt_linear_plan *plan, const rapt_linear_args *args, int64_t nth, char *text,
                                              size_t bytes);

/* Writes to bytes how many bytes prepacked weights of the plan take, W and G each; SIZE_MAX if they would exceed the address
 * space. They are 4 for each weight, or 2 in bf16 arithmetic on a matrix unit, or 16 in the kernel sse41, which has each four
 * times, and some more: rows fill up to a multiple of 256 channels, beyond 1024 to one of 1024. Errors: NULL, PLAN. */
RAPT_API rapt_status rapt_linear_prepacked_size(const rapt_linear_plan *plan, size_t *bytes);

/* What rapt_linear_prepack_run reads and writes. Call rapt_linear_prepack_args_init first, then set weight, prepacked
 * and prepacked_bytes. */
typedef struct rapt_linear_prepack_args {
    size_t size; /* Set by rapt_linear_prepack_args_init. */

    const void *weight; /* W, as in rapt_linear_args. */
    const void *gate;   /* G, where the plan has it. */

    /* Memory, aligned to RAPT_WORKSPACE_ALIGNMENT, for W and for G as rapt_linear_args takes them. gate_prepacked must be null
     * where the plan has no gate. */
    void *prepacked, *gate_prepacked;
    size_t prepacked_bytes; /* The bytes of each, at least what rapt_linear_prepacked_size says. */
} rapt_linear_prepack_args;

/* Gives every field its default, or 0 where it has none; call it before you set any. */
#define rapt_linear_prepack_args_init(args) rapt_linear_prepack_args_init_sized((args), sizeof *(args))

/* What rapt_linear_prepack_args_init calls with the bytes of the caller's struct. */
RAPT_API void rapt_linear_prepack_args_init_sized(rapt_linear_prepack_args *args, size_t size);

/* Lays weights that do not change out for the kernel, once, on the calling thread, so that calls of many tokens need not do it
 * each time. Prepacked weights are no file format: they are of this version of the library and of the plan's kernel. Errors,
 * which are also those of the ways to run below: NULL, STRUCT, PLAN, STRIDE, OVERLAP, ALIGNMENT, PREPACKED (prepacked_bytes),
 * UNUSED. */
RAPT_API rapt_status rapt_linear_prepack_run(const rapt_linear_plan *plan, const rapt_linear_prepack_args *args);

/* Does what rapt_linear_prepack_run does, by the caller's parallel_for in nth slots (see rapt_run_parallel). */
RAPT_API rapt_status rapt_linear_prepack_run_parallel(const rapt_linear_plan *plan, const rapt_linear_prepack_args *args,
                                                      int64_t nth, rapt_parallel_for parallel_for, void *pool);

/* Does thread ith's share, of nth, of what rapt_linear_prepack_run does; the threads need not wait for each other. */
RAPT_API rapt_status rapt_linear_prepack_run_share(const rapt_linear_plan *plan, const rapt_linear_prepack_args *args,
                                                   int64_t ith, int64_t nth);

/* Returns what rapt_linear_prepack_run with nth threads would return, and writes why to text, as rapt_args_explain does. */
RAPT_API rapt_status rapt_linear_prepack_args_explain(const rapt_linear_plan *plan, const rapt_linear_prepack_args *args,
                                                      int64_t nth, char *text, size_t bytes);

/* Quantises rows of weights to int8, as rapt_kv_append_run does: scales[n] is the largest magnitude of row n, divided by 127, and
 * its elements are the integers nearest to x / scales[n], ties to even. from is [out, in] of RAPT_F32, RAPT_F16 or RAPT_BF16,
 * with row_stride bytes from a row to the next, to is [out, in], dense, and scales is [out]; out and in are 1..RAPT_MAX_WIDTH. A
 * row that is not finite gets a NaN for its scale and elements of 0. Errors: NULL, SHAPE, TYPE, STRIDE, ALIGNMENT (scales),
 * OVERLAP. */
RAPT_API rapt_status rapt_quantise_weights(int64_t out, int64_t in, rapt_type type, int64_t row_stride, const void *from,
                                           int8_t *to, float *scales);

/* Returns what rapt_quantise_weights would return, and writes why to text, as rapt_plan_explain does. */
RAPT_API rapt_status rapt_quantise_weights_explain(int64_t out, int64_t in, rapt_type type, int64_t row_stride, const void *from,
                                                   int8_t *to, float *scales, char *text, size_t bytes);

/* Quantises rows of weights to a type of groups, to_type, which is RAPT_Q8_0 or RAPT_Q4_0, as rapt_kv_append_run does. from is as
 * in rapt_quantise_weights, in a multiple of 32, and to is [out] rows of in channels, dense. Errors: NULL, SHAPE, TYPE, STRIDE,
 * OVERLAP. */
RAPT_API rapt_status rapt_quantise_groups(int64_t out, int64_t in, rapt_type type, int64_t row_stride, const void *from,
                                          rapt_type to_type, void *to);

/* Returns what rapt_quantise_groups would return, and writes why to text, as rapt_plan_explain does. */
RAPT_API rapt_status rapt_quantise_groups_explain(int64_t out, int64_t in, rapt_type type, int64_t row_stride, const void *from,
                                                  rapt_type to_type, void *to, char *text, size_t bytes);

/* ---- Normalisation --------------------------------------------------------------------------------------------------- */

/* What layer and RMS normalisation read and write: each token is normalised over its channels, with z = x + residual, in f32.
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
    void *to;            /* Y, the result: from itself, where x and y are the same, or memory that does not meet it. */
    const float *weight; /* [channels]: a factor of each channel. Null: 1. */
    const float *bias;   /* [channels]: what is added to each channel. Null: 0. */
    float epsilon;       /* What is added to the variance or mean square: finite, 0 or more. The default is 1e-5. */
    const char *isa;     /* The name of the kernel to use, as in rapt_desc. */

    /* ---- Since 0.2. */

    rapt_layout residual;      /* [batch, tokens] rows of the same types. RAPT_NONE, the default: there is none. */
    rapt_layout sum;           /* [batch, tokens] rows that receive z, rounded once. RAPT_NONE, the default: it is not wanted. */
    const void *residual_from; /* The residual that is read, where residual has a type. */

    /* The z that are written, where sum has a type: from, if to is not, or residual_from, where their layouts are the same, or
     * memory that does not meet them. */
    void *sum_to;

    float *mean; /* [batch, tokens] dense: the mean of each z. Null: not wanted; it is refused in rapt_rms_norm_run. */
    float *inverse_deviation; /* [batch, tokens] dense: 1 / sqrt(... + epsilon). Null: not wanted. */
} rapt_norm_args;

/* Gives every field its default, or 0 where it has none; call it before you set any. */
#define rapt_norm_args_init(args) rapt_norm_args_init_sized((args), sizeof *(args))

/* What rapt_norm_args_init calls with the bytes of the caller's struct. */
RAPT_API void rapt_norm_args_init_sized(rapt_norm_args *args, size_t size);

/* Computes layer normalisation on the calling thread. Errors: NULL, STRUCT, SHAPE, TYPE, STRIDE, FEATURE (epsilon), ALIGNMENT,
 * UNUSED, OVERLAP, ISA_UNKNOWN, ISA_MISSING. */
RAPT_API rapt_status rapt_layer_norm_run(const rapt_norm_args *args);

/* Does what rapt_layer_norm_run does, by the caller's parallel_for in nth slots (see rapt_run_parallel). */
RAPT_API rapt_status rapt_layer_norm_run_parallel(const rapt_norm_args *args, int64_t nth, rapt_parallel_for parallel_for,
                                                  void *pool);

/* Does thread ith's share, of nth, of what rapt_layer_norm_run does; the threads need not wait for each other. */
RAPT_API rapt_status rapt_layer_norm_run_share(const rapt_norm_args *args, int64_t ith, int64_t nth);

/* Returns what rapt_layer_norm_run would return, and writes why to text, as rapt_plan_explain does. */
RAPT_API rapt_status rapt_layer_norm_explain(const rapt_norm_args *args, char *text, size_t bytes);

/* Computes RMS normalisation on the calling thread. Errors: those of rapt_layer_norm_run. */
RAPT_API rapt_status rapt_rms_norm_run(const rapt_norm_args *args);

/* Does what rapt_rms_norm_run does, by the caller's parallel_for in nth slots (see rapt_run_parallel). */
RAPT_API rapt_status rapt_rms_norm_run_parallel(const rapt_norm_args *args, int64_t nth, rapt_parallel_for parallel_for,
                                                void *pool);

/* Does thread ith's share, of nth, of what rapt_rms_norm_run does; the threads need not wait for each other. */
RAPT_API rapt_status rapt_rms_norm_run_share(const rapt_norm_args *args, int64_t ith, int64_t nth);

/* Returns what rapt_rms_norm_run would return, and writes why to text, as rapt_plan_explain does. */
RAPT_API rapt_status rapt_rms_norm_explain(const rapt_norm_args *args, char *text, size_t bytes);

/* ---- Positions ------------------------------------------------------------------------------------------------------- */

/* Writes the sinusoidal table, [positions, width] dense: row p belongs to position first + p, its channel 2i is
 * sin((first + p) / 10000^(2i / width)), and its channel 2i + 1 the cosine of the same, within half an ulp and 1e-11. (Vaswani et
 * al. 2017, section 3.5.) Errors: NULL, ALIGNMENT, SHAPE (width: even, 2..RAPT_MAX_WIDTH; positions and first: 0 or more, their
 * sum at most RAPT_MAX_LENGTH). */
RAPT_API rapt_status rapt_sinusoidal(int64_t first, int64_t positions, int64_t width, float *table);

/* Writes the usual slopes of ALiBi, one for each head: for a power of two of heads, head h has 2^(-8 (h + 1) / heads); for other
 * numbers come those of the next lower power of two, then every second one of twice that. (Press et al. 2022, section 3.) Errors:
 * NULL, ALIGNMENT, SHAPE (heads: 1..RAPT_MAX_LENGTH). */
RAPT_API rapt_status rapt_alibi_slopes(int64_t heads, float *slopes);

/* ---- Multi-head attention -------------------------------------------------------------------------------------------- */

/* Multi-head attention with its projections. (Vaswani et al. 2017, section 3.2.2.) Call rapt_mha_desc_init first, then set
 * attention, x_width, x, out, wq, wk, wv and wo. */
typedef struct rapt_mha_desc {
    size_t size; /* Set by rapt_mha_desc_init, as in rapt_desc. */

    /* The attention: heads, lengths, head dimensions, masks and everything else that rapt_run knows. It is read by
     * rapt_mha_plan_init only, and isa and tuning hold for all of multi-head attention. The library sets layouts q and o itself.
     * Where k.type and v.type are RAPT_NONE, there is no cache: it sets k and v too, and kv_len is keys. Else there is a cache,
     * described by k, v, kv_len, k_scales, v_scales, page_size, pages and table. unmerged, kv_first and kv_total are refused. In
     * a ragged batch (q_starts, k_starts) X is [1, q_len] and Y [1, keys]; where Y is X, q_starts holds for both, and k_starts is
     * not used without a cache. Tokens that belong to no entry are neither read nor written. A cache may have k_starts only where
     * keys is 0. */
    const rapt_desc *attention;

    int64_t x_width;   /* Channels of X, 1..RAPT_MAX_WIDTH. */
    int64_t y_width;   /* Channels of Y. 0, the default: x_width. */
    int64_t z_width;   /* Channels of Z. 0, the default: y_width. */
    int64_t out_width; /* Channels of the output. 0, the default: x_width. */

    /* New keys: the tokens of Y and Z of each entry, 0..RAPT_MAX_LENGTH. Where Y is X they are q_len, and this is not used. Where
     * there are a cache and a y.type it may be 0: there are no new keys, only those in the cache (cross-attention's decode). */
    int64_t keys;

    rapt_layout x;        /* [batch, q_len] rows of RAPT_F32, RAPT_F16 or RAPT_BF16; head_stride is not used, here and below. */
    rapt_layout y;        /* [batch, keys] rows, of which K is made. RAPT_NONE, the default: Y is X (self-attention). */
    rapt_layout z;        /* [batch, keys] rows, of which V is made. RAPT_NONE, the default: Z is Y. */
    rapt_layout out;      /* [batch, q_len] rows of out_width channels. */
    rapt_layout residual; /* [batch, q_len] rows of out_width channels, added to the output. RAPT_NONE, the default: none. */

    /* The weights, as in rapt_linear_desc.weight: Wq is [heads * d_k, x_width], Wk [kv_heads * d_k, y_width], Wv [kv_heads * d_v,
     * z_width], and Wo [out_width, heads * d_v]. Without wo (RAPT_NONE) the output is the concatenated heads, without a residual,
     * and out_width is heads * d_v. */
    rapt_layout wq, wk, wv, wo;

    /* Not 0: the rows of Wk and Wv follow those of Wq (torch's in_proj_weight), and so do their biases and scales; wk and wv are
     * not used, and the widths of X, Y and Z are equal. The default is 0. */
    int packed;

    /* How Q and K are rotated. Its frequencies must stay where and as they are. The default is not at all. */
    rapt_rope rope;

    /* Not 0: rows of rapt_mha_args.position_table are added to the tokens of X, Y and Z, in f32; their widths are equal then. The
     * default is 0. */
    int position_table;

    /* The softmax's result, for teaching and debugging, which rapt_mha_args.weights receives: as attention.scores with
     * RAPT_SCORES_WEIGHTS, and not beside it. RAPT_NONE, the default: it is not wanted. */
    rapt_layout weights;

    /* ---- Since 0.4. */

    /* How the products of the projections and of the output are computed, as rapt_linear_desc.arith; attention.arith is that of
     * attention alone. The default is RAPT_EXACT. */
    rapt_arith arith;
} rapt_mha_desc;

/* Gives every field its default, or 0 where it has none; call it before you set any. */
#define rapt_mha_desc_init(desc) rapt_mha_desc_init_sized((desc), sizeof *(desc))

/* What rapt_mha_desc_init calls with the bytes of the caller's struct. */
RAPT_API void rapt_mha_desc_init_sized(rapt_mha_desc *desc, size_t size);

/* Validated multi-head attention, in plain memory of the caller's, as rapt_plan. It keeps the addresses of q_starts, k_starts and
 * rope.frequencies, and logits_body. */
typedef struct rapt_mha_plan {
    uint64_t opaque[1280]; /* Contents that only the library knows. */
} rapt_mha_plan;

/* Validates multi-head attention and chooses kernel, path and tasks. Errors: those of rapt_plan_init, rapt_linear_plan_init and,
 * of descriptions, rapt_kv_append_run; FEATURE also for what is not possible together. As a function, for callers in other
 * languages and clients of 0.1, it takes a plan of 1280 uint64_t. */
RAPT_API rapt_status rapt_mha_plan_init(rapt_mha_plan *plan, const rapt_mha_desc *desc);
#define rapt_mha_plan_init(plan, desc) rapt_mha_plan_init_sized((plan), sizeof *(plan), (desc))

/* What rapt_mha_plan_init calls with the bytes of the caller's plan. */
RAPT_API rapt_status rapt_mha_plan_init_sized(rapt_mha_plan *plan, size_t bytes, const rapt_mha_desc *desc);

/* Returns what rapt_mha_plan_init would return, and writes why to text, as rapt_plan_explain does. */
RAPT_API rapt_status rapt_mha_explain(const rapt_mha_desc *desc, char *text, size_t bytes);

/* What a plan of multi-head attention has chosen. */
typedef struct rapt_mha_plan_info {
    size_t size;          /* Set by the caller, to sizeof(rapt_mha_plan_info) of its header. */
    const char *isa;      /* The kernel, as in rapt_plan_info. */
    const char *rounding; /* The rounding class of the kernel, as in rapt_plan_info. */
    int phases;           /* How many phases there are; all of one comes before any of the next. */
} rapt_mha_plan_info;

/* Writes to info, whose size the caller has set, what the plan has chosen. Errors: NULL, STRUCT, PLAN. */
RAPT_API rapt_status rapt_mha_plan_query(const rapt_mha_plan *plan, rapt_mha_plan_info *info);

/* Writes to bytes how many bytes of workspace a call that nth threads share needs. Errors: NULL, PLAN, RANGE (nth < 1), SHAPE
 * (overflow). */
RAPT_API rapt_status rapt_mha_workspace_size(const rapt_mha_plan *plan, int64_t nth, size_t *bytes);

/* The tensors and arrays of a call of multi-head attention. */
typedef struct rapt_mha_args {
    size_t size; /* Set by rapt_mha_args_init. */

    const void *x, *y, *z;          /* X, Y and Z, the last two where the plan has them. */
    const void *residual;           /* What is added to the output, where the plan has it. */
    void *out;                      /* The output; x, y, z or residual of the same layout and width. */
    const void *wq, *wk, *wv, *wo;  /* The weights that the plan has. */
    const float *bq, *bk, *bv, *bo; /* Biases, one for each row of the weights. Null: none. */
    const float *wq_scales, *wk_scales, *wv_scales, *wo_scales; /* Scales of the weights, as in rapt_linear_args.scales. */
    const float *position_table; /* [table_positions, x_width] dense: that of rapt_sinusoidal, or any other. */
    int64_t table_positions;     /* Rows of position_table, which all positions must be below. */

    void *k_cache, *v_cache;    /* The cache, where the plan has one, to which new keys and values are appended first. */
    float *k_scales, *v_scales; /* The scales of k and v, where the cache has them (rapt_kv_append_desc). */

    /* [batch]: the key that each entry's first new token becomes. Null: 0. It is also the position of its first token in X, Y and
     * Z for rope and position_table, which attention.q_offsets and k_offsets do not move: these hold for masks, biases and
     * windows only. attention.kv_lengths are those after the new keys were appended; null, which is the usual case: starts + new
     * keys (without new keys: all that the cache has room for), which attention.last_page, if it is given, must say, too. */
    const int32_t *starts;

    float *weights; /* What rapt_mha_desc.weights describes, where the plan has it. */

    /* What attention reads and writes besides: lse, kv_lengths, masks, tables, scores and so on; its q, k, v, o, k_scales,
     * v_scales and workspace are not used. Null: nothing of it is needed. */
    const rapt_args *attention;

    void *workspace;        /* Memory for the call, as in rapt_args. */
    size_t workspace_bytes; /* At least what rapt_mha_workspace_size says. */

    /* ---- Since 0.2. */

    rapt_rope_table rope_table; /* c and s, where rope has no frequencies. */

    /* ---- Since 0.4. */

    /* Wq, Wk, Wv and Wo as rapt_linear_prepack_run has laid them out, as rapt_linear_args.prepacked: each by itself, by a plan of
     * its in, out, type, arith and kernel. That holds for the rows of packed weights, too. Null, the default: none. */
    const void *wq_prepacked, *wk_prepacked, *wv_prepacked, *wo_prepacked;
} rapt_mha_args;

/* Gives every field its default, or 0 where it has none; call it before you set any. */
#define rapt_mha_args_init(args) rapt_mha_args_init_sized((args), sizeof *(args))

/* What rapt_mha_args_init calls with the bytes of the caller's struct. */
RAPT_API void rapt_mha_args_init_sized(rapt_mha_args *args, size_t size);

/* Computes multi-head attention on the calling thread. Errors, which are also those of the ways to run below: those of rapt_run,
 * rapt_linear_run and rapt_kv_append_run. */
RAPT_API rapt_status rapt_mha_run(const rapt_mha_plan *plan, const rapt_mha_args *args);

/* Does what rapt_mha_run does, by the caller's parallel_for in nth slots (see rapt_run_parallel). */
RAPT_API rapt_status rapt_mha_run_parallel(const rapt_mha_plan *plan, const rapt_mha_args *args, int64_t nth,
                                           rapt_parallel_for parallel_for, void *pool);

/* Does thread ith's share, of nth, of what rapt_mha_run does; the threads wait for each other by the barrier (see
 * rapt_run_share). */
RAPT_API rapt_status rapt_mha_run_share(const rapt_mha_plan *plan, const rapt_mha_args *args, int64_t ith, int64_t nth,
                                        rapt_barrier barrier, void *barrier_arg);

/* Does thread ith's share, of nth, of one phase of what rapt_mha_run does, 0..rapt_mha_plan_info.phases-1  (see rapt_run_phase).
 */
RAPT_API rapt_status rapt_mha_run_phase(const rapt_mha_plan *plan, const rapt_mha_args *args, int phase, int64_t ith,
                                        int64_t nth);

/* Returns what rapt_mha_run with nth threads would return, and writes why to text, as rapt_args_explain does. */
RAPT_API rapt_status rapt_mha_args_explain(const rapt_mha_plan *plan, const rapt_mha_args *args, int64_t nth, char *text,
                                           size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
