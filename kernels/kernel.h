/* SPDX-License-Identifier: Apache-2.0 */
/* The contract between dispatch/ and the kernels: what a kernel is, and what a task gets. Dispatch validates everything before a
 * kernel sees it. */
#ifndef RAPT_KERNEL_H
#define RAPT_KERNEL_H

#include <float.h>
#include <stdbool.h>
#include <string.h>

#include "rapt_layer.h"

/* The order of operations is the contract, so the compiler must compute what is written: no option may let it reorder,
 * approximate, or keep intermediate results more precise. No macro of gcc tells whether it contracts a * b + c; if
 * -ffp-contract=off is missing, rapt_self_check says so. */
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) || defined(__ASSOCIATIVE_MATH__) ||        \
    defined(__RECIPROCAL_MATH__) || defined(__NO_SIGNED_ZEROS__) || (defined(__GCC_IEC_559) && __GCC_IEC_559 == 0)
#error "rapt: compile without -ffast-math, -Ofast and their parts; or put -fno-fast-math -ffp-contract=off last"
#endif
#if FLT_EVAL_METHOD != 0 && FLT_EVAL_METHOD != 16 /* 16: f16 is computed in f16, f32 in f32 */
#error "rapt: f32 must be computed in f32; on 32-bit x86 that is -msse2 -mfpmath=sse"
#endif
#if FLT_RADIX != 2 || FLT_MANT_DIG != 24 || FLT_MAX_EXP != 128 || DBL_MANT_DIG != 53
#error "rapt: float and double must be those of IEEE 754"
#endif
_Static_assert(sizeof 1.0 == sizeof(double), "rapt: compile without -fsingle-precision-constant");
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

/* For functions that must be inlined, so that their const parameters become constants. */
#define RAPT_INLINE inline __attribute__((always_inline))

/* For functions that are called with a struct in an inner loop: out of line, but gcc may clone them and pass the members that
 * they use in registers. On an AMD EPYC (Zen 4) that is 5 % of decode (D1), and 8 % of prefill in integers (P2). */
#define RAPT_CLONEABLE __attribute__((noinline))

/* For large functions, which should exist once, and for functions whose arrays should not add to the stack of their callers
 * (RAPT_STACK_BYTES). */
#if defined(__clang__)
#define RAPT_NOINLINE __attribute__((noinline))
#else
#define RAPT_NOINLINE __attribute__((noinline, noclone))
#endif

/* Unrolls the loop that follows. Tests that need no speed define it as nothing, which halves the time to compile. */
#if defined(RAPT_UNROLL)
#elif defined(__clang__)
#define RAPT_UNROLL _Pragma("clang loop unroll(full)")
#else
#define RAPT_UNROLL _Pragma("GCC unroll 16")
#endif

/* Begins an unrolled loop over i from 0 to n - 1, so that arrays indexed by i stay in registers. n is a constant of at most 16.
 */
#define UNROLLED(i, n) RAPT_UNROLL for (int i = 0; i < (n); i++)

/* Calls f(n, ...) with n, 1 to RAPT_TILE_VECTORS, as a constant: f is then compiled once for each. */
#define RAPT_BY_COUNT(n, f, ...)                                                                                                 \
    do {                                                                                                                         \
        if (RAPT_TILE_VECTORS == 4 && (n) == 4) f(4, __VA_ARGS__);                                                               \
        else if (RAPT_TILE_VECTORS >= 3 && (n) == 3) f(3, __VA_ARGS__);                                                          \
        else if ((n) == 2) f(2, __VA_ARGS__);                                                                                    \
        else f(1, __VA_ARGS__);                                                                                                  \
    } while (0)

static inline int64_t rapt_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t rapt_max(int64_t a, int64_t b) { return a > b ? a : b; }

/* Constants of the canonical order (docs/order.md). Changing one changes bits: then every kernel, the golden hashes and the
 * document change in the same commit. */
