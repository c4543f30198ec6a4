/* SPDX-License-Identifier: Apache-2.0 */
/* The benchmarks: a table of problems. Each runs as CASE/TYPE/ISA/tN on every kernel that this machine can run;
 * --benchmark_filter selects some. CASE is
 *
 *     P1..P6            prefill
 *     D1..D5            few rows, over caches that come from memory; D1-hot and so on always use the same cache
 *     D1-step           D1 as a decoder's step: the last key and value are new, the key and the queries are rotated
 *     D6                a step of 32 sequences with one row each
 *     D7                one row of 128 heads
 *     O-dN, O-dKvV      prefill of H 8, S 1024, d 64 with another number of channels ...
 *     O-sqN, O-skvN     ... or of queries, or of keys. An odd number follows the round number with which it is compared
 *     G512..G32768      growth: one head, twice as long each time
 *     F-...             features, each next to the plain case with which it is compared: see the table
 *     T1-run, T1-plan   a small call on a plan that exists, and together with making the plan
 *     T1-empty          T1-run with a key length of 0. It measures everything that a call does apart from the keys: it validates,
 *                       scales the query, merges a chunk, divides and writes the row. The arithmetic takes T1-run less T1-empty
 *
 * TYPE is the type of all tensors or, if it is a cache type, of K and V, where Q and O are f32. int8 has a scale for each token
 * and head; int8-dot is int8 in integer arithmetic, bf16-dot is bf16 in bf16 arithmetic.
 *
 * A suffix of CASE is the layout of the tensors:
 *
 *     (nothing)         [head, token, channel]
 *     -bshd             [token, head, channel]
 *     -kv               -bshd with K and V in one cache: [token, {K, V}, head, channel]
 *     -4096             -bshd with the distance of K's and V's tokens rounded up to a power of two, at least 4096 bytes;
 *                       the other caches lie in the gaps, as with several layers in one cache
 *     -gap              -bshd with K's and V's tokens a cache line further apart, so that they lie no power of two apart
 *
 * The counters say how fast the case was, and which share of the machine's limits it reached; these are measured just before and
 * just after it:
 *
 *     GFLOPS, peak, peak_share      2 d_k + 2 d_v operations for each attended pair, and the ISA's peak: in bf16 arithmetic that
 *                                   of its matrix unit, in integer arithmetic that of its integer products, else that of f32
 *     f32_peaks                     GFLOPS divided by the ISA's f32 peak
 *     GBs, bandwidth, read_share    the bytes of Q, O and attended K and V, each once and in its own type (a V that lies in K
 *                                   adds no bytes), and the bandwidth of reading: from memory if K and V come from there,
 *                                   else of the same number of bytes over and over, which caches may hold
 *     bound                         the larger of the two shares: that of the nearer limit
 *     ps_per_pair                   picoseconds for each attended pair, if there are any
 *     ns                            the time of a call
 *     workspace                     bytes of workspace
 *
 * rapt-bench --tuning=LINE measures the kernel that the line names, or every kernel, with the numbers of the line
 * (rapt_tuning_parse). */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data.h"
#include "report.h"
#include "timing.h"

typedef enum caches {
    ONE,      /* one K and V, which the CPU's caches may hold */
    ROTATING, /* enough copies of K and V that each call reads its own from memory */
} caches;

typedef enum timed { RUN, PLAN_AND_RUN, RUN_EMPTY, STEP } timed;

typedef enum arrangement { HEAD_MAJOR, TOKEN_MAJOR, INTERLEAVED, POWER_OF_TWO, GAPS, ARRANGEMENTS } arrangement;
static const char *const arrangement_names[ARRANGEMENTS] = {"", "-bshd", "-kv", "-4096", "-gap"};

/* Sizes of the features. MASK_KEPT: one of this many blocks of the block mask is attended. */
enum { ENTRIES = 32, SHORT = 128, WINDOW_KEYS = 1024, FIRST_KEYS = 4, PAGE_KEYS = 16, MASK_BLOCK = 64, MASK_KEPT = 16 };

/* A feature of a case, besides what its row of the table has. */
typedef enum feature {
    PLAIN,       /* none */
    SCORES,      /* softcap, sinks, and a bias [heads, queries, keys] in f16 */
    ALIBI,       /* slopes */
    BYTES,       /* a mask [queries, keys] of bytes that is equivalent to causal */
    BITS,        /* BYTES as bits */
    WINDOW,      /* a window of 1024 keys */
    STREAM,      /* WINDOW and the first keys, by a mask of bytes, as StreamingLLM attends */
    STREAM_BITS, /* STREAM as bits */
    SPARSE,      /* a block mask with blocks of 64 x 64: the diagonal, and one of 16 other blocks */
    PAGED,       /* pages of 16 keys, in random order */
    BATCH,       /* 32 entries, each with the queries and keys of the case */
    RAGGED,      /* BATCH as a ragged batch */
    UNEVEN,      /* a ragged batch: one entry with the queries and keys of the case, and 31 with 128 */
    ALIASED,     /* V is the first channels of K */
} feature;

