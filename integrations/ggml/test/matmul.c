/* SPDX-License-Identifier: Apache-2.0 */
/* matmul check LIBRARY: compares products of the device of LIBRARY, which GGML_RAPT_MATMUL=1 has switched on, with those of
 * ggml's CPU backend, in TAP: weights of each type in each kind of memory, any number of tokens at once, threads, and weights
 * that are packed.
 *
 * matmul time LIBRARY ROUNDS TYPE IN OUT THREADS TOKENS...: times both in turns, each with its weights where llama.cpp would put
 * them, ggml's in CPU_REPACK if it has a layout for the type. For each round and number of tokens prints a line of JSON with the
 * milliseconds of a product. Products of few tokens rotate over so many matrices that weights come from memory. */
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { IN = 608, OUT = 147, TOKENS = 37, HEADS = 3, DISTINCT = 500 };

static ggml_backend_t cpu, device;
static ggml_backend_buffer_type_t weights_type;
static int number, bad;

/* A number of about [-1, 1] from a counter. */
static float noise(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (float)(int32_t)*state * 0x1p-31f;
}

static void report(int good, const char *what) {
    number++, bad += !good;
    printf("%sok %d - %s\n", good ? "" : "not ", number, what);
    fflush(stdout);
}

/* Returns the bytes of a tensor of noise, which are freed by free(). Rows repeat after some hundred, for ggml takes long to
 * quantise large matrices. */
static void *stored_noise(const struct ggml_tensor *t, uint32_t seed) {
    const int64_t rows = ggml_nrows(t), own = rows < DISTINCT ? rows : DISTINCT, n = own * t->ne[0];
    const size_t row = ggml_row_size(t->type, t->ne[0]);
    float *values = malloc((size_t)n * sizeof *values);
    char *stored = malloc(ggml_nbytes(t));
    for (int64_t i = 0; i < n; i++) values[i] = noise(&seed);
    if (t->type == GGML_TYPE_F32) memcpy(stored, values, (size_t)n * sizeof *values);
    else ggml_quantize_chunk(t->type, values, stored, 0, own, t->ne[0], NULL);
    for (int64_t i = own; i < rows; i++) memcpy(stored + (size_t)i * row, stored + (size_t)(i % own) * row, row);
    free(values);
    return stored;
}

static void fill(struct ggml_tensor *t, uint32_t seed) {
    void *stored = stored_noise(t, seed);
    ggml_backend_tensor_set(t, stored, 0, ggml_nbytes(t));
    free(stored);
}

static void set_threads(ggml_backend_t backend, int threads) {
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend));
    ggml_backend_set_n_threads_t set =
        (ggml_backend_set_n_threads_t)ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads");
    set(backend, threads);
}

/* Weights of matrices in memory of a type, with as many channels of IN as are whole blocks. */
struct weights {
    struct ggml_context *context;
    ggml_backend_buffer_t buffer;
    struct ggml_tensor *tensor;
};

