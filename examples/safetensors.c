/* SPDX-License-Identifier: Apache-2.0 */
/* A file is the header's length (8 bytes), the header (JSON), and the tensors' bytes:
 *
 *     {"__metadata__": {"key": "value", ...}, "name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}
 *
 * Of JSON only this is understood; a key that is not known here is an error. */
#define _POSIX_C_SOURCE 200809L
#include "safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct reader {
    const char *at, *end;
    char *strings; /* where the next string goes: never longer than in the header, its quotes being more than its terminator */
    const char *path;
    char *error;
} reader;

__attribute__((format(printf, 2, 3))) static int fail(const reader *r, const char *format, ...) {
    const int length = snprintf(r->error, SAFETENSORS_ERROR_BYTES, "%.200s: ", r->path);
    va_list args;
    va_start(args, format);
    vsnprintf(r->error + length, SAFETENSORS_ERROR_BYTES - (size_t)length, format, args);
    va_end(args);
    return -1;
}

static int not_json(const reader *r) { return fail(r, "the header is not that of a safetensors file"); }

/* The next character that is not white space; 0 at the end. */
static char peek(reader *r) {
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\r' || *r->at == '\t')) r->at++;
    return r->at < r->end ? *r->at : 0;
}

static int take(reader *r, char wanted) {
    if (peek(r) != wanted) return not_json(r);
    r->at++;
    return 0;
}

/* After an element: 1 if another follows, 0 after the last. */
static int more(reader *r, char close) {
    if (peek(r) != ',' && peek(r) != close) return not_json(r);
    return *r->at++ == ',';
}

static int hex(reader *r, uint32_t *code) {
    *code = 0;
    for (int i = 0; i < 4; i++, r->at++) {
        if (r->at == r->end) return not_json(r);
        const char c = *r->at;
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0) return not_json(r);
        *code = *code * 16 + (uint32_t)digit;
    }
    return 0;
}

/* \uXXXX, behind the u, as UTF-8; two of them for what is beyond 16 bits. */
static int escaped(reader *r, char **to) {
    uint32_t code, low;
    if (hex(r, &code)) return -1;
    if (code >= 0xd800 && code < 0xdc00) {
        if (r->end - r->at < 2 || r->at[0] != '\\' || r->at[1] != 'u') return not_json(r);
        r->at += 2;
        if (hex(r, &low)) return -1;
        if (low < 0xdc00 || low > 0xdfff) return not_json(r);
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code == 0 || (code >= 0xdc00 && code <= 0xdfff)) return not_json(r);
    const int extra = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const unsigned char first[] = {0, 0xc0, 0xe0, 0xf0};
    *(*to)++ = (char)(first[extra] | code >> 6 * extra);
    for (int i = extra - 1; i >= 0; i--) *(*to)++ = (char)(0x80 | (code >> 6 * i & 0x3f));
    return 0;
}

