/* SPDX-License-Identifier: Apache-2.0 */
/* rapt check --vectors: inputs and results in files (tools/vectors writes them), computed again by every kernel that can run. The
 * format of the folder is in docs/reproducibility.md. */
#define _POSIX_C_SOURCE 200112L
#include "aligned.h"
#include "cli.h"
#include "convert.h"
#include "map.h"
#include "npy.h"
#include "rapt_layer.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROGRAM "rapt check"

static const char help[] =
    "usage: rapt check --vectors DIR [--isa NAME]\n"
    "Computes what the files of DIR have results of, by every kernel of their rounding class that can run here, and\n"
    "compares bits.\n"
    "  --vectors DIR   a folder with manifest.ini and .npy files, as tools/vectors writes it\n"
    "  --isa NAME      only this kernel\n"
    "Exit status: 0 all are equal, 1 something differs, 2 an error.\n";

/* ---- The manifest ------------------------------------------------------------------------------------------------------- */

enum { MOST_ENTRIES = 48, MOST_ARRAYS = 24 };

/* A line "key = value". */
typedef struct entry {
    const char *key, *value;
    bool used; /* true if something has asked for it */
} entry;

/* The elements of a file, in the machine's byte order. */
typedef struct array {
    rapt_type type; /* RAPT_NONE: float64, which the library has no tensors of */
    int dims;
    int64_t shape[NPY_MAX_DIMS]; /* of a type of groups, the last one is that of the bytes of a row */
    int size;                    /* bytes of an element, or 1 of a type of groups */
    void *data;
} array;

/* One section of the manifest. */
typedef struct vector {
    const char *folder, *name;
    entry entries[MOST_ENTRIES];
    int entry_count;
    array arrays[MOST_ARRAYS];
    int array_count;
    bool failed; /* true once `fail` has printed what is wrong with the vector itself */
} vector;

