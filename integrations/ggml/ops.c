/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of a graph beside attention and products with weights: those whose bits depend on the CPU in ggml's own kernels, and
 * a few that do not but lie between others that are taken, so that a graph need not change from one backend to another and back
 * for each of them. README.md has the table.
 *
 * Each result is a function of its own row. Elementary functions are those of elementary.h, rounded once to f32. */
#include "elementary.h"
#include "ggml-rapt.h"

/* Compilers may compute several elements at a time, which changes no bit. */
#if defined(__x86_64__) && defined(__GLIBC__)
#define FOR_EACH_CPU __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define FOR_EACH_CPU
#endif

/* ---- Sharing rows -------------------------------------------------------------------------------------------------------- */

enum { BLOCK = 4096 }; /* Elements of a row that are a piece of work. */

/* A piece: count elements of a row from number first on. */
typedef void (*piece_body)(const struct ggml_tensor *op, int64_t row, int64_t first, int64_t count);

struct sweep {
    const struct ggml_tensor *op;
    piece_body body;
    int64_t block, blocks, pieces, slots;
};

static int64_t rows_of(const struct ggml_tensor *t) { return t->ne[1] * t->ne[2] * t->ne[3]; }

static void do_slot(void *arg, int64_t slot) {
    const struct sweep *s = arg;
    for (int64_t piece = s->pieces * slot / s->slots; piece < s->pieces * (slot + 1) / s->slots; piece++) {
        const int64_t first = piece % s->blocks * s->block, left = s->op->ne[0] - first;
        s->body(s->op, piece / s->blocks, first, left < s->block ? left : s->block);
    }
}

/* Does so many rows of an op, in pieces of `block` elements. Small ones are not worth waking threads. */
static enum ggml_status sweep(struct context *context, const struct ggml_tensor *op, piece_body body, int64_t rows,
                              int64_t block) {
    struct sweep s = {op, body, block, (op->ne[0] + block - 1) / block, 0, 1};
    s.pieces = s.blocks * rows;
    if (s.pieces > 1 && op->ne[0] * rows_of(op->src[0]) > BLOCK) s.slots = context->threads;
    if (s.slots > 1) parallel_for(context, s.slots, do_slot, &s);
    else do_slot(&s, 0);
    return GGML_STATUS_SUCCESS;
}

/* Returns the row of a tensor that an op's row number `row` has to do with; dimensions that the tensor has not repeat. */
static void *row_of(const struct ggml_tensor *t, const struct ggml_tensor *op, int64_t row) {
    const int64_t i1 = row % op->ne[1], i2 = row / op->ne[1] % op->ne[2], i3 = row / (op->ne[1] * op->ne[2]);
    return (char *)t->data + i1 % t->ne[1] * (int64_t)t->nb[1] + i2 % t->ne[2] * (int64_t)t->nb[2] +
           i3 % t->ne[3] * (int64_t)t->nb[3];
}

static float float_parameter(const struct ggml_tensor *op, int number) {
    float value;
    memcpy(&value, op->op_params + number, sizeof value);
    return value;
}

/* Whether a tensor has f32 that lie side by side. */
static bool is_f32(const struct ggml_tensor *t) { return t->type == GGML_TYPE_F32 && (t->nb[0] == 4 || t->ne[0] == 1); }

static bool has_rows_of(const struct ggml_tensor *t, const struct ggml_tensor *of) {
    return t->ne[1] == of->ne[1] && t->ne[2] == of->ne[2] && t->ne[3] == of->ne[3];
}

/* ---- Sums and products of elements ---------------------------------------------------------------------------------------- */

static void add_piece(const struct ggml_tensor *op, int64_t row, int64_t first, int64_t count) {
    const float *a = (const float *)row_of(op->src[0], op, row) + first, *b = (const float *)row_of(op->src[1], op, row) + first;
    float *to = (float *)row_of(op, op, row) + first;
    for (int64_t i = 0; i < count; i++) to[i] = a[i] + b[i];
}

static void mul_piece(const struct ggml_tensor *op, int64_t row, int64_t first, int64_t count) {
    const float *a = (const float *)row_of(op->src[0], op, row) + first, *b = (const float *)row_of(op->src[1], op, row) + first;
    float *to = (float *)row_of(op, op, row) + first;
    for (int64_t i = 0; i < count; i++) to[i] = a[i] * b[i];
}

