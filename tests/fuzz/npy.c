/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a NumPy file, or as the header and the data of one whose lengths are right. It must be refused with a line, or all
 * its elements can be read, are what the format says they are, and come back from the file that npy_write makes of them. */
#include "readers.h"

#include "../../cli/map.c" /* NOLINT(bugprone-suspicious-include): with the calls of readers.h */
#include "../../cli/npy.c" /* NOLINT(bugprone-suspicious-include): with the calls of readers.h */
#include "reference.h"

/* What the file has at that place of the array, by the format's words. */
static float element_of(const npy_array *a, int64_t offset) {
    unsigned char bytes[4];
    const int size = (int)reference_type_bytes(a->type);
    const bool turned = a->big_endian == (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
    for (int i = 0; i < size; i++) bytes[i] = a->data[offset + (turned ? size - 1 - i : i)];
    return reference_load(a->type, bytes);
}

static int64_t offset_of(const npy_array *a, int64_t n) {
    int64_t offset = 0;
    for (int i = a->dims - 1; i >= 0; i--) offset += n % a->shape[i] * a->stride[i], n /= a->shape[i];
    return offset;
}

/* npy_elements gives the bytes of each element of the array, turned where the machine's order is another. */
static void look_at_elements(const npy_array *a) {
    const bool turned = a->big_endian == (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
    int64_t elements = 1;
    for (int i = 0; i < a->dims; i++) elements *= a->shape[i] != 0;
    for (int i = 0; i < a->dims; i++) elements *= a->shape[i];
    unsigned char *const all = npy_elements(a);
    if (!all) abort();
    for (int64_t n = 0; n < elements; n++)
        for (int i = 0; i < a->size; i++)
            require(all[n * a->size + i] == a->data[offset_of(a, n) + (turned ? a->size - 1 - i : i)], "a byte is another");
    free(all);
}

static bool same_float(float a, float b) { return !memcmp(&a, &b, sizeof a) || (isnan(a) && isnan(b)); }

/* The array in C order: rows of the last dimension, each into memory of its own. */
static void *read_all(const npy_array *a, rapt_type type, int64_t elements) {
    const int64_t row = a->dims ? a->shape[a->dims - 1] : 1, stride = a->dims ? a->stride[a->dims - 1] : 0;
    const int64_t bytes = type == RAPT_BOOL ? 1 : reference_type_bytes(type);
    unsigned char *all = malloc((size_t)(elements * bytes) + !elements);
    if (!all) abort();
    for (int64_t n = 0; n < elements; n += row) npy_copy_row(a, offset_of(a, n), type, row, stride, all + n * bytes);
    return all;
}

static void look_at(const npy_array *a) {
    int64_t elements, bytes = sizeof(float);
    bool none = false, any_order = true; /* any_order: lengths but 0 do not overflow, in whatever order they are multiplied */
    for (int i = 0; i < a->dims; i++) {
        none = none || a->shape[i] == 0;
        any_order = any_order && (a->shape[i] == 0 || !__builtin_mul_overflow(bytes, a->shape[i], &bytes));
    }
    require(any_order || none, "more elements than can be counted");
    elements = none ? 0 : bytes / (int64_t)sizeof(float);
    if (a->type == RAPT_BOOL) {
        unsigned char *all = read_all(a, RAPT_BOOL, elements);
        for (int64_t n = 0; n < elements; n++) require(all[n] == a->data[offset_of(a, n)], "a bool is another");
        free(all);
        return;
    }
    float *all = read_all(a, RAPT_F32, elements);
    for (int64_t n = 0; n < elements; n++) require(same_float(all[n], element_of(a, offset_of(a, n))), "an element is another");
    if (a->dims && npy_is_row(a, a->type, a->shape[a->dims - 1], a->stride[a->dims - 1]))
        for (int64_t n = 0; n < elements; n++)
            require(same_float(all[n], reference_load(a->type, a->data + offset_of(a, n))), "it is no row");

    if (!any_order) { /* npy_write is for shapes that a call has had */
        free(all);
        return;
    }
    char *text = NULL, fault[NPY_FAULT_BYTES];
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    if (!file) abort();
    require(npy_write(file, RAPT_F32, a->dims, a->shape, all), "it cannot be written");
    fclose(file);
    npy_array again;
    require(npy_open(&again, file_of(text, size), (npy_wanted){.least_dims = a->dims, .most_dims = a->dims}, fault),
            "it cannot be read again");
    require(again.dims == a->dims && !memcmp(again.shape, a->shape, sizeof *a->shape * (size_t)a->dims), "another shape");
    for (int64_t n = 0; n < elements; n++) require(same_float(all[n], element_of(&again, n * 4)), "another element");
    npy_close(&again);
    free(text);
    free(all);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static uint8_t file[1 << 16];
    static const char *const dtypes[6] = {"f4", "f2", "f8", "u2", "u1", "i8"};
    input in = {bytes, size};
    const uint8_t how = take_byte(&in); /* bits: bool; whole file; version 2; a line's end; a dtype, by the next three */
    const int64_t data = choose(&in, 256), least = 1 + choose(&in, 4);
    size_t used = 0;
    if (how & 2 || in.size > sizeof file - 300) {
        used = in.size < sizeof file ? in.size : sizeof file;
        if (used) memcpy(file, in.bytes, used);
    } else {
        const size_t header = in.size + (how >> 3 & 1), start = how & 4 ? 12 : 10;
        memcpy(file, "\x93NUMPY\1\0\0\0\0\0", 12);
        if (how & 4) file[6] = 2;
        file[8] = (uint8_t)header, file[9] = (uint8_t)(header >> 8);
        if (in.size) memcpy(file + start, in.bytes, in.size);
        if (how & 8) file[start + in.size] = '\n';
        used = start + header;
        for (int64_t i = 0; i < data; i++) file[used++] = (uint8_t)(0x3c + i * 37 % 131); /* any numbers, NaN among them */
    }
    npy_array array;
    char fault[NPY_FAULT_BYTES] = "";
    const npy_wanted wanted = {.booleans = how & 1,
                               .least_dims = (int)least,
                               .most_dims = NPY_MAX_DIMS,
                               .dtype = how & 16 ? dtypes[(how >> 5) % 6] : NULL};
    if (npy_open(&array, file_of(file, used), wanted, fault)) {
        look_at_elements(&array);
        if (!wanted.dtype) look_at(&array);
        npy_close(&array);
    } else {
        require(fault[0] && memchr(fault, 0, sizeof fault) && !array.file.at, "a refusal without a line");
    }
    return 0;
}
