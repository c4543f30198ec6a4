# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Other operating systems.
stage windows own 2.5 - "Windows by MinGW and wine: command, files, DLL, pool and tests; clang in Microsoft's mode"
stage linked own 1.5 - "macOS on Arm and x86-64 and FreeBSD build and link; Windows on Arm compiles"

# MinGW's gcc and wine: the command, its files and how it ends, the DLL, the pool on threads of Windows, and the library by clang
# in Microsoft's mode.
stage_windows() {
    export WINEPREFIX=$PWD/$root/$stage-wine PATH=$PWD/tools:$PATH
    if ! x86_64-w64-mingw32-gcc --version || ! wine-run cmd /c ver; then
        skip "$stage, for MinGW's gcc or wine cannot be had here"
        return
    fi
    local exe=.exe server
    cross_build windows -Dbench=false || return 0
    for server in wineserver /usr/lib/wine/wineserver64; do # or one would start with each program, and inherit what that one has
        if command -v "$server"; then "$server" -p300 && break; fi
    done
    wine-run cmd /c ver
    emulated windows
    meson_test windows append copy decode linear norm mha plans memory bounds explain tuning worked cpu first-call pool environment abi \
        symbols
    tap python3 tests/host/cli.py --system wine-run "$root/windows/cli/rapt.exe" || true
    ninja -C "$root/windows" examples/decode-example.exe
    expect "decode-example: the numbers of Linux" same_output examples/decode-example
    expect "CMake: a DLL with the same functions" cmake_dll
    local linker=lld-link${clang##*clang} # in the path, as where clang is ccache's, or beside clang
    CLANG=$clang LINKER=$(command -v "$linker" || echo "${clang%clang*}$linker") tap tests/host/msvc.sh wine-run || true
    if command -v "$server"; then "$server" -k; fi
}
same_output() { diff <("$root/gcc/$1" "${@:2}") <(wine-run "$root/windows/$1.exe" "${@:2}" | tr -d '\r'); }
functions_of() { objdump -p "$1" | sed -n '/Ordinal\/Name Pointer/,/^$/s/^\t\[.* //p'; }
cmake_dll() {
    local to=$root/windows-cmake
    rm -rf "$to"
    cmake -S . -B "$to" -DCMAKE_SYSTEM_NAME=Windows -DCMAKE_C_COMPILER=x86_64-w64-mingw32-gcc -DBUILD_SHARED_LIBS=ON \
        -DRAPT_ISAS_LEFT_OUT="$(all_but scalar | tr , ';')" && cmake --build "$to" &&
        diff <(functions_of "$root/windows/$(shared_of windows)") <(functions_of "$to"/librapt*.dll)
}

# Systems that cannot be run here: all is built and linked, with as few kernels as there can be. For Windows on Arm it is compiled only:
# to link it ziglang would first compile its C library, which takes as long as all the others together. Without optimisation zig's
# clang adds the checks of UBSan, which take five times as long to compile.
stage_linked() {
    with_ziglang || return 0
    local name
    for name in macos-arm64 macos-x86_64 freebsd; do
        setup "$name" --cross-file "tools/cross/$name.ini" -Doptimization=0 -Dc_args=-fno-sanitize=all -Disas_left_out="$(all_but neon)"
        # shellcheck disable=SC2046 # one file
        expect "$name is built and linked" ninja -C "$root/$name" cli/rapt $(shared_of "$name")
        skip "$name, which cannot be run here"
    done
    expect "windows-arm64 is compiled" for_windows_arm64
    skip "windows-arm64, which cannot be run here"
}
for_windows_arm64() { # with the list of kernels that macOS has on such CPUs
    local source status=0
    compiled() {
        python3 -m ziglang cc -target aarch64-windows-gnu -std=c11 -O0 -fno-sanitize=all '-DRAPT_VERSION=""' \
            -Iinclude -Ikernels -Idispatch -Icli -Itests/check "-I$root/macos-arm64/dispatch" -c -o "$root/$stage.o" "$@" || status=1
    }
    for source in kernels/{generic/scalar,arm/neon}.c; do
        for name in exact int8 bf16; do compiled "-DRAPT_ARITH=$name" "$source"; done
    done
    for source in $(sources_of aarch64) cli/*.c; do
        if [[ $source != cli/output.c ]]; then compiled "$source"; fi
    done
    return "$status"
}
