/* SPDX-License-Identifier: Apache-2.0 */
/* libggml-rapt.so: a device of ggml's, on host memory, that takes GGML_OP_FLASH_ATTN_EXT from the CPU backend, and, where it is
 * asked to, all operations of a model whose bits depend on the number of tokens, on threads or on the CPU (matmul.c, ops.c). An
 * unmodified host loads it by ggml_backend_load, or by the environment variable GGML_BACKEND_PATH. README.md says how it is built
 * and used.
 *
 * It calls ggml by the few functions of struct host only, and finds them in the library that has loaded it: so it needs no
 * symbol of a global scope, and serves hosts that load their own libraries locally, or that are one of several in a process. */
#define _GNU_SOURCE /* dladdr */
#include "ggml-rapt.h"

#include <dlfcn.h>
#include <math.h>
#include <time.h>

/* GGML_RAPT_HEADERS is the version of the headers, which say it nowhere themselves. */
#ifndef GGML_RAPT_HEADERS
#error "define GGML_RAPT_HEADERS as the version of ggml whose headers these are, as integrations/ggml/build does"
#endif

/* ---- The host ------------------------------------------------------------------------------------------------------------ */

struct host *hosts;

/* A version of ggml and the version of its interface for backends, which the host compares with that of the device. */
struct known_version {
    const char *version;
    int api;
};

/* That of the headers, then those whose structs, as far as they are used here, lie as known_layout says. ggml promises no
 * layout, and has changed it without another version of the interface: so each stands here once the tests have passed with
 * it. */
static const struct known_version known_versions[] = {
    {GGML_RAPT_HEADERS, GGML_BACKEND_API_VERSION}, {"0.25.3", 2}, {"0.26.0", 3}};

/* Whether the structs of these headers lie as those of the versions above. */
enum {
    known_layout = offsetof(struct ggml_tensor, ne) == 16 && offsetof(struct ggml_tensor, nb) == 48 &&
                   offsetof(struct ggml_tensor, op) == 80 && offsetof(struct ggml_tensor, op_params) == 84 &&
                   offsetof(struct ggml_tensor, flags) == 148 && offsetof(struct ggml_tensor, src) == 152 &&
                   offsetof(struct ggml_tensor, data) == 248 && offsetof(struct ggml_tensor, name) == 256 &&
                   sizeof(struct ggml_tensor) == 336 && offsetof(struct ggml_backend_i, graph_compute) == 96 &&
                   sizeof(struct ggml_backend_i) == 128 && sizeof(struct ggml_backend) == 152 &&
                   offsetof(struct ggml_backend_device_i, init_backend) == 40 &&
                   offsetof(struct ggml_backend_device_i, supports_op) == 72 && sizeof(struct ggml_backend_device_i) == 120 &&
                   sizeof(struct ggml_backend_device) == 136 && sizeof(struct ggml_backend_reg_i) == 32 &&
                   sizeof(struct ggml_backend_reg) == 48 && offsetof(struct ggml_backend_dev_props, caps) == 48 &&
                   sizeof(struct ggml_backend_dev_props) == 56 && sizeof(struct ggml_backend_buffer_i) == 88 &&
                   offsetof(struct ggml_backend_buffer, buft) == 88 && offsetof(struct ggml_tensor, buffer) == 8 &&
                   offsetof(struct ggml_tensor, view_src) == 232
};

/* What ggml's memory for a tensor has beside the struct. */
enum { object_bytes = 32 };

