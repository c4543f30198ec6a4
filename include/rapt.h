/* SPDX-License-Identifier: Apache-2.0 */
/* rapt: fused flash-style attention for CPUs. This header is the whole API of attention, rapt_layer.h that of the layers around
 * it; their comments are the contract.
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
 * call, the memory layout, or with whether it was computed by prefill, chunked prefill or decode. docs/order.md specifies the
 * order of operations. A NaN is a NaN; its sign and payload are not promised.
 *
 * A call takes four steps: describe the problem (rapt_desc), validate it once into a plan (rapt_plan_init), ask for the size of
 * the workspace (rapt_workspace_size), then run the plan as often as you like, each time with other pointers (rapt_run and its
 * siblings).
 *
 * Calls by task (docs/quick-reference.md has all of them, each in a line):
 *
 *     describe attention     rapt_desc_init, rapt_layout_bhsd, rapt_layout_bshd, rapt_plan_init, rapt_workspace_size
 *     run it                 rapt_args_init, rapt_run
 *     on your threads        rapt_run_parallel, rapt_run_share, rapt_run_phase, rapt_run_task
 *     on the pool's threads  rapt_pool_create, rapt_pool_for (rapt_pool.h)
 *     write a cache          rapt_kv_append_run
 *     copy tokens            rapt_kv_copy_run
 *     rotate queries         rapt_rope_frequencies, rapt_rope_run
 *     a decoder's step       rapt_decode_plan_init, rapt_decode_run: rotates, appends and attends
 *     merge parts            rapt_merge_states_run, with the same bits; rapt_merge, by log-sum-exp
 *     why it was refused     rapt_plan_explain, rapt_args_explain, their siblings in each family, rapt_trace_to
 *     types                  rapt_type_name, rapt_type_of_name, rapt_type_class_of, rapt_row_bytes
 *     kernels                rapt_isa_name, rapt_isa_usable, rapt_isa_force, rapt_isa_current, rapt_plan_query, rapt_self_check
 *     tuning                 rapt_tuning_parse, rapt_tuning_query, rapt_tuning_print
 *     around attention       rapt_linear_run, rapt_layer_norm_run, rapt_rms_norm_run, rapt_mha_run (rapt_layer.h)
 *
 * Conventions of the comments: shapes have the outermost dimension first, as [batch, heads, tokens, channels]; a..b is the range
 * from a to b, both included; errors are named without their prefix RAPT_ERR_; strides and sizes of memory are in bytes unless
 * their comment names another unit.
 *
 * Functions come in families of the same form, each with its own prefix: rapt_ (attention), rapt_kv_append_, rapt_kv_copy_,
 * rapt_rope_, rapt_decode_ and rapt_merge_states_ here, rapt_linear_, rapt_linear_prepack_ (which takes the plans of
 * rapt_linear_), rapt_layer_norm_, rapt_rms_norm_ and rapt_mha_ in rapt_layer.h. Families whose checks cost more than a small
 * call have plans (attention, decode, linear, mha). In each family X, these ways to run give the same bits and the same errors:
 *
 * - X_run does all the work on the calling thread.
 * - X_run_parallel does it through the caller's parallel_for, in nth slots: a slot is an iteration of that loop, with its own
 *   part of the workspace, so that up to nth threads work at a time. Further errors: RANGE (nth < 1), NULL (parallel_for).
 * - X_run_share does the share of thread ith of nth; all nth threads make this call. Where the work has phases, the threads wait
 *   for each other between phases, by the caller's barrier; where the function takes no barrier, they need not wait. Further
 *   errors: RANGE (ith, nth), NULL (barrier).
 * - X_run_phase, where there are phases, does the thread's share of one phase; the caller has all threads finish a phase before
 *   any begins the next. Further errors: RANGE (phase, ith, nth).
 * - X_explain returns what X_plan_init would return, or in a family without plans what X_run would, and writes why. In a family
 *   with plans X_args_explain does the same for X_run. (In attention these are rapt_plan_explain and rapt_args_explain.)
 *
 * But for the optional pool (rapt_pool.h), the library allocates nothing, starts no thread, takes no lock, and uses at most
 * RAPT_STACK_BYTES of the calling thread's stack (rapt_self_check uses more, as its comment says). It writes only four globals,
 * all of them atomic: the CPU's features, the size of its L2 cache, the chosen kernel, and where traces go (rapt_trace_to). Every
 * function may be called from any thread; a plan is never written after rapt_plan_init. Every function that returns a status
 * checks its arguments first: if the status is not RAPT_OK, no tensor, array or plan was written, except by other threads in the
 * case of FLOAT_MODE (below).
 *
 * Floating-point modes: the library assumes that every thread which computes has the default ones (round to nearest, no flush to
 * zero, no traps), and never changes them. docs/numerics.md says what other modes do to the bits. A debug build, or one with
 * RAPT_CHECK_FP (Meson's and CMake's option, a macro for rapt.c), checks them: on a thread with other modes, functions that
 * compute are refused with FLOAT_MODE. These are rapt_plan_init, rapt_decode_plan_init and rapt_mha_plan_init, which compute the
 * scale, and everything that writes numbers: all ways to run except those of rapt_kv_copy_, then rapt_merge,
 * rapt_rope_frequencies, and in rapt_layer.h quantisation, rapt_sinusoidal and rapt_alibi_slopes. Threads that share a call are
 * checked one by one: a thread that is refused leaves its share undone (but still calls the barriers), while the others write
 * theirs. X_run_parallel returns FLOAT_MODE if a thread of parallel_for was refused.
 *
 * The *_explain functions tell why something is refused: they take the arguments of the function that refuses, and write a line
 * that names the field and its value, such as "k.token_stride = -4: strides are not negative". The line is printable ASCII: any
 * other byte of a caller's string, such as a kernel's name, becomes a backslash, an x and two hexadecimal digits.
 *
 * Structs that begin with size are initialised by their *_init function, a macro that passes the struct's size to *_init_sized;
 * only that of *_info structs is set by the caller. All may grow at their end from version to version. Structs of any version
 * from 0.1 on are accepted: fields that they lack have their defaults. (Functions were renamed in 0.3; tools/migrate renames
 * them in sources.) A client compiled against a newer header works as long as the fields that this library does not know are
 * zero. (Until 1.0 the soname carries the minor version, so both have to be linked again.)
 *
 * Memory: tensors, which have a layout, may lie at any address; they need not even be aligned to their elements. Arrays, which
 * have none (kv_lengths, starts, frequencies, bias of a linear layer, ...), must be aligned as their C type requires; others are
 * refused with ALIGNMENT. The byte range of a tensor that a call writes, from its first to its last byte, must not overlap
 * anything else that the call reads or writes, its plan included; else the call is refused with OVERLAP. (Structs of descriptions
 * and arguments are copied before anything is written.) The few exceptions, where an output may be the same memory as an input,
 * are named where they apply. */
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

/* RAPT_API marks the functions that the library exports. Define it as empty to compile the sources into a library of your own
 * that does not export them. On Windows it is empty: the DLL has a list of its exports, and a program links the import library or
 * the static one. */
#if !defined(RAPT_API)
#if defined(_WIN32)
#define RAPT_API
#else
#define RAPT_API __attribute__((visibility("default")))
#endif
#endif

/* ---- Status ---------------------------------------------------------------------------------------------------------- */

/* The result of a call: RAPT_OK, or the reason why it did nothing. */
typedef enum rapt_status {
    RAPT_OK = 0,             /* The call has done its work. */
    RAPT_ERR_NULL = -1,      /* A required pointer is null. */
    RAPT_ERR_STRUCT = -2,    /* A struct was not initialised by its init function, is smaller than any version's, or is newer than
                                the library and uses a field unknown to it; or memory for a plan is too small. */
    RAPT_ERR_SHAPE = -3,     /* A size is negative, zero where it may not be, or above its limit, or the workspace for it would
                                exceed the address space. */
    RAPT_ERR_HEADS = -4,     /* heads is not a multiple of kv_heads. */
    RAPT_ERR_TYPE = -5,      /* A tensor's type is unknown, not allowed for that tensor, or of groups that do not divide its
                                channels. */
    RAPT_ERR_STRIDE = -6,    /* A stride that is used is negative, a tensor exceeds the address space, two elements of an output
                                overlap, or scales have both a token_stride and a channel_stride. */
    RAPT_ERR_SCALE = -7,     /* scale is infinite. */
    RAPT_ERR_MASK = -8,      /* causal is not a rapt_causal, a window side is below -1, or a mask or bias has too few columns. */
    RAPT_ERR_KV_LENGTH = -9, /* A key length is negative or above kv_total, or a cache has no room for a new token. */
    RAPT_ERR_OVERLAP = -10,  /* An output or the workspace overlaps something else. */
    RAPT_ERR_WORKSPACE = -11,   /* The workspace is null or too small. */
    RAPT_ERR_ALIGNMENT = -12,   /* The workspace is not aligned to RAPT_WORKSPACE_ALIGNMENT, or an array, or memory for a plan, is
                                   not aligned to its elements. */
    RAPT_ERR_ISA_UNKNOWN = -13, /* No kernel of that name was built for this architecture. */
    RAPT_ERR_ISA_MISSING = -14, /* A kernel of that name exists, but this CPU or its operating system cannot run it. */
    RAPT_ERR_RANGE = -15,       /* A phase, a task, a thread's number, or a number of threads or sources is out of range. */
    RAPT_ERR_PLAN = -16,        /* The plan was not made by its init function, or, for merging, not with unmerged set. */
    RAPT_ERR_TABLE = -17,       /* A page, a start, a position or a length of a ragged, paged or ring batch is out of range. */
    RAPT_ERR_FEATURE = -18, /* A feature's number is out of range, it lacks what it needs, or two features exclude each other. */
    RAPT_ERR_ARITH = -19,   /* arith is not a rapt_arith, or the types of K and V do not allow it. */
    RAPT_ERR_UNUSED = -20,  /* A pointer is given that the plan does not use, since the description has nothing for it. */
    RAPT_ERR_SELF_CHECK = -21, /* A kernel's bits are not those of docs/order.md: the library was compiled with wrong options. */
    RAPT_ERR_TUNING = -22,     /* A rapt_tuning is for another kernel, one of its numbers is out of range, or its line of text is
                                  wrong or does not fit. */
    RAPT_ERR_PREPACKED = -23,  /* Memory for prepacked weights is too small, or holds none of this layer and its kernel. */
    RAPT_ERR_FLOAT_MODE = -24  /* A thread that is to compute does not round to nearest, flushes denormal numbers to 0, or traps,
                                  and the library was built to refuse that. */
} rapt_status;

/* Returns a line of English for a status; never null, not even for a number that is no status. */
RAPT_API const char *rapt_status_string(rapt_status status);

/* Returns the version of the linked library, "major.minor.patch", which may differ from that of this header. */
RAPT_API const char *rapt_version(void);

/* ---- Tensors --------------------------------------------------------------------------------------------------------- */

