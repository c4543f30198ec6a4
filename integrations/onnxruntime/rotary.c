/* SPDX-License-Identifier: Apache-2.0 */
/* RotaryEmbedding of ai.onnx, operator set 23, and of com.microsoft. */
#include "op.h"

static const char *types(const struct node *node, int in, int c, int s) {
    if (!is_number(in) || !is_number(c) || c != s) return "the tensors are not f32, f16 or bf16";
    return node->inputs[0] ? NULL : "there is no input";
}

static const char *refusal(const struct node *node) { return types(node, node->inputs[0], node->inputs[1], node->inputs[2]); }

static const char *contrib_refusal(const struct node *node) {
    if (node_int(node, "is_packed_batching", 0)) return "is_packed_batching is set";
    if (node_float(node, "scale", 1) != 1) return "scale is not 1";
    return types(node, node->inputs[0], node->inputs[2], node->inputs[3]);
}

static void read(const OrtKernelInfo *info, struct options *options) {
    options->heads = info_int(info, "num_heads", 0);
    options->rotary_channels = info_int(info, "rotary_embedding_dim", 0);
    options->interleaved = info_int(info, "interleaved", 0) != 0;
}

/* Rotates a tensor [batch, heads, tokens, channels] or [batch, tokens, heads * channels]. The tables are [positions, pairs], or,
 * where no positions are given, [batch, tokens, pairs]. */
static OrtStatus *turn(struct call *call, const struct tensor *in, const struct tensor *c, const struct tensor *s,
                       const struct tensor *positions) {
    const struct options *options = &call->kernel->options;
    rapt_rope_args args;
    int32_t *numbers;
    void *memory;
    rapt_rope_args_init(&args);
    if (c->rank != (positions->present ? 2u : 3u)) return fail(call, "cos_cache has %zu dimensions", c->rank);
    TRY(expect(call, "sin_cache", s, c->rank, c->dims));
    const int64_t pairs = c->dims[c->rank - 1];
    if (options->rotary_channels && options->rotary_channels != 2 * pairs)
        return fail(call, "cos_cache is for %lld channels, and rotary_embedding_dim is %lld", 2 * (long long)pairs,
                    (long long)options->rotary_channels);
    args.batch = in->dims[0];
    if (in->rank == 4) {
        args.heads = in->dims[1], args.tokens = in->dims[2], args.d = in->dims[3];
        args.in = args.out = rapt_layout_bhsd(type_of(in), args.heads, args.tokens, args.d);
    } else if (in->rank == 3) {
        args.heads = options->heads ? options->heads
                     : pairs        ? in->dims[2] / (2 * pairs)
                                    : 0; /* com.microsoft's may leave it out */
        args.tokens = in->dims[1];
        if (args.heads < 1 || in->dims[2] % args.heads)
            return fail(call, "the input has %lld channels for %lld heads", (long long)in->dims[2], (long long)args.heads);
        args.d = in->dims[2] / args.heads;
        args.in = args.out = rapt_layout_bshd(type_of(in), args.heads, args.tokens, args.d);
    } else {
        return fail(call, "the input has %zu dimensions, not 3 or 4", in->rank);
    }

    if (!options->rotary_channels && 2 * pairs != args.d)
        return fail(call, "cos_cache is for %lld channels of %lld, and rotary_embedding_dim is not given", 2 * (long long)pairs,
                    (long long)args.d);
    if (positions->present && positions->rank < 2) { /* where the first token of every entry stands */
        if (positions->rank) EXPECT(call, "position_ids", positions, 1);
        TRY(integers(call, "position_ids", positions, 0, c->dims[0] - args.tokens, &numbers));
        args.rope.offset = numbers[0];
    } else if (positions->present) {
        EXPECT(call, "position_ids", positions, args.batch, args.tokens);
        TRY(integers(call, "position_ids", positions, 0, c->dims[0] - 1, &numbers));
        args.positions = numbers;
    } else {
        EXPECT(call, "cos_cache", c, args.batch, args.tokens, pairs);
        TRY(scratch(call, (size_t)args.batch * sizeof *numbers, &memory));
        numbers = memory;
        for (int64_t b = 0; b < args.batch; b++) numbers[b] = (int32_t)(b * args.tokens);
        args.starts = numbers;
    }
    args.rope.channels = 2 * pairs;
    args.rope.interleaved = options->interleaved;
    args.rope_table.type = type_of(c), args.rope_table.c = c->data, args.rope_table.s = s->data;
    args.rope_table.positions = positions->present ? c->dims[0] : args.batch * args.tokens;
    args.from = in->data;
    TRY(output(call, 0, in->rank, in->dims, &args.to));
    return rotate(call, &args);
}

static OrtStatus *compute(struct call *call) {
    struct tensor in, c, s, positions;
    TRY(input(call, 0, &in));
    TRY(input(call, 1, &c));
    TRY(input(call, 2, &s));
    TRY(input(call, 3, &positions));
    return turn(call, &in, &c, &s, &positions);
}

static OrtStatus *contrib_compute(struct call *call) {
    struct tensor in, c, s, positions;
    TRY(input(call, 0, &in));
    TRY(input(call, 1, &positions));
    TRY(input(call, 2, &c));
    TRY(input(call, 3, &s));
    return turn(call, &in, &c, &s, &positions);
}

static const char *const attributes[] = {"interleaved", "num_heads", "rotary_embedding_dim", NULL};
static const char *const contrib_attributes[] = {
    "interleaved", "is_packed_batching", "num_heads", "rotary_embedding_dim", "scale", NULL};

const struct op rotary_op = {"", "RotaryEmbedding", 23, 25, 4, 1, attributes, refusal, read, compute};
const struct op contrib_rotary_op = {"com.microsoft", "RotaryEmbedding", 1, 1, 4, 1, contrib_attributes, contrib_refusal, read,
                                     contrib_compute};