static int string(reader *r, const char **value) {
    if (take(r, '"')) return -1;
    char *to = r->strings;
    *value = to;
    for (;;) {
        if (r->at == r->end || (unsigned char)*r->at < ' ') return not_json(r);
        const char c = *r->at++;
        if (c == '"') break;
        if (c != '\\') {
            *to++ = c;
            continue;
        }
        if (r->at == r->end) return not_json(r);
        static const char from[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
        const char kind = *r->at++;
        const char *known = kind ? strchr(from, kind) : NULL;
        if (known) *to++ = meant[known - from];
        else if (kind != 'u') return not_json(r);
        else if (escaped(r, &to)) return -1;
    }
    *to++ = 0;
    r->strings = to;
    return 0;
}

static int number(reader *r, int64_t *value) {
    *value = 0;
    if (peek(r) < '0' || *r->at > '9') return not_json(r);
    for (; r->at < r->end && *r->at >= '0' && *r->at <= '9'; r->at++) {
        if (*value > (INT64_MAX - 9) / 10) return not_json(r);
        *value = *value * 10 + (*r->at - '0');
    }
    return 0;
}

static int numbers(reader *r, int most, int64_t *values, int *count) {
    *count = 0;
    if (take(r, '[')) return -1;
    if (peek(r) == ']') {
        r->at++;
        return 0;
    }
    int next;
    do {
        if (*count == most) return fail(r, "the header has a list of more than %d numbers", most);
        if (number(r, &values[(*count)++])) return -1;
        next = more(r, ']');
        if (next < 0) return -1;
    } while (next);
    return 0;
}

/* Room for one more element in list, which has count of them; it doubles at powers of two. Null without memory. */
static void *grown(void *list, size_t count, size_t size) {
    if (count & (count - 1)) return list;
    return count > SIZE_MAX / 2 / size ? NULL : realloc(list, (count ? 2 * count : 1) * size);
}

static int metadata(reader *r, safetensors_file *file) {
    if (take(r, '{')) return -1;
    if (peek(r) == '}') {
        r->at++;
        return 0;
    }
    int next;
    do {
        struct safetensors_metadata *list = grown(file->metadata, file->metadata_count, sizeof *list);
        if (!list) return fail(r, "%s", strerror(ENOMEM));
        file->metadata = list;
        struct safetensors_metadata *entry = &list[file->metadata_count];
        if (string(r, &entry->key) || take(r, ':') || string(r, &entry->value)) return -1;
        file->metadata_count++;
        next = more(r, '}');
        if (next < 0) return -1;
    } while (next);
    return 0;
}

static const struct dtype {
    const char *name;
    rapt_type type;
    int bytes;
} dtypes[] = {
    {"F32", RAPT_F32, 4},
    {"F16", RAPT_F16, 2},
    {"BF16", RAPT_BF16, 2},
    {"F8_E4M3", RAPT_F8_E4M3, 1},
    {"F8_E5M2", RAPT_F8_E5M2, 1},
    {"I8", RAPT_INT8, 1},
    {"I32", RAPT_I32, 4},
    {"BOOL", RAPT_BOOL, 1},
    {"U8", 0, 1},
    {"I16", 0, 2},
    {"U16", 0, 2},
    {"U32", 0, 4},
    {"F64", 0, 8},
    {"I64", 0, 8},
    {"U64", 0, 8},
};

/* The object behind a tensor's name. data: all tensors' bytes, of which there are bytes. */
static int tensor(reader *r, const char *data, int64_t bytes, safetensors_tensor *t) {
    const struct dtype *dtype = NULL;
    int64_t offsets[2];
    int have_shape = 0, offset_count = 0, next;
    if (take(r, '{')) return -1;
    do {
        const char *key, *name;
        if (string(r, &key) || take(r, ':')) return -1;
        if (!strcmp(key, "dtype") && !dtype) {
            if (string(r, &name)) return -1;
            for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
                if (!strcmp(name, dtypes[i].name)) dtype = &dtypes[i];
            if (!dtype) return fail(r, "tensor '%.80s': dtype '%.20s' is not known", t->name, name);
        } else if (!strcmp(key, "shape") && !have_shape) {
            if (numbers(r, SAFETENSORS_MAX_RANK, t->dims, &t->rank)) return -1;
            have_shape = 1;
        } else if (!strcmp(key, "data_offsets") && !offset_count) {
            if (numbers(r, 2, offsets, &offset_count)) return -1;
        } else return fail(r, "tensor '%.80s': '%.20s' is not known, or there twice", t->name, key);
        next = more(r, '}');
        if (next < 0) return -1;
    } while (next);
    if (!dtype || !have_shape || offset_count != 2)
        return fail(r, "tensor '%.80s': dtype, shape or data_offsets is missing", t->name);
    int64_t size = dtype->bytes;
    for (int i = 0; i < t->rank; i++) {
        if (t->dims[i] && size > INT64_MAX / t->dims[i]) return fail(r, "tensor '%.80s': the shape is too large", t->name);
        size *= t->dims[i];
    }
    if (offsets[0] > offsets[1] || offsets[1] > bytes) return fail(r, "tensor '%.80s' is not within the file", t->name);
    if (offsets[1] - offsets[0] != size) return fail(r, "tensor '%.80s': its bytes are not those of its shape", t->name);
    t->type = dtype->type;
    t->data = data + offsets[0];
    return 0;
}

static int header(reader *r, safetensors_file *file) {
    const char *data = r->end;
    const int64_t bytes = (int64_t)file->bytes - (data - (const char *)file->map);
    if (take(r, '{')) return -1;
    int next = peek(r) != '}';
    if (!next) r->at++;
    while (next) {
        const char *name;
        if (string(r, &name) || take(r, ':')) return -1;
        if (!strcmp(name, "__metadata__")) {
            if (file->metadata) return fail(r, "there are two __metadata__");
            if (metadata(r, file)) return -1;
        } else {
            safetensors_tensor *list = grown(file->tensors, file->tensor_count, sizeof *list), other;
            if (!list) return fail(r, "%s", strerror(ENOMEM));
            file->tensors = list;
            if (!safetensors_find(file, name, &other)) return fail(r, "there are two tensors '%.80s'", name);
            list[file->tensor_count] = (safetensors_tensor){.name = name};
            if (tensor(r, data, bytes, &list[file->tensor_count])) return -1;
            file->tensor_count++;
        }
        next = more(r, '}');
        if (next < 0) return -1;
    }
    return peek(r) ? not_json(r) : 0;
}

static int map(const reader *r, safetensors_file *file) {
    const int descriptor = open(r->path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (descriptor < 0) return fail(r, "%s", strerror(errno));
    int result = 0;
    if (fstat(descriptor, &status)) result = fail(r, "%s", strerror(errno));
    else if (!S_ISREG(status.st_mode)) result = fail(r, "not a file");
    else if (status.st_size < 8) result = fail(r, "too short for a safetensors file");
    else {
        file->bytes = (size_t)status.st_size;
        file->map = mmap(NULL, file->bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
        if (file->map == MAP_FAILED) {
            file->map = NULL;
            result = fail(r, "%s", strerror(errno));
        }
    }
    close(descriptor);
    return result;
}

int safetensors_open(const char *path, safetensors_file *file, char error[SAFETENSORS_ERROR_BYTES]) {
    reader r = {.path = path, .error = error};
    *file = (safetensors_file){0};
    if (map(&r, file)) return -1;
    const unsigned char *start = file->map;
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) length = length << 8 | start[i];
    int result;
    if (length > file->bytes - 8) result = fail(&r, "cut short, or not a safetensors file");
    else if (!(file->strings = malloc(length + 1))) result = fail(&r, "%s", strerror(ENOMEM));
    else {
        r.at = (const char *)start + 8;
        r.end = r.at + length;
        r.strings = file->strings;
        result = header(&r, file);
    }
    if (result) safetensors_close(file);
    return result;
}

void safetensors_close(safetensors_file *file) {
    if (file->map) munmap(file->map, file->bytes);
    free(file->strings);
    free(file->tensors);
    free(file->metadata);
    *file = (safetensors_file){0};
}

int safetensors_find(const safetensors_file *file, const char *name, safetensors_tensor *tensor) {
    for (size_t i = 0; i < file->tensor_count; i++)
        if (!strcmp(name, file->tensors[i].name)) {
            *tensor = file->tensors[i];
            return 0;
        }
    return -1;
}

const char *safetensors_metadata(const safetensors_file *file, const char *key) {
    for (size_t i = 0; i < file->metadata_count; i++)
        if (!strcmp(key, file->metadata[i].key)) return file->metadata[i].value;
    return NULL;
}
