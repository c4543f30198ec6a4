/* SPDX-License-Identifier: Apache-2.0 */
/* A GGUF file, mapped: its metadata, and its tensors as they lie there; of version 2 or 3, little-endian. All of the header is
 * checked before anything is found in it. (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md) */
#ifndef LLM_GGUF_H
#define LLM_GGUF_H

#include "map.h"
#include "rapt.h"

#include <stdbool.h>

#define GGUF_FAULT_BYTES 512

typedef struct gguf_text {
    const char *at; /* without a terminator */
    size_t bytes;
} gguf_text;

enum { GGUF_F32 = 0, GGUF_F16 = 1, GGUF_Q4_0 = 2, GGUF_Q4_1 = 3, GGUF_Q8_0 = 8, GGUF_Q4_K = 12, GGUF_Q6_K = 14, GGUF_BF16 = 30 };
typedef struct gguf_type {
    const char *name;
    int number;
    rapt_type same;   /* rapt's type with the same bytes, on a little-endian machine; RAPT_NONE: there is none */
    int group, bytes; /* elements of a group, and its bytes */
} gguf_type;

typedef struct gguf_tensor {
    gguf_text name;
    const gguf_type *type; /* null: none of those above */
    int64_t dims[4];       /* of a matrix: columns, rows, 1, 1 */
    uint64_t offset;       /* in the data of all tensors */
    const uint8_t *data;
    bool used; /* for the caller */
} gguf_tensor;

/* What stands under a key: values of a type, one after the other. */
typedef struct gguf_value {
    gguf_text key;
    uint64_t type, count;
    const uint8_t *at;
} gguf_value;

typedef struct gguf {
    file_map file;
    gguf_value *values;
    gguf_tensor *tensors;
    size_t value_count, tensor_count;
} gguf;

/* Maps the file. False after writing to fault what is wrong with it, in one line; it may be closed then, too. */
bool gguf_open(gguf *g, const char *path, char fault[GGUF_FAULT_BYTES]);
void gguf_close(gguf *g);

/* The tensor of that name; null where there is none. */
gguf_tensor *gguf_find(const gguf *g, const char *name);

/* The number under a key, an integer of 0 or more or an f32; `otherwise` where there is none. */
double gguf_number(const gguf *g, const char *key, double otherwise);

/* The texts under a key, perhaps none; the next of them is taken from the front. */
gguf_value gguf_texts(const gguf *g, const char *key);
gguf_text gguf_next(gguf_value *texts);

/* The text under a key; an empty one where there is none. */
gguf_text gguf_string(const gguf *g, const char *key);

bool gguf_is(gguf_text text, const char *other);

/* A little-endian number. */
uint64_t gguf_load(const uint8_t *at, int bytes);

/* Writes what is wrong, and returns false. */
__attribute__((format(printf, 2, 3))) bool gguf_say(char fault[GGUF_FAULT_BYTES], const char *format, ...);

/* For "%.*s" there. */
#define GGUF_SHOWN(text) (text).bytes < 80 ? (int)(text).bytes : 80, (text).at

#endif
