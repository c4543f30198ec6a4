#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# embed.sh SOURCE BUILD EXAMPLE: the README's ways of embedding, each with its example: an installation found by pkg-config and by
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
prefix=$(sed -n 's/^prefix=//p' "$pc")

by_pkg_config() {
    export PKG_CONFIG_PATH="$lib/pkgconfig" PKG_CONFIG_SYSROOT_DIR="$scratch/root"
    # shellcheck disable=SC2046 # words are wanted
    cc app.c $(pkg-config --cflags --libs rapt) -o app && LD_LIBRARY_PATH="$lib" ./app &&
        pkg-config --modversion rapt | grep -Fx "$major.$minor.$patch"
}
try 'pkg-config' by_pkg_config
needs_minor_version() { readelf -d app | grep -F "(NEEDED)" | grep -F "[librapt.so.$major.$minor]"; }
try 'a client needs the minor version that it was linked with' needs_minor_version

by_cmake() {
    # The files name the prefix, so the tree is moved there in their words only.
    find "$scratch/root" -name '*.cmake' -exec sed -i "s#\"$prefix#\"$scratch/root$prefix#g" {} +
    cat >CMakeLists.txt <<END
cmake_minimum_required(VERSION 3.16)
project(app C)
find_package(rapt $major.$minor REQUIRED)
add_executable(app app.c)
target_link_libraries(app rapt::rapt)
END
    cmake -S . -B cmake-build -Drapt_DIR="$lib/cmake/rapt" && cmake --build cmake-build && cmake-build/app
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
echo "1..$count"
exit "$failed"
