/* SPDX-License-Identifier: Apache-2.0 */
/* The contract between dispatch/ and the kernels: what a kernel is, and what one task of it is given. Dispatch has validated
 * everything before a kernel sees it. */
#ifndef RAPT_KERNEL_H
#define RAPT_KERNEL_H

#include <float.h>
#include <stdbool.h>
#include <string.h>

#include "rapt_layer.h"

/* The order of operations is the contract, so the compiler must take them as they are written: no option may let it reorder,
 * approximate, or hold intermediate results more precisely. Contraction of a * b + c shows in no macro of gcc's; where
 * -ffp-contract=off is missing, rapt_self_check says so. */
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) || defined(__ASSOCIATIVE_MATH__) ||        \
    defined(__RECIPROCAL_MATH__) || defined(__NO_SIGNED_ZEROS__) || (defined(__GCC_IEC_559) && __GCC_IEC_559 == 0)
#error "rapt: compile without -ffast-math, -Ofast and their parts; or put -fno-fast-math -ffp-contract=off last"
#endif
#if FLT_EVAL_METHOD != 0 && FLT_EVAL_METHOD != 16 /* that of CPUs which compute f16 in f16, and f32 in f32 */
#error "rapt: f32 must be computed in f32; on 32-bit x86 that is -msse2 -mfpmath=sse"
#endif
#if FLT_RADIX != 2 || FLT_MANT_DIG != 24 || FLT_MAX_EXP != 128 || DBL_MANT_DIG != 53
#error "rapt: float and double must be those of IEEE 754"
#endif
_Static_assert(sizeof 1.0 == sizeof(double), "rapt: compile without -fsingle-precision-constant");
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

#define RAPT_INLINE inline __attribute__((always_inline))
/* For functions that are large, or whose arrays would take stack in callers, too (RAPT_STACK_BYTES): there once, not cloned
 * either. */
#if defined(__clang__)
#define RAPT_NOINLINE __attribute__((noinline))
#else
#define RAPT_NOINLINE __attribute__((noinline, noclone))
#endif
#if defined(RAPT_UNROLL) /* as nothing, where only results matter: it compiles in half of the time */
#elif defined(__clang__)
#define RAPT_UNROLL _Pragma("clang loop unroll(full)")
#else
#define RAPT_UNROLL _Pragma("GCC unroll 16")
#endif
/* A loop over i from 0 to n, a constant of at most 16, unrolled so that arrays indexed by i stay in registers. */
#define UNROLLED(i, n) RAPT_UNROLL for (int i = 0; i < (n); i++)

/* Calls f(n, ...) with n, 1 to 4, as a constant: f is then compiled once for each. */
#define RAPT_BY_COUNT(n, f, ...)                                                                                                 \
    do {                                                                                                                         \
        if ((n) == 4) f(4, __VA_ARGS__);                                                                                         \
        else if ((n) == 3) f(3, __VA_ARGS__);                                                                                    \
        else if ((n) == 2) f(2, __VA_ARGS__);                                                                                    \
        else f(1, __VA_ARGS__);                                                                                                  \
    } while (0)

static inline int64_t rapt_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t rapt_max(int64_t a, int64_t b) { return a > b ? a : b; }

/* Constants of the canonical order (docs/order.md). Changing one changes bits: every kernel, the golden hashes and the document
 * go in the same commit. */
enum {
    RAPT_BLOCK = 64,         /* keys of a block: one running maximum and one rescaling of the state for each */
    RAPT_CHUNK = 512,        /* keys of a chunk: each starts from the empty state, and chunks are merged in ascending order */
    RAPT_STEP = 32,          /* channels, or keys, of a step of bf16 arithmetic: of each the even and the odd ones are summed by
                                themselves */
    RAPT_SCORE_WHOLE = 128,  /* channels up to which a score is one sum */
    RAPT_SCORE_PART = 64,    /* channels of a part of a score that has more: each is summed by itself, and the sums are added,
                                ascending */
    RAPT_PARTIAL_SUMS = 16,  /* sums that the weights of a block make, by key number modulo it, and the products of a linear
                                layer, by channel */
    RAPT_LINEAR_PART = 1024, /* channels of a part of a linear layer's sum */
};

