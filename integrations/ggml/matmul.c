/* SPDX-License-Identifier: Apache-2.0 */
/* Products of tokens with a matrix of weights, GGML_OP_MUL_MAT, or with those of the experts that each token has chosen,
 * GGML_OP_MUL_MAT_ID, by rapt's linear layers; and the memory that weights lie in.
 *
 * In exact arithmetic weights are read as they are, from whatever memory the CPU can read: a mapped file stays mapped. Still they
 * have a type of buffers of their own, since llama.cpp would give them to ggml's CPU_REPACK, which lays them out for itself. In
 * integer arithmetic those that are blocks of integers are packed when they are loaded, and kept in that form alone. */
#include "ggml-rapt.h"

#include <sys/mman.h>

/* A product as rapt does it: in calls for each matrix of weights, of which there is nearly always one. */
struct product {
    const struct ggml_tensor *weights, *x, *op;
    rapt_linear_desc desc; /* Of a call. */
    int64_t shared;        /* Matrices of tokens that share a matrix of weights: the entries of a call. */
    bool packed;
};

/* Returns the layer that multiplies tokens with matrices of weights, without the tokens: all that packing depends on. */
static rapt_linear_desc layer_of(const struct ggml_tensor *weights) {
    rapt_linear_desc desc;
    rapt_linear_desc_init(&desc);
    desc.in = weights->ne[0], desc.out = weights->ne[1];
    desc.weight = (rapt_layout){.type = type_of(weights->type), .token_stride = (int64_t)weights->nb[1]};
    desc.x = (rapt_layout){.type = RAPT_F32, .token_stride = desc.in * (int64_t)sizeof(float)};
    desc.y = (rapt_layout){.type = RAPT_F32, .token_stride = desc.out * (int64_t)sizeof(float)};
    desc.arith = arith;
    return desc;
}

/* Whether weights are packed where they lie in the second device's buffers. If so, sets the plan and the bytes of a matrix. */
static bool packs(const struct ggml_tensor *weights, rapt_linear_plan *plan, size_t *bytes) {
    if (arith != RAPT_INT8_DOT || weights->view_src != NULL || !is_dense_inside(weights)) return false;
    const rapt_linear_desc desc = layer_of(weights);
    if (rapt_linear_plan_init(plan, &desc) != RAPT_OK || rapt_linear_prepacked_size(plan, bytes) != RAPT_OK) return false;
    *bytes = aligned(*bytes);
    return true;
}

static int64_t matrices_of(const struct ggml_tensor *weights) { return weights->ne[2] * weights->ne[3]; }

/* ---- The second device's buffers ------------------------------------------------------------------------------------------ */

static const char *name_of_type(ggml_backend_buffer_type_t type) {
    (void)type;
    return "RAPT";
}

/* Whether the CPU backend can read what lies in the buffers: where nothing is ever packed. */
static bool is_host(ggml_backend_buffer_type_t type) {
    (void)type;
    return arith != RAPT_INT8_DOT;
}

static size_t alignment_of_type(ggml_backend_buffer_type_t type) {
    (void)type;
    return RAPT_WORKSPACE_ALIGNMENT;
}

static const struct host *host_of_type(ggml_backend_buffer_type_t type) {
    const struct host *host = hosts;
    while (host != NULL && !is_weights_type(host, type)) host = host->next;
    return host;
}

static size_t bytes_of_tensor(ggml_backend_buffer_type_t type, const struct ggml_tensor *weights) {
    rapt_linear_plan plan;
    size_t bytes;
    const size_t plain = host_of_type(type)->nbytes(weights);
    if (!packs(weights, &plan, &bytes)) return plain;
    bytes *= (size_t)matrices_of(weights);
    return bytes > plain ? bytes : plain;
}

/* Nothing of ggml's interface can fail here, and going on would compute with other weights. */
_Noreturn static void give_up(const struct ggml_tensor *weights, const char *why) {
    say("%s: %s", weights->name, why);
    abort();
}