/* The type of a tensor's elements. Numbers keep their meaning from version to version: 1 to 16 are the types of version 0.1;
 * among later ones, 17 to 31 are for any tensor, 32 to 47 for K, V and weights, and 48 to 63 for masks and tables.
 *
 * Cache types are those that K and V may have but Q and O may not; some of them weights may have, too. Their elements are single
 * bytes, or they store groups of 32 channels (RAPT_NVFP4: 16), which must divide the channels of a row (d_k, d_v, or in of a
 * linear layer). A group begins with what all its channels share: s, or s and m, which are f16 numbers (little-endian) unless the
 * type says otherwise, or e, a byte. Then come its numbers n; the formula below says which value each n stands for. RAPT_Q4_K and
 * RAPT_Q6_K, of weights alone, store groups of 256 channels, with integers a and b that 32 or 16 of them share, in the order that
 * is said below. Groups have the same bytes on every machine; elements of more than a byte are in the machine's own byte order.
 * NVFP4 has an f32 scale of a whole tensor, too: pass it as k_scales and v_scales with strides of 0. */
typedef enum rapt_type {
    RAPT_NONE = 0,    /* There is no such tensor: the default of tensors that are optional. */
    RAPT_F32 = 1,     /* An element is an IEEE 754 binary32. */
    RAPT_F16 = 2,     /* An element is an IEEE 754 binary16. */
    RAPT_BF16 = 3,    /* An element is the upper half of a binary32. */
    RAPT_F8_E4M3 = 4, /* K, V: a byte of 4 exponent and 3 fraction bits, largest 448 (Micikevicius and others 2022, section 3). */
    RAPT_F8_E5M2 = 5, /* K, V: a byte, the upper half of a binary16 (ibid.). */
    RAPT_INT8 = 6,    /* K, V, weights: a byte, -128..127, whose value is that integer, times a scale where there are scales. */
    RAPT_INT4 = 7,    /* K, V: 18 bytes: s, then channels 2i and 2i + 1 in the low and the high half of byte i; s * (n - 8). */
    RAPT_INT4_MIN = 8,    /* K, V: 20 bytes: s, m, then 16 bytes as RAPT_INT4; s * n + m. */
    RAPT_Q8_0 = 9,        /* K, V, weights: ggml's block_q8_0, 34 bytes: s, then 32 int8; s * n. */
    RAPT_Q4_0 = 10,       /* K, V, weights: ggml's block_q4_0, 18 bytes: s, channels i and i + 16 in byte i; s * (n - 8). */
    RAPT_Q4_1 = 11,       /* K, V, weights: ggml's block_q4_1, 20 bytes: s, m, then 16 bytes as RAPT_Q4_0; s * n + m. */
    RAPT_Q5_0 = 12,       /* K, V: ggml's block_q5_0, 22 bytes: s, 32 fifth bits, 16 bytes as RAPT_Q4_0; s * (n - 16). */
    RAPT_Q5_1 = 13,       /* K, V: ggml's block_q5_1, 24 bytes: s, m, 32 fifth bits, 16 bytes as RAPT_Q4_0; s * n + m. */
    RAPT_BOOL = 14,       /* Masks: a byte, and the key is attended unless it is 0. */
    RAPT_BIT = 15,        /* Masks: a bit, the first key in a byte's lowest, and the key is attended if it is 1. */
    RAPT_I32 = 16,        /* Tables: an integer of 32 bits. */
    RAPT_MXFP4 = 32,      /* K, V: ggml's block_mxfp4 (OCP MX), 17 bytes: e, then n of E2M1 as RAPT_Q4_0; 2^(e - 127) * n. */
    RAPT_MXFP8_E4M3 = 33, /* K, V: OCP MX, 33 bytes: e, then n, each a RAPT_F8_E4M3; 2^(e - 127) * n. */
    RAPT_NVFP4 = 34,      /* K, V: NVIDIA's, 9 bytes: s, a RAPT_F8_E4M3, then n of E2M1, channels i and i + 8 in byte i; s * n. */
    RAPT_Q4_K = 35, /* Weights: ggml's block_q4_K, 144 bytes: f16 d, e; 6-bit a, b of each 32; 4-bit n; d * a * n - e * b. */
    RAPT_Q6_K = 36  /* Weights: ggml's block_q6_K, 210 bytes: 6-bit n; int8 a of each 16; f16 d; d * a * (n - 32). */
} rapt_type;

/* The numbers of all types, those of later versions included, are below this, so that a loop can visit all types. */
#define RAPT_TYPE_LIMIT 64

/* Says which tensors may have a type. */
typedef enum rapt_type_class {
    RAPT_CLASS_NONE = 0,    /* No tensor: the number is no type, or RAPT_NONE. */
    RAPT_CLASS_ELEMENT = 1, /* Any tensor of numbers. */
    RAPT_CLASS_WEIGHT = 2,  /* K, V and the weights of linear layers. */
    RAPT_CLASS_CACHE = 3,   /* K and V. */
    RAPT_CLASS_MASK = 4,    /* Masks, block masks and tables; rapt_desc says which of them. */
    RAPT_CLASS_MATRIX = 5   /* The weights of linear layers. */
} rapt_type_class;

/* Returns the class of a type, or RAPT_CLASS_NONE for a number that is no type. */
RAPT_API rapt_type_class rapt_type_class_of(rapt_type type);

/* Returns the name of a type for command lines and files, which is its enumerator in lower case without RAPT_ ("f32", "q4_0",
 * "none"); null for a number that is no type. */
RAPT_API const char *rapt_type_name(rapt_type type);

/* Returns the type whose rapt_type_name is exactly `name`; RAPT_NONE if there is none or name is null. */
RAPT_API rapt_type rapt_type_of_name(const char *name);

/* Returns the bytes of one row, a token's channels, in a type of Q, K, V, O or weights; -1 for other types, or if channels is not
 * a multiple of the type's group. */
RAPT_API int64_t rapt_row_bytes(rapt_type type, int64_t channels);

/* The layout of a tensor [batch, head, token, channel] in memory. Channels are contiguous. The tensor may lie at any address,
 * even unaligned to its elements. Strides are in bytes and not negative. Strides of an input may be 0 (broadcast) or make
 * elements share memory. No two elements of an output may share memory: when its dimensions longer than 1 are sorted by stride,
 * each stride must be at least the number of bytes that the dimensions before it span. A stride that is not used may be any
 * number: that of a dimension of length 0 or 1, one that a comment calls not used, and all of a tensor without elements. */
typedef struct rapt_layout {
    rapt_type type;       /* The type of an element; RAPT_NONE: there is no such tensor. */
    int64_t batch_stride; /* Bytes from an entry to the next. */
    int64_t head_stride;  /* Bytes from a head to the next. */
    int64_t token_stride; /* Bytes from a token to the next. */
} rapt_layout;

/* Returns the layout of a dense tensor [batch, head, token, channel]; for a pool of pages, tokens is page_size. Sizes that
 * overflow give a negative stride, which rapt_plan_init refuses. */
RAPT_API rapt_layout rapt_layout_bhsd(rapt_type type, int64_t heads, int64_t tokens, int64_t channels);

/* Returns the layout of a dense tensor [batch, token, head, channel]. For the rows of rapt_layer.h, which have a single head, the
 * arguments are (type, 1, tokens, channels), and for weights (type, 1, out, in). Sizes that overflow give a negative stride, as
 * above. */
RAPT_API rapt_layout rapt_layout_bshd(rapt_type type, int64_t heads, int64_t tokens, int64_t channels);

/* ---- The problem ----------------------------------------------------------------------------------------------------- */

/* The causal mask, which masks the keys at positions after that of a query, and the positions of queries among the keys.
 *
 * A key of a batch entry has a number j, counted from 0 through rings, pages and gathered lists. Key j has position j + k_offset,
 * query i position i + q_offset, where rapt_args.k_offsets and q_offsets give k_offset and q_offset of each entry. Without
 * k_offsets, k_offset is 0; without q_offsets, q_offset is k_offset + a, with a as below. Positions are used by causal masks,
 * windows, local chunks, prefixes, ALiBi, and the columns of masks and biases; the keys' numbers j by blocks and chunks of the
 * order of operations, lengths, page tables, block masks and states.
 *
 * ONNX's Attention places query 0 after the past keys: q_offset is the past length, or nonpad_kv_seqlen - q_len if that is given,
 * else 0. This equals RAPT_CAUSAL_BOTTOM_RIGHT only if every key is either a past or a new one. */
typedef enum rapt_causal {
    RAPT_CAUSAL_NONE = 0,         /* There is no causal mask; a = key length - q_len, for windows, ALiBi and local chunks. */
    RAPT_CAUSAL_BOTTOM_RIGHT = 1, /* a = key length - q_len: the last query sees the last key (FlashAttention, FlashInfer). */
    RAPT_CAUSAL_TOP_LEFT = 2      /* a = 0: the first query sees the first key only (PyTorch's is_causal). */
} rapt_causal;

/* ALiBi, a bias of the logits that is linear in the distance of query and key. (Press et al. 2022, section 3.) */
typedef enum rapt_alibi {
    RAPT_ALIBI_NONE = 0,     /* There is none. */
    RAPT_ALIBI_DISTANCE = 1, /* Logits become logit - slope * |position of the query - position of the key| (FlashAttention). */
    RAPT_ALIBI_BIAS = 2      /* Logits become logit + slope * bias[i, j] (ggml, whose mask holds the distances). */
} rapt_alibi;

/* The arithmetic of the products Q K^T and P V. rapt_linear_desc.arith says what it means in linear layers.
 *
 * - RAPT_EXACT: K and V of any type are converted to f32, and products are summed in f32.
 * - RAPT_INT8_DOT: each row of Q, and each row's weights for a block of keys, are quantised to 8 bits, and products are summed in
 *   integers. K and V are of RAPT_INT8 or, since 0.4, of RAPT_INT4, RAPT_Q8_0, RAPT_Q4_0 or RAPT_Q5_0; the scale of a group
 *   multiplies, in K, the integer sum over the group's channels, and in V the weights, before these are quantised.
 * - RAPT_BF16_DOT: Q, K, V (of any type) and the weights of the softmax are rounded to bf16, and products are summed in f32, as
 *   matrix units do. */
typedef enum rapt_arith {
    RAPT_EXACT = 0,    /* In f32. */
    RAPT_INT8_DOT = 1, /* In integers. */
    RAPT_BF16_DOT = 2  /* In bf16, summed in f32. */
} rapt_arith;

/* The treatment of keys at positions beyond the last column of a mask or bias. */
typedef enum rapt_rest {
    RAPT_REST_REFUSED = 0, /* A call with such keys is refused with MASK. */
    RAPT_REST_MASKED = 1,  /* Such keys are masked. */
    RAPT_REST_ATTENDED = 2 /* Such keys are attended, and their bias is 0. */
} rapt_rest;