/* Finds a host's functions from an address within the library that has loaded this one. */
static int find_functions(struct host *host, const void *caller) {
    Dl_info info;
    void *library = dladdr(caller, &info) ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    if (library == NULL) library = dlopen(NULL, RTLD_LAZY); /* A program, by whatever name it was called. */
    const struct {
        const char *name;
        void *function;
    } wanted[] = {{"ggml_version", &host->version},
                  {"ggml_op_name", &host->op_name},
                  {"ggml_tensor_overhead", &host->tensor_overhead},
                  {"ggml_nbytes", &host->nbytes},
                  {"ggml_graph_n_nodes", &host->graph_n_nodes},
                  {"ggml_graph_node", &host->graph_node},
                  {"ggml_backend_cpu_buffer_type", &host->cpu_buffer_type},
                  {"ggml_backend_cpu_buffer_from_ptr", &host->cpu_buffer_from_ptr},
                  {"ggml_backend_buft_alloc_buffer", &host->buft_alloc_buffer},
                  {"ggml_backend_buft_is_host", &host->buft_is_host}};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *function = library == NULL ? NULL : dlsym(library, wanted[i].name);
        if (function == NULL) {
            say("not loaded: the host exports no %s (build ggml as shared libraries)", wanted[i].name);
            return 0;
        }
        memcpy(wanted[i].function, &function, sizeof function);
    }
    return 1;
}

/* Returns the version of the interface for backends that a host has, or 0, which is said, if this library was not built for it.
 */
static int api_version_of(const struct host *host) {
    const size_t n = known_layout ? sizeof known_versions / sizeof *known_versions : 1;
    char names[256] = "";
    for (size_t i = 0; i < n; i++) {
        if (strcmp(host->version(), known_versions[i].version) == 0) {
            /* Proofs from the host itself that a version number without a release has not misled. */
            if (strcmp(host->op_name(GGML_OP_FLASH_ATTN_EXT), "FLASH_ATTN_EXT") == 0 &&
                strcmp(host->op_name(GGML_OP_SOFT_MAX), "SOFT_MAX") == 0 &&
                host->tensor_overhead() == object_bytes + sizeof(struct ggml_tensor)) {
                return known_versions[i].api;
            }
            say("not loaded: this ggml says that it is %s, but its structs are others", host->version());
            return 0;
        }
        const size_t used = strlen(names);
        if (i == 0 || strcmp(known_versions[i].version, GGML_RAPT_HEADERS) != 0) {
            snprintf(names + used, sizeof names - used, "%s%s", i == 0 ? "" : ", ", known_versions[i].version);
        }
    }
    say("not loaded: this ggml is version %s, and the library was built for %s", host->version(), names);
    return 0;
}

/* ---- Statistics ---------------------------------------------------------------------------------------------------------- */

rapt_arith arith = RAPT_EXACT;

/* Whether GGML_RAPT_MATMUL asks for the operations of matmul.c and ops.c, too. */
static bool takes_graph;

/* No name, or an empty one, asks for the default. */
static bool arith_of_name(const char *name, rapt_arith *to) {
    const bool given = name != NULL && *name != '\0';
    *to = given && strcmp(name, "bf16") == 0 ? RAPT_BF16_DOT : given && strcmp(name, "int8") == 0 ? RAPT_INT8_DOT : RAPT_EXACT;
    return !given || *to != RAPT_EXACT || strcmp(name, "exact") == 0;
}

static bool of_integers(enum ggml_type type) {
    return type == GGML_TYPE_Q8_0 || type == GGML_TYPE_Q4_0 || type == GGML_TYPE_Q5_0;
}

/* Whether GGML_RAPT_STATS asks for statistics, which the process then prints when it ends. */
static int wants_stats;

/* Operations of a kind. */
struct tally {
    atomic_long taken, declined, nanoseconds;
    char why_declined[256]; /* The last one. A line mixed of two does no harm. */
};

/* Attention, products with weights, and all others. */
static struct tally attentions, products, others;
static atomic_long most_threads;

static struct tally *tally_of(const struct ggml_tensor *op) {
    return op->op == GGML_OP_FLASH_ATTN_EXT ? &attentions : is_product(op) ? &products : &others;
}

/* Whether a host has asked about a softmax of scores, which it computes where flash attention is off. */
static atomic_int unfused_seen;

static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000 + t.tv_nsec;
}

static void print_tally(const char *what, const struct tally *tally, const char *isa) {
    say("%ld %s in %.3f s, %ld threads, %s; declined %ld times%s%s", tally->taken, what, (double)tally->nanoseconds * 1e-9,
        most_threads, isa, tally->declined, *tally->why_declined ? ", at last: " : "", tally->why_declined);
}