static struct weights load(enum ggml_type type, int64_t matrices, ggml_backend_buffer_type_t where) {
    struct weights w;
    w.context = ggml_init((struct ggml_init_params){(size_t)1 << 16, NULL, true});
    w.tensor = ggml_new_tensor_3d(w.context, type, IN - IN % ggml_blck_size(type), OUT, matrices);
    ggml_set_name(w.tensor, "weights");
    w.buffer = ggml_backend_alloc_ctx_tensors_from_buft(w.context, where);
    ggml_backend_buffer_set_usage(w.buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    fill(w.tensor, 7);
    return w;
}

static void unload(struct weights w) {
    ggml_backend_buffer_free(w.buffer);
    ggml_free(w.context);
}

/* Multiplies tokens number first to first + n - 1 of every head; writes [HEADS][n][OUT] to to. Whether the backend took it. */
static int multiply(ggml_backend_t backend, struct ggml_tensor *weights, int threads, int first, int n, float *to) {
    struct ggml_context *context = ggml_init((struct ggml_init_params){(size_t)1 << 20, NULL, true});
    const int64_t in = weights->ne[0];
    struct ggml_tensor *x = ggml_new_tensor_3d(context, GGML_TYPE_F32, in, n, HEADS);
    struct ggml_tensor *op = ggml_mul_mat(context, weights, x);
    struct ggml_cgraph *graph = ggml_new_graph(context);
    ggml_build_forward_expand(graph, op);
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(context, backend);
    float *values = malloc(ggml_nbytes(x));
    for (int head = 0; head < HEADS; head++) {
        for (int token = 0; token < n; token++) {
            uint32_t seed = (uint32_t)(1000 * head + first + token);
            for (int i = 0; i < in; i++) values[(head * n + token) * in + i] = noise(&seed);
        }
    }
    ggml_backend_tensor_set(x, values, 0, ggml_nbytes(x));
    free(values);
    set_threads(backend, threads);
    const int done = ggml_backend_supports_op(backend, op) && ggml_backend_graph_compute(backend, graph) == GGML_STATUS_SUCCESS;
    if (done) ggml_backend_tensor_get(op, to, 0, ggml_nbytes(op));
    ggml_backend_buffer_free(buffer);
    ggml_free(context);
    return done;
}

static float theirs[HEADS][TOKENS][OUT], ours[HEADS][TOKENS][OUT], again[HEADS * TOKENS * OUT];

/* All tokens at once, on any threads, are tokens in groups of any size, and ggml's own within what its rounding allows. */
static void check(enum ggml_type type, int64_t matrices, ggml_backend_buffer_type_t where, const char *what) {
    char text[256];
    struct weights w = load(type, matrices, where), plain = load(type, matrices, ggml_backend_cpu_buffer_type());
    int same = 1;
    double error = 0, size = 0;
    const int taken = multiply(device, w.tensor, 1, 0, TOKENS, &ours[0][0][0]);
    multiply(cpu, plain.tensor, 1, 0, TOKENS, &theirs[0][0][0]);
    for (int threads = 2; taken && threads <= 5; threads += 3) {
        same = same && multiply(device, w.tensor, threads, 0, TOKENS, again) && memcmp(again, ours, sizeof ours) == 0;
    }
    for (int n = 1; taken && n <= 16; n++) {
        for (int first = 0; first + n <= TOKENS; first += n) {
            same = same && multiply(device, w.tensor, 1 + n % 3, first, n, again);
            for (int head = 0; head < HEADS; head++)
                same = same && memcmp(again + head * n * OUT, ours[head][first], (size_t)n * OUT * sizeof(float)) == 0;
        }
    }
    for (size_t i = 0; i < sizeof ours / sizeof(float); i++) {
        const double a = (&ours[0][0][0])[i], b = (&theirs[0][0][0])[i];
        error += (a - b) * (a - b), size += b * b;
    }
    snprintf(text, sizeof text, "%s, %d matrices, %s: %s, error %.1e, 1 to 16 at once on 1, 2, 3 and 5 threads %s",
             ggml_type_name(type), (int)matrices, what, taken ? "taken" : "not taken", sqrt(error / size),
             same ? "the same" : "differ");
    report(taken && same && error <= 5e-4 * size, text); /* The bound of test-backend-ops. */
    unload(w);
    unload(plain);
}

/* Whether a process that does this to packed weights says why it ends, and ends. */
static void check_refused(void (*what)(struct ggml_tensor *), const char *pattern) {
    int pipes[2], status = 0;
    char said[512] = "", text[600];
    struct weights w = load(GGML_TYPE_Q8_0, 1, weights_type);
    if (pipe(pipes) != 0) exit(2);
    const pid_t child = fork();
    if (child == 0) {
        dup2(pipes[1], 2);
        what(w.tensor);
        _exit(0);
    }
    close(pipes[1]);
    ssize_t length = 0, n;
    while ((n = read(pipes[0], said + length, sizeof said - 1 - (size_t)length)) > 0) length += n;
    waitpid(child, &status, 0);
    close(pipes[0]);
    said[strcspn(said, "\n")] = '\0';
    snprintf(text, sizeof text, "refused: %s", said);
    report(WIFSIGNALED(status) && strstr(said, pattern) != NULL, text);
    unload(w);
}

static void read_back(struct ggml_tensor *weights) {
    char byte;
    ggml_backend_tensor_get(weights, &byte, 5, 1);
}

static void write_part(struct ggml_tensor *weights) {
    const char byte = 1;
    ggml_backend_tensor_set(weights, &byte, 5, 1);
}

static int check_all(void) {
    const char *arith = getenv("GGML_RAPT_ARITH");
    const int packs = arith != NULL && strcmp(arith, "int8") == 0;
    static const enum ggml_type types[] = {GGML_TYPE_F32,  GGML_TYPE_F16,  GGML_TYPE_BF16, GGML_TYPE_Q8_0,
                                           GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q4_K, GGML_TYPE_Q6_K};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        check(types[i], 1, ggml_backend_cpu_buffer_type(), "in the CPU's memory");
        check(types[i], 1, weights_type, "in the device's memory");
        check(types[i], HEADS, weights_type, "in the device's memory");
    }
    report(ggml_backend_buft_is_host(weights_type) == !packs,
           packs ? "packed memory is not the host's" : "the memory is the host's");
    if (packs) {
        check_refused(read_back, "weights: the weights are packed, and cannot be read back");
        check_refused(write_part, "weights: weights that are packed must be written as a whole");
    } else {
        struct weights w = load(GGML_TYPE_Q8_0, 1, weights_type), plain = load(GGML_TYPE_Q8_0, 1, ggml_backend_cpu_buffer_type());
        void *stored = malloc(ggml_nbytes(w.tensor));
        ggml_backend_tensor_get(w.tensor, stored, 0, ggml_nbytes(w.tensor));
        report(memcmp(stored, plain.tensor->data, ggml_nbytes(w.tensor)) == 0, "the weights can be read back");
        free(stored);
        unload(w);
        unload(plain);
    }
    printf("1..%d\n", number);
    return bad != 0;
}

