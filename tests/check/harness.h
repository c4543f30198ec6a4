/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of check share: kernels seen, problems, subjects (a problem laid out between guard pages), runs, verdicts. */
#ifndef RAPT_CHECK_HARNESS_H
#define RAPT_CHECK_HARNESS_H

#include "kv_types.h"
#include "random_streams.h"
#include "reference.h"
#include "tunings.h"
#include "fence.h"
#include "rapt.h"

#define LENGTH_OF(array) ((int64_t)(sizeof(array) / sizeof *(array)))

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* ---- The run as a whole ------------------------------------------------------------------------------------------------- */

enum { PATHS = 2, MAX_KERNELS = 16 };

typedef struct kernel {
    const char *name, *rounding;
    rapt_status usable;
    char missing[128];
    bool chosen, required, active; /* asked for; must run; runs here (chosen, or the twin of one that is) */
    int64_t runs, compared, failures, path_runs[PATHS];
} kernel;

typedef struct squares { /* sums over outputs, in units of the bound: of errors, those of plain f32 code, and units in the last
                            place */
    double ours, naive, ulps;
} squares;

typedef struct accuracy {   /* of a rounding class, against the double reference */
    double worst;           /* error, in units of the bound */
    squares all, worst_row; /* all outputs, and those among them of the row whose sum is the largest */
} accuracy;

enum { UNFUSED, FUSED, CLASSES };
extern const char *const class_names[CLASSES];

typedef struct check {
    const char *program;
    kernel kernels[MAX_KERNELS];
    int kernel_count;
    bool quick, summary, print_golden;
    rapt_arith arith; /* of problems that do not say otherwise */

    uint64_t seed;
    const char *case_name;
    uint64_t random;    /* the case's; never drawn from inside a loop over kernels, so that --isa changes no data */
    int64_t problems;   /* of the case so far */
    int64_t wanted;     /* of these, what --quick does not leave out */
    int64_t thin;       /* with --quick, one in `thin` is run */
    int64_t failures;   /* of the case */
    const char *failed; /* the first kernel that failed it, or null */
    accuracy accuracy[CLASSES];
    double worst[CLASSES]; /* over all cases */
} check;

