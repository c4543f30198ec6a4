/* SPDX-License-Identifier: Apache-2.0 */
/* NumPy's .npy files of float16 and float32 with 2 to 4 dimensions: formats 1.0 to 3.0, either byte order, C or Fortran
 * order. (NEP 1, "A Simple File Format for NumPy Arrays", and numpy/lib/format.py.) */
#ifndef RAPT_CLI_NPY_H
#define RAPT_CLI_NPY_H

#include "rapt.h"

#include <stdbool.h>
#include <stdio.h>

#define NPY_MAX_DIMS    4
#define NPY_FAULT_BYTES 160

typedef struct npy_array {
    rapt_type type; /* RAPT_F16 or RAPT_F32 */
    bool big_endian;
    int dims;
    int64_t shape[NPY_MAX_DIMS], stride[NPY_MAX_DIMS]; /* strides in bytes */
    const unsigned char *data;                         /* mapped, and checked to be as long as the shape says */
    void *map;
    size_t map_bytes;
} npy_array;

/* Maps the file. False, with nothing to close, after writing to fault what is wrong with it. */
bool npy_open(npy_array *array, const char *path, char fault[NPY_FAULT_BYTES]);
void npy_close(npy_array *array);

/* Whether elements lie in memory as this machine has them. */
bool npy_native(const npy_array *array);

/* The element at this distance in bytes from data. */
float npy_element(const npy_array *array, int64_t offset);

/* Writes a C-ordered array, little-endian; bf16, which NumPy does not have, as float32 of the same values. False if a write
 * failed; errno tells why. */
bool npy_write(FILE *file, rapt_type type, int dims, const int64_t *shape, const void *data);

#endif