/* The stage of the scores that a call writes to rapt_args.scores. This is for debugging and teaching: it takes queries x keys of
 * memory, and computes all scores a second time. (ONNX's qk_matmul_output_mode 0 is RAW, 3 is WEIGHTS. Modes 1 and 2 are the
 * values after softcap and after the mask, in an order that differs between its versions; here softcap comes first, CAPPED, then
 * the mask, LOGITS.) */
typedef enum rapt_scores_stage {
    RAPT_SCORES_NONE = 0,   /* Nothing. */
    RAPT_SCORES_RAW = 1,    /* scale * <q, k> for all keys that exist, masked or not. */
    RAPT_SCORES_CAPPED = 2, /* scale * <q, k> after softcap, for the same keys. */
    RAPT_SCORES_LOGITS = 3, /* The logits, after softcap, ALiBi, bias and logits_body; -inf for masked keys. */
    RAPT_SCORES_WEIGHTS = 4 /* The softmax of the logits, 0 for masked keys. A sink takes its share, so the sum is below 1. */
} rapt_scores_stage;

/* The argument of a callback: the logits of some rows for some adjacent keys, after scale, softcap, ALiBi and bias, before masks.
 * The logit of row r and key number first_key + n is logits[r * row_stride + n * key_stride]. A key that a mask or a bias of -inf
 * excludes stays excluded, whatever becomes of its logit. */
typedef struct rapt_logits {
    float *logits;         /* The logits, which may be changed. */
    int64_t row_stride;    /* Floats, not bytes, from a row to the next. */
    int64_t key_stride;    /* Floats from a key to the next. */
    int rows, keys;        /* The number of rows, and of keys. */
    int64_t batch;         /* The number of the batch entry, from 0 on. */
    int64_t first_key;     /* The number of the first key. */
    const int32_t *heads;  /* [rows]: the query head of each row. */
    const int32_t *tokens; /* [rows]: the number of each row's query within the entry, from 0 on. */
} rapt_logits;

/* A caller's function that may change logits; arg is rapt_args.logits_arg. It may itself run other plans. */
typedef void (*rapt_logits_body)(void *arg, const rapt_logits *logits);

/* Scales of K or V: element [b, h, token, channel] is multiplied by the f32 at scales + b * batch_stride + h * head_stride +
 * token * token_stride + channel * channel_stride. At least one of the last two strides is 0.
 *
 * Scales with a token_stride are one for each token of a head. They multiply the scores (K) or the weights (V). They are laid out
 * as the tokens are: in a paged cache, b is the page, and batch_stride the distance of two pages; with ragged keys batch_stride
 * is not used. A function that writes a cache computes and writes them.
 *
 * Scales without a token_stride are one for each channel of a head or, with both strides 0, one for each head. They multiply the
 * query (K) or the output (V), and b is the entry, in paged caches and with ragged keys, too. A function that writes a cache
 * reads them. */
typedef struct rapt_scales {
    int present;            /* Not 0: there are scales. The default is 0. */
    int64_t batch_stride;   /* Bytes, 0 or more, from an entry, or a page, to the next. */
    int64_t head_stride;    /* Bytes, 0 or more, from a head to the next. */
    int64_t token_stride;   /* Bytes, 0 or more, from a token to the next; 0: all tokens have the same scale. */
    int64_t channel_stride; /* Bytes, 0 or more, from a channel to the next; 0: all channels have the same scale. */
} rapt_scales;

/* The most channels that a head may have: the limit of d_k and d_v. */
#define RAPT_MAX_HEAD_DIM 1024

/* The limit of the numbers of tokens, heads, entries and pages. */
#define RAPT_MAX_LENGTH INT32_MAX

/* Keys of a chunk of the order of operations (docs/order.md), by which keys are split and states are merged. */
#define RAPT_CHUNK_KEYS 512

struct rapt_tuning; /* Numbers by which work is cut, at the end of this header. */

/* A problem of attention: its shape, the layouts of its tensors, and what modifies its scores. Call rapt_desc_init first, then
 * set heads, kv_heads, q_len, kv_len, d_k, d_v, q, k, v and o; every other field has a default, with which its feature is absent.
 * A key is attended if causal, the windows, local_chunk, mask and block_mask all allow it; prefix lifts causal and window_right
 * for the first keys. The fields are grouped by subject; fields that later versions added to a group come at the end, since the
 * struct grows only there. */
typedef struct rapt_desc {
    /* The size of the caller's struct, with a mark that it was initialised: set by rapt_desc_init, never by hand. */
    size_t size;

    /* ---- Shape. */

    int64_t batch;    /* Batch entries, 0..RAPT_MAX_LENGTH. The default is 1. */
    int64_t heads;    /* Query heads, 1..RAPT_MAX_LENGTH, a multiple of kv_heads. */
    int64_t kv_heads; /* Key/value heads, 1..heads: heads for MHA, 1 for MQA. Query head h reads head h / (heads / kv_heads). */
    int64_t q_len;    /* Query tokens of each entry, 0..RAPT_MAX_LENGTH. */
    int64_t kv_len;   /* Key tokens of each entry, 0..RAPT_MAX_LENGTH; the capacity, if rapt_args.kv_lengths gives lengths. */
    int64_t d_k;      /* Channels of a row of Q and K, 1..RAPT_MAX_HEAD_DIM. */
    int64_t d_v;      /* Channels of a row of V and O, 1..RAPT_MAX_HEAD_DIM. */

    /* ---- Layouts. */

    rapt_layout q; /* [batch, heads, q_len, d_k] of RAPT_F32, RAPT_F16 or RAPT_BF16. */
    rapt_layout k; /* [batch, kv_heads, kv_len, d_k] of any type but those of masks. */
    rapt_layout v; /* [batch, kv_heads, kv_len, d_v] of any type but those of masks, which may differ from K's. */
    rapt_layout o; /* [batch, heads, q_len, d_v] of RAPT_F32, RAPT_F16 or RAPT_BF16, rounded once from f32, to nearest even. */

    /* [batch, heads, q_len] of RAPT_F32: the log-sum-exp of each row, the natural logarithm of the sum of exp(logit); -inf for a
     * row without keys. token_stride is the distance of two queries. RAPT_NONE, the default: it is not wanted. */
    rapt_layout lse;

    /* ---- Softmax scale. */

    /* The factor of the scores <q, k>: finite; with 0 the result is the mean of the attended values. NaN, the default, means 1 /
     * sqrt(d_k). */
    float scale;

    /* ---- Masks. */

    /* The causal mask: if there is one, a query attends only to keys at its own position (see rapt_causal) and before it. The
     * default is RAPT_CAUSAL_NONE; decoders use RAPT_CAUSAL_BOTTOM_RIGHT. */
    rapt_causal causal;

    int64_t window_left;  /* The most positions that an attended key may lie before the query. -1, the default: no limit. */
    int64_t window_right; /* The most that it may lie after the query, if causal allows any. -1, the default: no limit. */

    /* Keys at positions below this are attended even if causal or window_right excludes them (prefix-LM). 0, the default: none.
     * rapt_args.prefixes gives one for each entry. */
    int64_t prefix;

    /* If above 0, a query attends only to keys in its own chunk of positions: those with the same position / local_chunk, rounded
     * down. 0, the default: no such limit. */
    int64_t local_chunk;

    /* [batch, heads, q_len] rows of mask_keys elements, RAPT_BOOL or RAPT_BIT: which keys are attended. Strides of 0 broadcast,
     * and token_stride is the distance of two queries, here and below. With ragged queries, too, there is a batch dimension: row
     * i of an entry is for its query i, and q_len is that of the longest entry. RAPT_NONE, the default: there is no mask. */
    rapt_layout mask;

    /* A block-sparse mask of RAPT_BOOL: [batch, heads, ceil(q_len / block_mask_queries)] rows of ceil(kv_total / block_mask_keys)
     * elements. Keys of a block whose element is 0 are masked; blocks are counted by the keys' numbers. With ragged queries or
     * keys, q_len and kv_total are those of the longest entry. RAPT_NONE, the default: there is none. */
    rapt_layout block_mask;
    int64_t block_mask_queries; /* Queries of a block, 1 or more. Not used without block_mask. */
    int64_t block_mask_keys;    /* Keys of a block, a multiple of 64. Not used without block_mask. */

    /* ---- Logits. */

    /* [batch, heads, q_len] rows of bias_keys elements, RAPT_F32, RAPT_F16 or RAPT_BF16, which are added to the logits. -inf
     * masks the key; any finite number, even the lowest, is added. RAPT_NONE, the default: there is no bias. */
    rapt_layout bias;

    /* If above 0, logits become softcap * tanh(logit / softcap), before ALiBi, bias and masks. 0, the default: no softcap. */
    float softcap;

    rapt_alibi alibi; /* The form of ALiBi. The default is RAPT_ALIBI_NONE. */

    /* [batch, heads] of RAPT_F32, RAPT_F16 or RAPT_BF16: the slopes of alibi. token_stride is not used. RAPT_NONE, the default:
     * there are none, and no alibi. */
    rapt_layout slopes;

    /* [batch, heads] of RAPT_F32, RAPT_F16 or RAPT_BF16: one more logit for each row of a head, without a value, which joins the
     * sum of the row's softmax and of its lse. token_stride is not used. RAPT_NONE, the default: there are none. */
    rapt_layout sinks;

    /* A callback that may change the logits of each tile of rows and block of keys. It makes calls slow, and is meant for
     * research. Null, the default: none. */
    rapt_logits_body logits_body;

    /* ---- Storage of K and V. */

    rapt_scales k_scales; /* Scales of K; the default is none. */
    rapt_scales v_scales; /* Scales of V; the default is none. */
    rapt_arith arith;     /* The arithmetic of products with K and V. The default is RAPT_EXACT. */

    /* ---- Ragged batches. */

    /* [batch + 1], not descending; with either or both the batch is ragged. q_starts: entry b has the queries
     * q_starts[b]..q_starts[b + 1] - 1, Q, O, lse, states and scores have no batch dimension (batch_stride is not used), and
     * q_len is the number of all their tokens. k_starts: entry b has the keys k_starts[b]..k_starts[b + 1] - 1, K and V have no
     * batch dimension, and kv_len is the number of all their tokens. Tokens before the first start and from the last start on
     * belong to no entry, and are neither read nor written. Both arrays are read when the plan is made and whenever it is run, so
     * they must not be moved or changed: a run that finds other numbers in them is refused with TABLE. Null, the default: not
     * ragged. */
    const int32_t *q_starts, *k_starts;

    /* ---- Paged caches. */

    /* Keys of a page, 1..RAPT_MAX_LENGTH; 0, the default: not paged. With pages, K and V are pools [pages, kv_heads, page_size,
     * channels], where batch_stride is the distance of two pages, and slot s of entry b lies in page table[b, s / page_size],
     * where key kv_first + j has slot j unless rapt_args.ring_starts says otherwise; kv_len is the most keys that an entry can
     * have. To select keys (gather), use pages of one key: the table's row, which may be another for each head and query, lists
     * the selected keys; these are then numbered in its order. */
    int64_t page_size;
    int64_t pages; /* Pages of the pool, 0..RAPT_MAX_LENGTH. */

    /* The block table, [batch, kv_heads, q_len] rows of RAPT_I32, with strides as in mask. batch_stride is not used if
     * rapt_args.table_starts is given. */
    rapt_layout table;

    int trust_table; /* Not 0: page numbers are not checked before each run. The default is 0. */

    /* ---- Parts of longer sequences. */

    /* The number of the first key of K and V, a multiple of RAPT_CHUNK_KEYS, if they are a part of a longer sequence whose states
     * are merged elsewhere (rapt_merge_states_run). Lengths (kv_total, rapt_args.kv_lengths) are counted from key 0. The default
     * is 0. */
    int64_t kv_first;

    int64_t kv_total; /* Keys of the whole sequence. 0, the default: kv_first + kv_len. */
    int unmerged;     /* Not 0: a state for each row and chunk is written to rapt_args.states, instead of o and lse. */

    /* [batch, heads, q_len] rows of states, RAPT_F32. o and lse are then the layouts of rapt_merge_states_run. Not used without
     * unmerged. */
    rapt_layout states;
    int64_t state_stride; /* Bytes from a row's state to that of its next chunk. Not used without unmerged. */

    /* ---- Execution. */

    /* How many threads are expected to share a call, 1..RAPT_MAX_LENGTH. It determines how finely the work is cut, and whether
     * keys are split too, but neither the bits nor how many threads may run. The default is 1. */
    int64_t threads;

    const char *isa; /* The name of the kernel to use. Null, the default: the process-wide choice. */

    /* ---- Since 0.2: more about masks. */

    /* Columns of a row of mask, and of bias; a column is a position. 0, the default: kv_total (with ragged keys, that of the
     * longest entry). Not used with a key_stride of 0. */
    int64_t mask_keys, bias_keys;

    rapt_rest mask_rest, bias_rest; /* The treatment of keys at positions beyond these columns. The default refuses them. */

    /* Elements from a column of mask, and of bias, to the next: 1, the default; or 0, where a row has one element for all keys.
     * With 0, mask_keys and mask_rest, bias_keys and bias_rest have no effect, but must be valid. */
    int mask_key_stride, bias_key_stride;

    /* ---- Since 0.2: more about logits. */

    rapt_scores_stage scores_stage; /* The scores that are written to rapt_args.scores. The default is RAPT_SCORES_NONE. */

    /* [batch, heads, q_len] rows of RAPT_F32, with a column for each key number: kv_total, or with ragged keys as many as the
     * longest entry has. A call writes the columns of the keys that K has room for, from kv_first on. Those beyond the entry's
     * length get -inf, or 0 in RAPT_SCORES_WEIGHTS, which is refused together with unmerged. */
    rapt_layout scores;

    /* ---- Since 0.4: more about execution. */

    const struct rapt_tuning *tuning; /* Numbers by which the work is cut; copied. Null, the default: the kernel's. */

    /* Not 0: runs do not check that the numbers in q_starts and k_starts are still those of rapt_plan_init, which would take a
     * nanosecond or two for each number. The default is 0. */
    int trust_starts;
} rapt_desc;

