/* SPDX-License-Identifier: Apache-2.0 */
#define _XOPEN_SOURCE 700
#include "output.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *join(const char *a, const char *b, const char *c) {
    char *path = malloc(strlen(a) + strlen(b) + strlen(c) + 1);
    return path ? strcat(strcat(strcpy(path, a), b), c) : NULL;
}

bool output_locate(output *out, const char *path) {
    struct stat st;
    *out = (output){realpath(path, NULL), NULL, NULL};
    if (out->target) { /* a device or a directory must not be renamed over */
        if (stat(out->target, &st)) return false;
        errno = S_ISDIR(st.st_mode) ? EISDIR : EEXIST;
        return S_ISREG(st.st_mode);
    }
    if (errno != ENOENT) return false;
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

bool output_open(output *out) {
    char *path = join(out->target, ".tmp", "XXXXXX");
    if (!path) return false;
    const int fd = mkstemp(path);
    if (fd < 0) {
        free(path);
        return false;
    }
    out->temporary = path;
    const mode_t mask = umask(0); /* mkstemp's files are private; this one is to be like any other new file */
    umask(mask);
    if (!fchmod(fd, 0666 & ~mask)) out->file = fdopen(fd, "wb");
    if (!out->file) close(fd);
    return out->file;
}

bool output_close(output *out) {
    FILE *file = out->file;
    out->file = NULL;
    return !fclose(file);
}

bool output_publish(output *out) {
    if (rename(out->temporary, out->target)) return false;
    free(out->temporary);
    out->temporary = NULL;
    return true;
}

void output_discard(output *out) {
    if (out->file) fclose(out->file);
    if (out->temporary) unlink(out->temporary);
    free(out->temporary);
    free(out->target);
    *out = (output){NULL, NULL, NULL};
}