typedef struct bench_case {
    const char *name;
    int64_t heads, kv_heads, q_len, kv_len, d_k, d_v;
    rapt_causal causal;
    caches caches;
    timed timed;
    feature feature;
} bench_case;

#define FULL   RAPT_CAUSAL_NONE
#define CAUSAL RAPT_CAUSAL_BOTTOM_RIGHT

/* clang-format off */
static const bench_case cases[] = {
    /*            H Hkv     Sq    Skv  d_k  d_v */
    {"P1",         12, 12,   128,   128,  64,  64, FULL,   ONE,      RUN, PLAIN},
    {"P2",         12, 12,   512,   512,  64,  64, FULL,   ONE,      RUN, PLAIN},
    {"P3",         32,  8,  1024,  1024, 128, 128, CAUSAL, ONE,      RUN, PLAIN},
    {"P4",          8,  8,  4096,  4096,  64,  64, CAUSAL, ONE,      RUN, PLAIN},
    {"P5",          8,  8,  4096,  4096, 128, 128, FULL,   ONE,      RUN, PLAIN},
    {"P6",         32,  8,   256,  4096, 128, 128, CAUSAL, ONE,      RUN, PLAIN},

    {"D1",         32,  8,     1,  4096, 128, 128, FULL,   ROTATING, RUN, PLAIN},
    {"D1-hot",     32,  8,     1,  4096, 128, 128, FULL,   ONE,      RUN, PLAIN},
    {"D1-step",    32,  8,     1,  4096, 128, 128, FULL,   ROTATING, STEP, PLAIN},
    {"D1-step-hot", 32, 8,     1,  4096, 128, 128, FULL,   ONE,      STEP, PLAIN},
    {"D2",         32,  8,     1, 32768, 128, 128, FULL,   ROTATING, RUN, PLAIN},
    {"D2-hot",     32,  8,     1, 32768, 128, 128, FULL,   ONE,      RUN, PLAIN},
    {"D3",         32, 32,     1,  4096, 128, 128, FULL,   ROTATING, RUN, PLAIN},
    {"D3-hot",     32, 32,     1,  4096, 128, 128, FULL,   ONE,      RUN, PLAIN},
    {"D4",          8,  1,     1,  8192, 256, 256, FULL,   ROTATING, RUN, PLAIN},
    {"D4-hot",      8,  1,     1,  8192, 256, 256, FULL,   ONE,      RUN, PLAIN},
    {"D5",         32,  8,     8,  4096, 128, 128, CAUSAL, ROTATING, RUN, PLAIN},
    {"D5-hot",     32,  8,     8,  4096, 128, 128, CAUSAL, ONE,      RUN, PLAIN},
    {"D6",         32,  8,     1,  1024, 128, 128, FULL,   ROTATING, RUN, BATCH},
    {"D7",        128, 128,    1,  1024, 128, 128, FULL,   ROTATING, RUN, PLAIN},

    {"O-d64",       8,  8,  1024,  1024,  64,  64, FULL,   ONE,      RUN, PLAIN},
    {"O-d40",       8,  8,  1024,  1024,  40,  40, FULL,   ONE,      RUN, PLAIN},
    {"O-d72",       8,  8,  1024,  1024,  72,  72, FULL,   ONE,      RUN, PLAIN},
    {"O-d80",       8,  8,  1024,  1024,  80,  80, FULL,   ONE,      RUN, PLAIN},
    {"O-d96",       8,  8,  1024,  1024,  96,  96, FULL,   ONE,      RUN, PLAIN},
    {"O-d128",      8,  8,  1024,  1024, 128, 128, FULL,   ONE,      RUN, PLAIN},
    {"O-d112",      8,  8,  1024,  1024, 112, 112, FULL,   ONE,      RUN, PLAIN},
    {"O-d160",      8,  8,  1024,  1024, 160, 160, FULL,   ONE,      RUN, PLAIN},
    {"O-d192",      8,  8,  1024,  1024, 192, 192, FULL,   ONE,      RUN, PLAIN},
    {"O-d256",      8,  8,  1024,  1024, 256, 256, FULL,   ONE,      RUN, PLAIN},
    {"O-d512",      8,  8,  1024,  1024, 512, 512, FULL,   ONE,      RUN, PLAIN},
    {"O-d576v512",  8,  8,  1024,  1024, 576, 512, FULL,   ONE,      RUN, PLAIN},
    {"O-sq32",      8,  8,    32,  1024,  64,  64, FULL,   ONE,      RUN, PLAIN},
    {"O-sq33",      8,  8,    33,  1024,  64,  64, FULL,   ONE,      RUN, PLAIN},
    {"O-sq128",     8,  8,   128,  1024,  64,  64, FULL,   ONE,      RUN, PLAIN},
    {"O-sq100",     8,  8,   100,  1024,  64,  64, FULL,   ONE,      RUN, PLAIN},
    {"O-skv1024",   8,  8,  1024,  1024,  64,  64, FULL,   ONE,      RUN, PLAIN},
    {"O-skv1000",   8,  8,  1024,  1000,  64,  64, FULL,   ONE,      RUN, PLAIN},

    {"G512",        1,  1,   512,   512,  64,  64, FULL,   ONE,      RUN, PLAIN},
    {"G1024",       1,  1,  1024,  1024,  64,  64, FULL,   ONE,      RUN, PLAIN},
    {"G2048",       1,  1,  2048,  2048,  64,  64, FULL,   ONE,      RUN, PLAIN},
    {"G4096",       1,  1,  4096,  4096,  64,  64, FULL,   ONE,      RUN, PLAIN},
    {"G8192",       1,  1,  8192,  8192,  64,  64, FULL,   ONE,      RUN, PLAIN},
    {"G16384",      1,  1, 16384, 16384,  64,  64, FULL,   ONE,      RUN, PLAIN},
    {"G32768",      1,  1, 32768, 32768,  64,  64, FULL,   ONE,      RUN, PLAIN},

    {"F-plain",    32,  8,  1024,  1024, 128, 128, CAUSAL, ONE,      RUN, PLAIN},
    {"F-scores",   32,  8,  1024,  1024, 128, 128, CAUSAL, ONE,      RUN, SCORES},
    {"F-alibi",    32,  8,  1024,  1024, 128, 128, CAUSAL, ONE,      RUN, ALIBI},
    {"F-bytes",    32,  8,  1024,  1024, 128, 128, FULL,   ONE,      RUN, BYTES},
    {"F-bits",     32,  8,  1024,  1024, 128, 128, FULL,   ONE,      RUN, BITS},
    {"F-paged",    32,  8,  1024,  1024, 128, 128, CAUSAL, ONE,      RUN, PAGED},
    {"F-causal",    4,  4, 16384, 16384,  64,  64, CAUSAL, ONE,      RUN, PLAIN},
    {"F-window",    4,  4, 16384, 16384,  64,  64, CAUSAL, ONE,      RUN, WINDOW},
    {"F-window-4096", 8, 8, 4096,  4096,  64,  64, CAUSAL, ONE,      RUN, WINDOW},
    {"F-stream-4096", 8, 8, 4096,  4096,  64,  64, FULL,   ONE,      RUN, STREAM},
    {"F-stream-bits-4096", 8, 8, 4096, 4096, 64, 64, FULL,  ONE,      RUN, STREAM_BITS},
    {"F-sparse",    4,  4, 16384, 16384,  64,  64, CAUSAL, ONE,      RUN, SPARSE},
    {"F-batch",     8,  8,   128,   128, 128, 128, CAUSAL, ONE,      RUN, BATCH},
    {"F-ragged",    8,  8,   128,   128, 128, 128, CAUSAL, ONE,      RUN, RAGGED},
    {"F-uneven",    8,  8, 16384, 16384,  64,  64, CAUSAL, ONE,      RUN, UNEVEN},
    {"F-D1",       32,  8,     1,  4096, 128, 128, FULL,   ROTATING, RUN, PLAIN},
    {"F-D1-paged", 32,  8,     1,  4096, 128, 128, FULL,   ROTATING, RUN, PAGED},
    {"F-D3",       32, 32,     1,  4096, 128, 128, FULL,   ROTATING, RUN, PLAIN},
    {"F-D3-paged", 32, 32,     1,  4096, 128, 128, FULL,   ROTATING, RUN, PAGED},
    {"F-mla16",    16,  1,     1,  8192, 576, 512, FULL,   ROTATING, RUN, ALIASED},
    {"F-mla128",  128,  1,     1,  8192, 576, 512, FULL,   ROTATING, RUN, ALIASED},

    {"T1-run",      1,  1,     1,    16,  64,  64, FULL,   ONE,      RUN, PLAIN},
    {"T1-plan",     1,  1,     1,    16,  64,  64, FULL,   ONE,      PLAN_AND_RUN, PLAIN},
    {"T1-empty",    1,  1,     1,    16,  64,  64, FULL,   ONE,      RUN_EMPTY, PLAIN},
};
/* clang-format on */

