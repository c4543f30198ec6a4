/* SPDX-License-Identifier: Apache-2.0 */
/* A file that appears under its name only when it is complete: it is written beside, then renamed; a signal that ends the process
 * removes what was not complete (on Windows, the system does, whatever ends it). What is no regular file, and standard output, is
 * written straight into. */
#ifndef RAPT_CLI_OUTPUT_H
#define RAPT_CLI_OUTPUT_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

#define OUTPUT_STANDARD "-" /* the path that means standard output; a file of that name is ./- */

typedef struct output {
    char *target; /* the file's own path, links followed; owned */
    FILE *file;
    bool straight; /* target is a device, a FIFO, ... */
    bool standard; /* ... or what standard output goes to */
    bool device;   /* a character device, which takes several outputs */
    bool terminal; /* a device that somebody looks at */
    bool present;  /* target was there when it was located */
#if defined(_WIN32)
    void *temporary; /* a handle; null while there is none */
#else
    char *temporary; /* owned; null while there is none */
    mode_t mode;     /* that of the file which is replaced; of a new one, what the umask leaves */
    dev_t volume;    /* of what is present; it and the number tell files apart, whatever links lead there */
    ino_t number;
    struct output *next;
#endif
} output;

/* Finds out where the file would be, and touches nothing. False, with errno, if it could not be put there. */
bool output_locate(output *out, const char *path);

/* True if the output would replace or overwrite the file that is at the path. */
bool output_is_file(const output *out, const char *path);

/* True if one of two located outputs would replace, or be mixed with, the other. */
bool output_is_output(const output *a, const output *b);

/* Opens file, to be written; out must stay where it is until output_discard. False, with errno. */
bool output_open(output *out);

/* Closes file. False, with errno, if it is not complete. */
bool output_close(output *out);

/* Gives the closed file its name. False, with errno. */
bool output_publish(output *out);

/* Removes what was not published, and frees. A struct of zeros will do. */
void output_discard(output *out);

#endif
