/* SPDX-License-Identifier: Apache-2.0 */
/* Reads safetensors files (https://huggingface.co/docs/safetensors), mapped into memory. The machine must be little-endian. */
#ifndef RAPT_EXAMPLES_SAFETENSORS_H
#define RAPT_EXAMPLES_SAFETENSORS_H

#include "rapt.h"

#define SAFETENSORS_MAX_RANK    8
#define SAFETENSORS_ERROR_BYTES 512

typedef struct safetensors_tensor {
    const char *name;
    rapt_type type; /* 0: one that rapt has not */
    int rank;
    int64_t dims[SAFETENSORS_MAX_RANK];
    const void *data; /* row after row, without gaps; of no particular alignment */
} safetensors_tensor;

typedef struct safetensors_file {
    void *map;
    size_t bytes;
    char *strings; /* what the names and the metadata point to */
    safetensors_tensor *tensors;
    size_t tensor_count;
    struct safetensors_metadata {
        const char *key, *value;
    } *metadata;
    size_t metadata_count;
} safetensors_file;

/* Checks everything that the header says. 0, or -1 with one line in error and nothing in file. */
int safetensors_open(const char *path, safetensors_file *file, char error[SAFETENSORS_ERROR_BYTES]);
void safetensors_close(safetensors_file *file);

/* 0, or -1 where the file has no tensor of that name. */
int safetensors_find(const safetensors_file *file, const char *name, safetensors_tensor *tensor);

/* What __metadata__ says, UTF-8; null where it says nothing. */
const char *safetensors_metadata(const safetensors_file *file, const char *key);

#endif