/* A case as it is registered: with layout, type, kernel and threads. */
typedef struct job {
    const bench_case *c;
    arrangement arrangement;
    const bench_type *type;
    const char *isa;
    int64_t threads;
} job;

typedef struct cache {
    char *k, *v;
} cache;

/* The data of a job. Google Benchmark calls a job again, with more iterations until they take long enough and once for each
 * repetition, so the session stays open until another job runs, and the limits that were measured after one call are used as
 * those before the next. */
typedef struct session {
    const job *job; /* null: no session is open */
    rapt_desc desc;
    rapt_plan plan;
    rapt_decode_desc step;
    rapt_decode_plan step_plan;
    rapt_plan_info info;
    rapt_pool *pool;
    char *q, *o, *workspace;
    size_t workspace_bytes;
    /* Needed by some features and types. */
    char *tensor;        /* mask, block_mask or bias */
    float per_head[128]; /* slopes and sinks */
    float *scales;       /* of the tokens of both K and V */
    int32_t *table;
    int32_t starts[ENTRIES + 1];
    char *new_token; /* key, then value */
    double frequencies[RAPT_MAX_HEAD_DIM / 2];
    cache *caches;
    int64_t cache_count, block_caches; /* each block_caches caches share an allocation, which begins at the first one's K */
    bench_limits limits;               /* the last that were measured */
} session;

