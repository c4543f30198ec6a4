/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are mapped into memory, for reading. */
#ifndef RAPT_CLI_MAP_H
#define RAPT_CLI_MAP_H

#include <stddef.h>

typedef struct file_map {
    const unsigned char *at; /* null for an empty file */
    size_t bytes;
} file_map;

/* Maps a file. Returns null, or what is wrong with it; then there is nothing to close. */
const char *map_open(file_map *map, const char *path);

/* Unmaps the file, if it is mapped. */
void map_close(file_map *map);

#endif