/* CPU features, as dispatch/cpu/cpu.h decodes them. The words of the list are their names, in bit order. */
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
    RAPT_CPU_VXE = 1 << 20, /* IBM z14 and later: the vector facility for f32, too */
    RAPT_CPU_LSX = 1 << 21,
    RAPT_CPU_BF16 = 1 << 22, /* AArch64's products of bf16, which no kernel needs: they round as neither class does */
    RAPT_CPU_SVE = 1 << 23,
    RAPT_CPU_SVE_OF_256 = 1 << 24, /* with vectors of that many bits, neither more nor fewer */
    RAPT_CPU_SVE_OF_512 = 1 << 25,
    RAPT_CPU_RVV = 1 << 26,
    RAPT_CPU_RVV_OF_128 = 1 << 27, /* likewise */
    RAPT_CPU_RVV_OF_256 = 1 << 28,
    RAPT_CPU_RVV_OF_512 = 1 << 29,
    RAPT_CPU_AMX = RAPT_CPU_AMX_TILE | RAPT_CPU_AMX_BF16 | RAPT_CPU_AMX_INT8 | RAPT_CPU_AMX_PERMISSION,
};
#define RAPT_CPU_NAMES                                                                                                           \
    "sse4.1", "avx", "f16c", "fma", "avx2", "avx512f", "avx512dq", "avx512bw", "avx512vl", "neon", "avx512vnni", "dotprod",      \
        "amx-tile", "amx-bf16", "amx-int8", "amx-permission", "i8mm", "avxvnni", "vfpv4", "vsx", "vxe", "lsx", "bf16", "sve",    \
        "sve-of-256-bits", "sve-of-512-bits", "rvv", "rvv-of-128-bits", "rvv-of-256-bits", "rvv-of-512-bits"

/* A validated problem: what is the same for all tasks of a plan. */
typedef struct rapt_problem {
    int64_t batch, heads, kv_heads, q_len, kv_len; /* q_len, kv_len: of the tensors, so of all entries of a ragged batch */
    int64_t group;                                 /* query heads per key/value head */
    int32_t d_k, d_v;
    rapt_layout q, k, v, o, lse;
    size_t q_row, k_row, v_row, o_row; /* bytes of one token's channels */
    rapt_causal causal;
    int64_t window_left, window_right, local_chunk;
    rapt_layout mask, block_mask, bias, slopes, sinks; /* RAPT_NONE: none */
    int64_t mask_keys, bias_keys;                      /* columns of a row */
    rapt_rest mask_rest, bias_rest;                    /* what holds for keys that have no column */
    bool mask_one_key, bias_one_key;                   /* does the only element of a row hold for all keys? */
    int64_t block_mask_queries, block_mask_keys;
    rapt_scales k_scales, v_scales;
    int64_t page_size, kv_first;
    int page_shift; /* page_size = 1 << page_shift; -1: it is no power of two */
    rapt_layout table;
    rapt_layout states; /* if they are left to the caller */
    int64_t state_stride;
    bool unmerged;
    rapt_layout scores;  /* where the scores of a task go that computes nothing else */
    float scores_factor; /* what each of these is multiplied by */
    /* A logit is score * exponent in base 2 and score * natural in base e; score = <q * q_factor, k>. q_factor is the sign of
     * the scale, so exact, unless the scale is so extreme that score * exponent could leave the range of f32. Where the logits
     * are modified, scores become logits in base e first: score * score_natural, then softcap and what else there is, and
     * exponent and natural are those of base e. */
    bool modified;
    rapt_arith arith;
    float q_factor, score_natural, exponent, natural;
    float least;                    /* a difference of scores at which exp2(difference * exponent) is zero: -127 / exponent */
    float softcap, inverse_softcap; /* 0: none */
    int left_over;                  /* of a task's rows, those that may have keys in lanes beside full vectors of others */
    rapt_alibi alibi;
    rapt_logits_body logits_body;
} rapt_problem;

/* The unmerged state of one row after one chunk: floats m, l, and o from RAPT_STATE_O on, padded to whole cache lines. */
enum { RAPT_STATE_M = 0, RAPT_STATE_L = 1, RAPT_STATE_O = 16 };

