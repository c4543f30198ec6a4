/* SPDX-License-Identifier: Apache-2.0 */
/* rapt: attention on NumPy files, and what this machine can do. */
#include "cli.h"
#include "check.h"
#include "rapt.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char usage[] = "usage: rapt run --q Q.npy --k K.npy --v V.npy --out O.npy [options]\n"
                            "       rapt info [--json]\n"
                            "       rapt check [options]\n"
                            "       rapt --help | --version\n";

static const char help[] = "\n"
                           "  run    scaled dot-product attention on NumPy files\n"
                           "  info   the CPU, its features, the kernels that can run here, the one chosen\n"
                           "  check  test every kernel that can run on this machine\n"
                           "\n"
                           "`rapt COMMAND --help` tells the options. The environment variable RAPT_ISA names the kernel to use.\n"
                           "Exit status: 0 success, 1 a check failed, 2 an error, told in one line on standard error.\n";

static int command(int argc, char **argv) {
    if (argc < 2) {
        fputs(usage, stderr);
        return CLI_ERROR;
    }
    if (!strcmp(argv[1], "run")) return cli_run(argc - 2, argv + 2);
    if (!strcmp(argv[1], "info")) return cli_info(argc - 2, argv + 2);
    if (!strcmp(argv[1], "check")) return rapt_check_main(argc - 1, argv + 1, "rapt check");
    if (argc > 2 && argv[1][0] == '-') return cli_fail("rapt", "unexpected argument '%s'", argv[2]);
    if (!strcmp(argv[1], "--help")) {
        printf("%s%s", usage, help);
    } else if (!strcmp(argv[1], "--version")) {
        printf("rapt %s\n", rapt_version());
    } else {
        return cli_fail("rapt", "'%s' is not a command; see rapt --help", argv[1]);
    }
    return 0;
}

int main(int argc, char **argv) {
    const int status = command(argc, argv);
    if (fflush(stdout) || ferror(stdout)) return cli_fail("rapt", "standard output: %s", strerror(errno));
    return status;
}
