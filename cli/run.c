/* SPDX-License-Identifier: Apache-2.0 */
/* rapt run: attention from .npy files to .npy files. */
#define _POSIX_C_SOURCE 200809L
#include "cli.h"
#include "convert.h"
#include "npy.h"
#include "output.h"
#include "rapt_pool.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char program[] = "rapt run";

static const char help[] =
    "usage: rapt run --q Q.npy --k K.npy --v V.npy --out O.npy [options]\n"
    "\n"
    "Scaled dot-product attention: O = softmax(scale * Q K^T + mask) V for each batch entry and head.\n"
    "\n"
    "  --q, --k, --v FILE    the inputs: float16 or float32, [S,D], [H,S,D] or [B,H,S,D]; K and V may have fewer heads\n"
    "  --out FILE            the output, of Q's dimensions and V's channels\n"
    "  --lse FILE            write the natural log-sum-exp of each row too: float32, [S], [H,S] or [B,H,S] in either layout\n"
    "  --layout bhsd|bshd    order of dimensions; bshd: [S,H,D] or [B,S,H,D] (default bhsd)\n"
    "  --causal[=ALIGNMENT]  query i sees the keys up to i + a. bottom-right (default): a = key length - queries;\n"
    "                        top-left: a = 0\n"
    "  --window L,R          query i sees keys i + a - L to i + a + R, both included; -1: unlimited\n"
    "  --scale X             factor of the scores (default 1/sqrt(D))\n"
    "  --kv-lens N,N,...     how many keys exist for each batch entry (default: all)\n"
    "  --q-type T            compute on Q as f32, f16 or bf16 (default: the type in its file)\n"
    "  --kv-type T           the same for K and V\n"
    "  --out-type T          type of the output (default: Q's, after --q-type); bf16 is written as float32 of the same values\n"
    "  --isa NAME            the kernel to use; see rapt info (default: $RAPT_ISA, or the best one that can run here)\n"
    "  --threads N           1 to 1024 (default 1); the output does not depend on it\n"
    "  --time                repeat 5 times or more, for half a second or more; print the median time and the rate\n"
    "  --help                print this\n";

enum { Q, K, V, OUT, LSE, LAYOUT, CAUSAL, WINDOW, SCALE, KV_LENS, Q_TYPE, KV_TYPE, OUT_TYPE, ISA, THREADS, TIME, HELP, OPTIONS };

static const cli_option options[OPTIONS] = {
    [Q] = {"q", CLI_VALUE},
    [K] = {"k", CLI_VALUE},
    [V] = {"v", CLI_VALUE},
    [OUT] = {"out", CLI_VALUE},
    [LSE] = {"lse", CLI_VALUE},
    [LAYOUT] = {"layout", CLI_VALUE},
    [CAUSAL] = {"causal", CLI_OPTIONAL_VALUE},
    [WINDOW] = {"window", CLI_VALUE},
    [SCALE] = {"scale", CLI_VALUE},
    [KV_LENS] = {"kv-lens", CLI_VALUE},
    [Q_TYPE] = {"q-type", CLI_VALUE},
    [KV_TYPE] = {"kv-type", CLI_VALUE},
    [OUT_TYPE] = {"out-type", CLI_VALUE},
    [ISA] = {"isa", CLI_VALUE},
    [THREADS] = {"threads", CLI_VALUE},
    [TIME] = {"time", CLI_FLAG},
    [HELP] = {"help", CLI_FLAG},
};

/* ---- Values of options ------------------------------------------------------------------------------------------------- */

/* A decimal integer in min..max that ends at the character end, which is skipped. */
static bool parse_integer(const char **text, char end, int64_t min, int64_t max, int64_t *value) {
    char *rest;
    const long long number = strtoll(*text, &rest, 10); /* beyond its range: its limits, which are beyond any min and max */
    const bool digit_first = (**text >= '0' && **text <= '9') || (**text == '-' && rest != *text);
    if (!digit_first || *rest != end || number < min || number > max) return false;
    *text = rest + (end != '\0');
    *value = number;
    return true;
}

static bool parse_scale(const char *text, float *scale) {
    char *rest;
    *scale = strtof(text, &rest);
    /* 0 cannot be asked for: in rapt_desc it stands for the default. */
    return *text > ' ' && rest != text && !*rest && isfinite(*scale) && *scale != 0;
}

