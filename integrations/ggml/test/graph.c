/* SPDX-License-Identifier: Apache-2.0 */
/* A library, for one of the hosts is a part of Python's. graph(LIBRARY) prints what the bits of the operations of a model's graph
 * depend on in ggml's CPU backend, or in the device of LIBRARY where that takes them; null: there is none. A line for each, of
 * three words with tabs between: its name, as README.md's table has it; "rows" if rows computed one by one are others than
 * together, "threads" if those of several threads are, together or alone, "rows,threads", or "-"; and a hash of the result, which
 * tells builds of ggml apart. */
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 544, ROWS = 70, HEADS = 4, OUT = 96, EXPERTS = 4, CHOSEN = 2, KEYS = 600, MOST_SHARED = 4 };

typedef struct ggml_tensor *tensor;
typedef struct ggml_context *context;

/* What an operation is made of: f32 of n rows, x and y; numbers of n rows; and what all rows share, as weights, whose bytes are
 * made once. */
struct inputs {
    tensor x, y, positions, sections, indices, chosen;
    tensor shared[MOST_SHARED];
    int n_shared;
};

static float noise(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(int32_t)*state * 0x1p-31f;
}

static void *bytes_of_shared[MOST_SHARED];

static void fill(tensor t, int number) {
    if (bytes_of_shared[number] == NULL) {
        const int64_t n = ggml_nelements(t);
        uint32_t seed = (uint32_t)number + 3;
        float *values = malloc((size_t)n * sizeof *values);
        bytes_of_shared[number] = malloc(ggml_nbytes(t));
        for (int64_t i = 0; i < n; i++) values[i] = 3 * noise(&seed);
        if (t->type == GGML_TYPE_F32) memcpy(bytes_of_shared[number], values, ggml_nbytes(t));
        else ggml_quantize_chunk(t->type, values, bytes_of_shared[number], 0, n / t->ne[0], t->ne[0], NULL);
        free(values);
    }
    ggml_backend_tensor_set(t, bytes_of_shared[number], 0, ggml_nbytes(t));
}

static tensor shared(context c, struct inputs *in, enum ggml_type type, int channels, int rows, int matrices) {
    return in->shared[in->n_shared++] = ggml_new_tensor_3d(c, type, channels, rows, matrices);
}

static enum ggml_type type; /* Of weights, tables and caches. */
static int width;           /* The channels of a row: those of WIDTH that are whole blocks of the type. */

#define OP(name, result)                                                                                                         \
    static tensor name(context c, struct inputs *in) { return result; }
