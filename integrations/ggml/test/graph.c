/* SPDX-License-Identifier: Apache-2.0 */
/* A library, for one of the hosts is a part of Python's. graph(LIBRARY) prints what the bits of the operations of a model's graph
 * depend on in ggml's CPU backend, or in the device of LIBRARY where that takes them; null: there is none. A line for each: its
 * name, "rows" if rows computed one by one are others than together, "threads" if those of several threads are, and a hash of the
 * result, which tells builds of ggml apart. */
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 544, ROWS = 70, HEADS = 4, OUT = 96 };

typedef struct ggml_tensor *tensor;
typedef struct ggml_context *context;

/* What an operation is made of: x, f32 of `width` channels and so many rows; y, the same; w, weights of [OUT] rows; and numbers
 * of rows. */
struct inputs {
    tensor x, y, vector, weights, positions, indices, table;
};

static float noise(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(int32_t)*state * 0x1p-31f;
}

static void fill(tensor t, uint32_t seed) {
    const int64_t n = ggml_nelements(t);
    float *values = malloc((size_t)n * sizeof *values);
    void *stored = malloc(ggml_nbytes(t));
    for (int64_t i = 0; i < n; i++) values[i] = 3 * noise(&seed);
    if (t->type == GGML_TYPE_F32) memcpy(stored, values, ggml_nbytes(t));
    else ggml_quantize_chunk(t->type, values, stored, 0, n / t->ne[0], t->ne[0], NULL);
    ggml_backend_tensor_set(t, stored, 0, ggml_nbytes(t));
    free(stored);
    free(values);
}

static enum ggml_type type; /* Of weights, tables and caches. */
static int width;           /* The channels of a row: those of WIDTH that are whole blocks of the type. */

static tensor add(context c, struct inputs *in) { return ggml_add(c, in->x, in->y); }
static tensor mul(context c, struct inputs *in) { return ggml_mul(c, in->x, in->vector); }
static tensor scale(context c, struct inputs *in) { return ggml_scale(c, in->x, 0.37f); }
static tensor scale_bias(context c, struct inputs *in) { return ggml_scale_bias(c, in->x, 0.37f, 0.61f); }
static tensor rms_norm(context c, struct inputs *in) { return ggml_rms_norm(c, in->x, 1e-5f); }
static tensor norm(context c, struct inputs *in) { return ggml_norm(c, in->x, 1e-5f); }
static tensor soft_max(context c, struct inputs *in) { return ggml_soft_max(c, in->x); }
static tensor silu(context c, struct inputs *in) { return ggml_silu(c, in->x); }
static tensor gelu(context c, struct inputs *in) { return ggml_gelu(c, in->x); }
static tensor gelu_erf(context c, struct inputs *in) { return ggml_gelu_erf(c, in->x); }
static tensor sigmoid(context c, struct inputs *in) { return ggml_sigmoid(c, in->x); }
static tensor tanh_(context c, struct inputs *in) { return ggml_tanh(c, in->x); }
static tensor relu(context c, struct inputs *in) { return ggml_relu(c, in->x); }
static tensor swiglu(context c, struct inputs *in) { return ggml_swiglu_split(c, in->x, in->y); }
static tensor geglu(context c, struct inputs *in) { return ggml_geglu_split(c, in->x, in->y); }
static tensor sum_rows(context c, struct inputs *in) { return ggml_sum_rows(c, in->x); }
static tensor sqr(context c, struct inputs *in) { return ggml_sqr(c, in->x); }
static tensor cont(context c, struct inputs *in) {
    return ggml_cont(c, ggml_view_2d(c, in->x, width / 2, in->x->ne[1], in->x->nb[1], 16));
}
static tensor to_f16(context c, struct inputs *in) { return ggml_cast(c, in->x, GGML_TYPE_F16); }
static tensor rope(context c, struct inputs *in) {
    tensor heads = ggml_reshape_3d(c, in->x, width / HEADS, HEADS, in->x->ne[1]);
    return ggml_rope_ext(c, heads, in->positions, NULL, width / HEADS, GGML_ROPE_TYPE_NEOX, 4096, 10000, 1, 0, 1, 32, 1);
}
static tensor mul_mat(context c, struct inputs *in) { return ggml_mul_mat(c, in->weights, in->x); }
static tensor get_rows(context c, struct inputs *in) { return ggml_get_rows(c, in->table, in->positions); }
static tensor set_rows(context c, struct inputs *in) {
    return ggml_set_rows(c, ggml_new_tensor_2d(c, type, width, in->x->ne[1]), in->x, in->indices);
}

/* Writes the result of rows first to first + n - 1 to `to`, and returns its bytes for a row; 0 if the backend does not take it.
 */