/* Without statistics, speaks only of a device that got nothing to do from a host that has attention: nobody would know. */
__attribute__((destructor)) static void print_stats(void) {
    if (wants_stats) {
        const char *isa = NULL;
        rapt_isa_current(&isa);
        print_tally("attentions", &attentions, isa);
        if (takes_graph) {
            print_tally("matrix products", &products, isa);
            print_tally("other operations", &others, isa);
        }
    }
    if (attentions.taken > 0) return;
    if (unfused_seen) {
        say("no attention was taken, for flash attention is off: it needs -fa on (auto turns it off), in llama-cpp-python "
            "flash_attn=True");
    } else if (attentions.declined > 0 && !wants_stats) {
        say("no attention was taken; declined %ld times, at last: %s", attentions.declined, attentions.why_declined);
    }
}

/* ---- Attention ----------------------------------------------------------------------------------------------------------- */

/* Attention as ggml describes it, and how rapt does it: in calls of slice_heads query heads and slice_entries batch entries, in
 * which a mask that is repeated along either looks like one that is not. Nearly always there is one such call. */
struct attention {
    const struct ggml_tensor *q, *k, *v, *mask, *sinks, *op;
    float max_bias;
    int64_t slice_heads, slice_entries;
    rapt_desc desc; /* Of a slice. */
};

rapt_type type_of(enum ggml_type type) {
    switch (type) {
    case GGML_TYPE_F32:
        return RAPT_F32;
    case GGML_TYPE_F16:
        return RAPT_F16;
    case GGML_TYPE_BF16:
        return RAPT_BF16;
    case GGML_TYPE_Q8_0:
        return RAPT_Q8_0;
    case GGML_TYPE_Q4_0:
        return RAPT_Q4_0;
    case GGML_TYPE_Q4_1:
        return RAPT_Q4_1;
    case GGML_TYPE_Q5_0:
        return RAPT_Q5_0;
    case GGML_TYPE_Q5_1:
        return RAPT_Q5_1;
    case GGML_TYPE_MXFP4:
        return RAPT_MXFP4;
    case GGML_TYPE_Q4_K:
        return RAPT_Q4_K;
    case GGML_TYPE_Q6_K:
        return RAPT_Q6_K;
    default:
        return RAPT_NONE;
    }
}

/* The layout of a tensor [entry][head][token][channel] of ggml's, whose dimensions count from the innermost. */
static rapt_layout layout_of(const struct ggml_tensor *t) {
    return (rapt_layout){type_of(t->type), (int64_t)t->nb[3], (int64_t)t->nb[2], (int64_t)t->nb[1]};
}

int is_dense_inside(const struct ggml_tensor *t) {
    static const int groups[] = {1, 32, 256}; /* Channels that are stored together. */
    int64_t bytes = -1;
    for (int i = 0; i < 3 && bytes < 0; i++) bytes = rapt_row_bytes(type_of(t->type), groups[i]);
    return t->ne[0] <= 1 || (int64_t)t->nb[0] == bytes;
}

static int64_t common_divisor(int64_t a, int64_t b) {
    while (b != 0) {
        const int64_t rest = a % b;
        a = b, b = rest;
    }
    return a;
}

/* Whether a tensor has elements of a type that rapt has, not blocks. */
static int is_of_elements(const struct ggml_tensor *t) { return rapt_type_class_of(type_of(t->type)) == RAPT_CLASS_ELEMENT; }

/* Returns whether an op contradicts itself, and writes to why what is wrong: what ggml_flash_attn_ext lets pass, or a graph that
 * came from elsewhere has, and for which ggml's own kernel, which does not look, would read behind a tensor's end. */
