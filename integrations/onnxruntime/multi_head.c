/* SPDX-License-Identifier: Apache-2.0 */
/* com.microsoft.MultiHeadAttention: query, key and value apart or packed, with the bias of their projections. */
#include "op.h"

#include <math.h>

/* Inputs and outputs, by number. */
enum { QUERY, KEY, VALUE, BIAS, KEY_MASK, LOGIT_BIAS, PAST_KEY, PAST_VALUE, PAST_LENGTH, INDIRECTION };
enum { OUTPUT, PRESENT_KEY, PRESENT_VALUE, SCORES };

/* The default of mask_filter_value. */
static const float MASKED = -10000;

static const char *refusal(const struct node *node) {
    if (!is_number(node->inputs[QUERY])) return "query is not f32, f16 or bf16";
    if (node->inputs[LOGIT_BIAS] && !is_number(node->inputs[LOGIT_BIAS])) return "attention_bias is not f32, f16 or bf16";
    if (node->inputs[INDIRECTION]) return "cache_indirection (beams) is given";
    if (node->outputs[SCORES]) return "the output qk is wanted";
    return NULL;
}

static void read(const OrtKernelInfo *info, struct options *options) {
    const float scale = info_float(info, "scale", 0);
    options->heads = info_int(info, "num_heads", 0);
    options->causal = info_int(info, "unidirectional", 0) != 0;
    options->scale = scale == 0 ? NAN : scale;
    options->mask_value = info_float(info, "mask_filter_value", MASKED);
}

/* ---- The bias of the projections ---------------------------------------------------------------------------------------- */

/* A tensor to which a bias is added, row by row. */
struct biased {
    const char *from;
    rapt_layout in; /* F32 */
    float *to;      /* [batch, tokens, heads, channels] */
    const float *bias;
    int64_t tokens, heads, channels;
};

static void add_row(void *arg, int64_t i) {
    const struct biased *of = arg;
    const char *row = of->from + i / of->tokens * of->in.batch_stride + i % of->tokens * of->in.token_stride;
    float *to = of->to + i * of->heads * of->channels;
    for (int64_t h = 0; h < of->heads; h++) {
        const float *from = (const float *)(row + h * of->in.head_stride);
        for (int64_t c = 0; c < of->channels; c++) to[h * of->channels + c] = from[c] + of->bias[h * of->channels + c];
    }
}

/* The tensor with the bias, in f32. */
static OrtStatus *add_bias(struct call *call, const float *bias, int64_t batch, int64_t heads, int64_t tokens, int64_t channels,
                           rapt_layout *layout, const void **at) {
    struct biased of = {*at, *layout, NULL, bias, tokens, heads, channels};
    const int64_t rows = batch * tokens, bytes = rows * heads * channels * (int64_t)sizeof(float);
    void *memory;
    TRY(scratch(call, (size_t)bytes, &memory));
    of.to = memory;
    if (layout->type != RAPT_F32) {
        rapt_rope_args args;
        rapt_rope_args_init(&args);
        args.batch = batch, args.heads = heads, args.tokens = tokens, args.d = channels;
        args.in = *layout, args.out = rapt_layout_bshd(RAPT_F32, heads, tokens, channels);
        args.from = *at, args.to = memory;
        TRY(rotate(call, &args));
        of.from = memory, of.in = args.out;
    }
    if (threads_for(call, bytes) == 1)
        for (int64_t i = 0; i < rows; i++) add_row(&of, i);
    else parallel_for(call, rows, add_row, &of);
    *layout = rapt_layout_bshd(RAPT_F32, heads, tokens, channels);
    *at = memory;
    return NULL;
}

/* ---- Masks -------------------------------------------------------------------------------------------------------------- */

/* What a mask of integers says of a key of a query. */
struct key_mask {
    const int32_t *at;
    int64_t batch_stride, query_stride; /* Elements; the second is 0 where all queries have the same. */
};

