/* SPDX-License-Identifier: Apache-2.0 */
/* Options of the command line, and its errors. */
#include "cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cli_fail(const char *program, const char *format, ...) {
    char line[8192];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    for (char *c = line; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127) *c = '?';
    fprintf(stderr, "%s: %s\n", program, line);
    return CLI_ERROR;
}

int cli_flush(void) {
    static bool told;
    if (told) return CLI_ERROR;
    if (!fflush(stdout) && !ferror(stdout)) return 0;
    told = true;
    return cli_fail("rapt", "standard output: %s", strerror(errno));
}

int cli_parse(const char *program, const cli_option *options, int count, int argc, char **argv, const char **values) {
    for (int i = 0; i < count; i++) values[i] = NULL;
    for (int a = 0; a < argc; a++) {
        const char *option = strcmp(argv[a], "-h") ? argv[a] : "--help";
        if (strncmp(option, "--", 2) != 0) return cli_fail(program, "unexpected argument '%s'", option);
        const char *name = option + 2, *equals = strchr(name, '=');
        const size_t length = equals ? (size_t)(equals - name) : strlen(name);
        int i = 0;
        while (i < count && (strlen(options[i].name) != length || memcmp(options[i].name, name, length) != 0)) i++;
        if (i == count) return cli_fail(program, "unknown option '--%.*s'", (int)length, name);
        if (values[i]) return cli_fail(program, "--%s is given twice", options[i].name);
        if (equals) {
            if (options[i].kind == CLI_FLAG) return cli_fail(program, "--%s takes no value", options[i].name);
            if (!equals[1]) return cli_fail(program, "--%s: its value is missing", options[i].name);
            values[i] = equals + 1;
        } else if (options[i].kind == CLI_FLAG ||
                   (options[i].kind == CLI_OPTIONAL_VALUE && (a + 1 == argc || argv[a + 1][0] == '-'))) {
            values[i] = "";
        } else {
            /* An argument that looks like an option is one, so in `--q --k K.npy` the value of --q is missing. A file whose name
             * begins so can be given after '='. */
            if (a + 1 == argc || !argv[a + 1][0] || !strncmp(argv[a + 1], "--", 2))
                return cli_fail(program, "--%s: its value is missing", options[i].name);
            values[i] = argv[++a];
        }
    }
    return 0;
}

bool cli_integer(const char **text, char end, int64_t min, int64_t max, int64_t *value) {
    char *rest;
    const long long number = strtoll(*text, &rest, 10); /* saturates, at limits outside every min..max */
    const bool digit_first = (**text >= '0' && **text <= '9') || (**text == '-' && rest != *text);
    if (!digit_first || *rest != end || number < min || number > max) return false;
    *text = rest + (end != '\0');
    *value = number;
    return true;
}