/* The second operand may repeat along rows, but not within one. */
static bool is_of_elements(const struct ggml_tensor *op) {
    const struct ggml_tensor *a = op->src[0], *b = op->src[1];
    return is_f32(op) && is_f32(a) && is_f32(b) && a->ne[0] == op->ne[0] && b->ne[0] == op->ne[0] && has_rows_of(a, op);
}

static void scale_piece(const struct ggml_tensor *op, int64_t row, int64_t first, int64_t count) {
    const float *x = (const float *)row_of(op->src[0], op, row) + first;
    float *to = (float *)row_of(op, op, row) + first;
    const float scale = float_parameter(op, 0), offset = float_parameter(op, 1);
    for (int64_t i = 0; i < count; i++) to[i] = offset == 0 ? x[i] * scale : x[i] * scale + offset;
}

/* ---- Functions and gates -------------------------------------------------------------------------------------------------- */

enum function { TANH, SIGMOID, GELU, GELU_QUICK, GELU_ERF, SILU, EXP, RELU, NO_FUNCTION };

static enum function function_of_unary(const struct ggml_tensor *op) {
    switch ((enum ggml_unary_op)op->op_params[0]) {
    case GGML_UNARY_OP_TANH:
        return TANH;
    case GGML_UNARY_OP_SIGMOID:
        return SIGMOID;
    case GGML_UNARY_OP_GELU:
        return GELU;
    case GGML_UNARY_OP_GELU_QUICK:
        return GELU_QUICK;
    case GGML_UNARY_OP_GELU_ERF:
        return GELU_ERF;
    case GGML_UNARY_OP_SILU:
        return SILU;
    case GGML_UNARY_OP_EXP:
        return EXP;
    case GGML_UNARY_OP_RELU:
        return RELU;
    default:
        return NO_FUNCTION;
    }
}

static enum function function_of_gate(const struct ggml_tensor *op) {
    switch ((enum ggml_glu_op)op->op_params[0]) {
    case GGML_GLU_OP_REGLU:
        return RELU;
    case GGML_GLU_OP_GEGLU:
        return GELU;
    case GGML_GLU_OP_SWIGLU:
        return SILU;
    case GGML_GLU_OP_GEGLU_ERF:
        return GELU_ERF;
    case GGML_GLU_OP_GEGLU_QUICK:
        return GELU_QUICK;
    default:
        return NO_FUNCTION;
    }
}

/* A function of elements; x may be to. */
#define FUNCTION(name, result)                                                                                                   \
    FOR_EACH_CPU static void name##_of_floats(const float *from, float *to, int64_t count) {                                     \
        for (int64_t i = 0; i < count; i++) {                                                                                    \
            const double x = from[i];                                                                                            \
            to[i] = (float)(result);                                                                                             \
        }                                                                                                                        \
    }
FUNCTION(tanh, tanh_of(x))
FUNCTION(sigmoid, sigmoid_of(x))
FUNCTION(gelu, gelu_tanh_of(x))
FUNCTION(gelu_quick, gelu_quick_of(x))
FUNCTION(gelu_erf, gelu_of(x))
FUNCTION(silu, silu_of(x))
FUNCTION(exp, exp_of(x))
FUNCTION(relu, x > 0 ? x : 0)

static void apply(enum function function, const float *from, float *to, int64_t count) {
    static void (*const functions[])(const float *, float *,
                                     int64_t) = {[TANH] = tanh_of_floats,         [SIGMOID] = sigmoid_of_floats,
                                                 [GELU] = gelu_of_floats,         [GELU_QUICK] = gelu_quick_of_floats,
                                                 [GELU_ERF] = gelu_erf_of_floats, [SILU] = silu_of_floats,
                                                 [EXP] = exp_of_floats,           [RELU] = relu_of_floats};
    functions[function](from, to, count);
}

static void unary_piece(const struct ggml_tensor *op, int64_t row, int64_t first, int64_t count) {
    apply(function_of_unary(op), (const float *)row_of(op->src[0], op, row) + first, (float *)row_of(op, op, row) + first, count);
}

/* A gate and what passes it are two tensors, or the halves of one. */
static void gate_piece(const struct ggml_tensor *op, int64_t row, int64_t first, int64_t count) {
    float found[BLOCK];
    const struct ggml_tensor *a = op->src[0], *b = op->src[1] != NULL ? op->src[1] : a;
    const int64_t half = op->src[1] == NULL ? op->ne[0] : 0, swapped = op->op_params[1];
    const float *gate = (const float *)row_of(a, op, row) + (swapped ? half : 0) + first;
    const float *passing = (const float *)row_of(b, op, row) + (swapped ? 0 : half) + first;
    float *to = (float *)row_of(op, op, row) + first;
    apply(function_of_gate(op), gate, found, count);
    for (int64_t i = 0; i < count; i++) to[i] = found[i] * passing[i];
}

