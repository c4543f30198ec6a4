#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# replaced.sh SOURCE: each function that kernels/attend.h lists as one that an ISA may have of its own can be replaced alone: without the
# body of the one in words nothing else is missing and nothing is left over. (tests/broken/sound_replaced.c replaces them with
# bodies, and kernels/x86/amx.h those of bf16 arithmetic.)
source=$1
set -u
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
count=0 failed=0
report() { # report STATUS DESCRIPTION LOG
    count=$((count + 1))
    [ "$1" = 0 ] && echo "ok $count - $2" && return
    failed=1
    echo "not ok $count - $2"
    sed 's/^/# /' "$3"
}
names=$(sed -n '/^ \* Functions that an ISA may replace/,/\*\//s/^ \*   \([a-z0-9_]*\)  *[a-z0-9_]*\.h .*/\1/p' "$source/kernels/attend.h")
for name in $names; do
    printf '#define RAPT_KERNEL_NAME one\n#include "words.h"\n#define %s %s\n#include "attend.h"\n' "$name" "$name" >"$scratch/one.c"
    for arithmetic in exact int8 bf16; do
        # shellcheck disable=SC2086 # words are wanted
        $CC -std=gnu11 -fsyntax-only -Wall -Wextra -DRAPT_ARITH=$arithmetic -I"$source/include" -I"$source/kernels" \
            -I"$source/tests/broken" "$scratch/one.c"
    done >"$scratch/all" 2>&1
    grep -E 'error:|warning:' "$scratch/all" |
        grep -Ev "'?$name'? (used but|declared 'static' but) never defined|function '$name' has internal linkage but is not defined|‘$name’ (used but|declared ‘static’ but) never defined" >"$scratch/log"
    [ ! -s "$scratch/log" ]
    report $? "$name alone" "$scratch/log"
done
sed -n 's/^#ifndef \([a-z0-9_]*\)$/\1/p' "$source"/kernels/*.h "$source"/kernels/*/*.h | sort -u >"$scratch/there"
for name in $names; do echo "$name"; done | sort | diff - "$scratch/there" >"$scratch/log"
report $? 'the list of kernels/attend.h is that of the headers' "$scratch/log"
[ "$count" -gt 10 ]
report $? 'there are such functions' /dev/null
echo "1..$count"
exit $failed
