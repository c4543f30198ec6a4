/* SPDX-License-Identifier: Apache-2.0 */
/* A file that appears under its name only when it is complete: it is written to a temporary file in the same folder, which is
 * then renamed. If a signal ends the process, the temporary file is removed (on Windows by the system, whatever ends the
 * process). Standard output, and targets that are not regular files, are written directly. */
#ifndef RAPT_CLI_OUTPUT_H
#define RAPT_CLI_OUTPUT_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

#define OUTPUT_STANDARD "-" /* the path that means standard output; a file of that name is ./- */

typedef struct output {
    char *target; /* the file's path, with links resolved; owned */
    FILE *file;
    bool straight; /* the target is written directly: a device, a FIFO, ... */
    bool standard; /* ... or the file that standard output goes to */
    bool device;   /* a character device, which accepts several outputs */
    bool terminal; /* a device that is a terminal */
    bool present;  /* the target existed when it was located */
#if defined(_WIN32)
    void *temporary; /* a handle; null if there is no temporary file */
#else
    char *temporary; /* a path, owned; null if there is no temporary file */
    mode_t mode;     /* of the file that is replaced; for a new file, what the umask leaves */
    dev_t volume;    /* if present: it and the number identify the file, whatever links lead to it */
    ino_t number;
    struct output *next; /* in the list of outputs with a temporary file */
#endif
} output;

/* In these functions, false means failure, with errno set. */

/* Determines where the file would be, without touching anything. Fails if it could not be written there. */
bool output_locate(output *out, const char *path);

/* Opens out->file for writing. out must not be moved before output_discard. */
bool output_open(output *out);

/* Closes out->file. Fails if not everything was written. */
bool output_close(output *out);

/* Gives the closed file its name. */
bool output_publish(output *out);

/* True if a located output would replace or overwrite the file at the path. */
bool output_is_file(const output *out, const char *path);

/* True if one of two located outputs would replace the other, or be mixed with it. */
bool output_is_output(const output *a, const output *b);

/* Removes a file that was not published, and frees memory. A struct of zeros is allowed. */
void output_discard(output *out);

#endif
