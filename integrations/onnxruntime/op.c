/* SPDX-License-Identifier: Apache-2.0 */
/* What all operators share: attributes, tensors, memory, threads, and calls of rapt whose refusals become ONNX Runtime's errors.
 */
#include "op.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- Attributes --------------------------------------------------------------------------------------------------------- */

/* Whether a call went well; why it did not is of no interest. */
static bool succeeded(OrtStatus *status) {
    if (status) ort.ReleaseStatus(status);
    return !status;
}

/* The attribute's value in bytes of data, or -1 where there is none, else how many bytes it has. */
static int64_t attribute(const struct node *node, const char *name, int type, void *data, size_t bytes) {
    const OrtOpAttr *found = NULL;
    size_t size = 0;
    if (!succeeded(ort.Node_GetAttributeByName(node->at, name, &found)) || !found) return -1;
    return succeeded(ort.ReadOpAttr(found, type, data, bytes, &size)) ? (int64_t)size : -1;
}

int64_t node_int(const struct node *node, const char *name, int64_t otherwise) {
    int64_t value;
    return attribute(node, name, ATTRIBUTE_INT, &value, sizeof value) < 0 ? otherwise : value;
}

float node_float(const struct node *node, const char *name, float otherwise) {
    float value;
    return attribute(node, name, ATTRIBUTE_FLOAT, &value, sizeof value) < 0 ? otherwise : value;
}

bool node_text_is(const struct node *node, const char *name, const char *text) {
    char value[64];
    int64_t bytes = attribute(node, name, ATTRIBUTE_STRING, value, sizeof value);
    if (bytes < 0) {
        const OrtOpAttr *found = NULL; /* it may be longer than any text that is asked for */
        return !(succeeded(ort.Node_GetAttributeByName(node->at, name, &found)) && found);
    }
    return (size_t)bytes >= strlen(text) && !strncmp(value, text, strlen(text));
}

void make_printable(char *text) {
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7f) *text = '?';
}

bool is_number(int element) { return element == ELEMENT_FLOAT || element == ELEMENT_FLOAT16 || element == ELEMENT_BFLOAT16; }

int64_t info_int(const OrtKernelInfo *info, const char *name, int64_t otherwise) {
    int64_t value;
    return succeeded(ort.KernelInfoGetAttribute_int64(info, name, &value)) ? value : otherwise;
}

float info_float(const OrtKernelInfo *info, const char *name, float otherwise) {
    float value;
    return succeeded(ort.KernelInfoGetAttribute_float(info, name, &value)) ? value : otherwise;
}

/* ---- Tensors ------------------------------------------------------------------------------------------------------------ */

OrtStatus *fail(const struct call *call, const char *format, ...) {
    char text[512];
    int n = snprintf(text, sizeof text, "rapt: %s %s: ", call->kernel->op->name, call->kernel->name);
    va_list list;
    va_start(list, format);
    if (n >= 0 && (size_t)n < sizeof text) vsnprintf(text + n, sizeof text - (size_t)n, format, list);
    va_end(list);
    return ort.CreateStatus(ORT_INVALID_ARGUMENT, text);
}

OrtStatus *input(const struct call *call, size_t index, struct tensor *out) {
    const OrtValue *value = NULL;
    const int64_t *dims = NULL;
    *out = (struct tensor){0};
    if (index >= call->inputs) return NULL;
    TRY(ort.KernelContext_GetInput(call->context, index, &value));
    if (!value) return NULL;
    TRY(ort.GetTensorElementTypeAndShapeDataReference(value, &out->element, &dims, &out->rank));
    if (out->rank > sizeof out->dims / sizeof *out->dims) return fail(call, "input %zu has %zu dimensions", index, out->rank);
    for (size_t i = 0; i < out->rank; i++) out->dims[i] = dims[i];
    out->present = true;
    return ort.GetTensorData(value, &out->data);
}

