/* SPDX-License-Identifier: Apache-2.0 */
/* A safetensors file, mapped: the length of a header in 8 bytes, the header in JSON, the tensors
 * (https://github.com/huggingface/safetensors#format). All of the header is checked before anything is found in it. */
#ifndef MINILM_SAFETENSORS_H
#define MINILM_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SAFETENSORS_FAULT_BYTES 240
#define SAFETENSORS_MAX_DIMS    8

typedef struct safetensor {
    const char *name; /* not terminated, escapes as they stand in the file */
    size_t name_bytes;
    char type[8]; /* "F32", "I64", ... */
    int dims;
    int64_t shape[SAFETENSORS_MAX_DIMS];
    uint64_t begin, end; /* in the data */
} safetensor;

typedef struct safetensors {
    void *map;
    size_t map_bytes;
    const unsigned char *data;
    safetensor *tensors; /* by their place in the data */
    size_t count;
} safetensors;

/* Maps the file. False, with nothing to close, after writing to fault what is wrong with it. */
bool safetensors_open(safetensors *file, const char *path, char fault[SAFETENSORS_FAULT_BYTES]);
void safetensors_close(safetensors *file);

/* The elements of the F32 tensor of that name and shape. Null after writing to fault why not. */
const float *safetensors_f32(const safetensors *file, const char *name, int dims, const int64_t *shape,
                             char fault[SAFETENSORS_FAULT_BYTES]);

#endif
