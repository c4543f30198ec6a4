#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# flags.sh SOURCE LIBRARY ISA:FLAGS...: options that would break the promise, with the compiler $CC. Of some of them it tells the
# kernels, which then are not compiled; of the others rapt_self_check tells, where they change bits. The library's own options
# ($EXACT) come after CFLAGS and win, and sources that are compiled by hand, but as they must be, pass.
# shellcheck disable=SC2086 # $CC, $EXACT and lists of options are words
source=$1 library=$2
shift 2
set -u
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
count=0 failed=0
report() { # report STATUS DESCRIPTION LOG
    count=$((count + 1))
    if [ "$1" = 0 ]; then
        echo "ok $count - $2"
    else
        failed=1
        echo "not ok $count - $2"
        tail -n 20 "$3" | sed 's/^/# /'
    fi
}
skip() {
    count=$((count + 1))
    echo "ok $count - $1 # SKIP $2"
}

compile() { $CC -std=gnu11 -I"$source/include" -I"$source/kernels" "$@"; }
file_of() { awk -v name="$1" -v folder="$source/kernels/" '$1 == name { print folder $2; exit }' "$source/kernels/list.txt"; } # a kernel's
accepts() { echo 'int x;' | $CC -Werror -xc -fsyntax-only "$@" - 2>/dev/null; }
sse41=
for isa; do case $isa in sse41:*) sse41=${isa#*:} ;; esac done

# ---- What takes long, meanwhile ------------------------------------------------------------------------------------------

cat >"$scratch/main.c" <<'END'
#include <stdio.h>
#include "rapt.h"
int main(int argc, char **argv) {
    char text[500];
    rapt_status status = rapt_self_check(argc > 1 ? argv[1] : NULL, text, sizeof text);
    printf("%d %s\n", (int)status, text);
    return 0;
}
END
compile -c "$scratch/main.c" -o "$scratch/main.o" || exit 1

# What optimises no more than it takes to contract, and an FMA that scalar code has not by itself.
optimised='-O1 -DRAPT_UNROLL=' fma=
if accepts -fexpensive-optimizations; then optimised="$optimised -fexpensive-optimizations"; fi
case $(uname -m) in x86_64) fma=-mfma ;; esac

# check NAME ISA FLAGS...: what rapt_self_check says about a kernel compiled with these flags, in place of the library's.
check() {
    name=$1 kernel=$2
    shift 2
    for arithmetic in exact int8 bf16; do
        compile $optimised "$@" -DRAPT_ARITH=$arithmetic -c "$(file_of "$kernel")" -o "$scratch/$name-$arithmetic.o" || return
    done
    $CC "$scratch/main.o" "$scratch/$name"-*.o "$library" -o "$scratch/$name" && "$scratch/$name" "$kernel"
}
vendor() {
    mkdir "$scratch/vendored" && cd "$scratch/vendored" || return 1
    echo 'RAPT_KERNEL(scalar, scalar, scalar, scalar)' >kernels.inc
    set --
    # shellcheck disable=SC2013 # a line is a name, which has no spaces
    for file in $(awk '/^[a-z]/ && $2 ~ /^(any|other)$/ { print $1 }' "$source/dispatch/sources.txt"); do set -- "$@" "$source/dispatch/$file"; done
    for arithmetic in exact int8 bf16; do
        $CC $optimised -ffp-contract=off -DRAPT_ARITH=$arithmetic -I"$source/include" -I"$source/kernels" -c "$source/kernels/generic/scalar.c" \
            -o "scalar-$arithmetic.o" || return
    done
    $CC $optimised -ffp-contract=off -DRAPT_VERSION='"vendored"' -I"$source/include" -I"$source/kernels" -I"$source/dispatch" -I. \
        "$@" scalar-*.o "$scratch/main.o" -lm -o "$scratch/vendor" && "$scratch/vendor"
}
run() { "$@" >"$scratch/$2.log" 2>&1; }
# Those that clang does not tell of.
if $CC --version | grep -q clang; then silent='-funsafe-math-optimizations -freciprocal-math -fno-signed-zeros'; else silent=; fi
{
    run check exact-last scalar $fma -ffast-math -ffp-contract=fast $EXACT
    run check contracted scalar $EXACT $fma -ffp-contract=fast
    if [ -n "$sse41" ]; then run check contracted-sse41 sse41 $sse41 $EXACT $fma -ffp-contract=fast; fi
    for flag in $silent; do run check "scalar$flag" scalar $EXACT "$flag"; done
    run vendor vendored
} &

