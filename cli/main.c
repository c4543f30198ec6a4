/* SPDX-License-Identifier: Apache-2.0 */
/* rapt: attention on NumPy files, and what this machine can do. */
#include "cli.h"
#include "check.h"
#include "rapt_pool.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const char usage[] = "usage: rapt run --q Q.npy --k K.npy --v V.npy --out O.npy [options]\n"
                            "       rapt info [--json]\n"
                            "       rapt check [options]\n"
                            "       rapt tune [options]\n"
                            "       rapt help [run | info | check | tune]\n"
                            "       rapt --version\n";

static const char help[] =
    "\n"
    "  run    scaled dot-product attention on NumPy files\n"
    "  info   the CPU, its features, the kernels that can run here, the one chosen\n"
    "  check  test every kernel that can run on this machine\n"
    "  tune   search for the tuning with which a kernel is fastest on this machine\n"
    "\n"
    "`rapt help COMMAND`, or `rapt COMMAND -h` or --help, lists the options.\n"
    "In the environment, RAPT_ISA names the kernel to use; RAPT_VERBOSE=1 logs each plan, and each refusal of the library,\n"
    "as a line on standard error.\n"
    "Exit status: 0 success, 1 a check failed, 2 an error, with one line on standard error that says which.\n";

/* Runs `rapt check`: its own checks, or with --vectors those of files. */
static int check(int argc, char **argv) {
    bool explained = false;
    for (int i = 0; i < argc; i++) {
        if (!strncmp(argv[i], "--vectors", 9)) return cli_vectors(argc, argv);
        explained |= !strcmp(argv[i], "--help") || !strcmp(argv[i], "-h");
    }
    const int status = rapt_check_main(argc + 1, argv - 1, "rapt check");
    if (explained)
        printf("\n`rapt check --vectors DIR` checks vectors instead: results in files; see rapt check --vectors DIR --help.\n");
    return status;
}

static const struct {
    const char *name;
    int (*run)(int argc, char **argv); /* with the arguments after the name */
} commands[] = {{"run", cli_run}, {"info", cli_info}, {"check", check}, {"tune", cli_tune}};

static bool is_help(const char *argument) {
    return !strcmp(argument, "help") || !strcmp(argument, "--help") || !strcmp(argument, "-h");
}

/* Runs the command that the arguments name, and returns the exit status. */
static int command(int argc, char **argv) {
    if (argc < 2) {
        fputs(usage, stderr);
        return CLI_ERROR;
    }
    char *name = argv[1], option[] = "--help";
    if (is_help(name) && argc > 2) { /* rapt help COMMAND is rapt COMMAND --help */
        name = argv[2];
        argv[2] = option;
    }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (!strcmp(name, commands[i].name)) return commands[i].run(argc - 2, argv + 2);
    const bool version = !strcmp(name, "--version");
    if (!is_help(name) && !version) return cli_fail("rapt", "'%s' is not a command; see rapt help", name);
    if (argc > 2) return cli_fail("rapt", "unexpected argument '%s'", argv[2] == option ? name : argv[2]);
    if (version) printf("rapt %s\n", rapt_version());
    else printf("%s%s", usage, help);
    return 0;
}

/* Creates a pool, since with RAPT_VERBOSE=1 the first pool of a process sends traces to stderr (rapt_pool.h), here for all
 * commands. */
static void trace_if_verbose(void) { rapt_pool_destroy(rapt_pool_create(1)); }

int main(int argc, char **argv) {
    trace_if_verbose();
    const int status = command(argc, argv);
    return cli_flush() ? CLI_ERROR : status;
}
