/* SPDX-License-Identifier: Apache-2.0 */
#include "cli.h"
#include "llm.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const gguf_type types[] = {{0, RAPT_F32, 1, 4},       {1, RAPT_F16, 1, 2},      {30, RAPT_BF16, 1, 2},
                                  {2, RAPT_Q4_0, 32, 18},    {3, RAPT_Q4_1, 32, 20},   {8, RAPT_Q8_0, 32, 34},
                                  {12, RAPT_Q4_K, 256, 144}, {14, RAPT_Q6_K, 256, 210}};

enum { FLOAT32 = 6, STRING = 8, ARRAY = 9, FLOAT64 = 12, VALUE_TYPES };
static const uint64_t value_bytes[VALUE_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

void fail(const char *what, const char *why, ...) {
    char line[CLI_LINE_BYTES];
    va_list args;
    va_start(args, why);
    vsnprintf(line, sizeof line, why, args);
    va_end(args);
    exit(cli_fail("llm", "%s: %s", what, line));
}

void *present(void *memory) {
    if (!memory) exit(cli_fail("llm", "%s", strerror(ENOMEM)));
    return memory;
}

uint64_t gguf_load(const uint8_t *at, int bytes) {
    uint64_t number = 0;
    while (bytes--) number = number << 8 | at[bytes];
    return number;
}

/* ---- Reading ------------------------------------------------------------------------------------------------------------- */

/* Takes the next bytes of the header. */
static const uint8_t *take(const gguf *g, const uint8_t **at, uint64_t bytes) {
    if (bytes > (uint64_t)(g->map.at + g->map.bytes - *at)) fail(g->path, "it ends within its header");
    return (*at += bytes) - bytes;
}

static uint64_t take_number(const gguf *g, const uint8_t **at, int bytes) {
    return gguf_load(take(g, at, (uint64_t)bytes), bytes);
}

static gguf_text take_text(const gguf *g, const uint8_t **at) {
    const uint64_t bytes = take_number(g, at, 8);
    return (gguf_text){(const char *)take(g, at, bytes), (size_t)bytes};
}

static gguf_value take_value(const gguf *g, const uint8_t **at) {
    gguf_value v = {.key = take_text(g, at), .type = take_number(g, at, 4), .count = 1};
    const bool several = v.type == ARRAY;
    if (several) v.type = take_number(g, at, 4), v.count = take_number(g, at, 8);
    if (v.type >= VALUE_TYPES || v.type == ARRAY)
        fail(g->path, "the value of '%.*s' in its header is of an unknown type", GGUF_SHOWN(v.key));
    v.at = *at;
    if (v.type != STRING) take(g, at, v.count <= SIZE_MAX / 8 ? v.count * value_bytes[v.type] : SIZE_MAX);
    for (uint64_t i = 0; i < v.count && v.type == STRING; i++) take_text(g, at);
    return v;
}

static gguf_tensor take_tensor(const gguf *g, const uint8_t **at) {
    gguf_tensor t = {.name = take_text(g, at), .dims = {1, 1, 1, 1}};
    const uint64_t rank = take_number(g, at, 4);
    if (rank > 4) fail(g->path, "tensor '%.*s' in its header has more than 4 dimensions", GGUF_SHOWN(t.name));
    for (uint64_t i = 0; i < rank; i++) t.dims[i] = (int64_t)take_number(g, at, 8);
    const uint64_t type = take_number(g, at, 4);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (type == types[i].number) t.type = &types[i];
    t.offset = take_number(g, at, 8);
    return t;
}

/* Finds where a tensor lies in the data; but one of an unknown type, whose length is not known. */
static void place_tensor(const gguf *g, gguf_tensor *t, const uint8_t *data) {
    if (!t->type) return;
    const uint64_t there = (uint64_t)(g->map.at + g->map.bytes - data);
    int64_t bytes = t->dims[0] / t->type->group;
    bool wrong = t->dims[0] % t->type->group || __builtin_mul_overflow(bytes, t->type->bytes, &bytes);
    for (int i = 0; i < 4; i++) wrong |= t->dims[i] < 1 || (i && __builtin_mul_overflow(bytes, t->dims[i], &bytes));
    if (wrong) fail(g->path, "tensor '%.*s' has a shape that its type cannot have", GGUF_SHOWN(t->name));
    if (t->offset > there || (uint64_t)bytes > there - t->offset)
        fail(g->path, "tensor '%.*s' ends beyond the file, which is cut short", GGUF_SHOWN(t->name));
    t->data = data + t->offset;
}

void gguf_open(gguf *g, const char *path) {
    *g = (gguf){.path = path};
    const char *const unreadable = map_open(&g->map, path);
    const uint8_t *at = g->map.at;
    if (unreadable) fail(path, "%s", unreadable);
    if (g->map.bytes < 8 || memcmp(at, "GGUF", 4) != 0) fail(path, "not a GGUF file");
    const uint64_t version = gguf_load(at + 4, 4);
    if (version != 2 && version != 3) fail(path, "it is of version %u, not 2 or 3", (unsigned)version);
    at += 8;
    const uint64_t tensors = take_number(g, &at, 8), values = take_number(g, &at, 8);
    /* A tensor takes at least 24 bytes of the header, a value 13. */
    if (tensors > g->map.bytes / 24 || values > g->map.bytes / 13) fail(path, "it ends within its header");
    g->values = present(calloc((size_t)values + 1, sizeof *g->values));
    g->tensors = present(calloc((size_t)tensors + 1, sizeof *g->tensors));
    while (g->value_count < values) g->values[g->value_count++] = take_value(g, &at);
    while (g->tensor_count < tensors) g->tensors[g->tensor_count++] = take_tensor(g, &at);
    const double asked = gguf_number(g, "general.alignment", 32);
    const size_t alignment = asked >= 1 && asked <= 1 << 20 ? (size_t)asked : 1, used = (size_t)(at - g->map.at);
    take(g, &at, (alignment - used % alignment) % alignment);
    for (size_t i = 0; i < tensors; i++) place_tensor(g, &g->tensors[i], at);
}

/* ---- Finding ------------------------------------------------------------------------------------------------------------- */

bool gguf_is(gguf_text text, const char *other) { return text.bytes == strlen(other) && !memcmp(text.at, other, text.bytes); }

gguf_tensor *gguf_find(const gguf *g, const char *name) {
    for (size_t i = 0; i < g->tensor_count; i++)
        if (gguf_is(g->tensors[i].name, name)) return &g->tensors[i];
    return NULL;
}

static gguf_value find_value(const gguf *g, const char *key) {
    for (size_t i = 0; i < g->value_count; i++)
        if (gguf_is(g->values[i].key, key)) return g->values[i];
    return (gguf_value){.type = STRING};
}

double gguf_number(const gguf *g, const char *key, double otherwise) {
    const gguf_value v = find_value(g, key);
    if (v.type == STRING || v.type == FLOAT64 || v.count != 1) return otherwise;
    const uint64_t bits = gguf_load(v.at, (int)value_bytes[v.type]);
    float f32;
    memcpy(&f32, &(uint32_t){(uint32_t)bits}, sizeof f32);
    return v.type == FLOAT32 ? (double)f32 : (double)bits;
}

gguf_value gguf_texts(const gguf *g, const char *key) {
    const gguf_value v = find_value(g, key);
    return v.type == STRING ? v : (gguf_value){.type = STRING};
}

gguf_text gguf_next(gguf_value *texts) {
    const gguf_text text = {(const char *)texts->at + 8, (size_t)gguf_load(texts->at, 8)};
    texts->at += 8 + text.bytes;
    texts->count--;
    return text;
}

gguf_text gguf_string(const gguf *g, const char *key) {
    gguf_value texts = gguf_texts(g, key);
    return texts.count == 1 ? gguf_next(&texts) : (gguf_text){"", 0};
}
