/* SPDX-License-Identifier: Apache-2.0 */
/* What the operators are made of: a node, which one takes or leaves; a kernel, which is a node that was taken; and a call of it.
 */
#ifndef RAPT_ORT_OP_H
#define RAPT_ORT_OP_H

#include "ort.h"
#include "rapt.h"

/* ---- A node, before it is taken ----------------------------------------------------------------------------------------- */

/* More inputs and outputs than any operator here has. */
enum { MOST_VALUES = 24 };

/* A node of the graph. */
struct node {
    const OrtNode *at;
    int inputs[MOST_VALUES];   /* The ELEMENT_ number of each input, or 0 where there is none. */
    bool outputs[MOST_VALUES]; /* Whether each output is wanted. */
    const OrtValueInfo *first_output;
};

/* An attribute of the node, or what is given where it has none. */
int64_t node_int(const struct node *node, const char *name, int64_t otherwise);
float node_float(const struct node *node, const char *name, float otherwise);

/* Whether an attribute of the node is this text; one that is not set is every text. */
bool node_text_is(const struct node *node, const char *name, const char *text);

/* Puts a question mark in the place of every control character, so that a text from a model stays in its line. */
void make_printable(char *text);

/* Whether elements are f32, f16 or bf16. */
bool is_number(int element);

/* ---- A kernel ----------------------------------------------------------------------------------------------------------- */

/* The attributes of a kernel's node; each operator reads those that it has, and leaves the others 0. */
struct options {
    int64_t heads, kv_heads;
    bool causal;
    int64_t window_left, window_right; /* As in rapt_desc. */
    float scale;                       /* As in rapt_desc. */
    float softcap;
    rapt_scores_stage scores_stage;
    float mask_value; /* What a key_padding_mask adds to the logits of keys that it masks. */
    bool rotary;      /* Queries and keys are rotated first. */
    bool interleaved; /* As in rapt_rope. */
    int64_t rotary_channels;
    bool smooth_softmax; /* Every head has a sink of 0. */
};

/* A kernel. */
struct kernel {
    OrtKernelImpl impl; /* It comes first, for this is what ONNX Runtime knows of a kernel. */
    const struct op *op;
    OrtAllocator *allocator; /* Where scratch memory comes from: ONNX Runtime's arena. */
    int64_t threads;         /* How many threads may share a call. */
    rapt_arith arith;        /* That of attention. */
    char name[128];          /* The node's name, for errors. */
    struct options options;
};

/* Attributes of a kernel's node, or what is given where it has none. */
int64_t info_int(const OrtKernelInfo *info, const char *name, int64_t otherwise);
float info_float(const OrtKernelInfo *info, const char *name, float otherwise);

/* ---- A call of a kernel ------------------------------------------------------------------------------------------------- */

/* A tensor that the call was given. */
struct tensor {
    const void *data; /* Null where the input is absent or has no element. */
    bool present;
    int element; /* Its ELEMENT_ number. */
    size_t rank;
    int64_t dims[6];
};

/* A call. Scratch memory is freed when the kernel is done. */
struct call {
    const struct kernel *kernel;
    OrtKernelContext *context;
    size_t inputs, outputs; /* How many the node has. */
    void *scratch[16];
    int scratches;
    OrtStatus *lost; /* Why a loop was not run, or null. */
};

/* An error whose line begins with the operator's and the node's names. */
OrtStatus *fail(const struct call *call, const char *format, ...) __attribute__((format(printf, 2, 3), returns_nonnull));

/* An input; it is not an error where there is none. */
OrtStatus *input(const struct call *call, size_t index, struct tensor *out);

/* The memory of an output of that shape, or null where it is not wanted. */
OrtStatus *output(const struct call *call, size_t index, size_t rank, const int64_t *dims, void **out);

/* Memory that is aligned as a workspace must be. */
OrtStatus *scratch(struct call *call, size_t bytes, void **out);

