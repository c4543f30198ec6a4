/* SPDX-License-Identifier: Apache-2.0 */
#include "safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the tensors are used as they lie in the file, whose numbers are little-endian"
#endif

enum { MOST_HEADER_BYTES = 100000000 }; /* that of the format's own library */

__attribute__((format(printf, 2, 3))) static bool say(char *fault, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(fault, SAFETENSORS_FAULT_BYTES, format, args);
    va_end(args);
    for (char *c = fault; *c; c++) /* a name may have a line end */
        if ((unsigned char)*c < ' ' || *c == 127) *c = '?';
    return false;
}

/* ---- JSON, as far as a header has it: objects, lists of numbers, strings ------------------------------------------------- */

typedef struct cursor {
    const char *at, *end;
    char *strings; /* where the next string goes: never longer than in the header, its quotes being more than its terminator */
} cursor;

static void skip_space(cursor *c) {
    while (c->at < c->end && memchr(" \t\r\n", *c->at, 4)) c->at++;
}

static bool take(cursor *c, char wanted) {
    skip_space(c);
    if (c->at == c->end || *c->at != wanted) return false;
    c->at++;
    return true;
}

/* \uXXXX, behind the backslash. */
static bool take_unit(cursor *c, uint32_t *unit) {
    *unit = 0;
    if (c->end - c->at < 5 || *c->at != 'u') return false;
    c->at++;
    for (int i = 0; i < 4; i++, c->at++) {
        static const char digits[] = "0123456789abcdefABCDEF";
        const char *digit = memchr(digits, *c->at, sizeof digits - 1);
        if (!digit) return false;
        *unit = *unit * 16 + (uint32_t)(digit - digits - (digit - digits > 15 ? 6 : 0));
    }
    return true;
}