/* Key lengths, where the mask says no more than that: entries whose keys are attended up to a length of 1 or more. */
static bool lengths_of(const struct key_mask *mask, int64_t batch, int64_t keys, int32_t *lengths) {
    for (int64_t b = 0; b < batch; b++) {
        const int32_t *row = mask->at + b * mask->batch_stride;
        int64_t n = 0;
        while (n < keys && row[n]) n++;
        lengths[b] = (int32_t)n;
        for (int64_t j = n; j < keys; j++)
            if (row[j]) return false;
        if (!n) return false;
    }
    return !mask->query_stride;
}

/* key_padding_mask adds mask_filter_value to the logits of masked keys. Where every query attends some key, and the value is not
 * above its default, that is to leave them out, and for padding behind the keys, their lengths do. All other masks become a bias,
 * to which attention_bias is added. */
static OrtStatus *masks(struct call *call, const struct tensor *padding, const struct tensor *bias, rapt_desc *desc,
                        rapt_args *args) {
    const int64_t batch = desc->batch, queries = desc->q_len, keys = desc->kv_len, b4[4] = {batch, desc->heads, queries, keys};
    int64_t strides[2] = {0, 0}; /* of bias: elements from an entry, and from a head, to the next */
    void *memory;
    if (bias->present) {
        if (bias->rank != 4) return fail(call, "attention_bias has %zu dimensions, not 4", bias->rank);
        EXPECT(call, "attention_bias", bias, bias->dims[0] == 1 ? 1 : batch, bias->dims[1] == 1 ? 1 : b4[1], queries, keys);
        strides[0] = bias->dims[0] == 1 ? 0 : bias->dims[1] * queries * keys;
        strides[1] = bias->dims[1] == 1 ? 0 : queries * keys;
        const int64_t bytes = bytes_of(type_of(bias));
        desc->bias = (rapt_layout){type_of(bias), strides[0] * bytes, strides[1] * bytes, keys * bytes};
        args->bias = bias->data;
    }
    if (!padding->present) return NULL;

    int32_t *lengths, *given;
    TRY(scratch(call, (size_t)batch * sizeof *lengths, &memory));
    lengths = memory;
    struct key_mask mask = {padding->data, keys, 0};
    const bool masks_out = call->kernel->options.mask_value <= MASKED;
    bool only_lengths;
    if (padding->rank == 1 && (padding->dims[0] == batch || padding->dims[0] == 3 * batch + 2)) {
        struct tensor first = *padding; /* of the latter, the first are lengths, and the others follow from them */
        first.dims[0] = batch;
        TRY(integers(call, "key_padding_mask", &first, 0, keys, &given));
        only_lengths = true;
        for (int64_t b = 0; b < batch; b++) lengths[b] = given[b], only_lengths &= given[b] > 0;
        only_lengths &= masks_out;
        if (!only_lengths) { /* as a matrix, like the others */
            int32_t *matrix;
            TRY(scratch(call, (size_t)(batch * keys) * sizeof *matrix, &memory));
            matrix = memory;
            for (int64_t i = 0; i < batch * keys; i++) matrix[i] = i % keys < lengths[i / keys];
            mask.at = matrix;
        }
    } else if (padding->rank == 3) {
        EXPECT(call, "key_padding_mask", padding, batch, queries, keys);
        mask.batch_stride = queries * keys, mask.query_stride = keys;
        only_lengths = false;
    } else {
        EXPECT(call, "key_padding_mask", padding, batch, keys);
        only_lengths = masks_out && lengths_of(&mask, batch, keys, lengths);
    }
    if (only_lengths) {
        args->kv_lengths = lengths;
        return NULL;
    }

    const int64_t heads = bias->present && strides[1] ? desc->heads : 1;
    const int64_t rows = mask.query_stride || bias->present ? queries : 1;
    const int64_t n = batch * heads * rows * keys;
    float *sum;
    TRY(scratch(call, (size_t)n * sizeof *sum, &memory));
    sum = memory;
    const float *wide = NULL;
    if (bias->present) TRY(widen(call, bias->dims[0] * bias->dims[1] * queries * keys, bias, &wide));
    for (int64_t b = 0; b < batch; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < rows; i++) {
                const int32_t *row = mask.at + b * mask.batch_stride + i * mask.query_stride;
                const float *added = wide ? wide + b * strides[0] + h * strides[1] + i * keys : NULL;
                float *to = sum + ((b * heads + h) * rows + i) * keys;
                for (int64_t j = 0; j < keys; j++)
                    to[j] = (row[j] ? 0 : call->kernel->options.mask_value) + (added ? added[j] : 0);
            }
    const int64_t row = keys * (int64_t)sizeof *sum;
    desc->bias = (rapt_layout){RAPT_F32, heads * rows * row, heads > 1 ? rows * row : 0, rows > 1 ? row : 0};
    args->bias = sum;
    return NULL;
}

