/* SPDX-License-Identifier: Apache-2.0 */
/* rapt: fused flash-style attention for CPUs. This header is the whole API of attention, and its comments are the
 * contract; rapt_layer.h is that of what stands around it.
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
 * Calls by task (docs/quick-reference.md has all of them, each in a line):
 *
 *     describe attention     rapt_desc_init, rapt_layout_bhsd, rapt_layout_bshd, rapt_plan_init, rapt_workspace_size
 *     run it                 rapt_args_init, rapt_run
 *     on your threads        rapt_run_parallel, rapt_run_share, rapt_run_phase, rapt_run_task
 *     without threads        rapt_pool_create, rapt_pool_for (rapt_pool.h)
 *     write a cache          rapt_kv_append_run
 *     copy tokens            rapt_kv_copy_run
 *     rotate queries         rapt_rope_frequencies, rapt_rope_run
 *     a decoder's step       rapt_decode_plan_init, rapt_decode_run: rotates, appends and attends
 *     merge parts            rapt_merge_states_run, with the same bits; rapt_merge, by log-sum-exp
 *     why it was refused     rapt_plan_explain, rapt_args_explain, their like in each family, rapt_trace_to
 *     types                  rapt_type_name, rapt_type_of_name, rapt_type_class_of, rapt_row_bytes
 *     kernels                rapt_isa_name, rapt_isa_usable, rapt_isa_force, rapt_isa_current, rapt_plan_query, rapt_self_check
 *     tuning                 rapt_tuning_parse, rapt_tuning_query, rapt_tuning_print
 *     around attention       rapt_linear_run, rapt_layer_norm_run, rapt_rms_norm_run, rapt_mha_run (rapt_layer.h)
 *
 * How comments say it: shapes are written outermost dimension first, as [batch, heads, tokens, channels]; a..b goes from a to b,
 * both included; errors are named without their prefix RAPT_ERR_; strides and sizes of memory are in bytes.
 *
 * The families of calls go alike, each with a prefix of its own: rapt_ (attention), rapt_kv_append_, rapt_kv_copy_, rapt_rope_,
 * rapt_decode_ and rapt_merge_states_ here, rapt_linear_, rapt_layer_norm_, rapt_rms_norm_ and rapt_mha_ in rapt_layer.h. Those
 * whose checks cost more than a small call have plans (attention, decode, linear, mha). Each has these ways to run, which give
 * the same bits and the same errors:
 *
 * - X_run does all the work on the calling thread.
 * - X_run_parallel has it done by the caller's parallel_for, in nth slots. Errors besides: RANGE (nth < 1), NULL (parallel_for).
 * - X_run_share does the share of thread ith of nth, which all make this call. Where the work has phases, the threads wait for
 *   each other between them by a barrier of the caller's; where the call takes no barrier, they need not wait. Errors besides:
 *   RANGE (ith, nth), NULL (barrier).
 * - X_run_phase, where there are phases, does this share of one of them; waiting between phases is the caller's business. Errors
 *   besides: RANGE (phase, ith, nth).
 * - X_explain tells what the family's first function would return, and why: X_plan_init, or X_run where there are no plans.
 *   X_args_explain tells it of X_run where there are plans. (Those of attention are rapt_plan_explain and rapt_args_explain.)
 *
 * The library allocates nothing, takes at most RAPT_STACK_BYTES of the calling thread's stack (but for rapt_self_check, which
 * says what it takes), starts no thread, takes no lock, and writes four globals only, all of them atomic: the CPU's features and
 * the size of its L2 cache, the kernel chosen, and where traces go (rapt_trace_to). Every function may be called from any thread;
 * a plan is never written after rapt_plan_init. Every function that returns a status checks its arguments first: when the status
 * is not RAPT_OK, nothing was written.
 *
 * Floating-point modes: every thread that computes is assumed to have the default ones (round to nearest, no flush to zero, no
 * traps), and their control bits are never written. What others do to bits is in docs/numerics.md. A debug build, or one with
 * RAPT_CHECK_FP (Meson's and CMake's option, a macro for rapt.c), looks: on a thread that has others, what computes is refused
 * with FLOAT_MODE. That is the making of plans of attention, which have a scale, and whatever writes numbers: all ways to run but
 * those of rapt_kv_copy_, rapt_merge, and in rapt_layer.h quantisation and tables of positions. Of threads that share a call,
 * each is looked at: one that is refused leaves its share undone (and meets the others at the barriers), while they write theirs.
 * X_run_parallel returns FLOAT_MODE if a thread of parallel_for was refused.
 *
 * Why something was refused, the *_explain functions tell: they take what the refusing function took, and give one line that
 * names the field and its value, such as "k.token_stride = -4: strides are not negative". The line is of printable ASCII: of a
 * caller's string, such as a kernel's name, other bytes become a backslash, an x, and two hexadecimal digits.
 *
 * Structs that begin with size are made by their *_init function (a macro, which passes the struct's size to *_init_sized), and
 * may grow at their end from version to version. A client compiled against an older header works with this library, from 0.1 on
 * and with the names of 0.3 (tools/migrate): what its structs lack has the default. One compiled against a newer header works as
 * long as what this library does not know is zero. (Until 1.0 the soname carries the minor version, so either has to be linked
 * anew.)
 *
 * Memory: tensors, which have a layout, may lie at any address, not even aligned to their elements. Arrays that have none
 * (kv_lengths, starts, frequencies, bias of a linear layer, ...) are aligned as their C type; others are refused with ALIGNMENT.
 * What a call writes must not meet, by byte ranges from a tensor's first to its last byte, anything else that it reads or
 * writes, its plan included; else it is refused with OVERLAP. (Structs of descriptions and arguments are copied before anything
 * is written.) The few exceptions, where an output may be an input's very memory, are named where they are. */
#ifndef RAPT_H
#define RAPT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* These three numbers are the version of this header; rapt_version() tells that of the library. */
#define RAPT_VERSION_MAJOR 0
#define RAPT_VERSION_MINOR 4
#define RAPT_VERSION_PATCH 0

/* RAPT_API marks the functions that the library exports. Who compiles its sources into a library of their own may define it, as
 * nothing where that one shall not export them. On Windows it is nothing: the DLL has a list of them, and a program needs no more
 * than its import library, or the static one. */
#if !defined(RAPT_API)
#if defined(_WIN32)
#define RAPT_API
#else
#define RAPT_API __attribute__((visibility("default")))
#endif
#endif

/* ---- Status ---------------------------------------------------------------------------------------------------------- */

/* What a call returns: RAPT_OK, or why it did nothing. */
typedef enum rapt_status {
    RAPT_OK = 0,              /* The call has done what it was asked. */
    RAPT_ERR_NULL = -1,       /* A required pointer is null. */
    RAPT_ERR_STRUCT = -2,     /* A struct did not pass through its init function, is smaller than any version's, or is newer than
                                 the library and uses a field unknown to it; or memory for a plan is too small. */
    RAPT_ERR_SHAPE = -3,      /* A size is negative, zero where it may not be, or above its limit, or the workspace for it would
                                 exceed the address space. */
    RAPT_ERR_HEADS = -4,      /* heads is not a multiple of kv_heads. */
    RAPT_ERR_TYPE = -5,       /* A tensor's type is unknown, not allowed for that tensor, or of groups that do not divide its
                                 channels. */
    RAPT_ERR_STRIDE = -6,     /* A stride that is used is negative, a tensor exceeds the address space, two elements of an output
                                 overlap, or scales have both a token_stride and a channel_stride. */
    RAPT_ERR_SCALE = -7,      /* scale is infinite. */
    RAPT_ERR_MASK = -8,       /* causal is not a rapt_causal, a window side is below -1, or a mask or bias has too few columns. */
    RAPT_ERR_KV_LENGTH = -9,  /* A key length is negative or above kv_total, or a cache has no room for a new token. */
    RAPT_ERR_OVERLAP = -10,   /* An output or the workspace overlaps something else. */
    RAPT_ERR_WORKSPACE = -11, /* The workspace is null or too small. */
    RAPT_ERR_ALIGNMENT = -12, /* The workspace is not aligned to RAPT_WORKSPACE_ALIGNMENT, or an array, or memory for a plan, is
                                 not aligned to its elements. */
    RAPT_ERR_ISA_UNKNOWN = -13, /* No kernel of that name was built for this architecture. */
    RAPT_ERR_ISA_MISSING = -14, /* A kernel of that name exists, but this CPU or its operating system cannot run it. */
    RAPT_ERR_RANGE = -15,       /* A phase, a task, a thread's number, or a number of threads or sources is out of range. */
    RAPT_ERR_PLAN = -16,        /* The plan was not made by its init function, or, for merging, not with unmerged set. */
    RAPT_ERR_TABLE = -17,       /* A page, a start, a position or a length of a ragged, paged or ring batch is out of range. */
    RAPT_ERR_FEATURE = -18, /* A feature's number is out of range, it lacks what it needs, or two features exclude each other. */
    RAPT_ERR_ARITH = -19,   /* arith is not a rapt_arith, or the types of K and V do not allow it. */
    RAPT_ERR_UNUSED = -20,  /* A pointer is given for which the plan has no use: what it is for was not described. */
    RAPT_ERR_SELF_CHECK = -21, /* A kernel's bits are not those of docs/order.md: the library was not compiled as it must be. */
    RAPT_ERR_TUNING = -22,     /* A rapt_tuning is for another kernel, one of its numbers is out of range, or its line of text is
                                  wrong or has no room. */
    RAPT_ERR_PREPACKED = -23,  /* Memory for prepacked weights is too small, or holds none of this layer and its kernel. */
    RAPT_ERR_FLOAT_MODE = -24  /* A thread that is to compute does not round to nearest, flushes denormal numbers to 0, or traps,
                                  and the library was built to refuse that. */
} rapt_status;

/* Returns a line of English for a status; it is never null, also for a number that is no status. */
RAPT_API const char *rapt_status_string(rapt_status status);

/* Returns "major.minor.patch" of the library that is linked, which need not be the version of this header. */
RAPT_API const char *rapt_version(void);

/* ---- Tensors --------------------------------------------------------------------------------------------------------- */

