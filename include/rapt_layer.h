/* SPDX-License-Identifier: Apache-2.0 */
/* rapt_layer: what stands around attention in "Attention Is All You Need" (Vaswani et al. 2017): projections (section 3.2.2),
 * the position-wise layers' linear layers (3.3), positional encodings (3.5), layer normalisation (Ba et al. 2016) - and
 * multi-head attention as one call:
 *
 *     Q = X Wq^T + bq,  K = Y Wk^T + bk,  V = Z Wv^T + bv,   out = concat(softmax(scale Q_h K_h^T + mask) V_h) Wo^T + bo
 *
 * The same rules as in rapt.h: the caller's memory and threads, nothing allocated, everything checked before anything is written.
 * The same promise, too: a token's output is a function of that token (in attention: of what it attends to), the weights, and
 * nothing else; docs/order.md has the order of operations.
 *
 * Weights lie as torch.nn.Linear stores them: [out, in], so that row n holds what makes output channel n. */
#ifndef RAPT_LAYER_H
#define RAPT_LAYER_H

#include "rapt.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Linear ---------------------------------------------------------------------------------------------------------- */

/* What is done to the sums of a linear layer. */
typedef enum rapt_activation {
    RAPT_ACTIVATION_NONE = 0, /* nothing */
    RAPT_RELU = 1,            /* max(x, 0) */
    RAPT_GELU = 2,            /* x * Phi(x), Phi the normal distribution function (Hendrycks & Gimpel 2016) */
    RAPT_GELU_TANH = 3,       /* 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), ibid. */
    RAPT_SILU = 4             /* x / (1 + exp(-x)) (Elfwing et al. 2018; "swish") */
} rapt_activation;

/* The most channels of a token. */
#define RAPT_MAX_WIDTH (1 << 20)

/* A linear layer, Y = activation(X W^T * scales + bias) + residual; or, with a gate (Shazeer 2020, "GLU Variants Improve
 * Transformer": SwiGLU is the gate with RAPT_SILU, GeGLU that with RAPT_GELU), Y = activation(X G^T * gate_scales + gate_bias) *
 * (X W^T * scales + bias) + residual. Call rapt_linear_desc_init first, then set tokens, in, out, x, y and weight. Of layouts of
 * tokens, here and below, head_stride is not used. */
typedef struct rapt_linear_desc {
    size_t size; /* Set by rapt_linear_desc_init, as in rapt_desc. */

    int64_t batch;        /* Entries, 0..RAPT_MAX_LENGTH. The default is 1. */
    int64_t tokens;       /* Tokens of each entry, 0..RAPT_MAX_LENGTH. */
    int64_t in;           /* Channels of a token of X, 1..RAPT_MAX_WIDTH. */
    int64_t out;          /* Channels of a token of Y, 1..RAPT_MAX_WIDTH. */
    rapt_layout x;        /* [batch, tokens] rows of in channels, RAPT_F32, RAPT_F16 or RAPT_BF16. */
    rapt_layout y;        /* [batch, tokens] rows of out channels of the same types, rounded once from f32, to nearest even. */
    rapt_layout residual; /* [batch, tokens] rows of out channels of the same types. RAPT_NONE, the default: there is none. */

    /* [out] rows of in channels of those types, of RAPT_INT8, or of RAPT_Q8_0 or RAPT_Q4_0, for which in is a multiple of 32.
     * They are converted to f32 as they are read, and X is never quantised. token_stride is the distance of two rows;
     * batch_stride is not used. */
    rapt_layout weight;

    rapt_activation activation; /* The default is RAPT_ACTIVATION_NONE. */
    const char *isa;            /* As in rapt_desc. */

    /* ---- Since 0.2. */

    rapt_layout gate; /* G, as weight, of its own type and stride. RAPT_NONE, the default: there is none. */
} rapt_linear_desc;

/* Sets the defaults of every field, and the others to 0. Call it before you fill in your own. */
#define rapt_linear_desc_init(desc) rapt_linear_desc_init_sized((desc), sizeof *(desc))
RAPT_API void rapt_linear_desc_init_sized(rapt_linear_desc *desc, size_t size);

/* As rapt_plan. It keeps no address. */
typedef struct rapt_linear_plan {
    uint64_t opaque[64]; /* The library's. */
} rapt_linear_plan;

/* Errors: NULL, STRUCT, SHAPE, TYPE, STRIDE, ALIGNMENT (the plan), FEATURE (activation), ISA_UNKNOWN, ISA_MISSING. As a function,
 * for callers in other languages and clients of 0.1, it takes a plan of 64 words. */