OrtStatus *output(const struct call *call, size_t index, size_t rank, const int64_t *dims, void **out) {
    OrtValue *value = NULL;
    *out = NULL;
    if (index >= call->outputs) return NULL;
    TRY(ort.KernelContext_GetOutput(call->context, index, dims, rank, &value));
    return value ? ort.GetTensorMutableData(value, out) : NULL;
}

OrtStatus *scratch(struct call *call, size_t bytes, void **out) {
    enum { LINE = RAPT_WORKSPACE_ALIGNMENT };
    OrtAllocator *allocator = call->kernel->allocator;
    if (call->scratches == sizeof call->scratch / sizeof *call->scratch) return fail(call, "too many pieces of scratch memory");
    void *memory = allocator->Alloc(allocator, bytes + LINE);
    if (!memory) return fail(call, "there is no memory for %zu bytes", bytes);
    call->scratch[call->scratches++] = memory;
    *out = (void *)(((uintptr_t)memory + LINE - 1) / LINE * LINE);
    return NULL;
}

OrtStatus *expect(const struct call *call, const char *name, const struct tensor *tensor, size_t rank, const int64_t *dims) {
    char found[128] = "", wanted[128] = "";
    if (!tensor->present) return fail(call, "%s is missing", name);
    if (tensor->rank == rank && !memcmp(tensor->dims, dims, rank * sizeof *dims)) return NULL;
    for (size_t i = 0, n = 0; i < tensor->rank && n < sizeof found; i++)
        n += (size_t)snprintf(found + n, sizeof found - n, i ? ", %lld" : "%lld", (long long)tensor->dims[i]);
    for (size_t i = 0, n = 0; i < rank && n < sizeof wanted; i++)
        n += (size_t)snprintf(wanted + n, sizeof wanted - n, i ? ", %lld" : "%lld", (long long)dims[i]);
    return fail(call, "%s is [%s], where [%s] is wanted", name, found, wanted);
}

rapt_type type_of(const struct tensor *tensor) {
    switch (tensor->element) {
    case ELEMENT_FLOAT:
        return RAPT_F32;
    case ELEMENT_FLOAT16:
        return RAPT_F16;
    case ELEMENT_BFLOAT16:
        return RAPT_BF16;
    case ELEMENT_INT8:
        return RAPT_INT8;
    case ELEMENT_BOOL:
        return RAPT_BOOL;
    default:
        return RAPT_NONE;
    }
}

int64_t bytes_of(rapt_type type) {
    switch (type) {
    case RAPT_F32:
        return 4;
    case RAPT_F16:
    case RAPT_BF16:
        return 2;
    default:
        return 1;
    }
}

const void *element_at(const struct tensor *tensor, int64_t n) {
    return (const char *)tensor->data + n * bytes_of(type_of(tensor));
}

OrtStatus *integers(struct call *call, const char *name, const struct tensor *tensor, int64_t least, int64_t most,
                    int32_t **out) {
    int64_t n = 1;
    void *memory = NULL;
    for (size_t i = 0; i < tensor->rank; i++) n *= tensor->dims[i];
    TRY(scratch(call, (size_t)n * sizeof **out, &memory));
    *out = memory;
    for (int64_t i = 0; i < n; i++) {
        int64_t x = tensor->element == ELEMENT_INT64 ? ((const int64_t *)tensor->data)[i] : ((const int32_t *)tensor->data)[i];
        if (x < least || x > most)
            return fail(call, "%s[%lld] = %lld, which is not in %lld..%lld", name, (long long)i, (long long)x, (long long)least,
                        (long long)most);
        (*out)[i] = (int32_t)x;
    }
    return NULL;
}

/* ---- Threads ------------------------------------------------------------------------------------------------------------ */

/* A loop of rapt's, for ONNX Runtime's threads. */
struct loop {
    rapt_body body;
    void *arg;
};

static void each(void *arg, size_t i) {
    const struct loop *loop = arg;
    loop->body(loop->arg, (int64_t)i);
}

