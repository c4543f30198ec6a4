/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

int main(int argc, char **argv) { return rapt_check_main(argc, argv, "check"); }