/* One task: rows [row0, row0 + rows) of one key/value head of one batch entry over chunks [chunk0, chunk0 + chunks). A row is a
 * pair (token, head of the group), row = token * group + head, so that K and V are read once for the whole group. With keys in
 * lanes, a task may take several adjacent key/value heads, so that memory sees their tokens whole. */
typedef struct rapt_task {
    const rapt_problem *problem;
    const char *q, *k, *v; /* of this batch entry and the first key/value head; k and v of the pool's first page */
    char *o, *lse;         /* at the first head of its group, as is q; lse: null if none is wanted */
    const char *mask, *block_mask, *bias, *slopes, *sinks; /* of the entry and that head */
    const char *k_scales, *v_scales;                       /* as k and v */
    const char *table; /* of the entry, the key/value head, and the token if each has its own */
    char *scores;      /* null: not wanted; of the entry and that head, for key number 0 */
    void *logits_arg;
    int64_t batch;
    int64_t head0; /* the first query head */
    int kv_heads;
    bool keys_in_lanes;            /* the path, which dispatch/attention/path.h decides; else queries lie in lanes */
    int left_over;                 /* with queries in lanes, how many of the last rows have keys in lanes nevertheless (ibid.) */
    int v_in_k;                    /* V's channels are those of K from this one on; -1: they are not */
    int64_t kv_length, prefix;     /* of the entry; the prefix in keys, so less the position of key 0 */
    int64_t query_offset;          /* the position of query 0, counted from key 0 */
    int64_t key_position;          /* that of key 0 */
    int64_t ring_start, ring_size; /* slot of key kv_first; slots of the ring */
    int64_t row0, rows;
    int64_t period; /* no tile has rows of two such periods, since these see other blocks of keys; 0: none */
    int64_t chunk0, chunks;
    char *states; /* null: write o and lse. Else the state of token 0 and the first head after chunk0 is to be left there */
    size_t state_token, state_head, state_chunk; /* bytes from a state to that of the next token, head, chunk */
    float *scratch;
} rapt_task;

/* The end of a row: where it goes, and what joins its state there. */
typedef struct rapt_row_end {
    char *o, *lse;
    const char *sink, *v_scales; /* null: none; of the row's head */
} rapt_row_end;

/* Where query 0 stands among the keys of its entry, unless the caller says. */
static inline int64_t rapt_default_offset(const rapt_problem *p, int64_t q_len, int64_t kv_length) {
    return p->causal == RAPT_CAUSAL_TOP_LEFT ? 0 : kv_length - q_len;
}

/* The keys [*first, *end) that the query which stands at key number at may attend to, an empty range being 0, 0: the one place
 * where causal masks, windows, prefixes and key lengths are interpreted. key_position: the position of key 0. */
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

/* Some adjacent keys that lie at one distance from each other: key 0 of them is `page` pages and `token` tokens from the tensor's
 * first.
 */
typedef struct rapt_keys {
    int64_t page, token;
    int keys;
} rapt_keys;

/* Those from key number `number` on, at most n: the one place where rings and pages are interpreted. */
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

static inline size_t rapt_keys_offset(const rapt_layout *layout, const rapt_keys *run) {
    return (size_t)(run->page * layout->batch_stride + run->token * layout->token_stride);
}

/* A validated linear layer, and one task of it: outputs [out0, out0 + outs) of tokens [token0, token0 + tokens), which are
 * counted through the batch. */
typedef struct rapt_linear_problem {
    int64_t tokens, in, out; /* tokens: of a batch entry */
    rapt_layout x, y, residual, weight;
    rapt_activation activation;
    rapt_layout gate; /* RAPT_NONE: none */
    /* What a rapt_tuning has become. */
    int64_t staged_weights; /* floats of weights that are staged at a time */
    int few_tokens;         /* in the arithmetic of the problem */
    int long_row, long_ahead, short_ahead;
    rapt_arith arith; /* RAPT_EXACT or RAPT_BF16_DOT */
} rapt_linear_problem;

