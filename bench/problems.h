/* SPDX-License-Identifier: Apache-2.0 */
/* Problems of attention with random shapes, types, layouts and features, for bench/sweep.c. */
#ifndef BENCH_PROBLEMS_H
#define BENCH_PROBLEMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data.h"
#include "rapt.h"

enum { BENCH_MOST_ENTRIES = 32, BENCH_MOST_KEYS = 8192, BENCH_MOST_TENSORS = 16 };

/* The operations that the softmax takes for the weight of a pair: 11 on vectors of avx512, each of which could have been a fused
 * multiply-add (docs/experiments/prefill.md). */
enum { BENCH_WEIGHT_OPERATIONS = 22 };

/* The layout of K and V; Q and O lie alike, but never far apart. */
typedef enum bench_arrangement {
    BENCH_HEADS_FIRST,  /* [head, token, channel] */
    BENCH_TOKENS_FIRST, /* [token, head, channel] */
    BENCH_GAPS,         /* heads first, with a gap between rows */
    BENCH_FAR_HEADS,    /* heads first, at a distance of a power of two, at least 4096 bytes */
    BENCH_FAR_TOKENS    /* tokens first, at such a distance */
} bench_arrangement;

/* What holds the keys of an entry. */
typedef enum bench_storage { BENCH_DENSE, BENCH_RING, BENCH_PAGES, BENCH_RAGGED, BENCH_RAGGED_PAGES } bench_storage;

/* Which keys a mask lets a query attend to. */
typedef enum bench_pattern {
    BENCH_TRIANGLE,  /* those up to its own position: a causal mask */
    BENCH_PADDING,   /* the first three quarters */
    BENCH_DOCUMENTS, /* those of its quarter of the sequence */
    BENCH_HALVES     /* each with a probability of one half */
} bench_pattern;

/* A problem. Its description points into it, so it must not be moved. */
typedef struct bench_problem {
    const bench_type *type;
    rapt_desc desc;        /* without a kernel */
    int64_t q_len, kv_len; /* of the longest entry */
    bench_arrangement arrangement;
    int64_t gap;    /* bytes between rows, of BENCH_GAPS */
    int64_t offset; /* bytes from a page's begin to that of each tensor */
    bench_storage storage;
    bench_pattern mask; /* of a mask, if desc has one */
    int64_t kept;       /* one of this many blocks of a block mask is attended */
    bool bias_heads;    /* each head has a bias of its own */
    bool aliased;       /* V is the first channels of K */
    bool lengths;       /* entries have fewer keys than there is room for */
    int32_t queries[BENCH_MOST_ENTRIES], keys[BENCH_MOST_ENTRIES], ring_starts[BENCH_MOST_ENTRIES]; /* of each entry */
    int32_t q_starts[BENCH_MOST_ENTRIES + 1], k_starts[BENCH_MOST_ENTRIES + 1];                     /* of a ragged batch */
    int64_t pairs;                                                                                  /* attended, of all heads */
    double bytes; /* of Q, O, lse, and of the K, V, scales, mask and bias that are attended, each once */
} bench_problem;

/* Draws problem number `index` of a seed: the same on every machine, until a type is added. It takes at most 10^9 operations, and
 * its tensors at most 64 MB. */
void bench_problem_draw(bench_problem *p, uint64_t seed, int64_t index);

/* Makes the smallest problem with that many key/value heads: one query and key of each, in f32. */
void bench_problem_smallest(bench_problem *p, int64_t kv_heads);

/* Returns the rows of a key/value head: its queries in the longest entry, of all query heads that share it. */
int64_t bench_problem_rows(const bench_problem *p);

/* Prints a problem, without a line end. */
void bench_problem_print(const bench_problem *p);

/* A problem that is ready to be run, on one thread. */
typedef struct bench_call {
    rapt_plan plan;
    rapt_args args;
    rapt_plan_info info;
    void *memory[BENCH_MOST_TENSORS];
    int tensors;
} bench_call;

/* Plans a problem for a kernel, fills its tensors, and runs it once. If it is refused, or there is no memory, returns false, and
 * writes why; bench_call_close is due all the same. */
bool bench_call_open(bench_call *c, bench_problem *p, const char *isa, char *why, size_t bytes);
void bench_call_close(bench_call *c);

#endif
