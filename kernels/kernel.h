/* SPDX-License-Identifier: Apache-2.0 */
/* The contract between dispatch/ and the kernels: what a kernel is, and what one task of it is given. Dispatch has validated
 * everything before a kernel sees it. */
#ifndef RAPT_KERNEL_H
#define RAPT_KERNEL_H

#include <stdbool.h>

#include "rapt.h"

/* Constants of the canonical order (docs/order.md). Changing one changes bits: every kernel, the golden hashes and the document
 * go in the same commit. */
enum {
    RAPT_BLOCK = 64,        /* keys of a block: one running maximum and one rescaling of the state for each */
    RAPT_CHUNK = 512,       /* keys of a chunk: each starts from the empty state, and chunks are merged in ascending order */
    RAPT_PARTIAL_SUMS = 16, /* the weights of a block are summed as this many sums, by key position modulo it */
};

/* CPU features, as dispatch/cpu.h decodes them. The words of the list are their names, in bit order. */
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
};
#define RAPT_CPU_NAMES "sse4.1", "avx", "f16c", "fma", "avx2", "avx512f", "avx512dq", "avx512bw", "avx512vl", "neon"

/* A validated problem: what is the same for all tasks of a plan. */
typedef struct rapt_problem {
    int64_t batch, heads, kv_heads, q_len, kv_len;
    int64_t group;      /* query heads per key/value head */
    bool keys_in_lanes; /* the path: so few rows for each key/value head that lanes are keys */
    int32_t d_k, d_v;
    rapt_layout q, k, v, o, lse;
    size_t q_row, k_row, v_row, o_row; /* bytes of one token's channels */
    rapt_causal causal;
    int64_t window_left, window_right;
    /* A logit is score * exponent in base 2 and score * natural in base e; score = <q * q_factor, k>. q_factor is the sign of
     * the scale, so exact, unless the scale is so extreme that score * exponent could leave the range of f32. */
    float q_factor, exponent, natural;
    float least; /* a difference of scores at which exp2(difference * exponent) is zero: -127 / exponent */
} rapt_problem;

/* The unmerged state of one row after one chunk, as split tasks leave it in the shared workspace: floats m, l, and o from
 * RAPT_STATE_O on, padded to whole cache lines. */
enum { RAPT_STATE_M = 0, RAPT_STATE_L = 1, RAPT_STATE_O = 16 };
static inline size_t rapt_state_floats(int32_t d_v) { return RAPT_STATE_O + ((size_t)d_v + 15) / 16 * 16; }

/* One task: rows [row0, row0 + rows) of one key/value head of one batch entry over chunks [chunk0, chunk0 + chunks). A row is a
 * pair (token, head of the group), row = token * group + head, so that K and V are read once for the whole group. With keys in
 * lanes, a task may take several adjacent key/value heads, so that memory sees their tokens whole. */
typedef struct rapt_task {
    const rapt_problem *problem;
    const char *q, *k, *v; /* of this batch entry and the first key/value head; q, o and lse at the first head of its group */
    char *o, *lse;         /* lse: null if none is wanted */
    int kv_heads;
    int64_t kv_length;
    int64_t row0, rows;
    int64_t chunk0, chunks;
    float *states;       /* null: write o and lse. Else the state of row row0 after chunk0 is to be left there, */
    size_t chunk_floats; /* that after the next chunk so much further on, that of the next row rapt_state_floats, */
    size_t head_floats;  /* and that of the next key/value head so much */
    float *scratch;
} rapt_task;

/* One merging task: the states of one row, rows apart, folded in ascending order of chunks. */
typedef struct rapt_merge_task {
    const rapt_problem *problem;
    const float *states; /* of the row's first chunk */
    size_t chunk_floats; /* from one chunk's state of the row to the next */
    int64_t chunks;
    char *o, *lse;
    float *scratch;
} rapt_merge_task;

/* The keys [*first, *end) that a row's token attends to, an empty range being 0, 0: the one place where causal masks, windows and
 * key lengths are interpreted. */
static inline void rapt_row_range(const rapt_problem *p, int64_t token, int64_t kv_length, int64_t *first, int64_t *end) {
    int64_t at = token + (p->causal == RAPT_CAUSAL_TOP_LEFT ? 0 : kv_length - p->q_len);
    int64_t lo = 0, hi = kv_length;
    if (p->causal != RAPT_CAUSAL_NONE && at + 1 < hi) hi = at + 1;
    if (p->window_right >= 0 && at + p->window_right + 1 < hi) hi = at + p->window_right + 1;
    if (p->window_left >= 0 && at - p->window_left > lo) lo = at - p->window_left;
    *first = lo < hi ? lo : 0;
    *end = lo < hi ? hi : 0;
}

/* Rows of all the key/value heads of a task with keys in lanes, if it has several: their scores, 2 KiB each, shall stay in L2
 * beside K and V. */
enum { RAPT_JOINED_ROWS = 64 };

/* A kernel: the only symbol that its object exports. */
typedef struct rapt_kernel {
    const char *name;
    uint32_t needs;    /* CPU features */
    bool fused;        /* its rounding class: fma() rounds once */
    int lanes;         /* query rows of a full tile, when queries lie in lanes */
    int pass_tiles;    /* and at most this many tiles to a task, */
    size_t pass_bytes; /* as long as its scratch is no larger */
    int few_rows;      /* up to this many rows of a key/value head, keys lie in lanes */
    /* Bytes of scratch, a multiple of RAPT_WORKSPACE_ALIGNMENT, of a task of at most rows rows, with keys in lanes those of all
     * its heads; folds: if it merges chunks. */
    size_t (*scratch_bytes)(const rapt_problem *, int64_t rows, bool folds);
    void (*attend)(const rapt_task *);
    void (*merge)(const rapt_merge_task *);
} rapt_kernel;

#endif
