/* SPDX-License-Identifier: Apache-2.0 */
/* Outputs, on systems with POSIX's files and signals, and on WASI. */
#define _XOPEN_SOURCE   700
#define _DEFAULT_SOURCE /* getentropy */
#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Signals ------------------------------------------------------------------------------------------------------------ */

static output *unfinished; /* the outputs that have a temporary file; changed only while deadly signals are held */

#if defined(__wasi__) /* has no signals */
typedef int signals;
static void catch_signals(void) {}
static signals hold_signals(void) { return 0; }
static void release_signals(signals before) { (void)before; }
#else
typedef sigset_t signals;
static const int deadly[] = {SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGTERM, SIGXCPU, SIGXFSZ};
enum { DEADLY = sizeof deadly / sizeof *deadly };

/* The handler of deadly signals: removes temporary files, then lets the signal do what it does by default. */
static void clean_up(int number) {
    for (const output *out = unfinished; out; out = out->next) unlink(out->temporary);
    raise(number); /* pending until this returns; its action is the default one again (SA_RESETHAND) */
}

/* Installs the handler, except for signals that are ignored, as under nohup. */
static void catch_signals(void) {
    struct sigaction present, action = {.sa_handler = clean_up, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < DEADLY; i++)
        if (!sigaction(deadly[i], NULL, &present) && present.sa_handler == SIG_DFL) sigaction(deadly[i], &action, NULL);
}

/* Blocks deadly signals, and returns the signals that were blocked before. */
static signals hold_signals(void) {
    signals held, before;
    sigemptyset(&held);
    for (int i = 0; i < DEADLY; i++) sigaddset(&held, deadly[i]);
    pthread_sigmask(SIG_BLOCK, &held, &before);
    return before;
}

static void release_signals(signals before) { pthread_sigmask(SIG_SETMASK, &before, NULL); }
#endif

/* Takes an output from the list, when its temporary file has been renamed or removed. */
static void forget_temporary(output *out) {
    const signals before = hold_signals();
    output **at = &unfinished;
    while (*at != out) at = &(*at)->next;
    *at = out->next;
    release_signals(before);
    free(out->temporary);
    out->temporary = NULL;
}

/* ---- Files -------------------------------------------------------------------------------------------------------------- */

#if defined(__wasi__) /* has no modes of files, no dup and no mkstemp */
static mode_t mode_of_new(void) { return 0666; }
static bool set_mode(int fd, mode_t mode) { return (void)fd, (void)mode, true; }
static int copy_standard_output(void) { return errno = ENOTSUP, -1; }
static int create_unique(char *path) {
    unsigned char random[6];
    if (getentropy(random, sizeof random)) return -1;
    char *letters = path + strlen(path) - sizeof random;
    for (size_t i = 0; i < sizeof random; i++) letters[i] = (char)('a' + random[i] % 26);
    return open(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
}
#else
static mode_t mode_of_new(void) {
    const mode_t mask = umask(0);
    umask(mask);
    return 0666 & ~mask;
}
static bool set_mode(int fd, mode_t mode) { return !fchmod(fd, mode); }
static int copy_standard_output(void) { return dup(STDOUT_FILENO); }
static int create_unique(char *path) { return mkstemp(path); }
#endif

/* Returns the concatenation of three strings in new memory; null if there is not enough. */
static char *join(const char *a, const char *b, const char *c) {
    const size_t bytes = strlen(a) + strlen(b) + strlen(c) + 1;
    char *path = malloc(bytes);
    if (path) snprintf(path, bytes, "%s%s%s", a, b, c);
    return path;
}

static bool is_standard_output(const struct stat *st) {
    struct stat standard;
    return !fstat(STDOUT_FILENO, &standard) && standard.st_dev == st->st_dev && standard.st_ino == st->st_ino;
}

/* True if the target is a terminal. It has to be opened to find out; nothing is written to it. */
static bool is_terminal(const output *out) {
    if (out->standard) return isatty(STDOUT_FILENO);
    const int fd = open(out->target, O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    const bool terminal = fd >= 0 && isatty(fd);
    if (fd >= 0) close(fd);
    return terminal;
}

/* Locates an output whose target exists. */
static bool locate_present(output *out, const char *path, const struct stat *st) {
    errno = EISDIR;
    if (S_ISDIR(st->st_mode)) return false;
    out->present = true;
    out->volume = st->st_dev;
    out->number = st->st_ino;
    out->mode = st->st_mode & 0777;
    out->standard = is_standard_output(st);
    out->straight = out->standard || !S_ISREG(st->st_mode); /* a device must not be renamed over */
    out->device = S_ISCHR(st->st_mode);
    out->target = out->straight ? join(path, "", "") : realpath(path, NULL);
    out->terminal = out->target && out->device && is_terminal(out);
    return out->target;
}

bool output_locate(output *out, const char *path) {
    struct stat st;
    *out = (output){.target = NULL};
    if (!strcmp(path, OUTPUT_STANDARD)) return !fstat(STDOUT_FILENO, &st) && locate_present(out, path, &st);
    if (!stat(path, &st)) return locate_present(out, path, &st);
    if (errno != ENOENT) return false;
    out->mode = mode_of_new();
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    char *folder = slash ? join(path, "", "") : join(".", "", "");
    if (!folder) return false;
    if (slash) folder[slash - path + 1] = '\0';
    char *real = realpath(folder, NULL);
    free(folder);
    if (!real) return false;
    out->target = *name ? join(real, "/", name) : NULL;
    if (!*name) errno = ENOENT;
    free(real);
    return out->target;
}

bool output_is_file(const output *out, const char *path) {
    struct stat st;
    return out->present && !stat(path, &st) && st.st_dev == out->volume && st.st_ino == out->number;
}

#if defined(__APPLE__) /* most file systems there do not distinguish upper and lower case */
static bool is_same_name(const char *a, const char *b) { return !strcasecmp(a, b); }
#else
static bool is_same_name(const char *a, const char *b) { return !strcmp(a, b); }
#endif

bool output_is_output(const output *a, const output *b) {
    if (!a->present || !b->present) return !a->present && !b->present && is_same_name(a->target, b->target);
    return a->volume == b->volume && a->number == b->number && !a->device;
}

/* Creates the temporary file, with the target's mode. Returns its descriptor, or -1 with errno. */
static int create_temporary(output *out) {
    char *path = join(out->target, ".tmp", "XXXXXX");
    if (!path) return -1;
    catch_signals();
    const signals before = hold_signals();
    const int fd = create_unique(path);
    if (fd >= 0) {
        out->temporary = path;
        out->next = unfinished;
        unfinished = out;
    }
    release_signals(before);
    if (fd < 0) free(path);
    if (fd < 0 || set_mode(fd, out->mode)) return fd;
    close(fd);
    return -1;
}

bool output_open(output *out) {
    const int fd = out->standard   ? copy_standard_output()
                   : out->straight ? open(out->target, O_WRONLY | O_CLOEXEC | O_NOCTTY)
                                   : create_temporary(out);
    if (fd < 0) return false;
    out->file = fdopen(fd, "wb");
    if (!out->file) close(fd);
    return out->file;
}

bool output_close(output *out) {
    FILE *file = out->file;
    out->file = NULL;
    return !fclose(file);
}

bool output_publish(output *out) {
    if (!out->temporary) return true;
    if (rename(out->temporary, out->target)) return false;
    forget_temporary(out);
    return true;
}

void output_discard(output *out) {
    if (out->file) fclose(out->file);
    if (out->temporary) {
        unlink(out->temporary);
        forget_temporary(out);
    }
    free(out->target);
    *out = (output){.target = NULL};
}
