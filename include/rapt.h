/* SPDX-License-Identifier: Apache-2.0 */
/* rapt: fused flash-style attention for CPUs. This header is the whole API of attention, and its comments are the
 * contract; rapt_layer.h is that of the layer around it.
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
 * The library allocates nothing, starts no thread, takes no lock, and writes three globals only, all of them atomic: the CPU's
 * features, the kernel chosen, and where traces go (rapt_trace_to). Every function may be called from any thread; a plan is never
 * written after rapt_plan_init. Every function that returns a status checks its arguments first: when the status is not RAPT_OK,
 * nothing was written. The floating-point environment is assumed to be the default one (round to nearest, no flush to zero) and
 * its control bits are never written.
 *
 * Why something was refused, the *_explain functions tell: they take what the refusing function took, and give one line that
 * names the field and its value, such as "k.token_stride = -4: strides are not negative".
 *
 * Structs that begin with size are made by their *_init function (a macro, which passes the struct's size to *_init_sized), and
 * may grow at their end from version to version. A client built against an older header, from 0.1 on, works with this library:
 * what its structs lack has the default. One built against a newer header works as long as what this library does not know is
 * zero. (Until 1.0 the soname carries the minor version, so either has to be linked anew.)
 *
 * Memory: tensors, which have a layout, may lie at any address, not even aligned to their elements. Arrays that have none
 * (kv_lengths, starts, frequencies, bias of a linear map, ...) are aligned as their C type; others are refused with ALIGNMENT.
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

#define RAPT_VERSION_MAJOR 0
#define RAPT_VERSION_MINOR 2
#define RAPT_VERSION_PATCH 0

#if defined(_WIN32)
#define RAPT_API
#else
#define RAPT_API __attribute__((visibility("default")))
#endif

/* ---- Status ---------------------------------------------------------------------------------------------------------- */

typedef enum rapt_status {
    RAPT_OK = 0,
    RAPT_ERR_NULL = -1,       /* a required pointer is null */
    RAPT_ERR_STRUCT = -2,     /* a struct did not pass through its init function, is smaller than any version's, or is newer than
                                 the library and uses a field unknown here; or memory for a plan is too small */
    RAPT_ERR_SHAPE = -3,      /* a size is negative, zero where it may not be, or above its limit */
    RAPT_ERR_HEADS = -4,      /* heads is not a multiple of kv_heads */
    RAPT_ERR_TYPE = -5,       /* a tensor's type is unknown, or not allowed for that tensor */
    RAPT_ERR_STRIDE = -6,     /* a stride that is used is negative, a tensor exceeds the address space, or two output elements
                                 overlap */
    RAPT_ERR_SCALE = -7,      /* scale is infinite */
    RAPT_ERR_MASK = -8,       /* causal is not a rapt_causal, a window side is below -1, or a mask or bias has too few columns */
    RAPT_ERR_KV_LENGTH = -9,  /* a key length is negative or above kv_total */
    RAPT_ERR_OVERLAP = -10,   /* an output or the workspace overlaps something else */
    RAPT_ERR_WORKSPACE = -11, /* the workspace is null or too small */
    RAPT_ERR_ALIGNMENT = -12, /* the workspace is not aligned to RAPT_WORKSPACE_ALIGNMENT, or an array, or memory for a plan, not
                                 to its elements */
    RAPT_ERR_ISA_UNKNOWN = -13, /* no kernel of that name was built for this architecture */
    RAPT_ERR_ISA_MISSING = -14, /* that kernel exists, but this CPU or its operating system cannot run it */
    RAPT_ERR_RANGE = -15,       /* a phase, task, thread number or thread count is out of range */
    RAPT_ERR_PLAN = -16,        /* the plan was not made by its init function */
    RAPT_ERR_TABLE = -17,       /* a page, a start, a position or a length of a ragged, paged or ring batch is out of range */
    RAPT_ERR_FEATURE = -18,   /* a feature's number is out of range, it lacks what it needs, or two features exclude each other */
    RAPT_ERR_ARITH = -19,     /* arith is not a rapt_arith, or the types of K and V do not allow it */
    RAPT_ERR_UNUSED = -20,    /* a pointer is given for which the plan has no use: what it is for was not described */
    RAPT_ERR_SELF_CHECK = -21 /* a kernel's bits are not those of docs/order.md: the library was not compiled as it must be */
} rapt_status;

/* One line of English for each status; never null, also for a number that is no status. */
RAPT_API const char *rapt_status_string(rapt_status status);

/* "major.minor.patch" of the library that is linked, which need not be that of this header. */
RAPT_API const char *rapt_version(void);

/* ---- Tensors --------------------------------------------------------------------------------------------------------- */

typedef enum rapt_type {
    RAPT_F32 = 1,  /* IEEE 754 binary32 */
    RAPT_F16 = 2,  /* IEEE 754 binary16 */
    RAPT_BF16 = 3, /* the upper half of a binary32 */

    /* Of K and V only. Elements of a byte: */
    RAPT_F8_E4M3 =
        4, /* 4 bits of exponent, 3 of fraction, no infinities, largest 448 (Micikevicius et al. 2022, section 3: E4M3) */
    RAPT_F8_E5M2 = 5, /* the upper half of a binary16 (section 3: E5M2) */
    RAPT_INT8 = 6,    /* -128..127, which count as they are without k_scales or v_scales */
    /* Groups of 32 channels, so d_k or d_v must be a multiple of 32. s, m: f16, little-endian; n: a group's 32 numbers: */
    RAPT_INT4 = 7,     /* 18 bytes: s, then channels 2i and 2i + 1 in the low and the high half of byte i: s * (n - 8) */
    RAPT_INT4_MIN = 8, /* 20 bytes: s, m, the same 16 bytes: s * n + m */
    /* ggml's, as they lie in its caches: */
    RAPT_Q8_0 = 9,  /* 34 bytes: s, 32 int8: s * n */
    RAPT_Q4_0 = 10, /* 18 bytes: s, channels i and i + 16 in the low and the high half of byte i: s * (n - 8) */
    RAPT_Q4_1 = 11, /* 20 bytes: s, m, the same 16 bytes: s * n + m */
    RAPT_Q5_0 = 12, /* 22 bytes: s, 32 fifth bits (bit i is channel i's), the same 16 bytes: s * (n - 16) */
    RAPT_Q5_1 = 13, /* 24 bytes: s, m, fifth bits, the same 16 bytes: s * n + m */

    /* Of masks, maps and tables only. */
    RAPT_BOOL = 14, /* a byte: attended unless 0 */
    RAPT_BIT = 15,  /* a bit, the first key in a byte's lowest: attended if 1 */
    RAPT_I32 = 16
} rapt_type;

