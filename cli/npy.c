/* SPDX-License-Identifier: Apache-2.0 */
/* NumPy's .npy files. */
#include "npy.h"
#include "convert.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- The header: a Python dictionary in ASCII -------------------------------------------------------------------------- */

/* Text that is not read yet. */
typedef struct cursor {
    const char *at, *end;
} cursor;

static void skip_space(cursor *c) {
    while (c->at < c->end && memchr(" \t\r\n", *c->at, 4)) c->at++;
}

/* Takes a word, after white space, if it is next; returns whether it was. The other functions take_* do likewise. */
static bool take(cursor *c, const char *word) {
    const size_t length = strlen(word);
    skip_space(c);
    if ((size_t)(c->end - c->at) < length || memcmp(c->at, word, length) != 0) return false;
    c->at += length;
    return true;
}

/* Takes a string in quotes and sets *text to what lies between them. Strings with escapes are refused, since none is needed. */
static bool take_string(cursor *c, cursor *text) {
    if (!take(c, "'") && !take(c, "\"")) return false;
    const char *close = memchr(c->at, c->at[-1], (size_t)(c->end - c->at));
    if (!close || memchr(c->at, '\\', (size_t)(close - c->at))) return false;
    *text = (cursor){c->at, close};
    c->at = close + 1;
    return true;
}

static bool is_text(cursor text, const char *wanted) {
    return (size_t)(text.end - text.at) == strlen(wanted) && !memcmp(text.at, wanted, strlen(wanted));
}

/* Takes a tuple of lengths. Those beyond NPY_MAX_DIMS are counted, but not kept. */
static bool take_shape(cursor *c, npy_array *array) {
    if (!take(c, "(")) return false;
    array->dims = 0;
    for (bool more = true; !take(c, ")"); more = take(c, ",")) { /* take has skipped the space before a digit */
        int64_t length = 0;
        const char *first = c->at;
        for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++)
            if (__builtin_mul_overflow(length, 10, &length) || __builtin_add_overflow(length, *c->at - '0', &length))
                return false;
        if (!more || c->at == first) return false;
        if (c->at < c->end && *c->at == 'L') c->at++; /* the suffix of long integers in Python 2 */
        if (array->dims < NPY_MAX_DIMS) array->shape[array->dims] = length;
        array->dims++;
    }
    return true;
}

/* Sets the type and the byte order by a description such as "<f4". */
static bool parse_type(npy_array *array, cursor descr, npy_wanted wanted) {
    static const char *const names[3] = {"f4", "f2", "b1"};
    static const rapt_type types[3] = {RAPT_F32, RAPT_F16, RAPT_BOOL};
    if (descr.end - descr.at != 3 || !memchr("<>=|", *descr.at, 4)) return false;
    const char order = *descr.at++;
    array->big_endian = order == '<' ? false : order == '>' ? true : __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__;
    array->size = descr.at[1] - '0';
    if (wanted.dtype) return is_text(descr, wanted.dtype);
    for (int i = wanted.booleans ? 2 : 0; i < (wanted.booleans ? 3 : 2); i++) {
        array->type = types[i];
        if (is_text(descr, names[i])) return true;
    }
    return false;
}