/* The name's place in names, or -1. */
static int parse_name(const char *name, int count, const char *const *names) {
    while (count-- > 0 && strcmp(name, names[count])) {
    }
    return count;
}

static bool parse_type(const char *name, rapt_type *type) {
    static const char *const names[3] = {"f32", "f16", "bf16"};
    static const rapt_type types[3] = {RAPT_F32, RAPT_F16, RAPT_BF16};
    const int i = parse_name(name, 3, names);
    if (i >= 0) *type = types[i];
    return i >= 0;
}

/* ---- Inputs ------------------------------------------------------------------------------------------------------------ */

typedef struct tensor {
    const char *path;
    npy_array array;
    int64_t batch, heads, tokens, channels;
    int64_t channel_stride; /* in the file, as are layout's strides until tensor_load */
    rapt_layout layout;
    const void *data;
    void *copy;
} tensor;

/* Gives the dimensions their meaning; a missing one is of length 1. 0, or CLI_ERROR after cli_fail. */
static int tensor_open(tensor *t, const char *path, bool bshd) {
    char fault[NPY_FAULT_BYTES];
    t->path = path;
    if (!npy_open(&t->array, path, fault)) return cli_fail(program, "%s: %s", path, fault);
    const npy_array *a = &t->array;
    const int last = a->dims - 1, token = last - (bshd && a->dims > 2 ? 2 : 1), head = bshd ? last - 1 : last - 2;
    t->channels = a->shape[last];
    t->tokens = a->shape[token];
    t->heads = a->dims > 2 ? a->shape[head] : 1;
    t->batch = a->dims > 3 ? a->shape[0] : 1;
    t->channel_stride = a->stride[last];
    t->layout = (rapt_layout){a->type, a->dims > 3 ? a->stride[0] : 0, a->dims > 2 ? a->stride[head] : 0, a->stride[token]};
    if (t->channels < 1 || t->channels > RAPT_MAX_HEAD_DIM)
        return cli_fail(program, "%s: %" PRId64 " channels, 1 to %d are possible", path, t->channels, RAPT_MAX_HEAD_DIM);
    if (t->heads < 1 || t->heads > RAPT_MAX_LENGTH)
        return cli_fail(program, "%s: %" PRId64 " heads, 1 to %" PRId32 " are possible", path, t->heads, RAPT_MAX_LENGTH);
    if (t->tokens > RAPT_MAX_LENGTH || t->batch > RAPT_MAX_LENGTH)
        return cli_fail(program, "%s: a dimension is longer than %" PRId32, path, RAPT_MAX_LENGTH);
    return 0;
}

static void *buffer(int64_t elements, size_t size) { return calloc(elements ? (size_t)elements : 1, size); }

/* Makes data readable by the library as the type: in the file's mapping where it lies right, else by one copy. */
static int tensor_load(tensor *t, rapt_type type) {
    const size_t size = convert_size(type);
    t->data = t->array.data;
    if (type == t->layout.type && npy_native(&t->array) && (t->channels == 1 || t->channel_stride == (int64_t)size)) return 0;
    unsigned char *to = t->copy = buffer(t->batch * t->heads * t->tokens * t->channels, size);
    if (!to) return cli_fail(program, "%s: no memory to convert it", t->path);
    const rapt_layout in = t->layout;
    for (int64_t b = 0; b < t->batch; b++)
        for (int64_t h = 0; h < t->heads; h++)
            for (int64_t s = 0; s < t->tokens; s++)
                for (int64_t c = 0; c < t->channels; c++, to += size) {
                    const int64_t from = b * in.batch_stride + h * in.head_stride + s * in.token_stride + c * t->channel_stride;
                    const uint32_t bits = convert_from_float(type, npy_element(&t->array, from));
                    const uint16_t half = (uint16_t)bits;
                    if (size == 4) memcpy(to, &bits, 4);
                    else memcpy(to, &half, 2);
                }
    t->data = t->copy;
    t->layout = rapt_layout_bhsd(type, t->heads, t->tokens, t->channels);
    return 0;
}

static void tensor_close(tensor *t) {
    free(t->copy);
    npy_close(&t->array);
}

static int match(const tensor *a, int64_t of_a, const tensor *b, int64_t of_b, const char *what) {
    if (of_a == of_b) return 0;
    return cli_fail(program, "%s: %s %" PRId64 ", but %s has %" PRId64, a->path, what, of_a, b->path, of_b);
}