/* ---- Softmax -------------------------------------------------------------------------------------------------------------- */

FOR_EACH_CPU static void exps_of_differences(const float *from, float largest, float *to, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] = (float)exp_of((double)(from[i] - largest));
}

/* A row is multiplied by the scale, and the mask, f32 or none, is added; e to the power of what is left of the largest is summed
 * in double precision, from the first element to the last. */
static void softmax_row(const struct ggml_tensor *op, int64_t row, int64_t first, int64_t count) {
    const float *x = row_of(op->src[0], op, row), *mask = op->src[1] != NULL ? row_of(op->src[1], op, row) : NULL;
    float *to = row_of(op, op, row);
    const float scale = float_parameter(op, 0);
    float largest = -INFINITY;
    double sum = 0;
    (void)first;
    for (int64_t i = 0; i < count; i++) {
        to[i] = x[i] * scale;
        if (mask != NULL) to[i] = to[i] + mask[i];
        largest = to[i] > largest ? to[i] : largest;
    }
    exps_of_differences(to, largest, to, count);
    for (int64_t i = 0; i < count; i++) sum += to[i];
    const float factor = (float)(1 / sum);
    for (int64_t i = 0; i < count; i++) to[i] = to[i] * factor;
}

/* ---- Rotation ------------------------------------------------------------------------------------------------------------- */

/* What ggml_rope_ext describes, as its CPU backend computes it in f32, but for the functions of angles and the powers. */
struct rotation {
    int channels, mode, offset;
    float frequency_scale, extrapolation, amplitude, theta_scale, ramp[2];
};

/* Returns where a number of rotations within the original context falls among the channels (Peng et al. 2023, YaRN). */
static float channel_of_rotations(int channels, int context, float rotations, float base) {
    const float spans = (float)context / (rotations * 2 * 3.14159265358979323846f);
    return (float)channels * (float)log_of(spans) / (2 * (float)log_of(base));
}

static struct rotation rotation_of(const struct ggml_tensor *op) {
    struct rotation r = {.channels = op->op_params[1],
                         .mode = op->op_params[2],
                         .offset = op->op_params[15],
                         .frequency_scale = float_parameter(op, 6),
                         .extrapolation = float_parameter(op, 7),
                         .amplitude = float_parameter(op, 8)};
    const float base = float_parameter(op, 5);
    r.theta_scale = (float)power_of(base, (double)(-2.0f / (float)r.channels));
    if (r.extrapolation != 0) {
        const int context = op->op_params[4];
        const float first = floorf(channel_of_rotations(r.channels, context, float_parameter(op, 9), base));
        const float last = ceilf(channel_of_rotations(r.channels, context, float_parameter(op, 10), base));
        r.ramp[0] = first > 0 ? first : 0;
        r.ramp[1] = last < (float)r.channels - 1 ? last : (float)r.channels - 1;
        r.amplitude *= 1.0f + 0.1f * (float)log_of((double)(1.0f / r.frequency_scale));
    }
    return r;
}

/* Returns the angle of a pair of channels, from the one that its position and its frequency alone would have. */
static float angle_of(const struct rotation *r, float extrapolated, int pair) {
    const float interpolated = r->frequency_scale * extrapolated;
    if (r->extrapolation == 0) return interpolated;
    const float width = r->ramp[1] - r->ramp[0], at = ((float)pair - r->ramp[0]) / (width > 0.001f ? width : 0.001f);
    const float mix = (1 - (at < 0 ? 0 : at > 1 ? 1 : at)) * r->extrapolation;
    return interpolated * (1 - mix) + extrapolated * mix;
}

enum { PAIRS = 512 }; /* Of a row at most. */