enum {
    /* Keys of a block: each has one running maximum and one rescaling of the state. */
    RAPT_BLOCK = 64,
    /* Keys of a chunk: each starts from the empty state, and chunks are merged in ascending order. */
    RAPT_CHUNK = 512,
    /* Channels, or keys, of a step of bf16 arithmetic, whose even and odd ones are summed separately. */
    RAPT_STEP = 32,
    /* Channels up to which a score is one sum. */
    RAPT_SCORE_WHOLE = 128,
    /* Channels of a part of a longer score: each part is summed by itself, and the sums are added in ascending order. */
    RAPT_SCORE_PART = 64,
    /* Partial sums of the weights of a block, by key number modulo this, and of a linear layer's products, by channel. */
    RAPT_PARTIAL_SUMS = 16,
    /* Channels of a part of a linear layer's sum. */
    RAPT_LINEAR_PART = 1024,
};

/* CPU features, as dispatch/cpu/cpu.h decodes them. */
enum {
    RAPT_CPU_SSE41 = 1 << 0,
    RAPT_CPU_AVX = 1 << 1,
    RAPT_CPU_F16C = 1 << 2,
    RAPT_CPU_FMA = 1 << 3,
    RAPT_CPU_AVX2 = 1 << 4,
    RAPT_CPU_AVX512F = 1 << 5,
    RAPT_CPU_AVX512DQ = 1 << 6,
    RAPT_CPU_AVX512BW = 1 << 7,
    RAPT_CPU_AVX512VL = 1 << 8,
    RAPT_CPU_NEON = 1 << 9,
    RAPT_CPU_AVX512VNNI = 1 << 10,
    RAPT_CPU_DOTPROD = 1 << 11,
    RAPT_CPU_AMX_TILE = 1 << 12,
    RAPT_CPU_AMX_BF16 = 1 << 13,
    RAPT_CPU_AMX_INT8 = 1 << 14,
    RAPT_CPU_AMX_PERMISSION = 1 << 15, /* the operating system lets this process use tiles */
    RAPT_CPU_I8MM = 1 << 16,
    RAPT_CPU_AVXVNNI = 1 << 17, /* as AVX512VNNI, in vectors of 256 bits and without AVX-512 */
    RAPT_CPU_VFPV4 = 1 << 18,
    RAPT_CPU_VSX = 1 << 19,
    RAPT_CPU_VXE = 1 << 20, /* IBM z14 and later: vectors of f32, too */
    RAPT_CPU_LSX = 1 << 21,
    RAPT_CPU_BF16 = 1 << 22, /* AArch64's products of bf16 */
    RAPT_CPU_SVE = 1 << 23,
    RAPT_CPU_SVE_OF_256 = 1 << 24, /* with vectors of exactly 256 bits */
    RAPT_CPU_SVE_OF_512 = 1 << 25,
    RAPT_CPU_RVV = 1 << 26,
    RAPT_CPU_RVV_OF_128 = 1 << 27, /* with vectors of exactly 128 bits */
    RAPT_CPU_RVV_OF_256 = 1 << 28,
    RAPT_CPU_RVV_OF_512 = 1 << 29,
    RAPT_CPU_AVX512BF16 = 1 << 30,
    RAPT_CPU_AMX = RAPT_CPU_AMX_TILE | RAPT_CPU_AMX_BF16 | RAPT_CPU_AMX_INT8 | RAPT_CPU_AMX_PERMISSION,
};

/* The names of these features, in the order of their bits. */
#define RAPT_CPU_NAMES                                                                                                           \
    "sse4.1", "avx", "f16c", "fma", "avx2", "avx512f", "avx512dq", "avx512bw", "avx512vl", "neon", "avx512vnni", "dotprod",      \
        "amx-tile", "amx-bf16", "amx-int8", "amx-permission", "i8mm", "avxvnni", "vfpv4", "vsx", "vxe", "lsx", "bf16", "sve",    \
        "sve-of-256-bits", "sve-of-512-bits", "rvv", "rvv-of-128-bits", "rvv-of-256-bits", "rvv-of-512-bits", "avx512bf16"

