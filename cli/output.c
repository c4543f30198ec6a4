/* SPDX-License-Identifier: Apache-2.0 */
#define _XOPEN_SOURCE 700
#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Signals ------------------------------------------------------------------------------------------------------------ */

static const int deadly[] = {SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGTERM, SIGXCPU, SIGXFSZ};
enum { DEADLY = sizeof deadly / sizeof *deadly };

static output *unfinished; /* those with a temporary file; changed only while these signals wait */

static void clean_up(int number) {
    for (const output *out = unfinished; out; out = out->next) unlink(out->temporary);
    raise(number); /* as if it had not been caught: it waits until this returns, and its action is the default one again */
}

/* Whoever ignores a signal, as nohup does, goes on doing so. */
static void catch_signals(void) {
    struct sigaction present, action = {.sa_handler = clean_up, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < DEADLY; i++)
        if (!sigaction(deadly[i], NULL, &present) && present.sa_handler == SIG_DFL) sigaction(deadly[i], &action, NULL);
}

static sigset_t hold_signals(void) {
    sigset_t held, before;
    sigemptyset(&held);
    for (int i = 0; i < DEADLY; i++) sigaddset(&held, deadly[i]);
    pthread_sigmask(SIG_BLOCK, &held, &before);
    return before;
}

static void forget_temporary(output *out) {
    const sigset_t before = hold_signals();
    output **at = &unfinished;
    while (*at != out) at = &(*at)->next;
    *at = out->next;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    free(out->temporary);
    out->temporary = NULL;
}

/* ---- Files -------------------------------------------------------------------------------------------------------------- */

static char *join(const char *a, const char *b, const char *c) {
    char *path = malloc(strlen(a) + strlen(b) + strlen(c) + 1);
    return path ? strcat(strcat(strcpy(path, a), b), c) : NULL;
}

static bool is_standard_output(const struct stat *st) {
    struct stat standard;
    return !fstat(STDOUT_FILENO, &standard) && standard.st_dev == st->st_dev && standard.st_ino == st->st_ino;
}

bool output_locate(output *out, const char *path) {
    struct stat st;
    *out = (output){.target = NULL};
    if (!stat(path, &st)) {
        errno = EISDIR;
        if (S_ISDIR(st.st_mode)) return false;
        out->mode = st.st_mode & 0777;
        out->standard = is_standard_output(&st);
        out->straight = out->standard || !S_ISREG(st.st_mode); /* a device must not be renamed over */
        out->target = out->straight ? join(path, "", "") : realpath(path, NULL);
        return out->target;
    }
    if (errno != ENOENT) return false;
    const mode_t mask = umask(0);
    umask(mask);
    out->mode = 0666 & ~mask;
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

/* A descriptor of a new file beside the target, of its mode; or -1, with errno. */
static int create_temporary(output *out) {
    char *path = join(out->target, ".tmp", "XXXXXX");
    if (!path) return -1;
    catch_signals();
    const sigset_t before = hold_signals();
    const int fd = mkstemp(path);
    if (fd >= 0) {
        out->temporary = path;
        out->next = unfinished;
        unfinished = out;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (fd < 0) free(path);
    if (fd < 0 || !fchmod(fd, out->mode)) return fd;
    close(fd);
    return -1;
}

bool output_open(output *out) {
    const int fd = out->standard   ? dup(STDOUT_FILENO)
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