/* ---- Times ---------------------------------------------------------------------------------------------------------------- */

/* Matrices of few tokens take more memory together than caches have; up to this many tokens, reading them may be the limit. */
static const size_t cold_bytes = (size_t)256 << 20;
enum { FEW_TOKENS = 16 };

/* Returns where llama.cpp puts weights for the CPU backend: in CPU_REPACK if that has a layout for them. */
static ggml_backend_buffer_type_t cpu_weights_type(const struct ggml_tensor *weights) {
    ggml_backend_dev_t dev = ggml_backend_get_device(cpu);
    ggml_backend_dev_get_extra_bufts_t extra = (ggml_backend_dev_get_extra_bufts_t)ggml_backend_reg_get_proc_address(
        ggml_backend_dev_backend_reg(dev), "ggml_backend_dev_get_extra_bufts");
    ggml_backend_buffer_type_t found = ggml_backend_cpu_buffer_type();
    for (ggml_backend_buffer_type_t *type = extra(dev); type != NULL && *type != NULL; type++) {
        /* It is asked as llama.cpp asks: by a product with weights in an empty buffer of that type. */
        struct ggml_context *context = ggml_init((struct ggml_init_params){(size_t)1 << 16, NULL, true});
        struct ggml_tensor *w = ggml_new_tensor_2d(context, weights->type, weights->ne[0], weights->ne[1]);
        struct ggml_tensor *op = ggml_mul_mat(context, w, ggml_new_tensor_2d(context, GGML_TYPE_F32, weights->ne[0], 512));
        w->buffer = ggml_backend_buft_alloc_buffer(*type, 0);
        if (ggml_backend_dev_supports_op(dev, op)) found = *type;
        ggml_backend_buffer_free(w->buffer);
        ggml_free(context);
        if (found == *type) break;
    }
    return found;
}

/* A graph of products of the same tokens with one matrix of weights after the other, on a backend. */
struct products {
    struct ggml_context *context;
    ggml_backend_buffer_t buffer;
    struct ggml_cgraph *graph;
};

