/* SPDX-License-Identifier: Apache-2.0 */
/* The arrays of files as the library takes them. */
#include "tensor.h"
#include "cli.h"
#include "convert.h"

#include <inttypes.h>
#include <stdlib.h>

void *tensor_buffer(int64_t elements, size_t size) { return elements ? calloc((size_t)elements, size) : calloc(1, 1); }

/* Returns a dense copy of the rows [shape[0], shape[1], shape[2]] of shape[3] elements; null if there is no memory. Rows without
 * elements are not visited, since there may be any number of them. */
static void *copy_rows(const npy_array *array, const int64_t shape[4], const int64_t stride[4], rapt_type type) {
    const size_t row = (size_t)shape[3] * convert_size(type);
    const bool empty = !shape[0] || !shape[1] || !shape[2] || !shape[3];
    unsigned char *copy = tensor_buffer(empty ? 0 : shape[0] * shape[1] * shape[2], row), *to = copy;
    if (!copy || empty) return copy;
    for (int64_t b = 0; b < shape[0]; b++)
        for (int64_t h = 0; h < shape[1]; h++)
            for (int64_t i = 0; i < shape[2]; i++, to += row)
                npy_copy_row(array, b * stride[0] + h * stride[1] + i * stride[2], type, shape[3], stride[3], to);
    return copy;
}

/* ---- Q, K and V --------------------------------------------------------------------------------------------------------- */

int tensor_open(tensor *t, const char *path, tensor_order order) {
    char fault[NPY_FAULT_BYTES];
    const npy_wanted wanted = {.least_dims = order == TENSOR_RAGGED ? 3 : 2, .most_dims = order == TENSOR_RAGGED ? 3 : 4};
    t->path = path;
    if (!npy_open(&t->array, path, wanted, fault)) return cli_fail(CLI_RUN, "%s: %s", path, fault);
    const npy_array *a = &t->array;
    const bool heads_inside = order != TENSOR_BHSD;
    const int last = a->dims - 1, token = last - (heads_inside && a->dims > 2 ? 2 : 1), head = heads_inside ? last - 1 : last - 2;
    t->channels = a->shape[last];
    t->tokens = a->shape[token];
    t->heads = a->dims > 2 ? a->shape[head] : 1;
    t->batch = a->dims > 3 ? a->shape[0] : 1;
    t->channel_stride = a->stride[last];
    t->layout = (rapt_layout){a->type, a->dims > 3 ? a->stride[0] : 0, a->dims > 2 ? a->stride[head] : 0, a->stride[token]};
    if (t->channels < 1 || t->channels > RAPT_MAX_HEAD_DIM)
        return cli_fail(CLI_RUN, "%s: %" PRId64 " channels, 1 to %d are possible", path, t->channels, RAPT_MAX_HEAD_DIM);
    if (t->heads < 1 || t->heads > RAPT_MAX_LENGTH)
        return cli_fail(CLI_RUN, "%s: %" PRId64 " heads, 1 to %" PRId32 " are possible", path, t->heads, RAPT_MAX_LENGTH);
    if (t->tokens > RAPT_MAX_LENGTH || t->batch > RAPT_MAX_LENGTH)
        return cli_fail(CLI_RUN, "%s: a dimension is longer than %" PRId32, path, RAPT_MAX_LENGTH);
    return 0;
}

int tensor_load(tensor *t, rapt_type type) {
    t->data = t->array.data;
    if (npy_is_row(&t->array, type, t->channels, t->channel_stride)) return 0;
    const rapt_layout in = t->layout;
    t->data = t->copy = copy_rows(&t->array, (int64_t[4]){t->batch, t->heads, t->tokens, t->channels},
                                  (int64_t[4]){in.batch_stride, in.head_stride, in.token_stride, t->channel_stride}, type);
    if (!t->copy) return cli_fail(CLI_RUN, "%s: no memory to convert it", t->path);
    t->layout = rapt_layout_bhsd(type, t->heads, t->tokens, t->channels);
    return 0;
}