/* ---- The run ----------------------------------------------------------------------------------------------------------- */

typedef struct job {
    const char *value[OPTIONS];
    bool bshd;
    int64_t threads;
    tensor q, k, v;
    rapt_desc desc;
    rapt_plan plan;
    rapt_args args;
    int32_t *kv_lengths;
    void *o;
    float *lse;
    void *workspace;
    rapt_pool *pool;
    output out, lse_out;
} job;

/* Everything that the options say without the files. */
static int read_options(job *j, int argc, char **argv) {
    static const char *const layouts[2] = {"bhsd", "bshd"}, *const alignments[3] = {"", "bottom-right", "top-left"};
    const char *const *value = j->value;
    if (cli_parse(program, options, OPTIONS, argc, argv, j->value)) return CLI_ERROR;
    if (value[HELP]) return 0;
    for (int i = Q; i <= OUT; i++)
        if (!value[i]) return cli_fail(program, "--%s is missing", options[i].name);
    rapt_desc *d = &j->desc;
    rapt_desc_init(d);
    if (value[LAYOUT]) {
        const int layout = parse_name(value[LAYOUT], 2, layouts);
        if (layout < 0) return cli_fail(program, "--layout %s: bhsd or bshd is needed", value[LAYOUT]);
        j->bshd = layout == 1;
    }
    if (value[CAUSAL]) {
        const int alignment = parse_name(value[CAUSAL], 3, alignments);
        if (alignment < 0) return cli_fail(program, "--causal=%s: bottom-right or top-left is needed", value[CAUSAL]);
        d->causal = alignment == 2 ? RAPT_CAUSAL_TOP_LEFT : RAPT_CAUSAL_BOTTOM_RIGHT;
    }
    const char *text = value[WINDOW];
    if (text && !(parse_integer(&text, ',', -1, RAPT_MAX_LENGTH, &d->window_left) &&
                  parse_integer(&text, '\0', -1, RAPT_MAX_LENGTH, &d->window_right)))
        return cli_fail(program, "--window %s: two integers L,R from -1 to %" PRId32 " are needed", value[WINDOW],
                        RAPT_MAX_LENGTH);
    if (value[SCALE] && !parse_scale(value[SCALE], &d->scale))
        return cli_fail(program, "--scale %s: a finite number other than 0 is needed", value[SCALE]);
    for (int i = Q_TYPE; i <= OUT_TYPE; i++) {
        rapt_type *type = i == Q_TYPE ? &d->q.type : i == KV_TYPE ? &d->k.type : &d->o.type;
        if (value[i] && !parse_type(value[i], type))
            return cli_fail(program, "--%s %s: f32, f16 or bf16 is needed", options[i].name, value[i]);
    }
    j->threads = 1;
    text = value[THREADS];
    if (text && !parse_integer(&text, '\0', 1, 1024, &j->threads))
        return cli_fail(program, "--threads %s: an integer from 1 to 1024 is needed", value[THREADS]);
    d->threads = j->threads;
    d->isa = value[ISA];
    return cli_check_isa(program, value[ISA]);
}

static int read_kv_lengths(job *j) {
    const char *text = j->value[KV_LENS];
    const int64_t batch = j->desc.batch;
    if (batch == 0) return cli_fail(program, "--kv-lens %s: the batch is empty", text);
    j->kv_lengths = malloc((size_t)batch * sizeof *j->kv_lengths);
    if (!j->kv_lengths) return cli_fail(program, "--kv-lens: no memory");
    for (int64_t b = 0, length; b < batch; b++) {
        if (!parse_integer(&text, b + 1 < batch ? ',' : '\0', 0, j->desc.kv_len, &length))
            return cli_fail(program,
                            "--kv-lens %s: %" PRId64 " integer%s from 0 to %" PRId64 " are needed, one for each batch entry",
                            j->value[KV_LENS], batch, batch == 1 ? "" : "s", j->desc.kv_len);
        j->kv_lengths[b] = (int32_t)length;
    }
    return 0;
}