# ---- What the compiler tells of ------------------------------------------------------------------------------------------

# All of it while preprocessing, which takes least.
preprocess() { # preprocess ISA FLAGS...
    kernel=$1
    shift
    compile -E "$@" "$(file_of "$kernel")" 2>"$scratch/log" >"$scratch/preprocessed"
}
refused() { ! preprocess "$@" && grep -q 'rapt: ' "$scratch/log"; }
for isa; do
    name=${isa%%:*}
    preprocess "$name" ${isa#*:} $EXACT
    report $? "$name is compiled with its own options" "$scratch/log"
    for flags in -ffast-math -Ofast -ffinite-math-only -ffp-model=fast -ffp-eval-method=double -funsafe-math-optimizations \
        -freciprocal-math -fno-signed-zeros '-fassociative-math -fno-signed-zeros -fno-trapping-math' \
        -fsingle-precision-constant -mfpmath=387; do
        case $silent:$flags in *"$flags"*:* | -*:-fassociative-math*) continue ;; esac
        if ! accepts $flags; then continue; fi
        refused "$name" ${isa#*:} $flags
        report $? "$name is not compiled with $flags" "$scratch/log"
    done
done

# ---- Meson, with CFLAGS --------------------------------------------------------------------------------------------------

by_meson() {
    mkdir -p "$scratch/app/subprojects" && ln -s "$source" "$scratch/app/subprojects/rapt" && cd "$scratch/app" || return 1
    printf "project('app', 'c')\nsubproject('rapt')\n" >meson.build
    CFLAGS='-ffast-math -ffp-contract=fast' meson setup build && cd build || return 1
    shared=$(ninja -t targets all | sed -n 's/^\(.*librapt\.so\.[0-9.]*\): .*/\1/p')
    ninja -t commands "$shared" | grep -E -- ' -c | -shared ' >listed
    awk '{
        fast = contract = "none"
        for (i = 1; i <= NF; i++) {
            if ($i ~ /^-f(no-)?fast-math$/) fast = $i
            if ($i ~ /^-ffp-contract=/) contract = $i
        }
        given += / -ffast-math -ffp-contract=fast /
        if (fast != "-fno-fast-math" || (/ -c / && contract != "-ffp-contract=off")) { print; bad = 1 }
    } END { print NR, "commands,", given, "with CFLAGS"; exit bad || NR < 20 || given != NR }' listed
}
(by_meson) >"$scratch/log" 2>&1
report $? 'built by Meson, kernels and dispatch have their own options after CFLAGS, the linker too' "$scratch/log"

# ---- What only the library's check of itself tells of -------------------------------------------------------------------

wait
said() { # said NAME STATUS DESCRIPTION
    grep -q "^$2 " "$scratch/$1.log"
    report $? "$3" "$scratch/$1.log"
}
said exact-last 0 'scalar with its own options last passes its check'
if [ -n "$fma" ] || [ "$(uname -m)" = aarch64 ]; then
    said contracted -21 "scalar with $fma -ffp-contract=fast does not"
else
    skip 'contraction of scalar' 'there is no FMA'
fi
if [ -z "$sse41" ]; then
    skip 'contraction of sse41' 'another architecture'
elif grep -q '^-14 ' "$scratch/contracted-sse41.log"; then
    skip 'contraction of sse41' 'not on this CPU'
else
    said contracted-sse41 -21 "sse41 with $fma -ffp-contract=fast does not"
fi
for flag in $silent; do said "scalar$flag" -21 "scalar with $flag does not"; done
said vendored 0 'the sources, compiled with -ffp-contract=off and nothing else, pass'
echo "1..$count"
exit "$failed"