static session current;

static int64_t entries(const bench_case *c) {
    return c->feature == BATCH || c->feature == RAGGED || c->feature == UNEVEN ? ENTRIES : 1;
}
static int64_t entry_len(const bench_case *c, int64_t entry, int64_t len) { return c->feature == UNEVEN && entry ? SHORT : len; }

/* Returns the queries or keys of all entries together, where entry 0 has len. */
static int64_t all_len(const bench_case *c, int64_t len) {
    int64_t sum = 0;
    for (int64_t b = 0; b < entries(c); b++) sum += entry_len(c, b, len);
    return sum;
}

/* True if a block of the block mask is attended. */
static bool block_mask_keeps(int64_t query_block, int64_t key_block) {
    return query_block == key_block || bench_mix((uint32_t)(query_block << 16 | key_block)) % MASK_KEPT == 0;
}

/* True if a case attends to the first keys and a window, by a mask. */
static bool streams(const bench_case *c) { return c->feature == STREAM || c->feature == STREAM_BITS; }

/* Returns how many keys query i of an entry attends to. */
static int64_t keys_of(const bench_case *c, int64_t i, int64_t q_len, int64_t kv_len) {
    const bool by_mask = c->feature == BYTES || c->feature == BITS || streams(c);
    int64_t end = c->causal == FULL && !by_mask ? kv_len : i + kv_len - q_len + 1, keys = 0;
    const int64_t most = WINDOW_KEYS + 1 + (streams(c) ? FIRST_KEYS : 0);
    if (c->feature == WINDOW || streams(c)) return end < most ? end : most;
    if (c->feature != SPARSE) return end > 0 ? end : 0;
    for (int64_t n = 0; n * MASK_BLOCK < end; n++)
        if (block_mask_keeps(i / MASK_BLOCK, n)) keys += end - n * MASK_BLOCK < MASK_BLOCK ? end - n * MASK_BLOCK : MASK_BLOCK;
    return keys;
}

/* Returns how many (query, key) pairs all heads of a case attend to. */
static int64_t attended_pairs(const bench_case *c) {
    static const bench_case *last; /* keeps the last result, since some cases take long */
    static int64_t pairs;
    if (c == last) return pairs;
    last = c;
    pairs = 0;
    for (int64_t b = 0; b < entries(c) && c->timed != RUN_EMPTY; b++) {
        int64_t q_len = entry_len(c, b, c->q_len), kv_len = entry_len(c, b, c->kv_len);
        for (int64_t i = 0; i < q_len; i++) pairs += keys_of(c, i, q_len, kv_len);
    }
    return pairs *= c->heads;
}

/* Returns the bytes of K and V, and of their scales, in one cache. */
static int64_t cache_bytes(const job *j) {
    const bench_case *c = j->c;
    int64_t row = rapt_row_bytes(j->type->kv, c->d_k) + (c->feature == ALIASED ? 0 : rapt_row_bytes(j->type->kv, c->d_v));
    if (j->type->scaled) row += 2 * (int64_t)sizeof(float);
    return c->kv_heads * all_len(c, c->kv_len) * row;
}

/* Returns the operations and bytes of a call. */
static bench_work work_of(const job *j) {
    const bench_case *c = j->c;
    int64_t row = rapt_row_bytes(j->type->q, c->d_k) + rapt_row_bytes(j->type->q, c->d_v);
    int64_t bytes = c->heads * all_len(c, c->q_len) * row;
    if (c->timed != RUN_EMPTY) bytes += cache_bytes(j);
    return (bench_work){(double)(attended_pairs(c) * 2 * (c->d_k + c->d_v)), (double)bytes};
}