/* Computes what tile_product does, of lanes that are pairs of bf16, which the operands' depth counts, too. operands: a struct
 * operands (parts/tile.h), which rapt.c has once for each kernel, so this type cannot name it. */
typedef void rapt_pair_product(const void *operands, int rows, int vectors);

/* Products of few rows in f32, which exact arithmetic has, and integer arithmetic calls (int8/keys_as_f32.h): scores of n keys,
 * as score_keys_f32 computes them (parts/keys_in_lanes.h), and what stream_product computes (parts/tile.h), with operands as
 * above. */
typedef void rapt_score_product(int rows, const char *const *keys, size_t offset, int n, int channels, const float *q, size_t ldq,
                                float *s);
typedef void rapt_value_product(const void *operands, int rows, int vectors);
typedef struct rapt_few_products {
    rapt_score_product *score_f32, *score_int8; /* for K of f32 and of int8; null: int8 is first converted to a copy */
    rapt_value_product *value_f32, *value_int8; /* likewise for V */
    int int8_rows;                              /* the most rows for which int8 is read without a copy; 0: always a copy */
} rapt_few_products;

/* A validated problem: what is the same for all tasks of a plan. A layout whose type is RAPT_NONE means that there is no such
 * tensor. */
typedef struct rapt_problem {
    int64_t batch, heads, kv_heads;
    int64_t q_len, kv_len; /* tokens of the tensors; of a ragged batch, of all entries together */
    int64_t group;         /* query heads per key/value head */
    int32_t d_k, d_v;
    rapt_layout q, k, v, o, lse;
    size_t q_row, k_row, v_row, o_row; /* bytes of one token's channels */
    rapt_causal causal;
    int64_t window_left, window_right, local_chunk;
    rapt_layout mask, block_mask, bias, slopes, sinks;
    int64_t mask_keys, bias_keys;    /* columns of a row */
    rapt_rest mask_rest, bias_rest;  /* how keys without a column are treated */
    bool mask_one_key, bias_one_key; /* true if a row has one element, which holds for all keys */
    int64_t block_mask_queries, block_mask_keys;
    rapt_scales k_scales, v_scales;
    int64_t page_size, kv_first;
    int page_shift; /* page_size = 1 << page_shift; -1: it is no power of two */
    rapt_layout table;
    rapt_layout states; /* where the caller wants states */
    int64_t state_stride;
    bool unmerged;
    rapt_layout scores;  /* where the caller wants scores; a task that writes them computes nothing else */
    float scores_factor; /* what each written score is multiplied by */
    /* A logit is score * exponent in base 2 and score * natural in base e, where score = <q * q_factor, k>. q_factor is the sign
     * of the scale, so q * q_factor is exact, unless the scale is so extreme that score * exponent could leave the range of f32.
     * If logits are modified, a score first becomes a logit in base e: score * score_natural, then softcap, ALiBi, bias and the
     * caller's function; exponent and natural are then those of base e. */
    bool modified;
    rapt_arith arith;
    rapt_pair_product *pair_product; /* null, or what computes scores in exact arithmetic (bf16/exact_pairs.h) */
    const rapt_few_products *few_products;
    float q_factor, score_natural, exponent, natural;
    float least;                    /* exp2(difference * exponent) is 0 for differences of at most this: -127 / exponent */
    float softcap, inverse_softcap; /* 0: none */
    int left_over;                  /* the most rows that a task with queries in lanes may have left over (rapt_task.left_over) */
    rapt_alibi alibi;
    rapt_logits_body logits_body;
} rapt_problem;

/* The unmerged state of one row after one chunk: floats m, l, and o from RAPT_STATE_O on, padded to whole cache lines. */
enum { RAPT_STATE_M = 0, RAPT_STATE_L = 1, RAPT_STATE_O = 16 };

/* What a mask says of the blocks of a chunk, for a tile of rows. Bit i of `none`, `some` or `all` is set if the rows are alike in
 * block i, and attend to none, some or all of its keys. If it is set in no field, rows differ or were not compared. */
