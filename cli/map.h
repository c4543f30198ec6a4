/* SPDX-License-Identifier: Apache-2.0 */
/* Files, mapped to be read. */
#ifndef RAPT_CLI_MAP_H
#define RAPT_CLI_MAP_H

#include <stddef.h>

typedef struct file_map {
    const unsigned char *at; /* null for an empty file */
    size_t bytes;
} file_map;

/* Returns null, or, with nothing to close, what is wrong with the file. */
const char *map_open(file_map *map, const char *path);
void map_close(file_map *map);

#endif
