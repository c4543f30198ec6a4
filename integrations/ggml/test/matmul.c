/* SPDX-License-Identifier: Apache-2.0 */
/* matmul LIBRARY: compares products of the device of LIBRARY, which GGML_RAPT_MATMUL=1 has switched on, with those of ggml's CPU
 * backend, in TAP: weights of each type in each kind of memory, any number of tokens at once, threads, and weights that are
 * packed. */
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { IN = 608, OUT = 147, TOKENS = 37, HEADS = 3 };

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

static void fill(struct ggml_tensor *t, uint32_t seed) {
    const int64_t n = ggml_nelements(t);
    float *values = malloc((size_t)n * sizeof *values);
    void *stored = malloc(ggml_nbytes(t));
    for (int64_t i = 0; i < n; i++) values[i] = noise(&seed);
    if (t->type == GGML_TYPE_F32) memcpy(stored, values, ggml_nbytes(t));
    else ggml_quantize_chunk(t->type, values, stored, 0, n / t->ne[0], t->ne[0], NULL);
    ggml_backend_tensor_set(t, stored, 0, ggml_nbytes(t));
    free(stored);
    free(values);
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

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: matmul LIBRARY\n");
        return 2;
    }
    cpu = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, NULL);
    if (ggml_backend_load(argv[1]) == NULL) return 2;
    device = ggml_backend_init_by_name("RAPT", NULL);
    ggml_backend_dev_t weights_device = ggml_backend_dev_by_name("RAPT_WEIGHTS");
    if (device == NULL || weights_device == NULL) {
        fprintf(stderr, "matmul: %s takes no products\n", argv[1]);
        return 2;
    }
    weights_type = ggml_backend_dev_buffer_type(weights_device);
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
    ggml_backend_free(device);
    ggml_backend_free(cpu);
    return bad != 0;
}