typedef struct rapt_mask_blocks {
    uint8_t none, some, all;
} rapt_mask_blocks;
_Static_assert(RAPT_CHUNK / RAPT_BLOCK <= 8, "bits of rapt_mask_blocks");

/* True if kernels compare the rows of the mask (find_mask_blocks, queries_in_lanes.h): nothing else excludes keys one by one. */
static inline bool rapt_compares_mask(const rapt_problem *p) {
    return p->mask.type && !p->mask_one_key && !p->block_mask.type && !p->bias.type;
}

/* One task: rows [row0, row0 + rows) of one key/value head of one batch entry over chunks [chunk0, chunk0 + chunks). A row is a
 * pair (token, head of the group), row = token * group + head, so that K and V are read once for the whole group. With keys in
 * lanes, a task may cover several adjacent key/value heads, so that memory is read in whole tokens. Addresses are those of the
 * batch entry, and of the task's first key/value head or the first query head of its group. */
typedef struct rapt_task {
    const rapt_problem *problem;
    const char *q, *k, *v; /* k and v: of the first page, if there are pages */
    char *o, *lse;         /* lse: null if not wanted */
    const char *mask, *block_mask, *bias, *slopes, *sinks;
    const char *k_scales, *v_scales; /* of the first page, like k and v */
    const char *table;               /* also of the token, if each has its own */
    char *scores;                    /* for key number 0; null if not wanted */
    void *logits_arg;
    int64_t batch;
    int64_t head0; /* the first query head */
    int kv_heads;
    bool keys_in_lanes;   /* the path, which dispatch/attention/path.h decides; false: queries lie in lanes */
    int left_over;        /* with queries in lanes: how many of the last rows have keys in lanes even so (path.h decides) */
    int v_in_k;           /* the channel of K where V's channels begin, if they are part of K; else -1 */
    int64_t kv_length;    /* keys of the entry */
    int64_t prefix;       /* the end of the prefix as a key number, so less the position of key 0 */
    int64_t query_offset; /* the position of query 0, counted from key 0 */
    int64_t key_position; /* the position of key 0 */
    int64_t ring_start;   /* the slot of key kv_first */
    int64_t ring_size;    /* slots of the ring */
    int64_t row0, rows;
    int64_t period; /* if not 0: rows come in periods of this length, which see different keys, and a tile lies within one */
    int64_t chunk0, chunks;
    rapt_mask_blocks *mask_blocks; /* memory for [tile][chunk]; null unless heads share the mask and take turns */
    bool mask_blocks_known;        /* true if the task before, of another head, has filled it; else this task does */
    char *states; /* null: write o and lse. Else write states: this one is of token 0, the first head and chunk0 */
    size_t state_token, state_head, state_chunk; /* bytes from a state to that of the next token, head, chunk */
    float *scratch;
} rapt_task;

/* What ends a row: where its o and LSE go, and what is applied to its state before, the sink of its head and the scales of V's
 * channels. Null where there are none. */
typedef struct rapt_row_end {
    char *o, *lse;
    const char *sink, *v_scales;
} rapt_row_end;

/* Returns the position of query 0 among the keys of its entry, if the caller does not give it. */
static inline int64_t rapt_default_offset(const rapt_problem *p, int64_t q_len, int64_t kv_length) {
    return p->causal == RAPT_CAUSAL_TOP_LEFT ? 0 : kv_length - q_len;
}

/* Finds the keys [*first, *end) that the query at key number `at` may attend to; 0, 0 if there are none. This is the only place
 * where causal masks, windows, prefixes, local chunks and key lengths become a range; where query 0 stands, rapt_default_offset
 * says or the caller. key_position: the position of key 0. */
