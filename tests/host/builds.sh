#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# builds.sh [--all]: the library compiled by each compiler that is there, at each level of optimisation, across files (LTO), and
# for this CPU; every build must pass rapt_self_check, and compute the same bits as the others. Of kernels there are as few as
# tell: scalar is where compilers have most freedom, and code of sse41 must not get into what runs on every CPU. It takes two
# minutes of a core. --all, half an hour: all of that, with avx2 in the place of sse41, by gcc 12 to 14 and clang 14 to 19, which
# are installed from Debian 12 and, as root and into a folder of their own, from Debian 13.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
source=$PWD
export LC_ALL=C
count=0 failed=0
report() { # report STATUS DESCRIPTION LOG
    count=$((count + 1))
    if (($1 == 0)); then
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

compilers=(gcc-12 gcc-13 gcc-14 clang-14 clang-15 clang-16 clang-17 clang-18 clang-19)
all=0 stable=
if [[ ${1:-} == --all ]]; then
    all=1
    tools/install-missing gcc-12 clang-14 clang-15 clang-16 clang-19 lld-19 mmdebstrap
    stable=$source/build-test/debian-stable
    if [[ ! -e $stable/usr/bin/gcc-14 ]]; then
        rm -rf "$stable"
        mmdebstrap --variant=extract --include=libc6-dev,gcc-13,gcc-14,clang-17,clang-18 stable "$stable" \
            http://deb.debian.org/debian >/dev/null 2>&1 && ln -s usr/bin usr/lib usr/lib64 "$stable" || stable=
    fi
fi
if [[ $stable ]]; then scratch=$stable/builds && rm -rf "$scratch" && mkdir "$scratch"; else scratch=$(mktemp -d); fi
trap 'rm -rf "$scratch"' EXIT

# ---- One build ---------------------------------------------------------------------------------------------------------------

# By its own root if a compiler is in that folder; all paths are relative to the folder of the builds, which both see.
in_stable() { [[ $stable && -x $stable/usr/bin/$1 ]]; }
there() { command -v "$1" >/dev/null || in_stable "$1"; }
enter='import os, sys; os.chroot(sys.argv[1]); os.chdir("/builds"); os.execvp(sys.argv[2], sys.argv[2:])'
run() {
    if in_stable "$1"; then
        python3 -c "$enter" "$stable" "$@"
    else
        (cd "$scratch" && "$@")
    fi
}
cp -r dispatch kernels include tests/host/builds.c tests/support/sample.h tests/support/hash.h "$scratch"
tools/amalgamate "$scratch/amalgamation" || exit

family=other kernels=scalar
if [[ $(uname -m) == x86_64 ]]; then
    family=x86_64 kernels='sse41 scalar'
    if ((all)); then kernels='avx2 scalar'; fi
fi
# Sources of dispatch/ for this CPU, with the pool.
sources() { awk -v family="$family" '/^[a-z]/ && ($2 ~ /^(any|pool)$/ || "," $2 "," ~ "," family ",") { print "dispatch/" $1 }' dispatch/sources.txt; }
# The file of a kernel, and its options, as the Meson build has them.
file_of() { awk -v name="$1" '$1 == name { print "kernels/" $2; exit }' kernels/list.txt; }
flags_of() { awk -v name="$1" '$1 == name { for (i = 6; i <= NF; i++) print $i }' kernels/list.txt; }
# Linked statically where its C library is another root's.
link() { # link COMPILER NAME FLAGS... FILES...
    local static=()
    if in_stable "$1"; then static=(-static); fi
    run "$1" "${static[@]}" "${@:3}" -lm -pthread -o "$2/program"
}

# by_files NAME COMPILER "KERNELS" FLAGS...: as the Meson build does it, file by file.
by_files() {
    local name=$1 compiler=$2 kernel arithmetic file objects=()
    local common=(-std=gnu11 -ffp-contract=off -fno-math-errno "-DRAPT_VERSION=\"$name\"" -Iinclude -Ikernels -Idispatch "-I$name" "${@:4}")
    for kernel in $3; do
        echo "RAPT_KERNEL($kernel, $kernel, $kernel, $kernel)" >>"$scratch/$name/kernels.inc"
        for arithmetic in exact int8 bf16; do
            # shellcheck disable=SC2046 # words are wanted
            run "$compiler" "${common[@]}" $(flags_of "$kernel") "-DRAPT_ARITH=$arithmetic" -c "$(file_of "$kernel")" \
                -o "$name/$kernel-$arithmetic.o" || return
            objects+=("$name/$kernel-$arithmetic.o")
        done
    done
    for file in $(sources); do
        run "$compiler" "${common[@]}" -c "$file" -o "$name/$(basename "$file" .c)-dispatch.o" || return
        objects+=("$name/$(basename "$file" .c)-dispatch.o")
    done
    link "$compiler" "$name" "${@:4}" -Iinclude builds.c "${objects[@]}"
}
# as_one NAME COMPILER "KERNELS" FLAGS...: as one file, with pragmas where there were options.
as_one() {
    local without=() name
    while read -r name; do
        if [[ " $3 " != *" ${name,,} "* ]]; then without+=("-DRAPT_WITHOUT_$name"); fi
    done < <(grep -o 'RAPT_WITHOUT_[A-Z0-9_]*' "$scratch/amalgamation/rapt.c" | sed 's/RAPT_WITHOUT_//' | sort -u)
    link "$2" "$1" "${@:4}" "${without[@]}" -Iamalgamation builds.c amalgamation/rapt.c
}

# ---- All of them, as many side by side as there are cores --------------------------------------------------------------------

names=()
build() { # build NAME WAY COMPILER "KERNELS" FLAGS...
    local way=$2
    if ! there "$3"; then
        skip "$1" "$3 cannot be had here"
        return
    fi
    mkdir "$scratch/$1"
    names+=("$1")
    while (($(jobs -rp | wc -l) >= $(nproc))); do wait -n; done
    {
        if "$way" "$1" "$3" "$4" "${@:5}" && (cd "$scratch" && "./$1/program") >"$scratch/$1/lines"; then
            echo 0 >"$scratch/$1/status"
        fi
    } >"$scratch/$1/log" 2>&1 &
}
# levels COMPILER "KERNELS" LEVEL...
levels() {
    local level
    for level in "${@:3}"; do build "$1$level" by_files "$1" "$2" "$level"; done
}

clang=clang
if there clang-19; then clang='clang-19'; fi
thin=(-O2 -flto=thin -fuse-ld=lld)
if ((all)); then
    for compiler in "${compilers[@]}"; do
        build "$compiler-one-file" as_one "$compiler" "$kernels" -O2
        levels "$compiler" scalar -O0 -Og -O1 -O2 -O3 -Os
        build "$compiler-native" by_files "$compiler" "$kernels" -O3 -march=native
        case $compiler in gcc*) build "$compiler-lto" by_files "$compiler" "$kernels" -O2 -flto ;; esac
    done
    build clang-19-thin-lto by_files clang-19 "$kernels" "${thin[@]}"