/* Gives every field its default, or 0 where it has none; call it before you set any. Beware: a size that may be 0 is no error if
 * it is not set. With q_len 0 or batch 0 a call writes nothing; with kv_len 0 it writes O = 0 and lse = -inf. */
#define rapt_desc_init(desc) rapt_desc_init_sized((desc), sizeof *(desc))

/* Implements the macro rapt_desc_init, which passes the size of the caller's struct. */
RAPT_API void rapt_desc_init_sized(rapt_desc *desc, size_t size);

/* ---- The plan -------------------------------------------------------------------------------------------------------- */

/* A validated problem in plain memory of the caller's, which may be copied, kept and thrown away. Its contents are private to
 * this version of the library. It keeps the addresses of q_starts, k_starts and logits_body, and copies of everything else that
 * it needs of the description.
 *
 * For a ragged batch it also stores which tasks belong to which entry, so that rapt_run_task need not go through all entries. A
 * rapt_plan has room to store where some entries begin, and the search for a task begins at the nearest one; memory of
 * RAPT_PLAN_BYTES(batch) bytes, whose size is passed to rapt_plan_init_sized, has room for all. */
typedef struct rapt_plan {
    uint64_t opaque[320]; /* Private to the library. */
} rapt_plan;

/* The bytes of a plan that has room for all entries of a ragged batch. */
#define RAPT_PLAN_BYTES(batch) (192 * sizeof(uint64_t) + 16 * ((size_t)(batch) + 1))

/* Validates the problem and chooses kernel, path and tasks. Errors: NULL, STRUCT, SHAPE, HEADS, TYPE, STRIDE, SCALE, MASK,
 * ISA_UNKNOWN, ISA_MISSING, RANGE (threads), TABLE (q_starts, k_starts), ALIGNMENT (q_starts, k_starts, the plan), FEATURE,
 * ARITH, OVERLAP (the plan lies on q_starts or k_starts), TUNING. The function of this name, for callers in other languages and
 * clients of 0.1, takes a plan of 192 uint64_t. */
RAPT_API rapt_status rapt_plan_init(rapt_plan *plan, const rapt_desc *desc);
#define rapt_plan_init(plan, desc) rapt_plan_init_sized((plan), sizeof *(plan), (desc))

/* Implements the macro rapt_plan_init. The plan may lie in any memory of `bytes` bytes, aligned as uint64_t; 192
 * uint64_t are enough. */
RAPT_API rapt_status rapt_plan_init_sized(void *plan, size_t bytes, const rapt_desc *desc);

/* Returns what rapt_plan_init would return, and writes the reason to text, unless that is null: a line, cut to `bytes` with its
 * terminator, or "" if nothing is refused. */
RAPT_API rapt_status rapt_plan_explain(const rapt_desc *desc, char *text, size_t bytes);

/* The choices of a plan. */
typedef struct rapt_plan_info {
    size_t size;          /* Set by the caller, to sizeof(rapt_plan_info) of its header. */
    const char *isa;      /* The kernel, by its rapt_isa_name: "avx2", "neon", "scalar", ... */
    const char *rounding; /* Its rounding class, "fused" or "unfused": kernels of one class give the same bits. */
    const char *arith;    /* The arithmetic, "exact", "int8" or "bf16". */
    const char *path;     /* "queries-in-lanes" (many rows for each key/value head), "keys-in-lanes" (few), or "mixed" (both). */
    int phases; /* 1; 2 if keys are split and the plan merges their states itself, or for RAPT_SCORES_WEIGHTS. Phase 0 ends before
                   phase 1 begins. */
    int64_t tasks[2];    /* Tasks of each phase, which are independent of each other. */
    size_t shared_bytes; /* Bytes of workspace that all threads share. */
    size_t thread_bytes; /* Bytes of workspace that each thread needs in addition. */

    /* ---- Since 0.3. */

    int64_t rows_keys_in_lanes; /* Rows (a query of one head each) with keys in lanes: all, none, or with "mixed" those of short
                                   entries, and those that are left over beside full vectors of queries. */
} rapt_plan_info;

/* Fills *info, whose size the caller has set, with what the plan has chosen. Errors: NULL, STRUCT, PLAN. */
RAPT_API rapt_status rapt_plan_query(const rapt_plan *plan, rapt_plan_info *info);

/* The address of a workspace must be a multiple of this many bytes. */
#define RAPT_WORKSPACE_ALIGNMENT 64

/* Sets *bytes to the size of the workspace that a call by nth threads needs (1 for rapt_run): shared_bytes + nth * thread_bytes.
 * Its contents need not be kept between calls. Errors: NULL, PLAN, RANGE (nth < 1), SHAPE (overflow). */
RAPT_API rapt_status rapt_workspace_size(const rapt_plan *plan, int64_t nth, size_t *bytes);

/* The most bytes of stack that a call uses below the frame of its caller, on any kernel of an optimised build (-O2, -O3); the
 * caller's own callbacks come on top. Threads that run shares or tasks need no more. */
#define RAPT_STACK_BYTES (64 << 10)

/* ---- Running --------------------------------------------------------------------------------------------------------- */

/* The tensors and arrays of a call of attention. Pointers for which the plan has no layout or other use are refused, except o,
 * lse and sinks of an unmerged plan, which rapt_merge_states_run uses. Arrays with one number for each entry are [batch]. */
typedef struct rapt_args {
    size_t size; /* Set by rapt_args_init, as in rapt_desc. */

    const void *q, *k, *v; /* The tensors that are read; each may be null only if it has no elements. */
    void *o;               /* The result; may be null only if it has no elements, or the plan is unmerged. */
    float *lse;            /* The log-sum-exp of each row, where the plan has a layout for it. */

    /* The number of keys of each entry, from key 0 on, 0..kv_total (with ragged keys, at most the entry's own). Keys and values
     * beyond it are never read. Null: all. */
    const int32_t *kv_lengths;

    const void *mask, *block_mask, *bias; /* The mask, the block mask and the bias, each where the plan has a layout for it. */
    const void *slopes, *sinks;           /* The slopes of ALiBi and the sinks, each where the plan has a layout for it. */
    const float *k_scales, *v_scales;     /* The scales of K and of V, each where the plan has scales. */
    void *logits_arg;                     /* The first argument of logits_body. */
    const int32_t *prefixes;              /* The prefix of each entry. Null: rapt_desc.prefix. */
    const int32_t *table;                 /* The block table, where the plan is paged. */

    /* [batch + 1], not descending: the pages of entry b are table[table_starts[b]] to table[table_starts[b + 1] - 1] (CSR). Null:
     * the table is a matrix with the strides of its layout. */
    const int32_t *table_starts;

    /* The number of keys in each entry's last page, 1..page_size, which together with table_starts gives the entry's key length;
     * kv_lengths take precedence. Refused without table_starts. Null: not given. */
    const int32_t *last_page;

    /* The slot where each entry's ring begins, 0..kv_len - 1: key kv_first + j lies in slot (ring_starts[b] + j) mod kv_len (with
     * k_starts, modulo the entry's own keys). Null: 0. */
    const int32_t *ring_starts;

    float *states; /* The states that are written, if the plan is unmerged. */

    /* Memory for intermediate results, aligned to RAPT_WORKSPACE_ALIGNMENT, and private to the call until it is done. */
    void *workspace;
    size_t workspace_bytes; /* At least what rapt_workspace_size gives. */

    /* ---- Since 0.2. */

    const int32_t *q_offsets; /* The position of each entry's query 0. Null: as rapt_causal says. */

    /* The position of each entry's key 0, 0 or more. It is not 0 in a ring or a trimmed cache, whose key 0 is not the first of
     * the sequence, so that masks, biases and local chunks refer to positions in the sequence. Null: 0. */
    const int32_t *k_offsets;

    float *scores; /* The scores of rapt_desc.scores_stage, where the plan has a layout for them. */
} rapt_args;