static inline void rapt_row_range(const rapt_problem *p, int64_t at, int64_t key_position, int64_t kv_length, int64_t prefix,
                                  int64_t *first, int64_t *end) {
    int64_t lo = 0, hi = kv_length;
    if (p->causal != RAPT_CAUSAL_NONE && at + 1 < hi) hi = at + 1;
    if (p->window_right >= 0 && at + p->window_right + 1 < hi) hi = at + p->window_right + 1;
    if (p->window_left >= 0 && at - p->window_left > lo) lo = at - p->window_left;
    if (prefix > hi) hi = prefix < kv_length ? prefix : kv_length;
    if (p->local_chunk > 0) {
        int64_t within = (at + key_position) % p->local_chunk, start = at - (within < 0 ? within + p->local_chunk : within);
        if (start > lo) lo = start;
        if (start + p->local_chunk < hi) hi = start + p->local_chunk;
    }
    *first = lo < hi ? lo : 0;
    *end = lo < hi ? hi : 0;
}

/* Adjacent keys at equal distances in memory. The first one lies `page` pages and `token` tokens after the tensor's first. */
typedef struct rapt_keys {
    int64_t page, token;
    int keys;
} rapt_keys;

/* Returns the run of keys that begins with key number `number`, at most n. This is the only place where rings and pages are
 * interpreted. */
static inline rapt_keys rapt_keys_at(const rapt_task *t, int64_t number, int n) {
    int64_t slot = number - t->problem->kv_first + t->ring_start;
    if (slot >= t->ring_size) slot -= t->ring_size;
    int64_t keys = t->ring_size - slot < n ? t->ring_size - slot : n;
    int64_t page_size = t->problem->page_size;
    if (page_size == 0) return (rapt_keys){0, slot, (int)keys};
    int shift = t->problem->page_shift;
    int64_t index = shift < 0 ? slot / page_size : slot >> shift, token = slot - index * page_size;
    int32_t page;
    memcpy(&page, t->table + index * (int64_t)sizeof page, sizeof page);
    return (rapt_keys){page, token, (int)(page_size - token < keys ? page_size - token : keys)};
}

/* Returns the offset of a run's first key from the tensor's first, in bytes. */
static inline size_t rapt_keys_offset(const rapt_layout *layout, const rapt_keys *run) {
    return (size_t)(run->page * layout->batch_stride + run->token * layout->token_stride);
}

/* A validated linear layer. */
typedef struct rapt_linear_problem {
    int64_t tokens, in, out; /* tokens: of a batch entry */
    rapt_layout x, y, residual, weight;
    rapt_activation activation;
    rapt_layout gate; /* RAPT_NONE: none */
    /* From rapt_tuning. */
    int64_t staged_weights; /* floats of weights that are staged at a time */
    int few_tokens;         /* of the problem's arithmetic */
    int long_row, long_ahead, short_ahead;
    rapt_arith arith;
} rapt_linear_problem;

/* The weights of a linear layer, or of its gate: a row for each output. */
typedef struct rapt_linear_weights {
    const char *rows;
    const float *bias, *scales; /* null: none */
    const float *packed;        /* all rows as pack_weights writes them; null: a task of many tokens stages them */
} rapt_linear_weights;

/* One task of a linear layer: outputs [out0, out0 + outs) of tokens [token0, token0 + tokens), counted over the whole batch. */
typedef struct rapt_linear_task {
    const rapt_linear_problem *problem;
    const char *x, *residual;
    char *y;
    rapt_linear_weights weight, gate;
    int64_t token0, tokens, out0, outs;
    float *scratch;
} rapt_linear_task;

/* Returns the channels of each part of a score. */
static inline int rapt_score_part(int d_k) { return d_k <= RAPT_SCORE_WHOLE ? RAPT_SCORE_WHOLE : RAPT_SCORE_PART; }

/* Returns the bytes of an element, for the types that any tensor can have and RAPT_INT8. */
static inline int64_t rapt_element_bytes(rapt_type type) { return type == RAPT_F32 ? 4 : type == RAPT_INT8 ? 1 : 2; }