static size_t compute(ggml_backend_t backend, tensor (*op)(context, struct inputs *), int threads, int first, int n, char *to) {
    struct ggml_context *c = ggml_init((struct ggml_init_params){(size_t)1 << 20, NULL, true});
    struct inputs in = {.x = ggml_new_tensor_2d(c, GGML_TYPE_F32, width, n),
                        .y = ggml_new_tensor_2d(c, GGML_TYPE_F32, width, n),
                        .vector = ggml_new_tensor_1d(c, GGML_TYPE_F32, width),
                        .weights = ggml_new_tensor_2d(c, type, width, OUT),
                        .positions = ggml_new_tensor_1d(c, GGML_TYPE_I32, n),
                        .indices = ggml_new_tensor_1d(c, GGML_TYPE_I64, n),
                        .table = ggml_new_tensor_2d(c, type, width, ROWS)};
    const size_t row = (size_t)width * sizeof(float);
    tensor result = op(c, &in);
    struct ggml_cgraph *graph = ggml_new_graph(c);
    ggml_build_forward_expand(graph, result);
    size_t bytes = 0;
    if (ggml_backend_supports_op(backend, result)) {
        ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(c, backend);
        fill(in.vector, 3);
        fill(in.weights, 4);
        fill(in.table, 5);
        for (int i = 0; i < n; i++) {
            uint32_t seed = (uint32_t)(first + i), other = seed + 1000;
            float x[WIDTH], y[WIDTH];
            const int32_t position = first + i;
            const int64_t index = i;
            for (int j = 0; j < width; j++) x[j] = 3 * noise(&seed), y[j] = 3 * noise(&other);
            ggml_backend_tensor_set(in.x, x, (size_t)i * row, row);
            ggml_backend_tensor_set(in.y, y, (size_t)i * row, row);
            ggml_backend_tensor_set(in.positions, &position, (size_t)i * sizeof position, sizeof position);
            ggml_backend_tensor_set(in.indices, &index, (size_t)i * sizeof index, sizeof index);
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

static char all[ROWS * WIDTH * 4], again[ROWS * WIDTH * 4];

static void tell(ggml_backend_t cpu, ggml_backend_t device, const char *name, tensor (*op)(context, struct inputs *)) {
    ggml_backend_t backend = device != NULL && compute(device, op, 1, 0, ROWS, all) != 0 ? device : cpu;
    const size_t row = compute(backend, op, 1, 0, ROWS, all);
    int of_threads = 0, of_rows = 0;
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (int threads = 2; threads <= 5; threads += 3) {
        compute(backend, op, threads, 0, ROWS, again);
        of_threads |= memcmp(all, again, row * ROWS) != 0;
    }
    for (int i = 0; i < ROWS; i++) {
        compute(backend, op, 1, i, 1, again);
        of_rows |= memcmp(all + row * (size_t)i, again, row) != 0;
    }
    for (size_t i = 0; i < row * ROWS; i++) hash = (hash ^ (unsigned char)all[i]) * 1099511628211u;
    printf("%s %s%s %016llx\n", name, of_rows ? "rows" : "-", of_threads ? ",threads" : "", (unsigned long long)hash);
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
    } plain[] = {{"ADD", add},           {"MUL", mul},           {"SCALE", scale},       {"SCALE+bias", scale_bias},
                 {"RMS_NORM", rms_norm}, {"NORM", norm},         {"SOFT_MAX", soft_max}, {"SILU", silu},
                 {"GELU", gelu},         {"GELU_ERF", gelu_erf}, {"SIGMOID", sigmoid},   {"TANH", tanh_},
                 {"RELU", relu},         {"SWIGLU", swiglu},     {"GEGLU", geglu},       {"SUM_ROWS", sum_rows},
                 {"SQR", sqr},           {"CONT", cont},         {"CPY:f16", to_f16},    {"ROPE", rope}};
    static const enum ggml_type types[] = {GGML_TYPE_F32,  GGML_TYPE_F16,  GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0,
                                           GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K};
    type = GGML_TYPE_F32, width = WIDTH;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) tell(cpu, device, plain[i].name, plain[i].op);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char name[64];
        type = types[i], width = WIDTH - WIDTH % (int)ggml_blck_size(type);
        snprintf(name, sizeof name, "MUL_MAT:%s", ggml_type_name(type));
        tell(cpu, device, name, mul_mat);
        snprintf(name, sizeof name, "GET_ROWS:%s", ggml_type_name(type));
        tell(cpu, device, name, get_rows);
        if (type == GGML_TYPE_Q4_K || type == GGML_TYPE_Q6_K) continue; /* No cache is of them. */
        snprintf(name, sizeof name, "SET_ROWS:%s", ggml_type_name(type));
        tell(cpu, device, name, set_rows);
    }
    if (device != NULL) ggml_backend_free(device);
    ggml_backend_free(cpu);
    fflush(stdout);
    return 0;
}
