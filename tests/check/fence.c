/* SPDX-License-Identifier: Apache-2.0 */
#define _DEFAULT_SOURCE
#include "fence.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Noreturn void no_memory(void) {
    perror("check: no memory");
    exit(2);
}

#if FENCE_GUARDED
#include <sys/mman.h>
#include <unistd.h>

#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif

fence fence_create(size_t bytes, int offset, size_t beyond) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), lead = offset > 0 ? (size_t)offset : 0;
    fence f = {.bytes = bytes, .body_bytes = (bytes + lead + page - 1) / page * page};
    f.map_bytes = page + f.body_bytes + page + (beyond + page - 1) / page * page;
    f.map = mmap(NULL, f.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    f.body = f.map + page;
    if (f.map == MAP_FAILED) no_memory();
    fence_protect(&f, false);
    f.data = offset < 0 ? f.body + f.body_bytes - bytes : f.body + lead;
    fence_fill(&f, FENCE_CANARY);
    return f;
}

void fence_destroy(fence *f) {
    if (f->map) munmap(f->map, f->map_bytes);
    *f = (fence){0};
}

void fence_protect(fence *f, bool read_only) {
    if (f->body_bytes && mprotect(f->body, f->body_bytes, read_only ? PROT_READ : PROT_READ | PROT_WRITE)) no_memory();
}
#else
/* The guards are canaries of the body, but for what lies farther beyond. */
fence fence_create(size_t bytes, int offset, size_t beyond) {
    enum { GUARD = 4096 }; /* a multiple of every alignment */
    const size_t lead = offset > 0 ? (size_t)offset : 0, most = (bytes + lead + GUARD - 1) / GUARD * GUARD;
    fence f = {.bytes = bytes, .body_bytes = GUARD + most + GUARD};
    f.map_bytes = f.body_bytes + (beyond + GUARD - 1) / GUARD * GUARD;
    f.map = f.body = aligned_alloc(GUARD, f.map_bytes);
    if (!f.map) no_memory();
    f.data = f.body + GUARD + (offset < 0 ? most - bytes : lead);
    fence_fill(&f, FENCE_CANARY);
    return f;
}

void fence_destroy(fence *f) {
    free(f->map);
    *f = (fence){0};
}

void fence_protect(fence *f, bool read_only) { (void)f, (void)read_only; }
#endif

void fence_fill(fence *f, int byte) {
    if (f->body_bytes) memset(f->body, byte, f->body_bytes);
}

static bool canaries(const unsigned char *from, size_t bytes) {
    return bytes == 0 || (from[0] == FENCE_CANARY && memcmp(from, from + 1, bytes - 1) == 0);
}

bool fence_intact(const fence *f) { return canaries(f->body, f->body_bytes); }

bool fence_slack_intact(const fence *f) {
    const size_t before = (size_t)(f->data - f->body);
    return canaries(f->body, before) && canaries(f->data + f->bytes, f->body_bytes - before - f->bytes);
}
