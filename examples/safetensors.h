/* SPDX-License-Identifier: Apache-2.0 */
/* A safetensors file, mapped: the length of a header in 8 bytes, the header in JSON, the tensors
 * (https://github.com/huggingface/safetensors#format). All of the header is checked before anything is found in it. */
#ifndef RAPT_EXAMPLES_SAFETENSORS_H
#define RAPT_EXAMPLES_SAFETENSORS_H

#include "map.h"
#include "rapt.h"

#include <stdbool.h>

#define SAFETENSORS_FAULT_BYTES 512
#define SAFETENSORS_MAX_RANK    8

typedef struct safetensors_tensor {
    const char *name;
    char dtype[8];  /* "F32", "I64", ... */
    rapt_type type; /* 0: one that rapt has not */
    int rank;
    int64_t dims[SAFETENSORS_MAX_RANK];
    int64_t begin, end; /* in the data of all tensors */
    const void *data;   /* row after row, without gaps; of no particular alignment */
} safetensors_tensor;

typedef struct safetensors_file {
    file_map file;
    char *strings;               /* what the names and the metadata point to */
    safetensors_tensor *tensors; /* by name */
    size_t tensor_count;
    struct safetensors_metadata {
        const char *key, *value;
    } *metadata;
    size_t metadata_count;
} safetensors_file;

/* Maps the file. False, with nothing to close, after writing to fault what is wrong with it, in one line. */
bool safetensors_open(safetensors_file *file, const char *path, char fault[SAFETENSORS_FAULT_BYTES]);
void safetensors_close(safetensors_file *file);

/* What __metadata__ says, null where it says nothing. */
const char *safetensors_metadata(const safetensors_file *file, const char *key);

/* The tensor of that name, null where there is none. */
const safetensors_tensor *safetensors_find(const safetensors_file *file, const char *name);

/* The tensor of that name and shape, of any type. Null after writing to fault why not. */
const safetensors_tensor *safetensors_shaped(const safetensors_file *file, const char *name, int rank, const int64_t *dims,
                                             char fault[SAFETENSORS_FAULT_BYTES]);

/* The elements of the F32 tensor of that name and shape. Null after writing to fault why not. */
const float *safetensors_f32(const safetensors_file *file, const char *name, int rank, const int64_t *dims,
                             char fault[SAFETENSORS_FAULT_BYTES]);

#endif