int tensor_quantize(tensor *t, rapt_type type) {
    const int64_t row = rapt_row_bytes(type, t->channels), tokens = t->batch * t->heads * t->tokens;
    if (row < 0) {
        int64_t group = 1; /* channels of a group */
        while (rapt_row_bytes(type, group) < 0) group++;
        return cli_fail(CLI_RUN, "%s: %" PRId64 " channels, this type needs a multiple of %" PRId64, t->path, t->channels, group);
    }
    rapt_kv_append_desc desc;
    rapt_kv_append_args args;
    rapt_kv_append_desc_init(&desc);
    rapt_kv_append_args_init(&args);
    desc.batch = t->batch;
    desc.kv_heads = t->heads;
    desc.tokens = desc.kv_len = t->tokens;
    desc.d_v = t->channels;
    desc.new_v = t->layout;
    desc.v = rapt_layout_bhsd(type, t->heads, t->tokens, t->channels);
    args.new_v = t->data;
    void *const copy = args.v = tensor_buffer(tokens, (size_t)row);
    if (type == RAPT_INT8) {
        t->scales = args.v_scales = tensor_buffer(tokens, sizeof(float));
        const rapt_layout f = t->scales_layout = rapt_layout_bhsd(RAPT_F32, t->heads, t->tokens, 1);
        desc.v_scales = (rapt_scales){1, f.batch_stride, f.head_stride, f.token_stride, 0};
    }
    const bool memory = copy && (type != RAPT_INT8 || t->scales);
    const rapt_status status = memory && tokens ? rapt_kv_append_run(&desc, &args) : RAPT_OK;
    free(t->copy);
    t->data = t->copy = copy;
    t->layout = desc.v;
    if (!memory) return cli_fail(CLI_RUN, "%s: no memory to convert it", t->path);
    if (!status) return 0;
    char line[CLI_LINE_BYTES];
    rapt_kv_append_explain(&desc, &args, line, sizeof line);
    return cli_fail(CLI_RUN, "%s: %s: %s", t->path, rapt_status_string(status), line);
}

void tensor_close(tensor *t) {
    free(t->scales);
    free(t->copy);
    npy_close(&t->array);
}

/* ---- Masks, biases, slopes and sinks ------------------------------------------------------------------------------------ */

int broadcast_open(broadcast *b, const char *path, bool booleans, int dims, const int64_t to[4]) {
    static const char *const names[4] = {"batch", "heads", "queries", "keys"};
    char fault[NPY_FAULT_BYTES];
    b->path = path;
    if (!npy_open(&b->array, path, (npy_wanted){booleans, 1, dims, NULL}, fault)) return cli_fail(CLI_RUN, "%s: %s", path, fault);
    for (int i = 0; i < 4; i++) {
        const int own = i - (dims - b->array.dims); /* missing dimensions come first */
        b->shape[i] = i < dims && own >= 0 ? b->array.shape[own] : 1;
        b->stride[i] = b->shape[i] == 1 ? 0 : b->array.stride[own];
        if (b->shape[i] != 1 && b->shape[i] != to[i])
            return cli_fail(CLI_RUN, "%s: %s %" PRId64 ", 1 or %" PRId64 " is needed", path, names[i], b->shape[i], to[i]);
    }
    return 0;
}

int broadcast_load(broadcast *b, rapt_type type, int64_t keys) {
    const int64_t *shape = b->shape, *stride = b->stride;
    b->data = b->array.data;
    b->layout = (rapt_layout){type, stride[0], stride[1], stride[2]};
    if (npy_is_row(&b->array, type, keys, stride[3])) return 0;
    const int64_t row = keys * (int64_t)convert_size(type);
    b->data = b->copy = copy_rows(&b->array, (int64_t[4]){shape[0], shape[1], shape[2], keys}, stride, type);
    if (!b->copy) return cli_fail(CLI_RUN, "%s: no memory to convert it", b->path);
    b->layout.token_stride = shape[2] == 1 ? 0 : row;
    b->layout.head_stride = shape[1] == 1 ? 0 : shape[2] * row;
    b->layout.batch_stride = shape[0] == 1 ? 0 : shape[1] * shape[2] * row;
    return 0;
}

void broadcast_close(broadcast *b) {
    free(b->copy);
    npy_close(&b->array);
}
