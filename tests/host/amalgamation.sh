#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# amalgamation.sh [SOURCE]: the ways to build rapt without Meson. The two files that tools/amalgamate writes are compiled by each
# C compiler of $COMPILERS (gcc and clang, if they are there) without a warning, and pass rapt_self_check, which must have run the
# kernels of $ISAS (scalar,scalar_fma). The first compiler has -O2 and nothing else, leaves out the kernels $ABSENT, which this CPU
# cannot run, and passes `rapt check --quick`, too; the others compile every kernel, and optimise none, which takes them longest and
# which tests/host/builds.sh has. AArch64's compiler and emulator, where they are there, have rapt_self_check. Then come the Makefile of
# examples/vendored, CMake's subproject, and installations that are moved.
set -uo pipefail
shopt -s extglob
source=$(realpath "${1:-$(dirname "$0")/../..}")
isas=${ISAS:-scalar,scalar_fma}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
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
try() { # try DESCRIPTION COMMAND...
    local description=$1
    shift
    ("$@") >"$scratch/log" 2>&1
    report $? "$description" "$scratch/log"
}
skip() {
    count=$((count + 1))
    echo "ok $count - $1 # SKIP $2"
}
there() { command -v "$1" >/dev/null; }
# The kernels of a CPU family, by the list of the Meson build, but for those that rapt.c cannot have, whose vectors' length is an option.
mapfile -t all < <(awk '/^[a-z]/ { print $1 }' "$source/kernels/list.txt")
kernels_of() { awk -v on="$1" '/^[a-z]/ && !/vector-bits/ && ($3 == "any" || $3 ~ "(^|,)" on "(,|$)") { print $1 }' "$source/kernels/list.txt"; }
# says LINE COMMAND...: it fails, and says this among other things. refuses LINE COMMAND...: it does so in one line.
says() {
    local line=$1
    shift
    if output=$("$@" 2>&1); then echo accepted && return 1; fi
    echo "$output"
    [[ $output == *"$line"* ]]
}
refuses() { says "$@" && [[ $output != *$'\n'* ]]; }

# ---- What is written ---------------------------------------------------------------------------------------------------------

amalgamate=$source/tools/amalgamate
files=$scratch/files
if ! "$amalgamate" "$files" 2>"$scratch/log"; then
    report 1 'tools/amalgamate writes two files' "$scratch/log"
    echo "1..$count"
    exit 1
fi
# The CLI and the checks include the headers by their own names.
mkdir "$scratch/headers" && cp "$files"/*.h "$scratch/headers"
awk '/^```/ { if (code) exit; if ($0 == "```c") { code = 1; next } } code' "$source/README.md" >"$scratch/readme.c"

if [[ -z ${COMPILERS:-} ]]; then
    COMPILERS=
    for name in gcc clang-19 clang; do
        if there $name && [[ $name != clang || $COMPILERS != *clang* ]]; then COMPILERS+=" $name"; fi
    done
fi
cross=()
if [[ $(uname -m) == x86_64 ]] && there aarch64-linux-gnu-gcc && there qemu-aarch64; then cross=(aarch64-linux-gnu-gcc); fi
run_cross=(qemu-aarch64 -L /usr/aarch64-linux-gnu)

# What takes long, meanwhile: rapt.c by each compiler, and its warnings.
first=${COMPILERS# } first=${first%% *}
absent=() present=()
for name in $(tr , ' ' <<<"${ABSENT:-}"); do absent+=("$name") present+=("-DRAPT_WITHOUT_${name^^}"); done
# Without its own level of optimisation, which takes gcc twice as long, as do loops that are unrolled.
unhurried() { sed 's/optimize("O3", /optimize(/' "$files/rapt.c"; }
compile() { # compile COMPILER OPTION...
    mkdir -p "$scratch/$1"
    cp "$files"/rapt.[ch] "$scratch/$1"
    if [[ $1 != "$first" ]]; then unhurried >"$scratch/$1/rapt.c"; fi
    (cd "$scratch/$1" && "$@" -c rapt.c && "$1" -Wall -Wextra -fsyntax-only rapt.c) >"$scratch/$1/log" 2>&1
    echo $? >"$scratch/$1/status"
}
(
    compile "$first" -O2 "${present[@]}" &
    for name in $COMPILERS; do if [[ $name != "$first" ]]; then compile "$name" -O0; fi; done
    for name in "${cross[@]}"; do compile "$name" -Og -DRAPT_WITHOUT_NEON_DOT; done # since neon_i8mm contains all of it
    wait
) &
compiling=$!

again() { cd / && CC=$1 "$amalgamate" "$scratch/again" && diff -r "$files" "$scratch/again"; }
for name in $COMPILERS; do try "the same files whatever compiler is asked for names: $name" again "$name"; done
first_lines() {
    head -n 20 "$files/$1"
    grep -qx '/\* SPDX-License-Identifier: Apache-2.0 \*/' <(head -n 1 "$files/$1") &&
        grep -q "rapt $(sed -n "s/^ *version : '\(.*\)',/\1/p" "$source/meson.build"):" <(head -n 2 "$files/$1") &&
        grep -q 'Written by tools/amalgamate' <(head -n 5 "$files/$1")
}
for name in rapt.c rapt.h rapt_layer.h rapt_pool.h; do try "$name tells its licence, its version, and what wrote it" first_lines $name; done