RAPT_API rapt_status rapt_linear_plan_init(rapt_linear_plan *plan, const rapt_linear_desc *desc);
#define rapt_linear_plan_init(plan, desc) rapt_linear_plan_init_sized((plan), sizeof *(plan), (desc))
RAPT_API rapt_status rapt_linear_plan_init_sized(rapt_linear_plan *plan, size_t bytes, const rapt_linear_desc *desc);
RAPT_API rapt_status rapt_linear_explain(const rapt_linear_desc *desc, char *text, size_t bytes);

/* The bytes of workspace for a call that nth threads share. Errors: NULL, PLAN, RANGE (nth < 1), SHAPE (overflow). */
RAPT_API rapt_status rapt_linear_workspace_size(const rapt_linear_plan *plan, int64_t nth, size_t *bytes);

/* The tensors of a call. */
typedef struct rapt_linear_args {
    size_t size; /* Set by rapt_linear_args_init. */

    const void *x;          /* The tokens. */
    const void *weight;     /* The weights. */
    const float *bias;      /* [out]. Null: none. */
    const float *scales;    /* [out]: the scale of each row of weight. Required for RAPT_INT8; null otherwise: none. */
    const void *residual;   /* It may be y itself, where their layouts are the same; otherwise they must not meet. */
    void *y;                /* The result. */
    void *workspace;        /* As in rapt_args, until all threads are done. */
    size_t workspace_bytes; /* At least what rapt_linear_workspace_size says. */

    /* ---- Since 0.2. */

    const void *gate;                     /* Where the plan has one. */
    const float *gate_bias, *gate_scales; /* As bias and scales, of the gate. */
} rapt_linear_args;

/* Sets the defaults of every field, and the others to 0. Call it before you fill in your own. */
#define rapt_linear_args_init(args) rapt_linear_args_init_sized((args), sizeof *(args))
RAPT_API void rapt_linear_args_init_sized(rapt_linear_args *args, size_t size);

/* Runs. The number of threads does not change the bits. Errors: NULL, STRUCT, PLAN, SHAPE (nth, whose workspace overflows),
 * STRIDE, OVERLAP, WORKSPACE, ALIGNMENT, UNUSED. */
RAPT_API rapt_status rapt_linear_run(const rapt_linear_plan *plan, const rapt_linear_args *args);
RAPT_API rapt_status rapt_linear_run_parallel(const rapt_linear_plan *plan, const rapt_linear_args *args, int64_t nth,
                                              rapt_parallel_for parallel_for, void *pool);
RAPT_API rapt_status rapt_linear_run_share(const rapt_linear_plan *plan, const rapt_linear_args *args, int64_t ith, int64_t nth);
RAPT_API rapt_status rapt_linear_args_explain(const rapt_linear_plan *plan, const rapt_linear_args *args, int64_t nth, char *text,
                                              size_t bytes);

/* Rows of weights to int8, as rapt_kv_append_run stores them: scales[n] = the largest magnitude of row n / 127, and its elements
 * the nearest integers of x / scales[n], ties to even. from: [out, in] of type RAPT_F32, RAPT_F16 or RAPT_BF16, row_stride bytes
 * from row to row; to: [out, in], dense. A row that is not finite gets a NaN for its scale. Errors: NULL, SHAPE, TYPE, STRIDE,
 * ALIGNMENT (scales), OVERLAP. */
RAPT_API rapt_status rapt_quantise_weights(int64_t out, int64_t in, rapt_type type, int64_t row_stride, const void *from,
                                           int8_t *to, float *scales);
RAPT_API rapt_status rapt_quantise_weights_explain(int64_t out, int64_t in, rapt_type type, int64_t row_stride, const void *from,
                                                   int8_t *to, float *scales, char *text, size_t bytes);

/* Rows of weights to a type of groups, RAPT_Q8_0 or RAPT_Q4_0, as rapt_kv_append_run stores them; in is a multiple of 32. to:
 * [out] rows, dense. Errors: those of rapt_quantise_weights. */
RAPT_API rapt_status rapt_quantise_groups(int64_t out, int64_t in, rapt_type type, int64_t row_stride, const void *from,
                                          rapt_type to_type, void *to);
RAPT_API rapt_status rapt_quantise_groups_explain(int64_t out, int64_t in, rapt_type type, int64_t row_stride, const void *from,
                                                  rapt_type to_type, void *to, char *text, size_t bytes);

/* ---- Normalisation --------------------------------------------------------------------------------------------------- */