/* A token to be normalised. residual, sum, mean and inverse_deviation may be null. */
typedef struct rapt_norm_task {
    const char *x, *residual;
    char *y, *sum;
    float *mean, *inverse_deviation;
    bool rms; /* true: RMS normalisation; false: layer normalisation */
} rapt_norm_task;

/* How a kernel computes in one arithmetic. Each is compiled to an object of its own, whose only exported symbol it is:
 * rapt_int8_avx512, rapt_bf16_amx and so on. */
typedef struct rapt_arithmetic {
    uint32_t needs; /* CPU features, bits RAPT_CPU_* */
    int tile_rows;  /* query rows, or tokens, of a full tile */
    /* Defaults of rapt_tuning: the most rows of a head that have keys in lanes, and the most tokens that are few for a linear
     * layer (parts/linear.h). 0: always queries, or tokens, in lanes. */
    int few_rows, few_tokens;
    /* Tasks with keys in lanes of fewer rows of a head are computed by another kernel's arithmetic, if there is one
     * (rapt_few_rows_bf16). */
    int least_rows;
    /* How many times rapt_tuning.pass_l2 the scratch of a pass may take. */
    int pass_l2_times;
    /* Returns the bytes of scratch, a multiple of RAPT_WORKSPACE_ALIGNMENT, that a task of at most `rows` rows needs; with keys
     * in lanes, rows are those of all its heads. merges: true if the task merges chunks. */
    size_t (*scratch_bytes)(const rapt_problem *, int64_t rows, bool keys_in_lanes, bool merges);
    /* Computes a task of attention. */
    void (*attend)(const rapt_task *);

    /* Of bf16 arithmetic: computes scores in exact arithmetic, where Q and K are bf16. Null if there is no instruction for it. */
    rapt_pair_product *pair_product;

    /* Linear layers. */

    /* Returns the bytes of scratch that a task of at most `tokens` tokens and `outs` outputs needs. */
    size_t (*linear_scratch_bytes)(const rapt_linear_problem *, int64_t tokens, int64_t outs);
    /* Computes a task of a linear layer. */
    void (*linear_tokens)(const rapt_linear_task *);
    /* Returns the floats of packed weights, or of a packed gate. */
    uint64_t (*packed_floats)(const rapt_linear_problem *);
    /* Packs the weights of outputs [out0, out0 + outs) of a task to their place in `packed`. out0 is a multiple of
     * RAPT_PARTIAL_SUMS, and so is outs, unless these are the last outputs. */
    void (*pack_weights)(const rapt_linear_task *, bool gate, float *packed);
} rapt_arithmetic;

/* What kernels inherit from their base: exact arithmetic, and all functions that are the same in every arithmetic. Compiled with
 * exact arithmetic, as rapt_exact_avx512 and so on. */
typedef struct rapt_base {
    rapt_arithmetic exact;
    bool fused; /* the rounding class: true if v_fma rounds once */
    int vector; /* lanes of a vector */
    /* tuning: the kernel's defaults, but for those of rapt_arithmetic. room: upper bounds of the fields that size arrays on the
     * stack, 0 where there is no such bound. Their `size` and `isa` are not used. */
    rapt_tuning tuning, room;
    rapt_few_products few_products;
    /* Merges state `next` into `state`, both laid out as RAPT_STATE_M says. */
    void (*merge)(const rapt_problem *, float *state, const float *next);
    /* Writes the row whose state this is. Overwrites the state. */
    void (*finish)(const rapt_problem *, const rapt_row_end *, float *state);
    /* Turns a row of `keys` scores into weights. sink: a logit that takes part in their sum, or null. */
    void (*weigh_scores)(const rapt_problem *, char *row, int64_t keys, const char *sink);
    /* Normalises a token. */
    void (*normalise)(const rapt_norm_args *, const rapt_norm_task *);
} rapt_base;

/* A kernel, as dispatch/cpu/select.c assembles it from the list: arithmetics of its own or inherited ones. */
typedef struct rapt_kernel {
    const char *name;
    const rapt_base *base;
    const rapt_arithmetic *int8, *bf16;
} rapt_kernel;

#endif