static int is_malformed(const struct ggml_tensor *op, char *why, size_t bytes) {
    const struct ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *mask = op->src[3], *sinks = op->src[4];
    const int64_t heads = q->ne[2];
#define MALFORMED(...) return snprintf(why, bytes, __VA_ARGS__), 1
    if (!is_of_elements(q)) MALFORMED("Q is of ggml's type %d, which is no float", q->type);
    if (k->ne[0] != q->ne[0]) MALFORMED("K has %" PRId64 " channels, and Q %" PRId64, k->ne[0], q->ne[0]);
    if (v->ne[1] < k->ne[1]) MALFORMED("V has %" PRId64 " tokens, and K %" PRId64, v->ne[1], k->ne[1]);
    if (k->ne[2] < 1 || heads % k->ne[2] != 0) MALFORMED("K has %" PRId64 " heads, and Q %" PRId64, k->ne[2], heads);
    if (v->ne[2] < 1 || heads % v->ne[2] != 0) MALFORMED("V has %" PRId64 " heads, and Q %" PRId64, v->ne[2], heads);
    if (op->ne[0] != v->ne[0] || op->ne[1] != heads || op->ne[2] != q->ne[1] || op->ne[3] != q->ne[3] ||
        op->type != GGML_TYPE_F32) {
        MALFORMED("the result is not f32 of the shape of Q and V");
    }
    if (mask != NULL) {
        if (!is_of_elements(mask)) MALFORMED("the mask is of ggml's type %d, which is no float", mask->type);
        if (mask->ne[0] < k->ne[1])
            MALFORMED("the mask has %" PRId64 " columns, and K %" PRId64 " tokens", mask->ne[0], k->ne[1]);
        if (mask->ne[1] < q->ne[1]) MALFORMED("the mask has %" PRId64 " rows, and Q %" PRId64 " tokens", mask->ne[1], q->ne[1]);
        if (mask->ne[2] < 1 || mask->ne[3] < 1) MALFORMED("the mask is empty");
        if (!is_dense_inside(mask)) MALFORMED("the mask's columns are not contiguous");
    }
    if (sinks != NULL && (sinks->type != GGML_TYPE_F32 || sinks->ne[0] != heads)) {
        MALFORMED("the sinks are not %" PRId64 " of f32, one for each head", heads);
    }
#undef MALFORMED
    return 0;
}

/* Describes the attention that an op wants, which is not malformed. Returns null, or why rapt does not do it and ggml's own
 * kernel shall: what rapt_desc has no words for, while all that rapt_plan_init refuses is left to it. */