/* Parses the header, and checks that the array is one that is wanted; else writes what is wrong to fault. */
static bool parse_header(npy_array *array, cursor c, npy_wanted wanted, bool *fortran, char fault[NPY_FAULT_BYTES]) {
    static const char *const keys[3] = {"descr", "fortran_order", "shape"};
    const char *const dtype = wanted.dtype ? wanted.dtype : wanted.booleans ? "bool" : "float16 or float32";
    const char *const start = c.at;
    cursor descr = {NULL, NULL}, key;
    unsigned seen = 0;
    bool more = true, good = take(&c, "{");
    while (good && !take(&c, "}")) {
        int k = 0;
        good = more && take_string(&c, &key) && take(&c, ":");
        while (good && k < 3 && !is_text(key, keys[k])) k++;
        good = good && k < 3 && !(seen & 1u << k);
        if (!good) break;
        seen |= 1u << k;
        if (k == 0) {
            cursor list = c;
            if (take(&list, "[")) {
                snprintf(fault, NPY_FAULT_BYTES, "its dtype is a structure, %s is needed", dtype);
                return false;
            }
            good = take_string(&c, &descr);
        } else if (k == 1) {
            *fortran = take(&c, "True");
            good = *fortran || take(&c, "False");
        } else {
            good = take_shape(&c, array);
        }
        more = take(&c, ",");
    }
    skip_space(&c);
    if (!good || c.at != c.end) {
        snprintf(fault, NPY_FAULT_BYTES, "malformed header, at its byte %td", c.at - start);
        return false;
    }
    for (int k = 0; k < 3; k++) {
        if (seen & 1u << k) continue;
        snprintf(fault, NPY_FAULT_BYTES, "its header has no '%s'", keys[k]);
        return false;
    }
    if (!parse_type(array, descr, wanted)) {
        const int shown = descr.end - descr.at < 40 ? (int)(descr.end - descr.at) : 40;
        snprintf(fault, NPY_FAULT_BYTES, "its dtype is '%.*s', %s is needed%s", shown, descr.at, dtype,
                 wanted.dtype      ? ""
                 : wanted.booleans ? ": save x.astype(np.bool_)"
                                   : ": save x.astype(np.float32)");
        return false;
    }
    if (array->dims < wanted.least_dims || array->dims > wanted.most_dims) {
        int used = snprintf(fault, NPY_FAULT_BYTES, "it has %d dimension%s, %d", array->dims, array->dims == 1 ? "" : "s",
                            wanted.least_dims);
        if (wanted.most_dims > wanted.least_dims)
            used += snprintf(fault + used, NPY_FAULT_BYTES - (size_t)used, " to %d", wanted.most_dims);
        snprintf(fault + used, NPY_FAULT_BYTES - (size_t)used, " are needed");
        return false;
    }
    return true;
}

/* ---- The file ---------------------------------------------------------------------------------------------------------- */

/* Sets the strides, and *bytes to the size of the array. Returns false if one of them exceeds an int64_t. */
static bool lay_out(npy_array *array, bool fortran, int64_t *bytes) {
    *bytes = array->size;
    for (int n = 0; n < array->dims; n++) {
        const int i = fortran ? n : array->dims - 1 - n;
        array->stride[i] = *bytes;
        if (__builtin_mul_overflow(*bytes, array->shape[i], bytes)) return false;
    }
    return true;
}

/* Parses a mapped file, whose data must be as long as its shape says. */
static bool parse_file(npy_array *array, npy_wanted wanted, char fault[NPY_FAULT_BYTES]) {
    const unsigned char *file = array->file.at;
    const size_t bytes = array->file.bytes;
    if (bytes < 6 || memcmp(file, "\x93NUMPY", 6) != 0) {
        snprintf(fault, NPY_FAULT_BYTES, "not a NumPy file");
        return false;
    }
    const size_t start = bytes > 6 && file[6] > 1 ? 12 : 10;
    if (bytes >= 8 && (file[6] < 1 || file[6] > 3 || file[7])) {
        snprintf(fault, NPY_FAULT_BYTES, "NumPy format %d.%d is unknown, 1.0, 2.0 or 3.0 is needed", file[6], file[7]);
        return false;
    }
    size_t header = 0;
    for (size_t i = start; i-- > 8 && bytes >= start;) header = header << 8 | file[i];
    if (bytes < start || header > bytes - start) {
        snprintf(fault, NPY_FAULT_BYTES, "the file ends within its header");
        return false;
    }
    if (header > UINT16_MAX) {
        snprintf(fault, NPY_FAULT_BYTES, "its header is too long: %zu bytes", header);
        return false;
    }
    const char *text = (const char *)file + start;
    bool fortran = false;
    if (!parse_header(array, (cursor){text, text + header}, wanted, &fortran, fault)) return false;
    int64_t data_bytes;
    if (!lay_out(array, fortran, &data_bytes)) {
        snprintf(fault, NPY_FAULT_BYTES, "its shape is too large");
        return false;
    }
    array->data = file + start + header;
    if ((uint64_t)data_bytes > bytes - start - header) {
        snprintf(fault, NPY_FAULT_BYTES, "the file ends early: %zu bytes of data, its shape needs %" PRId64,
                 bytes - start - header, data_bytes);
        return false;
    }
    return true;
}