/* What the elements of a tensor are. Numbers keep their meaning from version to version: 1 to 16 are the types of version 0.1; of
 * later ones, 17 to 31 are of any tensor, 32 to 47 of K and V, and 48 to 63 of masks and tables.
 *
 * Of types for K and V, some have an element of a byte, and some have groups of 32 channels, so that d_k or d_v must be a
 * multiple of 32. A group begins with what all its channels share: s, or s and m, numbers of f16 (little-endian), or
 * e, a byte. Then come its 32 numbers n, of which each stands for the value in the formula below. Groups have the same bytes on
 * every machine; elements of more than a byte are in the machine's own order. */
typedef enum rapt_type {
    RAPT_NONE = 0,    /* There is no such tensor, which is the default where one need not be there. */
    RAPT_F32 = 1,     /* An element is an IEEE 754 binary32. */
    RAPT_F16 = 2,     /* An element is an IEEE 754 binary16. */
    RAPT_BF16 = 3,    /* An element is the upper half of a binary32. */
    RAPT_F8_E4M3 = 4, /* K, V: a byte of 4 exponent and 3 fraction bits, largest 448 (Micikevicius and others 2022, section 3). */
    RAPT_F8_E5M2 = 5, /* K, V: a byte, the upper half of a binary16 (ibid.). */
    RAPT_INT8 = 6,    /* K, V, weights: a byte, -128..127, which counts as it is unless there are scales. */
    RAPT_INT4 = 7,    /* K, V: 18 bytes: s, then channels 2i and 2i + 1 in the low and the high half of byte i; s * (n - 8). */
    RAPT_INT4_MIN = 8,   /* K, V: 20 bytes: s, m, then 16 bytes as RAPT_INT4; s * n + m. */
    RAPT_Q8_0 = 9,       /* K, V, weights: ggml's block_q8_0, 34 bytes: s, then 32 int8; s * n. */
    RAPT_Q4_0 = 10,      /* K, V, weights: ggml's block_q4_0, 18 bytes: s, channels i and i + 16 in byte i; s * (n - 8). */
    RAPT_Q4_1 = 11,      /* K, V: ggml's block_q4_1, 20 bytes: s, m, then 16 bytes as RAPT_Q4_0; s * n + m. */
    RAPT_Q5_0 = 12,      /* K, V: ggml's block_q5_0, 22 bytes: s, 32 fifth bits, 16 bytes as RAPT_Q4_0; s * (n - 16). */
    RAPT_Q5_1 = 13,      /* K, V: ggml's block_q5_1, 24 bytes: s, m, 32 fifth bits, 16 bytes as RAPT_Q4_0; s * n + m. */
    RAPT_BOOL = 14,      /* Masks: a byte, and the key is attended unless it is 0. */
    RAPT_BIT = 15,       /* Masks: a bit, the first key in a byte's lowest, and the key is attended if it is 1. */
    RAPT_I32 = 16,       /* Tables: an integer of 32 bits. */
    RAPT_MXFP4 = 32,     /* K, V: ggml's block_mxfp4 (OCP MX), 17 bytes: e, then n of E2M1 as RAPT_Q4_0; 2^(e - 127) * n. */
    RAPT_MXFP8_E4M3 = 33 /* K, V: OCP MX, 33 bytes: e, then n, each a RAPT_F8_E4M3; 2^(e - 127) * n. */
} rapt_type;

/* The numbers of all types, also of later versions, are below this: a loop over them finds those that there are. */
#define RAPT_TYPE_LIMIT 64

/* Which tensors may have a type. */
typedef enum rapt_type_class {
    RAPT_CLASS_NONE = 0,    /* No tensor may: the number is no type, or RAPT_NONE. */
    RAPT_CLASS_ELEMENT = 1, /* Any tensor of numbers may have such a type. */
    RAPT_CLASS_WEIGHT = 2,  /* K, V and the weights of linear layers may. */
    RAPT_CLASS_CACHE = 3,   /* Only K and V may. */
    RAPT_CLASS_MASK = 4     /* Only masks, block masks and tables may, as rapt_desc says of each. */
} rapt_type_class;

/* Returns the class of a type, or RAPT_CLASS_NONE for a number that is no type. */
RAPT_API rapt_type_class rapt_type_class_of(rapt_type type);

/* Returns the name of a type, as command lines and files may have it: its enumerator's in lower case, without RAPT_ ("f32",
 * "q4_0", "none"). For a number that is no type, that is null. */
RAPT_API const char *rapt_type_name(rapt_type type);

/* Returns the type that has exactly that name, as rapt_type_name gives it, or RAPT_NONE if there is none or name is null. */
RAPT_API rapt_type rapt_type_of_name(const char *name);

/* Returns the bytes of one token's channels in a type of Q, K, V or O, or -1 for other types, and where the type's groups do not
 * divide the channels. */
RAPT_API int64_t rapt_row_bytes(rapt_type type, int64_t channels);

/* How a tensor [batch, head, token, channel] lies in memory. Channels are contiguous. Any address will do: not even the alignment
 * of an element is required. Strides are in bytes and not negative. On inputs they may be 0 (broadcast) or make elements share
 * memory; on outputs no two elements may share memory: when the dimensions longer than 1 are sorted by stride, each stride must
 * be at least the bytes spanned by the dimensions before it. The stride of a dimension of length 0 or 1, and one that is said not
 * to be used, may be any number; so may all of them where the tensor has no element. */
typedef struct rapt_layout {
    rapt_type type;       /* What an element is, or RAPT_NONE where there is no such tensor. */
    int64_t batch_stride; /* Bytes from an entry to the next. */
    int64_t head_stride;  /* Bytes from a head to the next. */
    int64_t token_stride; /* Bytes from a token to the next. */
} rapt_layout;

/* Returns the layout of a dense tensor [batch, head, token, channel]; a pool of pages is one of page_size tokens. Sizes that
 * overflow give a negative stride, which rapt_plan_init refuses. */
RAPT_API rapt_layout rapt_layout_bhsd(rapt_type type, int64_t heads, int64_t tokens, int64_t channels);

/* Returns the layout of a dense tensor [batch, token, head, channel]. Rows of rapt_layer.h are such a one with a single head,
 * (type, 1, tokens, channels), and weights (type, 1, out, in). Sizes that overflow give a negative stride, as above. */
RAPT_API rapt_layout rapt_layout_bshd(rapt_type type, int64_t heads, int64_t tokens, int64_t channels);

/* ---- The problem ----------------------------------------------------------------------------------------------------- */

/* Whether a causal mask hides the keys behind a query, and where the queries stand among the keys unless rapt_args.q_offsets says
 * it. Key j of a batch entry, j being its number, counted from 0 through rings, pages and gathered lists, stands at position j +
 * k_offset, query i at position i + q_offset. rapt_args.k_offsets and q_offsets give both for each entry. Without k_offsets,
 * k_offset is 0. Without q_offsets, q_offset is k_offset + a, where a is what rapt_causal says. Masks, windows, local chunks,
 * prefixes, ALiBi, and the columns of masks and biases go by positions; blocks and chunks of the order of operations, lengths,
 * page tables, block masks and states go by the keys' numbers j.
 *
 * ONNX's Attention puts query 0 behind the keys of the past: q_offset = past length, or nonpad_kv_seqlen - q_len where that is
 * given, else 0. Only where all keys are past or new ones is this the same as RAPT_CAUSAL_BOTTOM_RIGHT. */
typedef enum rapt_causal {
    RAPT_CAUSAL_NONE = 0,         /* There is no causal mask; a = key length - q_len, for windows, ALiBi and local chunks. */
    RAPT_CAUSAL_BOTTOM_RIGHT = 1, /* a = key length - q_len: the last query sees the last key (FlashAttention, FlashInfer). */
    RAPT_CAUSAL_TOP_LEFT = 2      /* a = 0: the first query sees the first key only (PyTorch's is_causal). */
} rapt_causal;

/* Which bias by distance is added to the logits: attention with linear biases. (Press et al. 2022, ALiBi, section 3.) */
typedef enum rapt_alibi {
    RAPT_ALIBI_NONE = 0,     /* There is none. */
    RAPT_ALIBI_DISTANCE = 1, /* Logits become logit - slope * |position of the query - position of the key| (FlashAttention). */
    RAPT_ALIBI_BIAS = 2      /* Logits become logit + slope * bias[i, j] (ggml, whose mask holds the distances). */
} rapt_alibi;

/* How the products Q K^T and P V are computed. */
typedef enum rapt_arith {
    RAPT_EXACT = 0,    /* Products are sums of f32, to which K and V of any type are converted first. */
    RAPT_INT8_DOT = 1, /* Products are sums of integers: each row of Q and each block of P are quantised to 8 bits. K and V are of
                          RAPT_INT8, or since 0.4 of RAPT_INT4, RAPT_Q8_0, RAPT_Q4_0 or RAPT_Q5_0, whose scales are applied to the
                          sums of a group of K, and to the weights before they are quantised for a group of V. */
    RAPT_BF16_DOT = 2  /* Q, K, V and the weights of the softmax are rounded to bf16, for K and V of any type, and their products
                          are summed in f32, as matrix units do. */
} rapt_arith;

/* What holds for keys at positions beyond the last column of a mask or bias. */
typedef enum rapt_rest {
    RAPT_REST_REFUSED = 0, /* A call with such keys is refused with MASK. */
    RAPT_REST_MASKED = 1,  /* Such keys are masked. */
    RAPT_REST_ATTENDED = 2 /* Such keys are attended, and their bias is 0. */
} rapt_rest;

/* What rapt_args.scores receives: for debugging and teaching, since it takes memory of queries x keys, and computes all scores a
 * second time. (ONNX's qk_matmul_output_mode 0 is RAW, 3 is WEIGHTS. Of 1 and 2 one is after softcap and one after the mask, in
 * an order that has changed between its versions: here softcap comes first, CAPPED, then the mask, LOGITS.) */
typedef enum rapt_scores_stage {
    RAPT_SCORES_NONE = 0,   /* Nothing is written to scores. */
    RAPT_SCORES_RAW = 1,    /* scores receives scale * <q, k>, of all keys that exist, masked or not. */
    RAPT_SCORES_CAPPED = 2, /* scores receives scale * <q, k> after softcap. */
    RAPT_SCORES_LOGITS = 3, /* scores receives logits: after softcap, ALiBi, bias and logits_body, -inf for masked keys. */
    RAPT_SCORES_WEIGHTS = 4 /* scores receives the softmax of the logits, 0 for masked keys; a sink takes its share. */
} rapt_scores_stage;

