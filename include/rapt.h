/* SPDX-License-Identifier: Apache-2.0 */
/* rapt: fused flash-style attention for CPUs. This header is the whole public API, and its comments are the contract.
 *
 *     O[b,h,i,:] = sum_j P[i,j] V[b,hk,j,:]      P[i,:] = softmax over the attended keys j of scale * <Q[b,h,i,:], K[b,hk,j,:]>
 *
 * with hk = h / (heads / kv_heads): scaled dot-product attention (Vaswani et al. 2017, "Attention Is All You Need",
 * section 3.2.1, formula 1) over several heads (section 3.2.2), the key/value heads shared by groups of query heads (Shazeer
 * 2019; Ainslie et al. 2023, GQA, section 2.2), streamed with the online softmax (Milakov & Gimelshein 2018, algorithm 3; Dao
 * 2023, FlashAttention-2, algorithm 1), so that no matrix of q_len x kv_len is ever held.
 *
 * The promise: every output row is a function of its own query, keys, values and mask, and of nothing else. Its bits do not
 * change with the instruction set (of one rounding class, see rapt_plan_info), the number of threads, the other rows of the
 * call, the memory layout, or whether it came by prefill, chunked prefill or decode. docs/order.md writes the order of
 * operations down; a NaN is a NaN, its sign and payload are not promised.
 *
 * How a call goes: describe the problem (rapt_desc), validate it once into a plan (rapt_plan_init), ask for the workspace
 * (rapt_workspace_size), then run the plan as often as you like with other pointers (rapt_run and its siblings).
 *
 * The library allocates nothing, starts no thread, takes no lock and writes no global but the atomic pointer to the kernel
 * chosen. Every function may be called from any thread; a plan is never written after rapt_plan_init. Every function that
 * returns a status checks its arguments first: when the status is not RAPT_OK, nothing was written. The floating-point
 * environment is assumed to be the default one (round to nearest, no flush to zero) and its control bits are never written. */
#ifndef RAPT_H
#define RAPT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RAPT_VERSION_MAJOR 0
#define RAPT_VERSION_MINOR 1
#define RAPT_VERSION_PATCH 0

#if defined(_WIN32)
#define RAPT_API
#else
#define RAPT_API __attribute__((visibility("default")))
#endif

/* ---- Status ---------------------------------------------------------------------------------------------------------- */

typedef enum rapt_status {
    RAPT_OK = 0,
    RAPT_ERR_NULL = -1,         /* a required pointer is null */
    RAPT_ERR_STRUCT = -2,       /* a struct's size is too small, or it is newer than the library and uses a field unknown here */
    RAPT_ERR_SHAPE = -3,        /* a size is negative, zero where it may not be, or above its limit */
    RAPT_ERR_HEADS = -4,        /* heads is not a multiple of kv_heads */
    RAPT_ERR_TYPE = -5,         /* a tensor's type is unknown, or not allowed for that tensor */
    RAPT_ERR_STRIDE = -6,       /* a stride is negative, a tensor exceeds the address space, or two output elements overlap */
    RAPT_ERR_SCALE = -7,        /* scale is NaN or infinite */
    RAPT_ERR_MASK = -8,         /* causal is not a rapt_causal, or a window side is below -1 */
    RAPT_ERR_KV_LENGTH = -9,    /* a key length is negative or above kv_len */
    RAPT_ERR_OVERLAP = -10,     /* an output overlaps an input, the other output, or the workspace */
    RAPT_ERR_WORKSPACE = -11,   /* the workspace is null or too small */
    RAPT_ERR_ALIGNMENT = -12,   /* the workspace is not aligned to RAPT_WORKSPACE_ALIGNMENT */
    RAPT_ERR_ISA_UNKNOWN = -13, /* no kernel of that name was built for this architecture */
    RAPT_ERR_ISA_MISSING = -14, /* that kernel exists, but this CPU or its operating system cannot run it */
    RAPT_ERR_RANGE = -15,       /* a phase, task, thread number or thread count is out of range */
    RAPT_ERR_PLAN = -16         /* the plan was not made by rapt_plan_init */
} rapt_status;