/* One line about what went wrong; k is null where no kernel is to blame. */
void check_fail(check *c, kernel *k, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Called before every run of a kernel: shows progress, and names the run in case it dies. */
void check_step(check *c, const kernel *k);

/* The class's twin: the kernel that the others of the class must equal. */
kernel *check_twin(check *c, int rounding);

#define FOR_EACH_KERNEL(c, k)                                                                                                    \
    for (kernel *k = (c)->kernels; k < (c)->kernels + (c)->kernel_count; k++)                                                    \
        if (k->active)

/* ---- Problems ----------------------------------------------------------------------------------------------------------- */

typedef enum place {
    PLACE_BHSD,
    PLACE_BSHD,
    PLACE_PADDED,    /* gaps of whole elements after each row, head and batch entry */
    PLACE_ODD,       /* gaps of odd bytes */
    PLACE_ONE_BATCH, /* stride 0: inputs only */
    PLACE_ONE_HEAD,
    PLACE_PACKED /* [batch, token, {q, k, v}, head, channel]: q, k, v together */
} place;

typedef enum data {
    DATA_NORMAL,
    DATA_LARGE, /* logits about 1e4 */
    DATA_TIES,
    DATA_ONE_HOT,
    DATA_RISING, /* every block has a new maximum */
    DATA_FALLING,
    DATA_INF_FIRST, /* scores of -inf: the first third of the keys */
    DATA_INF_MIDDLE,
    DATA_INF_LAST,
    DATA_INF_ALL,
    DATA_DENORMAL,
    DATA_ZEROS,             /* of both signs in keys and values, and values that a weight makes one */
    DATA_INFINITE,          /* some keys and values of both signs */
    DATA_BYTES,             /* keys and values are integers from -128 to 127, often the outermost */
    DATA_KINDS,             /* that may be drawn */
    DATA_TINY = DATA_KINDS, /* keys and values about 2^-56, below which bf16 arithmetic takes 0; of f32 or bf16, as are queries */
    DATA_RARE,              /* denormal keys in every third block, and zeros in the others; of bf16, as are queries */
} data;

/* Tensors with a row of keys (or one number) for each entry, head and query; those of inputs that not every problem has. */
typedef enum extra {
    EXTRA_MASK,
    EXTRA_BLOCK_MASK,
    EXTRA_BIAS,
    EXTRA_SLOPES,
    EXTRA_SINKS,
    EXTRA_TABLE,
    EXTRA_ROWS, /* how many have rows */
    EXTRA_K_SCALES = EXTRA_ROWS,
    EXTRA_V_SCALES,
    EXTRA_PREFIXES,
    EXTRA_TABLE_STARTS,
    EXTRA_LAST_PAGE,
    EXTRA_RING_STARTS,
    EXTRA_Q_OFFSETS,
    EXTRA_K_OFFSETS,
    EXTRA_Q_STARTS,
    EXTRA_K_STARTS,
    EXTRA_BODY,
    EXTRAS
} extra;

enum { SAME_BATCH = 1, SAME_HEADS = 2, SAME_QUERIES = 4 }; /* dimensions along which such a tensor has stride 0 */

typedef enum key_pattern { /* which keys a mask or a block mask attends, or a bias does not mask */
                           PATTERN_ALL,
                           PATTERN_HALF,
                           PATTERN_FEW,
                           PATTERN_MOST,
                           PATTERN_BLOCKS, /* whole blocks of 64 are masked */
                           PATTERN_ROWS,   /* rows of all keys, of none, of half */
                           PATTERN_ALIKE,  /* blocks in which rows are alike: all keys, none, half, or all but one key of a row */
                           PATTERNS
} key_pattern;

typedef enum grain { /* of scales */
                     GRAIN_NONE,
                     GRAIN_TENSOR,
                     GRAIN_HEAD, /* of an entry */
                     GRAIN_TOKEN,
                     GRAIN_TOKEN_OF_ALL_HEADS,
                     GRAIN_CHANNEL,
                     GRAIN_CHANNEL_OF_ALL_HEADS,
                     GRAINS
} grain;

enum { MOST_BATCH = 8 }; /* with lengths, ragged, paged */

typedef struct problem {
    rapt_desc desc; /* sizes, types, features, scale; the strides come from the places */
    place q, k, v, o;
    data data;
    float q_factor, k_factor; /* powers of two */
    bool lse;
    enum { LENGTHS_NONE, LENGTHS_DRAWN, LENGTHS_GIVEN } lengths; /* from position 0, as in rapt_args */
    int32_t given[MOST_BATCH];
    int offset;         /* of every tensor, as in fence_create */
    bool unmapped;      /* keys and values beyond the length are not even mapped (batch 1) */
    uint64_t data_seed; /* the data are a function of it and of the sizes, not of the places */

    /* Features: their numbers and types are those of desc. */
    place rows;           /* of tensors with rows */
    int same[EXTRA_ROWS]; /* SAME_ */
    key_pattern mask, block_mask, bias;
    bool bias_finite; /* a masked bias is the type's finite minimum, an ordinary number, rather than -inf */
    grain k_grain, v_grain;
    bool prefixes;             /* one for each entry, rather than desc.prefix */
    bool q_offsets, k_offsets; /* positions of each entry's first query and key */
    bool body;
    bool ragged_queries, ragged_keys; /* desc.q_len and kv_len are then the most that an entry has */
    bool ring;
    enum { TABLE_MATRIX, TABLE_CSR, TABLE_LAST_PAGE } table; /* if desc.page_size is set */
    bool nan_sinks;                                          /* about half of them */
    bool nan_masked; /* what no query attends is NaN: keys, values, their scales, biases */
} problem;

/* Sizes that problem_of draws itself, in the order of its parameters (that of a call's arguments differs between compilers). */
#define UP_TO(n) (-(int64_t)(n)) /* 1..n */
#define ANY_DIM  INT64_MIN       /* one of the usual head dimensions up to 128 */

problem problem_of(check *c, int64_t batch, int64_t heads, int64_t kv_heads, int64_t q_len, int64_t kv_len, int64_t d_k,
                   int64_t d_v);
void problem_types(problem *p, rapt_type q, rapt_type k, rapt_type v, rapt_type o);
void problem_draw_mask(problem *p, uint64_t *random);
void problem_draw_data(problem *p, uint64_t *random);
void problem_draw_layouts(problem *p, uint64_t *random);     /* layouts, offset, and whether there is an lse */
void problem_kv_types(problem *p, rapt_type k, rapt_type v); /* makes d_k and d_v whole groups */
void problem_integer(problem *p);                            /* RAPT_INT8_DOT, with K and V of int8 */
void problem_integer_groups(problem *p, uint64_t *random);   /* the same with any types that have integers */
void problem_draw_types(problem *p, uint64_t *random);
void problem_draw_types_of_caches(problem *p, uint64_t *random); /* of K and V, any; d_k and d_v must not depend on each other */
void problem_draw_features(problem *p, uint64_t *random);        /* any of them, masks, arith; batch up to MOST_BATCH */
void problem_draw_logits(problem *p, uint64_t *random); /* of these only softcap, ALiBi, bias, sinks, logits_body, scales */
void problem_draw_places(problem *p, uint64_t *random); /* and only where keys and queries lie */
void problem_of_all_keys(problem *p);                   /* kv_first and kv_total are 0, and columns that fitted others fit */
void problem_draw_rest(problem *p, uint64_t *random);   /* columns of mask and bias: fewer or more than keys, or one for all */

/* Pages of page_size keys for the problem, each entry's in its own order. */
void problem_paged(problem *p, int64_t page_size);

/* False if --quick leaves this one out. Called once for each problem of a case. */
bool problem_wanted(check *c, const problem *p);

/* A stream for each kernel, so that the choice of kernels does not change what the others see. */
static inline uint64_t random_of(const problem *p, const kernel *k) { return hash_text(p->data_seed, k->name); }

/* ---- Subjects ----------------------------------------------------------------------------------------------------------- */

typedef struct subject {
    rapt_desc desc;
    rapt_args args;
    fence q, k, v, lengths, o, lse, scores, extra[EXTRAS];
} subject;

subject subject_create(check *c, const problem *p);
void subject_destroy(subject *s);

/* A part of a subject, reading the same memory: batch entries from b, heads from h, tokens from i, as many as desc says; its
 * only entry has as many keys as length says, or (ALL_LENGTHS) all have those of the subject. Ragged queries or keys become one
 * entry of a tensor that is not ragged. Outputs are its own. i must be a multiple of block_mask_queries if desc has more than one
 * query. */
enum { ALL_LENGTHS = -1 };
subject subject_view(const subject *of, rapt_desc desc, int64_t b, int64_t h, int64_t i, int32_t length);

enum { SUBJECT_TEXT = 640 };
void subject_text(const subject *s, char *text, size_t bytes);

/* Writes one element of an input, which is read-only between calls. */
enum { TENSOR_K, TENSOR_V };
void subject_poison(subject *s, int tensor, int64_t b, int64_t h, int64_t j, int64_t c, float value);

/* ---- Runs --------------------------------------------------------------------------------------------------------------- */

/* The last two start threads, which WASI does not have without -pthread. */
typedef enum way { WAY_RUN, WAY_TASKS, WAY_PHASES, WAY_SERIAL, WAY_PARALLEL, WAY_SHARE, WAYS } way;
#if defined(__wasi__) && !defined(_REENTRANT)
enum { WAYS_HERE = WAY_PARALLEL };
#else
enum { WAYS_HERE = WAYS };
#endif

typedef struct how {
    way way;
    int64_t threads; /* desc.threads */
    int64_t nth;
    uint64_t random; /* order of tasks, garbage in the workspace */
    uint64_t tuned;  /* by a tuning of this seed (tunings.h); 0: by the kernel's own */
} how;

how how_drawn(uint64_t *random); /* without real threads */

/* The outputs, dense: O's elements in [batch, head, token, channel], then LSE's if there is one, then rows of scores if they are
 * wanted, with 0 in columns that are not written. Free it. Null, after check_fail,
 * if the library refused, wrote where it may not, or did not do what it said. */
unsigned char *subject_run(check *c, subject *s, kernel *k, const how *how);
int64_t subject_output_bytes(const subject *s);

/* Its two halves: the run, false if that went wrong, which leaves the plan; and what it left in the outputs. */
bool subject_start(check *c, subject *s, kernel *k, const how *how, rapt_plan *plan);
unsigned char *subject_finish(check *c, subject *s, kernel *k);

/* Or the program ends. */
void *allocate(size_t bytes);
void *allocate_zeros(size_t n, size_t size);
reference reference_of(const subject *s); /* of its output; reference_free it */

int64_t *shuffled(int64_t n, uint64_t *random); /* 0..n - 1 in any order; free it */

/* ---- Verdicts ----------------------------------------------------------------------------------------------------------- */

/* Whether all rows of got, the output of s, equal those of want, the output of t, from (b, h, i) on; NaN equals NaN. */
bool same_rows(check *c, kernel *k, const char *against, const subject *s, const unsigned char *got, const subject *t,
               const unsigned char *want, int64_t b, int64_t h, int64_t i);

/* The whole comparison: every active kernel, in drawn ways, against the twin, and that against the reference. */
void examine(check *c, const problem *p);
void examine_subject(check *c, subject *s, uint64_t seed);

/* One kernel by itself gives the same bits: in all ways and by all numbers of threads; by tunings; of all variants of a problem.
 */
void same_by_threads(check *c, const problem *p);
void same_by_tunings(check *c, const problem *p);
void same_as_variants(check *c, const problem *p, problem *variants, int n);

/* Likewise for a row by itself; for an entry, and for heads whose keys are repeated; for a sequence that is decoded in steps,
 * whose queries are its last tokens. These problems are of types, data, lengths and windows only. */
void same_alone(check *c, const problem *p);
void same_apart(check *c, const problem *p);
void same_in_steps(check *c, const problem *p);

/* Likewise for keys in parts, whose states are merged. A problem with any features is made one that can be cut, but for pages,
 * whose sizes must divide a chunk. */
void problem_in_parts(problem *p);
void same_in_parts(check *c, const problem *p);

/* Results of sources, 2 to 6, merged by their lse: right, and the same bits by all kernels of a class, in place, and with empty
 * sources. */
void same_merged(check *c, int64_t sources, int64_t rows, int64_t d_v, uint64_t *random);

/* ---- Cases -------------------------------------------------------------------------------------------------------------- */

typedef struct check_case {
    const char *name, *what;
    void (*run)(check *c);
    int thin;
} check_case;

/* Each ends with a null name. */
extern const check_case agreement_cases[], feature_cases[], invariance_cases[], placement_cases[], part_cases[],
    complaint_cases[], contract_cases[], refusal_cases[], integer_cases[];

void case_golden(check *c);

#endif