/* What a callback gets: the logits of some rows for some adjacent keys, after scale, softcap, ALiBi and bias, before masks. That
 * of row r and key number first_key + n is logits[r * row_stride + n * key_stride]. */
typedef struct rapt_logits {
    float *logits;         /* The logits, to be read and changed. */
    int64_t row_stride;    /* Floats, where all other strides are bytes, from a row to the next. */
    int64_t key_stride;    /* Floats from a key to the next. */
    int rows, keys;        /* How many rows, and how many keys, there are. */
    int64_t batch;         /* The number of the batch entry, from 0 on. */
    int64_t first_key;     /* The number of the first key. */
    const int32_t *heads;  /* [rows]: the query head of each row. */
    const int32_t *tokens; /* [rows]: which query of the entry each row is, from 0 on. */
} rapt_logits;

/* A callback of the caller's that may change logits, and may run other plans itself; arg is rapt_args.logits_arg. */
typedef void (*rapt_logits_body)(void *arg, const rapt_logits *logits);

/* Scales of K or V: element [b, h, token, channel] counts times the f32 at scales + b * batch_stride + h * head_stride +
 * token * token_stride + channel * channel_stride. At least one of the last two strides is 0. Scales with a token_stride are of
 * tokens: they multiply the scores (K) or the weights (V), and lie as the tokens do, so that in pages batch_stride is the
 * distance of two pages, and where keys are ragged it is not used. Scales without one are of channels, or with both 0 of whole
 * heads: they multiply the query (K) or the output (V), and b is the entry, with pages and ragged keys, too. Where a cache is
 * written, scales with a token_stride are found and written, and those without must be there already. */
typedef struct rapt_scales {
    int present;            /* Not 0: there are scales. The default is 0. */
    int64_t batch_stride;   /* Bytes, 0 or more, from an entry, or a page, to the next. */
    int64_t head_stride;    /* Bytes, 0 or more, from a head to the next. */
    int64_t token_stride;   /* Bytes, 0 or more, from a token to the next; 0: they are not of tokens. */
    int64_t channel_stride; /* Bytes, 0 or more, from a channel to the next; 0: they are not of channels. */
} rapt_scales;

/* A head has at most this many channels: d_k and d_v are not above it. */
#define RAPT_MAX_HEAD_DIM 1024

/* Numbers of tokens, heads, entries and pages are not above this. */
#define RAPT_MAX_LENGTH INT32_MAX

/* A chunk of the order of operations (docs/order.md), the grain of splitting and merging, has this many keys. */
#define RAPT_CHUNK_KEYS 512

struct rapt_tuning; /* Numbers by which work is cut, at the end of this header. */

/* What a call of attention computes: the shape of the problem, how its tensors lie in memory, and what modifies the scores. Call
 * rapt_desc_init first, then set heads, kv_heads, q_len, kv_len, d_k, d_v, q, k, v and o; every other field has a default, with
 * which its feature is absent. A key is attended if all masks say so: causal, windows, prefix, local_chunk, mask and block_mask.
 * The fields are grouped; those that 0.2 added to a group stand at the end, for the struct only grows there. */
typedef struct rapt_desc {
    /* The bytes of the caller's struct, and a mark that it was initialised: set by rapt_desc_init, never by hand. */
    size_t size;

    /* ---- Shape. */

    int64_t batch;    /* Batch entries, 0..RAPT_MAX_LENGTH. The default is 1. */
    int64_t heads;    /* Query heads, 1..RAPT_MAX_LENGTH, a multiple of kv_heads. */
    int64_t kv_heads; /* Key/value heads, 1..heads: heads for MHA, 1 for MQA. Query head h reads head h / (heads / kv_heads). */
    int64_t q_len;    /* Query tokens of each entry, 0..RAPT_MAX_LENGTH. */
    int64_t kv_len;   /* Key tokens of each entry, 0..RAPT_MAX_LENGTH; where rapt_args gives lengths, the capacity. */
    int64_t d_k;      /* Channels of a row of Q and K, 1..RAPT_MAX_HEAD_DIM. */
    int64_t d_v;      /* Channels of a row of V and O, 1..RAPT_MAX_HEAD_DIM. */

    /* ---- Layouts. */

    rapt_layout q; /* [batch, heads, q_len, d_k] of RAPT_F32, RAPT_F16 or RAPT_BF16. */
    rapt_layout k; /* [batch, kv_heads, kv_len, d_k] of any type but those of masks. */
    rapt_layout v; /* [batch, kv_heads, kv_len, d_v] of any type but those of masks; it need not be K's. */
    rapt_layout o; /* [batch, heads, q_len, d_v] of RAPT_F32, RAPT_F16 or RAPT_BF16, rounded once from f32, to nearest even. */

    /* [batch, heads, q_len] of RAPT_F32: the natural logarithm of a row's sum of exp(logit), -inf for a row without keys.
     * token_stride is the distance of two queries. RAPT_NONE, the default: it is not wanted. */
    rapt_layout lse;

    /* ---- Softmax scale. */

    /* The softmax scale, by which scores are multiplied: finite; 0 gives the mean of the attended values. NaN, the default,
     * stands for 1 / sqrt(d_k). */
    float scale;

    /* ---- Masks. */

    /* Whether a key is attended only by queries at its position (see rapt_causal) or behind it. The default is RAPT_CAUSAL_NONE;
     * a decoder wants RAPT_CAUSAL_BOTTOM_RIGHT. */
    rapt_causal causal;

    int64_t window_left;  /* How many positions a key may lie before the query. -1, the default: any number. */
    int64_t window_right; /* How many positions a key may lie behind the query, if causal lets it. -1, the default: any number. */

    /* Keys at positions below it are attended even where causal and window_right say no (prefix-LM); 0, the default, for none.
     * rapt_args.prefixes gives one for each entry. */
    int64_t prefix;

    /* Above 0, a query attends only to keys whose position divided by local_chunk, rounded down, is that of its own position. 0,
     * the default: to all. */
    int64_t local_chunk;

    /* [batch, heads, q_len] rows of mask_keys elements, RAPT_BOOL or RAPT_BIT: which keys are attended. Strides of 0 broadcast,
     * and token_stride is the distance of two queries, here and below. Where queries are ragged, each entry's rows begin anew,
     * and q_len is that of the longest. RAPT_NONE, the default: there is no mask. */
    rapt_layout mask;

    /* A block-sparse mask, [batch, heads, q_len / block_mask_queries, rounded up] rows of kv_total / block_mask_keys elements,
     * rounded up, RAPT_BOOL: which blocks are attended at all, by the keys' numbers. Of ragged queries and keys, q_len and
     * kv_total are those of the longest entry. RAPT_NONE, the default: there is none. */
    rapt_layout block_mask;
    int64_t block_mask_queries; /* Queries of a block, 1 or more. Not used without block_mask. */
    int64_t block_mask_keys;    /* Keys of a block, a multiple of 64. Not used without block_mask. */

    /* ---- Logits. */

    /* [batch, heads, q_len] rows of bias_keys elements, RAPT_F32, RAPT_F16 or RAPT_BF16, which are added to the logits. -inf
     * masks the key; the least finite number does not, but is added like any other. RAPT_NONE, the default: there is no bias. */
    rapt_layout bias;

    /* Above 0, logits become softcap * tanh(logit / softcap), before ALiBi, bias and masks. 0, the default: they stay. */
    float softcap;

    rapt_alibi alibi; /* Whose bias by distance is added, if any. The default is RAPT_ALIBI_NONE. */

    /* [batch, heads] of RAPT_F32, RAPT_F16 or RAPT_BF16: the slopes of alibi. token_stride is not used. RAPT_NONE, the default,
     * without alibi. */
    rapt_layout slopes;

    /* [batch, heads] of the same types: a logit that joins each row's denominator, and its lse, with no value. token_stride is
     * not used. RAPT_NONE, the default: there are none. */
    rapt_layout sinks;

    /* Called for every tile of rows and block of keys, which is slow, for research. Null, the default: nothing is called. */
    rapt_logits_body logits_body;

    /* ---- Storage of K and V. */

    rapt_scales k_scales; /* Scales of K; the default is none. */
    rapt_scales v_scales; /* Scales of V; the default is none. */
    rapt_arith arith;     /* How products with K and V are computed. The default is RAPT_EXACT. */

    /* ---- Ragged batches. */

    /* [batch + 1], ascending: entry b has the queries from q_starts[b] to q_starts[b + 1] - 1 of a Q, O and lse without batch
     * dimension, whose q_len is that of all tokens (batch_stride is not used); likewise the keys from k_starts[b] to
     * k_starts[b + 1] - 1 of K and V, whose kv_len is that of all. Tokens before the first start and from the last one on belong
     * to no entry: they are neither read nor written. Both arrays are read here and while the plan is run, so they must stay
     * where and as they are: a run that finds other numbers in them is refused with TABLE. Null, the default: not ragged. */
    const int32_t *q_starts, *k_starts;

    /* ---- Paged caches. */

    /* Keys of a page, 1..RAPT_MAX_LENGTH; 0, the default: not paged. With pages, K and V are [pages, kv_heads, page_size,
     * channels], batch_stride being the distance of two pages, and key j of entry b lies in page table[b, j / page_size]; kv_len
     * is the most keys that an entry can have. A table with its own row for each head or query, and pages of one key, gathers
     * keys: everything counts keys in the order of the table then. */
    int64_t page_size;
    int64_t pages; /* Pages of the pool, 0..RAPT_MAX_LENGTH. */

    /* The block table, [batch, kv_heads, q_len] rows of RAPT_I32, with strides as of mask. batch_stride is not used if
     * rapt_args.table_starts is given. */
    rapt_layout table;

    int trust_table; /* Not 0: page numbers are not checked before each run. The default is 0. */

    /* ---- Parts of longer sequences. */

    /* The number of the first key that is given, a multiple of RAPT_CHUNK_KEYS, where K and V are a part of a longer sequence,
     * and states are merged elsewhere (rapt_merge_states_run). Lengths (kv_total, rapt_args.kv_lengths) count from number 0. The
     * default is 0. */
    int64_t kv_first;

    int64_t kv_total; /* Keys of the whole sequence. 0, the default: kv_first + kv_len. */
    int unmerged;     /* Not 0: a state for each row and chunk is left in rapt_args.states, in place of o and lse. */

    /* [batch, heads, q_len] rows of states, RAPT_F32. o and lse are described for rapt_merge_states_run then. Not used without
     * unmerged. */
    rapt_layout states;
    int64_t state_stride; /* Bytes from a row's state to that of its next chunk. Not used without unmerged. */

    /* ---- Execution. */

    /* How many threads are expected to share a call, 1..RAPT_MAX_LENGTH: it decides how finely the work is cut, and whether keys
     * are split too, but neither the bits nor how many threads may run. The default is 1. */
    int64_t threads;

    const char *isa; /* The name of the kernel to use. Null, the default: the process-wide choice. */

    /* ---- Since 0.2: more about masks. */

    /* Columns of a row of mask, and of bias, which are positions. 0, the default, stands for kv_total (of ragged keys: that of
     * the longest entry). Not used with a key_stride of 0. */
    int64_t mask_keys, bias_keys;

    rapt_rest mask_rest, bias_rest; /* Whether keys at positions beyond these columns are attended. The default refuses them. */

    /* Elements from a column of mask, and of bias, to the next: 1, the default, or 0, where a row has one element for all keys,
     * of whatever position: mask_keys and mask_rest, bias_keys and bias_rest mean nothing then, and may be anything that is
     * valid. */
    int mask_key_stride, bias_key_stride;

    /* ---- Since 0.2: more about logits. */

    rapt_scores_stage scores_stage; /* What rapt_args.scores receives. The default is RAPT_SCORES_NONE: nothing. */

    /* [batch, heads, q_len] rows of kv_total f32 (of ragged keys: that of the longest entry), by the keys' numbers. Only columns
     * of keys that are given here, from kv_first on, are written; where such a key does not exist, with -inf, or with 0 if these
     * are weights. RAPT_SCORES_WEIGHTS is not possible with unmerged. */
    rapt_layout scores;

    /* ---- Since 0.4: more about execution. */

    const struct rapt_tuning *tuning; /* How the work is cut; it is not read again. Null, the default: by the kernel's numbers. */

    /* Not 0: that the numbers in q_starts and k_starts are still those of rapt_plan_init is not checked before each run, which
     * takes a nanosecond or two for each. The default is 0. */
    int trust_starts;
} rapt_desc;