/* Describes a case. desc.isa stays null, as it usually is; session_open makes the kernel the process-wide choice. */
static void describe(rapt_desc *d, const job *j) {
    const bench_case *c = j->c;
    rapt_layout (*dense)(rapt_type, int64_t, int64_t, int64_t) =
        j->arrangement == HEAD_MAJOR ? rapt_layout_bhsd : rapt_layout_bshd;
    rapt_desc_init(d);
    bool packed = c->feature == RAGGED || c->feature == UNEVEN;
    int64_t q_len = packed ? all_len(c, c->q_len) : c->q_len, kv_len = packed ? all_len(c, c->kv_len) : c->kv_len;
    d->batch = entries(c);
    d->heads = c->heads;
    d->kv_heads = c->kv_heads;
    d->q_len = q_len;
    d->kv_len = kv_len;
    d->d_k = c->d_k;
    d->d_v = c->d_v;
    d->q = dense(j->type->q, c->heads, q_len, c->d_k);
    d->k = dense(j->type->kv, c->kv_heads, kv_len, c->d_k);
    d->v = dense(j->type->kv, c->kv_heads, kv_len, c->d_v);
    d->o = dense(j->type->q, c->heads, q_len, c->d_v);
    d->causal = c->causal;
    d->threads = j->threads;
    d->arith = j->type->arith;
    d->tuning = bench_tuning(j->isa);
    if (c->feature == ALIASED) d->v = d->k;
    if (j->type->scaled) d->k_scales = d->v_scales = (rapt_scales){1, c->kv_heads * kv_len * 4, kv_len * 4, 4, 0};
    if (j->arrangement == INTERLEAVED) d->k.token_stride = d->v.token_stride = d->k.token_stride + d->v.token_stride;
    if (j->arrangement == POWER_OF_TWO) {
        d->k.token_stride = bench_power_of_two(d->k.token_stride);
        d->v.token_stride = bench_power_of_two(d->v.token_stride);
    }
    if (j->arrangement == GAPS) d->k.token_stride += 64, d->v.token_stride += 64;
}

/* Returns new memory with random values of a type; null if there is none. */
static void *filled(rapt_type type, size_t bytes, uint32_t seed) {
    void *p = bench_alloc(bytes);
    if (p) bench_fill(p, type, bytes, seed);
    return p;
}

/* Returns new memory with zeros, which are written so that no case pays for the first access to its output; null if there is
 * none. */
static void *touched(size_t bytes) {
    void *p = bench_alloc(bytes);
    if (p) memset(p, 0, bytes);
    return p;
}

/* Returns new memory with a copy; null if there is none. */
static void *copied(const void *from, size_t bytes) {
    void *p = bench_alloc(bytes);
    if (p) memcpy(p, from, bytes);
    return p;
}

/* Creates a mask, of bytes or bits: causal, or the first keys and a window. */
static void create_mask(session *s) {
    const bench_case *c = s->job->c;
    rapt_desc *d = &s->desc;
    const bool bits = c->feature == BITS || c->feature == STREAM_BITS;
    int64_t row = bits ? (c->kv_len + 7) / 8 : c->kv_len;
    d->mask = (rapt_layout){bits ? RAPT_BIT : RAPT_BOOL, 0, 0, row};
    if (!(s->tensor = touched((size_t)(c->q_len * row)))) return;
    for (int64_t i = 0; i < c->q_len; i++) {
        const int64_t end = i + c->kv_len - c->q_len + 1;
        for (int64_t n = 0; n < end; n++)
            if (!streams(c) || n < FIRST_KEYS || n >= end - 1 - WINDOW_KEYS)
                s->tensor[i * row + (bits ? n / 8 : n)] |= (char)(bits ? 1 << n % 8 : 1);
    }
}

/* Creates the block mask. */
static void create_block_mask(session *s) {
    const bench_case *c = s->job->c;
    int64_t rows = (c->q_len + MASK_BLOCK - 1) / MASK_BLOCK, row = (c->kv_len + MASK_BLOCK - 1) / MASK_BLOCK;
    s->desc.block_mask = (rapt_layout){RAPT_BOOL, 0, 0, row};
    s->desc.block_mask_queries = s->desc.block_mask_keys = MASK_BLOCK;
    if (!(s->tensor = touched((size_t)(rows * row)))) return;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t n = 0; n < row; n++) s->tensor[i * row + n] = block_mask_keeps(i, n);
}

/* Describes K and V as a pool of pages of 16 keys, with a table in random order. */
static void create_pages(session *s) {
    const job *j = s->job;
    rapt_desc *d = &s->desc;
    rapt_layout (*dense)(rapt_type, int64_t, int64_t, int64_t) =
        j->arrangement == HEAD_MAJOR ? rapt_layout_bhsd : rapt_layout_bshd;
    d->page_size = PAGE_KEYS;
    d->pages = d->kv_len / PAGE_KEYS;
    d->k = dense(j->type->kv, d->kv_heads, PAGE_KEYS, d->d_k);
    d->v = dense(j->type->kv, d->kv_heads, PAGE_KEYS, d->d_v);
    d->table = (rapt_layout){RAPT_I32, d->pages * (int64_t)sizeof *s->table, 0, 0};
    if (!(s->table = touched((size_t)d->pages * sizeof *s->table))) return;
    for (int32_t n = 0; n < d->pages; n++) {
        int64_t at = bench_mix((uint32_t)n) % (uint32_t)(n + 1);
        s->table[n] = s->table[at];
        s->table[at] = n;
    }
}