static const char *describe(struct attention *a, const struct ggml_tensor *op) {
    const struct ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *mask = op->src[3], *sinks = op->src[4];
    float scale, softcap;
    memcpy(&scale, op->op_params, sizeof scale);
    memcpy(&a->max_bias, op->op_params + 1, sizeof a->max_bias);
    memcpy(&softcap, op->op_params + 2, sizeof softcap);
    for (int i = 5; i < GGML_MAX_SRC; i++) {
        if (op->src[i] != NULL) return "it has a source that is not known here";
    }
    /* Number 3 is the precision, which is always f32's here, number 4 a bound on the keys that a mask leaves, which is a hint. */
    for (size_t i = 5; i < sizeof op->op_params / sizeof *op->op_params; i++) {
        if (op->op_params[i] != 0) return "it has a parameter that is not known here";
    }
    if (type_of(k->type) == RAPT_NONE || type_of(v->type) == RAPT_NONE) return "a type of K or V that ggml alone has";
    if (!is_dense_inside(q) || !is_dense_inside(k) || !is_dense_inside(v)) return "channels that are not contiguous";
    if (q->ne[3] != k->ne[3] || q->ne[3] != v->ne[3]) return "K or V of other entries than Q";
    if (isnan(scale)) return "a scale that is no number";
    if (mask != NULL && (q->ne[2] % mask->ne[2] != 0 || q->ne[3] % mask->ne[3] != 0)) {
        return "a mask whose heads or entries do not divide Q's";
    }
    if (mask == NULL && a->max_bias > 0) return "ALiBi without a mask";

    /* A slice is as many heads as the mask has, unless the groups that share a key/value head straddle it. */
    const int64_t group = common_divisor(q->ne[2] / k->ne[2], q->ne[2] / v->ne[2]);
    const int mask_heads = mask != NULL && mask->ne[2] > 1, mask_entries = mask != NULL && mask->ne[3] > 1;
    const int64_t period = mask_heads ? mask->ne[2] : q->ne[2];
    a->slice_heads = k->ne[2] == v->ne[2] && period % group == 0 ? period : common_divisor(period, group);
    a->slice_entries = mask_entries ? mask->ne[3] : q->ne[3];
    a->q = q, a->k = k, a->v = v, a->mask = mask, a->sinks = sinks, a->op = op;

    rapt_desc *desc = &a->desc;
    rapt_desc_init(desc);
    desc->batch = a->slice_entries, desc->heads = a->slice_heads;
    desc->kv_heads = a->slice_heads > group ? a->slice_heads / group : 1;
    desc->q_len = q->ne[1], desc->kv_len = k->ne[1], desc->d_k = q->ne[0], desc->d_v = v->ne[0];
    desc->q = layout_of(q), desc->k = layout_of(k), desc->v = layout_of(v);
    desc->o = (rapt_layout){RAPT_F32, (int64_t)op->nb[3], (int64_t)op->nb[1], (int64_t)op->nb[2]};
    desc->scale = scale, desc->softcap = softcap, desc->arith = arith;
    if (arith == RAPT_INT8_DOT && !(of_integers(k->type) && of_integers(v->type))) desc->arith = RAPT_EXACT;
    if (mask != NULL) {
        desc->bias = (rapt_layout){type_of(mask->type), mask_entries ? (int64_t)mask->nb[3] : 0,
                                   mask_heads ? (int64_t)mask->nb[2] : 0, (int64_t)mask->nb[1]};
        desc->bias_keys = mask->ne[0];
    }
    if (a->max_bias > 0) {
        desc->alibi = RAPT_ALIBI_BIAS;
        desc->slopes = (rapt_layout){RAPT_F32, 0, sizeof(float), 0};
    }
    if (sinks != NULL) desc->sinks = (rapt_layout){RAPT_F32, 0, (int64_t)sinks->nb[0], 0};
    return NULL;
}

/* Writes the slope of each head (Press et al. 2022, ALiBi, section 3), as ggml has them for max_bias: of n heads, the largest
 * power of two takes every step of a geometric sequence, and what is left every second step of a finer one. */
static void write_slopes(float *slopes, int64_t heads, float max_bias) {
    int64_t power = 1;
    while (power * 2 <= heads) power *= 2;
    const float coarse = powf(2.0f, -max_bias / (float)power), fine = powf(2.0f, -max_bias / 2.0f / (float)power);
    for (int64_t h = 0; h < heads; h++) {
        slopes[h] = h < power ? powf(coarse, (float)(h + 1)) : powf(fine, (float)(2 * (h - power) + 1));
    }
}

/* ---- The backend --------------------------------------------------------------------------------------------------------- */

void *scratch_of(struct context *context, size_t bytes) {
    bytes = aligned(bytes > 0 ? bytes : 1);
    if (bytes > context->scratch_bytes) {
        free(context->scratch);
        context->scratch = aligned_alloc(RAPT_WORKSPACE_ALIGNMENT, bytes);
        context->scratch_bytes = context->scratch == NULL ? 0 : bytes;
    }
    return context->scratch;
}

void parallel_for(void *pool, int64_t n, rapt_body body, void *body_arg) {
    const int threads = ((const struct context *)pool)->threads;
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int64_t i = 0; i < n; i++) body(body_arg, i);
}

enum ggml_status failed(const char *what, const char *why) {
    say("%s: %s", what, why);
    return GGML_STATUS_FAILED;
}

