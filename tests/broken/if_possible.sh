#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# if_possible.sh PROGRAM...: a check of kernels that not every CPU can run. Where it is refused since this one cannot, it is
# skipped, with the line that says so.
out=$("$@" 2>&1)
status=$?
case $status:$out in
2:*'cannot run here'*) echo "1..0 # SKIP $out" ;;
*)
    printf '%s\n' "$out"
    exit "$status"
    ;;
esac
