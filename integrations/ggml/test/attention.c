/* SPDX-License-Identifier: Apache-2.0 */
/* attention check LIBRARY: compares the device of LIBRARY with ggml's CPU backend in what ggml's own test-backend-ops leaves
 * out, and has malformed attentions refused, in TAP.
 *
 * attention time LIBRARY ROUNDS TYPE QUERIES KEYS THREADS: prints the milliseconds of an attention of 32 heads over 8, 128
 * channels and a causal mask, on the CPU backend and on the device in turns, a pair for each round, as lines of JSON. */
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* An attention, and what is said of it. */
struct attention {
    const char *name;
    int64_t d_k, d_v, heads, k_heads, v_heads, entries, queries, keys;
    enum ggml_type type_k, type_v;
    int64_t mask_heads, mask_entries; /* 0: no mask. */
    float max_bias, softcap;
    int sinks, causal;
    int64_t more_values, more_columns, more_rows; /* Tokens of V beyond K's, columns of the mask beyond these, rows beyond Q's. */
};

/* An attention's tensors in a backend's memory, and the graph of it alone. */
struct built {
    struct ggml_context *context;
    ggml_backend_buffer_t buffer;
    struct ggml_cgraph *graph;
    struct ggml_tensor *op;
};

/* A number of about [-1, 1] from a counter, the same in each backend. */
static float noise(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(int32_t)*state * 0x1p-31f * 1.7f;
}

static void fill(struct ggml_tensor *t, float size, uint32_t seed) {
    const int64_t n = ggml_nelements(t);
    if (n == 0) return;
    float *values = malloc((size_t)n * sizeof *values);
    void *stored = malloc(ggml_nbytes(t));
    for (int64_t i = 0; i < n; i++) values[i] = size * noise(&seed);
    if (t->type == GGML_TYPE_F32) memcpy(stored, values, ggml_nbytes(t));
    else ggml_quantize_chunk(t->type, values, stored, 0, n / t->ne[0], t->ne[0], NULL);
    ggml_backend_tensor_set(t, stored, 0, ggml_nbytes(t));
    free(stored);
    free(values);
}

/* A mask hides keys behind the queries' own if causal, else some of them; and it has numbers for ALiBi. */
static void fill_mask(struct ggml_tensor *t, int causal, uint32_t seed) {
    if (ggml_nelements(t) == 0) return;
    ggml_fp16_t *values = malloc(ggml_nbytes(t));
    const int64_t keys = t->ne[0], queries = t->ne[1], rows = ggml_nrows(t);
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t key = 0; key < keys; key++) {
            const float random = noise(&seed);
            const int hidden = causal ? key > row % queries + keys - queries : random > 1.2f;
            values[row * keys + key] = ggml_fp32_to_fp16(hidden ? -INFINITY : causal ? 0.0f : random);
        }
    }
    ggml_backend_tensor_set(t, values, 0, ggml_nbytes(t));
    free(values);
}

static struct built build(ggml_backend_t backend, const struct attention *a) {
    struct built b;
    b.context = ggml_init((struct ggml_init_params){(size_t)1 << 20, NULL, true});
    /* Tokens are outside heads, as in llama.cpp's caches. */
    struct ggml_tensor *q = ggml_new_tensor_4d(b.context, GGML_TYPE_F32, a->d_k, a->heads, a->queries, a->entries);
    struct ggml_tensor *k = ggml_new_tensor_4d(b.context, a->type_k, a->d_k, a->k_heads, a->keys, a->entries);
    struct ggml_tensor *v = ggml_new_tensor_4d(b.context, a->type_v, a->d_v, a->v_heads, a->keys + a->more_values, a->entries);
    struct ggml_tensor *mask = NULL, *sinks = NULL;
    if (a->mask_heads > 0) {
        mask = ggml_new_tensor_4d(b.context, GGML_TYPE_F16, a->keys + a->more_columns, a->queries + a->more_rows, a->mask_heads,
                                  a->mask_entries);
    }
    if (a->sinks) sinks = ggml_new_tensor_1d(b.context, GGML_TYPE_F32, a->heads);
    b.op =
        ggml_flash_attn_ext(b.context, ggml_permute(b.context, q, 0, 2, 1, 3), ggml_permute(b.context, k, 0, 2, 1, 3),
                            ggml_permute(b.context, v, 0, 2, 1, 3), mask, 1.0f / sqrtf((float)a->d_k), a->max_bias, a->softcap);
    ggml_flash_attn_ext_add_sinks(b.op, sinks);
    b.graph = ggml_new_graph(b.context);
    ggml_build_forward_expand(b.graph, b.op);
    b.buffer = ggml_backend_alloc_ctx_tensors(b.context, backend);
    fill(q, 1, 1);
    fill(k, 1, 2);
    fill(v, 1, 3);
    if (mask != NULL) fill_mask(mask, a->causal, 4);
    if (sinks != NULL) fill(sinks, 6, 5); /* Such that they weigh as much as all keys. */
    return b;
}