OP(add, ggml_add(c, in->x, in->y))
OP(sub, ggml_sub(c, in->x, in->y))
OP(mul, ggml_mul(c, in->x, shared(c, in, GGML_TYPE_F32, width, 1, 1)))
OP(div_, ggml_div(c, in->x, in->y))
OP(sqr, ggml_sqr(c, in->x))
OP(sqrt_, ggml_sqrt(c, ggml_sqr(c, in->x)))
OP(log_, ggml_log(c, ggml_sqr(c, in->x)))
OP(sin_, ggml_sin(c, in->x))
OP(cos_, ggml_cos(c, in->x))
OP(scale, ggml_scale(c, in->x, 0.37f))
OP(scale_bias, ggml_scale_bias(c, in->x, 0.37f, 0.61f))
OP(clamp, ggml_clamp(c, in->x, -1, 1))
OP(rms_norm, ggml_rms_norm(c, in->x, 1e-5f))
OP(norm, ggml_norm(c, in->x, 1e-5f))
OP(l2_norm, ggml_l2_norm(c, in->x, 1e-5f))
OP(soft_max, ggml_soft_max(c, in->x))
OP(soft_max_mask, ggml_soft_max_ext(c, in->x, in->y, 0.7f, 0))
OP(soft_max_f16, ggml_soft_max_ext(c, in->x, ggml_cast(c, in->y, GGML_TYPE_F16), 0.7f, 0))
OP(soft_max_alibi, ggml_soft_max_ext(c, in->x, in->y, 0.7f, 8))
static tensor soft_max_sinks(context c, struct inputs *in) {
    tensor result = ggml_soft_max_ext(c, in->x, in->y, 0.7f, 0);
    ggml_soft_max_add_sinks(result, shared(c, in, GGML_TYPE_F32, 1, 1, 1));
    return result;
}
OP(silu, ggml_silu(c, in->x))
OP(gelu, ggml_gelu(c, in->x))
OP(gelu_erf, ggml_gelu_erf(c, in->x))
OP(gelu_quick, ggml_gelu_quick(c, in->x))
OP(sigmoid, ggml_sigmoid(c, in->x))
OP(tanh_, ggml_tanh(c, in->x))
OP(exp_, ggml_exp(c, in->x))
OP(relu, ggml_relu(c, in->x))
OP(softplus, ggml_softplus(c, in->x))
OP(elu, ggml_elu(c, in->x))
OP(expm1_, ggml_expm1(c, in->x))
OP(xielu, ggml_xielu(c, in->x, 0.8f, 0.8f, 0.5f, -1e-6f))
OP(swiglu, ggml_swiglu_split(c, in->x, in->y))
OP(geglu, ggml_geglu_split(c, in->x, in->y))
OP(geglu_erf, ggml_geglu_erf_split(c, in->x, in->y))
OP(geglu_quick, ggml_geglu_quick_split(c, in->x, in->y))
OP(reglu, ggml_reglu_split(c, in->x, in->y))
OP(swiglu_oai, ggml_swiglu_oai(c, in->x, in->y, 1.702f, 7))
OP(sum_rows, ggml_sum_rows(c, in->x))
OP(argsort, ggml_argsort(c, in->x, GGML_SORT_ORDER_DESC))
OP(concat, ggml_concat(c, in->x, in->y, 0))
OP(repeat, ggml_repeat_4d(c, in->x, 2 * (int64_t)width, in->x->ne[1], 1, 1))
OP(pad, ggml_pad(c, in->x, 4, 0, 0, 0))
OP(cont, ggml_cont(c, ggml_view_2d(c, in->x, width / 2, in->x->ne[1], in->x->nb[1], 16)))
OP(to_f16, ggml_cast(c, in->x, GGML_TYPE_F16))
OP(to_bf16, ggml_cast(c, in->x, GGML_TYPE_BF16))
static tensor heads_of(context c, struct inputs *in) { return ggml_reshape_3d(c, in->x, width / HEADS, HEADS, in->x->ne[1]); }
OP(rope, ggml_rope_ext(c, heads_of(c, in), in->positions, NULL, width / HEADS, GGML_ROPE_TYPE_NEOX, 4096, 10000, 1, 0, 1, 32, 1))
static tensor rope_sections(context c, struct inputs *in) {
    int sections[4] = {24, 22, 22, 0};
    return ggml_rope_multi(c, heads_of(c, in), in->sections, NULL, width / HEADS, sections, GGML_ROPE_TYPE_MROPE, 4096, 10000, 1,
                           0, 1, 32, 1);
}
OP(mul_mat, ggml_mul_mat(c, shared(c, in, type, width, OUT, 1), in->x))
OP(mul_mat_id,
   ggml_mul_mat_id(c, shared(c, in, type, width, OUT, EXPERTS), ggml_reshape_3d(c, in->x, width, 1, in->x->ne[1]), in->chosen))
static tensor hadamard(context c, struct inputs *in) {
    tensor result =
        ggml_mul_mat(c, shared(c, in, GGML_TYPE_F32, 32, 32, 1), ggml_reshape_2d(c, in->x, 32, width / 32 * in->x->ne[1]));
    ggml_mul_mat_set_hint(result, GGML_HINT_SRC0_IS_HADAMARD);
    return result;
}
OP(get_rows, ggml_get_rows(c, shared(c, in, type, width, ROWS, 1), in->positions))
OP(set_rows, ggml_set_rows(c, ggml_new_tensor_2d(c, type, width, in->x->ne[1]), in->x, in->indices))
static tensor attention(context c, struct inputs *in) {
    tensor q = ggml_permute(c, ggml_reshape_3d(c, in->x, width / HEADS, HEADS, in->x->ne[1]), 0, 2, 1, 3);
    tensor k = shared(c, in, type, width / HEADS, KEYS, HEADS), v = shared(c, in, type, width / HEADS, KEYS, HEADS);
    return ggml_flash_attn_ext(c, q, k, v, NULL, 0.1f, 0, 0);
}