void parallel_for(void *pool, int64_t n, rapt_body body, void *arg) {
    struct call *call = pool;
    struct loop loop = {body, arg};
    if (n == 1) {
        body(arg, 0);
    } else if (!call->lost) {
        call->lost = ort.KernelContext_ParallelFor(call->context, each, (size_t)n, 0, &loop);
    }
}

int64_t threads_for(const struct call *call, int64_t bytes) {
    const int64_t worth = 1 << 17; /* what a core copies in the time that another takes to wake up */
    int64_t most = bytes / worth + 1;
    return most < call->kernel->threads ? most : call->kernel->threads;
}

/* What became of a loop. */
static OrtStatus *of_loop(struct call *call) {
    OrtStatus *lost = call->lost;
    call->lost = NULL;
    return lost;
}

/* ---- Calls of rapt ------------------------------------------------------------------------------------------------------ */

OrtStatus *attend(struct call *call, rapt_desc *desc, rapt_args *args) {
    char why[256];
    rapt_plan plan;
    rapt_plan_info info = {.size = sizeof info};
    desc->threads = call->kernel->threads, desc->arith = call->kernel->arith;
    if (rapt_plan_init(&plan, desc) != RAPT_OK) {
        rapt_plan_explain(desc, why, sizeof why);
        return fail(call, "%s", why);
    }
    rapt_plan_query(&plan, &info);
    int64_t tasks = info.tasks[0] > info.tasks[1] ? info.tasks[0] : info.tasks[1];
    int64_t nth = tasks < desc->threads ? tasks < 1 ? 1 : tasks : desc->threads;
    if (rapt_workspace_size(&plan, nth, &args->workspace_bytes) != RAPT_OK) return fail(call, "the workspace is too large");
    TRY(scratch(call, args->workspace_bytes, &args->workspace));
    if (rapt_run_parallel(&plan, args, nth, parallel_for, call) != RAPT_OK) {
        rapt_args_explain(&plan, args, nth, why, sizeof why);
        return fail(call, "%s", why);
    }
    return of_loop(call);
}

OrtStatus *rotate(struct call *call, const rapt_rope_args *args) {
    char why[256];
    int64_t bytes = args->batch * args->heads * args->tokens * rapt_row_bytes(args->in.type, args->d);
    if (rapt_rope_run_parallel(args, threads_for(call, bytes), parallel_for, call) != RAPT_OK) {
        rapt_rope_explain(args, why, sizeof why);
        return fail(call, "%s", why);
    }
    return of_loop(call);
}

OrtStatus *append(struct call *call, const rapt_kv_append_desc *desc, const rapt_kv_append_args *args) {
    char why[256];
    int64_t bytes = desc->batch * desc->kv_heads * desc->tokens * rapt_row_bytes(desc->new_k.type, desc->d_k);
    if (rapt_kv_append_run_parallel(desc, args, threads_for(call, bytes), parallel_for, call) != RAPT_OK) {
        rapt_kv_append_explain(desc, args, why, sizeof why);
        return fail(call, "%s", why);
    }
    return of_loop(call);
}

OrtStatus *convert(struct call *call, int64_t n, rapt_type from_type, const void *from, rapt_type to_type, void *to) {
    const int64_t wide = RAPT_MAX_HEAD_DIM, done = n / wide * wide;
    rapt_rope_args args;
    rapt_rope_args_init(&args);
    args.heads = 1;
    for (int part = 0; part < 2; part++) { /* rows as long as they may be, and what is left over */
        args.tokens = part ? n > done : n / wide;
        args.d = part ? n - done : wide;
        if (!args.tokens) continue;
        args.in = rapt_layout_bshd(from_type, 1, args.tokens, args.d);
        args.out = rapt_layout_bshd(to_type, 1, args.tokens, args.d);
        args.from = (const char *)from + (part ? done : 0) * bytes_of(from_type);
        args.to = (char *)to + (part ? done : 0) * bytes_of(to_type);
        TRY(rotate(call, &args));
    }
    return NULL;
}

