/* SPDX-License-Identifier: Apache-2.0 */
/* ai.onnx.Attention of operator sets 23, 24 and 25: Q, K, V, attn_mask, past_key, past_value, nonpad_kv_seqlen. */
#include "op.h"

#include <math.h>

/* Inputs and outputs, by number. */
enum { Q, K, V, MASK, PAST_KEY, PAST_VALUE, NONPAD };
enum { Y, PRESENT_KEY, PRESENT_VALUE, SCORES };

static const char *refusal(const struct node *node) {
    enum { DOUBLE = 11 }; /* of softmax_precision */
    const int64_t mode = node_int(node, "qk_matmul_output_mode", 0);
    if (!is_number(node->inputs[Q]) || node->inputs[K] != node->inputs[Q]) return "Q and K are not both f32, f16 or bf16";
    if (!is_number(node->inputs[V])) return "V is not f32, f16 or bf16";
    if (node->inputs[MASK] && node->inputs[MASK] != ELEMENT_BOOL && !is_number(node->inputs[MASK]))
        return "attn_mask is not bool, f32, f16 or bf16";
    if (node_int(node, "softmax_precision", 1) == DOUBLE) return "softmax_precision is double";
    if (node->outputs[SCORES] && (mode < 0 || mode > 3)) return "qk_matmul_output_mode is not in 0..3";
    if (node->outputs[SCORES] && mode < 2 && node->inputs[NONPAD])
        return "scores of padding (qk_matmul_output_mode 0 or 1 with nonpad_kv_seqlen) are not computed";
    return NULL;
}

static void read(const OrtKernelInfo *info, struct options *options) {
    static const rapt_scores_stage stages[] = {RAPT_SCORES_RAW, RAPT_SCORES_CAPPED, RAPT_SCORES_LOGITS, RAPT_SCORES_WEIGHTS};
    options->heads = info_int(info, "q_num_heads", 0);
    options->kv_heads = info_int(info, "kv_num_heads", 0);
    options->causal = info_int(info, "is_causal", 0) != 0;
    options->window_left = info_int(info, "left_window_size", -1);
    options->window_right = info_int(info, "right_window_size", -1);
    options->scale = info_float(info, "scale", NAN);
    options->softcap = info_float(info, "softcap", 0);
    options->scores_stage = stages[info_int(info, "qk_matmul_output_mode", 0) & 3];
}

/* A tensor of 3 dimensions, whose heads lie side by side, or of 4: its layout, and how many heads, tokens and channels it has. */
static OrtStatus *shape(const struct call *call, const char *name, const struct tensor *tensor, int64_t heads, int64_t of[3],
                        rapt_layout *layout) {
    if (tensor->rank == 4) {
        of[0] = tensor->dims[1], of[1] = tensor->dims[2], of[2] = tensor->dims[3];
        *layout = rapt_layout_bhsd(type_of(tensor), of[0], of[1], of[2]);
        return NULL;
    }
    if (tensor->rank != 3) return fail(call, "%s has %zu dimensions, not 3 or 4", name, tensor->rank);
    if (heads < 1 || tensor->dims[2] % heads)
        return fail(call, "%s has %lld channels for %lld heads", name, (long long)tensor->dims[2], (long long)heads);
    of[0] = heads, of[1] = tensor->dims[1], of[2] = tensor->dims[2] / heads;
    *layout = rapt_layout_bshd(type_of(tensor), of[0], of[1], of[2]);
    return NULL;
}

/* Where the queries stand among the keys: behind those of the past, or at the end of those that are no padding. */
static OrtStatus *positions(struct call *call, const struct tensor *nonpad, int64_t past, rapt_desc *desc, rapt_args *args) {
    void *memory;
    int32_t *offsets, *lengths = NULL;
    TRY(scratch(call, (size_t)desc->batch * sizeof *offsets, &memory));
    offsets = memory;
    if (nonpad->present) {
        EXPECT(call, "nonpad_kv_seqlen", nonpad, desc->batch);
        TRY(integers(call, "nonpad_kv_seqlen", nonpad, 0, desc->kv_len, &lengths));
    }
    for (int64_t b = 0; b < desc->batch; b++) offsets[b] = (int32_t)(lengths ? lengths[b] - desc->q_len : past);
    args->kv_lengths = lengths;
    args->q_offsets = offsets;
    return NULL;
}

/* The mask, broadcast as NumPy does it; columns that it lacks are masked. */
static OrtStatus *mask(const struct call *call, const struct tensor *tensor, rapt_desc *desc, rapt_args *args) {
    const int64_t full[] = {desc->batch, desc->heads, desc->q_len};
    int64_t strides[3] = {0, 0, 0}, columns = tensor->rank ? tensor->dims[tensor->rank - 1] : 0;
    int64_t stride = columns * bytes_of(type_of(tensor));
    if (tensor->rank < 1 || tensor->rank > 4) return fail(call, "attn_mask has %zu dimensions, not 1 to 4", tensor->rank);
    if (columns > desc->kv_len || (!columns && desc->kv_len))
        return fail(call, "attn_mask has %lld columns for %lld keys", (long long)columns, (long long)desc->kv_len);
    for (size_t i = tensor->rank - 1; i-- > 0;) {
        const size_t at = i + 4 - tensor->rank;
        if (tensor->dims[i] != 1 && tensor->dims[i] != full[at])
            return fail(call, "dimension %zu of attn_mask is %lld, not 1 or %lld", i, (long long)tensor->dims[i],
                        (long long)full[at]);
        if (tensor->dims[i] != 1) strides[at] = stride;
        stride *= tensor->dims[i];
    }
    const rapt_layout layout = {type_of(tensor), strides[0], strides[1], strides[2]};
    if (layout.type == RAPT_BOOL) {
        desc->mask = layout, desc->mask_keys = columns, desc->mask_rest = RAPT_REST_MASKED;
        args->mask = tensor->data;
    } else {
        desc->bias = layout, desc->bias_keys = columns, desc->bias_rest = RAPT_REST_MASKED;
        args->bias = tensor->data;
    }
    return NULL;
}

