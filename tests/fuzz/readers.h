/* SPDX-License-Identifier: Apache-2.0 */
/* For targets of what reads files: the calls by which a reader opens one give it the input, mapped as memory of exactly its size,
 * so that whatever is read beyond it is noticed. Include it before the reader's source. */
#ifndef RAPT_FUZZ_READERS_H
#define RAPT_FUZZ_READERS_H

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bytes.h"

/* The file that is opened next, of whatever name. */
static const void *file_bytes;
static size_t file_size;

static const char *file_of(const void *bytes, size_t size) {
    file_bytes = bytes, file_size = size;
    return "input";
}

static inline int state_file(struct stat *st) {
    *st = (struct stat){.st_mode = S_IFREG, .st_size = (off_t)file_size};
    return 0;
}

static inline void *map_input(void) {
    void *memory = malloc(file_size + !file_size);
    if (!memory) abort();
    return memcpy(memory, file_bytes, file_size);
}

static inline int unmap_input(void *memory) {
    free(memory);
    return 0;
}

#define open(path, flags)                                  ((void)(path), 0)
#define close(fd)                                          ((void)(fd))
#define fstat(fd, st)                                      state_file(st)
#define stat(path, st)                                     ((void)(path), state_file(st))
#define mmap(address, size, protection, flags, fd, offset) ((void)(fd), (void)(size), map_input())
#define munmap(memory, size)                               unmap_input(memory)
#define fopen(path, mode)                                  fmemopen((void *)(uintptr_t)file_bytes, file_size, mode)

#endif