bool npy_open(npy_array *array, const char *path, npy_wanted wanted, char fault[NPY_FAULT_BYTES]) {
    memset(array, 0, sizeof *array);
    const char *const unreadable = map_open(&array->file, path);
    if (unreadable) {
        snprintf(fault, NPY_FAULT_BYTES, "%s", unreadable);
        return false;
    }
    if (parse_file(array, wanted, fault)) return true;
    npy_close(array);
    return false;
}

void npy_close(npy_array *array) { map_close(&array->file); }

bool npy_is_row(const npy_array *array, rapt_type type, int64_t n, int64_t stride) {
    const bool native = array->big_endian == (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__) || type == RAPT_BOOL;
    return type == array->type && native && (n <= 1 || stride == (int64_t)convert_size(type));
}

/* Returns the value of the element at `byte`. */
static float element(const npy_array *array, const unsigned char *byte) {
    const int size = (int)convert_size(array->type);
    uint32_t bits = 0;
    for (int i = 0; i < size; i++) bits |= (uint32_t)byte[i] << 8 * (array->big_endian ? size - 1 - i : i);
    return convert_to_float(array->type, bits);
}

void npy_copy_row(const npy_array *array, int64_t offset, rapt_type type, int64_t n, int64_t stride, void *to) {
    const unsigned char *from = array->data + offset;
    unsigned char *at = to;
    for (int64_t i = 0; i < n; i++, from += stride, at += convert_size(type)) {
        if (type == RAPT_BOOL) {
            *at = *from;
            continue;
        }
        const uint32_t bits = convert_from_float(type, element(array, from));
        const uint16_t half = (uint16_t)bits;
        memcpy(at, type == RAPT_F32 ? (const void *)&bits : (const void *)&half, convert_size(type));
    }
}

void *npy_elements(const npy_array *array) {
    int64_t n = 1;
    for (int i = 0; i < array->dims; i++) n *= array->shape[i] != 0; /* where one length is 0, the others may be of any size */
    for (int i = 0; i < array->dims; i++) n *= array->shape[i];
    unsigned char *const elements = malloc((size_t)n * (size_t)array->size + 1), *to = elements;
    const bool other_order = array->big_endian != (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
    for (int64_t i = 0; elements && i < n; i++, to += array->size) {
        int64_t offset = 0, rest = i;
        for (int d = array->dims - 1; d >= 0; rest /= array->shape[d--]) offset += rest % array->shape[d] * array->stride[d];
        for (int b = 0; b < array->size; b++) to[b] = array->data[offset + (other_order ? array->size - 1 - b : b)];
    }
    return elements;
}

bool npy_write(FILE *file, rapt_type type, int dims, const int64_t *shape, const void *data) {
    /* Like numpy.save: format 1.0, with the data aligned to 64 bytes. */
    const rapt_type written = type == RAPT_BF16 ? RAPT_F32 : type;
    char header[192];
    int length = 10 + snprintf(header + 10, sizeof header - 10, "{'descr': '<f%zu', 'fortran_order': False, 'shape': (",
                               convert_size(written));
    int64_t elements = 1;
    for (int i = 0; i < dims; i++) {
        const char *after = dims == 1 ? "," : i + 1 < dims ? ", " : "";
        length += snprintf(header + length, sizeof header - (size_t)length, "%" PRId64 "%s", shape[i], after);
        elements *= shape[i];
    }
    length += snprintf(header + length, sizeof header - (size_t)length, "), }");
    while ((length + 1) % 64) header[length++] = ' ';
    header[length++] = '\n';
    memcpy(header, "\x93NUMPY\1\0", 8);
    header[8] = (char)(length - 10);
    header[9] = (char)((length - 10) >> 8);
    if (fwrite(header, 1, (size_t)length, file) != (size_t)length) return false;

    const unsigned char *element = data;
    while (elements > 0) {
        unsigned char buffer[4096];
        size_t used = 0;
        for (; elements > 0 && used < sizeof buffer; elements--, element += convert_size(type)) {
            uint32_t bits;
            uint16_t half;
            memcpy(&half, element, 2);
            if (type == RAPT_F32) memcpy(&bits, element, 4);
            else bits = type == RAPT_F16 ? half : convert_from_float(RAPT_F32, convert_to_float(RAPT_BF16, half));
            for (size_t i = 0; i < convert_size(written); i++) buffer[used++] = (unsigned char)(bits >> 8 * i);
        }
        if (fwrite(buffer, 1, used, file) != used) return false;
    }
    return true;
}
