/* SPDX-License-Identifier: Apache-2.0 */
/* com.microsoft.GroupQueryAttention: a decoder's step, with rotary embedding and a cache of f32, f16, bf16 or int8. */
#include "op.h"

#include <math.h>

/* Inputs and outputs, by number. */
enum {
    QUERY,
    KEY,
    VALUE,
    PAST_KEY,
    PAST_VALUE,
    LAST,
    TOTAL,
    COS,
    SIN,
    POSITIONS,
    BIAS,
    SINK,
    K_SCALE,
    V_SCALE,
    Q_NORM,
    K_NORM,
    NEW
};
enum { OUTPUT, PRESENT_KEY, PRESENT_VALUE, SCORES };

static const char *refusal(const struct node *node) {
    const int cache = node->inputs[PAST_KEY];
    const bool coded = cache && !is_number(cache);
    if (!is_number(node->inputs[QUERY])) return "query is not f32, f16 or bf16";
    if (coded && (cache != ELEMENT_INT8 || node->inputs[PAST_VALUE] != ELEMENT_INT8))
        return "the cache is not f32, f16, bf16 or int8";
    if (cache == ELEMENT_INT8) {
        if (node_int(node, "kv_cache_bit_width", 8) == 4) return "the cache has 4 bits";
        if (!node->inputs[K_SCALE] || !node->inputs[V_SCALE]) return "the int8 cache has no scales";
    } else if (!node_text_is(node, "k_quant_type", "NONE") || !node_text_is(node, "v_quant_type", "NONE")) {
        return "the cache is quantised, and not int8";
    }
    if (node_int(node, "sliding_window_cache", 0)) return "sliding_window_cache is set";
    if (node->inputs[Q_NORM] || node->inputs[K_NORM]) return "queries and keys are to be normalised";
    if (!node_int(node, "local_window_size", -1)) return "local_window_size is 0";
    if (node->outputs[SCORES]) return "the output output_qk is wanted";
    if (node_int(node, "do_rotary", 0) && (!node->inputs[COS] || !node->inputs[SIN])) return "do_rotary is set without tables";
    return NULL;
}

static void read(const OrtKernelInfo *info, struct options *options) {
    const float scale = info_float(info, "scale", 0);
    const int64_t window = info_int(info, "local_window_size", -1);
    options->heads = info_int(info, "num_heads", 0);
    options->kv_heads = info_int(info, "kv_num_heads", 0);
    options->causal = info_int(info, "causal", 1) != 0;
    options->window_left = window > 0 ? window - 1 : -1; /* a window has the query's own key */
    options->scale = scale == 0 ? NAN : scale;
    options->softcap = info_float(info, "softcap", 0);
    options->rotary = info_int(info, "do_rotary", 0) != 0;
    options->interleaved = info_int(info, "rotary_interleaved", 0) != 0;
    options->smooth_softmax = info_int(info, "smooth_softmax", 0) == 1;
}

/* What the step does with each entry, [batch] of each. */
struct step {
    int32_t *total;  /* Keys after the step. */
    int32_t *tokens; /* New ones among them. */
    int32_t *past;   /* Those before. */
};

/* The numbers of keys. total_sequence_length says whether that is a first prompt, but no more than they do: a prompt's entries
 * have no past, for they have at most as many keys as there are new tokens. */
static OrtStatus *read_step(struct call *call, int64_t batch, int64_t tokens, const struct tensor *last,
                            const struct tensor *news, struct step *step) {
    void *memory;
    int32_t *given = NULL;
    TRY(integers(call, "seqlens_k", last, news->present ? 0 : -1, RAPT_MAX_LENGTH - 1, &step->total));
    if (news->present) {
        EXPECT(call, "query_seqlens", news, batch);
        TRY(integers(call, "query_seqlens", news, 0, tokens, &given));
    }
    TRY(scratch(call, 2 * (size_t)batch * sizeof *step->tokens, &memory));
    step->tokens = memory, step->past = step->tokens + batch;
    for (int64_t b = 0; b < batch; b++) {
        const int32_t total = ++step->total[b]; /* what is given is the number of the last key */
        step->tokens[b] = given ? given[b] : total < tokens ? total : (int32_t)tokens;
        step->past[b] = total - step->tokens[b];
        if (step->past[b] < 0) return fail(call, "query_seqlens[%lld] = %d, of %d keys", (long long)b, step->tokens[b], total);
    }
    return NULL;
}