static enum ggml_status attend(struct context *context, const struct ggml_tensor *op) {
    struct attention a;
    rapt_plan plan;
    size_t workspace_bytes = 0;
    char why[256] = "";
    if (is_malformed(op, why, sizeof why)) {
        return failed(*op->name != '\0' ? op->name : "an attention", why);
    }
    const char *refused = describe(&a, op);
    a.desc.threads = context->threads;
    if (refused != NULL || rapt_plan_init(&plan, &a.desc) != RAPT_OK ||
        rapt_workspace_size(&plan, context->threads, &workspace_bytes) != RAPT_OK) {
        if (refused == NULL) rapt_plan_explain(&a.desc, why, sizeof why);
        return failed("an attention that was not asked about before", refused != NULL ? refused : why);
    }
    const int64_t heads = a.q->ne[2], entries = a.q->ne[3];
    const size_t slopes_bytes = aligned((size_t)heads * sizeof(float));
    float *slopes = scratch_of(context, slopes_bytes + workspace_bytes);
    if (slopes == NULL) return GGML_STATUS_ALLOC_FAILED;
    if (a.max_bias > 0) write_slopes(slopes, heads, a.max_bias);

    rapt_args args;
    rapt_args_init(&args);
    args.workspace = (char *)slopes + slopes_bytes, args.workspace_bytes = workspace_bytes;
    const int64_t k_group = heads / a.k->ne[2], v_group = heads / a.v->ne[2];
    for (int64_t b = 0; b < entries; b += a.slice_entries) {
        for (int64_t h = 0; h < heads; h += a.slice_heads) {
            args.q = (const char *)a.q->data + b * (int64_t)a.q->nb[3] + h * (int64_t)a.q->nb[2];
            args.k = (const char *)a.k->data + b * (int64_t)a.k->nb[3] + h / k_group * (int64_t)a.k->nb[2];
            args.v = (const char *)a.v->data + b * (int64_t)a.v->nb[3] + h / v_group * (int64_t)a.v->nb[2];
            args.o = (char *)op->data + b * (int64_t)op->nb[3] + h * (int64_t)op->nb[1];
            /* Slices begin where the mask's entries do, but may be fewer heads than it has. */
            if (a.mask != NULL) args.bias = (const char *)a.mask->data + h % a.mask->ne[2] * (int64_t)a.mask->nb[2];
            if (a.sinks != NULL) args.sinks = (const char *)a.sinks->data + h * (int64_t)a.sinks->nb[0];
            if (a.max_bias > 0) args.slopes = slopes + h;
            const rapt_status status = context->threads == 1
                                           ? rapt_run(&plan, &args)
                                           : rapt_run_parallel(&plan, &args, context->threads, parallel_for, context);
            if (status != RAPT_OK) {
                rapt_args_explain(&plan, &args, context->threads, why, sizeof why);
                return failed(op->name, why);
            }
        }
    }
    return GGML_STATUS_SUCCESS;
}

/* Whether an op is one that only looks at tensors, and has nothing to compute. */
static int is_view(enum ggml_op op) {
    return op == GGML_OP_NONE || op == GGML_OP_RESHAPE || op == GGML_OP_VIEW || op == GGML_OP_PERMUTE || op == GGML_OP_TRANSPOSE;
}

/* Whether ggml wants an op's result: that of an empty one, or of a branch that was not selected, it does not. */
static int is_wanted(const struct ggml_tensor *op) {
    const int is_empty = op->ne[0] == 0 || op->ne[1] == 0 || op->ne[2] == 0 || op->ne[3] == 0;
    return !is_view(op->op) && !is_empty && (op->flags & GGML_TENSOR_FLAG_COMPUTE) != 0;
}

static enum ggml_status graph_compute(ggml_backend_t backend, struct ggml_cgraph *graph) {
    struct context *context = backend->context;
    const struct host *host = backend->device->context;
    const int nodes = host->graph_n_nodes(graph);
    for (int i = 0; i < nodes; i++) {
        const struct ggml_tensor *op = host->graph_node(graph, i);
        if (!is_wanted(op)) continue;
        const int is_attention = op->op == GGML_OP_FLASH_ATTN_EXT;
        struct tally *tally = tally_of(op);
        const long start = wants_stats ? now() : 0;
        const enum ggml_status status = is_attention     ? attend(context, op)
                                        : is_product(op) ? multiply(host, context, op)
                                                         : compute_op(context, op);
        if (status != GGML_STATUS_SUCCESS) return status;
        tally->taken++;
        if (wants_stats) {
            tally->nanoseconds += now() - start;
            if (context->threads > most_threads) most_threads = context->threads;
        }
    }
    return GGML_STATUS_SUCCESS;
}