static void set_tensor(ggml_backend_buffer_t buffer, struct ggml_tensor *weights, const void *data, size_t offset, size_t bytes) {
    const struct host *host = host_of_type(buffer->buft);
    rapt_linear_plan plan;
    size_t packed_bytes;
    if (!packs(weights, &plan, &packed_bytes)) {
        if (weights->view_src != NULL && packs(weights->view_src, &plan, &packed_bytes))
            give_up(weights, "a part of packed weights cannot be written");
        memcpy((char *)weights->data + offset, data, bytes);
        return;
    }
    if (offset != 0 || bytes != host->nbytes(weights)) give_up(weights, "weights that are packed must be written as a whole");
    rapt_linear_prepack_args args;
    rapt_linear_prepack_args_init(&args);
    args.prepacked_bytes = packed_bytes;
    const int64_t n = matrices_of(weights), matrix = weights->ne[1] * (int64_t)weights->nb[1];
    for (int64_t i = 0; i < n; i++) {
        args.weight = (const char *)data + i * matrix;
        args.prepacked = (char *)weights->data + (size_t)i * packed_bytes;
        char why[256];
        if (rapt_linear_prepack_run(&plan, &args) == RAPT_OK) continue;
        rapt_linear_prepack_args_explain(&plan, &args, 1, why, sizeof why);
        give_up(weights, why);
    }
}

static void get_tensor(ggml_backend_buffer_t buffer, const struct ggml_tensor *weights, void *data, size_t offset, size_t bytes) {
    (void)buffer;
    rapt_linear_plan plan;
    size_t packed_bytes;
    const struct ggml_tensor *whole = weights->view_src != NULL ? weights->view_src : weights;
    if (packs(whole, &plan, &packed_bytes)) {
        give_up(weights, "the weights are packed, and cannot be read back (GGML_RAPT_ARITH=exact packs none)");
    }
    memcpy(data, (const char *)weights->data + offset, bytes);
}

/* Asks the system for huge pages, 2 MiB on x86-64 and most of AArch64, with which one token of packed weights is 1.00 to 1.10
 * times as fast (AMD Zen 3, docs/experiments/linear.md). Where it refuses, nothing is lost. */
static void advise_huge_pages(void *memory, size_t bytes) {
#ifdef MADV_HUGEPAGE
    const uintptr_t page = (uintptr_t)2 << 20, first = ((uintptr_t)memory + page - 1) / page * page,
                    end = ((uintptr_t)memory + bytes) / page * page;
    if (first < end) (void)madvise((void *)first, end - first, MADV_HUGEPAGE);
#else
    (void)memory, (void)bytes;
#endif
}

/* Memory of the CPU's, in which weights that are packed are packed as they are written. */
static ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t bytes) {
    const struct host *host = host_of_type(type);
    ggml_backend_buffer_t buffer = host->buft_alloc_buffer(host->cpu_buffer_type(), bytes);
    if (buffer == NULL) return NULL;
    buffer->buft = type;
    if (is_host(type)) return buffer;
    advise_huge_pages(buffer->iface.get_base(buffer), bytes);
    buffer->iface.memset_tensor = NULL;
    buffer->iface.set_tensor = set_tensor;
    buffer->iface.get_tensor = get_tensor;
    buffer->iface.set_tensor_2d = NULL;
    buffer->iface.get_tensor_2d = NULL;
    buffer->iface.cpy_tensor = NULL;
    return buffer;
}

/* A mapped file, where nothing is packed. */
static ggml_backend_buffer_t buffer_from_host_ptr(ggml_backend_dev_t device, void *memory, size_t bytes, size_t largest) {
    (void)largest;
    struct host *host = device->context;
    ggml_backend_buffer_t buffer = host->cpu_buffer_from_ptr(memory, bytes);
    if (buffer != NULL) buffer->buft = (ggml_backend_buffer_type_t)(void *)&host->weights_type;
    return buffer;
}

