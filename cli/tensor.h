/* SPDX-License-Identifier: Apache-2.0 */
/* What the arrays of files are to the library: Q, K and V, and what is broadcast to their heads, queries and keys. */
#ifndef RAPT_CLI_TENSOR_H
#define RAPT_CLI_TENSOR_H

#include "npy.h"

#define CLI_RUN "rapt run" /* whose errors these functions print */

/* Zeroed memory, at least one element; null if there is none, or if such a size does not exist. */
void *tensor_buffer(int64_t elements, size_t size);

/* Q, K or V. */
typedef struct tensor {
    const char *path;
    npy_array array;
    int64_t batch, heads, tokens, channels; /* batch: 1 where the entries follow each other as tokens */
    int64_t channel_stride;                 /* in the file, as are layout's strides until tensor_load */
    rapt_layout layout;
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

/* Gives the dimensions their meaning; a missing one is of length 1. 0, or CLI_ERROR after cli_fail. */
int tensor_open(tensor *t, const char *path, tensor_order order);

/* Makes data readable by the library as the type: in the file's mapping where it lies right, else by one copy. */
int tensor_load(tensor *t, rapt_type type);

/* Makes data of the loaded tensor a cache of the type, as rapt_kv_append_run writes it; int8 gets a scale for each head and
 * token.
 */
int tensor_quantize(tensor *t, rapt_type type);

void tensor_close(tensor *t);

/* A mask, a bias, slopes or sinks. */
typedef struct broadcast {
    const char *path;
    npy_array array;
    int64_t shape[4], stride[4]; /* [batch, head, query, key]; a stride is 0 where the shape is 1 */
    rapt_layout layout;          /* by broadcast_load */
    const void *data;
    void *copy;
} broadcast;

/* Opens an array that NumPy could broadcast to the first two of these dimensions, or to all four. */
int broadcast_open(broadcast *b, const char *path, bool booleans, int dims, const int64_t to[4]);

/* Makes data readable as rows of this many keys. */
int broadcast_load(broadcast *b, rapt_type type, int64_t keys);

void broadcast_close(broadcast *b);

#endif