/* An error unless the tensor has that shape. */
OrtStatus *expect(const struct call *call, const char *name, const struct tensor *tensor, size_t rank, const int64_t *dims);
#define EXPECT(call, name, tensor, ...)                                                                                          \
    TRY(expect(call, name, tensor, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (int64_t[]){__VA_ARGS__}))

/* The type of rapt's that elements have, or RAPT_NONE. */
rapt_type type_of(const struct tensor *tensor);

/* Bytes of an element of f32, f16, bf16, int8 or bool. */
int64_t bytes_of(rapt_type type);

/* Where element n of a tensor lies. */
const void *element_at(const struct tensor *tensor, int64_t n);

/* ONNX Runtime's threads as rapt_parallel_for; pool is the call. */
void parallel_for(void *pool, int64_t n, rapt_body body, void *arg);

/* How many threads are worth waking for that many bytes of copying. */
int64_t threads_for(const struct call *call, int64_t bytes);

/* Does attention, with the workspace and threads of the call. */
OrtStatus *attend(struct call *call, rapt_desc *desc, rapt_args *args);

/* Rotates, or only converts. */
OrtStatus *rotate(struct call *call, const rapt_rope_args *args);

/* Appends to a cache. */
OrtStatus *append(struct call *call, const rapt_kv_append_desc *desc, const rapt_kv_append_args *args);

/* Converts n numbers. */
OrtStatus *convert(struct call *call, int64_t n, rapt_type from_type, const void *from, rapt_type to_type, void *to);

/* The n numbers of a tensor in f32: those themselves, or copies in scratch memory. */
OrtStatus *widen(struct call *call, int64_t n, const struct tensor *tensor, const float **out);

/* Scratch memory for the int32 of [n] int32 or int64, each of which must be in least..most. */
OrtStatus *integers(struct call *call, const char *name, const struct tensor *tensor, int64_t least, int64_t most, int32_t **out);

/* Keys and values as they lie in memory. */
struct keys {
    int64_t heads, tokens, d_k, d_v;
    rapt_layout k, v;
    const void *k_at, *v_at;
};

/* The past and what becomes of it. */
struct past {
    struct tensor k, v;        /* [batch, heads, capacity, channels]; absent: there is no past. */
    int64_t tokens;            /* How many of the past's tokens there are. */
    int64_t capacity;          /* Tokens that the present has room for, at least those of the past and the new ones. */
    rapt_type type_k, type_v;  /* The types of the present. */
    size_t k_output, v_output; /* Which outputs the present is, if it is wanted. */
};

/* Makes one of the past and the new keys, in the present or, where that is not wanted, in scratch memory. keys become these. */
OrtStatus *join(struct call *call, int64_t batch, const struct past *past, struct keys *keys);

/* Some rows of tokens, [rows, room, bytes of a token], of which rows_per_entry are an entry's: what copy_tokens does with them.
 */
struct rows {
    int64_t rows, rows_per_entry, bytes;
    const int32_t *copied; /* Tokens of each entry that are copied, from the first on. */
    const int32_t *ends;   /* Behind which token of each entry there is nothing: zeros are written from there on. */
    const void *from;
    void *to; /* from itself, which then stays as it is; or other memory. */
    int64_t from_room, to_room;
};

/* Copies tokens from one cache to another. */
OrtStatus *copy_tokens(struct call *call, const struct rows *rows);

/* ---- Operators ---------------------------------------------------------------------------------------------------------- */

/* An operator that the provider has. */
struct op {
    const char *domain, *name;
    int first, last;               /* The versions, of operator sets in which it came or changed, that are served. */
    size_t inputs, outputs;        /* How many of each are known. */
    const char *const *attributes; /* The names of those that are known, behind which there is a null. */
    const char *(*refusal)(const struct node *node); /* Why a node is left to other providers, or null. */
    void (*read)(const OrtKernelInfo *info, struct options *options);
    OrtStatus *(*compute)(struct call *call);
};

extern const struct op attention_op, multi_head_op, group_query_op, rotary_op, contrib_rotary_op;

#endif