static const char *name_of_device(ggml_backend_dev_t device) {
    (void)device;
    return "RAPT_WEIGHTS";
}

static const char *description_of_device(ggml_backend_dev_t device) {
    (void)device;
    return "rapt: weights of linear layers with the same bits everywhere";
}

static void props_of_device(ggml_backend_dev_t device, struct ggml_backend_dev_props *props) {
    memset(props, 0, sizeof *props);
    props->name = name_of_device(device);
    props->description = description_of_device(device);
    props->type = GGML_BACKEND_DEVICE_TYPE_ACCEL;
    props->caps.buffer_from_host_ptr = is_host(NULL);
}

static ggml_backend_buffer_type_t type_of_device_s_buffers(ggml_backend_dev_t device) {
    struct host *host = device->context;
    return (ggml_backend_buffer_type_t)(void *)&host->weights_type;
}

static bool supports_buffer_type(ggml_backend_dev_t device, ggml_backend_buffer_type_t type) {
    return is_weights_type(device->context, type);
}

/* What llama.cpp asks when it looks for a place for weights. Operations on them are the first device's. */
static bool supports_op(ggml_backend_dev_t device, const struct ggml_tensor *op) {
    char why[256];
    const struct host *host = device->context;
    const struct ggml_tensor *weights = op->src[0];
    return is_product(op) && buffer_of(weights) != NULL && is_weights_type(host, buffer_of(weights)->buft) &&
           decline_product(host, op, why, sizeof why) == NULL;
}

void init_weights(struct host *host, int api_version) {
#define FILL_IN(of)                                                                                                              \
    do {                                                                                                                         \
        (of).iface.get_name = name_of_type;                                                                                      \
        (of).iface.alloc_buffer = alloc_buffer;                                                                                  \
        (of).iface.get_alignment = alignment_of_type;                                                                            \
        (of).iface.get_alloc_size = bytes_of_tensor;                                                                             \
        (of).iface.is_host = is_host;                                                                                            \
        (of).device = &host->weights_device;                                                                                     \
    } while (0)
    memset(&host->weights_type, 0, sizeof host->weights_type);
    if (strcmp(host->version(), GGML_RAPT_HEADERS) == 0) FILL_IN(host->weights_type.own);
    else if (api_version == 2) FILL_IN(host->weights_type.version_2);
    else FILL_IN(host->weights_type.version_3);
#undef FILL_IN
    host->weights_device = host->device;
    host->weights_device.iface.get_name = name_of_device;
    host->weights_device.iface.get_description = description_of_device;
    host->weights_device.iface.get_props = props_of_device;
    host->weights_device.iface.get_buffer_type = type_of_device_s_buffers;
    host->weights_device.iface.buffer_from_host_ptr = buffer_from_host_ptr;
    host->weights_device.iface.supports_op = supports_op;
    host->weights_device.iface.supports_buft = supports_buffer_type;
}

/* ---- The operation ------------------------------------------------------------------------------------------------------- */

/* Returns null, or why rapt does not multiply with weights where they lie. Sets whether they are packed. */
static const char *decline_weights(const struct host *host, const struct ggml_tensor *weights, bool *packed) {
    const ggml_backend_buffer_t buffer = buffer_of(weights);
    rapt_linear_plan plan;
    size_t bytes;
    *packed = false;
    if (type_of(weights->type) == RAPT_NONE) return "weights of a type that ggml alone has";
    if (buffer != NULL && is_weights_type(host, buffer->buft)) {
        *packed = packs(weights, &plan, &bytes);
        if (weights->view_src != NULL && packs(weights->view_src, &plan, &bytes)) return "a part of weights that are packed";
    } else if (buffer != NULL && !host->buft_is_host(buffer->buft)) {
        return "weights in memory of another backend";
    }
    return is_dense_inside(weights) ? NULL : "weights whose channels are not contiguous";
}