/* Bytes of one token's channels in a type of Q, K, V or O; -1 for other types, and where the type's groups do not divide them. */
RAPT_API int64_t rapt_row_bytes(rapt_type type, int64_t channels);

/* How a tensor [batch, head, token, channel] lies in memory. Strides are in bytes and not negative; channels are contiguous.
 * Any address will do: not even the alignment of an element is required. On inputs a stride may be 0 (broadcast) or make
 * elements share memory; on outputs no two elements may share memory: when the dimensions longer than 1 are sorted by stride,
 * each stride must be at least the bytes spanned by the dimensions before it. The stride of a dimension of length 0 or 1, and one
 * that is said not to be used, may be any number; so may all of them where the tensor has no element. */
typedef struct rapt_layout {
    rapt_type type;
    int64_t batch_stride, head_stride, token_stride;
} rapt_layout;

/* The two usual dense layouts: [batch, head, token, channel] and [batch, token, head, channel]. Pages are the first one, of
 * page_size tokens; rows of rapt_layer.h are the second one with a single head, (type, 1, tokens, channels), and weights (type,
 * 1, out, in). Sizes that overflow give a negative stride, which rapt_plan_init refuses. */
RAPT_API rapt_layout rapt_layout_bhsd(rapt_type type, int64_t heads, int64_t tokens, int64_t channels);
RAPT_API rapt_layout rapt_layout_bshd(rapt_type type, int64_t heads, int64_t tokens, int64_t channels);

/* ---- The problem ----------------------------------------------------------------------------------------------------- */

/* Positions. Key j of a batch entry, counted from 0 through rings, pages and gathered lists, stands at position j + k_offset,
 * query i at position i + q_offset. rapt_args.k_offsets and q_offsets give both for each entry. Without k_offsets, k_offset is 0.
 * Without q_offsets, q_offset is k_offset + a, where a is what rapt_causal says. Masks, windows, chunks, prefixes, ALiBi, and the
 * columns of masks and biases go by positions; blocks and chunks of the order of operations, lengths, page tables, maps and
 * states by the keys' numbers j.
 *
 * ONNX's Attention puts query 0 behind the keys of the past: q_offset = past length, or nonpad_kv_seqlen - q_len where that is
 * given, else 0. Only where all keys are past or new ones is this the same as RAPT_CAUSAL_BOTTOM_RIGHT. */
typedef enum rapt_causal {
    RAPT_CAUSAL_NONE = 0,         /* no causal mask; a = key length - q_len, for windows, ALiBi and chunks */
    RAPT_CAUSAL_BOTTOM_RIGHT = 1, /* a = key length - q_len: the last query sees the last key (FlashAttention, FlashInfer) */
    RAPT_CAUSAL_TOP_LEFT = 2      /* a = 0: the first query sees the first key (PyTorch's is_causal) */
} rapt_causal;

/* Whose bias ALiBi is (Press et al. 2022, section 3). */
typedef enum rapt_alibi {
    RAPT_ALIBI_NONE = 0,
    RAPT_ALIBI_DISTANCE = 1, /* logit - slope * |position of the query - position of the key| (FlashAttention) */
    RAPT_ALIBI_BIAS = 2      /* logit + slope * bias[i, j] (ggml: its mask holds the distances) */
} rapt_alibi;

/* How Q K^T and P V are computed. */
typedef enum rapt_arith {
    RAPT_EXACT = 0,   /* in f32: K and V of any type are converted first */
    RAPT_INT8_DOT = 1 /* in integers, for K and V of RAPT_INT8: each row of Q and each block of P are quantised to 8
                         bits */
} rapt_arith;

/* Which keys are attended beyond the last column of a mask or bias that has fewer than there are positions. */
typedef enum rapt_rest {
    RAPT_REST_REFUSED = 0, /* (the default) none may be beyond */
    RAPT_REST_MASKED = 1,  /* they are masked */
    RAPT_REST_ATTENDED = 2 /* they are attended; their bias is 0 */
} rapt_rest;

/* What rapt_args.scores receives: for debugging and teaching, since it takes memory of queries x keys, and computes all scores a
 * second time. (ONNX's qk_matmul_output_mode 0 is RAW, 3 is WEIGHTS. Of 1 and 2 one is after softcap and one after the mask, in
 * an order that has changed between its versions: here softcap comes first, CAPPED, then the mask, LOGITS.) */
typedef enum rapt_scores_stage {
    RAPT_SCORES_NONE = 0,
    RAPT_SCORES_RAW = 1,    /* scale * <q, k>, of all keys that exist, masked or not */
    RAPT_SCORES_CAPPED = 2, /* the same after softcap */
    RAPT_SCORES_LOGITS = 3, /* after softcap, ALiBi, bias and logits_body; -inf where masked */
    RAPT_SCORES_WEIGHTS = 4 /* the softmax of these, 0 where masked; a sink takes its share */
} rapt_scores_stage;

/* The logits of some rows for some adjacent keys, for a callback: that of row r and key number first_key + n is
 * logits[r * row_stride + n * key_stride] - so these strides, unlike all others, are in floats; after scale, softcap, ALiBi and
 * bias, before masks. */
typedef struct rapt_logits {
    float *logits;
    int64_t row_stride, key_stride; /* in floats */
    int rows, keys;
    int64_t batch, first_key;
    const int32_t *heads, *tokens; /* of each row: query head, query token of the entry */
} rapt_logits;
typedef void (*rapt_logits_body)(void *arg, const rapt_logits *logits);

/* Factors of K or V: element [b, h, token, channel] counts times the f32 at scales + b * batch_stride + h * head_stride +
 * token * token_stride + channel * channel_stride (bytes, any may be 0). Not both of the last two: with a token_stride, the
 * scores or the weights are multiplied; without, the query or the output. With a token_stride the factors lie as the tokens do:
 * in pages, batch_stride is the distance of two pages, and where keys are ragged it is not used. Without, b is the batch entry,
 * with pages and ragged keys, too. Where a cache is written, factors with a token_stride are found and written, and those without
 * must be there already. */