OrtStatus *widen(struct call *call, int64_t n, const struct tensor *tensor, const float **out) {
    void *memory = NULL;
    *out = tensor->data;
    if (type_of(tensor) == RAPT_F32) return NULL;
    TRY(scratch(call, (size_t)n * sizeof **out, &memory));
    *out = memory;
    return convert(call, n, type_of(tensor), tensor->data, RAPT_F32, memory);
}

/* ---- Caches ------------------------------------------------------------------------------------------------------------- */

static void copy_row(void *arg, int64_t i) {
    const struct rows *rows = arg;
    const int64_t entry = i / rows->rows_per_entry, end = rows->ends[entry];
    char *to = (char *)rows->to + i * rows->to_room * rows->bytes;
    if (rows->copied[entry])
        memcpy(to, (const char *)rows->from + i * rows->from_room * rows->bytes, (size_t)(rows->copied[entry] * rows->bytes));
    memset(to + end * rows->bytes, 0, (size_t)((rows->to_room - end) * rows->bytes));
}

OrtStatus *copy_tokens(struct call *call, const struct rows *rows) {
    if (rows->from == rows->to) return NULL;
    if (threads_for(call, rows->rows * rows->to_room * rows->bytes) == 1) {
        for (int64_t i = 0; i < rows->rows; i++) copy_row((void *)rows, i);
        return NULL;
    }
    parallel_for(call, rows->rows, copy_row, (void *)rows);
    return of_loop(call);
}

OrtStatus *join(struct call *call, int64_t batch, const struct past *past, struct keys *keys) {
    rapt_kv_append_desc desc;
    rapt_kv_append_args args;
    void *memory = NULL;
    int32_t *starts, *ends;
    rapt_kv_append_desc_init(&desc);
    rapt_kv_append_args_init(&args);
    desc.batch = batch, desc.kv_heads = keys->heads, desc.tokens = keys->tokens, desc.kv_len = past->capacity;
    desc.d_k = keys->d_k, desc.d_v = keys->d_v, desc.new_k = keys->k, desc.new_v = keys->v;
    desc.k = rapt_layout_bhsd(past->type_k, keys->heads, past->capacity, keys->d_k);
    desc.v = rapt_layout_bhsd(past->type_v, keys->heads, past->capacity, keys->d_v);
    const int64_t k_row = rapt_row_bytes(past->type_k, keys->d_k), v_row = rapt_row_bytes(past->type_v, keys->d_v);
    TRY(output(call, past->k_output, 4, (int64_t[]){batch, keys->heads, past->capacity, keys->d_k}, &args.k));
    TRY(output(call, past->v_output, 4, (int64_t[]){batch, keys->heads, past->capacity, keys->d_v}, &args.v));
    const bool wanted = args.k || args.v;
    if (!wanted && !past->tokens) return NULL; /* the new ones are all, where they are */
    if (!args.k) TRY(scratch(call, (size_t)(batch * keys->heads * past->capacity * k_row), &args.k));
    if (!args.v) TRY(scratch(call, (size_t)(batch * keys->heads * past->capacity * v_row), &args.v));
    TRY(scratch(call, 2 * (size_t)batch * sizeof *starts, &memory));
    starts = memory, ends = starts + batch;
    for (int64_t b = 0; b < batch; b++) starts[b] = (int32_t)past->tokens, ends[b] = (int32_t)(past->tokens + keys->tokens);
    args.new_k = keys->k_at, args.new_v = keys->v_at, args.starts = starts;
    struct rows k = {batch * keys->heads, keys->heads, k_row,           starts,        ends,
                     past->k.data,        args.k,      past->k.dims[2], past->capacity};
    struct rows v = {batch * keys->heads, keys->heads, v_row,           starts,        ends,
                     past->v.data,        args.v,      past->v.dims[2], past->capacity};
    TRY(copy_tokens(call, &k));
    TRY(copy_tokens(call, &v));
    TRY(append(call, &desc, &args));
    keys->tokens += past->tokens;
    keys->k = desc.k, keys->v = desc.v, keys->k_at = args.k, keys->v_at = args.v;
    return NULL;
}
