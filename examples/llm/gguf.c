/* SPDX-License-Identifier: Apache-2.0 */
#include "llm.h"

#include <string.h>

/* Types by their numbers in GGUF, with the same bytes on a little-endian machine. */
static const rapt_type types[] = {[0] = RAPT_F32,  [1] = RAPT_F16,   [2] = RAPT_Q4_0,  [3] = RAPT_Q4_1,
                                  [8] = RAPT_Q8_0, [12] = RAPT_Q4_K, [14] = RAPT_Q6_K, [30] = RAPT_BF16};

/* Types of values, and their bytes. */
enum { FLOAT32 = 6, STRING = 8, ARRAY = 9, FLOAT64 = 12, VALUE_TYPES };
static const uint8_t value_bytes[VALUE_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

/* ---- Reading ----------------------------------------------------------------------------------------------------------- */

static uint64_t load(const uint8_t *at, int bytes) {
    uint64_t number = 0;
    while (bytes--) number = number << 8 | at[bytes];
    return number;
}

static uint64_t bytes_left(const gguf *g) { return (uint64_t)(g->map.at + g->map.bytes - g->at); }

/* Takes the next bytes of the header. */
static const uint8_t *take(gguf *g, uint64_t bytes) {
    if (bytes > bytes_left(g)) FAIL("%s: it ends within its header", g->path);
    return (g->at += bytes) - bytes;
}

static uint64_t take_number(gguf *g, int bytes) { return load(take(g, (uint64_t)bytes), bytes); }

static gguf_text take_text(gguf *g) {
    const uint64_t bytes = take_number(g, 8);
    return (gguf_text){(const char *)take(g, bytes), (size_t)bytes};
}

static void take_value(gguf *g, gguf_value *v) {
    *v = (gguf_value){.key = take_text(g), .type = take_number(g, 4), .count = 1};
    if (v->type == ARRAY) v->type = take_number(g, 4), v->count = take_number(g, 8);
    if (v->type >= VALUE_TYPES || v->type == ARRAY)
        FAIL("%s: the value of '%.*s' in its header is of an unknown type", g->path, GGUF_SHOWN(v->key));
    v->at = g->at;
    if (v->type != STRING) take(g, v->count <= bytes_left(g) ? v->count * value_bytes[v->type] : UINT64_MAX);
    for (uint64_t i = 0; i < v->count && v->type == STRING; i++) take_text(g);
}

static void take_tensor(gguf *g, gguf_tensor *t) {
    *t = (gguf_tensor){.name = take_text(g), .dims = {1, 1, 1, 1}};
    const uint64_t rank = take_number(g, 4);
    if (rank > 4) FAIL("%s: tensor '%.*s' in its header has more than 4 dimensions", g->path, GGUF_SHOWN(t->name));
    for (uint64_t i = 0; i < rank; i++) t->dims[i] = (int64_t)take_number(g, 8);
    const uint64_t type = take_number(g, 4);
    if (type < sizeof types / sizeof *types) t->type = types[type];
    t->offset = take_number(g, 8);
}

/* Finds where a tensor lies in the data, which begins behind the header; but one of an unknown type, whose length is not known.
 */
static void place_tensor(const gguf *g, gguf_tensor *t) {
    if (!t->type) return;
    int64_t bytes = rapt_row_bytes(t->type, t->dims[0]);
    bool wrong = bytes < 1;
    for (int i = 1; i < 4; i++) wrong |= t->dims[i] < 1 || __builtin_mul_overflow(bytes, t->dims[i], &bytes);
    if (wrong) FAIL("%s: tensor '%.*s' has a shape that its type cannot have", g->path, GGUF_SHOWN(t->name));
    if (t->offset > bytes_left(g) || (uint64_t)bytes > bytes_left(g) - t->offset)
        FAIL("%s: tensor '%.*s' ends beyond the file, which is cut short", g->path, GGUF_SHOWN(t->name));
    t->data = g->at + t->offset;
}

void gguf_open(gguf *g, const char *path) {
    *g = (gguf){.path = path};
    const char *const unreadable = map_open(&g->map, path);
    if (unreadable) FAIL("%s: %s", path, unreadable);
    g->at = g->map.at;
    if (g->map.bytes < 8 || memcmp(take(g, 4), "GGUF", 4) != 0) FAIL("%s: not a GGUF file", path);
    const uint64_t version = take_number(g, 4);
    if (version != 2 && version != 3) FAIL("%s: it is of version %u, not 2 or 3", path, (unsigned)version);
    const uint64_t tensors = take_number(g, 8), values = take_number(g, 8);
    /* A tensor takes at least 24 bytes of the header, a value 13. */
    if (tensors > g->map.bytes / 24 || values > g->map.bytes / 13) FAIL("%s: it ends within its header", path);
    g->values = present(calloc((size_t)values + 1, sizeof *g->values));
    g->tensors = present(calloc((size_t)tensors + 1, sizeof *g->tensors));
    while (g->value_count < values) take_value(g, &g->values[g->value_count++]);
    while (g->tensor_count < tensors) take_tensor(g, &g->tensors[g->tensor_count++]);
    const double asked = gguf_number(g, "general.alignment", 32);
    const size_t alignment = asked >= 1 && asked <= 1 << 20 ? (size_t)asked : 1, used = (size_t)(g->at - g->map.at);
    take(g, (alignment - used % alignment) % alignment);
    for (size_t i = 0; i < tensors; i++) place_tensor(g, &g->tensors[i]);
}

/* ---- Finding ----------------------------------------------------------------------------------------------------------- */

bool gguf_is(gguf_text text, const char *other) { return text.bytes == strlen(other) && !memcmp(text.at, other, text.bytes); }

gguf_tensor *gguf_find(const gguf *g, const char *name) {
    for (size_t i = 0; i < g->tensor_count; i++)
        if (gguf_is(g->tensors[i].name, name)) return &g->tensors[i];
    return NULL;
}

static const gguf_value *find_value(const gguf *g, const char *key) {
    for (size_t i = 0; i < g->value_count; i++)
        if (gguf_is(g->values[i].key, key)) return &g->values[i];
    return NULL;
}

double gguf_number(const gguf *g, const char *key, double otherwise) {
    const gguf_value *v = find_value(g, key);
    if (!v || v->type == STRING || v->type == FLOAT64 || v->count != 1) return otherwise;
    const uint64_t bits = load(v->at, value_bytes[v->type]);
    float f32;
    memcpy(&f32, &(uint32_t){(uint32_t)bits}, sizeof f32);
    return v->type == FLOAT32 ? (double)f32 : (double)bits;
}

uint32_t *gguf_floats(const gguf *g, const char *key, uint64_t *count) {
    const gguf_value *v = find_value(g, key);
    *count = v && v->type == FLOAT32 ? v->count : 0;
    uint32_t *const bits = present(calloc((size_t)*count + 1, sizeof *bits));
    for (uint64_t i = 0; i < *count; i++) bits[i] = (uint32_t)load(v->at + i * sizeof *bits, sizeof *bits);
    return bits;
}

gguf_text *gguf_texts(const gguf *g, const char *key, uint64_t *count) {
    const gguf_value *v = find_value(g, key);
    *count = v && v->type == STRING ? v->count : 0;
    gguf_text *const texts = present(calloc((size_t)*count + 1, sizeof *texts));
    gguf at = *g;
    at.at = *count ? v->at : NULL;
    for (uint64_t i = 0; i < *count; i++) texts[i] = take_text(&at);
    return texts;
}

gguf_text gguf_string(const gguf *g, const char *key) {
    uint64_t count;
    gguf_text *const texts = gguf_texts(g, key, &count), first = count == 1 ? *texts : (gguf_text){"", 0};
    free(texts);
    return first;
}