touches_nothing() { refuses "$@" && [[ ! -e $scratch/nowhere ]]; }
echo >"$scratch/file"
try 'without a folder, tools/amalgamate says how it is called' refuses 'takes one argument: tools/amalgamate DIR' "$amalgamate"
try 'without a compiler, it says so, and writes nothing' \
    touches_nothing 'there is no C compiler nocc' env CC=nocc "$amalgamate" "$scratch/nowhere"
try 'a file is no folder' refuses "$scratch/file" "$amalgamate" "$scratch/file"

# ---- What includes the header ------------------------------------------------------------------------------------------------

strict=(-Wall -Wextra -Wpedantic -Werror -fsyntax-only -I"$scratch/headers")
for name in $COMPILERS; do
    for standard in c99 c11; do
        try "rapt.h is $standard for $name" "$name" -std=$standard "${strict[@]}" "$source/tests/api/header.c"
        try "rapt.h alone is $standard for $name" "$name" -std=$standard "${strict[@]}" -DRAPT_H_ALONE "$source/tests/api/header.c"
        try "README's example is $standard for $name" "$name" -std=$standard "${strict[@]}" "$scratch/readme.c"
    done
    for standard in c++98 c++17; do
        # C++98 has no long long, nor the end of an enumeration's list after a comma, but as extensions of the compilers.
        try "rapt.h is $standard for $name" "$name" -xc++ -std=$standard "${strict[@]}" -Wno-long-long "$source/tests/api/header.c"
        try "README's example is $standard for $name" "$name" -xc++ -std=$standard "${strict[@]}" -Wno-long-long "$scratch/readme.c"
    done
done

# ---- What the compilers made -------------------------------------------------------------------------------------------------