/* Creates what the feature and the type need. Returns false if there is no memory. */
static bool create_feature(session *s) {
    const job *j = s->job;
    const bench_case *c = j->c;
    rapt_desc *d = &s->desc;
    const rapt_layout heads = {RAPT_F32, 0, sizeof *s->per_head, 0};
    for (int64_t h = 0; h < (int64_t)(sizeof s->per_head / sizeof *s->per_head); h++) s->per_head[h] = 0.01f * (float)(h % 16);
    for (int64_t b = 0; b < entries(c); b++) s->starts[b + 1] = s->starts[b] + (int32_t)entry_len(c, b, c->kv_len);
    if (j->type->scaled) {
        int64_t n = c->kv_heads * all_len(c, c->kv_len);
        if (!(s->scales = touched((size_t)n * sizeof *s->scales))) return false;
        for (int64_t i = 0; i < n; i++) s->scales[i] = 0.01f + 0.0001f * (float)(i % 128);
    }
    switch (c->feature) {
    case SCORES:
        d->softcap = 30;
        d->sinks = heads;
        d->bias = rapt_layout_bhsd(RAPT_F16, c->heads, c->q_len, c->kv_len);
        return (s->tensor = filled(RAPT_F16, (size_t)(c->heads * c->q_len * c->kv_len * 2), 3));
    case ALIBI:
        d->alibi = RAPT_ALIBI_DISTANCE;
        d->slopes = heads;
        return true;
    case BYTES:
    case BITS:
    case STREAM:
    case STREAM_BITS:
        create_mask(s);
        return s->tensor;
    case SPARSE:
        create_block_mask(s);
        return s->tensor;
    case PAGED:
        create_pages(s);
        return s->table;
    case WINDOW:
        d->window_left = WINDOW_KEYS;
        return true;
    case RAGGED:
    case UNEVEN:
        d->q_starts = d->k_starts = s->starts;
        return true;
    case PLAIN:
    case BATCH:
    case ALIASED:
        break;
    }
    return true;
}

/* Creates the caches over which the case rotates, all with the same numbers. Returns false if there is no memory. */
static bool create_caches(session *s) {
    const job *j = s->job;
    const bench_case *c = j->c;
    int64_t k_row = c->kv_heads * rapt_row_bytes(j->type->kv, c->d_k), v_row = c->kv_heads * rapt_row_bytes(j->type->kv, c->d_v);
    int64_t heads = j->arrangement == HEAD_MAJOR ? c->kv_heads : 1, tokens = all_len(c, c->kv_len), page = 4096;
    int64_t k_bytes = heads * tokens * s->desc.k.token_stride, v_bytes = heads * tokens * s->desc.v.token_stride;
    int64_t v_offset = (k_bytes + page - 1) / page * page, block_bytes = v_offset + v_bytes;
    if (j->arrangement == INTERLEAVED) {
        v_offset = k_row;
        block_bytes = k_bytes;
    }
    if (c->feature == ALIASED) {
        v_offset = 0;
        block_bytes = k_bytes;
    }
    s->block_caches = 1;
    if (j->arrangement == POWER_OF_TWO) {
        int64_t k_rows = s->desc.k.token_stride / k_row, v_rows = s->desc.v.token_stride / v_row;
        s->block_caches = k_rows < v_rows ? k_rows : v_rows;
    }
    int64_t cold = (int64_t)BENCH_COLD_BYTES, bytes = cache_bytes(j);
    s->cache_count = c->caches == ONE ? 1 : (cold + bytes - 1) / bytes;
    s->caches = calloc((size_t)s->cache_count, sizeof *s->caches);
    for (int64_t i = 0; s->caches && i < s->cache_count; i++) {
        int64_t nth = i % s->block_caches;
        char *block = nth      ? s->caches[i - nth].k
                      : i == 0 ? filled(j->type->kv, (size_t)block_bytes, 2)
                               : copied(s->caches[0].k, (size_t)block_bytes);
        if (!block) return false;
        s->caches[i] = (cache){block + nth * k_row, block + v_offset + nth * v_row};
    }
    return s->caches;
}

/* Measures the limits of a job. */
static bench_limits measure(const job *j, rapt_pool *pool) {
    size_t bytes = j->c->caches == ONE ? (size_t)work_of(j).bytes : BENCH_COLD_BYTES;
    return bench_limits_of(j->isa, j->type->arith, bytes, pool);
}

