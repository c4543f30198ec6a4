/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands of `rapt`, and the functions that they share. */
#ifndef RAPT_CLI_H
#define RAPT_CLI_H

#include <stdbool.h>
#include <stdint.h>

#define CLI_LINE_BYTES 512 /* room for one of the library's explanations */
#define CLI_ERROR      2   /* the exit status of any error; `rapt check` returns 1 if a check failed */

/* The subcommands. Each takes the arguments after its name, and returns the exit status. */
int cli_run(int argc, char **argv);
int cli_info(int argc, char **argv);
int cli_tune(int argc, char **argv);
int cli_vectors(int argc, char **argv); /* `rapt check` with --vectors */

/* Prints "program: message" to standard error, as one line: control characters, which a file name may contain, become '?'.
 * Returns CLI_ERROR. */
__attribute__((format(printf, 2, 3))) int cli_fail(const char *program, const char *format, ...);

/* Flushes standard output. Returns 0 if everything that was printed has been written, else CLI_ERROR; calls cli_fail the first
 * time. */
int cli_flush(void);

typedef enum cli_kind {
    CLI_FLAG,          /* --name */
    CLI_VALUE,         /* --name value, --name=value */
    CLI_OPTIONAL_VALUE /* --name, --name value, --name=value: the next argument is the value unless it begins with a dash */
} cli_kind;

typedef struct cli_option {
    const char *name; /* without the dashes */
    cli_kind kind;
} cli_option;

/* Parses arguments. Sets values[i] to the value of options[i]: null if the option was not given, "" if it has no value. Each
 * option may be given once; -h is --help. Returns 0, or CLI_ERROR after cli_fail. */
int cli_parse(const char *program, const cli_option *options, int count, int argc, char **argv, const char **values);

/* True if *text begins with a decimal integer in min..max that is followed by the character end. Sets *value to it and advances
 * *text past that character. */
bool cli_integer(const char **text, char end, int64_t min, int64_t max, int64_t *value);

/* Checks that a kernel can run: the named one, or if name is null that of RAPT_ISA or the default. Returns 0, or CLI_ERROR after
 * cli_fail. */
int cli_check_isa(const char *program, const char *name);

#endif