typedef struct rapt_scales {
    int present; /* 0 (the default): no factors */
    int64_t batch_stride, head_stride, token_stride, channel_stride;
} rapt_scales;

#define RAPT_MAX_HEAD_DIM 1024
#define RAPT_MAX_LENGTH   INT32_MAX
#define RAPT_CHUNK_KEYS   512 /* keys of a chunk of the order of operations (docs/order.md): the grain of splitting and merging */

/* Set every field with rapt_desc_init before filling in your own. */
typedef struct rapt_desc {
    size_t size; /* set by rapt_desc_init, never by hand: the bytes of the caller's struct, and a mark that it was initialised */
    int64_t batch; /* 0..RAPT_MAX_LENGTH; 1 is the default */
    int64_t heads; /* query heads, 1..RAPT_MAX_LENGTH, a multiple of kv_heads */
    int64_t
        kv_heads;    /* key/value heads: = heads for MHA, 1 for MQA, between for GQA; query head h reads h / (heads / kv_heads) */
    int64_t q_len;   /* query tokens per batch entry, 0..RAPT_MAX_LENGTH */
    int64_t kv_len;  /* key tokens per batch entry, 0..RAPT_MAX_LENGTH; the capacity, when rapt_args gives lengths */
    int64_t d_k;     /* channels of Q and K, 1..RAPT_MAX_HEAD_DIM */
    int64_t d_v;     /* channels of V and O, 1..RAPT_MAX_HEAD_DIM */
    rapt_layout q;   /* [batch, heads, q_len, d_k]: RAPT_F32, RAPT_F16 or RAPT_BF16 */
    rapt_layout k;   /* [batch, kv_heads, kv_len, d_k] */
    rapt_layout v;   /* [batch, kv_heads, kv_len, d_v] */
    rapt_layout o;   /* [batch, heads, q_len, d_v]: RAPT_F32, RAPT_F16 or RAPT_BF16, rounded once, to nearest even, from f32 */
    rapt_layout lse; /* [batch, heads, q_len], f32: natural log of the sum of exp(logit); -inf for a row without keys.
                        type 0 (the default): none wanted. token_stride is the distance of two queries */
    float scale;     /* factor of the scores, finite; 0 gives the mean of the attended values. NaN (the default): 1/sqrt(d_k) */
    rapt_causal causal; /* key j is attended by query i only if its position is at most that of the query. RAPT_CAUSAL_NONE is the
                           default; a decoder wants RAPT_CAUSAL_BOTTOM_RIGHT */
    int64_t window_left;  /* ... and only if it is at most so much less; -1 (the default): unlimited */
    int64_t window_right; /* ... or at most so much more, whatever causal says; -1 (the default): unlimited */
    int64_t prefix;       /* keys of positions before it are attended whatever causal and window_right say; 0 (the default): none.
                             rapt_args.prefixes gives one for each entry */
    int64_t local_chunk;  /* > 0: a query sees only keys whose position divided by it, rounded down, is that of the query */
    rapt_layout mask;     /* [batch, heads, q_len] rows of mask_keys RAPT_BOOL or RAPT_BIT: which keys are attended; type 0 (the
                             default): none. Strides of 0 broadcast; token_stride is the distance of two queries, here and below.
                             Where queries are ragged, each entry's rows begin anew: q_len is that of the longest */
    rapt_layout map;      /* block-sparse: [batch, heads, q_len / map_queries, rounded up] rows of kv_total / map_keys elements,
                             rounded up, RAPT_BOOL: which blocks are attended at all, by keys' numbers; type 0: none. (Of ragged
                             queries and keys: q_len and kv_total are those of the longest entry.) */
    int64_t map_queries, map_keys; /* its blocks: 1.., and a multiple of 64 */
    rapt_layout bias; /* [batch, heads, q_len] rows of bias_keys RAPT_F32, RAPT_F16 or RAPT_BF16, added to the logits; type 0:
                         none. -inf masks the key; finite minima are ordinary numbers */
    float softcap;    /* > 0: logits become softcap * tanh(logit / softcap), before ALiBi, bias and masks; 0: none */
    rapt_alibi alibi;
    rapt_layout slopes; /* [batch, heads] RAPT_F32, RAPT_F16 or RAPT_BF16, for alibi; type 0 without. token_stride is not used */
    rapt_layout sinks;  /* [batch, heads] likewise: a logit that joins each row's denominator (and lse), with no value; type 0:
                           none.  token_stride is not used */
    rapt_logits_body logits_body; /* called for every row tile and block of keys: slow, for research; null: none */
    rapt_scales k_scales, v_scales;
    rapt_arith arith;

    /* Ragged batches: entry b has the queries q_starts[b] .. q_starts[b + 1] - 1 of a Q, O and lse without batch dimension, whose
     * q_len is that of all tokens (batch_stride is not used); likewise the keys k_starts[b] .. of K and V and kv_len. [batch +
     * 1], ascending; null: none. Tokens before the first start and from the last on belong to no entry: they are neither read nor
     * written. Both arrays are read here and while the plan is run, so they must stay where and as they are. */
    const int32_t *q_starts, *k_starts;

    /* Paged caches: K and V are [pages, kv_heads, page_size, channels], batch_stride being the distance of two pages, and key j
     * of entry b lies in page table[b, j / page_size]. kv_len is the most keys that an entry can have. A table with its own row
     * for each head or query, and pages of one key, gathers keys: everything below counts keys in the order of the table. */
    int64_t page_size; /* 0 (the default): not paged; else 1..RAPT_MAX_LENGTH */
    int64_t pages;     /* in the pool, 0..RAPT_MAX_LENGTH */
    rapt_layout table; /* [batch, kv_heads, q_len] rows of RAPT_I32, strides as of mask; batch_stride is not used if
                          rapt_args.table_starts is given */
    int trust_table;   /* not 0: page numbers are not checked before each run */

    /* A part of longer sequences: the keys given are those from number kv_first on, a multiple of RAPT_CHUNK_KEYS, and lengths
     * (kv_total; rapt_args.kv_lengths) count from number 0. For unmerged, see rapt_merge_states. */
    int64_t kv_first;
    int64_t kv_total;     /* 0 (the default): kv_first + kv_len */
    int unmerged;         /* not 0: leave a state for each row and chunk in rapt_args.states instead of o and lse */
    rapt_layout states;   /* [batch, heads, q_len] states, RAPT_F32; o and lse are described for rapt_merge_states then */
    int64_t state_stride; /* from a row's state to that of its next chunk */

    int64_t threads; /* how many threads you expect to share a call, 1..RAPT_MAX_LENGTH (default 1): how finely the work is
                        cut, and whether keys are split too. It changes neither the bits nor how many threads may run */
    const char *isa; /* a kernel's name to use for this plan, or null (the default) for the process-wide choice */

    /* Since 0.2. Columns of a mask's and a bias' rows, which are positions: 0 (the default) stands for kv_total (of ragged keys:
     * those of the longest entry). What holds for positions beyond them: without a word about that, they are refused. */
    int64_t mask_keys, bias_keys;
    rapt_rest mask_rest, bias_rest;
    int mask_key_stride, bias_key_stride; /* 1 (the default), or 0: rows have one element, which holds for all keys */

    rapt_scores_stage scores_stage; /* what rapt_args.scores receives; RAPT_SCORES_NONE (the default): nothing */
    rapt_layout scores; /* [batch, heads, q_len] rows of kv_total f32 (of ragged keys: those of the longest entry), by the key's
                           number. Written are the columns of keys that are given here and for which there is room: -inf (weights:
                           0) where the key does not exist. Not with unmerged and RAPT_SCORES_WEIGHTS */
} rapt_desc;