static void session_close(void) {
    for (int64_t i = 0; current.caches && i < current.cache_count; i += current.block_caches) free(current.caches[i].k);
    free(current.caches);
    free(current.q);
    free(current.o);
    free(current.workspace);
    free(current.tensor);
    free(current.scales);
    free(current.table);
    free(current.new_token);
    rapt_pool_destroy(current.pool);
    memset(&current, 0, sizeof current);
}

/* Plans a decoder's step: one new token, with all channels rotated. */
static rapt_status create_step(session *s) {
    const bench_case *c = s->job->c;
    rapt_decode_desc *d = &s->step;
    rapt_type type = s->job->type->q;
    rapt_decode_desc_init(d);
    d->attention = &s->desc;
    d->tokens = 1;
    d->new_k = rapt_layout_bshd(type, c->kv_heads, 1, c->d_k);
    d->new_v = rapt_layout_bshd(type, c->kv_heads, 1, c->d_v);
    d->rope.channels = c->d_k;
    d->rope.frequencies = s->frequencies;
    rapt_status status = rapt_rope_frequencies(10000, c->d_k, s->frequencies);
    if (!status) status = rapt_decode_plan_init(&s->step_plan, d);
    if (!status) status = rapt_decode_plan_query(&s->step_plan, &s->info);
    if (!status) status = rapt_decode_workspace_size(&s->step_plan, s->job->threads, &s->workspace_bytes);
    return status;
}

static rapt_status create_plan(session *s) {
    rapt_status status = rapt_plan_init(&s->plan, &s->desc);
    if (!status) status = rapt_plan_query(&s->plan, &s->info);
    if (!status) status = rapt_workspace_size(&s->plan, s->job->threads, &s->workspace_bytes);
    return status;
}

/* Opens the session of a job. Returns null, or why it could not be opened. */
static const char *session_open(const job *j) {
    session *s = &current;
    const bench_case *c = j->c;
    session_close();
    s->job = j;
    s->info.size = sizeof s->info;
    describe(&s->desc, j);
    if (!create_feature(s)) return "out of memory";
    rapt_status status = rapt_isa_force(j->isa);
    if (!status) status = c->timed == STEP ? create_step(s) : create_plan(s);
    if (status) return rapt_status_string(status);
    if (j->threads > 1 && !(s->pool = rapt_pool_create(j->threads))) return "no threads";
    int64_t rows = c->heads * all_len(c, c->q_len);
    s->q = filled(j->type->q, (size_t)(rows * rapt_row_bytes(j->type->q, c->d_k)), 1);
    s->o = touched((size_t)(rows * rapt_row_bytes(j->type->q, c->d_v)));
    s->workspace = touched(s->workspace_bytes);
    s->new_token = filled(j->type->q, (size_t)(c->kv_heads * rapt_row_bytes(j->type->q, c->d_k + c->d_v)), 4);
    if (!s->q || !s->o || !s->workspace || !s->new_token || !create_caches(s)) return "out of memory";
    s->limits = measure(j, s->pool);
    return NULL;
}

static rapt_status run_step(session *s, const rapt_args *args, const cache *to) {
    const bench_case *c = s->job->c;
    const int32_t start = (int32_t)c->kv_len - 1;
    rapt_decode_args a;
    rapt_decode_args_init(&a);
    a.attention = args;
    a.starts = &start;
    a.new_k = s->new_token;
    a.new_v = s->new_token + c->kv_heads * rapt_row_bytes(s->job->type->q, c->d_k);
    a.k = to->k;
    a.v = to->v;
    a.workspace = s->workspace;
    a.workspace_bytes = s->workspace_bytes;
    return s->pool ? rapt_decode_run_parallel(&s->step_plan, &a, s->job->threads, rapt_pool_for, s->pool)
                   : rapt_decode_run(&s->step_plan, &a);
}

static rapt_status run(session *s, rapt_args *args, const cache *with) {
    if (s->job->c->timed == STEP) return run_step(s, args, with);
    args->k = with->k;
    args->v = with->v;
    if (s->job->c->timed == PLAN_AND_RUN) {
        rapt_status status = rapt_plan_init(&s->plan, &s->desc);
        if (status) return status;
    }
    return s->pool ? rapt_run_parallel(&s->plan, args, s->job->threads, rapt_pool_for, s->pool) : rapt_run(&s->plan, args);
}