/* Gives every field its default, or 0 where it has none; call it before you set any. */
#define rapt_args_init(args) rapt_args_init_sized((args), sizeof *(args))

/* Implements the macro rapt_args_init, which passes the size of the caller's struct. */
RAPT_API void rapt_args_init_sized(rapt_args *args, size_t size);

/* Returns what a call with nth threads (1 for rapt_run) would return, and writes the reason to text, as rapt_plan_explain does.
 * Errors of ith, phase, task and barrier, which it does not take, are shown by rapt_trace_to. */
RAPT_API rapt_status rapt_args_explain(const rapt_plan *plan, const rapt_args *args, int64_t nth, char *text, size_t bytes);

/* Computes attention on the calling thread. Everything attended reaches the row: a NaN in an attended key makes the row NaN, a
 * NaN in an attended value makes that channel NaN. Masked keys and values never do. A key of score -inf has weight 0; a row
 * without attended keys, or whose scores are all -inf, gives o = 0 (unless an attended value is not finite) and lse = -inf.
 *
 * Errors, also of the ways to run below: NULL, STRUCT, PLAN, SHAPE (the workspace for nth threads overflows), KV_LENGTH, TABLE,
 * MASK (a position beyond the columns of a mask or bias), OVERLAP, STRIDE (a tensor would wrap around the address space),
 * WORKSPACE, ALIGNMENT, UNUSED, and RANGE in functions that take a phase, a task or threads. */
RAPT_API rapt_status rapt_run(const rapt_plan *plan, const rapt_args *args);

/* The body of a parallel loop, which a rapt_parallel_for calls for each i. */
typedef void (*rapt_body)(void *body_arg, int64_t i);

/* The caller's parallel loop: calls body(body_arg, i) for every i in 0..n-1, in any order, on any threads or one after the other,
 * and returns when all are done. pool is the pointer that the caller passed together with the function. */
typedef void (*rapt_parallel_for)(void *pool, int64_t n, rapt_body body, void *body_arg);

/* Does what rapt_run does through the caller's parallel_for, which is called once for each phase with n = nth. Threads take tasks
 * as they become free. */
RAPT_API rapt_status rapt_run_parallel(const rapt_plan *plan, const rapt_args *args, int64_t nth, rapt_parallel_for parallel_for,
                                       void *pool);

/* The caller's barrier: returns when all threads that share a call have called it. */
typedef void (*rapt_barrier)(void *barrier_arg);

/* Does the share of thread ith of nth in what rapt_run does; all nth threads make this call with the same plan and args. Each
 * calls barrier(barrier_arg) once between two phases; barrier may be null if the plan has one phase or nth is 1. When the call
 * returns, this thread's share is done; the caller waits for the other threads. Errors in plan and args are returned to all
 * threads, before any of them calls the barrier. */
RAPT_API rapt_status rapt_run_share(const rapt_plan *plan, const rapt_args *args, int64_t ith, int64_t nth, rapt_barrier barrier,
                                    void *barrier_arg);

/* Does the share of thread ith of nth in one phase, 0..rapt_plan_info.phases-1, of what rapt_run does. The caller has all threads
 * finish a phase before any begins the next. */
RAPT_API rapt_status rapt_run_phase(const rapt_plan *plan, const rapt_args *args, int phase, int64_t ith, int64_t nth);

/* Does one task of a phase, 0..rapt_plan_info.tasks[phase]-1. Tasks that run at the same time need different slots, 0..nth-1, of
 * a workspace for nth threads. Only what the task itself uses is validated, so for example not kv_lengths of other batch entries.
 */
RAPT_API rapt_status rapt_run_task(const rapt_plan *plan, const rapt_args *args, int phase, int64_t task, int64_t slot);

/* ---- Writing caches -------------------------------------------------------------------------------------------------- */

/* Rotary position embedding (RoPE), which rotates pairs of channels by angles that grow with the position. At position p, pair i
 * of a token's channels, (x, y), becomes
 *
 *     (x * c - y * s, y * c + x * s)        c, s = amplitude * (cos, sin)((p + offset) * frequencies[i]), each rounded to f32
 *
 * by two products and a sum of f32, each rounded (Su et al. 2021, RoFormer, section 3.2.2). Before rounding, the errors of c and
 * s are below 1e-11, for positions up to 2^31 and frequencies up to 1. An angle of 0 only multiplies x and y by amplitude. */
typedef struct rapt_rope {
    int64_t channels; /* The number of channels that are rotated, from channel 0 on; even. 0, the default: none. */
    int interleaved;  /* 0, the default: pair i is channels i and i + channels / 2 (NeoX, Llama). Else 2i and 2i + 1 (GPT-J). */

    /* [channels / 2], in radians per position, -16..16: those of rapt_rope_frequencies, scaled by the caller as the model
     * requires (linear, NTK, YaRN, Llama 3). Null: c and s come from a rapt_rope_table. */
    const double *frequencies;

    double amplitude; /* A factor of c and s, finite; not applied to those of a table. The default is 1. */
    int64_t offset;   /* Is added to every position, -RAPT_MAX_LENGTH..RAPT_MAX_LENGTH. The default is 0. */
} rapt_rope;

/* Tables of c and s, which many engines have: element i of row p + offset is for pair i at position p. They are used if rapt_rope
 * has channels and no frequencies, and otherwise refused with UNUSED. */
typedef struct rapt_rope_table {
    rapt_type type;     /* RAPT_F32, RAPT_F16 or RAPT_BF16. RAPT_NONE, the default: there is no table. */
    const void *c, *s;  /* The two tables, [positions] rows of channels / 2 elements, at any alignment. */
    int64_t positions;  /* The number of rows, 0..RAPT_MAX_LENGTH; every p + offset must be 0..positions-1. */
    int64_t row_stride; /* Bytes from a row to the next. 0, the default: rows are dense. */
} rapt_rope_table;

/* Writes the usual frequencies of RoPE: frequencies[i] = base^(-2i / channels) for i < channels / 2, within 2 ulp (Su et al.
 * 2021, section 3.2.2, with base = 10000). base is finite, 1 or more. Errors: NULL, ALIGNMENT, SHAPE (channels:
 * even, 2..RAPT_MAX_HEAD_DIM), FEATURE (base). */
RAPT_API rapt_status rapt_rope_frequencies(double base, int64_t channels, double *frequencies);

/* The new tokens that rapt_kv_append_run appends, and the cache that it writes. Fields that rapt_desc also has mean the same
 * there. Call rapt_kv_append_desc_init first, then set kv_heads, tokens, kv_len, and d_k, new_k and k, or d_v, new_v and v, or
 * all of these. */
typedef struct rapt_kv_append_desc {
    size_t size; /* Set by rapt_kv_append_desc_init, as in rapt_desc. */

    int64_t batch;     /* Entries, 0..RAPT_MAX_LENGTH. The default is 1. */
    int64_t kv_heads;  /* Key/value heads, 1..RAPT_MAX_LENGTH. */
    int64_t tokens;    /* New tokens of each entry, 0..RAPT_MAX_LENGTH; the most, if rapt_kv_append_args gives lengths. */
    int64_t kv_len;    /* Key tokens that the cache has room for, for each entry, 0..RAPT_MAX_LENGTH. */
    int64_t d_k, d_v;  /* Channels of K and V, 1..RAPT_MAX_HEAD_DIM; not used for a tensor that is not written. */
    rapt_layout new_k; /* [batch, kv_heads, tokens, d_k] of RAPT_F32, RAPT_F16 or RAPT_BF16. */
    rapt_layout new_v; /* [batch, kv_heads, tokens, d_v] of the same types. */
    rapt_layout k;     /* The cache, [batch, kv_heads, kv_len, d_k] or pages. RAPT_NONE: K is not written. */
    rapt_layout v;     /* [batch, kv_heads, kv_len, d_v] or pages. RAPT_NONE: V is not written. */

    /* The scales of K and V. Those with a token_stride are computed and written, others are read. The default is none. */
    rapt_scales k_scales, v_scales;

    int64_t page_size; /* Keys of a page. 0, the default: not paged. */
    int64_t pages;     /* Pages of the pool. */
    rapt_layout table; /* The block table, [batch, kv_heads] rows of RAPT_I32; token_stride is not used. */
    int trust_table;   /* Not 0: it is not checked that page numbers are below pages and that no place is given twice. */
    rapt_rope rope;    /* The rotation of K before it is stored; refused if K is not written. The default is none. */
} rapt_kv_append_desc;

/* Gives every field its default, or 0 where it has none; call it before you set any. */
#define rapt_kv_append_desc_init(desc) rapt_kv_append_desc_init_sized((desc), sizeof *(desc))

/* Implements the macro rapt_kv_append_desc_init, which passes the size of the caller's struct. */
RAPT_API void rapt_kv_append_desc_init_sized(rapt_kv_append_desc *desc, size_t size);

/* The tensors and arrays of a call of rapt_kv_append_run. */
typedef struct rapt_kv_append_args {
    size_t size; /* Set by rapt_kv_append_args_init. */

    const void *new_k, *new_v;  /* The new keys and values; null for K or V if it is not written. */
    void *k, *v;                /* The cache's keys and values; null for K or V if it is not written. */
    float *k_scales, *v_scales; /* The scales of K and of V, each where the description has scales. */

    /* [batch]: the key number of each entry's first new token; the others follow, and all must be below kv_len. Null: 0. */
    const int32_t *starts;

    const int32_t *lengths; /* [batch], each 0..tokens: new tokens of each entry. Null: tokens for all. */

    /* [batch + 1], not descending, for ragged new tokens: entry b has tokens token_starts[b]..token_starts[b + 1] - 1 of a new_k
     * and new_v without batch dimension, where rapt_kv_append_desc.tokens is the number of all tokens; lengths must be null.
     * Null: not ragged. */
    const int32_t *token_starts;

    /* [batch, tokens], or [tokens] with token_starts: the positions by which rope rotates. Null: the keys' numbers. */
    const int32_t *positions;

    const int32_t *table, *table_starts, *ring_starts; /* The block table and where rings begin, as in rapt_args. */

    /* ---- Since 0.2. */

    rapt_rope_table rope_table; /* c and s, where rope has no frequencies. */
} rapt_kv_append_args;

/* Gives every field its default, or 0 where it has none; call it before you set any. */
#define rapt_kv_append_args_init(args) rapt_kv_append_args_init_sized((args), sizeof *(args))

/* Implements the macro rapt_kv_append_args_init, which passes the size of the caller's struct. */
RAPT_API void rapt_kv_append_args_init_sized(rapt_kv_append_args *args, size_t size);