/* Of each token, over its channels, with z = x + residual, in f32:
 *   rapt_layer_norm   y = (z - mean) / sqrt(variance + epsilon) * weight + bias (Ba, Kiros & Hinton 2016)
 *   rapt_rms_norm     y = z / sqrt(mean of z^2 + epsilon) * weight + bias (Zhang & Sennrich 2019)
 * Call rapt_norm_args_init first, then set tokens, channels, x, y, from and to. */
typedef struct rapt_norm_args {
    size_t size; /* Set by rapt_norm_args_init. */

    int64_t batch;    /* Entries, 0..RAPT_MAX_LENGTH. The default is 1. */
    int64_t tokens;   /* Tokens of each entry, 0..RAPT_MAX_LENGTH. */
    int64_t channels; /* Channels of a token, 1..RAPT_MAX_WIDTH. */
    rapt_layout x;    /* [batch, tokens] rows of RAPT_F32, RAPT_F16 or RAPT_BF16. */
    rapt_layout y;    /* [batch, tokens] rows of the same types, rounded once, to nearest even. */

    const void *from;    /* X. */
    void *to;            /* Y: from itself, where x and y are the same, or memory that does not meet it. */
    const float *weight; /* [channels]. Null: 1. */
    const float *bias;   /* [channels]. Null: 0. */
    float epsilon;       /* Finite, 0 or more. The default is 1e-5. */
    const char *isa;     /* As in rapt_desc. */

    /* ---- Since 0.2. */

    rapt_layout residual;      /* [batch, tokens] rows of the same types. RAPT_NONE, the default: there is none. */
    rapt_layout sum;           /* [batch, tokens] rows that receive z, rounded once. RAPT_NONE, the default: it is not wanted. */
    const void *residual_from; /* Where residual has a type. */

    /* Where sum has a type. It may be from, if to is not, or residual_from, where their layouts are the same. */
    void *sum_to;

    float *mean;              /* [batch, tokens] dense: the mean of each z. Null: not wanted; rapt_rms_norm has none. */
    float *inverse_deviation; /* [batch, tokens] dense: 1 / sqrt(... + epsilon). Null: not wanted. */
} rapt_norm_args;

/* Sets the defaults of every field, and the others to 0. Call it before you fill in your own. */
#define rapt_norm_args_init(args) rapt_norm_args_init_sized((args), sizeof *(args))
RAPT_API void rapt_norm_args_init_sized(rapt_norm_args *args, size_t size);

/* Normalise. Errors: NULL, STRUCT, SHAPE, TYPE, STRIDE, FEATURE (epsilon), ALIGNMENT, UNUSED, OVERLAP, ISA_UNKNOWN,
 * ISA_MISSING. */
RAPT_API rapt_status rapt_layer_norm_run(const rapt_norm_args *args);
RAPT_API rapt_status rapt_layer_norm_run_parallel(const rapt_norm_args *args, int64_t nth, rapt_parallel_for parallel_for,
                                                  void *pool);
RAPT_API rapt_status rapt_layer_norm_run_share(const rapt_norm_args *args, int64_t ith, int64_t nth);
RAPT_API rapt_status rapt_layer_norm_explain(const rapt_norm_args *args, char *text, size_t bytes);
RAPT_API rapt_status rapt_rms_norm_run(const rapt_norm_args *args);
RAPT_API rapt_status rapt_rms_norm_run_parallel(const rapt_norm_args *args, int64_t nth, rapt_parallel_for parallel_for,
                                                void *pool);
RAPT_API rapt_status rapt_rms_norm_run_share(const rapt_norm_args *args, int64_t ith, int64_t nth);
RAPT_API rapt_status rapt_rms_norm_explain(const rapt_norm_args *args, char *text, size_t bytes);

/* ---- Positions ------------------------------------------------------------------------------------------------------- */

/* The sinusoidal table (Vaswani et al. 2017, section 3.5), [positions, width] dense: channel 2i of position first + p is
 * sin((first + p) / 10000^(2i / width)), channel 2i + 1 the cosine of the same; within half an ulp and 1e-11. Errors: NULL,
 * ALIGNMENT, SHAPE (width: even, 2..RAPT_MAX_WIDTH; positions 0.., first 0.., their sum at most RAPT_MAX_LENGTH). */
RAPT_API rapt_status rapt_sinusoidal(int64_t first, int64_t positions, int64_t width, float *table);

/* The slopes of ALiBi (Press et al. 2022, section 3): for a power of two of heads, 2^(-8 (h + 1) / heads); for other numbers
 * those of the next lower power of two, then every second one of twice that. Errors: NULL, ALIGNMENT, SHAPE (heads:
 * 1..RAPT_MAX_LENGTH). */