/* One line of English for each status; never null, also for a number that is no status. */
RAPT_API const char *rapt_status_string(rapt_status status);

/* "major.minor.patch" of the library that is linked, which need not be that of this header. */
RAPT_API const char *rapt_version(void);

/* ---- Tensors --------------------------------------------------------------------------------------------------------- */

typedef enum rapt_type {
    RAPT_F32 = 1, /* IEEE 754 binary32 */
    RAPT_F16 = 2, /* IEEE 754 binary16 */
    RAPT_BF16 = 3 /* the upper half of a binary32 */
} rapt_type;

/* How a tensor [batch, head, token, channel] lies in memory. Strides are in bytes and not negative; channels are contiguous.
 * Any address will do: not even the alignment of an element is required. On inputs a stride may be 0 (broadcast) or make
 * elements share memory; on outputs no two elements may share memory: when the dimensions longer than 1 are sorted by stride,
 * each stride must be at least the bytes spanned by the dimensions before it. The stride of a dimension of length 1 is not
 * used. */
typedef struct rapt_layout {
    rapt_type type;
    int64_t batch_stride, head_stride, token_stride;
} rapt_layout;

/* The two usual dense layouts: [batch, head, token, channel] and [batch, token, head, channel]. Sizes that overflow give a
 * negative stride, which rapt_plan_init refuses. */
RAPT_API rapt_layout rapt_layout_bhsd(rapt_type type, int64_t heads, int64_t tokens, int64_t channels);
RAPT_API rapt_layout rapt_layout_bshd(rapt_type type, int64_t heads, int64_t tokens, int64_t channels);

/* ---- The problem ----------------------------------------------------------------------------------------------------- */

/* Which keys a causal row sees. Query i of q_len stands at key position i + a. */
typedef enum rapt_causal {
    RAPT_CAUSAL_NONE = 0,
    RAPT_CAUSAL_BOTTOM_RIGHT =
        1,                   /* a = key length - q_len: the last query sees the last key (FlashAttention, ONNX, FlashInfer) */
    RAPT_CAUSAL_TOP_LEFT = 2 /* a = 0: the first query sees the first key (PyTorch's is_causal) */
} rapt_causal;

#define RAPT_MAX_HEAD_DIM 1024
#define RAPT_MAX_LENGTH   INT32_MAX

/* Set every field with rapt_desc_init before filling in your own. */
typedef struct rapt_desc {
    size_t size;   /* sizeof(rapt_desc) of the caller's header; a larger struct is refused if its unknown tail is not zero */
    int64_t batch; /* 0..RAPT_MAX_LENGTH */
    int64_t heads; /* query heads, 1..RAPT_MAX_LENGTH, a multiple of kv_heads */
    int64_t
        kv_heads;    /* key/value heads: = heads for MHA, 1 for MQA, between for GQA; query head h reads h / (heads / kv_heads) */
    int64_t q_len;   /* query tokens per batch entry, 0..RAPT_MAX_LENGTH */
    int64_t kv_len;  /* key tokens per batch entry, 0..RAPT_MAX_LENGTH; the capacity, when rapt_args gives lengths */
    int64_t d_k;     /* channels of Q and K, 1..RAPT_MAX_HEAD_DIM */
    int64_t d_v;     /* channels of V and O, 1..RAPT_MAX_HEAD_DIM */
    rapt_layout q;   /* [batch, heads, q_len, d_k] */
    rapt_layout k;   /* [batch, kv_heads, kv_len, d_k] */
    rapt_layout v;   /* [batch, kv_heads, kv_len, d_v] */
    rapt_layout o;   /* [batch, heads, q_len, d_v], rounded once, to nearest even, from f32 */
    rapt_layout lse; /* [batch, heads, q_len], f32: natural log of the sum of exp(logit); -inf for a row without keys.
                        type 0 (the default): none wanted. token_stride is the distance of two queries */
    float scale;     /* factor of the scores, finite; 0 (the default) stands for 1/sqrt(d_k) */
    rapt_causal causal;   /* key j is attended by query i only if j <= i + a */
    int64_t window_left;  /* ... and only if j >= i + a - window_left;  -1 (the default): unlimited */
    int64_t window_right; /* ... and only if j <= i + a + window_right; -1 (the default): unlimited.
                           a is that of causal, and that of RAPT_CAUSAL_BOTTOM_RIGHT where causal is RAPT_CAUSAL_NONE */
    int64_t threads;      /* how many threads you expect to share a call, 1..RAPT_MAX_LENGTH (default 1): how finely the work is
                             cut, and whether keys are split too. It changes neither the bits nor how many threads may run */
    const char *isa;      /* a kernel's name to use for this plan, or null (the default) for the process-wide choice */
} rapt_desc;

