/* SPDX-License-Identifier: Apache-2.0 */
/* For LD_PRELOAD, with GNU's C library: RAPT_FAIL=KIND:N lets the N-th call of that kind fail, counted from 0, from the start of
 * main on; its name goes into the file $RAPT_FAIL_REPORT, which stays empty if there was no N-th call. At the end of the program
 * comes how many blocks of memory are held then. Parameters have the names of the C library's headers. */
#undef _FILE_OFFSET_BITS /* or functions of 64 bits would be defined twice */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static char kind[16];
static _Atomic long left = -1, blocks;
static int report = -1;

static void say(const char *text) {
    if (write(report, text, strlen(text)) < 0) abort();
}

/* Whether this call is the one. */
static int fails(const char *of, const char *name, int error) {
    if (strcmp(kind, of) != 0 || atomic_fetch_sub(&left, 1) != 0) return 0;
    say(name), say("\n");
    errno = error;
    return 1;
}

__attribute__((constructor)) static void begin(void) {
    const char *fail = getenv("RAPT_FAIL"), *to = getenv("RAPT_FAIL_REPORT");
    const char *colon = fail ? strchr(fail, ':') : NULL;
    if (!colon || !to || (size_t)(colon - fail) >= sizeof kind) return;
    const int fd = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    report = fcntl(fd, F_DUPFD_CLOEXEC, 200); /* the program's own get the numbers that they have without */
    close(fd);
    left = strtol(colon + 1, NULL, 10);
    memcpy(kind, fail, (size_t)(colon - fail));
}

__attribute__((destructor)) static void end(void) {
    char text[40];
    if (report < 0) return;
    snprintf(text, sizeof text, "%ld blocks\n", (long)blocks);
    say(text);
}

/* ---- Memory -------------------------------------------------------------------------------------------------------------- */

/* NOLINTBEGIN(bugprone-reserved-identifier): of the C library's own, which are in no header */
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);
/* NOLINTEND(bugprone-reserved-identifier) */

static void *taken(void *memory) {
    if (memory) blocks++;
    return memory;
}
void *malloc(size_t size) { return fails("memory", "malloc", ENOMEM) ? NULL : taken(__libc_malloc(size)); }
void *calloc(size_t nmemb, size_t size) { return fails("memory", "calloc", ENOMEM) ? NULL : taken(__libc_calloc(nmemb, size)); }
void *realloc(void *ptr, size_t size) {
    if (fails("memory", "realloc", ENOMEM)) return NULL;
    void *memory = __libc_realloc(ptr, size);
    return ptr ? memory : taken(memory);
}
void *aligned_alloc(size_t alignment, size_t size) {
    return fails("memory", "aligned_alloc", ENOMEM) ? NULL : taken(__libc_memalign(alignment, size));
}
void free(void *ptr) {
    if (ptr) blocks--;
    __libc_free(ptr);
}

/* ---- All others: as they are, but for the one call that fails -------------------------------------------------------------- */

#define FAILING(of, error, failed, type, name, parameters, ...)                                                                  \
    type name parameters {                                                                                                       \
        type(*next) parameters;                                                                                                  \
        *(void **)&next = dlsym(RTLD_NEXT, #name);                                                                               \
        return fails(of, #name, error) ? failed : next(__VA_ARGS__);                                                             \
    }

FAILING("memory", ENOMEM, MAP_FAILED, void *, mmap, (void *addr, size_t len, int prot, int flags, int fd, off_t offset), addr,
        len, prot, flags, fd, offset)
FAILING("memory", ENOMEM, MAP_FAILED, void *, mmap64, (void *addr, size_t len, int prot, int flags, int fd, off64_t offset), addr,
        len, prot, flags, fd, offset)
FAILING("memory", ENOMEM, -1, int, mprotect, (void *addr, size_t len, int prot), addr, len, prot)
FAILING("threads", EAGAIN, EAGAIN, int, pthread_create,
        (pthread_t * newthread, const pthread_attr_t *attr, void *(*start_routine)(void *), void *arg), newthread, attr,
        start_routine, arg)
FAILING("threads", EAGAIN, EAGAIN, int, pthread_mutex_init, (pthread_mutex_t * mutex, const pthread_mutexattr_t *mutexattr),
        mutex, mutexattr)
FAILING("threads", EAGAIN, EAGAIN, int, pthread_cond_init, (pthread_cond_t * cond, const pthread_condattr_t *cond_attr), cond,
        cond_attr)
FAILING("files", EIO, -1, int, fstat, (int fd, struct stat *buf), fd, buf)
FAILING("files", EIO, -1, int, fstat64, (int fd, struct stat64 *buf), fd, buf)
FAILING("files", EIO, -1, int, stat, (const char *file, struct stat *buf), file, buf)
FAILING("files", EIO, -1, int, stat64, (const char *file, struct stat64 *buf), file, buf)
FAILING("files", EIO, NULL, char *, realpath, (const char *name, char *resolved), name, resolved)
FAILING("files", EMFILE, -1, int, mkstemp, (char *template), template)
FAILING("files", EMFILE, -1, int, mkstemp64, (char *template), template)
FAILING("files", EMFILE, -1, int, dup, (int fd), fd)
FAILING("files", EPERM, -1, int, fchmod, (int fd, mode_t mode), fd, mode)
FAILING("files", ENOMEM, NULL, FILE *, fdopen, (int fd, const char *modes), fd, modes)
FAILING("files", EPERM, -1, int, rename, (const char *old, const char *new), old, new)

/* Not of the standard streams, which would have to remember it: full and closed ones do that. */
size_t fwrite(const void *ptr, size_t size, size_t n, FILE *s) {
    size_t (*next)(const void *, size_t, size_t, FILE *);
    *(void **)&next = dlsym(RTLD_NEXT, "fwrite");
    return s != stdout && s != stderr && fails("files", "fwrite", ENOSPC) ? 0 : next(ptr, size, n, s);
}

/* These close what they cannot write. */
#define CLOSING(type, failed, name, of, parameter)                                                                               \
    type name(of parameter) {                                                                                                    \
        type (*next)(of);                                                                                                        \
        *(void **)&next = dlsym(RTLD_NEXT, #name);                                                                               \
        const type result = next(parameter);                                                                                     \
        return fails("files", #name, EIO) ? failed : result;                                                                     \
    }
CLOSING(int, EOF, fclose, FILE *, stream)
CLOSING(int, -1, close, int, fd)

/* The mode is there where a file may be created. */
#define OPENING(name)                                                                                                            \
    int name(const char *file, int oflag, ...) {                                                                                 \
        int (*next)(const char *, int, ...);                                                                                     \
        *(void **)&next = dlsym(RTLD_NEXT, #name);                                                                               \
        return fails("files", #name, EMFILE) ? -1 : next(file, oflag, 0600);                                                     \
    }
OPENING(open)
OPENING(open64)