/* The rows that make outputs. */
typedef struct rapt_linear_weights {
    const char *rows;
    const float *bias, *scales; /* null: none */
    const float *packed;        /* the rows, all of them, as pack_weights leaves them; null: many tokens stage them */
} rapt_linear_weights;

typedef struct rapt_linear_task {
    const rapt_linear_problem *problem;
    const char *x, *residual;
    char *y;
    rapt_linear_weights weight, gate;
    int64_t token0, tokens, out0, outs;
    float *scratch;
} rapt_linear_task;

/* Channels of the parts of a score. */
static inline int rapt_score_part(int d_k) { return d_k <= RAPT_SCORE_WHOLE ? RAPT_SCORE_WHOLE : RAPT_SCORE_PART; }

/* Bytes of an element of the types of any tensor, and of RAPT_INT8. */
static inline int64_t rapt_element_bytes(rapt_type type) { return type == RAPT_F32 ? 4 : type == RAPT_INT8 ? 1 : 2; }

/* A token to be normalised. */
typedef struct rapt_norm_task {
    const char *x, *residual; /* residual, sum, mean and inverse_deviation: null where there is none */
    char *y, *sum;
    float *mean, *inverse_deviation;
    bool rms; /* by the root of the mean square, rather than by mean and deviation */
} rapt_norm_task;

/* How a kernel computes in one arithmetic. Each is an object of its own, which exports nothing else: rapt_int8_avx512,
 * rapt_bf16_amx and so on. */
typedef struct rapt_arithmetic {
    uint32_t needs; /* CPU features */
    int tile_rows;  /* query rows, or tokens, of a full tile */
    /* The defaults of rapt_tuning: the most rows of a head with keys in lanes, and tokens with outputs in lanes. 0: always
     * queries, or tokens, in lanes. */
    int few_rows, few_tokens;
    /* Returns the bytes of scratch, a multiple of RAPT_WORKSPACE_ALIGNMENT, of a task of at most `rows` rows, which with keys in
     * lanes are those of all its heads. merges: true if the task merges chunks. */
    size_t (*scratch_bytes)(const rapt_problem *, int64_t rows, bool keys_in_lanes, bool merges);
    void (*attend)(const rapt_task *);
    /* Linear layers, null in integer arithmetic, which has none. */
    size_t (*linear_scratch_bytes)(const rapt_linear_problem *, int64_t tokens, int64_t outs);
    void (*linear_tokens)(const rapt_linear_task *);
    /* Returns the floats of packed weights, or of a packed gate. */
    uint64_t (*packed_floats)(const rapt_linear_problem *);
    /* Packs outputs [out0, out0 + outs) of a task to their place in `packed`. out0 is a multiple of RAPT_PARTIAL_SUMS, and so is
     * outs, unless these are the last outputs. */
    void (*pack_weights)(const rapt_linear_task *, bool gate, float *packed);
} rapt_arithmetic;

/* What kernels inherit: exact arithmetic, and all functions that are the same in every arithmetic. rapt_exact_avx512 and so on.
 */
typedef struct rapt_base {
    rapt_arithmetic exact;
    bool fused; /* the rounding class: fma() rounds once */
    int vector; /* lanes of a vector */
    /* tuning: the defaults, but for those that each arithmetic has. room: upper bounds of the fields that size arrays on the
     * stack, 0 where there is no such bound. size and isa are not used. */
    rapt_tuning tuning, room;
    void (*merge)(const rapt_problem *, float *state, const float *next);     /* both as in RAPT_STATE_M */
    void (*finish)(const rapt_problem *, const rapt_row_end *, float *state); /* overwrites state */
    /* Turns a row of `keys` scores into weights. sink: null, or a logit that joins them. */
    void (*weigh_scores)(const rapt_problem *, char *row, int64_t keys, const char *sink);
    void (*normalise)(const rapt_norm_args *, const rapt_norm_task *);
} rapt_base;

/* A kernel, as dispatch/cpu/select.c makes it of the lists of kernels: its own arithmetics, and those that it inherits. */
typedef struct rapt_kernel {
    const char *name;
    const rapt_base *base;
    const rapt_arithmetic *int8, *bf16;
} rapt_kernel;

#endif