static const char *name_of_backend(ggml_backend_t backend) {
    (void)backend;
    return "RAPT";
}

static void free_backend(ggml_backend_t backend) {
    struct context *context = backend->context;
    free(context->scratch);
    free(context);
    free(backend);
}

/* What hosts find by the name ggml_backend_set_n_threads. */
static void set_threads(ggml_backend_t backend, int threads) { ((struct context *)backend->context)->threads = threads; }

/* ---- The device ---------------------------------------------------------------------------------------------------------- */

static const char *name_of_device(ggml_backend_dev_t device) {
    (void)device;
    return "RAPT";
}

static const char *description_of_device(ggml_backend_dev_t device) {
    (void)device;
    return takes_graph ? "rapt: attention and linear layers with the same bits everywhere"
                       : "rapt: attention with the same bits everywhere";
}

/* The memory is the CPU device's, which reports it. */
static void memory_of_device(ggml_backend_dev_t device, size_t *left, size_t *total) {
    (void)device;
    *left = *total = 0;
}

static enum ggml_backend_dev_type type_of_device(ggml_backend_dev_t device) {
    (void)device;
    return GGML_BACKEND_DEVICE_TYPE_ACCEL;
}

static void props_of_device(ggml_backend_dev_t device, struct ggml_backend_dev_props *props) {
    memset(props, 0, sizeof *props);
    props->name = name_of_device(device);
    props->description = description_of_device(device);
    props->type = type_of_device(device);
}

static ggml_backend_t init_backend(ggml_backend_dev_t device, const char *params) {
    (void)params;
    static ggml_guid guid = {0x72, 0x61, 0x70, 0x74, 0x8f, 0x1d, 0x4e, 0x53, 0xa6, 0x0b, 0x2c, 0x97, 0x5e, 0xd0, 0x31, 0xb8};
    ggml_backend_t backend = calloc(1, sizeof *backend);
    struct context *context = calloc(1, sizeof *context);
    if (backend == NULL || context == NULL) {
        free(backend);
        free(context);
        return NULL;
    }
    context->threads = 1; /* Until the host sets them, as ggml's own do by default. */
    backend->guid = &guid;
    backend->iface.get_name = name_of_backend;
    backend->iface.free = free_backend;
    backend->iface.graph_compute = graph_compute;
    backend->device = device;
    backend->context = context;
    return backend;
}

static ggml_backend_buffer_type_t buffer_type_of_device(ggml_backend_dev_t device) {
    return ((const struct host *)device->context)->cpu_buffer_type();
}

/* Whether an op is the softmax of attention that is not fused: it has a mask or heads, which that of a mixture of experts has
 * not. */
static int is_unfused(const struct ggml_tensor *op) {
    return op->op == GGML_OP_SOFT_MAX && (op->src[1] != NULL || op->ne[2] > 1);
}

/* Returns why an attention is not taken, or null. A malformed one is taken, to be refused when it is to be computed: as one that
 * is not served, ggml's own kernel got it. */
static const char *decline_attention(const struct ggml_tensor *op, char *why, size_t bytes) {
    struct attention a;
    rapt_plan plan;
    if (is_malformed(op, why, bytes)) return NULL;
    const char *refused = describe(&a, op);
    if (refused != NULL) return refused;
    if (rapt_plan_init(&plan, &a.desc) == RAPT_OK) return NULL;
    rapt_plan_explain(&a.desc, why, bytes);
    return why;
}

/* An empty reason is that of an operation whose bits are the same everywhere in ggml's kernels. */
static bool supports_op(ggml_backend_dev_t device, const struct ggml_tensor *op) {
    char text[256];
    if (is_unfused(op)) unfused_seen = 1;
    if (is_view(op->op)) return true;
    const int is_attention = op->op == GGML_OP_FLASH_ATTN_EXT;
    if (!is_attention && !takes_graph) return false;
    const char *why = is_attention     ? decline_attention(op, text, sizeof text)
                      : is_product(op) ? decline_product(device->context, op, text, sizeof text)
                                       : decline_op(op);
    if (why == NULL) return true;
    if (*why != '\0') {
        struct tally *tally = tally_of(op);
        tally->declined++;
        snprintf(tally->why_declined, sizeof tally->why_declined, "%s", why);
    }
    return false;
}