/* Makes the plan of a layer, exact where weights are elements, which are no integers. Returns null, or why there is none. */
static const char *make_plan(rapt_linear_plan *plan, rapt_linear_desc *desc, char *why, size_t bytes) {
    if (desc->arith == RAPT_INT8_DOT && rapt_type_class_of(desc->weight.type) == RAPT_CLASS_ELEMENT) desc->arith = RAPT_EXACT;
    if (rapt_linear_plan_init(plan, desc) == RAPT_OK) return NULL;
    rapt_linear_explain(desc, why, bytes);
    return why;
}

/* Describes the product that an op wants, with a plan of its calls. Returns null, or why rapt does not do it. */
static const char *describe(const struct host *host, struct product *p, rapt_linear_plan *plan, const struct ggml_tensor *op,
                            char *why, size_t bytes) {
    const struct ggml_tensor *weights = p->weights = op->src[0], *x = p->x = op->src[1];
    p->op = op;
    const char *refused = decline_weights(host, weights, &p->packed);
    if (refused != NULL) return refused;
    if (type_of(x->type) == RAPT_NONE || op->type != GGML_TYPE_F32) return "tokens or products of another type than f32";
    if (weights->ne[0] != x->ne[0] || op->ne[0] != weights->ne[1] || op->ne[1] != x->ne[1] || op->ne[2] != x->ne[2] ||
        op->ne[3] != x->ne[3] || x->ne[2] % weights->ne[2] != 0 || x->ne[3] % weights->ne[3] != 0) {
        return "a product of matrices that do not fit";
    }
    if (!is_dense_inside(x) || !is_dense_inside(op)) return "tokens whose channels are not contiguous";

    p->shared = x->ne[2] / weights->ne[2];
    p->desc = layer_of(weights);
    p->desc.batch = p->shared, p->desc.tokens = x->ne[1];
    p->desc.x = (rapt_layout){type_of(x->type), (int64_t)x->nb[2], 0, (int64_t)x->nb[1]};
    p->desc.y = (rapt_layout){RAPT_F32, (int64_t)op->nb[2], 0, (int64_t)op->nb[1]};
    return make_plan(plan, &p->desc, why, bytes);
}

/* Runs a call of a plan on a backend's threads, for an op. */
static enum ggml_status run(struct context *context, const rapt_linear_plan *plan, const rapt_linear_args *args,
                            const struct ggml_tensor *op) {
    const rapt_status status = context->threads == 1
                                   ? rapt_linear_run(plan, args)
                                   : rapt_linear_run_parallel(plan, args, context->threads, parallel_for, context);
    if (status == RAPT_OK) return GGML_STATUS_SUCCESS;
    char why[256];
    rapt_linear_args_explain(plan, args, context->threads, why, sizeof why);
    return failed(op->name, why);
}

/* Sets the weights of a call to a matrix of them, which are packed or not. Of those that are, the rows are not read. */
static void set_weights(rapt_linear_args *args, const struct ggml_tensor *weights, bool packed, int64_t i2, int64_t i3) {
    rapt_linear_plan plan;
    size_t bytes = 0;
    args->weight = (const char *)weights->data + (packed ? 0 : i2 * (int64_t)weights->nb[2] + i3 * (int64_t)weights->nb[3]);
    if (!packed || !packs(weights, &plan, &bytes)) return;
    args->prepacked = (const char *)weights->data + (size_t)(i3 * weights->ne[2] + i2) * bytes;
}

static enum ggml_status multiply_by_matrices(const struct host *host, struct context *context, const struct ggml_tensor *op) {
    struct product p;
    rapt_linear_plan plan;
    size_t workspace_bytes = 0;
    char why[256] = "";
    const char *refused = describe(host, &p, &plan, op, why, sizeof why);
    if (refused != NULL) return failed("a product that was not asked about before", refused);
    if (rapt_linear_workspace_size(&plan, context->threads, &workspace_bytes) != RAPT_OK) return GGML_STATUS_ALLOC_FAILED;