/* Gives every field its default, or 0 where it has none; call it before you set any. A size that you forget is no error where it
 * may be 0: then nothing is written. */
#define rapt_desc_init(desc) rapt_desc_init_sized((desc), sizeof *(desc))

/* What rapt_desc_init calls with the bytes of the caller's struct. */
RAPT_API void rapt_desc_init_sized(rapt_desc *desc, size_t size);

/* ---- The plan -------------------------------------------------------------------------------------------------------- */

/* A validated problem, in plain memory of the caller's: copy it, keep it, throw it away. The contents are the library's, of this
 * version. It keeps the addresses of q_starts and k_starts, and logits_body; nothing else of the description is looked at again.
 *
 * Its memory behind the plan itself notes which tasks belong to which entry of a ragged batch, so that rapt_run_task need not go
 * through all entries. A rapt_plan has room to note some of them, from the nearest of which it goes on; memory of
 * RAPT_PLAN_BYTES(batch) has room for all, and its size is passed to rapt_plan_init_sized. */
typedef struct rapt_plan {
    uint64_t opaque[320]; /* Contents that only the library knows. */
} rapt_plan;

/* A plan of this many bytes has room for all entries of a ragged batch. */
#define RAPT_PLAN_BYTES(batch) (192 * sizeof(uint64_t) + 16 * ((size_t)(batch) + 1))

/* Validates the problem and chooses kernel, path and tasks. Errors: NULL, STRUCT, SHAPE, HEADS, TYPE, STRIDE, SCALE, MASK,
 * ISA_UNKNOWN, ISA_MISSING, RANGE (threads), TABLE (q_starts, k_starts), ALIGNMENT (these, the plan), FEATURE, ARITH, OVERLAP
 * (the plan's memory with arrays whose addresses it keeps), TUNING. As a function, for callers in other languages and clients of
 * 0.1, it takes a plan of 192 uint64_t. */
RAPT_API rapt_status rapt_plan_init(rapt_plan *plan, const rapt_desc *desc);
#define rapt_plan_init(plan, desc) rapt_plan_init_sized((plan), sizeof *(plan), (desc))

/* What rapt_plan_init calls: the plan may lie in any memory of that many bytes, aligned as uint64_t; 192 uint64_t are enough. */
RAPT_API rapt_status rapt_plan_init_sized(void *plan, size_t bytes, const rapt_desc *desc);

/* Returns what rapt_plan_init would return, and writes why to text, if that is not null: a line, cut to bytes with its
 * terminator, or "" where nothing is refused. */
RAPT_API rapt_status rapt_plan_explain(const rapt_desc *desc, char *text, size_t bytes);

/* What a plan has chosen. */
typedef struct rapt_plan_info {
    size_t size;          /* Set by the caller, to sizeof(rapt_plan_info) of its header. */
    const char *isa;      /* The kernel, one of rapt_isa_name's: "avx2", "neon", "scalar", ... */
    const char *rounding; /* Its rounding class, "fused" or "unfused": kernels of one class give the same bits. */
    const char *arith;    /* The arithmetic, "exact", "int8" or "bf16". */
    const char *path;     /* "queries-in-lanes" (many rows for each key/value head), "keys-in-lanes" (few), or "mixed" (both). */
    int phases;           /* 1, or 2 when keys are split or weights wanted: all tasks of phase 0 come before any of phase 1. */
    int64_t tasks[2];     /* Tasks of each phase, which are independent of each other. */
    size_t shared_bytes;  /* Bytes of workspace that all threads share. */
    size_t thread_bytes;  /* Bytes of workspace that each thread needs besides. */

    /* ---- Since 0.3. */

    int64_t rows_keys_in_lanes; /* Rows (a query of one head) with keys in lanes: all, none, or with "mixed" those of short
                                   entries, and those that are left over beside full vectors of others. */
} rapt_plan_info;

/* Writes to info, whose size the caller has set, what the plan has chosen. Errors: NULL, STRUCT, PLAN. */
RAPT_API rapt_status rapt_plan_query(const rapt_plan *plan, rapt_plan_info *info);

/* The address of a workspace is a multiple of this many bytes. */
#define RAPT_WORKSPACE_ALIGNMENT 64

/* Writes to bytes how many bytes of workspace a call that nth threads share needs (1 for rapt_run): shared_bytes + nth *
 * thread_bytes. Its contents need not be kept between calls. Errors: NULL, PLAN, RANGE (nth < 1), SHAPE (overflow). */
RAPT_API rapt_status rapt_workspace_size(const rapt_plan *plan, int64_t nth, size_t *bytes);

/* A call touches at most this many bytes of the stack of the thread that makes it, below the caller's own frame, on any kernel of
 * an optimised build (-O2, -O3); callbacks of the caller's come on top. Threads that run shares or tasks need no more. */
#define RAPT_STACK_BYTES (64 << 10)

/* ---- Running --------------------------------------------------------------------------------------------------------- */

/* The tensors and arrays of a call of attention. Pointers for which the plan has no layout or other use are refused, but for o,
 * lse and sinks of an unmerged plan, which are the merge's. Arrays of one number for each entry are [batch]. */
typedef struct rapt_args {
    size_t size; /* Set by rapt_args_init, as in rapt_desc. */

    const void *q, *k, *v; /* The tensors that are read; each is null only where it has no element. */
    void *o;               /* The result; null only where it has no element, or the plan is unmerged. */
    float *lse;            /* The log-sum-exp of each row, where the plan has a layout for it. */

    /* How many keys of each entry exist, from number 0 on, each 0..kv_total (of ragged keys: the entry's own). Keys and values
     * beyond are never read. Null: all exist. */
    const int32_t *kv_lengths;

    const void *mask, *block_mask, *bias; /* The mask, the block mask and the bias, each where the plan has a layout for it. */
    const void *slopes, *sinks;           /* The slopes of ALiBi and the sinks, each where the plan has a layout for it. */
    const float *k_scales, *v_scales;     /* The scales of K and of V, each where the plan has them. */
    void *logits_arg;                     /* The first argument of logits_body. */
    const int32_t *prefixes;              /* The prefix of each entry. Null: rapt_desc.prefix. */
    const int32_t *table;                 /* The block table, where the plan is paged. */

    /* [batch + 1], ascending: the pages of entry b are those from table[table_starts[b]] to table[table_starts[b + 1] - 1] (CSR).
     * Null: the table is a matrix by its layout's strides. */
    const int32_t *table_starts;

    /* How many keys each entry's last page has, 1..page_size, which with table_starts tells its key length; without
     * table_starts it is refused, and where kv_lengths are given they hold. Null: it is not told. */
    const int32_t *last_page;

    /* Where rings begin, each 0..kv_len - 1: key j lies where key (ring_starts[b] + j) mod kv_len would (with k_starts: modulo
     * the entry's own keys). Null: 0. */
    const int32_t *ring_starts;

    float *states; /* The states that are written, where the plan is unmerged. */

    /* Memory for intermediate results, aligned to RAPT_WORKSPACE_ALIGNMENT, and private to the call until it is done. */
    void *workspace;
    size_t workspace_bytes; /* At least what rapt_workspace_size says. */

    /* ---- Since 0.2. */

    const int32_t *q_offsets; /* The position of each entry's query 0. Null: what rapt_causal says. */

    /* The position of each entry's key 0, 0 or more: with a ring or a trimmed cache, whose key 0 is not the sequence's first,
     * masks, biases and chunks speak of the sequence's positions. Null: 0. */
    const int32_t *k_offsets;

    float *scores; /* What rapt_desc.scores_stage says, where the plan has a layout for it. */
} rapt_args;

/* Gives every field its default, or 0 where it has none; call it before you set any. */
#define rapt_args_init(args) rapt_args_init_sized((args), sizeof *(args))

/* What rapt_args_init calls with the bytes of the caller's struct. */
RAPT_API void rapt_args_init_sized(rapt_args *args, size_t size);

/* Returns what a call with nth threads (1 for rapt_run) would return, and writes why to text, as rapt_plan_explain does. What is
 * wrong with ith, a phase, a task or a barrier, which are not asked for here, rapt_trace_to tells. */
RAPT_API rapt_status rapt_args_explain(const rapt_plan *plan, const rapt_args *args, int64_t nth, char *text, size_t bytes);