RAPT_API rapt_status rapt_alibi_slopes(int64_t heads, float *slopes);

/* ---- Multi-head attention -------------------------------------------------------------------------------------------- */

/* Multi-head attention with its projections (Vaswani et al. 2017, section 3.2.2). Call rapt_mha_desc_init first, then set
 * attention, x_width, x, out, wq, wk, wv and wo. */
typedef struct rapt_mha_desc {
    size_t size; /* Set by rapt_mha_desc_init, as in rapt_desc. */

    /* Heads, lengths, head dimensions, masks and everything else that rapt_run knows; read by rapt_mha_plan_init only. Of its
     * layouts q and o are set here. Where k.type and v.type are RAPT_NONE, k and v are set too: there is no cache, and kv_len is
     * keys. Else they are a cache, described by k, v, kv_len, k_scales, v_scales, page_size, pages and table. Not with unmerged,
     * kv_first or kv_total. Ragged (q_starts, k_starts), X is [1, q_len] and Y [1, keys]; where Y is X, q_starts holds for both,
     * and k_starts is not used without a cache. Tokens that belong to no entry are neither read nor written. A cache may have
     * k_starts only where keys is 0. isa holds for all of it. */
    const rapt_desc *attention;

    int64_t x_width;   /* Channels of X, 1..RAPT_MAX_WIDTH. */
    int64_t y_width;   /* Channels of Y. 0, the default: x_width. */
    int64_t z_width;   /* Channels of Z. 0, the default: y_width. */
    int64_t out_width; /* Channels of the output. 0, the default: x_width. */

    /* Tokens of Y and Z of each entry: new keys. Where Y is X they are q_len, and this is not used. With a cache and y.type it
     * may be 0: there are no new keys, only those in the cache (cross-attention's decode). */
    int64_t keys;

    rapt_layout x;        /* [batch, q_len] rows of RAPT_F32, RAPT_F16 or RAPT_BF16; head_stride is not used, here and below. */
    rapt_layout y;        /* [batch, keys] rows, of which K is made. RAPT_NONE, the default: Y is X (self-attention). */
    rapt_layout z;        /* [batch, keys] rows, of which V is made. RAPT_NONE, the default: Z is Y. */
    rapt_layout out;      /* [batch, q_len] rows of out_width channels. */
    rapt_layout residual; /* [batch, q_len] rows of out_width channels, added to the output. RAPT_NONE, the default: none. */

    /* [heads * d_k, x_width], [kv_heads * d_k, y_width], [kv_heads * d_v, z_width], [out_width, heads * d_v], as in
     * rapt_linear_desc.weight. Without wo (RAPT_NONE) the output is the concatenated heads: out_width is heads * d_v, and there
     * is no residual. */
    rapt_layout wq, wk, wv, wo;

    /* Not 0: the rows of Wk and Wv follow those of Wq (torch's in_proj_weight), and so do their biases and scales; wk and wv are
     * not used, and the widths of X, Y and Z are equal. The default is 0. */
    int packed;

    /* Of Q and K, by their positions. Its frequencies must stay where and as they are. The default is none. */
    rapt_rope rope;

    /* Not 0: rows of rapt_mha_args.position_table are added to the tokens of X, Y and Z, in f32; their widths are equal then. The
     * default is 0. */
    int position_table;

    /* attention.scores with RAPT_SCORES_WEIGHTS, for rapt_mha_args.weights: the softmax's result itself, for teaching and
     * debugging. RAPT_NONE, the default: it is not wanted. Not beside attention.scores. */
    rapt_layout weights;
} rapt_mha_desc;

/* Sets the defaults of every field, and the others to 0. Call it before you fill in your own. */
#define rapt_mha_desc_init(desc) rapt_mha_desc_init_sized((desc), sizeof *(desc))
RAPT_API void rapt_mha_desc_init_sized(rapt_mha_desc *desc, size_t size);

/* As rapt_plan. It keeps the addresses of q_starts, k_starts and rope.frequencies, and logits_body. */
typedef struct rapt_mha_plan {
    uint64_t opaque[1280]; /* The library's. */
} rapt_mha_plan;

/* Errors: those of rapt_plan_init, rapt_linear_plan_init and, of shapes, rapt_kv_append_run; FEATURE also for what is not
 * possible together. As a function, for callers in other languages and clients of 0.1, it takes a plan of 1280 words. */
