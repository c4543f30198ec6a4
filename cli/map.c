/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE   200809L
#define _FILE_OFFSET_BITS 64 /* NOLINT(bugprone-reserved-identifier): a feature macro */
#include "map.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <io.h>
#include <windows.h>

enum { HOW_TO_OPEN = O_RDONLY | O_BINARY };

static bool is_folder(const char *path) { /* open() would refuse a folder with an error that does not say so */
    const DWORD attributes = GetFileAttributesA(path);
    return attributes != INVALID_FILE_ATTRIBUTES && attributes & FILE_ATTRIBUTE_DIRECTORY;
}

static void *map_file(int fd, size_t bytes) {
    const HANDLE mapping = CreateFileMappingA((HANDLE)_get_osfhandle(fd), NULL, PAGE_READONLY, 0, 0, NULL);
    void *at = mapping ? MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, bytes) : NULL;
    if (mapping) CloseHandle(mapping);
    if (!at) errno = ENOMEM;
    return at;
}

static void unmap_file(const file_map *map) { UnmapViewOfFile(map->at); }
#else
#include <sys/mman.h>

enum { HOW_TO_OPEN = O_RDONLY | O_CLOEXEC | O_NONBLOCK }; /* a FIFO is refused below, not waited for */

static bool is_folder(const char *path) { return (void)path, false; }

static void *map_file(int fd, size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    return at == MAP_FAILED ? NULL : at;
}

static void unmap_file(const file_map *map) { munmap((void *)(uintptr_t)map->at, map->bytes); }
#endif

static const char not_regular[] = "not a regular file, which is needed to map it into memory";

/* Maps an open file. Returns null, or what is wrong with it. May change errno. */
static const char *map_descriptor(file_map *map, int fd) {
    struct stat st;
    if (fstat(fd, &st)) return strerror(errno);
    if (!S_ISREG(st.st_mode)) return not_regular;
    if ((uintmax_t)st.st_size > SIZE_MAX) return strerror(EFBIG);
    if (st.st_size == 0) return NULL;
    map->bytes = (size_t)st.st_size;
    map->at = map_file(fd, map->bytes);
    return map->at ? NULL : strerror(errno);
}

const char *map_open(file_map *map, const char *path) {
    *map = (file_map){NULL, 0};
    if (is_folder(path)) return not_regular;
    const int fd = open(path, HOW_TO_OPEN);
    if (fd < 0) return strerror(errno);
    const char *const fault = map_descriptor(map, fd);
    close(fd);
    return fault;
}

void map_close(file_map *map) {
    if (map->at) unmap_file(map);
    *map = (file_map){NULL, 0};
}