static void destroy(struct built b) {
    ggml_backend_buffer_free(b.buffer);
    ggml_free(b.context);
}

static void set_threads(ggml_backend_t backend, int threads) {
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend));
    ggml_backend_set_n_threads_t set =
        (ggml_backend_set_n_threads_t)ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads");
    set(backend, threads);
}

/* The result, which the caller frees. */
static float *result_of(ggml_backend_t backend, const struct attention *a, int threads) {
    struct built b = build(backend, a);
    float *result = malloc(ggml_nbytes(b.op));
    set_threads(backend, threads);
    if (ggml_backend_graph_compute(backend, b.graph) != GGML_STATUS_SUCCESS) memset(result, 0xff, ggml_nbytes(b.op)); /* NaN */
    else ggml_backend_tensor_get(b.op, result, 0, ggml_nbytes(b.op));
    destroy(b);
    return result;
}

/* Whether the device takes an attention, comes to what the CPU backend does, and to the same bits on 1, 2 and 3 threads. */
static int check(ggml_backend_t cpu, ggml_backend_t device, const struct attention *a, int number) {
    const size_t n = (size_t)(a->d_v * a->heads * a->queries * a->entries);
    struct built b = build(device, a);
    const int taken = ggml_backend_supports_op(device, b.op);
    destroy(b);
    if (!taken) {
        printf("not ok %d - %s is not taken\n", number, a->name);
        return 0;
    }
    float *theirs = result_of(cpu, a, 1), *ours = result_of(device, a, 1);
    double error = 0, size = 0;
    int same = 1;
    for (int threads = 2; threads <= 3; threads++) {
        float *again = result_of(device, a, threads);
        same = same && memcmp(ours, again, n * sizeof *ours) == 0;
        free(again);
    }
    for (size_t i = 0; i < n; i++) {
        error += ((double)ours[i] - theirs[i]) * ((double)ours[i] - theirs[i]);
        size += (double)theirs[i] * theirs[i];
    }
    free(theirs);
    free(ours);
    const int good = same && error <= 5e-4 * size; /* The bound of test-backend-ops. */
    printf("%sok %d - %s: error %.1e, bits on 1, 2 and 3 threads %s\n", good ? "" : "not ", number, a->name,
           size > 0 ? sqrt(error / size) : error, same ? "the same" : "differ");
    return good;
}

enum { untouched = 0x5a }; /* What a result's bytes are filled with where it must not be written. */

static int is_untouched(struct ggml_tensor *op) {
    const size_t bytes = ggml_nbytes(op);
    unsigned char *stored = malloc(bytes);
    int same = 1;
    ggml_backend_tensor_get(op, stored, 0, bytes);
    for (size_t i = 0; i < bytes; i++) same = same && stored[i] == untouched;
    free(stored);
    return same;
}

/* Whether an attention that is malformed is computed by nobody: ggml's own scheduler has both backends, and its CPU backend would
 * read behind a tensor's end. The name of the attention is what the device says of it. */
static int check_refused(ggml_backend_t cpu, ggml_backend_t device, const struct attention *a, int number) {
    struct built b = build(cpu, a);
    ggml_backend_tensor_memset(b.op, untouched, 0, ggml_nbytes(b.op));
    ggml_backend_t backends[] = {device, cpu};
    ggml_backend_sched_t sched = ggml_backend_sched_new(backends, NULL, 2, 64, false, true);
    const int is_ours = ggml_backend_supports_op(device, b.op);
    const int failed = is_ours && ggml_backend_sched_graph_compute(sched, b.graph) == GGML_STATUS_FAILED;
    const int good = failed && is_untouched(b.op);
    printf("%sok %d - refused: %s\n", good ? "" : "not ", number, a->name);
    ggml_backend_sched_free(sched);
    destroy(b);
    return good;
}