/* Prints what is wrong with a vector, once. */
__attribute__((format(printf, 2, 3))) static void fail(vector *v, const char *format, ...) {
    char line[CLI_LINE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (!v->failed) cli_fail(PROGRAM, "%s/manifest.ini: [%s]: %s", v->folder, v->name, line);
    v->failed = true;
}

/* Returns the value of a key, or null. */
static const char *value_of(vector *v, const char *key) {
    for (entry *e = v->entries; e < v->entries + v->entry_count; e++)
        if (!strcmp(e->key, key)) {
            e->used = true;
            return e->value;
        }
    return NULL;
}

/* Returns the index of the key's value in names, or `missing` if there is no such key. */
static int name_of(vector *v, const char *key, int count, const char *const *names, int missing) {
    const char *value = value_of(v, key);
    if (!value) return missing;
    for (int i = 0; i < count; i++)
        if (!strcmp(value, names[i])) return i;
    fail(v, "%s = %s is unknown", key, value);
    return missing;
}
#define NAME_OF(v, key, names, missing) name_of(v, key, sizeof(names) / sizeof *(names), names, missing)

/* Sets *number to the integer of a key, or leaves it if there is none. Returns whether there is one. */
static bool integer_of(vector *v, const char *key, int64_t *number) {
    const char *value = value_of(v, key);
    if (value && !cli_integer(&value, '\0', INT32_MIN, INT32_MAX, number)) fail(v, "%s = %s is no integer", key, value);
    return value;
}

/* Sets *number to the f32 of a key, decimal or hexadecimal, or leaves it if there is none. */
static void float_of(vector *v, const char *key, float *number) {
    const char *value = value_of(v, key);
    char *end;
    if (!value) return;
    *number = strtof(value, &end);
    if (end == value || *end) fail(v, "%s = %s is no number", key, value);
}

/* ---- Arrays ------------------------------------------------------------------------------------------------------------- */

/* Returns what NumPy calls the elements of a file of the type; null for a name that is no type. */
static const char *dtype_of(const char *type) {
    switch (rapt_type_of_name(type)) {
    case RAPT_F32:
        return "f4";
    case RAPT_F16:
        return "f2";
    case RAPT_BF16:
        return "u2";
    case RAPT_BOOL:
        return "b1";
    case RAPT_INT8:
        return "i1";
    case RAPT_I32:
        return "i4";
    default:
        break;
    }
    if (!strcmp(type, "float64")) return "f8";
    const rapt_type_class class_of = rapt_type_class_of(rapt_type_of_name(type));
    return class_of == RAPT_CLASS_WEIGHT || class_of == RAPT_CLASS_CACHE || class_of == RAPT_CLASS_MATRIX ? "u1" : NULL;
}

/* Reads the array of a key, "FILE TYPE". Returns null if there is no such key, or if something is wrong (fail). */
static array *array_of(vector *v, const char *key, int least_dims, int most_dims) {
    const char *value = value_of(v, key);
    if (!value || v->failed) return NULL;
    const char *const space = strrchr(value, ' '), *const dtype = dtype_of(space ? space + 1 : "");
    if (!dtype || v->array_count == MOST_ARRAYS) {
        fail(v, "%s = %s: a file and a type are needed", key, value);
        return NULL;
    }
    const int length = (int)(space - value);
    if (length > 200 || memchr(value, '/', (size_t)length) || memchr(value, '\\', (size_t)length)) {
        fail(v, "%s = %s: the file must lie in the folder", key, value);
        return NULL;
    }
    npy_array file;
    char path[4096], fault[NPY_FAULT_BYTES];
    snprintf(path, sizeof path, "%s/%.*s", v->folder, length, value);
    if (!npy_open(&file, path, (npy_wanted){.dtype = dtype, .least_dims = least_dims, .most_dims = most_dims}, fault)) {
        fail(v, "%.*s: %s", length, value, fault);
        return NULL;
    }
    array *a = &v->arrays[v->array_count++];
    *a = (array){.type = rapt_type_of_name(space + 1), .dims = file.dims, .size = file.size, .data = npy_elements(&file)};
    memcpy(a->shape, file.shape, sizeof a->shape);
    npy_close(&file);
    if (a->data) return a;
    fail(v, "no memory for %.*s", length, value);
    return NULL;
}

/* Returns an array that must be there. */
static array *needed(vector *v, const char *key, int dims) {
    array *a = array_of(v, key, dims, dims);
    if (!a) fail(v, "%s is missing", key);
    return a;
}

/* Checks that an array, if there is one, has these outer dimensions, of which those may be 1 that `broadcast` has bits for, and
 * rows of that many channels. */
static void check_shape(vector *v, const char *key, const array *a, int dims, const int64_t *outer, int broadcast,
                        int64_t channels) {
    if (!a || v->failed) return;
    bool same = a->dims == dims + 1;
    for (int i = 0; i < dims && same; i++) same = a->shape[i] == outer[i] || (broadcast >> i & 1 && a->shape[i] == 1);
    const int64_t of_type = rapt_row_bytes(a->type, channels), bytes = of_type >= 0 ? of_type : channels * a->size;
    if (!same || a->shape[dims] * a->size != bytes) fail(v, "%s: its shape is not that of the others", key);
}

/* Returns the layout of an array of [head, row, element], [row, element] or [element]; a dimension of 1 is that of all. */
static rapt_layout layout_of(const array *a) {
    const int64_t row = a->shape[a->dims - 1] * a->size, rows = a->dims > 1 ? a->shape[a->dims - 2] : 1;
    return (rapt_layout){a->type, 0, a->dims > 2 && a->shape[0] > 1 ? rows * row : 0, rows > 1 ? row : 0};
}

/* ---- Results ------------------------------------------------------------------------------------------------------------ */

/* A result: what the vector says, and what a kernel computes. */
typedef struct result {
    const char *key;
    const array *wanted; /* null: there is none */
    void *computed;
} result;

static int64_t elements_of(const array *a) {
    int64_t n = 1;
    for (int i = 0; i < a->dims; i++) n *= a->shape[i];
    return n;
}

/* Makes room for what is computed. A dimension of a result is never that of all, so its layout has all strides. */
static void *create_result(vector *v, result *r, const char *key, const array *wanted) {
    *r = (result){key, wanted, wanted ? aligned_create(64, (size_t)elements_of(wanted) * (size_t)wanted->size + 1) : NULL};
    if (wanted && !r->computed) fail(v, "no memory for %s", key);
    return r->computed;
}

/* Returns the bits of an element. */
static uint32_t bits_of(const array *a, const void *data, int64_t i) {
    uint32_t word;
    uint16_t half;
    if (a->size == 4) memcpy(&word, (const char *)data + i * 4, sizeof word);
    else memcpy(&half, (const char *)data + i * 2, sizeof half);
    return a->size == 4 ? word : half;
}

/* Compares a result with what it should be; NaN equals NaN. Prints the first element that differs; returns whether one does. */
static bool differs(const vector *v, const result *r, const char *isa) {
    const array *a = r->wanted;
    int64_t first = -1, count = 0;
    for (int64_t i = elements_of(a); i-- > 0;) {
        const uint32_t computed = bits_of(a, r->computed, i), wanted = bits_of(a, a->data, i);
        if (computed == wanted || (isnan(convert_to_float(a->type, computed)) && isnan(convert_to_float(a->type, wanted))))
            continue;
        first = i;
        count++;
    }
    if (first < 0) return false;
    char place[100];
    int used = 0;
    int64_t outer = elements_of(a), rest = first;
    for (int i = 0; i < a->dims; i++) {
        outer /= a->shape[i];
        used += snprintf(place + used, sizeof place - (size_t)used, "%s%" PRId64, i ? ", " : "", rest / outer);
        rest %= outer;
    }
    printf("%s: %s: %s[%s] is %a, wanted %a; %" PRId64 " of %" PRId64 " differ\n", v->name, isa, r->key, place,
           (double)convert_to_float(a->type, bits_of(a, r->computed, first)),
           (double)convert_to_float(a->type, bits_of(a, a->data, first)), count, elements_of(a));
    return true;
}

/* ---- Operations --------------------------------------------------------------------------------------------------------- */

enum { RESULTS = 2 };

static const char *const arithmetics[] = {"exact", "int8", "bf16"}; /* in the order of rapt_arith */

/* Memory for the library of at least one byte, or null. */
static void *create_workspace(size_t bytes) { return aligned_create(RAPT_WORKSPACE_ALIGNMENT, bytes + 1); }

/* Fails if the library refused the vector. text: what it says of that; may be empty. Returns whether it did. */
static bool refused(vector *v, rapt_status status, const char *text) {
    if (status != RAPT_OK) fail(v, "%s", *text ? text : rapt_status_string(status));
    return status != RAPT_OK;
}

/* Sets the scales of K or V, if the vector has any: of each token, or of each channel (or one for all channels). */
static void set_scales(vector *v, char name, const array *of, int64_t channels, rapt_scales *scales, const float **at) {
    for (int channel = 0; channel < 2; channel++) {
        char key[24];
        snprintf(key, sizeof key, "%c_%s_scales", name, channel ? "channel" : "token");
        const array *a = array_of(v, key, 2, 2);
        if (!a) continue;
        const int64_t columns = channel ? channels : of->shape[1];
        check_shape(v, key, a, 1, of->shape, 0, channel && a->shape[1] == 1 ? 1 : columns);
        if (a->type != RAPT_F32 || scales->present) fail(v, "%s: scales are one array of f32", key);
        const int64_t stride = a->shape[1] > 1 ? 4 : 0;
        *scales = (rapt_scales){1, 0, a->shape[1] * 4, channel ? 0 : 4, channel ? stride : 0};
        *at = a->data;
    }
}

/* Sets what follows the last column of a mask or a bias. */
static rapt_rest rest_of(vector *v, const char *key) {
    static const char *const rests[] = {"masked", "attended"};
    return NAME_OF(v, key, rests, 0) ? RAPT_REST_ATTENDED : RAPT_REST_MASKED;
}

/* Reads the masks, biases and positions of attention of heads x queries. */
static void read_features(vector *v, int64_t heads, int64_t queries, rapt_desc *d, rapt_args *args, int32_t offsets[2]) {
    static const char *const causal[] = {"none", "top-left", "bottom-right"};
    static const rapt_causal causals[] = {RAPT_CAUSAL_NONE, RAPT_CAUSAL_TOP_LEFT, RAPT_CAUSAL_BOTTOM_RIGHT};
    static const char *const alibi[] = {"none", "distance", "bias"};
    static const rapt_alibi alibis[] = {RAPT_ALIBI_NONE, RAPT_ALIBI_DISTANCE, RAPT_ALIBI_BIAS};
    const int64_t rows[2] = {heads, queries};
    d->causal = causals[NAME_OF(v, "causal", causal, 0)];
    d->alibi = alibis[NAME_OF(v, "alibi", alibi, 0)];
    integer_of(v, "window_left", &d->window_left);
    integer_of(v, "window_right", &d->window_right);
    integer_of(v, "prefix", &d->prefix);
    integer_of(v, "local_chunk", &d->local_chunk);
    float_of(v, "scale", &d->scale);
    float_of(v, "softcap", &d->softcap);
    int64_t offset;
    if (integer_of(v, "q_offset", &offset)) offsets[0] = (int32_t)offset, args->q_offsets = &offsets[0];
    if (integer_of(v, "k_offset", &offset)) offsets[1] = (int32_t)offset, args->k_offsets = &offsets[1];
    const array *a = array_of(v, "mask", 3, 3);
    if (a) {
        check_shape(v, "mask", a, 2, rows, 3, a->shape[2]);
        d->mask = layout_of(a), d->mask_keys = a->shape[2], d->mask_rest = rest_of(v, "mask_rest"), args->mask = a->data;
    }
    if ((a = array_of(v, "bias", 3, 3))) {
        check_shape(v, "bias", a, 2, rows, 3, a->shape[2]);
        d->bias = layout_of(a), d->bias_keys = a->shape[2], d->bias_rest = rest_of(v, "bias_rest"), args->bias = a->data;
    }
    const struct {
        const char *key;
        rapt_layout *layout;
        const void **at;
    } of_heads[] = {{"slopes", &d->slopes, &args->slopes}, {"sinks", &d->sinks, &args->sinks}};
    for (int i = 0; i < 2; i++) {
        if (!(a = array_of(v, of_heads[i].key, 1, 1))) continue;
        check_shape(v, of_heads[i].key, a, 0, NULL, 0, heads);
        *of_heads[i].layout = (rapt_layout){a->type, 0, a->size, 0};
        *of_heads[i].at = a->data;
    }
}

/* Attention: q [heads, queries, d_k], k [KV heads, keys, d_k], v [KV heads, keys, d_v], o [heads, queries, d_v], lse [heads,
 * queries]. */
static void attend(vector *v, const char *isa, result results[RESULTS]) {
    rapt_desc d;
    rapt_args args;
    rapt_plan plan;
    int32_t offsets[2];
    char text[CLI_LINE_BYTES] = "";
    rapt_desc_init(&d);
    rapt_args_init(&args);
    const array *q = needed(v, "q", 3), *k = needed(v, "k", 3), *values = needed(v, "v", 3), *o = needed(v, "o", 3);
    const array *lse = array_of(v, "lse", 2, 2);
    if (v->failed) return;
    d.heads = q->shape[0], d.q_len = q->shape[1], d.d_k = q->shape[2];
    d.kv_heads = k->shape[0], d.kv_len = k->shape[1], d.d_v = o->shape[2];
    check_shape(v, "k", k, 2, (int64_t[]){d.kv_heads, d.kv_len}, 0, d.d_k);
    check_shape(v, "v", values, 2, (int64_t[]){d.kv_heads, d.kv_len}, 0, d.d_v);
    check_shape(v, "o", o, 2, (int64_t[]){d.heads, d.q_len}, 0, d.d_v);
    check_shape(v, "lse", lse, 1, &d.heads, 0, d.q_len);
    d.isa = isa, d.arith = (rapt_arith)NAME_OF(v, "arith", arithmetics, 0);
    set_scales(v, 'k', k, d.d_k, &d.k_scales, &args.k_scales);
    set_scales(v, 'v', values, d.d_v, &d.v_scales, &args.v_scales);
    read_features(v, d.heads, d.q_len, &d, &args, offsets);
    d.q = layout_of(q), d.k = layout_of(k), d.v = layout_of(values), d.o = layout_of(o);
    if (lse) d.lse = (rapt_layout){lse->type, 0, lse->shape[1] * lse->size, lse->size};
    args.q = q->data, args.k = k->data, args.v = values->data;
    args.o = create_result(v, &results[0], "o", o);
    args.lse = create_result(v, &results[1], "lse", lse);
    if (v->failed) return;
    if (refused(v, rapt_plan_explain(&d, text, sizeof text), text) || refused(v, rapt_plan_init(&plan, &d), text) ||
        refused(v, rapt_workspace_size(&plan, 1, &args.workspace_bytes), text))
        return;
    args.workspace = create_workspace(args.workspace_bytes);
    if (!args.workspace) fail(v, "no memory for its workspace");
    else if (rapt_run(&plan, &args) != RAPT_OK) {
        rapt_args_explain(&plan, &args, 1, text, sizeof text);
        fail(v, "%s", text);
    }
    aligned_destroy(args.workspace);
}

/* Reads scales or biases of f32, [channels], or returns null if there are none. */
static const float *of_channels(vector *v, const char *key, int64_t channels) {
    const array *a = array_of(v, key, 1, 1);
    check_shape(v, key, a, 0, NULL, 0, channels);
    if (a && a->type != RAPT_F32) fail(v, "%s: it must be f32", key);
    return a && !v->failed ? a->data : NULL;
}

/* A linear layer: x [tokens, in], weight [out, in], y [tokens, out]. */
static void map_linearly(vector *v, const char *isa, result results[RESULTS]) {
    static const char *const names[] = {"none", "relu", "gelu", "gelu-tanh", "silu"};
    static const rapt_activation activations[] = {RAPT_ACTIVATION_NONE, RAPT_RELU, RAPT_GELU, RAPT_GELU_TANH, RAPT_SILU};
    rapt_linear_desc d;
    rapt_linear_args args;
    rapt_linear_plan plan;
    char text[CLI_LINE_BYTES] = "";
    rapt_linear_desc_init(&d);
    rapt_linear_args_init(&args);
    const array *x = needed(v, "x", 2), *weight = needed(v, "weight", 2), *y = needed(v, "y", 2);
    const array *gate = array_of(v, "gate", 2, 2), *residual = array_of(v, "residual", 2, 2);
    if (v->failed) return;
    d.tokens = x->shape[0], d.in = x->shape[1], d.out = y->shape[1], d.isa = isa;
    check_shape(v, "weight", weight, 1, &d.out, 0, d.in);
    check_shape(v, "gate", gate, 1, &d.out, 0, d.in);
    check_shape(v, "y", y, 1, &d.tokens, 0, d.out);
    check_shape(v, "residual", residual, 1, &d.tokens, 0, d.out);
    d.arith = (rapt_arith)NAME_OF(v, "arith", arithmetics, 0);
    d.activation = activations[NAME_OF(v, "activation", names, 0)];
    args.bias = of_channels(v, "bias", d.out), args.scales = of_channels(v, "scales", d.out);
    args.gate_bias = of_channels(v, "gate_bias", d.out), args.gate_scales = of_channels(v, "gate_scales", d.out);
    args.y = create_result(v, &results[0], "y", y);
    if (v->failed) return;
    d.x = layout_of(x), d.weight = layout_of(weight), d.y = layout_of(y);
    args.x = x->data, args.weight = weight->data;
    if (gate) d.gate = layout_of(gate), args.gate = gate->data;
    if (residual) d.residual = layout_of(residual), args.residual = residual->data;
    if (refused(v, rapt_linear_explain(&d, text, sizeof text), text) || refused(v, rapt_linear_plan_init(&plan, &d), text) ||
        refused(v, rapt_linear_workspace_size(&plan, 1, &args.workspace_bytes), text))
        return;
    args.workspace = create_workspace(args.workspace_bytes);
    if (!args.workspace) fail(v, "no memory for its workspace");
    else if (rapt_linear_run(&plan, &args) != RAPT_OK) {
        rapt_linear_args_explain(&plan, &args, 1, text, sizeof text);
        fail(v, "%s", text);
    }
    aligned_destroy(args.workspace);
}

/* Layer or RMS normalisation: x, y and residual [tokens, channels]. */
static void normalise(vector *v, const char *isa, result results[RESULTS], bool rms) {
    rapt_norm_args args;
    rapt_norm_args_init(&args);
    const array *x = needed(v, "x", 2), *y = needed(v, "y", 2), *residual = array_of(v, "residual", 2, 2);
    if (v->failed) return;
    args.tokens = x->shape[0], args.channels = x->shape[1], args.isa = isa;
    check_shape(v, "y", y, 1, &args.tokens, 0, args.channels);
    check_shape(v, "residual", residual, 1, &args.tokens, 0, args.channels);
    args.weight = of_channels(v, "weight", args.channels), args.bias = of_channels(v, "bias", args.channels);
    float_of(v, "epsilon", &args.epsilon);
    args.to = create_result(v, &results[0], "y", y);
    if (v->failed) return;
    args.x = layout_of(x), args.y = layout_of(y), args.from = x->data;
    if (residual) args.residual = layout_of(residual), args.residual_from = residual->data;
    refused(v, rms ? rapt_rms_norm_run(&args) : rapt_layer_norm_run(&args), "");
}

static void normalise_layer(vector *v, const char *isa, result results[RESULTS]) { normalise(v, isa, results, false); }
static void normalise_rms(vector *v, const char *isa, result results[RESULTS]) { normalise(v, isa, results, true); }

/* Rotation: x and y [heads, tokens, channels], positions [tokens] of i32, frequencies [pairs] of float64. It is the same in both
 * rounding classes, and no kernel computes it. */
static void rotate(vector *v, const char *isa, result results[RESULTS]) {
    static const char *const pairs[] = {"halves", "interleaved"};
    (void)isa;
    rapt_rope_args args;
    rapt_rope_args_init(&args);
    const array *x = needed(v, "x", 3), *y = needed(v, "y", 3), *positions = needed(v, "positions", 1);
    const array *frequencies = needed(v, "frequencies", 1);
    float amplitude = 1;
    float_of(v, "amplitude", &amplitude);
    integer_of(v, "offset", &args.rope.offset);
    if (v->failed) return;
    args.heads = x->shape[0], args.tokens = x->shape[1], args.d = x->shape[2];
    check_shape(v, "y", y, 2, x->shape, 0, args.d);
    check_shape(v, "positions", positions, 0, NULL, 0, args.tokens);
    if (positions->type != RAPT_I32 || frequencies->type != RAPT_NONE) fail(v, "positions are i32 and frequencies float64");
    args.rope.channels = 2 * frequencies->shape[0], args.rope.frequencies = frequencies->data, args.rope.amplitude = amplitude;
    args.rope.interleaved = NAME_OF(v, "pairs", pairs, 0);
    args.to = create_result(v, &results[0], "y", y);
    if (v->failed) return;
    args.in = layout_of(x), args.out = layout_of(y), args.from = x->data, args.positions = positions->data;
    refused(v, rapt_rope_run(&args), "");
}

static const char *const operations[] = {"attention", "linear", "layer-norm", "rms-norm", "rotation"};
static void (*const run_operation[])(vector *, const char *isa, result[RESULTS]) = {attend, map_linearly, normalise_layer,
                                                                                    normalise_rms, rotate};

/* ---- The command -------------------------------------------------------------------------------------------------------- */

/* What is counted over the vectors. */
typedef struct counts {
    int vectors, different;
    unsigned kernels; /* bits, by number */
} counts;

/* Computes a vector by one kernel and compares. */
static void check_by(vector *v, const char *isa, int operation, bool *different) {
    result results[RESULTS] = {{0}};
    run_operation[operation](v, isa, results);
    for (entry *e = v->entries; e < v->entries + v->entry_count; e++)
        if (!e->used) fail(v, "%s is not known, or not for this operation", e->key);
    for (result *r = results; r < results + RESULTS; r++) {
        if (r->wanted && !v->failed) *different |= differs(v, r, isa);
        aligned_destroy(r->computed);
    }
    while (v->array_count) free(v->arrays[--v->array_count].data);
}

/* Checks a vector by the kernels of its class, of which `only` may name one. Returns false if it is no vector. */
static bool check_vector(vector *v, const char *only, counts *n) {
    static const char *const classes[] = {"any", "fused", "unfused"};
    if (!v->name) return true;
    const int class_of = NAME_OF(v, "class", classes, 0), operation = NAME_OF(v, "operation", operations, -1);
    if (operation < 0) fail(v, "operation is missing");
    bool different = false;
    const char *name;
    for (int i = 0; (name = rapt_isa_name(i)) && !v->failed; i++) {
        if (rapt_isa_usable(name, NULL, 0) != RAPT_OK || (only && strcmp(name, only) != 0)) continue;
        if (class_of && strcmp(rapt_isa_rounding(name), classes[class_of]) != 0) continue;
        check_by(v, name, operation, &different);
        n->kernels |= 1u << i;
    }
    n->vectors++;
    n->different += different;
    return !v->failed;
}

/* Checks the vectors of a manifest, which it cuts into lines and words. */
static int check_manifest(const char *folder, char *text, const char *only, counts *n) {
    vector v = {.folder = folder};
    bool versioned = false;
    int number = 0;
    for (char *line = text, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        number++;
        size_t length = strcspn(line, "\r");
        while (length && line[length - 1] == ' ') length--;
        line[length] = 0;
        char *equals = strstr(line, " = ");
        if (!length || *line == '#') continue;
        if (*line == '[' && line[length - 1] == ']' && versioned) {
            if (!check_vector(&v, only, n)) return CLI_ERROR;
            line[length - 1] = 0;
            v = (vector){.folder = folder, .name = line + 1};
        } else if (equals && v.name && v.entry_count < MOST_ENTRIES) {
            *equals = 0;
            v.entries[v.entry_count++] = (entry){line, equals + 3, false};
        } else if (equals && !v.name && !strncmp(line, "order_version = ", 16)) {
            if (strcmp(equals + 3, "1") != 0)
                return cli_fail(PROGRAM, "%s/manifest.ini: order version %s: this library computes version 1", folder,
                                equals + 3);
            versioned = true;
        } else {
            return cli_fail(PROGRAM, "%s/manifest.ini: line %d: [NAME] or KEY = VALUE is needed, after order_version = 1", folder,
                            number);
        }
    }
    return check_vector(&v, only, n) ? 0 : CLI_ERROR;
}

/* Prints what was compared. */
static void report(const counts *n) {
    printf("%d vectors, by", n->vectors);
    for (int i = 0; rapt_isa_name(i); i++)
        if (n->kernels >> i & 1) printf(" %s", rapt_isa_name(i));
    if (n->different) printf(": %d differ\n", n->different);
    else printf(": all equal\n");
}

int cli_vectors(int argc, char **argv) {
    enum { VECTORS, ISA, HELP, OPTIONS };
    static const cli_option options[OPTIONS] = {
        [VECTORS] = {"vectors", CLI_VALUE}, [ISA] = {"isa", CLI_VALUE}, [HELP] = {"help", CLI_FLAG}};
    const char *value[OPTIONS];
    if (cli_parse(PROGRAM, options, OPTIONS, argc, argv, value)) return CLI_ERROR;
    if (value[HELP]) {
        fputs(help, stdout);
        return 0;
    }
    if (value[ISA] && cli_check_isa(PROGRAM, value[ISA])) return CLI_ERROR;
    char path[4096];
    file_map file;
    counts n = {0};
    snprintf(path, sizeof path, "%s/manifest.ini", value[VECTORS]);
    const char *const unreadable = map_open(&file, path);
    if (unreadable) return cli_fail(PROGRAM, "%s: %s", path, unreadable);
    char *text = malloc(file.bytes + 1);
    if (text) memcpy(text, file.at, file.bytes), text[file.bytes] = 0;
    int status = text ? check_manifest(value[VECTORS], text, value[ISA], &n) : cli_fail(PROGRAM, "%s: no memory", path);
    map_close(&file);
    free(text);
    if (!status && !n.vectors) status = cli_fail(PROGRAM, "%s: it has no vectors", path);
    if (!status && !n.kernels) status = cli_fail(PROGRAM, "%s: no kernel of their rounding class can run here", path);
    if (!status) report(&n);
    return status ? status : n.different > 0;
}
