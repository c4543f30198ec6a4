/* SPDX-License-Identifier: Apache-2.0 */
/* For LD_PRELOAD, with GNU's C library: RAPT_FAIL=KIND:N lets the N-th call of that kind fail, counted from 0, from the start of
 * main on; its name goes into the file $RAPT_FAIL_REPORT, which stays empty if there was no N-th call. At the end of the program
 * comes how many blocks of memory are held then. */
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
    if (strcmp(kind, of) || atomic_fetch_sub(&left, 1) != 0) return 0;
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

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);

static void *taken(void *memory) {
    if (memory) blocks++;
    return memory;
}
void *malloc(size_t bytes) { return fails("memory", "malloc", ENOMEM) ? NULL : taken(__libc_malloc(bytes)); }
void *calloc(size_t n, size_t bytes) { return fails("memory", "calloc", ENOMEM) ? NULL : taken(__libc_calloc(n, bytes)); }
void *realloc(void *old, size_t bytes) {
    if (fails("memory", "realloc", ENOMEM)) return NULL;
    void *memory = __libc_realloc(old, bytes);
    return old ? memory : taken(memory);
}
void *aligned_alloc(size_t alignment, size_t bytes) {
    return fails("memory", "aligned_alloc", ENOMEM) ? NULL : taken(__libc_memalign(alignment, bytes));
}
void free(void *memory) {
    if (memory) blocks--;
    __libc_free(memory);
}

/* ---- All others: as they are, but for the one call that fails -------------------------------------------------------------- */

#define FAILING(of, error, failed, type, name, parameters, ...)                                                                  \
    type name parameters {                                                                                                       \
        type(*next) parameters;                                                                                                  \
        *(void **)&next = dlsym(RTLD_NEXT, #name);                                                                               \
        return fails(of, #name, error) ? failed : next(__VA_ARGS__);                                                             \
    }

FAILING("memory", ENOMEM, MAP_FAILED, void *, mmap, (void *at, size_t n, int p, int f, int fd, off_t from), at, n, p, f, fd, from)
FAILING("memory", ENOMEM, MAP_FAILED, void *, mmap64, (void *at, size_t n, int p, int f, int fd, off64_t from), at, n, p, f, fd,
        from)
FAILING("memory", ENOMEM, -1, int, mprotect, (void *at, size_t n, int p), at, n, p)
FAILING("threads", EAGAIN, EAGAIN, int, pthread_create, (pthread_t * t, const pthread_attr_t *how, void *(*f)(void *), void *arg),
        t, how, f, arg)
FAILING("threads", EAGAIN, EAGAIN, int, pthread_mutex_init, (pthread_mutex_t * m, const pthread_mutexattr_t *how), m, how)
FAILING("threads", EAGAIN, EAGAIN, int, pthread_cond_init, (pthread_cond_t * c, const pthread_condattr_t *how), c, how)
FAILING("files", EIO, -1, int, fstat, (int fd, struct stat *st), fd, st)
FAILING("files", EIO, -1, int, fstat64, (int fd, struct stat64 *st), fd, st)
FAILING("files", EIO, -1, int, stat, (const char *path, struct stat *st), path, st)
FAILING("files", EIO, -1, int, stat64, (const char *path, struct stat64 *st), path, st)
FAILING("files", EIO, NULL, char *, realpath, (const char *path, char *to), path, to)
FAILING("files", EMFILE, -1, int, mkstemp, (char *path), path)
FAILING("files", EMFILE, -1, int, mkstemp64, (char *path), path)
FAILING("files", EMFILE, -1, int, dup, (int fd), fd)
FAILING("files", EPERM, -1, int, fchmod, (int fd, mode_t mode), fd, mode)
FAILING("files", ENOMEM, NULL, FILE *, fdopen, (int fd, const char *mode), fd, mode)
FAILING("files", EPERM, -1, int, rename, (const char *from, const char *to), from, to)

/* Not of the standard streams, which would have to remember it: full and closed ones do that. */
size_t fwrite(const void *from, size_t size, size_t n, FILE *file) {
    size_t (*next)(const void *, size_t, size_t, FILE *);
    *(void **)&next = dlsym(RTLD_NEXT, "fwrite");
    return file != stdout && file != stderr && fails("files", "fwrite", ENOSPC) ? 0 : next(from, size, n, file);
}

/* These close what they cannot write. */
#define CLOSING(type, failed, name, parameter)                                                                                   \
    type name(parameter it) {                                                                                                    \
        type (*next)(parameter);                                                                                                 \
        *(void **)&next = dlsym(RTLD_NEXT, #name);                                                                               \
        const type result = next(it);                                                                                            \
        return fails("files", #name, EIO) ? failed : result;                                                                     \
    }
CLOSING(int, EOF, fclose, FILE *)
CLOSING(int, -1, close, int)

/* The mode is there where a file may be created. */
#define OPENING(name)                                                                                                            \
    int name(const char *path, int flags, ...) {                                                                                 \
        int (*next)(const char *, int, ...);                                                                                     \
        *(void **)&next = dlsym(RTLD_NEXT, #name);                                                                               \
        return fails("files", #name, EMFILE) ? -1 : next(path, flags, 0600);                                                     \
    }
OPENING(open)
OPENING(open64)
