/* SPDX-License-Identifier: Apache-2.0 */
/* The arrays of files as the library takes them: Q, K and V, and arrays that are broadcast to their heads, queries and keys. */
#ifndef RAPT_CLI_TENSOR_H
#define RAPT_CLI_TENSOR_H

#include "npy.h"

#define CLI_RUN "rapt run" /* the program that these functions name in errors */

/* Returns zeroed memory of at least one byte; null if there is none, or if the size overflows. */
void *tensor_buffer(int64_t elements, size_t size);

/* Q, K or V. */
typedef struct tensor {
    const char *path;
    npy_array array;
    int64_t batch, heads, tokens, channels; /* batch: 1 where the tokens of all entries follow each other */
    int64_t channel_stride;                 /* in the file */
    rapt_layout layout;                     /* in the file; after tensor_load, that of data */
    const void *data;
    void *copy;                /* owned; null while data is the file's mapping */
    float *scales;             /* of each head and token, owned; null: none */
    rapt_layout scales_layout; /* token_stride 0: none */
} tensor;

typedef enum tensor_order {
    TENSOR_BHSD,  /* [S,D], [H,S,D], [B,H,S,D] */
    TENSOR_BSHD,  /* [S,D], [S,H,D], [B,S,H,D] */
    TENSOR_RAGGED /* [S,H,D], the tokens of all entries */
} tensor_order;

/* The functions that return int return 0, or CLI_ERROR after cli_fail. */

/* Opens a file, and assigns its dimensions; a missing one has length 1. */
int tensor_open(tensor *t, const char *path, tensor_order order);

/* Sets data to rows that the library can read as the type: the file's mapping if it has such rows, else a copy. */
int tensor_load(tensor *t, rapt_type type);

/* Converts a loaded tensor to a cache of the type, with rapt_kv_append_run; int8 gets a scale for each head and token. */
int tensor_quantize(tensor *t, rapt_type type);

/* Unmaps the file and frees memory. */
void tensor_close(tensor *t);

/* A mask, a bias, slopes or sinks. */
typedef struct broadcast {
    const char *path;
    npy_array array;
    int64_t shape[4], stride[4]; /* [batch, head, query, key]; a stride is 0 where the shape is 1 */
    rapt_layout layout;          /* of data */
    const void *data;            /* set by broadcast_load, as is layout */
    void *copy;                  /* owned; null while data is the file's mapping */
} broadcast;

/* Opens an array that NumPy could broadcast to the first `dims` of these dimensions, 2 or 4. */
int broadcast_open(broadcast *b, const char *path, bool booleans, int dims, const int64_t to[4]);

/* Sets data to rows of `keys` elements that the library can read as the type: the file's mapping if it has such rows, else a
 * copy. */
int broadcast_load(broadcast *b, rapt_type type, int64_t keys);

/* Unmaps the file and frees memory. */
void broadcast_close(broadcast *b);

#endif