/* Whether the device leaves alone a node that is in a branch of the graph that was not selected. */
static int check_not_selected(ggml_backend_t device, const struct attention *a, int number) {
    struct built b = build(device, a);
    ggml_backend_tensor_memset(b.op, untouched, 0, ggml_nbytes(b.op));
    b.op->flags &= ~GGML_TENSOR_FLAG_COMPUTE;
    const int good = ggml_backend_graph_compute(device, b.graph) == GGML_STATUS_SUCCESS && is_untouched(b.op);
    printf("%sok %d - %s\n", good ? "" : "not ", number, a->name);
    destroy(b);
    return good;
}

/* Whether the device leaves an attention to ggml, which has a value of a parameter that is unknown to it. */
static int check_left(ggml_backend_t device, const struct attention *a, int32_t parameter, int number) {
    struct built b = build(device, a);
    b.op->op_params[7] = parameter;
    const int good = !ggml_backend_supports_op(device, b.op);
    printf("%sok %d - %s\n", good ? "" : "not ", number, a->name);
    destroy(b);
    return good;
}

static int check_all(ggml_backend_t cpu, ggml_backend_t device) {
    const enum ggml_type f16 = GGML_TYPE_F16, mxfp4 = GGML_TYPE_MXFP4, q5_0 = GGML_TYPE_Q5_0, bf16 = GGML_TYPE_BF16;
    const enum ggml_type q4_k = GGML_TYPE_Q4_K, q6_k = GGML_TYPE_Q6_K;
    const struct attention cases[] = {
        {"a mask for each head", 64, 64, 8, 2, 2, 1, 5, 700, f16, f16, 8, 1, 0, 0, 0, 0, 0, 0, 0},
        {"a mask of 4 heads, repeated, groups of 4", 64, 64, 8, 2, 2, 1, 5, 700, f16, f16, 4, 1, 0, 0, 1, 0, 0, 0, 0},
        {"a mask of 2 heads, repeated, groups of 4", 64, 64, 8, 2, 2, 2, 5, 700, f16, f16, 2, 2, 0, 0, 1, 0, 0, 0, 0},
        {"a mask of 6 heads, repeated, groups of 4", 64, 32, 12, 3, 3, 2, 3, 300, f16, f16, 6, 1, 4, 0, 1, 0, 0, 0, 0},
        {"a mask of 2 entries, repeated over 4", 64, 64, 4, 4, 4, 4, 3, 130, f16, f16, 1, 2, 8, 20, 0, 0, 0, 0, 0},
        {"V of fewer heads than K", 64, 32, 12, 6, 2, 2, 9, 140, f16, f16, 1, 1, 0, 0, 1, 0, 0, 0, 0},
        {"12 heads, no power of two, ALiBi and sinks", 64, 64, 12, 4, 4, 1, 17, 257, f16, f16, 1, 1, 8, 0, 1, 0, 0, 0, 0},
        {"MXFP4", 64, 96, 8, 2, 2, 2, 20, 600, mxfp4, mxfp4, 1, 2, 0, 0, 0, 1, 0, 0, 0},
        {"K of q5_0, V of bf16, one query", 128, 80, 8, 2, 2, 3, 1, 600, q5_0, bf16, 1, 3, 0, 30, 1, 0, 0, 0, 0},
        {"no mask, one key", 33, 65, 3, 1, 1, 1, 2, 1, f16, f16, 0, 0, 0, 0, 0, 0, 0, 0, 0},
        {"no key", 64, 64, 4, 2, 2, 1, 3, 0, f16, f16, 1, 1, 0, 0, 0, 0, 0, 0, 0},
        {"no query", 64, 64, 4, 2, 2, 1, 0, 70, f16, f16, 1, 1, 0, 0, 0, 0, 0, 0, 0},
        {"V of more tokens than K", 64, 64, 4, 2, 2, 1, 5, 70, f16, f16, 1, 1, 0, 0, 0, 0, 9, 0, 0},
        {"a mask of more columns and rows", 64, 64, 4, 2, 2, 1, 5, 70, f16, f16, 1, 1, 0, 0, 0, 0, 0, 58, 27}};
    const struct attention malformed[] = {
        {"V has 69 tokens, and K 70", 64, 64, 4, 2, 2, 1, 5, 70, f16, f16, 1, 1, 0, 0, 0, 0, -1, 0, 0},
        {"V has 3 heads, and Q 8", 64, 64, 8, 4, 3, 1, 5, 70, f16, f16, 1, 1, 0, 0, 0, 0, 0, 0, 0},
        {"V has 0 heads, and Q 8", 64, 64, 8, 4, 0, 1, 5, 70, f16, f16, 1, 1, 0, 0, 0, 0, 0, 0, 0},
        {"the mask has 69 columns, and K 70 tokens", 64, 64, 8, 4, 4, 1, 5, 70, f16, f16, 1, 1, 0, 0, 0, 0, 0, -1, 0},
        {"the mask has 0 columns, and K 70 tokens", 64, 64, 8, 4, 4, 1, 5, 70, f16, f16, 1, 1, 0, 0, 0, 0, 0, -70, 0},
        {"the mask has 4 rows, and Q 5 tokens", 64, 64, 8, 4, 4, 1, 5, 70, f16, f16, 1, 1, 0, 0, 0, 0, 0, 0, -1}};
    const struct attention others[] = {
        {"a branch that is not selected is not computed", 64, 64, 8, 4, 4, 1, 5, 70, f16, f16, 1, 1, 0, 0, 0, 0, 0, 0, 0},
        {"a parameter that is not known is left to ggml", 64, 64, 8, 4, 4, 1, 5, 70, f16, f16, 1, 1, 0, 0, 0, 0, 0, 0, 0},
        {"K and V of types of weights are left to ggml", 256, 256, 8, 4, 4, 1, 5, 70, q4_k, q6_k, 1, 1, 0, 0, 0, 0, 0, 0, 0}};
    int good = 1, n = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) good = check(cpu, device, &cases[i], ++n) && good;
    for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++) {
        good = check_refused(cpu, device, &malformed[i], ++n) && good;
    }
    good = check_not_selected(device, &others[0], ++n) && good;
    good = check_left(device, &others[1], 1, ++n) && good;
    good = check_left(device, &others[2], 0, ++n) && good;
    printf("1..%d\n", n);
    return good ? 0 : 1;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int time_it(ggml_backend_t cpu, ggml_backend_t device, char **argv) {
    const int rounds = atoi(argv[3]), threads = atoi(argv[7]);
    struct attention a = {"", 128, 128, 32, 8, 8, 1, atoi(argv[5]), atoi(argv[6]), GGML_TYPE_COUNT, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0};
    for (int type = 0; type < GGML_TYPE_COUNT; type++) {
        if (strcmp(ggml_type_name((enum ggml_type)type), argv[4]) == 0) a.type_k = a.type_v = (enum ggml_type)type;
    }
    if (a.type_k == GGML_TYPE_COUNT) {
        fprintf(stderr, "attention: '%s' is no type of ggml's\n", argv[4]);
        return 2;
    }
    ggml_backend_t backends[] = {cpu, device};
    struct built built[] = {build(cpu, &a), build(device, &a)};
    double took[2];
    for (int round = -1, shown = 0; round < rounds; round++) {
        for (int turn = 0; turn < 2; turn++) {
            const int i = (turn + round) & 1; /* Each is first in half of the rounds. */
            set_threads(backends[i], threads);
            const double start = now();
            ggml_backend_graph_compute(backends[i], built[i].graph);
            took[i] = now() - start;
        }
        /* In the first round memory is touched and threads start, which only does not count where it takes long. */
        const int is_long = took[0] > 1500;
        if (round >= 0 || is_long) printf("{\"ggml\": %.6f, \"rapt\": %.6f}\n", took[0], took[1]), shown++;
        if (is_long && shown >= 2) break;
    }
    for (int i = 0; i < 2; i++) destroy(built[i]);
    return 0;
}

int main(int argc, char **argv) {
    const int checks = argc == 3 && strcmp(argv[1], "check") == 0, times = argc == 8 && strcmp(argv[1], "time") == 0;
    if (!checks && !times) {
        fprintf(stderr, "usage: attention check LIBRARY | attention time LIBRARY ROUNDS TYPE QUERIES KEYS THREADS\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0); /* So that what was tested before a crash is told. */
    ggml_backend_t cpu = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, NULL);
    if (ggml_backend_load(argv[2]) == NULL) return 2;
    ggml_backend_t device = ggml_backend_init_by_name("RAPT", NULL);
    if (device == NULL) {
        fprintf(stderr, "attention: %s has no device\n", argv[2]);
        return 2;
    }
    const int code = checks ? check_all(cpu, device) : time_it(cpu, device, argv);
    ggml_backend_free(device);
    ggml_backend_free(cpu);
    return code;
}