/* Writes the result of rows first to first + n - 1 to `to`, and returns its bytes for a row; 0 if the backend does not take it.
 */
static size_t compute(ggml_backend_t backend, tensor (*op)(context, struct inputs *), int threads, int first, int n, char *to) {
    struct ggml_context *c = ggml_init((struct ggml_init_params){(size_t)1 << 20, NULL, true});
    struct inputs in = {.x = ggml_new_tensor_2d(c, GGML_TYPE_F32, width, n),
                        .y = ggml_new_tensor_2d(c, GGML_TYPE_F32, width, n),
                        .positions = ggml_new_tensor_1d(c, GGML_TYPE_I32, n),
                        .sections = ggml_new_tensor_1d(c, GGML_TYPE_I32, 4 * (int64_t)n),
                        .indices = ggml_new_tensor_1d(c, GGML_TYPE_I64, n),
                        .chosen = ggml_new_tensor_2d(c, GGML_TYPE_I32, CHOSEN, n)};
    const size_t row = (size_t)width * sizeof(float);
    tensor result = op(c, &in);
    struct ggml_cgraph *graph = ggml_new_graph(c);
    ggml_build_forward_expand(graph, result);
    size_t bytes = 0;
    if (ggml_backend_supports_op(backend, result)) {
        ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(c, backend);
        for (int i = 0; i < in.n_shared; i++) fill(in.shared[i], i);
        for (int i = 0; i < n; i++) {
            uint32_t seed = (uint32_t)(first + i), other = seed + 1000;
            float x[WIDTH], y[WIDTH];
            const int32_t position = first + i,
                          experts[CHOSEN] = {position % EXPERTS, (position + 1 + position / EXPERTS % (EXPERTS - 1)) % EXPERTS};
            const int64_t index = i;
            for (int j = 0; j < width; j++) x[j] = 3 * noise(&seed), y[j] = 3 * noise(&other);
            ggml_backend_tensor_set(in.x, x, (size_t)i * row, row);
            ggml_backend_tensor_set(in.y, y, (size_t)i * row, row);
            ggml_backend_tensor_set(in.positions, &position, (size_t)i * sizeof position, sizeof position);
            for (int j = 0; j < 4; j++) {
                const int32_t of_section = position * (j + 1);
                ggml_backend_tensor_set(in.sections, &of_section, (size_t)(j * n + i) * sizeof of_section, sizeof of_section);
            }
            ggml_backend_tensor_set(in.indices, &index, (size_t)i * sizeof index, sizeof index);
            ggml_backend_tensor_set(in.chosen, experts, (size_t)i * sizeof experts, sizeof experts);
        }
        ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend));
        ggml_backend_set_n_threads_t set_threads =
            (ggml_backend_set_n_threads_t)ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads");
        set_threads(backend, threads);
        if (ggml_backend_graph_compute(backend, graph) != GGML_STATUS_SUCCESS) exit(1);
        bytes = ggml_nbytes(result) / (size_t)n;
        ggml_backend_tensor_get(result, to, 0, ggml_nbytes(result));
        ggml_backend_buffer_free(buffer);
    }
    ggml_free(c);
    return bytes;
}

static char all[ROWS * WIDTH * 8], again[ROWS * WIDTH * 8];

static void tell(ggml_backend_t cpu, ggml_backend_t device, const char *name, tensor (*op)(context, struct inputs *)) {
    ggml_backend_t backend = device != NULL && compute(device, op, 1, 0, ROWS, all) != 0 ? device : cpu;
    const size_t row = compute(backend, op, 1, 0, ROWS, all);
    int of_threads = 0, of_rows = 0;
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (int i = 0; i < ROWS; i++) {
        compute(backend, op, 1, i, 1, again);
        of_rows |= memcmp(all + row * (size_t)i, again, row) != 0;
    }
    static char alone[sizeof again];
    memcpy(alone, again, row);
    for (int threads = 2; threads <= 5; threads += 3) {
        compute(backend, op, threads, 0, ROWS, again);
        of_threads |= memcmp(all, again, row * ROWS) != 0;
        compute(backend, op, threads, ROWS - 1, 1, again);
        of_threads |= memcmp(alone, again, row) != 0;
    }
    for (size_t i = 0; i < row * ROWS; i++) hash = (hash ^ (unsigned char)all[i]) * 1099511628211u;
    static const char *const depends[] = {"-", "rows", "threads", "rows,threads"};
    printf("%s\t%s\t%016llx\n", name, depends[of_rows + 2 * of_threads], (unsigned long long)hash);
    for (int i = 0; i < MOST_SHARED; i++) free(bytes_of_shared[i]), bytes_of_shared[i] = NULL;
}