RAPT_API rapt_status rapt_mha_plan_init(rapt_mha_plan *plan, const rapt_mha_desc *desc);
#define rapt_mha_plan_init(plan, desc) rapt_mha_plan_init_sized((plan), sizeof *(plan), (desc))
RAPT_API rapt_status rapt_mha_plan_init_sized(rapt_mha_plan *plan, size_t bytes, const rapt_mha_desc *desc);
RAPT_API rapt_status rapt_mha_explain(const rapt_mha_desc *desc, char *text, size_t bytes);

/* What a plan has chosen. */
typedef struct rapt_mha_plan_info {
    size_t size;          /* in: sizeof(rapt_mha_plan_info) of the caller's header */
    const char *isa;      /* as in rapt_plan_info */
    const char *rounding; /* likewise */
    int phases;           /* all of a phase comes before any of the next */
} rapt_mha_plan_info;

/* Errors: NULL, STRUCT, PLAN. */
RAPT_API rapt_status rapt_mha_plan_query(const rapt_mha_plan *plan, rapt_mha_plan_info *info);

/* The bytes of workspace for a call that nth threads share. Errors: NULL, PLAN, RANGE (nth < 1), SHAPE (overflow). */
RAPT_API rapt_status rapt_mha_workspace_size(const rapt_mha_plan *plan, int64_t nth, size_t *bytes);

/* The tensors and arrays of a call. */
typedef struct rapt_mha_args {
    size_t size; /* Set by rapt_mha_args_init. */

    const void *x, *y, *z;                                      /* y and z where the plan has them. */
    const void *residual;                                       /* Where the plan has it. */
    void *out;                                                  /* It may be x, y, z or residual of the same layout and width. */
    const void *wq, *wk, *wv, *wo;                              /* Those that the plan has. */
    const float *bq, *bk, *bv, *bo;                             /* Biases, of as many channels as rows. Null: none. */
    const float *wq_scales, *wk_scales, *wv_scales, *wo_scales; /* As in rapt_linear_args.scales. */
    const float *position_table; /* [table_positions, x_width] dense: that of rapt_sinusoidal, or any other. */
    int64_t table_positions;     /* All positions must be below it. */

    void *k_cache, *v_cache;    /* Where the plan has a cache: new keys and values are appended here first. */
    float *k_scales, *v_scales; /* Its scales, where it has them (rapt_kv_append_desc). */

    /* [batch]: the key that each entry's first new token becomes. Null: 0. It is also the position of its first token in X, Y and
     * Z for rope and position_table, which attention.q_offsets and k_offsets do not move: these hold for masks, biases and
     * windows only. attention.kv_lengths says how many keys there are then: starts + keys, where the new ones are the last. */
    const int32_t *starts;

    float *weights; /* Where the plan has them. */

    /* lse, kv_lengths, masks, tables, scores and so on; its q, k, v, o, k_scales, v_scales and workspace are not used. Null:
     * nothing of it is needed. */
    const rapt_args *attention;

    void *workspace;        /* As in rapt_args. */
    size_t workspace_bytes; /* At least what rapt_mha_workspace_size says. */

    /* ---- Since 0.2. */

    rapt_rope_table rope_table; /* c and s, where rope has no frequencies. */
} rapt_mha_args;

/* Sets the defaults of every field, and the others to 0. Call it before you fill in your own. */
#define rapt_mha_args_init(args) rapt_mha_args_init_sized((args), sizeof *(args))
RAPT_API void rapt_mha_args_init_sized(rapt_mha_args *args, size_t size);

/* As rapt_run, rapt_run_parallel, rapt_run_share and rapt_run_phase, with the same bits. rapt_mha_run_share calls the barrier
 * between two phases. Errors: those of rapt_run, rapt_linear_run and rapt_kv_append_run. */
RAPT_API rapt_status rapt_mha_run(const rapt_mha_plan *plan, const rapt_mha_args *args);
RAPT_API rapt_status rapt_mha_run_parallel(const rapt_mha_plan *plan, const rapt_mha_args *args, int64_t nth,
                                           rapt_parallel_for parallel_for, void *pool);
RAPT_API rapt_status rapt_mha_run_share(const rapt_mha_plan *plan, const rapt_mha_args *args, int64_t ith, int64_t nth,
                                        rapt_barrier barrier, void *barrier_arg);
RAPT_API rapt_status rapt_mha_run_phase(const rapt_mha_plan *plan, const rapt_mha_args *args, int phase, int64_t ith,
                                        int64_t nth);
RAPT_API rapt_status rapt_mha_args_explain(const rapt_mha_plan *plan, const rapt_mha_args *args, int64_t nth, char *text,
                                           size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