/* Computes attention on the calling thread. What is attended reaches the row: a NaN in an attended key makes the row NaN, one in
 * an attended value makes that channel NaN. What is masked never does. A key of score -inf has weight 0; a row without attended
 * keys, or whose scores are all -inf, gives o = 0 (unless an attended value is not finite) and lse = -inf.
 *
 * Errors, which are also those of the ways to run below: NULL, STRUCT, PLAN, SHAPE (nth, whose workspace overflows), KV_LENGTH,
 * TABLE, MASK (a position beyond the columns of a mask or bias), OVERLAP, STRIDE (a tensor would wrap around the address space),
 * WORKSPACE, ALIGNMENT, UNUSED, and RANGE where numbers are given. */
RAPT_API rapt_status rapt_run(const rapt_plan *plan, const rapt_args *args);

/* What a rapt_parallel_for calls for each i, with the body_arg that it was given. */
typedef void (*rapt_body)(void *body_arg, int64_t i);

/* A parallel loop of the caller's: it calls body(body_arg, i) for every i in 0..n-1, in any order, on any threads, or one after
 * the other, and returns when all are done. pool is what the caller passed beside it. */
typedef void (*rapt_parallel_for)(void *pool, int64_t n, rapt_body body, void *body_arg);

/* Does what rapt_run does, by the caller's parallel_for, which is called once for each phase with n = nth; tasks are handed out
 * as threads become free. */
RAPT_API rapt_status rapt_run_parallel(const rapt_plan *plan, const rapt_args *args, int64_t nth, rapt_parallel_for parallel_for,
                                       void *pool);

/* A barrier of the caller's: it returns when all threads that share a call have called it. */
typedef void (*rapt_barrier)(void *barrier_arg);

/* Does thread ith's share, of nth, of what rapt_run does; all nth threads make this call with the same plan and args.
 * barrier(barrier_arg) is called once between two phases, and may be null where the plan has one phase or nth is 1. When the call
 * returns, this thread's share is done; the caller waits for the others. An error is returned to all of them, before any calls
 * the barrier. */
RAPT_API rapt_status rapt_run_share(const rapt_plan *plan, const rapt_args *args, int64_t ith, int64_t nth, rapt_barrier barrier,
                                    void *barrier_arg);

/* Does thread ith's share, of nth, of one phase of what rapt_run does, 0..rapt_plan_info.phases-1; that all threads are done with
 * it before any begins the next is the caller's business. */
RAPT_API rapt_status rapt_run_phase(const rapt_plan *plan, const rapt_args *args, int phase, int64_t ith, int64_t nth);

/* Does one task of a phase, 0..rapt_plan_info.tasks[phase]-1. Tasks running at the same time need different slots, 0..nth-1, of a
 * workspace made for nth threads. Only what the task itself uses is validated, so kv_lengths of other batch entries are not. */
RAPT_API rapt_status rapt_run_task(const rapt_plan *plan, const rapt_args *args, int phase, int64_t task, int64_t slot);

/* ---- Writing caches -------------------------------------------------------------------------------------------------- */

/* Rotary position embedding (RoPE), which turns pairs of channels by angles that grow with the position. Of a token at position
 * p, pair i of channels, (x, y), becomes
 *
 *     (x * c - y * s, y * c + x * s)        c, s = amplitude * (cos, sin)((p + offset) * frequencies[i]), each rounded to f32
 *
 * as two products and a sum of f32, each rounded (Su et al. 2021, RoFormer, section 3.2.2). The angle is reduced exactly enough
 * that c and s are off by less than 1e-11 before they are rounded, for positions up to 2^31 and frequencies up to 1. The angle 0
 * changes nothing, amplitude aside. */
typedef struct rapt_rope {
    int64_t channels; /* How many channels are rotated, from channel 0 on, even; the others stay. 0, the default: none. */
    int interleaved;  /* 0, the default: pair i is channels i and i + channels / 2 (NeoX, Llama). Else 2i and 2i + 1 (GPT-J). */

    /* [channels / 2], in radians for each position, -16..16: those of rapt_rope_frequencies, which the caller scales as the model
     * wants it (linear, NTK, YaRN, Llama 3). Null: c and s come from a rapt_rope_table. */
    const double *frequencies;

    double amplitude; /* A finite factor of c and s, but not of those of a table. The default is 1. */
    int64_t offset;   /* What is added to every position, -RAPT_MAX_LENGTH..RAPT_MAX_LENGTH. The default is 0. */
} rapt_rope;

/* Tables of c and s, as many engines keep them: element i of row p + offset belongs to pair i at position p. They are used where
 * rapt_rope has channels and no frequencies; given otherwise, they are refused with UNUSED. */
typedef struct rapt_rope_table {
    rapt_type type;     /* RAPT_F32, RAPT_F16 or RAPT_BF16. RAPT_NONE, the default: there is none. */
    const void *c, *s;  /* The two tables, [positions] rows of channels / 2 elements, at any alignment. */
    int64_t positions;  /* Rows, 0..RAPT_MAX_LENGTH; all p + offset must be 0 or more, and below it. */
    int64_t row_stride; /* Bytes from a row to the next. 0, the default: rows are dense. */
} rapt_rope_table;

/* Writes the usual frequencies of rapt_rope: frequencies[i] = base^(-2i / channels) for i < channels / 2, within 2 ulp. base is
 * finite, 1 or more (RoFormer's is 10000). Errors: NULL, ALIGNMENT, SHAPE (channels: even, 2..RAPT_MAX_HEAD_DIM), FEATURE (base).
 */
RAPT_API rapt_status rapt_rope_frequencies(double base, int64_t channels, double *frequencies);

/* What rapt_kv_append_run writes where: new tokens, and the cache that they go to. The cache is that of a rapt_desc, and the
 * fields that both structs have mean the same. Call rapt_kv_append_desc_init first, then set kv_heads, tokens, kv_len, and d_k,
 * new_k and k, or d_v, new_v and v, or all of these. */
typedef struct rapt_kv_append_desc {
    size_t size; /* Set by rapt_kv_append_desc_init, as in rapt_desc. */

    int64_t batch;     /* Entries, 0..RAPT_MAX_LENGTH. The default is 1. */
    int64_t kv_heads;  /* Key/value heads, 1..RAPT_MAX_LENGTH. */
    int64_t tokens;    /* New tokens of each entry, 0..RAPT_MAX_LENGTH; the most, where rapt_kv_append_args gives lengths. */
    int64_t kv_len;    /* Key tokens that the cache has room for, for each entry, 0..RAPT_MAX_LENGTH. */
    int64_t d_k, d_v;  /* Channels, 1..RAPT_MAX_HEAD_DIM; not used of a tensor that is not written. */
    rapt_layout new_k; /* [batch, kv_heads, tokens, d_k] of RAPT_F32, RAPT_F16 or RAPT_BF16. */
    rapt_layout new_v; /* [batch, kv_heads, tokens, d_v] of the same types. */
    rapt_layout k;     /* The cache, [batch, kv_heads, kv_len, d_k] or pages. RAPT_NONE: K is not written. */
    rapt_layout v;     /* [batch, kv_heads, kv_len, d_v] or pages. RAPT_NONE: V is not written. */

    /* The scales of each: without a token_stride they are given, with one they are found and written. The default is none. */
    rapt_scales k_scales, v_scales;

    int64_t page_size; /* Keys of a page. 0, the default: not paged. */
    int64_t pages;     /* Pages of the pool. */
    rapt_layout table; /* The block table, [batch, kv_heads] rows of RAPT_I32; token_stride is not used. */
    int trust_table;   /* Not 0: neither that page numbers are below pages nor that no place is given twice is checked. */
    rapt_rope rope;    /* How K is rotated before it is stored; refused without K. The default is not at all. */
} rapt_kv_append_desc;

/* Gives every field its default, or 0 where it has none; call it before you set any. */
#define rapt_kv_append_desc_init(desc) rapt_kv_append_desc_init_sized((desc), sizeof *(desc))

/* What rapt_kv_append_desc_init calls with the bytes of the caller's struct. */
RAPT_API void rapt_kv_append_desc_init_sized(rapt_kv_append_desc *desc, size_t size);

/* The tensors and arrays of a call of rapt_kv_append_run. */
typedef struct rapt_kv_append_args {
    size_t size; /* Set by rapt_kv_append_args_init. */

    const void *new_k, *new_v;  /* The new keys and values; null of K or V where it is not written. */
    void *k, *v;                /* The cache's keys and values; null of K or V where it is not written. */
    float *k_scales, *v_scales; /* The scales of K and of V, each where the description has them. */

    /* [batch]: the key that each entry's first new token becomes; later ones follow, and all of them must lie before kv_len.
     * Null: 0. */
    const int32_t *starts;

    const int32_t *lengths; /* [batch], each 0..tokens: new tokens of each entry. Null: tokens for all. */

    /* [batch + 1], ascending, for ragged new tokens: those of entry b are from token_starts[b] to token_starts[b + 1] - 1 of a
     * new_k and new_v without batch dimension, where tokens is that of all entries; lengths is null then. Null: not ragged. */
    const int32_t *token_starts;

    /* [batch, tokens], or [tokens] with token_starts: the positions by which rope rotates. Null: the keys' numbers. */
    const int32_t *positions;

    const int32_t *table, *table_starts, *ring_starts; /* The block table and where rings begin, as in rapt_args. */

    /* ---- Since 0.2. */

    rapt_rope_table rope_table; /* c and s, where rope has no frequencies. */
} rapt_kv_append_args;

/* Gives every field its default, or 0 where it has none; call it before you set any. */
#define rapt_kv_append_args_init(args) rapt_kv_append_args_init_sized((args), sizeof *(args))

/* What rapt_kv_append_args_init calls with the bytes of the caller's struct. */
RAPT_API void rapt_kv_append_args_init_sized(rapt_kv_append_args *args, size_t size);