/* Rotates the heads of a token. */
static void rotate_token(const struct ggml_tensor *op, int64_t token, int64_t first, int64_t count) {
    const struct rotation r = rotation_of(op);
    const int pairs = r.channels / 2, is_normal = r.mode == GGML_ROPE_TYPE_NORMAL, apart = is_normal ? 1 : pairs;
    const float *factors = op->src[2] != NULL ? op->src[2]->data : NULL;
    float cosines[PAIRS], sines[PAIRS], theta = (float)((const int32_t *)op->src[1]->data)[token % op->ne[2]];
    for (int i = 0; i < pairs; i++) {
        double cosine, sine;
        turn((double)angle_of(&r, factors != NULL ? theta / factors[i] : theta, i), &cosine, &sine);
        cosines[i] = (float)cosine * r.amplitude, sines[i] = (float)sine * r.amplitude;
        theta *= r.theta_scale;
    }
    (void)first;
    for (int64_t head = 0; head < op->ne[1]; head++) {
        const float *x = row_of(op->src[0], op, token * op->ne[1] + head);
        float *to = row_of(op, op, token * op->ne[1] + head);
        if (to != x) memcpy(to, x, (size_t)count * sizeof *to);
        for (int i = 0; i < pairs; i++) {
            const int at = r.offset + i * (is_normal ? 2 : 1);
            const float a = x[at], b = x[at + apart];
            to[at] = a * cosines[i] - b * sines[i];
            to[at + apart] = b * cosines[i] + a * sines[i];
        }
    }
}

/* ---- Normalisation -------------------------------------------------------------------------------------------------------- */

static enum ggml_status normalise(struct context *context, const struct ggml_tensor *op) {
    const struct ggml_tensor *x = op->src[0];
    rapt_norm_args args;
    rapt_norm_args_init(&args);
    args.batch = x->ne[2], args.tokens = x->ne[1], args.channels = x->ne[0];
    args.x = (rapt_layout){RAPT_F32, (int64_t)x->nb[2], 0, (int64_t)x->nb[1]};
    args.y = (rapt_layout){RAPT_F32, (int64_t)op->nb[2], 0, (int64_t)op->nb[1]};
    args.epsilon = float_parameter(op, 0);
    for (int64_t i = 0; i < x->ne[3]; i++) {
        args.from = (const char *)x->data + i * (int64_t)x->nb[3];
        args.to = (char *)op->data + i * (int64_t)op->nb[3];
        const bool is_rms = op->op == GGML_OP_RMS_NORM;
        const int64_t slots = x->ne[1] * x->ne[2] * x->ne[0] > BLOCK ? context->threads : 1;
        const rapt_status status = slots > 1 ? (is_rms ? rapt_rms_norm_run_parallel(&args, slots, parallel_for, context)
                                                       : rapt_layer_norm_run_parallel(&args, slots, parallel_for, context))
                                             : (is_rms ? rapt_rms_norm_run(&args) : rapt_layer_norm_run(&args));
        if (status == RAPT_OK) continue;
        char why[256];
        if (is_rms) rapt_rms_norm_explain(&args, why, sizeof why);
        else rapt_layer_norm_explain(&args, why, sizeof why);
        return failed(op->name, why);
    }
    return GGML_STATUS_SUCCESS;
}

/* ---- Rows of a cache ------------------------------------------------------------------------------------------------------ */

/* Returns the row of the op that a row of the source goes to. */
static int64_t index_of(const struct ggml_tensor *op, int64_t row) {
    const struct ggml_tensor *from = op->src[0], *indices = op->src[1];
    const int64_t i1 = row % from->ne[1], i2 = row / from->ne[1] % from->ne[2], i3 = row / (from->ne[1] * from->ne[2]);
    const char *at = (const char *)indices->data + i1 * (int64_t)indices->nb[0] + i2 % indices->ne[1] * (int64_t)indices->nb[1] +
                     i3 % indices->ne[2] * (int64_t)indices->nb[2];
    if (indices->type == GGML_TYPE_I32) return *(const int32_t *)(const void *)at;
    return *(const int64_t *)(const void *)at;
}

/* Quantises a row. */
static void quantise_row(const struct ggml_tensor *op, int64_t row, int64_t first, int64_t count) {
    const struct ggml_tensor *from = op->src[0];
    const int64_t i2 = row / from->ne[1] % from->ne[2], i3 = row / (from->ne[1] * from->ne[2]);
    char *to = (char *)op->data + index_of(op, row) * (int64_t)op->nb[1] + i2 * (int64_t)op->nb[2] + i3 * (int64_t)op->nb[3];
    (void)first;
    rapt_quantise_groups(1, count, RAPT_F32, count * (int64_t)sizeof(float), row_of(from, from, row), type_of(op->type), to);
}

static enum ggml_status quantise(struct context *context, const struct ggml_tensor *op) {
    const int64_t rows = rows_of(op->src[0]);
    for (int64_t row = 0; row < rows; row++) {
        const int64_t index = index_of(op, row);
        if (index < 0 || index >= op->ne[1]) return failed(op->name, "a row that the tensor has not");
    }
    return sweep(context, op, quantise_row, rows, op->ne[0]);
}