/* Sets the defaults above, and all sizes and layouts to 0. */
#define rapt_desc_init(desc) rapt_desc_init_sized((desc), sizeof *(desc))
RAPT_API void rapt_desc_init_sized(rapt_desc *desc, size_t size);

/* ---- The plan -------------------------------------------------------------------------------------------------------- */

/* Plain memory of the caller's: copy it, keep it, throw it away. The contents are the library's, of this version. */
typedef struct rapt_plan {
    uint64_t opaque[64];
} rapt_plan;

/* Validates the problem and chooses kernel, path and tasks. Errors: NULL, STRUCT, SHAPE, HEADS, TYPE, STRIDE, SCALE, MASK,
 * ISA_UNKNOWN, ISA_MISSING, RANGE (threads). */
RAPT_API rapt_status rapt_plan_init(rapt_plan *plan, const rapt_desc *desc);

typedef struct rapt_plan_info {
    size_t size;          /* in: sizeof(rapt_plan_info) of the caller's header */
    const char *isa;      /* the kernel: "avx512", "avx2", "sse41", "neon", "scalar", "scalar_fma" */
    const char *rounding; /* its rounding class, "fused" or "unfused": kernels of one class give the same bits */
    const char *path;     /* "queries-in-lanes" (many rows for each key/value head) or "keys-in-lanes" (few) */
    int phases;           /* 1, or 2 when keys are split: all tasks of phase 0 come before any task of phase 1 */
    int64_t tasks[2];     /* tasks of each phase; tasks of one phase are independent of each other */
    size_t shared_bytes;  /* workspace that all threads share ... */
    size_t thread_bytes;  /* ... and that each thread needs besides */
} rapt_plan_info;

/* Errors: NULL, STRUCT, PLAN. */
RAPT_API rapt_status rapt_plan_query(const rapt_plan *plan, rapt_plan_info *info);

#define RAPT_WORKSPACE_ALIGNMENT 64

/* The bytes of workspace for a call that nth threads share (1 for rapt_run): shared_bytes + nth * thread_bytes. Its contents
 * need not be kept between calls. Errors: NULL, PLAN, RANGE (nth < 1), SHAPE (overflow). */
RAPT_API rapt_status rapt_workspace_size(const rapt_plan *plan, int64_t nth, size_t *bytes);

/* ---- Running --------------------------------------------------------------------------------------------------------- */

typedef struct rapt_args {
    size_t size;           /* sizeof(rapt_args) of the caller's header, as in rapt_desc */
    const void *q, *k, *v; /* null only where the tensor has no element */
    void *o;
    float *lse;                /* required when the plan has an lse layout, otherwise ignored */
    const int32_t *kv_lengths; /* [batch], each 0..kv_len: the keys that exist for each batch entry; null: kv_len for all.
                                  Keys and values beyond the length are never read */
    void *workspace;           /* aligned to RAPT_WORKSPACE_ALIGNMENT; private to the call until it is done */
    size_t workspace_bytes;
} rapt_args;