/* Writes the new tokens' keys and values into a cache. The bits are the same on every machine. Nothing but the tokens' channels
 * (and scales) is written.
 *
 * An element x (of K: rotated) is stored as x / scale where there is a scale: an f32 division, and 0 where the scale is 0. How
 * it is stored depends on the type:
 *
 * - F32, F16, BF16: x rounded to nearest even, and infinite beyond the range.
 * - F8_E4M3, F8_E5M2: x rounded to nearest even, and beyond the range the largest finite value, also of infinities. NaN
 *   stays NaN.
 * - INT8: the integer of -127..127 nearest to x, ties to even, and 0 of NaN.
 * - INT4: s = x / -8 of the first of the group's elements of largest magnitude, and n = x / s + 8.
 * - INT4_MIN: s = (largest - least) / 15, m = least, and n = (x - m) / s.
 * - Q8_0, Q4_0, Q4_1, Q5_0, Q5_1: as ggml's reference does it (quantize_row_*_ref), each f32 operation rounded.
 * - MXFP4, MXFP8_E4M3: as OCP MX 1.0 does it (section 6.3). 2^(e - 127) is the largest power of two up to the group's
 *   largest magnitude, divided by the largest power of two that n can be, 4 or 256. n = x / 2^(e - 127), rounded to
 *   nearest even, and at most +-6 or +-448. e is at least 0, and 255, which is NaN, if an element is not finite.
 *
 * In INT4 and INT4_MIN, s and m are at most +-65504 and rounded to f16, and n is the nearest integer of those that there are,
 * ties to even; where s is 0, n is 8 or 0. A group with an element that is not finite, or an s that is not, gets an s of NaN, so
 * all of it is NaN. Scales that are found, of types of a byte only, are for each token and head the largest magnitude / 127, /
 * 448 (E4M3) or / 57344 (E5M2); if an element is not finite, the scale is NaN and the elements are 0.
 *
 * Errors: NULL, STRUCT, SHAPE, TYPE, STRIDE, KV_LENGTH (a token beyond kv_len), TABLE (starts, lengths, token_starts,
 * ring_starts, a page; a place that two tokens are given; a position beyond the rope table), ALIGNMENT, FEATURE (rope,
 * pages, scales, lengths beside token_starts), UNUSED, OVERLAP: the written tensors may meet each other where they
 * have the same strides and their rows lie in each other's gaps (K and V of a page side by side, scales behind their row). */
RAPT_API rapt_status rapt_kv_append_run(const rapt_kv_append_desc *desc, const rapt_kv_append_args *args);

/* Does what rapt_kv_append_run does, by the caller's parallel_for in nth slots (see rapt_run_parallel). */
RAPT_API rapt_status rapt_kv_append_run_parallel(const rapt_kv_append_desc *desc, const rapt_kv_append_args *args, int64_t nth,
                                                 rapt_parallel_for parallel_for, void *pool);

/* Does thread ith's share, of nth, of what rapt_kv_append_run does; the threads need not wait for each other. */
RAPT_API rapt_status rapt_kv_append_run_share(const rapt_kv_append_desc *desc, const rapt_kv_append_args *args, int64_t ith,
                                              int64_t nth);

/* Returns what rapt_kv_append_run would return, and writes why to text, as rapt_plan_explain does. */
RAPT_API rapt_status rapt_kv_append_explain(const rapt_kv_append_desc *desc, const rapt_kv_append_args *args, char *text,
                                            size_t bytes);

/* ---- Copying within caches ----------------------------------------------------------------------------------------------- */

/* The cache to which rapt_kv_copy_run copies tokens, and the other of the same layouts, if any, from which it copies them. Call
 * rapt_kv_copy_desc_init first, then set kv_heads, tokens, and d_k and k, or d_v and v, or all of these. */
typedef struct rapt_kv_copy_desc {
    size_t size; /* Set by rapt_kv_copy_desc_init, as in rapt_desc. */

    int64_t entries;  /* Batch entries, or pages, of the cache, 0..RAPT_MAX_LENGTH. The default is 1. */
    int64_t kv_heads; /* Key/value heads, 1..RAPT_MAX_LENGTH. */
    int64_t tokens;   /* Tokens that an entry, or a page, has room for, 0..RAPT_MAX_LENGTH. */
    int64_t d_k, d_v; /* Channels, 1..RAPT_MAX_HEAD_DIM; not used of a tensor that is not copied. */
    rapt_layout k;    /* [entries, kv_heads, tokens, d_k]. RAPT_NONE, the default: K is not copied. */
    rapt_layout v;    /* [entries, kv_heads, tokens, d_v]. RAPT_NONE, the default: V is not copied. */

    rapt_scales k_scales, v_scales; /* Scales with a token_stride are copied with their tokens, others are not. */
} rapt_kv_copy_desc;

/* Gives every field its default, or 0 where it has none; call it before you set any. */
#define rapt_kv_copy_desc_init(desc) rapt_kv_copy_desc_init_sized((desc), sizeof *(desc))

/* What rapt_kv_copy_desc_init calls with the bytes of the caller's struct. */
RAPT_API void rapt_kv_copy_desc_init_sized(rapt_kv_copy_desc *desc, size_t size);

/* Adjacent tokens of an entry or page, and where they go. Tokens are counted as they lie: rings do not matter. */
typedef struct rapt_kv_range {
    int32_t from;       /* The entry or page that they come from. */
    int32_t from_token; /* The first token that is copied from there. */
    int32_t to;         /* The entry or page that tokens are copied to, which may be the same. */
    int32_t to_token;   /* The token that the first one becomes there. */
    int32_t tokens;     /* How many tokens are copied. */
} rapt_kv_range;

/* The tensors and ranges of a call of rapt_kv_copy_run. */
typedef struct rapt_kv_copy_args {
    size_t size; /* Set by rapt_kv_copy_args_init. */

    void *k, *v;                /* The keys and values of the cache that is written. */
    float *k_scales, *v_scales; /* The scales of the tokens of k and v, where they have any. */

    const void *from_k, *from_v; /* The keys and values of the cache that is read. All four null: the cache that is written. */
    const float *from_k_scales, *from_v_scales; /* The scales of the tokens of from_k and from_v, where they have any. */

    const rapt_kv_range *ranges; /* [count]: what is copied, in this order. */
    int64_t count;               /* How many ranges there are, 0 or more. */
} rapt_kv_copy_args;

/* Gives every field its default, or 0 where it has none; call it before you set any. */
#define rapt_kv_copy_args_init(args) rapt_kv_copy_args_init_sized((args), sizeof *(args))

/* What rapt_kv_copy_args_init calls with the bytes of the caller's struct. */
RAPT_API void rapt_kv_copy_args_init_sized(rapt_kv_copy_args *args, size_t size);

/* Copies tokens within a cache, or from another, as they are, scales included: to share a prefix, to close gaps between pages, to
 * move an entry. The copies are done in the order of the ranges, so that a later one may read what an earlier one wrote; what is
 * copied may overlap where it goes to, as with memmove. Errors: NULL, STRUCT, SHAPE, TYPE, STRIDE, FEATURE (scales of a tensor
 * that is not copied), TABLE (a range beyond the cache), ALIGNMENT, UNUSED, OVERLAP: K, V and scales of the written cache may
 * meet each other as in rapt_kv_append_run, and nothing else may meet them. */
RAPT_API rapt_status rapt_kv_copy_run(const rapt_kv_copy_desc *desc, const rapt_kv_copy_args *args);

/* Does what rapt_kv_copy_run does, by the caller's parallel_for in nth slots (see rapt_run_parallel). */
RAPT_API rapt_status rapt_kv_copy_run_parallel(const rapt_kv_copy_desc *desc, const rapt_kv_copy_args *args, int64_t nth,
                                               rapt_parallel_for parallel_for, void *pool);

/* Does thread ith's share, of nth, of what rapt_kv_copy_run does; the threads need not wait for each other: each copies a share
 * of every token's bytes. */
RAPT_API rapt_status rapt_kv_copy_run_share(const rapt_kv_copy_desc *desc, const rapt_kv_copy_args *args, int64_t ith,
                                            int64_t nth);

/* Returns what rapt_kv_copy_run would return, and writes why to text, as rapt_plan_explain does. */
RAPT_API rapt_status rapt_kv_copy_explain(const rapt_kv_copy_desc *desc, const rapt_kv_copy_args *args, char *text, size_t bytes);

/* ---- Rotating queries ---------------------------------------------------------------------------------------------------- */

/* What rapt_rope_run rotates, and by what: a tensor such as Q. (rapt_kv_append_run rotates K while it stores it.) Call
 * rapt_rope_args_init first, then set heads, tokens, d, in, out, from, to and rope. */
typedef struct rapt_rope_args {
    size_t size; /* Set by rapt_rope_args_init. */

    int64_t batch;   /* Batch entries, 0..RAPT_MAX_LENGTH. The default is 1. */
    int64_t heads;   /* Heads, 1..RAPT_MAX_LENGTH. */
    int64_t tokens;  /* Tokens of each entry, 0..RAPT_MAX_LENGTH. */
    int64_t d;       /* Channels of a head, 1..RAPT_MAX_HEAD_DIM. */
    rapt_layout in;  /* [batch, heads, tokens, d] of RAPT_F32, RAPT_F16 or RAPT_BF16. */
    rapt_layout out; /* The rotated tensor: of the shape of in, with a type and strides of its own, rounded to nearest even. */

    const void *from; /* The tensor that is read. */
    void *to; /* The tensor that is written: from itself, where in and out are the same, or memory that does not meet it. */

    rapt_rope rope;              /* How it is rotated. Without channels it is only converted. */
    const int32_t *starts;       /* [batch]: the position of each entry's first token. Null: 0. */
    const int32_t *lengths;      /* [batch]: tokens of each entry, as in rapt_kv_append_args. Null: tokens for all. */
    const int32_t *token_starts; /* [batch + 1]: ragged tokens, as in rapt_kv_append_args. Null: not ragged. */
    const int32_t *positions;    /* Positions of the tokens, as in rapt_kv_append_args. Null: starts, and on from there. */

    /* ---- Since 0.2. */

    rapt_rope_table rope_table; /* c and s, where rope has no frequencies. */
} rapt_rope_args;

/* Gives every field its default, or 0 where it has none; call it before you set any. */
#define rapt_rope_args_init(args) rapt_rope_args_init_sized((args), sizeof *(args))

/* What rapt_rope_args_init calls with the bytes of the caller's struct. */
RAPT_API void rapt_rope_args_init_sized(rapt_rope_args *args, size_t size);

/* Rotates each token by its position. The bits are the same on every machine. Errors: NULL, STRUCT, SHAPE, TYPE, STRIDE, TABLE
 * (starts, lengths, token_starts, a position beyond the rope table), ALIGNMENT, FEATURE (rope, lengths beside token_starts),
 * UNUSED, OVERLAP. */
