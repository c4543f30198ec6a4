/* SPDX-License-Identifier: Apache-2.0 */
#define _DEFAULT_SOURCE
#include "fence.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#elif FENCE_GUARDED
#include <sys/mman.h>
#include <unistd.h>
#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif
#endif

_Noreturn void no_memory(void) {
    perror("check: no memory");
    exit(2);
}

static void *present(void *memory) {
    if (!memory) no_memory();
    return memory;
}

#if FENCE_GUARDED
#if defined(_WIN32)
size_t page_bytes(void) {
    SYSTEM_INFO system;
    GetSystemInfo(&system);
    return system.dwPageSize;
}

void *pages_create(size_t bytes) { return present(VirtualAlloc(NULL, bytes, MEM_RESERVE, PAGE_NOACCESS)); }

void pages_open(void *pages, size_t bytes) { present(VirtualAlloc(pages, bytes, MEM_COMMIT, PAGE_READWRITE)); }

void pages_protect(void *pages, size_t bytes, pages_use use) {
    static const DWORD uses[] = {[PAGES_CLOSED] = PAGE_NOACCESS, [PAGES_READ] = PAGE_READONLY, [PAGES_WRITTEN] = PAGE_READWRITE};
    DWORD before;
    if (!VirtualProtect(pages, bytes, uses[use], &before)) no_memory();
}

void pages_destroy(void *pages, size_t bytes) { (void)bytes, VirtualFree(pages, 0, MEM_RELEASE); }
#else
size_t page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

void *pages_create(size_t bytes) {
    void *pages = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return present(pages == MAP_FAILED ? NULL : pages);
}

void pages_open(void *pages, size_t bytes) { present(mprotect(pages, bytes, PROT_READ | PROT_WRITE) ? NULL : pages); }

void pages_protect(void *pages, size_t bytes, pages_use use) {
    static const int uses[] = {[PAGES_CLOSED] = PROT_NONE, [PAGES_READ] = PROT_READ, [PAGES_WRITTEN] = PROT_READ | PROT_WRITE};
    if (mprotect(pages, bytes, uses[use])) no_memory();
}

void pages_destroy(void *pages, size_t bytes) { munmap(pages, bytes); }
#endif

fence fence_create(size_t bytes, int offset, size_t beyond) {
    const size_t page = page_bytes(), lead = offset > 0 ? (size_t)offset : 0;
    fence f = {.bytes = bytes, .body_bytes = (bytes + lead + page - 1) / page * page};
    f.map_bytes = page + f.body_bytes + page + (beyond + page - 1) / page * page;
    f.map = pages_create(f.map_bytes);
    f.body = f.map + page;
    if (f.body_bytes) pages_open(f.body, f.body_bytes);
    f.data = offset < 0 ? f.body + f.body_bytes - bytes : f.body + lead;
    fence_fill(&f, FENCE_CANARY);
    return f;
}

void fence_destroy(fence *f) {
    if (f->map) pages_destroy(f->map, f->map_bytes);
    *f = (fence){0};
}

void fence_protect(fence *f, bool read_only) {
    if (f->body_bytes) pages_protect(f->body, f->body_bytes, read_only ? PAGES_READ : PAGES_WRITTEN);
}
#else
/* The guards are canaries of the body, but for what lies farther beyond. */
fence fence_create(size_t bytes, int offset, size_t beyond) {
    enum { GUARD = 4096 }; /* a multiple of every alignment */
    const size_t lead = offset > 0 ? (size_t)offset : 0, most = (bytes + lead + GUARD - 1) / GUARD * GUARD;
    fence f = {.bytes = bytes, .body_bytes = GUARD + most + GUARD};
    f.map_bytes = f.body_bytes + (beyond + GUARD - 1) / GUARD * GUARD;
    f.map = f.body = present(aligned_alloc(GUARD, f.map_bytes));
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