/* Opens the files and completes the description. */
static int read_inputs(job *j) {
    tensor *q = &j->q, *k = &j->k, *v = &j->v;
    rapt_desc *d = &j->desc;
    const rapt_type kv_type = d->k.type, q_type = d->q.type, o_type = d->o.type;
    if (tensor_open(q, j->value[Q], j->bshd) || tensor_open(k, j->value[K], j->bshd) || tensor_open(v, j->value[V], j->bshd))
        return CLI_ERROR;
    if (match(k, k->batch, q, q->batch, "batch") || match(v, v->batch, q, q->batch, "batch") ||
        match(k, k->channels, q, q->channels, "channels") || match(v, v->heads, k, k->heads, "heads") ||
        match(v, v->tokens, k, k->tokens, "tokens"))
        return CLI_ERROR;
    if (q->heads % k->heads)
        return cli_fail(program, "%s: heads %" PRId64 ", which do not divide the %" PRId64 " of %s", k->path, k->heads, q->heads,
                        q->path);
    d->batch = q->batch;
    d->heads = q->heads;
    d->kv_heads = k->heads;
    d->q_len = q->tokens;
    d->kv_len = k->tokens;
    d->d_k = q->channels;
    d->d_v = v->channels;
    if (j->value[KV_LENS] && read_kv_lengths(j)) return CLI_ERROR;
    if (tensor_load(q, q_type ? q_type : q->array.type) || tensor_load(k, kv_type ? kv_type : k->array.type) ||
        tensor_load(v, kv_type ? kv_type : v->array.type))
        return CLI_ERROR;
    d->q = q->layout;
    d->k = k->layout;
    d->v = v->layout;
    d->o = (j->bshd ? rapt_layout_bshd : rapt_layout_bhsd)(o_type ? o_type : d->q.type, d->heads, d->q_len, d->d_v);
    if (j->value[LSE]) d->lse = rapt_layout_bhsd(RAPT_F32, d->heads, d->q_len, 1);
    return 0;
}

static int locate(output *out, const char *path) {
    return output_locate(out, path) ? 0 : cli_fail(program, "%s: it cannot be written: %s", path, strerror(errno));
}

static int attend(job *j) {
    const rapt_status status = rapt_run_parallel(&j->plan, &j->args, j->threads, rapt_pool_for, j->pool);
    return status ? cli_fail(program, "%s", rapt_status_string(status)) : 0;
}

static int prepare_and_attend(job *j) {
    const rapt_desc *d = &j->desc;
    size_t bytes = 0;
    rapt_status status = rapt_plan_init(&j->plan, d);
    if (!status) status = rapt_workspace_size(&j->plan, j->threads, &bytes);
    if (status) return cli_fail(program, "%s", rapt_status_string(status));
    const int64_t rows = d->batch * d->heads * d->q_len;
    bytes += RAPT_WORKSPACE_ALIGNMENT - bytes % RAPT_WORKSPACE_ALIGNMENT;
    j->o = buffer(rows * d->d_v, convert_size(d->o.type));
    j->lse = j->value[LSE] ? buffer(rows, sizeof *j->lse) : NULL;
    j->workspace = aligned_alloc(RAPT_WORKSPACE_ALIGNMENT, bytes);
    j->pool = rapt_pool_create(j->threads);
    if (!j->o || (j->value[LSE] && !j->lse) || !j->workspace)
        return cli_fail(program, "no memory for the output and the workspace");
    if (!j->pool) return cli_fail(program, "--threads %" PRId64 ": so many could not be started", j->threads);
    rapt_args_init(&j->args);
    j->args.q = j->q.data;
    j->args.k = j->k.data;
    j->args.v = j->v.data;
    j->args.o = j->o;
    j->args.lse = j->lse;
    j->args.kv_lengths = j->kv_lengths;
    j->args.workspace = j->workspace;
    j->args.workspace_bytes = bytes;
    return attend(j);
}

/* ---- The time ---------------------------------------------------------------------------------------------------------- */