RAPT_API rapt_status rapt_rope_run(const rapt_rope_args *args);

/* Does what rapt_rope_run does, by the caller's parallel_for in nth slots (see rapt_run_parallel). */
RAPT_API rapt_status rapt_rope_run_parallel(const rapt_rope_args *args, int64_t nth, rapt_parallel_for parallel_for, void *pool);

/* Does thread ith's share, of nth, of what rapt_rope_run does; the threads need not wait for each other. */
RAPT_API rapt_status rapt_rope_run_share(const rapt_rope_args *args, int64_t ith, int64_t nth);

/* Returns what rapt_rope_run would return, and writes why to text, as rapt_plan_explain does. */
RAPT_API rapt_status rapt_rope_explain(const rapt_rope_args *args, char *text, size_t bytes);

/* ---- The step of a decoder ----------------------------------------------------------------------------------------------- */

/* A decoder's step: rapt_rope_run of the queries, rapt_kv_append_run of the new keys and values, and attention to all of them, as
 * one call (FlashAttention's flash_attn_with_kvcache): for one token, several, or a prompt. Its bits are those of the three. It
 * is usually RAPT_CAUSAL_BOTTOM_RIGHT: with RAPT_CAUSAL_TOP_LEFT and no q_offsets, the queries of every step begin at position
 * k_offset. Call rapt_decode_desc_init first, then set attention, new_k and new_v. */
typedef struct rapt_decode_desc {
    size_t size; /* Set by rapt_decode_desc_init, as in rapt_desc. */

    /* The attention: heads, lengths, masks, Q and O, and the cache in k, v, kv_len, k_scales, v_scales, page_size, pages and
     * table. It is read by rapt_decode_plan_init only. q_starts holds for the new tokens too; k_starts, kv_first, kv_total and
     * unmerged are refused. */
    const rapt_desc *attention;

    int64_t tokens; /* New tokens of each entry, 0..RAPT_MAX_LENGTH. -1, the default: attention.q_len. Not used with q_starts. */
    rapt_layout new_k; /* [batch, kv_heads, tokens, d_k] of RAPT_F32, RAPT_F16 or RAPT_BF16. */

    /* [batch, kv_heads, tokens, d_v] of the same types. RAPT_NONE: V is not written, as where it is a part of K (MLA). */
    rapt_layout new_v;

    /* How Q and the new K are rotated, Q staying in f32 then. Its frequencies must stay where and as they are. The default is not
     * at all. */
    rapt_rope rope;
} rapt_decode_desc;

/* Gives every field its default, or 0 where it has none; call it before you set any. */
#define rapt_decode_desc_init(desc) rapt_decode_desc_init_sized((desc), sizeof *(desc))

/* What rapt_decode_desc_init calls with the bytes of the caller's struct. */
RAPT_API void rapt_decode_desc_init_sized(rapt_decode_desc *desc, size_t size);

/* A validated step, in plain memory of the caller's, as rapt_plan. It keeps the addresses of q_starts and rope.frequencies, and
 * logits_body. */
typedef struct rapt_decode_plan {
    uint64_t opaque[384]; /* Contents that only the library knows. */
} rapt_decode_plan;

/* Validates a decoder's step and chooses kernel, path and tasks. Errors: those of rapt_plan_init and, of descriptions, of
 * rapt_kv_append_run and rapt_rope_run. */
#define rapt_decode_plan_init(plan, desc) rapt_decode_plan_init_sized((plan), sizeof *(plan), (desc))

/* What rapt_decode_plan_init calls with the bytes of the caller's plan. */
RAPT_API rapt_status rapt_decode_plan_init_sized(rapt_decode_plan *plan, size_t bytes, const rapt_decode_desc *desc);

/* Returns what rapt_decode_plan_init would return, and writes why to text, as rapt_plan_explain does. */
RAPT_API rapt_status rapt_decode_explain(const rapt_decode_desc *desc, char *text, size_t bytes);

/* Writes to info, whose size the caller has set, what the plan's attention has chosen. Only phases and shared_bytes are those of
 * the whole step, whose first phase rotates and appends; tasks are those of the attention's phases. Errors: NULL, STRUCT, PLAN.
 */
RAPT_API rapt_status rapt_decode_plan_query(const rapt_decode_plan *plan, rapt_plan_info *info);

/* Writes to bytes how many bytes of workspace a call that nth threads share needs. Errors: NULL, PLAN, RANGE (nth < 1), SHAPE
 * (overflow). */
RAPT_API rapt_status rapt_decode_workspace_size(const rapt_decode_plan *plan, int64_t nth, size_t *bytes);

/* The tensors and arrays of a step. */
typedef struct rapt_decode_args {
    size_t size; /* Set by rapt_decode_args_init. */

    const void *new_k, *new_v;  /* The new keys and values; new_v is null where V is not written. */
    void *k, *v;                /* The cache that they are appended to. */
    float *k_scales, *v_scales; /* The scales of k and v, where the cache has them. */
    const int32_t *starts;      /* [batch]: how many keys each entry has before the step. Null: 0. */

    /* The positions by which rope rotates, as in rapt_kv_append_args, for the queries too, of which each entry has as many as new
     * tokens then. Null: new keys stand at their number + k_offset, and queries at q_offset and behind it (rapt_causal), as they
     * do for masks. */
    const int32_t *positions;

    rapt_rope_table rope_table; /* c and s, where rope has no frequencies. */

    /* What attention reads and writes: q, o, lse, masks, tables and so on; its k, v, k_scales, v_scales and workspace are not
     * used. kv_lengths are those after the step (FlashAttention's cache_seqlens are starts); null, which is the usual case:
     * starts + new tokens, which last_page, if it is given, must say, too. Shorter ones hide keys, and move queries whose
     * positions are not given. */
    const rapt_args *attention;

    void *workspace;        /* Memory for the call, as in rapt_args. */
    size_t workspace_bytes; /* At least what rapt_decode_workspace_size says. */
} rapt_decode_args;

/* Gives every field its default, or 0 where it has none; call it before you set any. */
#define rapt_decode_args_init(args) rapt_decode_args_init_sized((args), sizeof *(args))

/* What rapt_decode_args_init calls with the bytes of the caller's struct. */
RAPT_API void rapt_decode_args_init_sized(rapt_decode_args *args, size_t size);

/* Does a decoder's step on the calling thread: rotates the queries and new keys, appends keys and values to the cache, and
 * attends. Errors: those of rapt_run, rapt_rope_run and rapt_kv_append_run. */
RAPT_API rapt_status rapt_decode_run(const rapt_decode_plan *plan, const rapt_decode_args *args);

/* Does what rapt_decode_run does, by the caller's parallel_for in nth slots (see rapt_run_parallel). */
RAPT_API rapt_status rapt_decode_run_parallel(const rapt_decode_plan *plan, const rapt_decode_args *args, int64_t nth,
                                              rapt_parallel_for parallel_for, void *pool);

/* Does thread ith's share, of nth, of what rapt_decode_run does; the threads wait for each other by the barrier (see
 * rapt_run_share). */
RAPT_API rapt_status rapt_decode_run_share(const rapt_decode_plan *plan, const rapt_decode_args *args, int64_t ith, int64_t nth,
                                           rapt_barrier barrier, void *barrier_arg);

/* Does thread ith's share, of nth, of one phase of what rapt_decode_run does (see rapt_run_phase). */
RAPT_API rapt_status rapt_decode_run_phase(const rapt_decode_plan *plan, const rapt_decode_args *args, int phase, int64_t ith,
                                           int64_t nth);

/* Returns what rapt_decode_run with nth threads would return, and writes why to text, as rapt_args_explain does. */
RAPT_API rapt_status rapt_decode_args_explain(const rapt_decode_plan *plan, const rapt_decode_args *args, int64_t nth, char *text,
                                              size_t bytes);

/* ---- Merging --------------------------------------------------------------------------------------------------------- */

/* A state, which is what a row has after a chunk of keys, takes this many floats: m (the largest score), l (the sum of weights
 * exp2((score - m) * c), c being log2(e) times the scale if that is not in the scores, see docs/order.md), 14 unused, then the
 * weighted sum of values o[d_v], not divided, and what fills it up. A chunk without attended keys leaves the empty state, m =
 * -inf and all else 0, which changes nothing. A state has m and l rather than their log-sum-exp, which would be rounded: so a
 * merge has the same bits as attention over all keys at once. */
#define RAPT_STATE_FLOATS(d_v) (16 + ((size_t)(d_v) + 15) / 16 * 16)

/* The states of one source: of one plan's rows, or of another machine's. */
typedef struct rapt_states {
    const float *at;      /* The first state, at any alignment. */
    int64_t batch_stride; /* Bytes from an entry to the next; not used of ragged queries. */
    int64_t head_stride;  /* Bytes from a head to the next. */
    int64_t token_stride; /* Bytes from a query to the next. */
    int64_t state_stride; /* Bytes from a row's state to that of its next chunk; they do not overlap. */
    int64_t chunks;       /* States of each row, 0..RAPT_MAX_LENGTH / RAPT_CHUNK_KEYS + 1. */
} rapt_states;

/* Merges the states of sources 0..n-1 in this order, which must be that of the chunks, into o and lse of args, with its sinks and
 * v_scales. The plan is one with unmerged set, made with the layouts of o and lse too; states of several such plans of equal
 * batch, heads, q_len, d_v, types of O and scale may be merged. Errors: NULL, STRUCT, PLAN, RANGE (n), SHAPE (chunks), OVERLAP,
 * STRIDE, ALIGNMENT, UNUSED. */
RAPT_API rapt_status rapt_merge_states_run(const rapt_plan *plan, const rapt_args *args, const rapt_states *sources, int64_t n);

/* Does what rapt_merge_states_run does, by the caller's parallel_for in nth slots (see rapt_run_parallel). */
RAPT_API rapt_status rapt_merge_states_run_parallel(const rapt_plan *plan, const rapt_args *args, const rapt_states *sources,
                                                    int64_t n, int64_t nth, rapt_parallel_for parallel_for, void *pool);

/* Does thread ith's share, of nth, of what rapt_merge_states_run does; the threads need not wait for each other. */
RAPT_API rapt_status rapt_merge_states_run_share(const rapt_plan *plan, const rapt_args *args, const rapt_states *sources,
                                                 int64_t n, int64_t ith, int64_t nth);