/* Sets the defaults above, and everything else to 0. A size of 0 that was forgotten is no error where there may be none of
 * something: then nothing is written. */
#define rapt_desc_init(desc) rapt_desc_init_sized((desc), sizeof *(desc))
RAPT_API void rapt_desc_init_sized(rapt_desc *desc, size_t size);

/* ---- The plan -------------------------------------------------------------------------------------------------------- */

/* Plain memory of the caller's: copy it, keep it, throw it away. The contents are the library's, of this version. It keeps the
 * addresses of q_starts and k_starts, and logits_body; nothing else of the description is looked at again.
 *
 * What is left of it after the plan itself helps rapt_run_task to find the entry of a ragged batch that a task belongs to: as
 * many entries as it has room for are found at once, from the one before them on the others are gone through. Memory of
 * RAPT_PLAN_BYTES(batch) has room for all of them; pass its size to rapt_plan_init_sized. */
typedef struct rapt_plan {
    uint64_t opaque[320];
} rapt_plan;
#define RAPT_PLAN_BYTES(batch) (192 * sizeof(uint64_t) + 16 * ((size_t)(batch) + 1))

/* Validates the problem and chooses kernel, path and tasks. Errors: NULL, STRUCT, SHAPE, HEADS, TYPE, STRIDE, SCALE, MASK,
 * ISA_UNKNOWN, ISA_MISSING, RANGE (threads), TABLE (q_starts, k_starts), ALIGNMENT (these, the plan), FEATURE, ARITH, OVERLAP
 * (the plan's memory with arrays whose addresses it keeps). As a function, for callers in other languages and clients of 0.1, it
 * takes a plan of 192 words. */
RAPT_API rapt_status rapt_plan_init(rapt_plan *plan, const rapt_desc *desc);
#define rapt_plan_init(plan, desc) rapt_plan_init_sized((plan), sizeof *(plan), (desc))
RAPT_API rapt_status rapt_plan_init_sized(void *plan, size_t bytes, const rapt_desc *desc);

/* What rapt_plan_init would return; and why, as a line in text, cut to bytes with its terminator ("" where nothing is refused).
 */
RAPT_API rapt_status rapt_plan_explain(const rapt_desc *desc, char *text, size_t bytes);

