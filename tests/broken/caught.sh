#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# caught.sh PROGRAM...: a broken kernel in PROGRAM must make it exit with 1, say "not ok" and tell how to reproduce that.
out=$("$@")
status=$?
caught=$(printf '%s\n' "$out" | grep -c '^not ok')
reproduce=$(printf '%s\n' "$out" | grep -c '^# reproduce: ')
echo 1..1
if [ "$status" -eq 1 ] && [ "$caught" -gt 0 ] && [ "$reproduce" -gt 0 ]; then
    echo "ok 1 - caught by $caught cases"
else
    echo "not ok 1 - exit status $status, $caught cases failed, $reproduce reproducing lines"
    printf '%s\n' "$out" | tail -n 20 | sed 's/^/# /'
    exit 1
fi