    rapt_linear_args args;
    rapt_linear_args_init(&args);
    args.workspace = scratch_of(context, workspace_bytes);
    args.workspace_bytes = workspace_bytes;
    if (args.workspace == NULL) return GGML_STATUS_ALLOC_FAILED;
    enum ggml_status status = GGML_STATUS_SUCCESS;
    for (int64_t i3 = 0; i3 < p.x->ne[3] && status == GGML_STATUS_SUCCESS; i3++) {
        for (int64_t i = 0; i < p.weights->ne[2] && status == GGML_STATUS_SUCCESS; i++) {
            const int64_t i2 = i * p.shared; /* The first matrix of tokens. */
            args.x = (const char *)p.x->data + i3 * (int64_t)p.x->nb[3] + i2 * (int64_t)p.x->nb[2];
            args.y = (char *)op->data + i3 * (int64_t)op->nb[3] + i2 * (int64_t)op->nb[2];
            set_weights(&args, p.weights, p.packed, i, i3 / (p.x->ne[3] / p.weights->ne[3]));
            status = run(context, &plan, &args, op);
        }
    }
    return status;
}

/* ---- Experts ------------------------------------------------------------------------------------------------------------- */

/* A product with the matrices of experts: x is [tokens][chosen or 1] rows, ids [tokens][chosen] numbers of experts. */
static const char *decline_experts(const struct host *host, const struct ggml_tensor *op, char *why, size_t bytes) {
    const struct ggml_tensor *weights = op->src[0], *x = op->src[1], *ids = op->src[2];
    rapt_linear_plan plan;
    bool packed;
    const char *refused = decline_weights(host, weights, &packed);
    if (refused != NULL) return refused;
    if (x->type != GGML_TYPE_F32 || op->type != GGML_TYPE_F32) return "tokens or products of another type than f32";
    if (ids->type != GGML_TYPE_I32 || weights->ne[0] != x->ne[0] || weights->ne[3] != 1 || x->ne[3] != 1 ||
        (x->ne[1] != 1 && x->ne[1] != ids->ne[0]) || x->ne[2] != ids->ne[1] || op->ne[0] != weights->ne[1] ||
        op->ne[1] != ids->ne[0] || op->ne[2] != ids->ne[1]) {
        return "experts and tokens that do not fit";
    }
    if (!is_dense_inside(x) || !is_dense_inside(op)) return "tokens whose channels are not contiguous";
    rapt_linear_desc desc = layer_of(weights);
    desc.tokens = ids->ne[0] * ids->ne[1];
    return make_plan(&plan, &desc, why, bytes);
}

static int32_t expert_of(const struct ggml_tensor *ids, int64_t pair) {
    const int64_t slot = pair % ids->ne[0], token = pair / ids->ne[0];
    const char *at = (const char *)ids->data + slot * (int64_t)ids->nb[0] + token * (int64_t)ids->nb[1];
    return *(const int32_t *)(const void *)at;
}

/* Gathers the tokens of each expert, multiplies them at once, and puts the results where they belong. */
static enum ggml_status multiply_by_experts(const struct host *host, struct context *context, const struct ggml_tensor *op) {
    const struct ggml_tensor *weights = op->src[0], *x = op->src[1], *ids = op->src[2];
    const int64_t pairs = ids->ne[0] * ids->ne[1], experts = weights->ne[2];
    const size_t in = (size_t)weights->ne[0] * sizeof(float), out = (size_t)weights->ne[1] * sizeof(float);
    char why[256];
    rapt_linear_plan plan;
    bool packed;
    const char *refused = decline_experts(host, op, why, sizeof why);
    if (refused != NULL) return failed("a product with experts that was not asked about before", refused);
    decline_weights(host, weights, &packed);
    for (int64_t pair = 0; pair < pairs; pair++) {
        if (expert_of(ids, pair) < 0 || expert_of(ids, pair) >= experts)
            return failed(op->name, "a token has chosen an expert that is not there");
    }