/* The scales of a cache, of shape [1] or one that broadcasts to [batch, kv heads, tokens, channels], the same for all tokens. */
static OrtStatus *scales(const struct call *call, const char *name, const struct tensor *tensor, int64_t heads, int64_t channels,
                         rapt_scales *out) {
    const int64_t element = sizeof(float);
    out->present = 1;
    if (tensor->element != ELEMENT_FLOAT) return fail(call, "%s is not f32", name);
    if (tensor->rank == 0 || (tensor->rank == 1 && tensor->dims[0] == 1)) return NULL;
    if (tensor->rank != 4) return fail(call, "%s has %zu dimensions, not 1 or 4", name, tensor->rank);
    const int64_t of_heads = tensor->dims[1], of_channels = tensor->dims[3];
    EXPECT(call, name, tensor, 1, of_heads == 1 ? 1 : heads, 1, of_channels == 1 ? 1 : channels);
    out->head_stride = of_heads == 1 ? 0 : of_channels * element;
    out->channel_stride = of_channels == 1 ? 0 : element;
    return NULL;
}

/* Where each new token stands. position_ids say it, of which a prompt, tokens without a past, reads the first only. */
static OrtStatus *positions(struct call *call, const struct tensor *ids, int64_t batch, int64_t tokens, const struct step *step,
                            bool prompt, int64_t rows, int32_t **out) {
    void *memory;
    int32_t *given = NULL;
    TRY(scratch(call, (size_t)(batch * tokens) * sizeof **out, &memory));
    *out = memory;
    if (ids->present) {
        EXPECT(call, "position_ids", ids, batch, tokens);
        TRY(integers(call, "position_ids", ids, 0, RAPT_MAX_LENGTH - tokens, &given));
    }
    for (int64_t i = 0; i < batch * tokens; i++) {
        const int64_t b = i / tokens, token = i % tokens;
        int64_t at = !given ? step->past[b] + token : prompt ? given[0] + token : given[i];
        if (at >= rows && token >= step->tokens[b]) at = 0; /* padding may stand behind the tables */
        (*out)[i] = (int32_t)at;
    }
    return NULL;
}