/* ---- What is taken -------------------------------------------------------------------------------------------------------- */

static const char not_needed[] = "";

const char *decline_op(const struct ggml_tensor *op) {
    const struct ggml_tensor *x = op->src[0], *second = op->src[1];
    switch (op->op) {
    case GGML_OP_ADD:
    case GGML_OP_MUL:
        return is_of_elements(op) ? NULL : not_needed;
    case GGML_OP_SCALE:
        return is_f32(op) && is_f32(x) ? NULL : "a scale of another type than f32";
    case GGML_OP_RMS_NORM:
    case GGML_OP_NORM:
        return is_f32(op) && is_f32(x) && x->ne[0] <= RAPT_MAX_WIDTH ? NULL : "a norm of channels that are not contiguous";
    case GGML_OP_UNARY:
        if (function_of_unary(op) == NO_FUNCTION) return "a function that is not known here";
        return is_f32(op) && is_f32(x) && x->ne[0] == op->ne[0] && has_rows_of(x, op) ? NULL
                                                                                      : "a function of another type than f32";
    case GGML_OP_GLU:
        if (function_of_gate(op) == NO_FUNCTION) return "a gate that is not known here";
        if (!is_f32(op) || !is_f32(x) || !has_rows_of(x, op)) return "a gate of another type than f32";
        if (second == NULL) return x->ne[0] == 2 * op->ne[0] ? NULL : "a gate of other channels";
        return is_f32(second) && has_rows_of(second, op) && x->ne[0] == op->ne[0] && second->ne[0] == op->ne[0]
                   ? NULL
                   : "a gate of other channels";
    case GGML_OP_SOFT_MAX:
        if (op->src[2] != NULL || float_parameter(op, 1) != 0) return "a softmax with sinks or ALiBi (-fa on computes them)";
        if (!is_f32(op) || !is_f32(x)) return "a softmax of another type than f32";
        return second == NULL || (is_f32(second) && second->ne[0] == op->ne[0] && second->ne[1] >= op->ne[1])
                   ? NULL
                   : "a softmax with a mask of f16 (-fa on computes it)";
    case GGML_OP_ROPE: {
        const int mode = op->op_params[2], channels = op->op_params[1];
        if (mode != GGML_ROPE_TYPE_NORMAL && mode != GGML_ROPE_TYPE_NEOX) return "a rotation of several positions";
        if (!is_f32(op) || !is_f32(x) || !has_rows_of(x, op) || x->ne[0] != op->ne[0])
            return "a rotation of another type than f32";
        if (channels < 2 || channels % 2 != 0 || channels > 2 * PAIRS) return "a rotation of that many channels";
        return op->op_params[15] >= 0 && op->op_params[15] + channels <= op->ne[0] ? NULL : "a rotation of other channels";
    }
    case GGML_OP_SET_ROWS:
        if (op->type != GGML_TYPE_Q8_0 && op->type != GGML_TYPE_Q4_0) return not_needed;
        return is_f32(x) && is_dense_inside(op) && x->ne[0] == op->ne[0] && x->ne[2] == op->ne[2] && x->ne[3] == op->ne[3]
                   ? NULL
                   : "rows of a cache that are not f32, or do not fit";
    default:
        return not_needed;
    }
}

enum ggml_status compute_op(struct context *context, const struct ggml_tensor *op) {
    if (decline_op(op) != NULL) return failed(op->name, "an operation that was not asked about before");
    switch (op->op) {
    case GGML_OP_ADD:
        return sweep(context, op, add_piece, rows_of(op), BLOCK);
    case GGML_OP_MUL:
        return sweep(context, op, mul_piece, rows_of(op), BLOCK);
    case GGML_OP_SCALE:
        return sweep(context, op, scale_piece, rows_of(op), BLOCK);
    case GGML_OP_UNARY:
        return sweep(context, op, unary_piece, rows_of(op), BLOCK);
    case GGML_OP_GLU:
        return sweep(context, op, gate_piece, rows_of(op), BLOCK);
    case GGML_OP_SOFT_MAX:
        return sweep(context, op, softmax_row, rows_of(op), op->ne[0]);
    case GGML_OP_ROPE:
        return sweep(context, op, rotate_token, op->ne[2] * op->ne[3], op->ne[0]);
    case GGML_OP_SET_ROWS:
        return quantise(context, op);
    default:
        return normalise(context, op);
    }
}
