# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
stage static own 2.5 - "gcc's and clang's analysers, clang-tidy, cppcheck, shellcheck, ruff, clang-format and a linter of Markdown find nothing"

# Without running anything: .clang-tidy, tools/cppcheck-suppressions, .shellcheckrc, ruff.toml, .clang-format and .rumdl.toml have the
# settings. Kernels are cppcheck's and clang-format's only, for on their unrolled code the analysers take gigabytes and many minutes;
# ggml-rapt.c, whose headers are not here, benches, and broken kernels are analysed by none. Each source is analysed with the options
# of the first target that has it, and a test that a fuzz target includes, as part of that.
stage_static() {
    local name arith files pins sources options defined tools=$root/static-python/bin
    mapfile -t files < <(with_shebang '(ba)?sh')
    expect "shellcheck: ${#files[@]} scripts, and what they include" shellcheck --check-sourced "${files[@]}"
    mapfile -t pins < <(pinned clang-format ruff rumdl)
    if python3 -m pip install --quiet --upgrade --target "$root/static-python" "${pins[@]}"; then
        mapfile -t files < <({ with_shebang python3 && tracked '*.py'; } | sort -u)
        expect "ruff: ${#files[@]} scripts and modules" "$tools/ruff" check --no-cache "${files[@]}"
        mapfile -t files < <(tracked '*.c' '*.h' '*.cc')
        expect "clang-format: ${#files[@]} sources" formatted "${files[@]}"
        mapfile -t files < <(tracked '*.md')
        expect "rumdl: ${#files[@]} documents" "$tools/rumdl" check --no-cache "${files[@]}"
    else
        skip "clang-format, ruff and rumdl, which cannot be had here"
    fi

    CC=$clang CXX=$clangxx setup static -Dbench=false
    ninja -C "$root/static" tests/abi/0.1/rapt{,_layer,_pool}.h
    mkdir "$root/static/once"
    python3 - "$root/static" <<'END'
import json, os, re, sys
build, once = sys.argv[1], {}
for command in json.load(open(f"{build}/compile_commands.json")):
    once.setdefault(os.path.relpath(os.path.join(command["directory"], command["file"])), command)
for target in [name for name in once if name.startswith("tests/fuzz/")]:
    for test in re.findall(r'#include "\.\./(api/\w+\.c)"', open(target).read()):
        once.pop(f"tests/{test}", None)
json.dump(list(once.values()), open(f"{build}/once/compile_commands.json", "w"))
print(*once, sep="\n", file=open(f"{build}/once/sources", "w"))
END
    for name in dispatch cli; do
        mapfile -t sources < <(compiled_in "$name")
        expect "gcc -fanalyzer: $name/" analysed "${sources[@]}"
    done
    for name in dispatch cli examples integrations python tests; do
        if ! command -v clang-tidy-19; then
            skip "clang-tidy 19, which cannot be had here"
            break
        fi
        mapfile -t sources < <(compiled_in "$name")
        expect "clang-tidy: $name/" clang-tidy-19 --quiet --warnings-as-errors='*' -p "$root/static/once" "${sources[@]}"
    done

    mapfile -t defined < <(macros)
    for name in dispatch cli python tests; do
        mapfile -t sources < <(compiled_in "$name")
        expect "cppcheck: $name/" cppchecked "${sources[@]}"
    done
    # One of each kind of words: what these include is most of what there is. scalar.c is in tests/kernels/words.c.
    for name in x86_64/{sse41,avx2,amx} aarch64/{neon_i8mm,neon_bf16,sve256} riscv64/rvv128 s390x/vec128; do
        mapfile -t options < <(options_of "${name#*/}" "${name%/*}")
        mapfile -t defined < <(macros "--target=${name%/*}-linux-gnu" "${options[@]}")
        for arith in $(brings "${name#*/}"); do
            expect "cppcheck: $(file_of "${name#*/}"), $arith" cppchecked "-DRAPT_ARITH=$arith" "$(file_of "${name#*/}")"
        done
    done
}
# tracked PATTERN...: the files of the repository that these name, and new ones that git does not ignore.
tracked() { git ls-files --cached --others --exclude-standard "$@"; }
# with_shebang INTERPRETER: scripts for that.
with_shebang() { tracked | xargs -d '\n' grep -lIE "^#!.*\\b$1\$"; }
# compiled_in FOLDER: the sources that are compiled there.
compiled_in() { grep "^$1/" "$root/static/once/sources" | grep -v ^tests/broken/; }
formatted() { PYTHONPATH=$root/static-python "$tools/clang-format" --dry-run --Werror "$@"; }
# analysed FILE...: by gcc.
analysed() {
    local file status=0
    for file; do
        gcc -std=c11 -O1 -fanalyzer -Werror -c -o /dev/null -Iinclude -Ikernels -Idispatch -Icli -Itests/check "-I$root/static/dispatch" \
            '-DRAPT_VERSION=""' "$file" || status=1
    done
    return "$status"
}
# brings KERNEL: the arithmetics that it has of its own.
brings() { awk -v name="$1" '$1 == name { print $5; exit }' kernels/list.txt | sed 's/all/exact,int8,bf16/' | tr , ' '; }
# macros OPTION...: what clang defines, as options. cppchecked FILE...: with those in $defined.
macros() {
    echo '#include <float.h>' | "$clang" "$@" -std=c11 -dM -E -xc - | sed -nE 's/^#define (\w+) (.+)/-D\1=\2/p; s/^#define (\w+)$/-D\1/p'
}
cppchecked() {
    cppcheck -q --std=c11 --language=c --enable=warning,style,performance,portability --error-exitcode=1 \
        --suppressions-list=tools/cppcheck-suppressions -Iinclude -Idispatch -Ikernels -Icli -Itests/support -Itests/check "${defined[@]}" \
        '-DRAPT_VERSION=""' '-DRAPT_CPU_FILE="cpu/cpu_x86.c"' '-DRAPT_ISA_FILE="generic/scalar.c"' "$@"
}