static struct products build(ggml_backend_t backend, struct ggml_tensor *const *weights, int matrices, int tokens) {
    struct products p;
    p.context = ggml_init((struct ggml_init_params){(size_t)1 << 20, NULL, true});
    p.graph = ggml_new_graph(p.context);
    struct ggml_tensor *x = ggml_new_tensor_2d(p.context, GGML_TYPE_F32, weights[0]->ne[0], tokens);
    for (int i = 0; i < matrices; i++) ggml_build_forward_expand(p.graph, ggml_mul_mat(p.context, weights[i], x));
    p.buffer = ggml_backend_alloc_ctx_tensors(p.context, backend);
    fill(x, 11);
    return p;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void time_tokens(struct ggml_tensor **const *weights, int matrices, int tokens, int threads, int rounds,
                        const char *where) {
    ggml_backend_t backends[] = {cpu, device};
    struct products built[2];
    double took[2];
    for (int i = 0; i < 2; i++) built[i] = build(backends[i], weights[i], matrices, tokens);
    for (int round = -1; round < rounds; round++) { /* In the first round memory is touched and threads start. */
        for (int turn = 0; turn < 2; turn++) {
            const int i = (turn + round) & 1; /* Each is first in half of the rounds. */
            set_threads(backends[i], threads);
            const double start = now();
            if (ggml_backend_graph_compute(backends[i], built[i].graph) != GGML_STATUS_SUCCESS) exit(2);
            took[i] = (now() - start) / matrices;
        }
        if (round < 0) continue;
        printf("{\"tokens\": %d, \"ggml\": %.6f, \"rapt\": %.6f, \"where\": \"%s\"}\n", tokens, took[0], took[1], where);
    }
    for (int i = 0; i < 2; i++) {
        ggml_backend_buffer_free(built[i].buffer);
        ggml_free(built[i].context);
    }
}

static int time_all(int argc, char **argv) {
    enum ggml_type type = (enum ggml_type)0;
    while (type < GGML_TYPE_COUNT && strcmp(ggml_type_name(type), argv[4]) != 0) type++;
    const int rounds = atoi(argv[3]), in = atoi(argv[5]), out = atoi(argv[6]), threads = atoi(argv[7]);
    if (type == GGML_TYPE_COUNT || in <= 0 || in % ggml_blck_size(type) || out <= 0) {
        fprintf(stderr, "matmul: no weights are %s of %s x %s\n", argv[4], argv[5], argv[6]);
        return 2;
    }
    const int matrices = (int)(cold_bytes / (ggml_row_size(type, in) * (size_t)out)) + 1;
    struct ggml_tensor **weights[2];
    struct ggml_context *contexts[2];
    ggml_backend_buffer_t buffers[2];
    const char *where = NULL;
    for (int i = 0; i < 2; i++) {
        weights[i] = calloc((size_t)matrices, sizeof *weights[i]);
        contexts[i] = ggml_init((struct ggml_init_params){(size_t)1 << 20, NULL, true});
        for (int m = 0; m < matrices; m++) weights[i][m] = ggml_new_tensor_2d(contexts[i], type, in, out);
        ggml_backend_buffer_type_t buft = i ? weights_type : cpu_weights_type(weights[i][0]);
        buffers[i] = ggml_backend_alloc_ctx_tensors_from_buft(contexts[i], buft);
        ggml_backend_buffer_set_usage(buffers[i], GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        void *stored = stored_noise(weights[i][0], 7);
        for (int m = 0; m < matrices; m++) ggml_backend_tensor_set(weights[i][m], stored, 0, ggml_nbytes(weights[i][m]));
        free(stored);
        if (i == 0) where = ggml_backend_buft_name(buft);
    }
    for (int i = 8; i < argc; i++) {
        const int tokens = atoi(argv[i]);
        time_tokens(weights, tokens > FEW_TOKENS ? 1 : matrices, tokens, threads, rounds, where);
    }
    for (int i = 0; i < 2; i++) {
        ggml_backend_buffer_free(buffers[i]);
        ggml_free(contexts[i]);
        free(weights[i]);
    }
    return 0;
}

int main(int argc, char **argv) {
    const int checks = argc == 3 && strcmp(argv[1], "check") == 0, times = argc > 8 && strcmp(argv[1], "time") == 0;
    if (!checks && !times) {
        fprintf(stderr, "usage: matmul check LIBRARY | matmul time LIBRARY ROUNDS TYPE IN OUT THREADS TOKENS...\n");
        return 2;
    }
    cpu = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, NULL);
    if (ggml_backend_load(argv[2]) == NULL) return 2;
    device = ggml_backend_init_by_name("RAPT", NULL);
    ggml_backend_dev_t weights_device = ggml_backend_dev_by_name("RAPT_WEIGHTS");
    if (device == NULL || weights_device == NULL) {
        fprintf(stderr, "matmul: %s takes no products\n", argv[2]);
        return 2;
    }
    weights_type = ggml_backend_dev_buffer_type(weights_device);
    const int code = checks ? check_all() : time_all(argc, argv);
    ggml_backend_free(device);
    ggml_backend_free(cpu);
    return code;
}