/* Appends the new tokens' keys and values to a cache. The bits are the same on every machine. Nothing is written but the tokens'
 * channels and scales.
 *
 * Where there is a scale, an element x (of K: after rotation) is replaced by x / scale, an f32 division, or by 0 if the scale is
 * 0. The type of the cache determines how x is stored:
 *
 * - F32, F16, BF16: x rounded to nearest even; infinity beyond the type's range.
 * - F8_E4M3, F8_E5M2: x rounded to nearest even; the largest finite value beyond the type's range; NaN stays NaN.
 * - INT8: the integer of -127..127 nearest to x, ties to even; 0 for NaN.
 * - INT4: s = y / -8, where y is the group's first element of largest magnitude; n = x / s + 8.
 * - INT4_MIN: s = (largest - least) / 15, m = least, n = (x - m) / s.
 * - Q8_0, Q4_0, Q4_1, Q5_0, Q5_1: as in ggml's reference (quantize_row_*_ref), each f32 operation rounded.
 * - MXFP4, MXFP8_E4M3: as in OCP MX 1.0 (section 6.3). Let p be the largest power of two that is at most the group's largest
 *   magnitude; then 2^(e - 127) is p / 4 in MXFP4 and p / 256 in MXFP8_E4M3, where 4 and 256 are the largest powers of two that
 *   n can be. e is at least 0. It is 255, which means NaN, if an element is not finite. n = x / 2^(e - 127), rounded to nearest
 *   even, is bounded to +-6 or +-448.
 * - NVFP4: s = the group's largest magnitude / 6, stored as F8_E4M3; n = x / s by the stored s, an f32 division, then rounded to
 *   nearest even and bounded to +-6. If s is 0 or an element is not finite, which makes s NaN, the codes of n are 0.
 *
 * In INT4 and INT4_MIN, s and m are bounded to +-65504 and rounded to f16. n is the nearest of the integers that it can be, ties
 * to even; if s is 0, n is 8 in INT4 and 0 in INT4_MIN. If an element of a group, or s, is not finite, s is NaN, so the whole
 * group is NaN.
 *
 * Scales with a token_stride are possible for INT8 and fp8. For each token and head, the scale is the largest magnitude / 127
 * (INT8), / 448 (E4M3) or / 57344 (E5M2); if an element is not finite, the scale is NaN and the elements are 0.
 *
 * Errors: NULL, STRUCT, SHAPE, TYPE, STRIDE, KV_LENGTH (a token beyond kv_len), TABLE (starts, lengths, token_starts,
 * ring_starts, a page, a place that two tokens are given, a position beyond the rope table), ALIGNMENT, FEATURE (rope, pages,
 * scales, lengths together with token_starts), UNUSED, OVERLAP. Written tensors with the same strides may lie in the gaps between
 * each other's rows (K and V of a page side by side, scales after their row). */
RAPT_API rapt_status rapt_kv_append_run(const rapt_kv_append_desc *desc, const rapt_kv_append_args *args);

/* Does what rapt_kv_append_run does through the caller's parallel_for, in nth slots (see rapt_run_parallel). */
RAPT_API rapt_status rapt_kv_append_run_parallel(const rapt_kv_append_desc *desc, const rapt_kv_append_args *args, int64_t nth,
                                                 rapt_parallel_for parallel_for, void *pool);

/* Does the share of thread ith of nth in what rapt_kv_append_run does; the threads need not wait for each other. */
RAPT_API rapt_status rapt_kv_append_run_share(const rapt_kv_append_desc *desc, const rapt_kv_append_args *args, int64_t ith,
                                              int64_t nth);

/* Returns what rapt_kv_append_run would return, and writes the reason to text, as rapt_plan_explain does. */
RAPT_API rapt_status rapt_kv_append_explain(const rapt_kv_append_desc *desc, const rapt_kv_append_args *args, char *text,
                                            size_t bytes);

/* ---- Copying within caches ----------------------------------------------------------------------------------------------- */

/* The cache to which rapt_kv_copy_run copies tokens. If it copies them from another cache, that one has the same sizes and
 * layouts. Call rapt_kv_copy_desc_init first, then set kv_heads, tokens, and d_k and k, or d_v and v, or all of these. */
typedef struct rapt_kv_copy_desc {
    size_t size; /* Set by rapt_kv_copy_desc_init, as in rapt_desc. */

    int64_t entries;  /* Batch entries, or pages, of the cache, 0..RAPT_MAX_LENGTH. The default is 1. */
    int64_t kv_heads; /* Key/value heads, 1..RAPT_MAX_LENGTH. */
    int64_t tokens;   /* Tokens that an entry, or a page, has room for, 0..RAPT_MAX_LENGTH. */
    int64_t d_k, d_v; /* Channels of K and V, 1..RAPT_MAX_HEAD_DIM; not used for a tensor that is not copied. */
    rapt_layout k;    /* [entries, kv_heads, tokens, d_k]. RAPT_NONE, the default: K is not copied. */
    rapt_layout v;    /* [entries, kv_heads, tokens, d_v]. RAPT_NONE, the default: V is not copied. */

    rapt_scales k_scales, v_scales; /* Scales with a token_stride are copied together with their tokens; others are not. */
} rapt_kv_copy_desc;

/* Gives every field its default, or 0 where it has none; call it before you set any. */
#define rapt_kv_copy_desc_init(desc) rapt_kv_copy_desc_init_sized((desc), sizeof *(desc))

/* Implements the macro rapt_kv_copy_desc_init, which passes the size of the caller's struct. */
RAPT_API void rapt_kv_copy_desc_init_sized(rapt_kv_copy_desc *desc, size_t size);

/* A copy of adjacent tokens. Tokens are counted as they lie in memory, without regard to rings. */
typedef struct rapt_kv_range {
    int32_t from;       /* The entry or page that is read. */
    int32_t from_token; /* The first token that is read. */
    int32_t to;         /* The entry or page that is written; it may be the same. */
    int32_t to_token;   /* The first token that is written. */
    int32_t tokens;     /* The number of tokens. */
} rapt_kv_range;

/* The tensors and ranges of a call of rapt_kv_copy_run. */
typedef struct rapt_kv_copy_args {
    size_t size; /* Set by rapt_kv_copy_args_init. */

    void *k, *v;                /* The keys and values of the cache that is written. */
    float *k_scales, *v_scales; /* The scales of k and v, where they have a token_stride. */

    const void *from_k, *from_v; /* The keys and values of the cache that is read. All four null: the cache that is written. */
    const float *from_k_scales, *from_v_scales; /* The scales of from_k and from_v, where they have a token_stride. */

    const rapt_kv_range *ranges; /* [count]: the copies, in the order in which they are made. */
    int64_t count;               /* The number of copies, 0 or more. */
} rapt_kv_copy_args;

/* Gives every field its default, or 0 where it has none; call it before you set any. */
#define rapt_kv_copy_args_init(args) rapt_kv_copy_args_init_sized((args), sizeof *(args))

/* Implements the macro rapt_kv_copy_args_init, which passes the size of the caller's struct. */
RAPT_API void rapt_kv_copy_args_init_sized(rapt_kv_copy_args *args, size_t size);

/* Copies tokens and their scales, unchanged, within a cache or from another: to share a prefix, to close gaps between pages, to
 * move an entry. Copies are made in the order of the ranges, so that a later one may read what an earlier one wrote; within a
 * copy, source and destination may overlap, as with memmove. Errors: NULL, STRUCT, SHAPE, TYPE, STRIDE, FEATURE (scales of a
 * tensor that is not copied), TABLE (a range beyond the cache), ALIGNMENT, UNUSED, OVERLAP. K, V and scales of the written cache
 * may lie in each other's gaps as in rapt_kv_append_run; nothing else may overlap them. */
RAPT_API rapt_status rapt_kv_copy_run(const rapt_kv_copy_desc *desc, const rapt_kv_copy_args *args);

/* Does what rapt_kv_copy_run does through the caller's parallel_for, in nth slots (see rapt_run_parallel). */
RAPT_API rapt_status rapt_kv_copy_run_parallel(const rapt_kv_copy_desc *desc, const rapt_kv_copy_args *args, int64_t nth,
                                               rapt_parallel_for parallel_for, void *pool);

/* Does the share of thread ith of nth in what rapt_kv_copy_run does; the threads need not wait for each other, since each copies
 * a share of every token's bytes. */
RAPT_API rapt_status rapt_kv_copy_run_share(const rapt_kv_copy_desc *desc, const rapt_kv_copy_args *args, int64_t ith,
                                            int64_t nth);

/* Returns what rapt_kv_copy_run would return, and writes the reason to text, as rapt_plan_explain does. */
RAPT_API rapt_status rapt_kv_copy_explain(const rapt_kv_copy_desc *desc, const rapt_kv_copy_args *args, char *text, size_t bytes);

/* ---- Rotating queries ---------------------------------------------------------------------------------------------------- */

/* A rotation of a tensor such as Q. (rapt_kv_append_run rotates K before it stores it.) Call rapt_rope_args_init first, then set
 * heads, tokens, d, in, out, from, to and rope. */
typedef struct rapt_rope_args {
    size_t size; /* Set by rapt_rope_args_init. */

    int64_t batch;   /* Batch entries, 0..RAPT_MAX_LENGTH. The default is 1. */
    int64_t heads;   /* Heads, 1..RAPT_MAX_LENGTH. */
    int64_t tokens;  /* Tokens of each entry, 0..RAPT_MAX_LENGTH. */
    int64_t d;       /* Channels of a head, 1..RAPT_MAX_HEAD_DIM. */
    rapt_layout in;  /* [batch, heads, tokens, d] of RAPT_F32, RAPT_F16 or RAPT_BF16. */
    rapt_layout out; /* The rotated tensor, of the same shape, rounded to nearest even; its type and strides may differ. */

    const void *from; /* The tensor that is read. */
    void *to; /* The tensor that is written. It may be `from` if in and out are the same; else the two must not overlap. */

    rapt_rope rope;              /* The rotation. Without channels, the tensor is only converted. */
    const int32_t *starts;       /* [batch]: the position of each entry's first token. Null: 0. */
    const int32_t *lengths;      /* [batch]: tokens of each entry, as in rapt_kv_append_args. Null: tokens for all. */
    const int32_t *token_starts; /* [batch + 1]: ragged tokens, as in rapt_kv_append_args. Null: not ragged. */
    const int32_t *positions;    /* Positions of the tokens, as in rapt_kv_append_args. Null: consecutive, from starts on. */

    /* ---- Since 0.2. */

    rapt_rope_table rope_table; /* c and s, where rope has no frequencies. */
} rapt_rope_args;

/* Gives every field its default, or 0 where it has none; call it before you set any. */
#define rapt_rope_args_init(args) rapt_rope_args_init_sized((args), sizeof *(args))

/* Implements the macro rapt_rope_args_init, which passes the size of the caller's struct. */
RAPT_API void rapt_rope_args_init_sized(rapt_rope_args *args, size_t size);

/* Rotates each token by its position. The bits are the same on every machine. Errors: NULL, STRUCT, SHAPE, TYPE, STRIDE, TABLE
 * (starts, lengths, token_starts, a position beyond the rope table), ALIGNMENT, FEATURE (rope, lengths together with
 * token_starts), UNUSED, OVERLAP. */