#define rapt_args_init(args) rapt_args_init_sized((args), sizeof *(args))
RAPT_API void rapt_args_init_sized(rapt_args *args, size_t size);

/* All four ways give the same bits. Errors of each: NULL, STRUCT, PLAN, KV_LENGTH, OVERLAP (byte ranges from a tensor's first
 * to its last byte must not meet), STRIDE (a tensor would wrap around the address space), WORKSPACE, ALIGNMENT, and RANGE where
 * numbers are given. What is attended reaches the row: a NaN in an attended key makes the row NaN, one in an attended value
 * makes that channel NaN. What is masked never does. A key of score -inf has weight 0; a row without attended keys, or whose
 * scores are all -inf, gives o = 0 (unless an attended value is not finite) and lse = -inf. */

/* 1. On the calling thread. */
RAPT_API rapt_status rapt_run(const rapt_plan *plan, const rapt_args *args);

/* 2. On the caller's parallel_for, which calls body(body_arg, i) for every i in 0..n-1, in any order, on any threads, and
 * returns when all are done. It may run them one after the other. It is called once per phase with n = nth, and tasks are
 * handed out as threads become free. */
typedef void (*rapt_body)(void *body_arg, int64_t i);
typedef void (*rapt_parallel_for)(void *pool, int64_t n, rapt_body body, void *body_arg);
RAPT_API rapt_status rapt_run_parallel(const rapt_plan *plan, const rapt_args *args, int64_t nth, rapt_parallel_for parallel_for,
                                       void *pool);

/* 3. As thread ith of nth, all of which make this call with the same plan and args. barrier(barrier_arg) returns when all nth
 * have called it; it is called once between two phases, and never when the plan has one. When it returns, this thread's part is
 * done; the caller waits for the others. An error is returned to all of them, before any calls the barrier. */
typedef void (*rapt_barrier)(void *barrier_arg);
RAPT_API rapt_status rapt_run_share(const rapt_plan *plan, const rapt_args *args, int64_t ith, int64_t nth, rapt_barrier barrier,
                                    void *barrier_arg);

/* The same for one phase, when waiting between the phases is the caller's business. */
RAPT_API rapt_status rapt_run_phase(const rapt_plan *plan, const rapt_args *args, int phase, int64_t ith, int64_t nth);

/* 4. One task. Tasks running at the same time need different slots, 0..nth-1, of a workspace made for nth threads. Only what
 * the task itself uses is validated, so kv_lengths of other batch entries are not. */
RAPT_API rapt_status rapt_run_task(const rapt_plan *plan, const rapt_args *args, int phase, int64_t task, int64_t slot);

/* ---- Instruction sets ------------------------------------------------------------------------------------------------ */

/* The kernels built for this architecture, best first: index 0..n-1. Null beyond. */
RAPT_API const char *rapt_isa_name(int index);

/* RAPT_OK if the kernel of that name can run here, else ISA_UNKNOWN or ISA_MISSING. missing, unless null, receives the names
 * of the CPU features that are lacking ("" if none), cut to missing_bytes with its terminator. */
RAPT_API rapt_status rapt_isa_usable(const char *name, char *missing, size_t missing_bytes);

/* "fused" or "unfused" for a kernel of that name, else null. */
RAPT_API const char *rapt_isa_rounding(const char *name);

/* Makes a kernel the process-wide choice for plans made from now on (null: back to the environment variable RAPT_ISA, or if that
 * is not set the best one that can run here). Errors: ISA_UNKNOWN, ISA_MISSING. */
RAPT_API rapt_status rapt_isa_force(const char *name);

/* The process-wide choice. If RAPT_ISA names a kernel that is unknown or cannot run, plans fail with that error, and name is
 * null. */
RAPT_API rapt_status rapt_isa_current(const char **name);

/* The CPU features found, space-separated, cut to bytes with its terminator. Errors: NULL. */
RAPT_API rapt_status rapt_cpu_features(char *names, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