static bool supports_buffer_type(ggml_backend_dev_t device, ggml_backend_buffer_type_t type) {
    const struct host *host = device->context;
    return host->buft_is_host(type) || (takes_graph && is_weights_type(host, type));
}

/* ---- The registry's entry ------------------------------------------------------------------------------------------------ */

/* Whether GGML_RAPT=0 has switched the device off: then there is none. */
static int is_off;

static const char *name_of_registry(ggml_backend_reg_t reg) {
    (void)reg;
    return "RAPT";
}

static size_t count_devices(ggml_backend_reg_t reg) {
    (void)reg;
    return is_off ? 0 : takes_graph ? 2 : 1;
}

static ggml_backend_dev_t device_at(ggml_backend_reg_t reg, size_t index) {
    struct host *host = reg->context;
    return index == 0 ? &host->device : &host->weights_device;
}

static void *function_of_name(ggml_backend_reg_t reg, const char *name) {
    (void)reg;
    if (strcmp(name, "ggml_backend_set_n_threads") != 0) return NULL;
    void (*function)(ggml_backend_t, int) = set_threads;
    void *address;
    memcpy(&address, &function, sizeof address);
    return address;
}

/* Whether a variable of the environment is neither empty nor 0. */
static bool is_set(const char *name) {
    const char *value = getenv(name);
    return value != NULL && *value != '\0' && strcmp(value, "0") != 0;
}

/* Returns the host that has these functions, which is made if it is new, or null if there is no memory for it. */
static struct host *host_with(const struct host *functions, int api_version) {
    for (struct host *host = hosts; host != NULL; host = host->next) {
        if (host->version == functions->version) return host;
    }
    struct host *host = malloc(sizeof *host);
    if (host == NULL) return NULL;
    *host = *functions;
    host->reg = (struct ggml_backend_reg){.api_version = api_version,
                                          .iface = {.get_name = name_of_registry,
                                                    .get_device_count = count_devices,
                                                    .get_device = device_at,
                                                    .get_proc_address = function_of_name},
                                          .context = host};
    host->device = (struct ggml_backend_device){.iface = {.get_name = name_of_device,
                                                          .get_description = description_of_device,
                                                          .get_memory = memory_of_device,
                                                          .get_type = type_of_device,
                                                          .get_props = props_of_device,
                                                          .init_backend = init_backend,
                                                          .get_buffer_type = buffer_type_of_device,
                                                          .supports_op = supports_op,
                                                          .supports_buft = supports_buffer_type},
                                                .reg = &host->reg,
                                                .context = host};
    init_weights(host, api_version);
    host->next = hosts;
    hosts = host;
    return host;
}

/* What ggml calls when it has loaded this library: returns the registry's entry, or null where this host cannot be served. */
__attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init(void) {
    const char *off = getenv("GGML_RAPT"), *of_arith = getenv("GGML_RAPT_ARITH"), *isa;
    struct host functions = {0};
    const int api_version = find_functions(&functions, __builtin_return_address(0)) ? api_version_of(&functions) : 0;
    if (api_version == 0) return NULL;
    const rapt_status status = rapt_isa_current(&isa);
    if (status != RAPT_OK) {
        say("not loaded: RAPT_ISA=%s: %s", getenv("RAPT_ISA"), rapt_status_string(status));
        return NULL;
    }
    if (!arith_of_name(of_arith, &arith)) {
        say("not loaded: GGML_RAPT_ARITH=%s: exact, bf16 or int8 is needed", of_arith);
        return NULL;
    }
    is_off = off != NULL && strcmp(off, "0") == 0;
    wants_stats = is_set("GGML_RAPT_STATS"), takes_graph = is_set("GGML_RAPT_MATMUL");
    struct host *host = host_with(&functions, api_version);
    return host == NULL ? NULL : &host->reg;
}