else # what other stages have left: of gcc, -O3, -Og and -O0; of clang, -O1; one file at -O2, and for this CPU
    build gcc-lto by_files gcc "$kernels" -O2 -flto
    if there ld.lld-19 || there ld.lld; then
        build "$clang-thin-lto" by_files "$clang" "$kernels" "${thin[@]}"
    else
        skip "$clang-thin-lto" 'lld is not installed'
    fi
    levels gcc scalar -O1 -O2 -Os
    levels "$clang" scalar -O0
    levels "$clang" "$kernels" -O3
    skip 'gcc 12 to 14 and clang 14 to 19, at each level' 'that takes half an hour: tests/host/builds.sh --all'
fi
wait

# Of each class, one hash.
sed 's/^[^ ]* \([^ ]*\) .* \([0-9a-f]\{16\}\) .*/\1 \2/' "$scratch"/*/lines | sort | uniq -c | sort -rn >"$scratch/hashes"
right() { # right NAME: it was built and run, passes its check of itself, and its bits are those of most builds.
    local lines=$scratch/$1/lines kernel class rest hash
    cat "$lines"
    if [[ ! -e $scratch/$1/status || ! -s $lines ]] || grep -v ' success ' "$lines"; then return 1; fi
    while read -r kernel class rest; do
        hash=$(awk -v class="$class" '$2 == class { print $3; exit }' "$scratch/hashes")
        if [[ $rest != "success $hash"* ]]; then echo "$kernel: not $hash" && return 1; fi
    done <"$lines"
}
for name in "${names[@]}"; do
    right "$name" >>"$scratch/$name/log" 2>&1
    report $? "$name: $(cut -d ' ' -f 1 "$scratch/$name/lines" 2>/dev/null | tr '\n' ' ')" "$scratch/$name/log"
done
echo "1..$count"
exit "$failed"
