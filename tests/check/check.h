/* SPDX-License-Identifier: Apache-2.0 */
/* check: every kernel that can run here, against its scalar twin bit for bit, and that against a double reference. */
#ifndef RAPT_CHECK_H
#define RAPT_CHECK_H

/* argv[0] is skipped; program is how the user calls it ("check", "rapt check"), for messages. Returns the exit code: 0 all
 * passed, 1 something failed, 2 bad usage. */
int rapt_check_main(int argc, char **argv, const char *program);

#endif
