/* SPDX-License-Identifier: Apache-2.0 */
/* NumPy's .npy files of float16, float32 and bool, or of a dtype that a caller names, with 1 to 4 dimensions: formats 1.0 to 3.0,
 * either byte order, C or Fortran order. (NEP 1, "A Simple File Format for NumPy Arrays", and numpy/lib/format.py.) */
#ifndef RAPT_CLI_NPY_H
#define RAPT_CLI_NPY_H

#include "map.h"
#include "rapt.h"

#include <stdbool.h>
#include <stdio.h>

#define NPY_MAX_DIMS    4
#define NPY_FAULT_BYTES 160

typedef struct npy_array {
    rapt_type type; /* RAPT_F16, RAPT_F32 or RAPT_BOOL; RAPT_NONE of a dtype that the caller has named */
    int size;       /* bytes of an element */
    bool big_endian;
    int dims;
    int64_t shape[NPY_MAX_DIMS], stride[NPY_MAX_DIMS]; /* strides in bytes */
    const unsigned char *data;                         /* mapped, and checked to be as long as the shape says */
    file_map file;
} npy_array;

/* The arrays that a caller accepts. */
typedef struct npy_wanted {
    bool booleans; /* of bool; else of float16 or float32 */
    int least_dims, most_dims;
    const char *dtype; /* null, or what comes instead: "f8", "u2", ..., whose elements only npy_elements reads */
} npy_wanted;

/* Maps a file and checks it. On failure it returns false, writes what is wrong to fault, and leaves nothing to close. */
bool npy_open(npy_array *array, const char *path, npy_wanted wanted, char fault[NPY_FAULT_BYTES]);

/* Unmaps the file. */
void npy_close(npy_array *array);

/* True if n elements that lie `stride` bytes apart are a row of that type as the library reads it, without conversion. */
bool npy_is_row(const npy_array *array, rapt_type type, int64_t n, int64_t stride);

/* Copies n elements, from data + offset on and `stride` bytes apart, to a row of the type, rounding to nearest even; bool stays
 * bool. */
void npy_copy_row(const npy_array *array, int64_t offset, rapt_type type, int64_t n, int64_t stride, void *to);

/* Returns all elements in C order and in the machine's byte order, in memory that the caller frees; null if there is none. */
void *npy_elements(const npy_array *array);

/* Writes a little-endian array in C order; bf16, which NumPy does not have, is written as float32 of the same values. Returns
 * false, with errno, if a write failed. */
bool npy_write(FILE *file, rapt_type type, int dims, const int64_t *shape, const void *data);

#endif