/* Measures the limits again, and reports the counters and the label. */
static void report(bench_state *state, double seconds) {
    const job *j = current.job;
    const int64_t pairs = attended_pairs(j->c);
    const bench_limits before = current.limits;
    current.limits = measure(j, current.pool);
    bench_report(state, work_of(j), seconds, before, current.limits);
    if (pairs) bench_counter(state, "ps_per_pair", 1e12 * seconds / (double)pairs);
    bench_counter(state, "ns", 1e9 * seconds);
    bench_counter(state, "workspace", (double)current.workspace_bytes);
    char label[96];
    snprintf(label, sizeof label, "%s %s, %lld thread%s", current.info.isa, current.info.path, (long long)j->threads,
             j->threads > 1 ? "s" : "");
    bench_label(state, label);
}

/* Opens the session of a job unless it is open, times calls, and reports. */
static void run_case(bench_state *state, const void *arg) {
    static const int32_t no_keys = 0;
    const job *j = arg;
    const char *failure = current.job == j ? NULL : session_open(j);
    rapt_args args;
    rapt_args_init(&args);
    args.q = current.q;
    args.o = current.o;
    args.workspace = current.workspace;
    args.workspace_bytes = current.workspace_bytes;
    args.bias = current.desc.bias.type ? current.tensor : NULL;
    args.mask = current.desc.mask.type ? current.tensor : NULL;
    args.block_mask = current.desc.block_mask.type ? current.tensor : NULL;
    args.slopes = current.desc.slopes.type ? current.per_head : NULL;
    args.sinks = current.desc.sinks.type ? current.per_head : NULL;
    args.k_scales = args.v_scales = current.scales;
    args.table = current.table;
    if (j->c->timed == RUN_EMPTY) args.kv_lengths = &no_keys;

    int64_t calls = 0, next = 0;
    double start = 0;
    while (!failure && bench_keep_running(state)) {
        if (!calls++) start = bench_now();
        rapt_status status = run(&current, &args, &current.caches[next]);
        if (++next == current.cache_count) next = 0;
        if (status) failure = rapt_status_string(status);
    }
    double end = bench_now();
    if (failure) {
        bench_fail(state, failure);
        session_close();
        return;
    }
    report(state, (end - start) / (double)calls);
}

/* Sets counts to the numbers of threads that are measured, 1, 2 and that of all cores, and returns how many they are. */
static int thread_counts(int64_t counts[BENCH_THREAD_COUNTS]) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int n = 0;
    counts[n++] = 1;
    if (cores >= 2) counts[n++] = 2;
    if (cores > 2) counts[n++] = cores;
    return n;
}

/* True if a case is measured with a layout and type. Cache types are measured in prefill, decode and features. They, features and
 * steps are measured in the first two layouts only; V within K, pages, ragged batches and steps only without scales of tokens. */
static bool makes_sense(const bench_case *c, arrangement a, const bench_type *type) {
    bool cache_type = type->kv != type->q;
    if (cache_type && (c->name[0] == 'O' || c->name[0] == 'G' || c->name[0] == 'T')) return false;
    if ((cache_type || c->feature || c->timed == STEP) && a > TOKEN_MAJOR) return false;
    if ((c->feature == ALIASED || c->feature == PAGED || c->feature == RAGGED || c->feature == UNEVEN || c->timed == STEP) &&
        type->scaled)
        return false;
    return true;
}

bool bench_register_cases(void) {
    static job *jobs;
    enum { CASES = sizeof cases / sizeof *cases };
    int64_t counts[BENCH_THREAD_COUNTS];
    int n_counts = thread_counts(counts), n_isas = 0, usable = 0, n_types;
    const bench_type *types = bench_types(&n_types);
    while (rapt_isa_name(n_isas)) n_isas++;
    const char **isas = calloc((size_t)n_isas, sizeof *isas);
    jobs = calloc((size_t)(CASES * ARRANGEMENTS * n_types * n_isas * n_counts), sizeof *jobs);
    if (!isas || !jobs) {
        fputs("rapt-bench: out of memory\n", stderr);
        return false;
    }
    atexit(session_close);
    for (int i = 0; i < n_isas; i++)
        if (!rapt_isa_usable(rapt_isa_name(i), NULL, 0)) isas[usable++] = rapt_isa_name(i);
    job *j = jobs;
    for (int c = 0; c < CASES; c++)
        for (int a = 0; a < ARRANGEMENTS; a++)
            for (int t = 0; t < n_types; t++) {
                if (!makes_sense(&cases[c], (arrangement)a, &types[t])) continue;
                for (int i = 0; i < usable; i++)
                    for (int n = 0; n < n_counts; n++) {
                        *j = (job){&cases[c], (arrangement)a, &types[t], isas[i], counts[n]};
                        char name[96];
                        snprintf(name, sizeof name, "%s%s/%s/%s/t%lld", j->c->name, arrangement_names[a], j->type->name, j->isa,
                                 (long long)j->threads);
                        bench_register(name, run_case, j++);
                    }
            }
    free(isas);
    bench_register_machine(counts, n_counts);
    return bench_register_layers(counts, n_counts) && bench_register_copies(counts, n_counts);
}