typedef struct rapt_plan_info {
    size_t size;          /* in: sizeof(rapt_plan_info) of the caller's header */
    const char *isa;      /* the kernel, one of rapt_isa_name's: "avx2", "neon", "scalar", ... */
    const char *rounding; /* its rounding class, "fused" or "unfused": kernels of one class give the same bits */
    const char *arith;    /* "exact" or "int8" */
    const char *path;     /* "queries-in-lanes" (many rows for each key/value head), "keys-in-lanes" (few), or "mixed" (ragged) */
    int phases;           /* 1, or 2 when keys are split or weights wanted: all tasks of phase 0 come before any of phase 1 */
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

/* Pointers for which the plan has no layout or other use are refused, but for o, lse and sinks of an unmerged plan, which are the
 * merge's. */
typedef struct rapt_args {
    size_t size;           /* set by rapt_args_init, as in rapt_desc */
    const void *q, *k, *v; /* null only where the tensor has no element */
    void *o;
    float *lse;                /* where the plan has an lse layout */
    const int32_t *kv_lengths; /* [batch], each 0..kv_total (of ragged keys: the entry's own): the keys that exist for each batch
                                  entry, from number 0 on; null: all. Keys and values beyond the length are never read */
    /* What the plan's features want. */
    const void *mask, *map, *bias;
    const void *slopes, *sinks;
    const float *k_scales, *v_scales;
    void *logits_arg;            /* for logits_body */
    const int32_t *prefixes;     /* [batch]: a prefix for each entry; null: desc.prefix */
    const int32_t *table;        /* of pages */
    const int32_t *table_starts; /* [batch + 1]: entry b's pages are table[table_starts[b]] .. table[table_starts[b + 1] - 1]
                                    (CSR); null: a matrix by the table's strides */
    const int32_t *last_page;    /* [batch], with table_starts: keys in each entry's last page, 1..page_size; the lengths are
                                    then known. null, or beside kv_lengths: these say it */
    const int32_t *ring_starts;  /* [batch], each 0..kv_len - 1: key j lies where key (ring_starts[b] + j) mod kv_len would (with
                                    k_starts: modulo the entry's own keys); null: 0 */
    float *states;

    void *workspace; /* aligned to RAPT_WORKSPACE_ALIGNMENT; private to the call until it is done */
    size_t workspace_bytes;

    /* Since 0.2. The positions of each entry's query 0 and key 0 (rapt_causal): [batch], k_offsets 0 or more. null: the defaults
     * there. With a ring or a trimmed cache, whose key 0 is not the sequence's first, k_offsets lets masks, biases and chunks
     * speak of the sequence's positions. */
    const int32_t *q_offsets, *k_offsets;
    float *scores; /* where the plan has them */
} rapt_args;

#define rapt_args_init(args) rapt_args_init_sized((args), sizeof *(args))
RAPT_API void rapt_args_init_sized(rapt_args *args, size_t size);

/* What a call with nth threads would return (rapt_run: 1); and why, as in rapt_plan_explain. Of ith, phases, tasks, barriers and
 * the like, which are not asked for here, rapt_trace_to tells. */
RAPT_API rapt_status rapt_args_explain(const rapt_plan *plan, const rapt_args *args, int64_t nth, char *text, size_t bytes);

/* All four ways give the same bits. Errors of each: NULL, STRUCT, PLAN, SHAPE (nth, whose workspace overflows), KV_LENGTH, TABLE,
 * MASK (a position beyond the columns of a mask or bias), OVERLAP, STRIDE (a tensor would wrap around the address space),
 * WORKSPACE, ALIGNMENT, UNUSED, and RANGE where numbers are given. What is attended reaches the row: a NaN in an attended key
 * makes the row NaN, one in an attended value makes that channel NaN. What is masked never does. A key of score -inf has weight
 * 0; a row without attended keys, or whose scores are all -inf, gives o = 0 (unless an attended value is not finite) and lse =
 * -inf. */

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

/* ---- Writing caches -------------------------------------------------------------------------------------------------- */

/* Rotary position embedding (Su et al. 2021, RoFormer, section 3.2.2): of a token at position p, pair i of channels becomes
 *
 *     (x * c - y * s, y * c + x * s)        c, s = amplitude * (cos, sin)((p + offset) * frequencies[i]), each rounded to f32
 *
 * as two products and a sum of f32, each rounded. The angle is reduced exactly enough that c and s are off by less than 1e-11
 * before they are rounded, for positions up to 2^31 and frequencies up to 1. The angle 0 changes nothing, amplitude aside. */
typedef struct rapt_rotary {
    int64_t channels; /* how many are rotated, from channel 0 on; even, 0 (the default): none. The others stay as they are */
    int interleaved;  /* 0 (the default): pair i is channels i and i + channels / 2 (NeoX, Llama); else 2i and 2i + 1 (GPT-J) */
    const double *frequencies; /* [channels / 2], radians for each position, -16..16: those of rapt_rope_frequencies, which the
                                  caller scales as the model wants it (linear, NTK, YaRN, Llama 3). null: c and s come from a
                                  rapt_rotary_table */
    double amplitude;          /* finite; 1 (the default). Not for c and s of a table */
    int64_t offset;            /* added to every position, -RAPT_MAX_LENGTH..RAPT_MAX_LENGTH; 0 (the default) */
} rapt_rotary;

/* c and s of all positions, as many engines keep them: row p + offset of both, of which the first channels / 2 elements are those
 * of the pairs. Used where rapt_rotary has channels and no frequencies; given otherwise, it is refused. */
typedef struct rapt_rotary_table {
    rapt_type type;     /* RAPT_F32, RAPT_F16 or RAPT_BF16; 0 (the default): there is none */
    const void *c, *s;  /* [positions] rows of channels / 2, any alignment */
    int64_t positions;  /* 0..RAPT_MAX_LENGTH; all p + offset must be 0 or more and below it */
    int64_t row_stride; /* bytes from row to row; 0 (the default): rows are dense */
} rapt_rotary_table;

/* frequencies[i] = base^(-2i / channels) for i < channels / 2, within 2 ulp; base: 1 or more, finite. Errors: NULL, ALIGNMENT,
 * SHAPE (channels: even, 2..RAPT_MAX_HEAD_DIM), FEATURE (base). */
RAPT_API rapt_status rapt_rope_frequencies(double base, int64_t channels, double *frequencies);

/* Where new tokens go. The cache is that of a rapt_desc, and the fields it has in common mean what they mean there. Set every
 * field with rapt_append_desc_init before filling in your own. */
typedef struct rapt_append_desc {
    size_t size;       /* set by rapt_append_desc_init, as in rapt_desc */
    int64_t batch;     /* 0..RAPT_MAX_LENGTH; 1 is the default */
    int64_t kv_heads;  /* 1..RAPT_MAX_LENGTH */
    int64_t tokens;    /* new tokens per batch entry, 0..RAPT_MAX_LENGTH; the most, when rapt_append_args gives lengths */
    int64_t kv_len;    /* key tokens that the cache has room for, per batch entry, 0..RAPT_MAX_LENGTH */
    int64_t d_k, d_v;  /* 1..RAPT_MAX_HEAD_DIM; that of a tensor which is not written is not used */
    rapt_layout new_k; /* [batch, kv_heads, tokens, d_k]: RAPT_F32, RAPT_F16 or RAPT_BF16 */
    rapt_layout new_v; /* [batch, kv_heads, tokens, d_v]: likewise */
    rapt_layout k;     /* the cache: [batch, kv_heads, kv_len, d_k], or pages. type 0: K is not written */
    rapt_layout v;     /* [batch, kv_heads, kv_len, d_v], or pages. type 0: V is not written */
    /* Without a token_stride: factors that are given. With one: factors that are found and written. */
    rapt_scales k_scales, v_scales;
    int64_t page_size; /* 0 (the default): not paged */
    int64_t pages;
    rapt_layout table;  /* [batch, kv_heads] rows of RAPT_I32; token_stride is not used */
    int trust_table;    /* not 0: neither that page numbers are below pages nor that no place is given twice is checked */
    rapt_rotary rotary; /* of K, before it is stored; without K it is refused */
} rapt_append_desc;

#define rapt_append_desc_init(desc) rapt_append_desc_init_sized((desc), sizeof *(desc))
RAPT_API void rapt_append_desc_init_sized(rapt_append_desc *desc, size_t size);

typedef struct rapt_append_args {
    size_t size;               /* set by rapt_append_args_init */
    const void *new_k, *new_v; /* null where K, V is not written, as are k, v and their scales */
    void *k, *v;
    float *k_scales, *v_scales;
    const int32_t *starts;  /* [batch]: the key that each entry's first new token becomes; null: 0. Later ones follow; all of them
                               must lie before kv_len */
    const int32_t *lengths; /* [batch], each 0..tokens: new tokens of each entry; null: tokens for all */
    /* Ragged: [batch + 1], ascending; entry b's new tokens are token_starts[b] .. token_starts[b + 1] - 1 of a new_k and new_v
     * without batch dimension, where tokens is that of all entries; lengths is null then. null: not ragged. */
    const int32_t *token_starts;
    const int32_t *positions; /* [batch, tokens] ([tokens] with token_starts): what is rotated by; null: the key's number */
    const int32_t *table, *table_starts, *ring_starts; /* as in rapt_args */

    /* Since 0.2. */
    rapt_rotary_table rotary_table;
} rapt_append_args;

#define rapt_append_args_init(args) rapt_append_args_init_sized((args), sizeof *(args))
RAPT_API void rapt_append_args_init_sized(rapt_append_args *args, size_t size);

/* Writes the new tokens' keys and values into a cache, thread ith of nth its share of them. The threads need not wait for each
 * other, and their number does not change the bits, which are the same on every machine. Nothing but the tokens' channels (and
 * factors) is written.
 *
 * An element x (of K: rotated) is stored as x / factor where there is a factor: an f32 division, and 0 where the factor is 0. How
 * it is stored:
 *   F32, F16, BF16     rounded to nearest even; beyond the range, infinite
 *   F8_E4M3, F8_E5M2   rounded to nearest even; beyond the range, infinities too, the largest finite value; NaN stays NaN
 *   INT8               the nearest integer, ties to even, of -127..127; NaN becomes 0
 *   INT4               s = x / -8 for the first of the group's elements of largest magnitude, rounded to f16; n = x / s + 8
 *   INT4_MIN           s = (largest - least) / 15, m = least, both rounded to f16; n = (x - m) / s
 *                      In both, s and m at most +-65504 and n the nearest integer, ties to even, of those that there are
 *                      (s = 0: n = 8, or 0)
 *   Q8_0 .. Q5_1       as ggml's reference does it (quantize_row_*_ref), each f32 operation rounded
 * A group with an element that is not finite, or an s that is not, gets an s of NaN, so all of it is NaN. Factors that are found
 * (of types of a byte only) are, for each token and head, the largest magnitude / 127, / 448 (E4M3) or / 57344 (E5M2); NaN, with
 * elements of 0, if an element is not finite.
 *
 * Errors: NULL, STRUCT, SHAPE, TYPE, STRIDE, KV_LENGTH (a token beyond kv_len), TABLE (starts, lengths, token_starts,
 * ring_starts, a page; a place that two tokens are given; a position beyond the rotary table), ALIGNMENT, FEATURE (rotary,
 * scales, lengths beside token_starts), UNUSED, RANGE (ith, nth), OVERLAP: the written tensors may meet each other where they
 * have the same strides and their rows lie in each other's gaps (K and V of a page side by side, factors behind their row). */
RAPT_API rapt_status rapt_kv_append(const rapt_append_desc *desc, const rapt_append_args *args, int64_t ith, int64_t nth);

/* What one thread's call would return; and why, as in rapt_plan_explain. */
RAPT_API rapt_status rapt_append_explain(const rapt_append_desc *desc, const rapt_append_args *args, char *text, size_t bytes);

/* ---- Copying within caches ----------------------------------------------------------------------------------------------- */

/* Tokens of a cache, or of another of the same kind, are copied as they are, factors included: to share a prefix, to close gaps
 * between pages, to move an entry. The copies are done in the order given, so that a later one may read what an earlier one
 * wrote; what is copied may overlap where it goes to, as with memmove. Set every field with rapt_copy_desc_init before filling in
 * your own. */
typedef struct rapt_copy_desc {
    size_t size;                    /* set by rapt_copy_desc_init, as in rapt_desc */
    int64_t entries;                /* of the cache: batch entries, or pages; 0..RAPT_MAX_LENGTH. 1 is the default */
    int64_t kv_heads;               /* 1..RAPT_MAX_LENGTH */
    int64_t tokens;                 /* that an entry has room for, or a page; 0..RAPT_MAX_LENGTH */
    int64_t d_k, d_v;               /* 1..RAPT_MAX_HEAD_DIM; that of a tensor which is not copied is not used */
    rapt_layout k;                  /* [entries, kv_heads, tokens, d_k]; type 0 (the default): K is not copied */
    rapt_layout v;                  /* [entries, kv_heads, tokens, d_v]; likewise */
    rapt_scales k_scales, v_scales; /* with a token_stride: factors of tokens, which go with them. Others are not copied */
} rapt_copy_desc;

#define rapt_copy_desc_init(desc) rapt_copy_desc_init_sized((desc), sizeof *(desc))
RAPT_API void rapt_copy_desc_init_sized(rapt_copy_desc *desc, size_t size);

/* Tokens from_token .. from_token + tokens - 1 of an entry or page (as they lie: rings do not matter) become to_token .. of
 * another, or of the same. */
typedef struct rapt_kv_range {
    int32_t from, from_token, to, to_token, tokens;
} rapt_kv_range;

typedef struct rapt_copy_args {
    size_t size; /* set by rapt_copy_args_init */
    void *k, *v; /* the cache that is written, */
    float *k_scales, *v_scales;
    const void *from_k, *from_v; /* and the one that tokens come from; all null: the same */
    const float *from_k_scales, *from_v_scales;
    const rapt_kv_range *ranges; /* [count] */
    int64_t count;               /* 0 or more */
} rapt_copy_args;

#define rapt_copy_args_init(args) rapt_copy_args_init_sized((args), sizeof *(args))
RAPT_API void rapt_copy_args_init_sized(rapt_copy_args *args, size_t size);

/* Thread ith of nth copies its share of each token's bytes; the threads need not wait for each other. Errors: NULL, STRUCT,
 * SHAPE, TYPE, STRIDE, FEATURE (factors of a tensor that is not copied), TABLE (a range beyond the cache), ALIGNMENT, UNUSED,
 * RANGE, OVERLAP: K, V and factors of the written cache may meet each other as in rapt_kv_append, and nothing else may meet them.
 */
RAPT_API rapt_status rapt_kv_copy(const rapt_copy_desc *desc, const rapt_copy_args *args, int64_t ith, int64_t nth);
RAPT_API rapt_status rapt_copy_explain(const rapt_copy_desc *desc, const rapt_copy_args *args, char *text, size_t bytes);

/* ---- Rotating queries ---------------------------------------------------------------------------------------------------- */

/* Rotary embedding of a tensor of its own, as of Q. */
typedef struct rapt_rope_args {
    size_t size;                  /* set by rapt_rope_args_init */
    int64_t batch, heads, tokens; /* 0.., 1.., 0..RAPT_MAX_LENGTH; batch: 1 is the default */
    int64_t d;                    /* 1..RAPT_MAX_HEAD_DIM */
    rapt_layout in, out;          /* [batch, heads, tokens, d]: RAPT_F32, RAPT_F16 or RAPT_BF16; out is rounded to nearest even */
    const void *from;
    void *to; /* from itself, where in and out are the same, or memory that does not meet it */
    rapt_rotary rotary;
    const int32_t *starts, *lengths, *token_starts, *positions; /* as in rapt_append_args; starts: each entry's first position */

    /* Since 0.2. */
    rapt_rotary_table rotary_table;
} rapt_rope_args;

#define rapt_rope_args_init(args) rapt_rope_args_init_sized((args), sizeof *(args))
RAPT_API void rapt_rope_args_init_sized(rapt_rope_args *args, size_t size);

/* Thread ith of nth does its share of the tokens. Errors: NULL, STRUCT, SHAPE, TYPE, STRIDE, TABLE, ALIGNMENT, FEATURE, UNUSED,
 * RANGE, OVERLAP. */
RAPT_API rapt_status rapt_rope(const rapt_rope_args *args, int64_t ith, int64_t nth);
RAPT_API rapt_status rapt_rope_explain(const rapt_rope_args *args, char *text, size_t bytes);

/* ---- The step of a decoder ----------------------------------------------------------------------------------------------- */

/* rapt_rope of the queries, rapt_kv_append of the new keys and values, and attention to all of them, as one call
 * (FlashAttention's flash_attn_with_kvcache): for one token, several, or a prompt. Its bits are those of the three. It is usually
 * RAPT_CAUSAL_BOTTOM_RIGHT: with RAPT_CAUSAL_TOP_LEFT and no q_offsets, the queries of every step begin at position k_offset. */
typedef struct rapt_decode_desc {
    size_t size; /* set by rapt_decode_desc_init, as in rapt_desc */
    /* Heads, lengths, masks, and the cache in k, v, kv_len, k_scales, v_scales, page_size, pages and table; read by
     * rapt_decode_plan_init only. q_starts holds for the new tokens too; not with k_starts, kv_first, kv_total or unmerged. */
    const rapt_desc *attention;
    int64_t tokens; /* new tokens of each entry, 0..RAPT_MAX_LENGTH; -1 (the default): attention.q_len. Not used with q_starts */
    rapt_layout new_k;  /* [batch, kv_heads, tokens, d_k]: RAPT_F32, RAPT_F16 or RAPT_BF16 */
    rapt_layout new_v;  /* [batch, kv_heads, tokens, d_v]: likewise; type 0: V is not written, as where it is a part of K (MLA) */
    rapt_rotary rotary; /* of Q, which stays in f32 then, and of the new K. Its frequencies must stay where and as they are */
} rapt_decode_desc;

#define rapt_decode_desc_init(desc) rapt_decode_desc_init_sized((desc), sizeof *(desc))
RAPT_API void rapt_decode_desc_init_sized(rapt_decode_desc *desc, size_t size);

/* As rapt_plan. It keeps the addresses of q_starts and rotary.frequencies, and logits_body. */
typedef struct rapt_decode_plan {
    uint64_t opaque[384];
} rapt_decode_plan;

/* Errors: those of rapt_plan_init and, of shapes, of rapt_kv_append and rapt_rope. */
#define rapt_decode_plan_init(plan, desc) rapt_decode_plan_init_sized((plan), sizeof *(plan), (desc))
RAPT_API rapt_status rapt_decode_plan_init_sized(rapt_decode_plan *plan, size_t bytes, const rapt_decode_desc *desc);
RAPT_API rapt_status rapt_decode_explain(const rapt_decode_desc *desc, char *text, size_t bytes);

/* What the attention of the plan is, with the step's phases in all: the first one rotates and appends. Errors: NULL, STRUCT,
 * PLAN. */
RAPT_API rapt_status rapt_decode_plan_query(const rapt_decode_plan *plan, rapt_plan_info *info);
RAPT_API rapt_status rapt_decode_workspace_size(const rapt_decode_plan *plan, int64_t nth, size_t *bytes);

typedef struct rapt_decode_args {
    size_t size;               /* set by rapt_decode_args_init */
    const void *new_k, *new_v; /* the new tokens */
    void *k, *v;               /* the cache that they are appended to */
    float *k_scales, *v_scales;
    const int32_t *starts; /* [batch]: keys that each entry has before; null: 0 */
    /* As in rapt_append_args, for the queries too, of which each entry then has as many as new tokens. null: new keys stand at
     * their number + k_offset, and queries at q_offset and behind it (rapt_causal), as they do for masks. */
    const int32_t *positions;
    rapt_rotary_table rotary_table;
    /* q, o, lse, masks, tables, ...; its k, v, k_scales, v_scales and workspace are not used. kv_lengths are those after the step
     * (FlashAttention's cache_seqlens are starts); null, which is the usual case: starts + new tokens. Shorter ones hide keys,
     * and move queries whose positions are not given */
    const rapt_args *attention;
    void *workspace; /* aligned to RAPT_WORKSPACE_ALIGNMENT; private to the call until it is done */
    size_t workspace_bytes;
} rapt_decode_args;

#define rapt_decode_args_init(args) rapt_decode_args_init_sized((args), sizeof *(args))
RAPT_API void rapt_decode_args_init_sized(rapt_decode_args *args, size_t size);

/* As rapt_run, rapt_run_parallel, rapt_run_share and rapt_run_phase. Errors: those of rapt_run, rapt_rope and rapt_kv_append. */
RAPT_API rapt_status rapt_decode_run(const rapt_decode_plan *plan, const rapt_decode_args *args);
RAPT_API rapt_status rapt_decode_run_parallel(const rapt_decode_plan *plan, const rapt_decode_args *args, int64_t nth,
                                              rapt_parallel_for parallel_for, void *pool);
RAPT_API rapt_status rapt_decode_run_share(const rapt_decode_plan *plan, const rapt_decode_args *args, int64_t ith, int64_t nth,
                                           rapt_barrier barrier, void *barrier_arg);
RAPT_API rapt_status rapt_decode_run_phase(const rapt_decode_plan *plan, const rapt_decode_args *args, int phase, int64_t ith,
                                           int64_t nth);
RAPT_API rapt_status rapt_decode_args_explain(const rapt_decode_plan *plan, const rapt_decode_args *args, int64_t nth, char *text,
                                              size_t bytes);

/* ---- Merging --------------------------------------------------------------------------------------------------------- */

/* A state is what a row has after a chunk of keys: floats m (the largest score), l (the sum of weights exp2((score - m) * c)), 14
 * unused, then the weighted sum of values o[d_v], not divided; padded to RAPT_STATE_FLOATS(d_v). A chunk without attended keys
 * leaves the empty state, m = -inf and all else 0, which changes nothing. (m, l) rather than their logarithm, since that would
 * round: so a merge has the same bits as attention over all keys at once. */
#define RAPT_STATE_FLOATS(d_v) (16 + ((size_t)(d_v) + 15) / 16 * 16)

typedef struct rapt_states {
    const float *at;                                               /* any alignment */
    int64_t batch_stride, head_stride, token_stride, state_stride; /* bytes, as in rapt_desc; those of a row do not overlap */
    int64_t chunks;                                                /* 0..RAPT_MAX_LENGTH / RAPT_CHUNK_KEYS + 1 */
} rapt_states;

/* Merges the states of sources 0..n-1 in this order, which must be that of the chunks, into o and lse of args, with its sinks and
 * v_scales. The plan is one with unmerged set, made with the layouts of o and lse too; states of several such plans of equal
 * batch, heads, q_len, d_v, types of O and scale may be merged. Thread ith of nth does its share of the rows. Errors: NULL,
 * STRUCT, PLAN, RANGE, SHAPE (chunks), OVERLAP, STRIDE, ALIGNMENT, UNUSED. */
RAPT_API rapt_status rapt_merge_states(const rapt_plan *plan, const rapt_args *args, const rapt_states *sources, int64_t n,
                                       int64_t ith, int64_t nth);
RAPT_API rapt_status rapt_merge_states_explain(const rapt_plan *plan, const rapt_args *args, const rapt_states *sources,
                                               int64_t n, char *text, size_t bytes);

/* Merges results of attention over disjoint keys: o[s] is [rows, d_v] and lse[s] [rows], dense f32, for sources s = 0..n-1,
 * folded in this order; a source whose lse is -inf changes nothing (its o is not looked at). o_out and lse_out may be null, or
 * the o and the lse of a source. (FlashInfer's merge_states, with natural logarithms.) Errors: NULL, SHAPE, STRIDE, ALIGNMENT,
 * OVERLAP, ISA_MISSING and ISA_UNKNOWN (of RAPT_ISA). */
RAPT_API rapt_status rapt_merge(int64_t n, int64_t rows, int64_t d_v, const float *const *o, const float *const *lse,
                                float *o_out, float *lse_out);
RAPT_API rapt_status rapt_merge_explain(int64_t n, int64_t rows, int64_t d_v, const float *const *o, const float *const *lse,
                                        float *o_out, float *lse_out, char *text, size_t bytes);

/* ---- Instruction sets ------------------------------------------------------------------------------------------------ */

/* The kernels built for this architecture, best first: index 0..n-1. Null beyond. */
RAPT_API const char *rapt_isa_name(int index);

/* RAPT_OK if the kernel of that name can run here, else ISA_UNKNOWN, ISA_MISSING or NULL (name). missing, unless null, receives
 * the names of the CPU features that are lacking ("" if none), cut to missing_bytes with its terminator. */
RAPT_API rapt_status rapt_isa_usable(const char *name, char *missing, size_t missing_bytes);

/* "fused" or "unfused" for a kernel of that name, else null. */
RAPT_API const char *rapt_isa_rounding(const char *name);

/* Makes a kernel the process-wide choice for plans made from now on (null: back to the environment variable RAPT_ISA, which is
 * read when there is no choice yet, or if that is not set the best one that can run here). Errors: ISA_UNKNOWN, ISA_MISSING. */
RAPT_API rapt_status rapt_isa_force(const char *name);

/* The process-wide choice. If RAPT_ISA names a kernel that is unknown or cannot run, plans fail with that error, and name is
 * null. */
RAPT_API rapt_status rapt_isa_current(const char **name);

/* The CPU features found, space-separated, cut to bytes with its terminator. Errors: NULL. */
RAPT_API rapt_status rapt_cpu_features(char *names, size_t bytes);

/* ---- Looking in ------------------------------------------------------------------------------------------------------ */

/* Whether this build keeps the promise: a few small problems on each kernel that can run here, or on the one of that name, whose
 * results must have the bits of docs/order.md, as hashes of them that the library brings. Whoever compiles the sources in a way
 * of their own learns here whether the compiler reordered, contracted or approximated anything, and whether the thread's rounding
 * mode and treatment of denormal numbers are the default ones. Takes about a millisecond for each vector kernel and a few for
 * scalar ones, and about 160 KiB of stack. text receives, cut to bytes, what is wrong, or "". Errors: SELF_CHECK, ISA_UNKNOWN,
 * ISA_MISSING. */
RAPT_API rapt_status rapt_self_check(const char *isa, char *text, size_t bytes);

/* A line for each plan that is made, and for each refusal, with the name of the function, the field and its value; without a
 * newline. The body may be called from any thread, by several at the same time, and must not call the library. */
typedef void (*rapt_trace_body)(void *arg, const char *line);
typedef struct rapt_trace {
    rapt_trace_body body;
    void *arg;
} rapt_trace;

/* From now on, traces of the whole process go there (null, the default: nowhere). The struct must stay until another has taken
 * its place and no call of before is left. */
RAPT_API void rapt_trace_to(const rapt_trace *trace);

#ifdef __cplusplus
}
#endif

#endif