static OrtStatus *compute(struct call *call) {
    static const float no_sink = 0;
    const struct options *options = &call->kernel->options;
    const int64_t heads = options->heads, kv_heads = options->kv_heads;
    struct tensor query, key, value, past_k, past_v, last, total, c, s, ids, bias, sink, k_scale, v_scale, news;
    struct step step;
    rapt_desc desc;
    rapt_args args;
    rapt_kv_append_desc cache;
    rapt_kv_append_args to;
    rapt_desc_init(&desc);
    rapt_args_init(&args);
    rapt_kv_append_desc_init(&cache);
    rapt_kv_append_args_init(&to);
    TRY(input(call, QUERY, &query));
    TRY(input(call, KEY, &key));
    TRY(input(call, VALUE, &value));
    TRY(input(call, PAST_KEY, &past_k));
    TRY(input(call, PAST_VALUE, &past_v));
    TRY(input(call, LAST, &last));
    TRY(input(call, TOTAL, &total));
    TRY(input(call, COS, &c));
    TRY(input(call, SIN, &s));
    TRY(input(call, POSITIONS, &ids));
    TRY(input(call, BIAS, &bias));
    TRY(input(call, SINK, &sink));
    TRY(input(call, K_SCALE, &k_scale));
    TRY(input(call, V_SCALE, &v_scale));
    TRY(input(call, NEW, &news));
    const rapt_type type = type_of(&query);

    /* The new tokens, apart or packed. */
    const int64_t parts = key.present || value.present ? heads : heads + 2 * kv_heads;
    if (query.rank != 3 || heads < 1 || kv_heads < 1 || query.dims[2] % parts)
        return fail(call, "query is not [batch, tokens, heads * channels]");
    const int64_t batch = query.dims[0], tokens = query.dims[1], d = query.dims[2] / parts;
    desc.q = rapt_layout_bshd(type, parts, tokens, d);
    if (key.present || value.present) {
        EXPECT(call, "key", &key, batch, tokens, kv_heads * d);
        EXPECT(call, "value", &value, batch, tokens, kv_heads * d);
        cache.new_k = cache.new_v = rapt_layout_bshd(type, kv_heads, tokens, d);
        to.new_k = key.data, to.new_v = value.data;
    } else {
        cache.new_k = cache.new_v = desc.q;
        to.new_k = element_at(&query, heads * d), to.new_v = element_at(&query, (heads + kv_heads) * d);
    }

    /* The cache. */
    if (last.rank == 2 && last.dims[1] == 1) last.rank = 1;
    EXPECT(call, "seqlens_k", &last, batch);
    TRY(read_step(call, batch, tokens, &last, &news, &step));
    int64_t room = 0;
    if (past_k.present != past_v.present) return fail(call, "of past_key and past_value, one is missing");
    if (past_k.present) {
        room = past_k.rank == 4 ? past_k.dims[2] : 0;
        EXPECT(call, "past_key", &past_k, batch, kv_heads, room, d);
        EXPECT(call, "past_value", &past_v, batch, kv_heads, room, d);
    }
    if (total.rank) EXPECT(call, "total_sequence_length", &total, 1);
    const int32_t *bound = total.data;
    if (!bound || total.element != ELEMENT_INT32) return fail(call, "total_sequence_length is missing");
    const int64_t capacity = *bound > room ? *bound : room;
    for (int64_t b = 0; b < batch; b++) {
        if (step.total[b] > capacity)
            return fail(call, "seqlens_k[%lld] = %d, and the cache has room for %lld keys", (long long)b, step.total[b] - 1,
                        (long long)capacity);
        if (step.past[b] > room)
            return fail(call, "entry %lld has %d keys in a past of %lld", (long long)b, step.past[b], (long long)room);
    }
    const rapt_type kept = past_k.present ? type_of(&past_k) : type;
    const int64_t dims[] = {batch, kv_heads, capacity, d}, row = rapt_row_bytes(kept, d);
    TRY(output(call, PRESENT_KEY, 4, dims, &to.k));
    TRY(output(call, PRESENT_VALUE, 4, dims, &to.v));
    if (!to.k) TRY(scratch(call, (size_t)(batch * kv_heads * capacity * row), &to.k));
    if (!to.v) TRY(scratch(call, (size_t)(batch * kv_heads * capacity * row), &to.v));
    struct rows k = {batch * kv_heads, kv_heads, row, step.past, step.total, past_k.data, to.k, room, capacity};
    struct rows v = {batch * kv_heads, kv_heads, row, step.past, step.total, past_v.data, to.v, room, capacity};
    TRY(copy_tokens(call, &k));
    TRY(copy_tokens(call, &v));

    cache.batch = batch, cache.kv_heads = kv_heads, cache.tokens = tokens, cache.kv_len = capacity, cache.d_k = cache.d_v = d;
    cache.k = cache.v = rapt_layout_bhsd(kept, kv_heads, capacity, d);
    to.starts = step.past, to.lengths = step.tokens;
    if (kept == RAPT_INT8) {
        TRY(scales(call, "k_scale", &k_scale, kv_heads, d, &cache.k_scales));
        TRY(scales(call, "v_scale", &v_scale, kv_heads, d, &cache.v_scales));
        to.k_scales = (float *)k_scale.data, to.v_scales = (float *)v_scale.data; /* those of channels are only read */
    }

    /* Queries and new keys are rotated. */
    args.q = query.data;
    if (options->rotary) {
        rapt_rope_args turn;
        void *memory;
        int32_t *at;
        if (c.rank != 2) return fail(call, "cos_cache has %zu dimensions, not 2", c.rank);
        if (!c.dims[1]) return fail(call, "cos_cache has no columns");
        TRY(expect(call, "sin_cache", &s, 2, c.dims));
        TRY(positions(call, &ids, batch, tokens, &step, !news.present && *bound == tokens, c.dims[0], &at));
        rapt_rope_args_init(&turn);
        turn.batch = batch, turn.heads = heads, turn.tokens = tokens, turn.d = d;
        turn.in = desc.q, turn.out = rapt_layout_bshd(RAPT_F32, heads, tokens, d);
        TRY(scratch(call, (size_t)(batch * heads * tokens * d) * sizeof(float), &memory));
        turn.from = query.data, turn.to = memory;
        turn.rope.channels = 2 * c.dims[1], turn.rope.interleaved = options->interleaved;
        turn.rope_table = (rapt_rope_table){.type = type_of(&c), .c = c.data, .s = s.data, .positions = c.dims[0]};
        turn.positions = at;
        TRY(rotate(call, &turn));
        cache.rope = turn.rope, to.rope_table = turn.rope_table, to.positions = at;
        desc.q = turn.out, args.q = memory;
    }
    TRY(append(call, &cache, &to));

    desc.batch = batch, desc.heads = heads, desc.kv_heads = kv_heads, desc.q_len = tokens, desc.kv_len = capacity;
    desc.d_k = desc.d_v = d;
    desc.k = cache.k, desc.v = cache.v, desc.k_scales = cache.k_scales, desc.v_scales = cache.v_scales;
    desc.scale = options->scale, desc.softcap = options->softcap;
    desc.causal = options->causal ? RAPT_CAUSAL_BOTTOM_RIGHT : RAPT_CAUSAL_NONE;
    desc.window_left = options->window_left;
    args.k = to.k, args.v = to.v, args.k_scales = to.k_scales, args.v_scales = to.v_scales;
    args.kv_lengths = step.total, args.q_offsets = step.past;

    if (bias.present) {
        const int64_t bytes = bytes_of(type_of(&bias)), columns = bias.rank == 4 ? bias.dims[3] : 0;
        const int64_t of_batch = bias.dims[0] == 1 ? 1 : batch, of_heads = bias.dims[1] == 1 ? 1 : heads;
        EXPECT(call, "attention_bias", &bias, of_batch, of_heads, tokens, columns);
        if (columns < 1) return fail(call, "attention_bias has no columns");
        desc.bias.type = type_of(&bias), desc.bias.token_stride = columns * bytes;
        desc.bias.head_stride = of_heads == 1 ? 0 : tokens * columns * bytes;
        desc.bias.batch_stride = of_batch == 1 ? 0 : of_heads * tokens * columns * bytes;
        desc.bias_keys = columns;
        args.bias = bias.data;
    }
    if (sink.present) {
        EXPECT(call, "head_sink", &sink, heads);
        desc.sinks = (rapt_layout){.type = type_of(&sink), .head_stride = bytes_of(type_of(&sink))};
        args.sinks = sink.data;
    } else if (options->smooth_softmax) {
        desc.sinks.type = RAPT_F32;
        args.sinks = &no_sink;
    }
    desc.o = rapt_layout_bshd(type, heads, tokens, d);
    TRY(output(call, OUTPUT, 3, (int64_t[]){batch, tokens, heads * d}, &args.o));
    return attend(call, &desc, &args);
}

static const char *const attributes[] = {"causal",
                                         "do_rotary",
                                         "k_norm_epsilon",
                                         "k_quant_type",
                                         "kv_cache_bit_width",
                                         "kv_num_heads",
                                         "local_window_size",
                                         "num_heads",
                                         "q_norm_epsilon",
                                         "qk_norm_epsilon",
                                         "qk_output",
                                         "rotary_interleaved",
                                         "scale",
                                         "sliding_window_cache",
                                         "smooth_softmax",
                                         "softcap",
                                         "v_quant_type",
                                         NULL};

const struct op group_query_op = {"com.microsoft", "GroupQueryAttention", 1, 1, NEW + 1, SCORES + 1, attributes, refusal, read,
                                  compute};
