#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# msvc.sh RUNNER: the library as a DLL by $CLANG (clang) in Microsoft's mode, of the two files that tools/amalgamate writes, and a
# program that RUNNER runs. Microsoft's own headers and libraries cannot be had here: what the library takes of the C library is
# declared below, and linked by the import libraries of MinGW. That is as far as it goes, for the command and the tests take more.
set -uo pipefail
source=$(realpath "$(dirname "$0")/../..")
runner=$1 clang=${CLANG:-clang} linker=${LINKER:-lld-link}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit
count=0 failed=0
try() { # try DESCRIPTION COMMAND...
    count=$((count + 1))
    if ("${@:2}") >log 2>&1; then
        echo "ok $count - $1"
    else
        failed=1
        echo "not ok $count - $1"
        tail -n 20 log | sed 's/^/# /'
    fi
}
mkdir include
for name in malloc stdlib string; do
    cat >include/$name.h <<'END_OF_FILE'
#include <stddef.h>
void *calloc(size_t, size_t);
void *malloc(size_t);
void exit(int);
void free(void *);
char *getenv(const char *);
void *memcpy(void *, const void *, size_t);
void *memmove(void *, const void *, size_t);
void *memset(void *, int, size_t);
int strcmp(const char *, const char *);
END_OF_FILE
done
cat >include/math.h <<'END_OF_FILE'
#define INFINITY __builtin_inff()
#define NAN      __builtin_nanf("")
END_OF_FILE
cat >include/inttypes.h <<'END_OF_FILE'
#include <stdint.h>
#define PRId64 "lld"
#define PRIx64 "llx"
END_OF_FILE
cat >include/stdio.h <<'END_OF_FILE'
#include <stdarg.h>
#include <stddef.h>
typedef struct FILE FILE;
FILE *__acrt_iob_func(unsigned);
#define stderr __acrt_iob_func(2)
int __stdio_common_vfprintf(unsigned long long options, FILE *, const char *, void *locale, va_list);
static inline int fprintf(FILE *file, const char *format, ...) {
    va_list values;
    va_start(values, format);
    return __stdio_common_vfprintf(0, file, format, NULL, values);
}
END_OF_FILE
cat >include/process.h <<'END_OF_FILE'
#include <stdint.h>
uintptr_t _beginthreadex(void *, unsigned, unsigned(__stdcall *)(void *), void *, unsigned, unsigned *);
END_OF_FILE
cat >client.c <<'END_OF_FILE'
#include <stdio.h>
#include <stdlib.h>
#include "rapt.h"
static void add(void *numbers, int64_t i) { ((int64_t *)numbers)[i] += i; }
void start(void) {
    char why[300];
    const char *name;
    int64_t numbers[100] = {0};
    int wrong = 0;
    for (int i = 0; (name = rapt_isa_name(i)); i++) {
        const rapt_status status = rapt_isa_usable(name, NULL, 0) ? RAPT_OK : rapt_self_check(name, why, sizeof why);
        fprintf(stderr, "%s: %s\n", name, status ? why : "ok");
        wrong |= status != RAPT_OK;
    }
    rapt_pool *pool = rapt_pool_create(3);
    wrong |= rapt_pool_threads(pool) != 3;
    rapt_pool_for(pool, 100, add, numbers);
    for (int i = 0; i < 100; i++) wrong |= numbers[i] != i;
    rapt_pool_destroy(pool);
    exit(wrong);
}
END_OF_FILE
# What Microsoft's C library has for every program: a mark, and a function that touches the pages of a large frame, as MinGW's has.
echo 'int _fltused;' >every.c
import() { x86_64-w64-mingw32-gcc -print-file-name="lib$1.a"; }
every=(every.obj -alternatename:__chkstk=___chkstk_ms "$(x86_64-w64-mingw32-gcc -print-libgcc-file-name)" -nodefaultlib)

without=()
# shellcheck disable=SC2013 # a line is a name, which has no spaces
for name in $(awk '/^[a-z]/ { print $1 }' "$source/kernels/list.txt"); do
    if [[ $name != avx2 && $name != scalar ]]; then without+=("-DRAPT_WITHOUT_${name^^}"); fi # which take least time
done
silent() { "$@" && [[ ! -s log ]]; }
compile() { silent "$clang" --target=x86_64-pc-windows-msvc -isystem include -Ifiles -Wall -Wextra "$@"; }
link_dll() {
    { echo EXPORTS && sed -n 's/^RAPT_API .*[ *]\(rapt_[a-z0-9_]*\)(.*/\1/p' files/rapt.h; } >rapt.def
    "$linker" -dll -noentry -def:rapt.def -out:rapt.dll rapt.obj "${every[@]}" "$(import ucrtbase)" "$(import kernel32)"
}
link_client() {
    "$linker" -entry:start -subsystem:console -out:client.exe client.obj rapt.lib "${every[@]}" "$(import ucrtbase)"
}

"$source/tools/amalgamate" files || exit
try "${clang##*/} for MSVC: rapt.c, without a warning" compile -O0 "${without[@]}" -c files/rapt.c -o rapt.obj
try 'a program on it, without a warning' compile -c client.c -o client.obj
compile -c every.c -o every.obj >log 2>&1
try 'a DLL' link_dll
try 'the program, linked to it' link_client
try 'the program runs: kernels check themselves, and the pool has threads' "$runner" client.exe
sed 's/^/# /' log
count=$((count + 1))
echo "ok $count - the command and the tests # SKIP their headers are those of Microsoft's SDK"
echo "1..$count"
exit "$failed"