int graph(const char *library);
int graph(const char *library) {
    ggml_backend_t cpu = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, NULL), device = NULL;
    if (library != NULL) {
        if (ggml_backend_load(library) == NULL) return 2;
        device = ggml_backend_init_by_name("RAPT", NULL);
    }
    static const struct {
        const char *name;
        tensor (*op)(context, struct inputs *);
    } plain[] = {{"ADD", add},
                 {"SUB", sub},
                 {"MUL", mul},
                 {"DIV", div_},
                 {"SQR", sqr},
                 {"SQRT", sqrt_},
                 {"LOG", log_},
                 {"SIN", sin_},
                 {"COS", cos_},
                 {"SCALE", scale},
                 {"SCALE with an offset", scale_bias},
                 {"CLAMP", clamp},
                 {"RMS_NORM", rms_norm},
                 {"NORM", norm},
                 {"L2_NORM", l2_norm},
                 {"SOFT_MAX", soft_max},
                 {"SOFT_MAX with a mask of f32", soft_max_mask},
                 {"SOFT_MAX with a mask of f16", soft_max_f16},
                 {"SOFT_MAX with ALiBi", soft_max_alibi},
                 {"SOFT_MAX with sinks", soft_max_sinks},
                 {"SILU", silu},
                 {"GELU", gelu},
                 {"GELU_ERF", gelu_erf},
                 {"GELU_QUICK", gelu_quick},
                 {"SIGMOID", sigmoid},
                 {"TANH", tanh_},
                 {"EXP", exp_},
                 {"RELU", relu},
                 {"SOFTPLUS", softplus},
                 {"ELU", elu},
                 {"EXPM1", expm1_},
                 {"XIELU", xielu},
                 {"SWIGLU", swiglu},
                 {"GEGLU", geglu},
                 {"GEGLU_ERF", geglu_erf},
                 {"GEGLU_QUICK", geglu_quick},
                 {"REGLU", reglu},
                 {"SWIGLU_OAI", swiglu_oai},
                 {"SUM_ROWS", sum_rows},
                 {"ARGSORT", argsort},
                 {"CONCAT", concat},
                 {"REPEAT", repeat},
                 {"PAD", pad},
                 {"CONT", cont},
                 {"CPY to f16", to_f16},
                 {"CPY to bf16", to_bf16},
                 {"ROPE", rope},
                 {"ROPE with sections", rope_sections},
                 {"MUL_MAT with a Hadamard matrix", hadamard}};
    static const enum ggml_type types[] = {GGML_TYPE_F32,  GGML_TYPE_F16,  GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0,
                                           GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K};
    static const struct {
        const char *name;
        tensor (*op)(context, struct inputs *);
        bool of_caches; /* Which are of no type of 256 channels. */
    } typed[] = {{"MUL_MAT of", mul_mat, false},
                 {"MUL_MAT_ID of", mul_mat_id, false},
                 {"GET_ROWS of", get_rows, false},
                 {"SET_ROWS to", set_rows, true},
                 {"FLASH_ATTN_EXT of", attention, true}};
    type = GGML_TYPE_F32, width = WIDTH;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) tell(cpu, device, plain[i].name, plain[i].op);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        type = types[i];
        for (size_t j = 0; j < sizeof typed / sizeof *typed; j++) {
            char name[64];
            if (typed[j].of_caches && ggml_blck_size(type) > 32) continue;
            width = typed[j].op == attention ? 512 : WIDTH - WIDTH % (int)ggml_blck_size(type);
            snprintf(name, sizeof name, "%s %s", typed[j].name, ggml_type_name(type));
            tell(cpu, device, name, typed[j].op);
        }
    }
    if (device != NULL) ggml_backend_free(device);
    ggml_backend_free(cpu);
    fflush(stdout);
    return 0;
}