/* Returns what rapt_merge_states_run would return, and writes why to text, as rapt_plan_explain does. */
RAPT_API rapt_status rapt_merge_states_explain(const rapt_plan *plan, const rapt_args *args, const rapt_states *sources,
                                               int64_t n, char *text, size_t bytes);

/* Merges results of attention over disjoint keys, on the calling thread: o[s] is [rows, d_v] and lse[s] [rows], dense f32, for
 * sources s = 0..n-1, merged in this order; a source whose lse is -inf changes nothing (its o is not looked at). o_out and
 * lse_out may be null, or the o and the lse of a source. (FlashInfer's merge_states, with natural logarithms.) Since an lse is
 * rounded, its bits need not be those of attention over all keys. Errors: NULL, SHAPE, STRIDE, ALIGNMENT, OVERLAP, ISA_MISSING
 * and ISA_UNKNOWN (of RAPT_ISA). */
RAPT_API rapt_status rapt_merge(int64_t n, int64_t rows, int64_t d_v, const float *const *o, const float *const *lse,
                                float *o_out, float *lse_out);

/* Returns what rapt_merge would return, and writes why to text, as rapt_plan_explain does. */
RAPT_API rapt_status rapt_merge_explain(int64_t n, int64_t rows, int64_t d_v, const float *const *o, const float *const *lse,
                                        float *o_out, float *lse_out, char *text, size_t bytes);

/* ---- Instruction sets ------------------------------------------------------------------------------------------------ */

/* On Linux, the first question what the CPU can do asks for the tile registers of AMX where the CPU has them (arch_prctl(2)),
 * once in a process; from then on Linux refuses it alternate signal stacks (sigaltstack(2)) that have no room for them, some 11
 * KiB. Where one was there before, Linux refuses the tiles, and the kernel amx lacks "amx-permission". */

/* Returns the name of a kernel built for this architecture, the best one for index 0, and null beyond the last. */
RAPT_API const char *rapt_isa_name(int index);

/* Returns RAPT_OK if the kernel of that name can run here, else ISA_UNKNOWN, ISA_MISSING or NULL (name). missing, unless null,
 * receives the names of the CPU features that are lacking ("" if none), cut to missing_bytes with its terminator. */
RAPT_API rapt_status rapt_isa_usable(const char *name, char *missing, size_t missing_bytes);

/* Returns the rounding class of the kernel of that name, "fused" or "unfused", or null if there is none. */
RAPT_API const char *rapt_isa_rounding(const char *name);

/* Makes a kernel the process-wide choice for plans made from now on. Null goes back to what holds before any choice: the kernel
 * that the environment variable RAPT_ISA names, or, if it is not set, the best one that can run here. Errors: ISA_UNKNOWN,
 * ISA_MISSING. */
RAPT_API rapt_status rapt_isa_force(const char *name);

/* Writes the name of the process-wide choice to name. If RAPT_ISA names a kernel that is unknown or cannot run, that is the error
 * here as it is of plans, and *name is null. Errors: NULL, ISA_UNKNOWN, ISA_MISSING. */
RAPT_API rapt_status rapt_isa_current(const char **name);

/* Writes to names the CPU features found, space-separated, cut to bytes with its terminator. Errors: NULL. */
RAPT_API rapt_status rapt_cpu_features(char *names, size_t bytes);

/* ---- Looking in ------------------------------------------------------------------------------------------------------ */

/* Tells whether this build keeps the promise: it runs a few small problems on each kernel that can run here, or, unless isa is
 * null, on the one of that name, and compares hashes of the results with those of the bits of docs/order.md. Whoever compiles the
 * sources in a way of their own learns here whether the compiler reordered, contracted or approximated anything, and whether the
 * thread's floating-point modes are the default ones. It takes about a millisecond for each vector
 * kernel and a few for scalar ones, and up to RAPT_STACK_BYTES + RAPT_SELF_CHECK_BYTES of stack, more than threads of musl's have
 * by default. text, unless null, receives, cut to bytes, what is wrong, or "". Errors: SELF_CHECK, ISA_UNKNOWN, ISA_MISSING. */
RAPT_API rapt_status rapt_self_check(const char *isa, char *text, size_t bytes);

/* The bytes of the workspace of rapt_self_check_in. */
#define RAPT_SELF_CHECK_BYTES (160 << 10)

/* Does what rapt_self_check does in the caller's memory, workspace_bytes of it, aligned to RAPT_WORKSPACE_ALIGNMENT, for threads
 * with small stacks: it takes RAPT_STACK_BYTES of it as all other functions. Errors besides: WORKSPACE, ALIGNMENT. */
RAPT_API rapt_status rapt_self_check_in(void *workspace, size_t workspace_bytes, const char *isa, char *text, size_t bytes);

/* What is called with a line, without a newline, for each plan that is made, and for each refusal, which names the function, the
 * field and its value. It may be called from any thread, by several at the same time, and must not call the library. */
typedef void (*rapt_trace_body)(void *arg, const char *line);

/* Where traces go. */
typedef struct rapt_trace {
    rapt_trace_body body; /* What is called for each line. */
    void *arg;            /* The first argument of body. */
} rapt_trace;

/* Sends the traces of the whole process to trace from now on (null, the default: nowhere). The struct must stay until another has
 * taken its place and all calls that began before have returned. */
RAPT_API void rapt_trace_to(const rapt_trace *trace);

/* ---- Tuning ---------------------------------------------------------------------------------------------------------- */

/* Numbers by which a plan cuts its work, and by which weights are prefetched. Each kernel has its own, which were measured on one
 * machine; another may want others, and `rapt tune` looks for them. None changes a bit of any result: only the time that calls
 * take, and their workspace. Call rapt_tuning_init first, then set what shall differ, or have rapt_tuning_parse read a line.
 *
 * -1, the default of each number, stands for the kernel's own. Where its range says "at most", a kernel may have room for less:
 * rapt_tuning_query tells. A row is a query of one of the heads that share a key/value head. */
typedef struct rapt_tuning {
    size_t size; /* Set by rapt_tuning_init, as in rapt_desc. */

    const char *isa; /* The kernel that the numbers are for: plans with another one are refused. Null, the default: any. */

    /* ---- Attention. */

    int few_rows; /* Up to this many rows of a key/value head, 0 to at most 16, keys lie in lanes; of more, queries do. */

    /* The same in RAPT_INT8_DOT, 0 to at most 16. Kernels that have no other way for few rows there take 0 only. */
    int few_integer_rows;

    int left_over; /* Up to this many last rows beside full vectors of queries, 0 to at most 15, have keys in lanes. */

    /* A task whose keys lie in lanes takes several key/value heads, where those of a token lie side by side, of at most this many
     * rows together, 1 to at most 64. */
    int joined_rows;

    int joined_bytes; /* Such a task takes as many heads as make this many bytes of a token's keys, 1 to 1048576. */
    int pass_tiles;   /* A task whose queries lie in lanes has at most this many tiles of them, 1 to at most 32. */
    int pass_l2;      /* The scratch of such a task takes at most this many sixteenths of the L2 cache, 1 to 256. */
    int thread_tasks; /* A plan makes about this many tasks for each thread that is expected, 1 to 64. */
    int ragged_tasks; /* The same where the entries of a batch differ in length, 1 to 64. */
    int states_part;  /* Tasks share the keys of a head if the states between take at most 1 / this of them, 1 to 1024. */

    /* ---- Linear layers. */

    /* Up to this many tokens, 0 to at most 32, weights are read as they lie; for more, they are staged in the workspace. */
    int few_tokens;

    int bf16_few_tokens; /* The same in RAPT_BF16_DOT, 0 to at most 32. */
    int weights_l2;      /* Staged weights take this many sixteenths of the L2 cache, 1 to 256, as far as there is room. */

    /* Threads share tokens and outputs as if each of them staged its tokens in the time of this many outputs, 0 to 1048576. */
    int staging_outputs;

    int long_row;    /* For few tokens, several rows of weights are read at a time from this many bytes on, 1 to 16777216. */
    int long_ahead;  /* Such rows are prefetched by this many bytes, 0 to 1048576. */
    int short_ahead; /* Shorter rows are prefetched by this many bytes, 0 to 1048576. */
} rapt_tuning;

/* Gives every field its default; call it before you set any. */
#define rapt_tuning_init(tuning) rapt_tuning_init_sized((tuning), sizeof *(tuning))

/* What rapt_tuning_init calls with the bytes of the caller's struct. */
RAPT_API void rapt_tuning_init_sized(rapt_tuning *tuning, size_t size);

/* Writes to own the numbers of the kernel of that name (null: the process-wide choice), and to least and most what each of them
 * may be in it at least and at most; the isa of all three becomes its name. Each passed through rapt_tuning_init before, or is
 * null. Errors: STRUCT, ISA_UNKNOWN, ISA_MISSING. */
RAPT_API rapt_status rapt_tuning_query(const char *isa, rapt_tuning *own, rapt_tuning *least, rapt_tuning *most);

/* Reads a line of text, such as "avx2 few_rows=4 pass_l2=6", into tuning, which passed through rapt_tuning_init: the kernel's
 * name, or "any", then fields of rapt_tuning with their numbers, each at most once, between spaces, tabs or line ends. What the
 * line does not name becomes -1. Of a kernel that was built, whether or not it can run here, the numbers must be in its range.
 * Errors: NULL, STRUCT, TUNING, ISA_UNKNOWN. */
RAPT_API rapt_status rapt_tuning_parse(const char *line, rapt_tuning *tuning);

/* Returns what rapt_tuning_parse would return, and writes why to text, as rapt_plan_explain does. */
RAPT_API rapt_status rapt_tuning_parse_explain(const char *line, rapt_tuning *tuning, char *text, size_t bytes);

/* A line of this many bytes has room for any rapt_tuning_print, with its terminator. */
#define RAPT_TUNING_BYTES 512

/* Writes to line, which has room for so many bytes, what rapt_tuning_parse reads: the numbers that are not -1, without a line
 * end. Errors: NULL, STRUCT, ISA_UNKNOWN, TUNING (a number below -1, or out of the kernel's range; too few bytes). */
RAPT_API rapt_status rapt_tuning_print(const rapt_tuning *tuning, char *line, size_t bytes);

#ifdef __cplusplus
}
#endif

/* One include is enough, here as with the rapt.h that tools/amalgamate writes. */
#include "rapt_layer.h"
#include "rapt_pool.h"

#endif
