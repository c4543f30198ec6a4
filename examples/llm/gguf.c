/* SPDX-License-Identifier: Apache-2.0 */
#include "gguf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const gguf_type types[] = {{"f32", GGUF_F32, RAPT_F32, 1, 4},      {"f16", GGUF_F16, RAPT_F16, 1, 2},
                                  {"bf16", GGUF_BF16, RAPT_BF16, 1, 2},   {"q4_0", GGUF_Q4_0, RAPT_Q4_0, 32, 18},
                                  {"q4_1", GGUF_Q4_1, RAPT_Q4_1, 32, 20}, {"q8_0", GGUF_Q8_0, RAPT_Q8_0, 32, 34},
                                  {"q4_K", GGUF_Q4_K, 0, 256, 144},       {"q6_K", GGUF_Q6_K, 0, 256, 210}};

enum { FLOAT32 = 6, STRING = 8, ARRAY = 9, FLOAT64 = 12, VALUE_TYPES };
static const uint64_t value_bytes[VALUE_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

bool gguf_say(char fault[GGUF_FAULT_BYTES], const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(fault, GGUF_FAULT_BYTES, format, args);
    va_end(args);
    return false;
}

uint64_t gguf_load(const uint8_t *at, int bytes) {
    uint64_t number = 0;
    while (bytes--) number = number << 8 | at[bytes];
    return number;
}

/* ---- Reading ------------------------------------------------------------------------------------------------------------- */

typedef struct cursor {
    const uint8_t *at, *end; /* at: null once more was to be taken than there is */
} cursor;

static const uint8_t *take(cursor *c, uint64_t bytes) {
    const uint8_t *const from = c->at;
    c->at = from && bytes <= (uint64_t)(c->end - from) ? from + bytes : NULL;
    return c->at ? from : NULL;
}

static uint64_t take_number(cursor *c, int bytes) {
    const uint8_t *const at = take(c, (uint64_t)bytes);
    return at ? gguf_load(at, bytes) : 0;
}

static gguf_text take_text(cursor *c) {
    const uint64_t bytes = take_number(c, 8);
    const char *const at = (const char *)take(c, bytes);
    return (gguf_text){at, at ? (size_t)bytes : 0};
}

static bool take_value(cursor *c, gguf_value *v) {
    *v = (gguf_value){.key = take_text(c), .type = take_number(c, 4), .count = 1};
    const bool several = v->type == ARRAY;
    if (several) v->type = take_number(c, 4), v->count = take_number(c, 8);
    v->at = c->at;
    if (v->type >= VALUE_TYPES || v->type == ARRAY) return false;
    if (v->type != STRING) take(c, v->count <= SIZE_MAX / 8 ? v->count * value_bytes[v->type] : SIZE_MAX);
    for (uint64_t i = 0; i < v->count && v->type == STRING && c->at; i++) take_text(c);
    return c->at;
}

static bool take_tensor(cursor *c, gguf_tensor *t) {
    *t = (gguf_tensor){.name = take_text(c), .dims = {1, 1, 1, 1}};
    const uint64_t rank = take_number(c, 4);
    for (uint64_t i = 0; i < rank && rank <= 4; i++) t->dims[i] = (int64_t)take_number(c, 8);
    const uint64_t type = take_number(c, 4);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (type == (uint64_t)types[i].number) t->type = &types[i];
    t->offset = take_number(c, 8);
    return c->at && rank <= 4;
}

/* Finds where a tensor lies; but one of another type, of which it is not known how long it is. */
static bool place_tensor(gguf_tensor *t, cursor data, char *fault) {
    if (!t->type) return true;
    int64_t bytes = t->dims[0] / t->type->group;
    bool wrong = t->dims[0] % t->type->group || __builtin_mul_overflow(bytes, t->type->bytes, &bytes);
    for (int i = 0; i < 4; i++) wrong |= t->dims[i] < 1 || (i && __builtin_mul_overflow(bytes, t->dims[i], &bytes));
    if (wrong) return gguf_say(fault, "tensor '%.*s' has a shape that %s cannot have", GGUF_SHOWN(t->name), t->type->name);
    take(&data, t->offset);
    t->data = take(&data, (uint64_t)bytes);
    return t->data || gguf_say(fault, "tensor '%.*s' ends beyond the file, which is cut short", GGUF_SHOWN(t->name));
}

static bool parse(gguf *g, char *fault) {
    static const char ends[] = "it ends within its header, or has there what is not known here";
    cursor c = {g->file.at, g->file.at + g->file.bytes};
    const uint8_t *const magic = take(&c, 4);
    if (!magic || memcmp(magic, "GGUF", 4) != 0) return gguf_say(fault, "not a GGUF file");
    const uint64_t version = take_number(&c, 4), tensors = take_number(&c, 8), values = take_number(&c, 8);
    if (c.at && version != 2 && version != 3) return gguf_say(fault, "it is of version %u, not 2 or 3", (unsigned)version);
    /* A tensor takes at least 24 bytes of the header, a value 13. */
    if (!c.at || tensors > g->file.bytes / 24 || values > g->file.bytes / 13) return gguf_say(fault, ends);
    g->values = calloc((size_t)values + 1, sizeof *g->values);
    g->tensors = calloc((size_t)tensors + 1, sizeof *g->tensors);
    if (!g->values || !g->tensors) return gguf_say(fault, "there is no memory for its header");
    while (g->value_count < values)
        if (!take_value(&c, &g->values[g->value_count++])) return gguf_say(fault, ends);
    while (g->tensor_count < tensors)
        if (!take_tensor(&c, &g->tensors[g->tensor_count++])) return gguf_say(fault, ends);
    const double asked = gguf_number(g, "general.alignment", 32);
    const size_t alignment = asked >= 1 && asked <= 1 << 20 ? (size_t)asked : 1, used = (size_t)(c.at - g->file.at);
    take(&c, (alignment - used % alignment) % alignment);
    for (size_t i = 0; i < tensors; i++)
        if (!place_tensor(&g->tensors[i], c, fault)) return false;
    return true;
}

bool gguf_open(gguf *g, const char *path, char fault[GGUF_FAULT_BYTES]) {
    *g = (gguf){0};
    const char *const unreadable = map_open(&g->file, path);
    if (unreadable) return gguf_say(fault, "%s", unreadable);
    return g->file.at ? parse(g, fault) : gguf_say(fault, "it is empty");
}

void gguf_close(gguf *g) {
    map_close(&g->file);
    free(g->values);
    free(g->tensors);
    *g = (gguf){0};
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