RAPT_API rapt_status rapt_rope_run(const rapt_rope_args *args);

/* Does what rapt_rope_run does through the caller's parallel_for, in nth slots (see rapt_run_parallel). */
RAPT_API rapt_status rapt_rope_run_parallel(const rapt_rope_args *args, int64_t nth, rapt_parallel_for parallel_for, void *pool);

/* Does the share of thread ith of nth in what rapt_rope_run does; the threads need not wait for each other. */
RAPT_API rapt_status rapt_rope_run_share(const rapt_rope_args *args, int64_t ith, int64_t nth);

/* Returns what rapt_rope_run would return, and writes the reason to text, as rapt_plan_explain does. */
RAPT_API rapt_status rapt_rope_explain(const rapt_rope_args *args, char *text, size_t bytes);

/* ---- The step of a decoder ----------------------------------------------------------------------------------------------- */

/* A decoder's step in one call (FlashAttention's flash_attn_with_kvcache), for one token, several, or a prompt: rapt_rope_run for
 * the queries, rapt_kv_append_run for the new keys and values, and attention to all keys. Its bits are those of these three
 * calls. causal is usually RAPT_CAUSAL_BOTTOM_RIGHT: with RAPT_CAUSAL_TOP_LEFT and no q_offsets, the queries of every step would
 * begin at position k_offset. Call rapt_decode_desc_init first, then set attention, new_k and new_v. */
typedef struct rapt_decode_desc {
    size_t size; /* Set by rapt_decode_desc_init, as in rapt_desc. */

    /* The attention: heads, lengths, masks, Q and O, and the cache in k, v, kv_len, k_scales, v_scales, page_size, pages and
     * table. Only rapt_decode_plan_init reads it. q_starts also applies to the new tokens; k_starts, kv_first, kv_total and
     * unmerged are refused. */
    const rapt_desc *attention;

    int64_t tokens; /* New tokens of each entry, 0..RAPT_MAX_LENGTH. -1, the default: attention.q_len. Not used with q_starts. */
    rapt_layout new_k; /* [batch, kv_heads, tokens, d_k] of RAPT_F32, RAPT_F16 or RAPT_BF16. */

    /* [batch, kv_heads, tokens, d_v] of the same types. RAPT_NONE: V is not written, for example since it is a part of K (MLA).
     */
    rapt_layout new_v;

    /* The rotation of the queries and the new keys. Rotated queries stay in f32: they are not rounded to Q's type. The array
     * rope.frequencies must not be moved or changed. The default is none. */
    rapt_rope rope;
} rapt_decode_desc;

/* Gives every field its default, or 0 where it has none; call it before you set any. */
#define rapt_decode_desc_init(desc) rapt_decode_desc_init_sized((desc), sizeof *(desc))

/* Implements the macro rapt_decode_desc_init, which passes the size of the caller's struct. */
RAPT_API void rapt_decode_desc_init_sized(rapt_decode_desc *desc, size_t size);

/* A validated step in plain memory of the caller's, like rapt_plan. It keeps the addresses of q_starts, rope.frequencies and
 * logits_body. */
typedef struct rapt_decode_plan {
    uint64_t opaque[384]; /* Private to the library. */
} rapt_decode_plan;

/* Validates a decoder's step and chooses kernel, path and tasks. Errors: those of rapt_plan_init, and those that
 * rapt_kv_append_run and rapt_rope_run find in descriptions. */
#define rapt_decode_plan_init(plan, desc) rapt_decode_plan_init_sized((plan), sizeof *(plan), (desc))

/* Implements the macro rapt_decode_plan_init, which passes the size of the caller's plan. */
RAPT_API rapt_status rapt_decode_plan_init_sized(rapt_decode_plan *plan, size_t bytes, const rapt_decode_desc *desc);

/* Returns what rapt_decode_plan_init would return, and writes the reason to text, as rapt_plan_explain does. */
RAPT_API rapt_status rapt_decode_explain(const rapt_decode_desc *desc, char *text, size_t bytes);

/* Fills *info, whose size the caller has set, with what the plan's attention has chosen. phases and shared_bytes are those of the
 * whole step, whose first phase rotates and appends; tasks are those of the phases of attention. Errors: NULL, STRUCT, PLAN. */
RAPT_API rapt_status rapt_decode_plan_query(const rapt_decode_plan *plan, rapt_plan_info *info);

/* Sets *bytes to the size of the workspace that a call by nth threads needs. Errors: NULL, PLAN, RANGE (nth < 1), SHAPE
 * (overflow). */
RAPT_API rapt_status rapt_decode_workspace_size(const rapt_decode_plan *plan, int64_t nth, size_t *bytes);

/* The tensors and arrays of a step. */
typedef struct rapt_decode_args {
    size_t size; /* Set by rapt_decode_args_init. */

    const void *new_k, *new_v;  /* The new keys and values; new_v is null if V is not written. */
    void *k, *v;                /* The cache that they are appended to. */
    float *k_scales, *v_scales; /* The scales of k and v, where the cache has them. */
    const int32_t *starts;      /* [batch]: the number of keys of each entry before the step. Null: 0. */

    /* The positions by which rope rotates, as in rapt_kv_append_args. They also apply to the queries, so each entry must have as
     * many queries as new tokens. Null: the positions that masks use (rapt_causal): key number + k_offset, query number +
     * q_offset. */
    const int32_t *positions;

    rapt_rope_table rope_table; /* c and s, where rope has no frequencies. */

    /* The other tensors and arrays of attention: q, o, lse, masks, tables and so on; its k, v, k_scales, v_scales and workspace
     * are not used. Its kv_lengths are the key lengths after the step. Null, as usual: starts (FlashAttention's cache_seqlens) +
     * new tokens, and last_page, if it is given, must give the same. If kv_lengths are below that, the keys beyond them are not
     * attended, and queries whose positions follow from the key length (rapt_causal) have lower positions. */
    const rapt_args *attention;

    void *workspace;        /* Memory for the call, as in rapt_args. */
    size_t workspace_bytes; /* At least what rapt_decode_workspace_size gives. */
} rapt_decode_args;

/* Gives every field its default, or 0 where it has none; call it before you set any. */
#define rapt_decode_args_init(args) rapt_decode_args_init_sized((args), sizeof *(args))

/* Implements the macro rapt_decode_args_init, which passes the size of the caller's struct. */
RAPT_API void rapt_decode_args_init_sized(rapt_decode_args *args, size_t size);

/* Does a decoder's step on the calling thread: rotates queries and new keys, appends keys and values to the cache, and computes
 * attention. Errors: those of rapt_run, rapt_rope_run and rapt_kv_append_run. */
RAPT_API rapt_status rapt_decode_run(const rapt_decode_plan *plan, const rapt_decode_args *args);

/* Does what rapt_decode_run does through the caller's parallel_for, in nth slots (see rapt_run_parallel). */
RAPT_API rapt_status rapt_decode_run_parallel(const rapt_decode_plan *plan, const rapt_decode_args *args, int64_t nth,
                                              rapt_parallel_for parallel_for, void *pool);

/* Does the share of thread ith of nth in what rapt_decode_run does; the threads wait for each other by the barrier (see
 * rapt_run_share). */
RAPT_API rapt_status rapt_decode_run_share(const rapt_decode_plan *plan, const rapt_decode_args *args, int64_t ith, int64_t nth,
                                           rapt_barrier barrier, void *barrier_arg);

/* Does the share of thread ith of nth in one phase of what rapt_decode_run does (see rapt_run_phase). */
RAPT_API rapt_status rapt_decode_run_phase(const rapt_decode_plan *plan, const rapt_decode_args *args, int phase, int64_t ith,
                                           int64_t nth);

/* Returns what rapt_decode_run with nth threads would return, and writes the reason to text, as rapt_args_explain does. */
RAPT_API rapt_status rapt_decode_args_explain(const rapt_decode_plan *plan, const rapt_decode_args *args, int64_t nth, char *text,
                                              size_t bytes);

/* ---- Merging --------------------------------------------------------------------------------------------------------- */

/* The number of floats of a state, which is the intermediate result of a row after a chunk of keys: m, the largest score; l, the
 * sum of the weights exp2((score - m) * c); 14 unused floats; o[d_v], the sum of the values times these weights, not divided by
 * l; padding. c is log2(e), times the scale's magnitude unless the scores have been multiplied by it (docs/order.md). A chunk
 * without attended keys gives the empty state, m = -inf and all else 0, which changes nothing that it is merged with. A state has
 * m and l rather than their log-sum-exp, which would have to be rounded, so that merging gives the same bits as attention over
 * all keys at once. */
#define RAPT_STATE_FLOATS(d_v) (16 + ((size_t)(d_v) + 15) / 16 * 16)

/* The states of one source: those of one plan, or of another machine. */
typedef struct rapt_states {
    const float *at;      /* The first state, at any alignment. */
    int64_t batch_stride; /* Bytes from an entry to the next; not used with ragged queries. */
    int64_t head_stride;  /* Bytes from a head to the next. */
    int64_t token_stride; /* Bytes from a query to the next. */
    int64_t state_stride; /* Bytes from a row's state to that of its next chunk; they do not overlap. */
    int64_t chunks;       /* States of each row, 0..RAPT_MAX_LENGTH / RAPT_CHUNK_KEYS + 1. */
} rapt_states;

/* Merges the states of sources 0..n-1, in this order, which must be that of the chunks, and writes o and lse of args, using its
 * sinks and v_scales. The plan has unmerged set, and layouts of o and lse. States of other such plans may be merged too, if they
 * have the same batch, heads, q_len, d_v and scale, and either all or none of them change scores (softcap, ALiBi, bias,
 * logits_body): m is in other units where they do. Errors: NULL, STRUCT, PLAN, RANGE (n), SHAPE (chunks), OVERLAP, STRIDE,
 * ALIGNMENT, UNUSED. */
RAPT_API rapt_status rapt_merge_states_run(const rapt_plan *plan, const rapt_args *args, const rapt_states *sources, int64_t n);

/* Does what rapt_merge_states_run does through the caller's parallel_for, in nth slots (see rapt_run_parallel). */
RAPT_API rapt_status rapt_merge_states_run_parallel(const rapt_plan *plan, const rapt_args *args, const rapt_states *sources,
                                                    int64_t n, int64_t nth, rapt_parallel_for parallel_for, void *pool);

/* Does the share of thread ith of nth in what rapt_merge_states_run does; the threads need not wait for each other. */
RAPT_API rapt_status rapt_merge_states_run_share(const rapt_plan *plan, const rapt_args *args, const rapt_states *sources,
                                                 int64_t n, int64_t ith, int64_t nth);

/* Returns what rapt_merge_states_run would return, and writes the reason to text, as rapt_plan_explain does. */
RAPT_API rapt_status rapt_merge_states_explain(const rapt_plan *plan, const rapt_args *args, const rapt_states *sources,
                                               int64_t n, char *text, size_t bytes);

