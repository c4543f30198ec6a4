/* SPDX-License-Identifier: Apache-2.0 */
/* What the subcommands of `rapt` share. Each takes the arguments after its name and returns the exit status. */
#ifndef RAPT_CLI_H
#define RAPT_CLI_H

#include <stdbool.h>
#include <stdint.h>

#define CLI_LINE_BYTES 512 /* of the library's explanations */
#define CLI_ERROR      2   /* the exit status of any error; `rapt check` returns 1 when a check failed */

int cli_run(int argc, char **argv);
int cli_info(int argc, char **argv);
int cli_tune(int argc, char **argv);

/* Prints "program: message" as one line on standard error, whatever bytes a file name in it holds. Returns CLI_ERROR. */
__attribute__((format(printf, 2, 3))) int cli_fail(const char *program, const char *format, ...);

/* Whether all that was printed has arrived. 0, or CLI_ERROR after cli_fail, the first time. */
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

/* -h is --help. Fills values[i] for options[i]: null if it was not given, "" if it was without a value. Each may be given once.
 * 0, or CLI_ERROR after cli_fail. */
int cli_parse(const char *program, const cli_option *options, int count, int argc, char **argv, const char **values);

/* A decimal integer in min..max that ends at the character end, which is skipped. */
bool cli_integer(const char **text, char end, int64_t min, int64_t max, int64_t *value);

/* Whether a kernel can run: the named one, or that of RAPT_ISA or the default if name is null. 0, or CLI_ERROR after cli_fail. */
int cli_check_isa(const char *program, const char *name);

#endif