checks=("$source"/tests/check/[!m]*.c "$source"/tests/support/{reference,fence}.c)
program() { # program FOLDER COMPILER: the command rapt over the rapt.o of a folder.
    "$2" -O1 -std=c11 -I"$scratch/headers" -I"$source/kernels" -I"$source/dispatch" -I"$source/tests/support" \
        -I"$source/tests/check" -I"$source/cli" "$source"/cli/!(*_windows).c \
        "${checks[@]}" "$scratch/$1/rapt.o" -pthread -lm -o "$scratch/$1/rapt"
}
# Every symbol is rapt's, and those that a shared library would export are the functions that rapt.h declares.
symbols() {
    local of=$scratch/$1/symbols
    readelf -sW "$scratch/$1/rapt.o" | awk '$5 == "GLOBAL" && $7 != "UND" {print $6, $8}' >"$of"
    sed -n 's/^DEFAULT //p' "$of" | sort >"$of.exported"
    sed -n 's/^RAPT_API .*[ *]\(rapt_[a-z0-9_]*\)(.*/\1/p' "$files/rapt.h" | sort >"$of.declared"
    diff "$of.declared" "$of.exported" && ! grep -v ' rapt_' "$of"
}
kernels_in() { # kernels_in FOLDER FAMILY
    local listed='s/^ *{"name": "\([a-z0-9_]*\)", "rounding".*/\1/p'
    local others=()
    if [[ $1 == "$first" ]]; then others=("${absent[@]}"); fi
    "$scratch/$1/rapt" info --json | sed -n "$listed" | diff <(kernels_of "$2" | grep -vxF "$(printf '%s\n' "${others[@]}")") -
}
cat >"$scratch/client.cpp" <<'END'
#include <cstdio>
#include "rapt.h"
int main() {
    char why[200];
    rapt_pool *pool = rapt_pool_create(2);
    const bool two = rapt_pool_threads(pool) == 2;
    rapt_pool_destroy(pool);
    const rapt_status status = rapt_self_check(nullptr, why, sizeof why);
    std::puts(why);
    rapt_linear_desc linear;
    rapt_linear_desc_init(&linear);
    return status == RAPT_OK && two && linear.batch == 1 ? 0 : 1;
}
END
client() { # client COMPILER: a program in C++, by the compiler's own, which links nothing but POSIX threads.
    local cxx
    case $1 in *clang*) cxx=${1/clang/clang++} ;; *) cxx=${1/gcc/g++} ;; esac
    "$cxx" -std=c++11 -Wall -Wextra -Wpedantic -Werror -I"$files" "$scratch/client.cpp" "$scratch/$1/rapt.o" -pthread \
        -o "$scratch/$1/client" && "$scratch/$1/client"
}
cat >"$scratch/client.c" <<'END'
#include <stdio.h>
#include "rapt.h"
int main(void) {
    const char *name;
    int wrong = 0;
    for (int i = 0; (name = rapt_isa_name(i)); i++) {
        if (rapt_isa_usable(name, 0, 0) != RAPT_OK) continue;
        puts(name);
        wrong |= rapt_self_check(name, 0, 0) != RAPT_OK;
    }
    return wrong;
}
END
# alone COMPILER ISAS RUN...
alone() {
    "$1" -I"$files" "$scratch/client.c" "$scratch/$1/rapt.o" -pthread -o "$scratch/$1/alone" &&
        "${@:3}" "$scratch/$1/alone" >"$scratch/$1/kernels" || return 1
    cat "$scratch/$1/kernels"
    ! comm -23 <(tr , '\n' <<<"$2" | sort) <(sort "$scratch/$1/kernels") | grep .
}
quick() { # quick FOLDER ISAS LEAST: rapt check, whose every line counts here.
    "$scratch/$1/rapt" check --quick --tap --require "$2" >"$scratch/$1/check"
    local status=$? passed
    passed=$(grep -c '^ok' "$scratch/$1/check")
    grep -v '^ok' "$scratch/$1/check" >"$scratch/log"
    report $((status != 0 || passed < $3)) "$1: rapt check --quick --require $2, $passed results" "$scratch/log"
}
wait "$compiling"
for name in $COMPILERS "${cross[@]}"; do
    report "$(cat "$scratch/$name/status")" "$name -c rapt.c" "$scratch/$name/log"
    if [[ ! -e $scratch/$name/rapt.o ]]; then continue; fi
    report "$(wc -c <"$scratch/$name/log")" "$name: no warning, with -Wall -Wextra neither" "$scratch/$name/log"
    try "$name: its symbols" symbols "$name"
    # Under the emulator, rapt_self_check has to do: stage aarch64 of tools/test has the same kernels checked at length.
    if [[ " ${cross[*]} " == *" $name "* ]]; then
        try "$name: it passes rapt_self_check" alone "$name" scalar,scalar_fma,neon,neon_i8mm,neon_bf16 "${run_cross[@]}"
        continue
    fi
    try "$name: it needs no libm, and passes rapt_self_check" alone "$name" "$isas"
    try "$name: the command rapt" program "$name" "$name"
    try "$name: the kernels of $(uname -m)" kernels_in "$name" "$(uname -m)"
    if [[ $name == "$first" ]]; then quick "$name" "$isas" 100; fi
    if [[ $name == *clang* ]] && ! there "${name/clang/clang++}"; then
        skip "$name: a client in C++" 'its C++ compiler is not installed'
    else
        try "$name: a client in C++" client "$name"
    fi
