/* SPDX-License-Identifier: Apache-2.0 */
/* NumPy's .npy files of float16, float32 and bool with 1 to 4 dimensions: formats 1.0 to 3.0, either byte order, C or Fortran
 * order. (NEP 1, "A Simple File Format for NumPy Arrays", and numpy/lib/format.py.) */
#ifndef RAPT_CLI_NPY_H
#define RAPT_CLI_NPY_H

#include "map.h"
#include "rapt.h"

#include <stdbool.h>
#include <stdio.h>

#define NPY_MAX_DIMS    4
#define NPY_FAULT_BYTES 160

typedef struct npy_array {
    rapt_type type; /* RAPT_F16, RAPT_F32 or RAPT_BOOL */
    bool big_endian;
    int dims;
    int64_t shape[NPY_MAX_DIMS], stride[NPY_MAX_DIMS]; /* strides in bytes */
    const unsigned char *data;                         /* mapped, and checked to be as long as the shape says */
    file_map file;
} npy_array;

/* What an array must be: of bool or of float16 or float32, and with how many dimensions. */
typedef struct npy_wanted {
    bool booleans;
    int least_dims, most_dims;
} npy_wanted;

/* Maps the file. False, with nothing to close, after writing to fault what is wrong with it. */
bool npy_open(npy_array *array, const char *path, npy_wanted wanted, char fault[NPY_FAULT_BYTES]);
void npy_close(npy_array *array);

/* Whether n elements, this stride in bytes apart, lie as the library wants a row of that type. */
bool npy_is_row(const npy_array *array, rapt_type type, int64_t n, int64_t stride);

/* Makes one of n such elements that begin at this distance from data, rounding to nearest even; bool stays bool. */
void npy_copy_row(const npy_array *array, int64_t offset, rapt_type type, int64_t n, int64_t stride, void *to);

/* Writes a C-ordered array, little-endian; bf16, which NumPy does not have, as float32 of the same values. False if a write
 * failed; errno tells why. */
bool npy_write(FILE *file, rapt_type type, int dims, const int64_t *shape, const void *data);

#endif