/* Merges results of attention over disjoint keys, on the calling thread (FlashInfer's merge_states, with natural logarithms). For
 * sources s = 0..n-1, which are merged in this order, o[s] is [rows, d_v] and lse[s] is [rows], dense f32. A row whose lse is
 * -inf changes nothing, and its o is not read. o_out and lse_out may be null, or the o and the lse of a source. Since an lse is
 * rounded, the bits need not be those of attention over all keys. Errors: NULL, SHAPE, STRIDE, ALIGNMENT, OVERLAP, ISA_MISSING
 * and ISA_UNKNOWN (of RAPT_ISA). */
RAPT_API rapt_status rapt_merge(int64_t n, int64_t rows, int64_t d_v, const float *const *o, const float *const *lse,
                                float *o_out, float *lse_out);

/* Returns what rapt_merge would return, and writes the reason to text, as rapt_plan_explain does. */
RAPT_API rapt_status rapt_merge_explain(int64_t n, int64_t rows, int64_t d_v, const float *const *o, const float *const *lse,
                                        float *o_out, float *lse_out, char *text, size_t bytes);

/* ---- Instruction sets ------------------------------------------------------------------------------------------------ */

/* On Linux, if the CPU has AMX, the first function that needs the CPU's features asks for its tile registers (arch_prctl(2)),
 * once in a process. From then on Linux refuses alternate signal stacks (sigaltstack(2)) that have no room for the tiles, some 11
 * KiB. If there is a smaller one already, Linux refuses the tiles, and the kernel amx lacks "amx-permission". */

/* Returns the name of a kernel that was built for this architecture: the best one for index 0, null beyond the last. */
RAPT_API const char *rapt_isa_name(int index);

/* Returns RAPT_OK if the kernel of that name can run here, else ISA_UNKNOWN, ISA_MISSING or NULL (name). Writes the names of the
 * CPU features that are lacking to missing, unless that is null, separated by spaces and cut to missing_bytes with the
 * terminator; "" if none are. */
RAPT_API rapt_status rapt_isa_usable(const char *name, char *missing, size_t missing_bytes);

/* Returns the rounding class of the kernel of that name, "fused" or "unfused"; null if there is no such kernel. */
RAPT_API const char *rapt_isa_rounding(const char *name);

/* Makes a kernel the process-wide choice for plans that are made from now on. Null restores the initial choice: the kernel that
 * the environment variable RAPT_ISA names, or, if it is not set, the best one that can run here. Errors: ISA_UNKNOWN,
 * ISA_MISSING. */
RAPT_API rapt_status rapt_isa_force(const char *name);

/* Sets *name to the name of the process-wide choice. If RAPT_ISA names a kernel that is unknown or cannot run here, *name is
 * null, and the error is the one that plans get. Errors: NULL, ISA_UNKNOWN, ISA_MISSING. */
RAPT_API rapt_status rapt_isa_current(const char **name);

/* Writes the names of the CPU's features, separated by spaces and cut to `bytes` with the terminator. Errors: NULL. */
RAPT_API rapt_status rapt_cpu_features(char *names, size_t bytes);

/* ---- Looking in ------------------------------------------------------------------------------------------------------ */

/* Checks whether this build keeps the promise: runs a few small problems on the kernel isa, or on every kernel that can run here
 * if isa is null, and compares hashes of the results with those that docs/order.md requires. It is for those who compile the
 * sources in their own way: it finds whether the compiler reordered, contracted or approximated anything, and whether the
 * thread's floating-point modes are the default ones. It takes about a millisecond for a vector kernel and a few for a scalar
 * one, and up to RAPT_STACK_BYTES + RAPT_SELF_CHECK_BYTES of stack, which is more than a thread has by default with musl. Writes
 * what is wrong, or "", to text, unless that is null, cut to `bytes`. Errors: SELF_CHECK, ISA_UNKNOWN, ISA_MISSING. */
RAPT_API rapt_status rapt_self_check(const char *isa, char *text, size_t bytes);

/* The size of the workspace of rapt_self_check_in, in bytes. */
#define RAPT_SELF_CHECK_BYTES (160 << 10)

/* Does what rapt_self_check does, for threads with small stacks: it works in the caller's memory of workspace_bytes bytes,
 * aligned to RAPT_WORKSPACE_ALIGNMENT, and uses RAPT_STACK_BYTES of stack, as all other functions do. Further errors: WORKSPACE,
 * ALIGNMENT. */
RAPT_API rapt_status rapt_self_check_in(void *workspace, size_t workspace_bytes, const char *isa, char *text, size_t bytes);

/* The caller's function that receives traces: a line, without a newline, for each plan that is made, and one for each refusal,
 * which names the function, the field and its value. It may be called from any thread, from several at the same time, and must
 * not call the library. */
typedef void (*rapt_trace_body)(void *arg, const char *line);

/* A receiver of traces. */
typedef struct rapt_trace {
    rapt_trace_body body; /* Is called for each line. */
    void *arg;            /* The first argument of body. */
} rapt_trace;

/* Sends the traces of the whole process to trace from now on; null, the default: nowhere. The struct must exist until another has
 * replaced it and all calls that began before that have returned. */
RAPT_API void rapt_trace_to(const rapt_trace *trace);

/* ---- Tuning ---------------------------------------------------------------------------------------------------------- */

/* Numbers by which a plan cuts its work, and by which weights are prefetched. Each kernel has its own, which were measured on one
 * machine; another machine may be faster with others, which `rapt tune` finds. They affect the time that calls take and the
 * workspace, but no bit of any result. Call rapt_tuning_init first, then set the numbers that differ, or read them from a line
 * with rapt_tuning_parse.
 *
 * -1, the default of every number, stands for the kernel's own. Where a range says "at most", the kernel's limit may be lower, as
 * rapt_tuning_query tells. A row is a query of one of the heads that share a key/value head. */
typedef struct rapt_tuning {
    size_t size; /* Set by rapt_tuning_init, as in rapt_desc. */

    const char *isa; /* The kernel for which the numbers are; plans with another kernel are refused. Null, the default: any. */

    /* ---- Attention. */

    /* The most rows of a key/value head for which keys lie in lanes, 0 to at most 16; for more, queries do. */
    int few_rows;

    /* few_rows for RAPT_INT8_DOT, 0 to at most 16. */
    int few_integer_rows;

    /* In a task with queries in lanes, the rows after the last full vector of queries have keys in lanes if they are at most this
     * many, 0 to at most 15. */
    int left_over;

    /* The most rows of a task with keys in lanes that takes several key/value heads together, 1 to at most 64. It does so where
     * the heads of a token are adjacent in memory. */
    int joined_rows;

    /* Such a task takes the fewest heads whose keys of one token have this many bytes, or as many as joined_rows allows, 1 to
     * 1048576. */
    int joined_bytes;

    int pass_tiles; /* The most tiles of queries of a task with queries in lanes, 1 to at most 32. */

    /* A task with queries in lanes has only as many tiles as keep its scratch within this many sixteenths of the L2 cache, 1 to
     * 256, but at least one. In RAPT_BF16_DOT the staged chunk of keys and values does not count, and avx512_bf16 takes three
     * times as many sixteenths. */
    int pass_l2;

    /* About how many tasks a plan has for each expected thread, 1 to 64. Where tasks are equally long, a number from a quarter to
     * twice of this is chosen by which threads end together. */
    int thread_tasks;
    int ragged_tasks; /* thread_tasks for ragged batches (q_starts, k_starts), 1 to 64. */

    /* Where few rows, with keys in lanes, give too few tasks, the keys of a head are split over tasks, but only if the resulting
     * states take at most 1 / states_part of the keys' and values' bytes, 1 to 1024. */
    int states_part;

    /* ---- Linear layers. */

    /* The most tokens for which weights are read where they lie, 0 to at most 32; for more, they are staged in the workspace,
     * unless they are prepacked. */
    int few_tokens;

    int bf16_few_tokens; /* few_tokens for RAPT_BF16_DOT, 0 to at most 32; prepacked weights are read all the same. */
    int weights_l2;      /* About how many sixteenths of the L2 cache staged weights take, 1 to 256. */

    /* The cost for a thread of staging its tokens, in outputs that take the same time, 0 to 1048576. It is weighed when threads
     * share tokens and outputs. */
    int staging_outputs;

    int long_row;    /* For few tokens, rows of weights of at least this many bytes are read several at a time, 1 to 16777216. */
    int long_ahead;  /* Such rows are prefetched this many bytes ahead, 0 to 1048576. */
    int short_ahead; /* Shorter rows are prefetched this many bytes ahead, 0 to 1048576. */
} rapt_tuning;

/* Gives every field its default; call it before you set any. */
#define rapt_tuning_init(tuning) rapt_tuning_init_sized((tuning), sizeof *(tuning))

/* Implements the macro rapt_tuning_init, which passes the size of the caller's struct. */
RAPT_API void rapt_tuning_init_sized(rapt_tuning *tuning, size_t size);

/* Fills own with the numbers of the kernel isa (null: the process-wide choice), and least and most with the bounds of each number
 * in that kernel; the isa of all three becomes its name. Each of the three must have been initialised by rapt_tuning_init, or be
 * null. Errors: STRUCT, ISA_UNKNOWN, ISA_MISSING. */
RAPT_API rapt_status rapt_tuning_query(const char *isa, rapt_tuning *own, rapt_tuning *least, rapt_tuning *most);

/* Reads a line of text, such as "avx2 few_rows=4 pass_l2=6", into tuning, which rapt_tuning_init has initialised. The line has
 * the name of a kernel that was built, or "any", then fields of rapt_tuning with their numbers, each at most once, separated by
 * spaces, tabs or line ends. Other fields become -1. The numbers must be in the range of the kernel, whether or not it can run
 * here. Errors: NULL, STRUCT, TUNING, ISA_UNKNOWN. */
RAPT_API rapt_status rapt_tuning_parse(const char *line, rapt_tuning *tuning);

/* Returns what rapt_tuning_parse would return, and writes the reason to text, as rapt_plan_explain does. */
RAPT_API rapt_status rapt_tuning_parse_explain(const char *line, rapt_tuning *tuning, char *text, size_t bytes);

/* The bytes of the longest line that rapt_tuning_print writes, with its terminator. */
#define RAPT_TUNING_BYTES 512

/* Writes the line for rapt_tuning_parse, with the numbers that are not -1 and without a line end, to memory of `bytes` bytes.
 * Errors: NULL, STRUCT, ISA_UNKNOWN, TUNING (a number below -1, or out of the kernel's range; too few bytes). */
RAPT_API rapt_status rapt_tuning_print(const rapt_tuning *tuning, char *line, size_t bytes);

#ifdef __cplusplus
}
#endif

/* So that one include is enough, here as with the rapt.h that tools/amalgamate writes. */
#include "rapt_layer.h"
#include "rapt_pool.h"

#endif
