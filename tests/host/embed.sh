#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# embed.sh SOURCE BUILD EXAMPLE: the ways of embedding of docs/building.md, each with the README's example: an installation found by pkg-config and by
# CMake, and the sources as a Meson subproject. Until 1.0 only one minor version fits a client, and all three say so.
source=$1 build=$2 example=$3
set -u
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
count=0 failed=0
try() { # try DESCRIPTION COMMAND...
    count=$((count + 1)) description=$1
    shift
    if "$@" >"$scratch/log" 2>&1; then
        echo "ok $count - $description"
    else
        failed=1
        echo "not ok $count - $description"
        tail -n 20 "$scratch/log" | sed 's/^/# /'
    fi
}
skip() {
    count=$((count + 1))
    echo "ok $count - $1 # SKIP $2"
}
in_header() { sed -n "s/^#define RAPT_VERSION_$1 //p" "$source/include/rapt.h"; }
major=$(in_header MAJOR) minor=$(in_header MINOR) patch=$(in_header PATCH)

mkdir "$scratch/app"
cp "$example" "$scratch/app/app.c"
cd "$scratch/app" || exit 1

try 'meson install' env DESTDIR="$scratch/root" meson install -C "$build" --no-rebuild --quiet
pc=$(find "$scratch/root" -name rapt.pc)
lib=$(dirname "$(dirname "$pc")")

by_pkg_config() {
    export PKG_CONFIG_PATH="$lib/pkgconfig" PKG_CONFIG_SYSROOT_DIR="$scratch/root"
    # shellcheck disable=SC2046 # words are wanted
    cc app.c $(pkg-config --cflags --libs rapt) -o app && LD_LIBRARY_PATH="$lib" ./app &&
        pkg-config --modversion rapt | grep -Fx "$major.$minor.$patch"
}
try 'pkg-config' by_pkg_config
needs_minor_version() { readelf -d app | grep -F "(NEEDED)" | grep -F "[librapt.so.$major.$minor]"; }
try 'a client needs the minor version that it was linked with' needs_minor_version

by_cmake() { # from a prefix that is not the one it was made for: DESTDIR's
    cmake -S "$source/tests/host/installed" -B cmake-build -DWANTED="$major.$minor" -DAPP="$PWD/app.c" -Drapt_DIR="$lib/cmake/rapt" &&
        cmake --build cmake-build && cmake-build/app && cmake-build/pool
}
# find_package(rapt VERSION), for each that fits, and for each that does not.
cmake_versions() {
    mkdir versions
    cat >versions/CMakeLists.txt <<END
cmake_minimum_required(VERSION 3.16)
project(versions NONE)
function(expect found)
  set(rapt_DIR "$lib/cmake/rapt" CACHE PATH "" FORCE)
  find_package(rapt \${ARGN} QUIET)
  if(NOT found EQUAL rapt_FOUND)
    message(SEND_ERROR "find_package(rapt \${ARGN}): rapt_FOUND is \${rapt_FOUND}")
  endif()
endfunction()
expect(1)
expect(1 $major.$minor)
expect(1 $major.$minor.$patch EXACT)
expect(0 $major.$minor.$((patch + 1)))
expect(0 $major.$((minor - 1)))
expect(0 $major.$((minor + 1)))
expect(0 $((major + 1)).$minor)
END
    cmake -S versions -B versions/build
}
export CMAKE_GENERATOR=Ninja # which Meson has brought
if command -v cmake >/dev/null; then
    try 'CMake' by_cmake
    try 'CMake: versions' cmake_versions
else
    skip 'CMake' 'cmake is not installed'
    skip 'CMake: versions' 'cmake is not installed'
fi

by_subproject() {
    mkdir subprojects
    ln -s "$source" subprojects/rapt
    printf '[provide]\nrapt = rapt_dep\n' >subprojects/rapt.wrap
    sed -i '1i [wrap-file]\ndirectory = rapt' subprojects/rapt.wrap
    cat >meson.build <<END
project('app', 'c', default_options : ['default_library=static'])
executable('app', 'app.c', dependencies : dependency('rapt'))
END
    meson setup meson-build && ninja -C meson-build && meson-build/app
}
try 'Meson subproject' by_subproject

# The library alone is few steps, without a kernel that was left out.
library_alone() {
    meson setup "$scratch/alone" "$source" -Dcli=false -Dtests=false -Dbench=false -Dexamples=false -Disas_left_out=scalar_fma &&
        steps=$(ninja -C "$scratch/alone" -n | sed -n 's#^\[1/\([0-9]*\)\].*#\1#p') && echo "$steps steps" && [ "$steps" -lt 70 ] &&
        ! grep -q scalar_fma "$scratch/alone/dispatch/kernels.inc"
}
try 'the library alone: less than 70 steps' library_alone
# Debug builds look at floating-point modes, unless they are told not to.
checks_fp() { # checks_fp EXPECTED OPTION...
    expected=$1
    shift
    meson setup --reconfigure "$scratch/alone" "$source" "$@" &&
        grep -q -e "-DRAPT_CHECK_FP=$expected" "$scratch/alone/compile_commands.json"
}
try 'a release build does not check floating-point modes' checks_fp 0
try 'a debug build does' checks_fp 1 -Dbuildtype=debug
try 'but not where it is told not to' checks_fp 0 -Dcheck_fp=false
try 'a release build does where it is told to' checks_fp 1 -Dbuildtype=release -Dcheck_fp=true
refuses_setup() { ! meson setup "$scratch/refused" "$source" "$@" && grep -q "$expected" "$scratch/refused/meson-logs/meson-log.txt"; }
expected='isas_left_out: sse9 is not a kernel'
try 'a kernel that there is not cannot be left out' refuses_setup -Disas_left_out=sse9
expected='the tests need the command'
try 'tests without the command are refused' refuses_setup -Dcli=false
echo "1..$count"
exit "$failed"