    /* Where each expert's pairs begin, the pairs by experts, their rows of x and of the result, and what all of them at once
     * need, which is no less than what fewer do. */
    rapt_linear_desc desc = layer_of(weights);
    desc.tokens = pairs;
    size_t workspace_bytes = 0;
    if (make_plan(&plan, &desc, why, sizeof why) != NULL ||
        rapt_linear_workspace_size(&plan, context->threads, &workspace_bytes) != RAPT_OK) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    const size_t numbers = aligned((size_t)(experts + 1 + pairs) * sizeof(int64_t));
    const size_t x_bytes = aligned((size_t)pairs * in), y_bytes = aligned((size_t)pairs * out);
    char *memory = scratch_of(context, numbers + x_bytes + y_bytes + workspace_bytes);
    if (memory == NULL) return GGML_STATUS_ALLOC_FAILED;
    int64_t *ends = (int64_t *)(void *)memory, *sorted = ends + experts + 1;
    char *const gathered = memory + numbers, *const found = gathered + x_bytes;
    memset(ends, 0, (size_t)(experts + 1) * sizeof *ends);
    for (int64_t pair = 0; pair < pairs; pair++) ends[expert_of(ids, pair) + 1]++;
    for (int64_t expert = 0; expert < experts; expert++) ends[expert + 1] += ends[expert];
    for (int64_t pair = 0; pair < pairs; pair++) sorted[ends[expert_of(ids, pair)]++] = pair;
    for (int64_t i = 0; i < pairs; i++) {
        const int64_t slot = sorted[i] % ids->ne[0] % x->ne[1], token = sorted[i] / ids->ne[0];
        memcpy(gathered + (size_t)i * in, (const char *)x->data + slot * (int64_t)x->nb[1] + token * (int64_t)x->nb[2], in);
    }

    rapt_linear_args args;
    rapt_linear_args_init(&args);
    args.workspace = found + y_bytes, args.workspace_bytes = workspace_bytes;
    for (int64_t expert = 0, first = 0; expert < experts; first = ends[expert++]) {
        desc.tokens = ends[expert] - first;
        if (desc.tokens == 0) continue;
        if (make_plan(&plan, &desc, why, sizeof why) != NULL) return failed(op->name, why);
        args.x = gathered + (size_t)first * in, args.y = found + (size_t)first * out;
        set_weights(&args, weights, packed, expert, 0);
        const enum ggml_status status = run(context, &plan, &args, op);
        if (status != GGML_STATUS_SUCCESS) return status;
    }
    for (int64_t i = 0; i < pairs; i++) {
        memcpy((char *)op->data + sorted[i] % ids->ne[0] * (int64_t)op->nb[1] + sorted[i] / ids->ne[0] * (int64_t)op->nb[2],
               found + (size_t)i * out, out);
    }
    return GGML_STATUS_SUCCESS;
}

/* ---- Both ---------------------------------------------------------------------------------------------------------------- */

/* Whether a product is with a matrix of Hadamard's, which ggml does by additions alone, in the same order everywhere. */
static bool is_hadamard(const struct ggml_tensor *op) { return op->op_params[1] == GGML_HINT_SRC0_IS_HADAMARD; }

const char *decline_product(const struct host *host, const struct ggml_tensor *op, char *why, size_t bytes) {
    struct product p;
    rapt_linear_plan plan;
    if (op->op == GGML_OP_MUL_MAT_ID) return decline_experts(host, op, why, bytes);
    return is_hadamard(op) ? "" : describe(host, &p, &plan, op, why, bytes);
}

enum ggml_status multiply(const struct host *host, struct context *context, const struct ggml_tensor *op) {
    return op->op == GGML_OP_MUL_MAT_ID ? multiply_by_experts(host, context, op) : multiply_by_matrices(host, context, op);
}