done
if ((${#cross[@]} == 0)); then skip 'AArch64' 'there is no x86-64 machine with aarch64-linux-gnu-gcc and qemu-aarch64'; fi
# Where the CPU has a fused multiply-add that plain C may be contracted to, scalar keeps its bits.
scalar_alone=()
for name in "${all[@]}"; do scalar_alone+=("-DRAPT_WITHOUT_${name^^}"); done # but for scalar, which stays
contracted() {
    "$1" -O2 -march=native -DRAPT_UNROLL= "${scalar_alone[@]}" -I"$files" "$files/rapt.c" "$scratch/client.c" -pthread \
        -o "$scratch/$1/contracted" &&
        "$scratch/$1/contracted"
}
for name in $COMPILERS; do try "$name -march=native: nothing is contracted" contracted "$name"; done
unhurried >"$scratch/headers/rapt.c" # what the following is about is not the kernels
# Rounding that is not to nearest is found, and refused where that is asked for.
cat >"$scratch/rounding.c" <<'END'
#include <fenv.h>
#include <stdio.h>
#include "rapt.h"
int main(int argc, char **argv) {
    float slopes[2];
    (void)argv;
    if (rapt_alibi_slopes(2, slopes) != RAPT_OK || fesetround(FE_UPWARD)) return 2;
    const rapt_status status = rapt_alibi_slopes(2, slopes);
    puts(rapt_status_string(status));
    return status != (argc > 1 ? RAPT_ERR_FLOAT_MODE : RAPT_OK);
}
END
rounding() { # rounding PROGRAM DEFINE [refused]
    "$first" -O1 "${scalar_alone[@]}" -DRAPT_NO_POOL "$2" -I"$files" "$scratch/headers/rapt.c" "$scratch/rounding.c" -lm -o "$scratch/$1" &&
        "$scratch/$1" ${3:+"$3"}
}
try 'rapt.c does not look at floating-point modes,' rounding unchecked -DRAPT_CHECK_FP=0
try 'but with RAPT_CHECK_FP' rounding checked -DRAPT_CHECK_FP=1 refused
# Of what is vendored into a shared library, nothing need be seen from outside.
unseen() {
    "$first" -O1 "${scalar_alone[@]}" -DRAPT_NO_POOL -DRAPT_API= -c "$scratch/headers/rapt.c" -o "$scratch/unseen.o" && nm "$scratch/unseen.o" || return 1
    ! readelf -sW "$scratch/unseen.o" | awk '$5 == "GLOBAL" && $7 != "UND" && $6 != "HIDDEN"' | grep . &&
        ! nm "$scratch/unseen.o" | grep -E 'pthread|rapt_pool' && nm "$scratch/unseen.o" | grep ' T rapt_run$'
}
try 'RAPT_API and RAPT_NO_POOL: nothing is exported, and there is no pool' unseen
try 'as C++, rapt.c says that it is C' says 'rapt.c is compiled as C' "$first" -xc++ -fsyntax-only "$files/rapt.c"
try 'with -ffast-math, it says what must not be' \
    says 'compile without -ffast-math' "$first" -ffast-math -fsyntax-only "$files/rapt.c"
other() { # another architecture: no kernel but the scalar ones, and what they need
    clang-19 --target=riscv64-linux-gnu -isystem /usr/aarch64-linux-gnu/include -Wall -Wextra -Werror -Wno-pass-failed -O0 -S \
        "$files/rapt.c" -o "$scratch/other.s"
    diff <(kernels_of none) <(sed -n 's/^rapt_exact_\(.*\):.*/\1/p' "$scratch/other.s")
}
if there clang-19 && [[ -d /usr/aarch64-linux-gnu/include ]]; then
    try 'RISC-V: the scalar kernels alone' other
else
    skip 'RISC-V: the scalar kernels alone' 'clang-19 or the headers of AArch64, which serve here, are not there'
fi

# ---- The Makefile ------------------------------------------------------------------------------------------------------------

# Beside tools/, as it is in the repository; with as few kernels as there can be, which take least time.
without=()
for name in "${all[@]}"; do
    if [[ $name != scalar && $name != sse41 && $name != neon ]]; then without+=("$name"); fi
done
expected='token 0: 0.000000
token 1: 0.020054
token 2: 1.922379
token 3: 1.007414'
runs_app() { "$1" | tee "$scratch/out" && [[ $(cat "$scratch/out") == "$expected" ]]; }
by_make() {
    mkdir -p "$scratch/made/examples" && ln -s "$source/tools" "$scratch/made/tools"
    cp -r "$source/examples/vendored" "$scratch/made/examples"
    cd "$scratch/made/examples/vendored" && rm -f rapt.[ch] ./*.o main
    local defines
    defines=$(printf -- '-DRAPT_WITHOUT_%s ' "${without[@]^^}")
    make CC="$first" CFLAGS="-O1 -DRAPT_UNROLL= $defines" && cmp rapt.c "$files/rapt.c" && runs_app ./main &&
        nm rapt.o >symbols && ! grep -E " rapt_(exact|int8|bf16)_($(IFS='|' && echo "${without[*]}"))$" symbols
}
try 'examples/vendored: make, with kernels left out' by_make

# ---- CMake -------------------------------------------------------------------------------------------------------------------

if ! there cmake; then
    for what in 'options' 'subproject' 'installation' 'refusals'; do skip "CMake: $what" 'cmake is not installed'; done
    echo "1..$count"
    exit "$failed"
fi
# With the project's own options, which break the promise, before rapt's.
mkdir "$scratch/app" && sed 's/"rapt.h"/"rapt_pool.h"/' "$source/examples/vendored/main.c" >"$scratch/app/main.c"
cat >"$scratch/app/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.16)
project(app C)
add_compile_options(-ffast-math -ffp-contract=fast)
include(FetchContent)
FetchContent_Declare(rapt SOURCE_DIR "$source")
FetchContent_MakeAvailable(rapt)
add_executable(app main.c)
target_link_libraries(app rapt::rapt_pool)
END
configure() { CC=$first cmake -S "$1" -B "$scratch/$2" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON "${@:3}"; }
# Each kernel of the list is compiled with its options, and rapt's are the last that say how to compute.
cmake_options() {
    configure "$scratch/app" options || return 1
    python3 - "$source/kernels/list.txt" "$scratch/options/compile_commands.json" "$(uname -m)" <<'END'
import json, re, shlex, sys
with open(sys.argv[1]) as file:
    isas = [line.split() for line in file if line.strip() and not line.startswith("#")]
with open(sys.argv[2]) as file:
    entries = [entry for entry in json.load(file) if "/kernels/" in entry["file"]]
commands = {re.sub(".*/", "", entry["file"]): shlex.split(entry["command"]) for entry in entries}
wanted = {f"{name}_{arithmetic}.c": options
          for name, _, families, _, brings, *options in isas if families == "any" or sys.argv[3] in families.split(",")
          for arithmetic in ("exact", "int8", "bf16") if brings == "all" or arithmetic in brings.split(",")}
assert set(commands) == set(wanted), (sorted(commands), sorted(wanted))
for file, options in wanted.items():
    command = commands[file]
    assert [word for word in command if word.startswith("-m")] == options, command
    math = [word for word in command if "fast-math" in word or "fp-contract" in word]
    assert math == ["-ffast-math", "-ffp-contract=fast", "-fno-fast-math", "-ffp-contract=off"], command
    assert "-O3" in command and "-fno-math-errno" in command, command
print(*commands)
END
}
try "CMake: kernels have the options of the Meson build's list" cmake_options
# Debug builds check floating-point modes, unless an option says otherwise.
check_fp() { # check_fp EXPECTED OPTION...
    configure "$source" "check-fp" -DRAPT_CHECK_FP=AUTO "${@:2}" || return 1
    grep -q -e "-DRAPT_CHECK_FP=$1" "$scratch/check-fp/compile_commands.json" &&
        ! grep -q -e "-DRAPT_CHECK_FP=$((1 - $1))" "$scratch/check-fp/compile_commands.json"
}
try 'CMake: a debug build checks floating-point modes' check_fp 1 -DCMAKE_BUILD_TYPE=Debug
try 'CMake: a release build does not' check_fp 0 -DCMAKE_BUILD_TYPE=Release
try 'CMake: a release build with RAPT_CHECK_FP=ON does' check_fp 1 -DCMAKE_BUILD_TYPE=Release -DRAPT_CHECK_FP=ON
try 'CMake: a debug build with RAPT_CHECK_FP=OFF does not' check_fp 0 -DCMAKE_BUILD_TYPE=Debug -DRAPT_CHECK_FP=OFF
# What these are about is not the kernels: scalar alone.
left_out="-DRAPT_ISAS_LEFT_OUT=$(IFS=';' && echo "${without[*]}");sse41;neon"
by_cmake() {
    configure "$scratch/app" subproject "$left_out" -DCMAKE_C_FLAGS=-DRAPT_UNROLL= && cmake --build "$scratch/subproject" -j2 &&
        runs_app "$scratch/subproject/app"
}
try 'CMake: a subproject by FetchContent, among options that break the promise' by_cmake
# Static and shared, into a prefix that is moved before it is used.
installed() { # installed NAME OPTION...
    local name=$1
    configure "$source" "build-$name" "$left_out" -DCMAKE_C_FLAGS_RELEASE='-O1 -DRAPT_UNROLL=' \
        -DCMAKE_INSTALL_PREFIX="$scratch/first-$name" "${@:2}" &&
        cmake --build "$scratch/build-$name" -j2 --target install &&
        mv "$scratch/first-$name" "$scratch/moved-$name" || return 1
    mkdir "$scratch/user-$name"
    cp "$scratch/app/main.c" "$scratch/user-$name"
    cat >"$scratch/user-$name/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.16)
project(app C)
find_package(rapt $(sed -n "s/^ *version : '\(.*\)\..*',/\1/p" "$source/meson.build") REQUIRED)
add_executable(app main.c)
target_link_libraries(app rapt::rapt rapt::rapt_pool)
END
    configure "$scratch/user-$name" "use-$name" -DCMAKE_PREFIX_PATH="$scratch/moved-$name" &&
        cmake --build "$scratch/use-$name" && runs_app "$scratch/use-$name/app" &&
        ! grep -rF "$scratch/first-$name" "$scratch/moved-$name"
}
try 'CMake: a moved installation' installed static
try 'CMake: a moved installation of a shared library' installed shared -DBUILD_SHARED_LIBS=ON
try 'CMake: a kernel that there is not cannot be left out' \
    says 'RAPT_ISAS_LEFT_OUT: sse9 is not a kernel' configure "$source" refused -DRAPT_ISAS_LEFT_OUT=sse9
echo "1..$count"
exit "$failed"
