/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the tensors are used as they lie in the file, whose numbers are little-endian"
#endif

enum { MOST_HEADER_BYTES = 100000000 }; /* that of the format's own library */

__attribute__((format(printf, 2, 3))) static bool say(char *fault, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(fault, SAFETENSORS_FAULT_BYTES, format, args);
    va_end(args);
    return false;
}

/* ---- JSON, as far as a header has it: objects, lists of numbers, strings ------------------------------------------------- */

typedef struct cursor {
    const char *at, *end;
} cursor;

static bool take(cursor *c, char wanted) {
    while (c->at < c->end && memchr(" \t\r\n", *c->at, 4)) c->at++;
    if (c->at == c->end || *c->at != wanted) return false;
    c->at++;
    return true;
}

/* The text between quotes. Escapes are left as they are: no name that is looked for has any. */
static bool take_string(cursor *c, cursor *text) {
    if (!take(c, '"')) return false;
    text->at = c->at;
    for (; c->at < c->end && *c->at != '"'; c->at++) {
        if ((unsigned char)*c->at < ' ') return false;
        if (*c->at == '\\' && ++c->at == c->end) return false;
    }
    text->end = c->at;
    return take(c, '"');
}

static bool is_text(cursor text, const char *wanted) {
    return (size_t)(text.end - text.at) == strlen(wanted) && !memcmp(text.at, wanted, strlen(wanted));
}