static OrtStatus *compute(struct call *call) {
    const struct options *options = &call->kernel->options;
    struct tensor q, k, v, attn_mask, nonpad;
    struct past past = {.k_output = PRESENT_KEY, .v_output = PRESENT_VALUE};
    struct keys keys;
    rapt_desc desc;
    rapt_args args;
    int64_t of_q[3], of_k[3], of_v[3];
    void *scores;
    rapt_desc_init(&desc);
    rapt_args_init(&args);
    TRY(input(call, Q, &q));
    TRY(input(call, K, &k));
    TRY(input(call, V, &v));
    TRY(input(call, MASK, &attn_mask));
    TRY(input(call, PAST_KEY, &past.k));
    TRY(input(call, PAST_VALUE, &past.v));
    TRY(input(call, NONPAD, &nonpad));
    if (q.rank != k.rank || q.rank != v.rank) return fail(call, "Q, K and V have not the same number of dimensions");
    TRY(shape(call, "Q", &q, options->heads, of_q, &desc.q));
    TRY(shape(call, "K", &k, options->kv_heads, of_k, &keys.k));
    TRY(shape(call, "V", &v, options->kv_heads, of_v, &keys.v));
    if (k.dims[0] != q.dims[0] || v.dims[0] != q.dims[0])
        return fail(call, "Q has %lld batch entries, K %lld and V %lld", (long long)q.dims[0], (long long)k.dims[0],
                    (long long)v.dims[0]);
    if (of_v[0] != of_k[0]) return fail(call, "K has %lld heads and V %lld", (long long)of_k[0], (long long)of_v[0]);
    if (of_v[1] != of_k[1]) return fail(call, "K has %lld tokens and V %lld", (long long)of_k[1], (long long)of_v[1]);
    if (of_k[2] != of_q[2])
        return fail(call, "Q has heads of %lld channels and K of %lld", (long long)of_q[2], (long long)of_k[2]);
    keys.heads = of_k[0], keys.tokens = of_k[1], keys.d_k = of_k[2], keys.d_v = of_v[2];
    keys.k_at = k.data, keys.v_at = v.data;

    if (past.k.present != past.v.present) return fail(call, "of past_key and past_value, one is missing");
    if (past.k.present) {
        past.tokens = past.k.rank == 4 ? past.k.dims[2] : 0;
        EXPECT(call, "past_key", &past.k, q.dims[0], keys.heads, past.tokens, keys.d_k);
        EXPECT(call, "past_value", &past.v, q.dims[0], keys.heads, past.tokens, keys.d_v);
        if (nonpad.present) return fail(call, "nonpad_kv_seqlen is given beside past_key");
    }
    past.capacity = past.tokens + keys.tokens;
    past.type_k = type_of(&k), past.type_v = type_of(&v);
    TRY(join(call, q.dims[0], &past, &keys));

    desc.batch = q.dims[0], desc.heads = of_q[0], desc.kv_heads = keys.heads;
    desc.q_len = of_q[1], desc.kv_len = keys.tokens, desc.d_k = keys.d_k, desc.d_v = keys.d_v;
    desc.k = keys.k, desc.v = keys.v;
    desc.scale = options->scale, desc.softcap = options->softcap;
    desc.causal = options->causal ? RAPT_CAUSAL_BOTTOM_RIGHT : RAPT_CAUSAL_NONE;
    desc.window_left = options->window_left, desc.window_right = options->window_right;
    if (options->causal || desc.window_left >= 0 || desc.window_right >= 0 || nonpad.present)
        TRY(positions(call, &nonpad, past.tokens, &desc, &args));
    if (attn_mask.present) TRY(mask(call, &attn_mask, &desc, &args));

    args.q = q.data, args.k = keys.k_at, args.v = keys.v_at;
    if (q.rank == 4) {
        desc.o = rapt_layout_bhsd(type_of(&q), desc.heads, desc.q_len, desc.d_v);
        TRY(output(call, Y, 4, (int64_t[]){desc.batch, desc.heads, desc.q_len, desc.d_v}, &args.o));
    } else {
        desc.o = rapt_layout_bshd(type_of(&q), desc.heads, desc.q_len, desc.d_v);
        TRY(output(call, Y, 3, (int64_t[]){desc.batch, desc.q_len, desc.heads * desc.d_v}, &args.o));
    }
    TRY(output(call, SCORES, 4, (int64_t[]){desc.batch, desc.heads, desc.q_len, desc.kv_len}, &scores));
    if (!scores) return attend(call, &desc, &args);

    const int64_t n = desc.batch * desc.heads * desc.q_len * desc.kv_len;
    void *wide = scores;
    if (type_of(&q) != RAPT_F32) TRY(scratch(call, (size_t)n * sizeof(float), &wide));
    desc.scores_stage = options->scores_stage;
    desc.scores = rapt_layout_bhsd(RAPT_F32, desc.heads, desc.q_len, desc.kv_len);
    args.scores = wide;
    TRY(attend(call, &desc, &args));
    return wide == scores ? NULL : convert(call, n, RAPT_F32, wide, type_of(&q), scores);
}

static const char *const attributes[] = {
    "is_causal",         "kv_num_heads", "left_window_size", "q_num_heads",       "qk_matmul_output_mode",
    "right_window_size", "scale",        "softcap",          "softmax_precision", NULL};

const struct op attention_op = {"", "Attention", 23, 25, NONPAD + 1, SCORES + 1, attributes, refusal, read, compute};