/* How many (query, key) pairs of a head are attended, over the batch. */
static double attended_pairs(const rapt_desc *d, const int32_t *kv_lengths) {
    const int64_t everything = 2 * (int64_t)RAPT_MAX_LENGTH;
    const int64_t left = d->window_left < 0 ? everything : d->window_left;
    const int64_t window = d->window_right < 0 ? everything : d->window_right, right = d->causal ? 0 : window;
    double pairs = 0;
    for (int64_t b = 0; b < d->batch; b++) {
        const int64_t keys = kv_lengths ? kv_lengths[b] : d->kv_len;
        const int64_t offset = d->causal == RAPT_CAUSAL_TOP_LEFT ? 0 : keys - d->q_len;
        for (int64_t i = 0; i < d->q_len; i++) {
            const int64_t first = i + offset - left > 0 ? i + offset - left : 0;
            const int64_t end = i + offset + right < keys ? i + offset + right + 1 : keys;
            if (first < end) pairs += (double)(end - first);
        }
    }
    return pairs;
}

static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int measure(job *j) {
    enum { AT_LEAST = 5, AT_MOST = 4096 };
    double seconds[AT_MOST], total = 0;
    int runs = 0;
    while (runs < AT_LEAST || (total < 0.5 && runs < AT_MOST)) {
        const double start = seconds_now();
        if (attend(j)) return CLI_ERROR;
        seconds[runs] = seconds_now() - start;
        total += seconds[runs++];
    }
    qsort(seconds, (size_t)runs, sizeof *seconds, ascending);
    const double median = (seconds[(runs - 1) / 2] + seconds[runs / 2]) / 2;
    const rapt_desc *d = &j->desc;
    const double flops = attended_pairs(d, j->kv_lengths) * (double)(d->heads * (2 * d->d_k + 2 * d->d_v));
    rapt_plan_info info = {.size = sizeof info};
    rapt_plan_query(&j->plan, &info);
    printf("time %.6g ms (median of %d runs), %.4g GFLOP/s, kernel %s, path %s, threads %" PRId64 "\n", 1e3 * median, runs,
           median > 0 ? 1e-9 * flops / median : 0, info.isa, info.path, j->threads);
    return 0;
}

/* ---- Outputs ----------------------------------------------------------------------------------------------------------- */

static int write_output(output *out, const char *path, rapt_type type, int dims, const int64_t *shape, const void *data) {
    if (output_open(out) && npy_write(out->file, type, dims, shape, data) && output_close(out)) return 0;
    return cli_fail(program, "%s: it cannot be written: %s", path, strerror(errno));
}

/* Both files are complete before either appears. */
static int write_outputs(job *j) {
    const rapt_desc *d = &j->desc;
    const int dims = j->q.array.dims;
    const int64_t bhs[3] = {d->batch, d->heads, d->q_len};
    int64_t shape[NPY_MAX_DIMS];
    memcpy(shape, j->q.array.shape, sizeof shape);
    shape[dims - 1] = d->d_v;
    if (write_output(&j->out, j->value[OUT], d->o.type, dims, shape, j->o)) return CLI_ERROR;
    if (j->lse && write_output(&j->lse_out, j->value[LSE], RAPT_F32, dims - 1, &bhs[NPY_MAX_DIMS - dims], j->lse))
        return CLI_ERROR;
    if (!output_publish(&j->out)) return cli_fail(program, "%s: it cannot be written: %s", j->value[OUT], strerror(errno));
    if (j->lse && !output_publish(&j->lse_out))
        return cli_fail(program, "%s: it cannot be written: %s", j->value[LSE], strerror(errno));
    return 0;
}

static int run(job *j, int argc, char **argv) {
    if (read_options(j, argc, argv)) return CLI_ERROR;
    if (j->value[HELP]) {
        fputs(help, stdout);
        return 0;
    }
    if (locate(&j->out, j->value[OUT]) || (j->value[LSE] && locate(&j->lse_out, j->value[LSE]))) return CLI_ERROR;
    if (j->value[LSE] && !strcmp(j->out.target, j->lse_out.target))
        return cli_fail(program, "%s: --out and --lse are the same file", j->value[LSE]);
    if (read_inputs(j) || prepare_and_attend(j)) return CLI_ERROR;
    if (j->value[TIME] && measure(j)) return CLI_ERROR;
    return write_outputs(j);
}

int cli_run(int argc, char **argv) {
    job j;
    memset(&j, 0, sizeof j);
    const int status = run(&j, argc, argv);
    rapt_pool_destroy(j.pool);
    output_discard(&j.out);
    output_discard(&j.lse_out);
    free(j.workspace);
    free(j.lse);
    free(j.o);
    free(j.kv_lengths);
    tensor_close(&j.q);
    tensor_close(&j.k);
    tensor_close(&j.v);
    return status;
}