/* At most most numbers of 0 to INT64_MAX, in brackets. */
static bool take_list(cursor *c, int64_t *numbers, int most, int *count) {
    *count = 0;
    if (!take(c, '[')) return false;
    if (take(c, ']')) return true;
    do {
        while (c->at < c->end && memchr(" \t\r\n", *c->at, 4)) c->at++;
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

/* Of "__metadata__": strings by name. */
static bool take_metadata(cursor *c) {
    cursor text;
    if (!take(c, '{')) return false;
    if (take(c, '}')) return true;
    do
        if (!take_string(c, &text) || !take(c, ':') || !take_string(c, &text)) return false;
    while (take(c, ','));
    return take(c, '}');
}

static bool take_tensor(cursor *c, safetensor *tensor) {
    unsigned seen = 0;
    if (!take(c, '{')) return false;
    do {
        cursor key, type;
        int count;
        int64_t offsets[2];
        if (!take_string(c, &key) || !take(c, ':')) return false;
        const unsigned which = is_text(key, "dtype") ? 1 : is_text(key, "shape") ? 2 : is_text(key, "data_offsets") ? 4 : 8;
        if (which == 8 || seen & which) return false;
        seen |= which;
        if (which == 1) {
            if (!take_string(c, &type) || (size_t)(type.end - type.at) >= sizeof tensor->type) return false;
            memcpy(tensor->type, type.at, (size_t)(type.end - type.at));
        } else if (which == 2) {
            if (!take_list(c, tensor->shape, SAFETENSORS_MAX_DIMS, &tensor->dims)) return false;
        } else {
            if (!take_list(c, offsets, 2, &count) || count != 2) return false;
            tensor->begin = (uint64_t)offsets[0], tensor->end = (uint64_t)offsets[1];
        }
    } while (take(c, ','));
    return take(c, '}') && seen == 7;
}

/* ---- The file ------------------------------------------------------------------------------------------------------------ */

/* Bits of an element; 0 for a type that is not known. */
static uint64_t type_bits(const char *type) {
    static const struct {
        char name[8];
        uint64_t bits;
    } types[] = {{"BOOL", 8},  {"U8", 8},   {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"I16", 16}, {"U16", 16}, {"F16", 16},
                 {"BF16", 16}, {"I32", 32}, {"U32", 32}, {"F32", 32},    {"F64", 64},    {"I64", 64}, {"U64", 64}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strcmp(type, types[i].name)) return types[i].bits;
    return 0;
}

static int by_place(const void *a, const void *b) {
    const safetensor *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

static int by_name(const void *a, const void *b) {
    const safetensor *x = a, *y = b;
    const int order = memcmp(x->name, y->name, x->name_bytes < y->name_bytes ? x->name_bytes : y->name_bytes);
    return order ? order : (x->name_bytes > y->name_bytes) - (x->name_bytes < y->name_bytes);
}

/* "tensor 'NAME'", for messages. */
#define NAMED(tensor) (tensor).name_bytes < 80 ? (int)(tensor).name_bytes : 80, (tensor).name

/* The tensors cover the data without a gap, each as long as its shape says. */
static bool check_tensors(safetensors *file, uint64_t data_bytes, char *fault) {
    qsort(file->tensors, file->count, sizeof *file->tensors, by_name);
    for (size_t i = 1; i < file->count; i++)
        if (!by_name(&file->tensors[i - 1], &file->tensors[i]))
            return say(fault, "tensor '%.*s' is there twice", NAMED(file->tensors[i]));
    qsort(file->tensors, file->count, sizeof *file->tensors, by_place);
    uint64_t end = 0;
    for (size_t i = 0; i < file->count; i++) {
        const safetensor *t = &file->tensors[i];
        uint64_t bits = type_bits(t->type);
        if (!bits) return say(fault, "tensor '%.*s' is of the unknown type '%s'", NAMED(*t), t->type);
        for (int d = 0; d < t->dims; d++)
            if (__builtin_mul_overflow(bits, (uint64_t)t->shape[d], &bits))
                return say(fault, "tensor '%.*s' is too large", NAMED(*t));
        if (t->end < t->begin || t->end - t->begin != bits / 8)
            return say(fault, "tensor '%.*s' is given other bytes than its shape needs, %" PRIu64, NAMED(*t), bits / 8);
        if (t->begin != end)
            return say(fault, "tensor '%.*s' begins at byte %" PRIu64 " of the data, the one before ends at %" PRIu64, NAMED(*t),
                       t->begin, end);
        end = t->end;
    }
    if (end != data_bytes) return say(fault, "it has %" PRIu64 " bytes of data, its header describes %" PRIu64, data_bytes, end);
    return true;
}

static bool parse_file(safetensors *file, char *fault) {
    const unsigned char *const bytes = file->map;
    uint64_t header = 0;
    if (file->map_bytes < 8) return say(fault, "not a safetensors file: it ends within its first 8 bytes");
    for (int i = 7; i >= 0; i--) header = header << 8 | bytes[i];
    if (header > MOST_HEADER_BYTES) return say(fault, "not a safetensors file: its header would have %" PRIu64 " bytes", header);
    if (header > file->map_bytes - 8) return say(fault, "it ends within its header of %" PRIu64 " bytes", header);
    const char *const text = (const char *)bytes + 8;
    cursor c = {text, text + header};
    size_t most = 0;
    for (const char *at = text; at < c.end; at++) most += *at == '{'; /* there are not more tensors than that */
    file->tensors = calloc(most + 1, sizeof *file->tensors);
    if (!file->tensors) return say(fault, "%s", strerror(ENOMEM));
    bool good = take(&c, '{'), metadata = false;
    if (good && !take(&c, '}')) {
        do {
            cursor name;
            good = take_string(&c, &name) && take(&c, ':');
            if (good && is_text(name, "__metadata__")) {
                good = !metadata && take_metadata(&c);
                metadata = true;
            } else if (good) {
                safetensor *tensor = &file->tensors[file->count++];
                tensor->name = name.at, tensor->name_bytes = (size_t)(name.end - name.at);
                good = take_tensor(&c, tensor);
            }
        } while (good && take(&c, ','));
        good = good && take(&c, '}');
    }
    while (good && c.at < c.end) good = memchr(" \t\r\n", *c.at++, 4); /* it is padded with spaces */
    if (!good) return say(fault, "malformed header, at its byte %td", c.at - text);
    file->data = bytes + 8 + header;
    return check_tensors(file, file->map_bytes - 8 - header, fault);
}

bool safetensors_open(safetensors *file, const char *path, char fault[SAFETENSORS_FAULT_BYTES]) {
    struct stat st;
    *file = (safetensors){0};
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO is refused below, not waited for */
    if (fd < 0 || fstat(fd, &st)) {
        say(fault, "%s", strerror(errno));
        if (fd >= 0) close(fd);
        return false;
    }
    if (!S_ISREG(st.st_mode) || st.st_size == 0 || (uintmax_t)st.st_size > SIZE_MAX) {
        close(fd);
        return say(fault, "%s", !S_ISREG(st.st_mode) ? "not a regular file" : st.st_size ? strerror(EFBIG) : "it is empty");
    }
    void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    const int error = errno;
    close(fd);
    if (map == MAP_FAILED) return say(fault, "%s", strerror(error));
    file->map = map;
    file->map_bytes = (size_t)st.st_size;
    if (parse_file(file, fault)) return true;
    safetensors_close(file);
    return false;
}

void safetensors_close(safetensors *file) {
    if (file->map) munmap(file->map, file->map_bytes);
    free(file->tensors);
    *file = (safetensors){0};
}

const float *safetensors_f32(const safetensors *file, const char *name, int dims, const int64_t *shape,
                             char fault[SAFETENSORS_FAULT_BYTES]) {
    const safetensor *found = NULL;
    for (size_t i = 0; i < file->count && !found; i++) {
        const safetensor *t = &file->tensors[i];
        if (is_text((cursor){t->name, t->name + t->name_bytes}, name)) found = t;
    }
    if (!found) {
        say(fault, "it has no tensor '%s'", name);
        return NULL;
    }
    if (strcmp(found->type, "F32")) {
        say(fault, "tensor '%s' is of type %s, F32 is needed", name, found->type);
        return NULL;
    }
    if (found->dims != dims || memcmp(found->shape, shape, (size_t)dims * sizeof *shape)) {
        int used = snprintf(fault, SAFETENSORS_FAULT_BYTES, "tensor '%s' must have the shape [", name);
        for (int d = 0; d < dims; d++)
            used += snprintf(fault + used, SAFETENSORS_FAULT_BYTES - (size_t)used, "%s%" PRId64, d ? ", " : "", shape[d]);
        snprintf(fault + used, SAFETENSORS_FAULT_BYTES - (size_t)used, "]");
        return NULL;
    }
    if ((uintptr_t)(file->data + found->begin) % _Alignof(float)) {
        say(fault, "tensor '%s' is not aligned to its elements, as current versions of the format's library write it", name);
        return NULL;
    }
    return (const float *)(const void *)(file->data + found->begin);
}