/* What stands for a character, behind the backslash, as UTF-8: two units for what is beyond 16 bits. */
static bool take_escape(cursor *c, char **to) {
    static const char letters[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    const char *letter = c->at < c->end ? memchr(letters, *c->at, sizeof letters - 1) : NULL;
    if (letter) {
        c->at++;
        *(*to)++ = meant[letter - letters];
        return true;
    }
    uint32_t code, low;
    if (!take_unit(c, &code) || !code || (code >= 0xdc00 && code < 0xe000)) return false;
    if (code >= 0xd800 && code < 0xdc00) {
        if (c->at == c->end || *c->at++ != '\\' || !take_unit(c, &low) || low < 0xdc00 || low > 0xdfff) return false;
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    static const unsigned char first[] = {0, 0xc0, 0xe0, 0xf0};
    const int extra = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    *(*to)++ = (char)(first[extra] | code >> 6 * extra);
    for (int i = extra - 1; i >= 0; i--) *(*to)++ = (char)(0x80 | (code >> 6 * i & 0x3f));
    return true;
}

static bool take_string(cursor *c, const char **text) {
    if (!take(c, '"')) return false;
    char *to = c->strings;
    for (*text = to; c->at < c->end && *c->at != '"';) {
        if ((unsigned char)*c->at < ' ') return false;
        const char next = *c->at++;
        if (next != '\\') *to++ = next;
        else if (!take_escape(c, &to)) return false;
    }
    *to++ = '\0';
    c->strings = to;
    return take(c, '"');
}

/* At most most numbers of 0 to INT64_MAX, in brackets. */
static bool take_list(cursor *c, int64_t *numbers, int most, int *count) {
    *count = 0;
    if (!take(c, '[')) return false;
    if (take(c, ']')) return true;
    do {
        skip_space(c);
        const char *const first = c->at;
        int64_t number = 0;
        for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++)
            if (__builtin_mul_overflow(number, 10, &number) || __builtin_add_overflow(number, *c->at - '0', &number))
                return false;
        if (c->at == first || *count == most) return false;
        numbers[(*count)++] = number;
    } while (take(c, ','));
    return take(c, ']');
}

static bool take_metadata(cursor *c, safetensors_file *file) {
    if (!take(c, '{')) return false;
    if (take(c, '}')) return true;
    do {
        struct safetensors_metadata *entry = &file->metadata[file->metadata_count++];
        if (!take_string(c, &entry->key) || !take(c, ':') || !take_string(c, &entry->value)) return false;
    } while (take(c, ','));
    return take(c, '}');
}

static bool take_tensor(cursor *c, safetensors_tensor *tensor) {
    unsigned seen = 0;
    if (!take(c, '{')) return false;
    do {
        const char *key, *dtype;
        int count;
        int64_t offsets[2];
        if (!take_string(c, &key) || !take(c, ':')) return false;
        const unsigned which = !strcmp(key, "dtype") ? 1 : !strcmp(key, "shape") ? 2 : !strcmp(key, "data_offsets") ? 4 : 8;
        if (which == 8 || seen & which) return false;
        seen |= which;
        if (which == 1) {
            if (!take_string(c, &dtype) || strlen(dtype) >= sizeof tensor->dtype) return false;
            snprintf(tensor->dtype, sizeof tensor->dtype, "%s", dtype);
        } else if (which == 2) {
            if (!take_list(c, tensor->dims, SAFETENSORS_MAX_RANK, &tensor->rank)) return false;
        } else {
            if (!take_list(c, offsets, 2, &count) || count != 2) return false;
            tensor->begin = offsets[0], tensor->end = offsets[1];
        }
    } while (take(c, ','));
    return take(c, '}') && seen == 7;
}

static bool take_header(cursor *c, safetensors_file *file) {
    bool metadata = false;
    if (!take(c, '{')) return false;
    if (!take(c, '}')) {
        do {
            const char *name;
            if (!take_string(c, &name) || !take(c, ':')) return false;
            if (!strcmp(name, "__metadata__")) {
                if (metadata || !take_metadata(c, file)) return false;
                metadata = true;
            } else {
                safetensors_tensor *tensor = &file->tensors[file->tensor_count++];
                *tensor = (safetensors_tensor){.name = name};
                if (!take_tensor(c, tensor)) return false;
            }
        } while (take(c, ','));
        if (!take(c, '}')) return false;
    }
    skip_space(c); /* it is padded with spaces */
    return c->at == c->end;
}

/* ---- The file ------------------------------------------------------------------------------------------------------------ */

static const struct dtype {
    char name[8];
    rapt_type type;
    int bytes;
} dtypes[] = {{"BOOL", RAPT_BOOL, 1},
              {"U8", 0, 1},
              {"I8", RAPT_INT8, 1},
              {"F8_E5M2", RAPT_F8_E5M2, 1},
              {"F8_E4M3", RAPT_F8_E4M3, 1},
              {"I16", 0, 2},
              {"U16", 0, 2},
              {"F16", RAPT_F16, 2},
              {"BF16", RAPT_BF16, 2},
              {"I32", RAPT_I32, 4},
              {"U32", 0, 4},
              {"F32", RAPT_F32, 4},
              {"F64", 0, 8},
              {"I64", 0, 8},
              {"U64", 0, 8}};

static const struct dtype *find_dtype(const char *name) {
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (!strcmp(name, dtypes[i].name)) return &dtypes[i];
    return NULL;
}

static int by_place(const void *a, const void *b) {
    const safetensors_tensor *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

static int by_name(const void *a, const void *b) {
    const safetensors_tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* Names, types and places: the tensors cover the data without a gap, each as long as its shape says. */
static bool check_tensors(safetensors_file *file, const char *data, int64_t data_bytes, char *fault) {
    qsort(file->tensors, file->tensor_count, sizeof *file->tensors, by_name);
    for (size_t i = 1; i < file->tensor_count; i++)
        if (!by_name(&file->tensors[i - 1], &file->tensors[i]))
            return say(fault, "tensor '%.80s' is there twice", file->tensors[i].name);
    qsort(file->tensors, file->tensor_count, sizeof *file->tensors, by_place);
    int64_t end = 0;
    for (size_t i = 0; i < file->tensor_count; i++) {
        safetensors_tensor *t = &file->tensors[i];
        const struct dtype *dtype = find_dtype(t->dtype);
        if (!dtype) return say(fault, "tensor '%.80s' is of the unknown type '%s'", t->name, t->dtype);
        int64_t bytes = dtype->bytes;
        for (int d = 0; d < t->rank; d++)
            if (__builtin_mul_overflow(bytes, t->dims[d], &bytes)) return say(fault, "tensor '%.80s' is too large", t->name);
        if (t->end < t->begin || t->end - t->begin != bytes)
            return say(fault, "tensor '%.80s' is given other bytes than its shape needs, %" PRId64, t->name, bytes);
        if (t->begin != end)
            return say(fault, "tensor '%.80s' begins at byte %" PRId64 " of the data, the one before ends at %" PRId64, t->name,
                       t->begin, end);
        t->type = dtype->type;
        end = t->end;
    }
    if (end != data_bytes) return say(fault, "it has %" PRId64 " bytes of data, its header describes %" PRId64, data_bytes, end);
    for (size_t i = 0; i < file->tensor_count; i++) file->tensors[i].data = data + file->tensors[i].begin;
    qsort(file->tensors, file->tensor_count, sizeof *file->tensors, by_name);
    return true;
}

static bool parse_file(safetensors_file *file, char *fault) {
    /* The least that a tensor takes in a header, and an entry of the metadata: one more may be cut short. */
    static const char tensor[] = "'':{'dtype':'','shape':[],'data_offsets':[0,0]}", entry[] = "'':''";
    const unsigned char *const bytes = file->file.at;
    uint64_t header = 0;
    if (file->file.bytes < 8) return say(fault, "not a safetensors file: it ends within its first 8 bytes");
    for (int i = 7; i >= 0; i--) header = header << 8 | bytes[i];
    if (header > MOST_HEADER_BYTES) return say(fault, "not a safetensors file: its header would have %" PRIu64 " bytes", header);
    if (header > file->file.bytes - 8) return say(fault, "it ends within its header of %" PRIu64 " bytes", header);
    file->strings = malloc((size_t)header + 1);
    file->tensors = malloc((size_t)(header / (sizeof tensor - 1) + 1) * sizeof *file->tensors);
    file->metadata = malloc((size_t)(header / (sizeof entry - 1) + 1) * sizeof *file->metadata);
    if (!file->strings || !file->tensors || !file->metadata) return say(fault, "%s", strerror(ENOMEM));
    const char *const text = (const char *)bytes + 8;
    cursor c = {text, text + header, file->strings};
    if (!take_header(&c, file)) return say(fault, "malformed header, at its byte %td", c.at - text);
    return check_tensors(file, c.end, (int64_t)(file->file.bytes - 8 - header), fault);
}

bool safetensors_open(safetensors_file *file, const char *path, char fault[SAFETENSORS_FAULT_BYTES]) {
    *file = (safetensors_file){0};
    const char *const unreadable = map_open(&file->file, path);
    if (unreadable) return say(fault, "%s", unreadable);
    if (!file->file.at) return say(fault, "it is empty");
    if (parse_file(file, fault)) return true;
    safetensors_close(file);
    return false;
}

void safetensors_close(safetensors_file *file) {
    map_close(&file->file);
    free(file->strings);
    free(file->tensors);
    free(file->metadata);
    *file = (safetensors_file){0};
}

const char *safetensors_metadata(const safetensors_file *file, const char *key) {
    for (size_t i = 0; i < file->metadata_count; i++)
        if (!strcmp(key, file->metadata[i].key)) return file->metadata[i].value;
    return NULL;
}

const safetensors_tensor *safetensors_find(const safetensors_file *file, const char *name) {
    return bsearch(&(safetensors_tensor){.name = name}, file->tensors, file->tensor_count, sizeof *file->tensors, by_name);
}

const safetensors_tensor *safetensors_shaped(const safetensors_file *file, const char *name, int rank, const int64_t *dims,
                                             char fault[SAFETENSORS_FAULT_BYTES]) {
    const safetensors_tensor *found = safetensors_find(file, name);
    if (!found) {
        say(fault, "it has no tensor '%.80s'", name);
        return NULL;
    }
    if (found->rank == rank && !memcmp(found->dims, dims, (size_t)rank * sizeof *dims)) return found;
    char shape[SAFETENSORS_MAX_RANK * 21 + 1] = ""; /* 19 digits each, a comma and a space */
    for (int d = 0, used = 0; d < rank; d++)
        used += snprintf(shape + used, sizeof shape - (size_t)used, "%s%" PRId64, d ? ", " : "", dims[d]);
    say(fault, "tensor '%.80s' must have the shape [%s]", name, shape);
    return NULL;
}

const float *safetensors_f32(const safetensors_file *file, const char *name, int rank, const int64_t *dims,
                             char fault[SAFETENSORS_FAULT_BYTES]) {
    const safetensors_tensor *found = safetensors_shaped(file, name, rank, dims, fault);
    if (!found) return NULL;
    if (found->type != RAPT_F32) {
        say(fault, "tensor '%.80s' is of type %s, F32 is needed", name, found->dtype);
        return NULL;
    }
    if ((uintptr_t)found->data % _Alignof(float)) {
        say(fault, "tensor '%.80s' is not aligned to its elements, as current versions of the format's library write it", name);
        return NULL;
    }
    return found->data;
}