/* ---- The kernel --------------------------------------------------------------------------------------------------------- */

static OrtStatus *compute(struct call *call) {
    const struct options *options = &call->kernel->options;
    const int64_t heads = options->heads;
    struct tensor query, key, value, bias, padding, logit_bias, length;
    struct past past = {.k_output = PRESENT_KEY, .v_output = PRESENT_VALUE};
    struct keys keys = {.heads = heads};
    rapt_desc desc;
    rapt_args args;
    int64_t channels;
    if (heads < 1) return fail(call, "num_heads is %lld", (long long)heads);
    rapt_desc_init(&desc);
    rapt_args_init(&args);
    TRY(input(call, QUERY, &query));
    TRY(input(call, KEY, &key));
    TRY(input(call, VALUE, &value));
    TRY(input(call, BIAS, &bias));
    TRY(input(call, KEY_MASK, &padding));
    TRY(input(call, LOGIT_BIAS, &logit_bias));
    TRY(input(call, PAST_KEY, &past.k));
    TRY(input(call, PAST_VALUE, &past.v));
    TRY(input(call, PAST_LENGTH, &length));
    const rapt_type type = type_of(&query);

    if (query.rank == 5) { /* query, key and value side by side, head by head */
        channels = query.dims[4];
        EXPECT(call, "query", &query, query.dims[0], query.dims[1], heads, 3, channels);
        if (key.present || value.present) return fail(call, "key or value is given beside a packed query");
        keys.tokens = query.dims[1];
        desc.q = keys.k = keys.v = rapt_layout_bshd(type, heads, keys.tokens, 3 * channels);
        keys.k_at = element_at(&query, channels), keys.v_at = element_at(&query, 2 * channels), keys.d_v = channels;
    } else {
        if (query.rank != 3 || query.dims[2] % heads) return fail(call, "query is not [batch, tokens, heads * channels]");
        channels = query.dims[2] / heads;
        desc.q = rapt_layout_bshd(type, heads, query.dims[1], channels);
        if (!key.present || key.rank < 3) return fail(call, "key is missing");
        if (key.rank == 5) {
            if (value.present) return fail(call, "value is given beside a key that has it inside");
            EXPECT(call, "key", &key, query.dims[0], key.dims[1], heads, 2, channels);
            keys.tokens = key.dims[1];
            keys.k = keys.v = rapt_layout_bshd(type, heads, keys.tokens, 2 * channels);
            keys.k_at = key.data, keys.v_at = element_at(&key, channels), keys.d_v = channels;
        } else if (key.rank == 4) { /* those of another's cache */
            keys.tokens = key.dims[2], keys.d_v = value.rank == 4 ? value.dims[3] : 0;
            EXPECT(call, "key", &key, query.dims[0], heads, keys.tokens, channels);
            EXPECT(call, "value", &value, query.dims[0], heads, keys.tokens, keys.d_v);
            keys.k = rapt_layout_bhsd(type, heads, keys.tokens, channels);
            keys.v = rapt_layout_bhsd(type, heads, keys.tokens, keys.d_v);
            keys.k_at = key.data, keys.v_at = value.data;
        } else {
            keys.tokens = key.dims[1], keys.d_v = value.rank == 3 ? value.dims[2] / heads : 0;
            EXPECT(call, "key", &key, query.dims[0], keys.tokens, heads * channels);
            EXPECT(call, "value", &value, query.dims[0], keys.tokens, heads * keys.d_v);
            keys.k = rapt_layout_bshd(type, heads, keys.tokens, channels);
            keys.v = rapt_layout_bshd(type, heads, keys.tokens, keys.d_v);
            keys.k_at = key.data, keys.v_at = value.data;
        }
    }
    keys.d_k = channels;
    desc.batch = query.dims[0], desc.heads = desc.kv_heads = heads, desc.q_len = query.dims[1];
    desc.d_k = channels, desc.d_v = keys.d_v;
    desc.scale = options->scale;
    args.q = query.data;

    if (bias.present) {
        const int64_t hidden = heads * channels, all = 2 * hidden + heads * keys.d_v;
        const float *floats;
        EXPECT(call, "bias", &bias, all);
        TRY(widen(call, all, &bias, &floats));
        TRY(add_bias(call, floats, desc.batch, heads, desc.q_len, channels, &desc.q, &args.q));
        if (key.rank != 4) { /* those of a cache have theirs */
            TRY(add_bias(call, floats + hidden, desc.batch, heads, keys.tokens, channels, &keys.k, &keys.k_at));
            TRY(add_bias(call, floats + 2 * hidden, desc.batch, heads, keys.tokens, keys.d_v, &keys.v, &keys.v_at));
        }
    }

    if (past.k.present != past.v.present) return fail(call, "of past_key and past_value, one is missing");
    if (past.k.present) {
        const int64_t room = past.k.rank == 4 ? past.k.dims[2] : 0;
        int32_t *tokens;
        EXPECT(call, "past_key", &past.k, desc.batch, heads, room, channels);
        EXPECT(call, "past_value", &past.v, desc.batch, heads, room, keys.d_v);
        past.tokens = room;
        if (length.present) { /* the past's memory has room for what is to come */
            if (length.rank) EXPECT(call, "past_sequence_length", &length, 1);
            TRY(integers(call, "past_sequence_length", &length, 0, room, &tokens));
            past.tokens = tokens[0], past.capacity = room;
            if (past.tokens + keys.tokens > room)
                return fail(call, "the past has room for %lld keys, and there are %lld of the past and %lld new ones",
                            (long long)room, (long long)past.tokens, (long long)keys.tokens);
        }
    }
    if (!length.present || !past.k.present) past.capacity = past.tokens + keys.tokens;
    past.type_k = past.type_v = type;
    TRY(join(call, desc.batch, &past, &keys));
    const int64_t new_keys = keys.tokens - past.tokens;
    desc.kv_len = keys.tokens, desc.k = keys.k, desc.v = keys.v;
    args.k = keys.k_at, args.v = keys.v_at;

    if (options->causal) { /* queries stand behind the past, and where there are more new keys than queries, at their end */
        void *memory;
        int32_t *offsets;
        TRY(scratch(call, (size_t)desc.batch * sizeof *offsets, &memory));
        offsets = memory;
        for (int64_t b = 0; b < desc.batch; b++)
            offsets[b] = (int32_t)(past.tokens + (new_keys > desc.q_len ? new_keys - desc.q_len : 0));
        desc.causal = RAPT_CAUSAL_BOTTOM_RIGHT, args.q_offsets = offsets;
    }
    TRY(masks(call, &padding, &logit_bias, &desc, &args));
    desc.o = rapt_layout_bshd(type, heads, desc.q_len, desc.d_v);
    TRY(output(call, OUTPUT, 3, (int64_t[]){desc.batch, desc.q_len, heads * desc.d_v}, &args.o));
    return attend(call, &desc, &args);
}

static const char *const attributes[] = {"mask_filter_value", "num_heads", "scale", "unidirectional", NULL};

const struct op multi_head_op = {"com.microsoft", "MultiHeadAttention", 1,       1,    INDIRECTION + 1,
                                 SCORES + 1,      attributes,           refusal, read, compute};
