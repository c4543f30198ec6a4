# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Machines other than this one, by targets.txt. A stage without a function here is its rows in that table.
stage aarch64 own 3 1.5 "NEON, its dot products, matrix products and bf16: as x86-64's bits; Cortex-A53 and Neoverse N1 choose and refuse"
stage sve own 2 - "SVE of 256 and 512 bits; other lengths refuse them; A64FX; linear layers and a small language model there"
stage riscv64 own 3.5 - "RISC-V with V of 128, 256 and 512 bits, and without; other lengths are refused; linear layers, language models there"
stage s390x own 3 - "IBM Z: big-endian vectors; append, explain, linear, norm and files of vectors there"
stage armhf own 1.5 - "32-bit Arm with NEON; explain, linear and files of vectors there"
stage powerpc own 1.5 - "32-bit POWER: big-endian, without vectors; all but broken kernels builds, installs and links, with libatomic and libm"
stage ppc64le own 1.5 - "64-bit POWER with VSX; linear layers, language models and files of vectors there"
stage i386 own 1 - "32-bit x86 with SSE4.1: sizes and alignment in append, bounds, decode, explain, linear, memory, mha, norm"
stage musl own 1 - "another C library, linked statically"
stage loongarch64 own 1.5 - "LoongArch, with LSX where QEMU knows it (from 8.2 on)"
stage wasm own 2 - "WebAssembly with and without vectors: the bits of the unfused class; language models of both classes"

# This machine's, for stages may put one of their own before it, without NumPy.
own_python=$(command -v python3)

# rows STAGE...: these stages' rows of the table, without spaces around the fields.
rows() { sed -E '/^#/d; s/ *\| */|/g' tools/stages/targets.txt | grep -E "^($(IFS='|' && echo "$*"))\|"; }
# kernels_of_build BUILD: all that the rows name, of the stages that run now.
kernels_of_build() {
    built_here "$(rows "${stages[@]}" | awk -F '|' -v build="$1" '$2 == build { print $5 "," $6 "," $7 }' | tr -d '?' | tr , '\n' |
        grep -vx -- - | sort -u | paste -sd ,)"
}
# built_here ISAS: those of them but for kernels of x86-64 that this CPU lacks, which are not compiled.
built_here() {
    if [[ ! $absent ]]; then echo "$1" && return; fi
    tr , '\n' <<<"$1" | grep -vxE "${absent//,/|}" | paste -sd ,
}

# can_cross NAME: true if there is what tools/cross/NAME.ini names.
can_cross() {
    local names
    mapfile -t names < <(sed -nE "s/^(c|ar|exe_wrapper) = \[?'([^']*)'.*/\2/p" "tools/cross/$1.ini")
    on_x86 && there "${names[@]}"
}
# cross_build NAME OPTION...: `rapt` and an example for another machine, by tools/cross/NAME.ini, with the kernels of the table, once for
# all stages that have it. $folder: where it is. False, and a visible skip, where it cannot be had.
#
# At -O3, as released, kernels have the same bits (OPTIMIZATION=3 shows that), and take gcc four to five times as long to compile as at
# -Og, at -O1 two to three times. At -Og they take twice as long to be emulated, which is less where cases are few, as they are but for
# AArch64. To clang -Og is -O1, and to zig it means checks that take longer.
exe=
folder=
cross_build() {
    can_cross "$1" || return 1
    { once "$1" build_cross "$@" && native; } || exit 1 # a skip is false, too
    folder=$1
}
build_cross() {
    local level=1
    if [[ $1 != aarch64 ]] && grep -q "^c = '.*gcc'" "tools/cross/$1.ini"; then level=g; fi
    # shellcheck disable=SC2046 # one file
    setup "$1" --cross-file "tools/cross/$1.ini" "-Doptimization=${OPTIMIZATION:-$level}" "-Disas_left_out=$(all_but "$(kernels_of_build "$1")")" \
        "${@:2}" && ninja -C "$root/$1" "cli/rapt$exe" "$(example_of "$1")$exe" $(shared_of "$1")
}
# The example that a build runs: seq2seq, but where the order of bytes is not that of its file of weights.
example_of() {
    if grep -qs "^endian = 'big'" "tools/cross/$1.ini"; then echo examples/decode-example; else echo examples/seq2seq/seq2seq; fi
}
# example ISA COMMAND...: runs it in its short form; the program is the last word of the command.
example() {
    # shellcheck disable=SC2016 # dollars, which are a price
    case ${!#} in *seq2seq*) set -- "$@" --hash --model examples/seq2seq/model.safetensors --threads "${threads:-2}" '$12.50' ;; esac
    RAPT_ISA=$1 "${@:2}"
}

# emulated FOLDER: the stage's rows of the table, with the programs of that build folder.
emulated() {
    local table row machine runner chosen refused kernels cases isa
    folder=$1
    mapfile -t table < <(rows "$stage")
    for row in "${table[@]}"; do
        IFS='|' read -r _ _ machine runner chosen refused kernels cases <<<"$row"
        read -ra rapt <<<"$runner $root/$folder/cli/rapt$exe"
        if [[ $chosen != - && ,$absent, != *,$chosen,* ]]; then expect "$machine: $chosen is chosen" chooses "$chosen" "${rapt[@]}"; fi
        if [[ $refused != - ]]; then
            if [[ $folder == gcc ]]; then refused=$(built_here "$refused"); fi
            for isa in ${refused//,/ }; do refused_there "$machine" "$isa" "${rapt[@]}"; done
        fi
        if [[ $kernels != - ]]; then equal_to_x86 "$machine" "$runner" "$kernels" "$cases"; fi
    done
    ((${#table[@]} > 0))
}
# refused_there MACHINE ISA RAPT...: that kernel was built, and is refused in each way to ask for it.
refused_there() {
    minilm 0
    expect "$1: $2 is there, but cannot run" in_info "$2" "${@:3}"
    expect "$1: $2 is refused" refuses "${@:3}" run "${tensors[@]}" --out "$logs/$stage.npy" --isa "$2"
    expect "$1: checking $2 is refused" refuses "${@:3}" check --quick --isa "$2"
    expect "$1: RAPT_ISA=$2 is refused" refuses env RAPT_ISA="$2" "${@:3}" info
}
in_info() { "${@:2}" info | tr -d '\r' | grep "^$1 "; }

# equal_to_x86 MACHINE RUNNER KERNELS CASES: the kernels' outputs of two layers of MiniLM and their numbers of an example are, byte for
# byte, those of this machine's kernel of the same class, on two threads or $threads; and they pass the cases. Which cases, is a choice
# for want of time: CASES='*' takes all.
equal_to_x86() {
    local runner rapt layer isa twin name program class=fused kernels=$3 cases info=$logs/$stage.info
    program=$(example_of "$folder")
    read -ra runner <<<"$2"
    rapt=("${runner[@]}" "$root/$folder/cli/rapt$exe")
    "${rapt[@]}" info | tr -d '\r' >"$info"
    expect "$1: self check" grep -x "self check: ok" "$info"
    if [[ $stage == wasm ]]; then class=unfused; fi
    if grep '^vec128 ' "$info"; then # whatever the compiler tells of the machine
        expect "vec128 is $class, as docs/order.md says" grep "^vec128 *$class " "$info"
    fi
    for isa in $(grep -oE '\w+\?' <<<"$kernels" | tr -d '?'); do
        if grep "^$isa .* can run" "$info"; then continue; fi
        refused_there "$1" "$isa" "${rapt[@]}"
        skip "$isa on $1, for $("${runner[0]}" --version | head -n 1) lacks its instructions"
        kernels=$(tr , '\n' <<<"$kernels" | grep -vxF "$isa?" | paste -sd ,)
    done
    kernels=$(built_here "${kernels//\?/}")
    if [[ ! $kernels ]]; then return; fi
    for layer in 0 5; do
        minilm "$layer"
        for isa in ${kernels//,/ }; do
            twin=$(twin_of "$isa")
            "$root/gcc/cli/rapt" run "${tensors[@]}" --out "$logs/$stage-x86.npy" --isa "$twin"
            "${rapt[@]}" run "${tensors[@]}" --out "$logs/$stage.npy" --isa "$isa" --threads "${threads:-2}"
            expect "layer $layer: $isa = x86-64's $twin" cmp "$logs/$stage-x86.npy" "$logs/$stage.npy"
            if ((layer)); then continue; fi
            example "$twin" "$root/gcc/$program" >"$logs/$stage-x86.txt"
            example "$isa" "${runner[@]}" "$root/$folder/$program$exe" | tr -d '\r' >"$logs/$stage.txt" || true
            expect "${program##*/}: $isa = x86-64's $twin" cmp "$logs/$stage-x86.txt" "$logs/$stage.txt"
        done
    done
    if [[ $stage =~ ^(aarch64|sve|riscv64|s390x|ppc64le|wasm)$ ]] && ! ((short)); then same_models "$kernels" "${runner[@]}"; fi
    read -ra cases <<<"$4"
    if [[ ${CASES:-} ]]; then
        mapfile -t cases < <(tr ' ' '\n' <<<"$CASES" && printf '%s\n' "${cases[@]}" | grep -E '^(words$|vectors$|tests/|quick:|few:)')
    fi
    if ((short)); then mapfile -t cases < <(printf '%s\n' golden random "${cases[@]}" | grep -xE 'golden|random|bf16:random' | sort -u); fi
    local words=() tests=() quick=() few_tests=() vector_isas=()
    for name in "${cases[@]}"; do
        case $name in
        quick:*) quick+=("tests/${name#quick:}$exe") ;;
        few:*) few_tests+=("tests/${name#few:}$exe") ;;
        words) for isa in ${kernels//,/ }; do words+=("tests/words-$isa$exe"); done ;;
        tests/*) tests+=("${name#tests/}") ;;
        vectors) vectors_there "$kernels" "${rapt[@]}" ;;
        *) emulated_case "$kernels" "$name" "${rapt[@]}" ;;
        esac
    done
    if ((${#words[@]})); then
        in_build "$folder" ninja -C "$root/$folder" "${words[@]}"
        for name in "${words[@]}"; do tap "${runner[@]}" "$root/$folder/$name" --few || true; done
    fi
    if ((${#tests[@]})); then meson_test "$folder" "${tests[@]}"; fi
    if ((${#quick[@]})); then
        in_build "$folder" ninja -C "$root/$folder" "${quick[@]}"
        for name in "${quick[@]}"; do tap "${runner[@]}" "$root/$folder/$name" --quick "$(first_vectors "$kernels")" || true; done
    fi
    if ((${#few_tests[@]})); then
        in_build "$folder" ninja -C "$root/$folder" "${few_tests[@]}"
        mapfile -t vector_isas < <(with_vectors "$kernels" || tr , '\n' <<<"$kernels")
        for name in "${few_tests[@]}"; do tap "${runner[@]}" "$root/$folder/$name" --few "${vector_isas[@]}" || true; done
    fi
}
# with_vectors KERNELS: those of them that have vectors, one a line; false if all are scalar. first_vectors: the first of them.
with_vectors() { tr , '\n' <<<"$1" | grep -v '^scalar'; }
first_vectors() { with_vectors "$1" | head -n 1; }
# twin_of ISA: x86-64's plainest kernel with the bits of this one, whose class $info tells.
twin_of() { if grep -q "^$1 .*unfused" "$info"; then echo scalar; else echo scalar_fma; fi; }

# same_models KERNELS RUNNER...: what the language model of examples/llm answers, with a hash of all logits, is what it answers here. A
# small one is run by each of those kernels in several ways; SmolLM2, which takes long, once in a stage, by the first of them that has
# vectors, and in WebAssembly, where that is of the other class, by scalar_fma.
same_models() {
    local isa vectors way options program=$root/$folder/examples/llm/llm$exe
    once models-here models_here
    once "llm-$folder" in_build "$folder" ninja -C "$root/$folder" "examples/llm/llm$exe"
    for isa in ${1//,/ }; do
        for way in "--threads 1" "--threads 3 --chunk 1" "--threads 1 --chunk 4 --lookup 8" "--threads 3 --lookup 1"; do
            read -ra options <<<"$way"
            same_answer small "$isa" "${@:2}" "$program" --threads "${threads:-${options[1]}}" "${options[@]:2}"
            if [[ $way == *lookup* ]]; then expect "... and of its guesses some were right, some wrong" guessed "$logs/$stage.err"; fi
        done
    done
    if [[ $stage == sve ]] || ! vectors=$(first_vectors "$1"); then return; fi
    once "smollm2-$stage" same_smollm2 "$vectors" "${@:2}" "$program" --threads "${threads:-2}"
}
same_smollm2() { # VECTORS COMMAND...
    if [[ ! -e $root/smollm2.gguf ]]; then
        skip "SmolLM2, whose weights cannot be had"
        return
    fi
    same_answer smollm2 "$@"
    if [[ $stage == wasm ]]; then same_answer smollm2 scalar_fma "${@:2}"; fi
}
same_answer() { # MODEL ISA COMMAND...
    local twin command=$*
    twin=$(twin_of "$2")
    ask "$@" 2>"$logs/$stage.err" >"$logs/$stage.txt" || true
    expect "language model $1: $2 = x86-64's $twin, ${command##*"$program "}" cmp "$logs/$1-$twin.txt" "$logs/$stage.txt"
}
ask() { # MODEL ISA COMMAND...
    local words=(--plain --hash --tokens 1 "$root/smollm2.gguf" Paris)
    if [[ $1 == small ]]; then words=(--hash --tokens 12 "$root/small.gguf" "the ring the ring the"); fi
    RAPT_ISA=$2 "${@:3}" "${words[@]}"
}
# guessed FILE: it tells of guesses of which some were right, and others not.
guessed() { grep 'guesses right' "$1" | grep -v ' 0 of ' | grep -vE ' ([0-9]+) of \1 '; }
# models_here: both models, in the folder of all builds, since programs of WebAssembly see none outside, and what they answer here.
models_here() {
    local name twin model program=examples/llm/llm
    in_native ninja -C "$root/gcc" "$program" && python3 examples/llm/test.py --write "$root/small.gguf" || return
    rm -f "$root/smollm2.gguf"
    if model=$(examples/llm/fetch); then cp "$model" "$root/smollm2.gguf"; fi
    for name in small smollm2; do
        for twin in scalar scalar_fma; do
            if [[ -e $root/$name.gguf ]]; then ask "$name" "$twin" "$root/gcc/$program" >"$logs/$name-$twin.txt" || return; fi
        done
    done
}
# vectors_there KERNELS RAPT...: the results of docs/order.py, in the files of tools/vectors, by those of them that have vectors.
vectors_there() {
    local isa
    if ! "$own_python" -c 'import numpy'; then
        skip "the files of tools/vectors, for NumPy is not installed"
        return
    fi
    once vectors vectors_here
    for isa in $(with_vectors "$1"); do
        expect "$isa: the results of docs/order.py" "${@:2}" check --vectors "$root/vectors" --isa "$isa"
    done
}
vectors_here() { rm -rf "${root:?}/vectors" && "$own_python" tools/vectors "$root/vectors"; }
# emulated_case KERNELS CASE RAPT...
emulated_case() {
    local arith=() name=${2#bf16:}
    if [[ $2 == bf16:* ]]; then arith=(--arith bf16); fi
    check "$1" "${@:3}" check --quick --isa "$1" "${arith[@]}" --case "$name"
}

# What a stage does that has no function of its own.
emulated_stage() {
    local build
    build=$(rows "$stage" | head -n 1 | cut -d '|' -f 2)
    if cross_build "$build"; then emulated "$build"; fi
}

# ---- Stages that have more than their rows -----------------------------------------------------------------------------------------

# On each number of threads, neon has the bits of every kernel of this machine; and so have two models.
stage_aarch64() {
    cross_build aarch64 || return 0
    emulated aarch64
    local layer isa threads name runner=(qemu-aarch64 -L /usr/aarch64-linux-gnu)
    for layer in 0 5; do
        minilm "$layer"
        for threads in 1 7; do
            "${runner[@]}" "$root/aarch64/cli/rapt" run "${tensors[@]}" --out "$logs/neon.npy" --isa neon --threads "$threads"
            for isa in $(built_here scalar_fma,avx2,avx512,avx512_vnni,avx512_bf16,amx | tr , ' '); do
                "$root/gcc/cli/rapt" run "${tensors[@]}" --out "$logs/$stage.npy" --isa "$isa" --threads "$threads"
                expect "layer $layer: neon = $isa with $threads threads" cmp "$logs/neon.npy" "$logs/$stage.npy"
            done
        done
    done
    if ((short)); then return; fi
    same_encoder "${runner[@]}"
    same_words "${runner[@]}"
    meson_test aarch64 copy norm explain worked cpu first-call pool environment symbols float-modes float-bits
    in_build aarch64 ninja -C "$root/aarch64" tests/decode tests/linear tests/mha
    for name in decode linear mha; do tap "${runner[@]}" "$root/aarch64/tests/$name" --quick neon || true; done
    for name in linear mha; do tap "${runner[@]}" "$root/aarch64/tests/$name" --quick neon_bf16 || true; done
}
# same_encoder RUNNER...: the sentence encoder of examples/minilm: NEON has the bits of this machine's kernels.
same_encoder() {
    local model isa program=examples/minilm/minilm sentences=("The café on Mill Street opens before sunrise." "東京")
    if ! model=$(examples/minilm/fetch); then
        skip "the sentence encoder, whose weights cannot be had"
        return
    fi
    in_build aarch64 ninja -C "$root/aarch64" "$program"
    "$@" "$root/aarch64/$program" --model "$model" --isa neon --threads 2 --out "$logs/neon.npy" "${sentences[@]}"
    for isa in $(built_here scalar_fma,avx2,avx512,avx512_vnni,avx512_bf16,amx | tr , ' '); do
        "$root/gcc/$program" --model "$model" --isa "$isa" --threads 1 --batch 1 --out "$logs/$stage.npy" "${sentences[@]}"
        expect "sentence encoder: neon = $isa" cmp "$logs/neon.npy" "$logs/$stage.npy"
    done
}
# same_words RUNNER...: the logits of examples/seq2seq are those of this machine.
same_words() {
    # shellcheck disable=SC2016 # dollars, which are a price
    local isa wanted texts=("the twenty-third of March nineteen ninety-nine" '$12.50')
    local seq2seq=("$@" "$root/aarch64/examples/seq2seq/seq2seq" --hash)
    wanted=$("$root/gcc/examples/seq2seq/seq2seq" --hash --isa scalar_fma "${texts[@]}")
    for isa in neon neon_dot neon_i8mm neon_bf16 scalar_fma; do
        expect "the logits of seq2seq: $isa = x86's" test "$("${seq2seq[@]}" --isa "$isa" --threads 2 "${texts[@]}")" = "$wanted"
    done
}

# What is installed must link, where the CPU lacks instructions for square roots and for atomics of 64 bits.
stage_powerpc() {
    cross_build powerpc || return 0
    emulated powerpc
    local built # without kernels that are broken on purpose, which take as long as all else
    mapfile -t built < <(ninja -C "$root/powerpc" -t targets all | sed -nE 's/^([^:]+): (c|cpp|STATIC)_LINKER.*/\1/p' | grep -v ^tests/broken/)
    expect "${#built[@]} programs and libraries build, all but those of broken kernels" ninja -C "$root/powerpc" "${built[@]}"
    expect "installed, the pool is found and linked by CMake and pkg-config" powerpc_installed
    tap qemu-ppc -L /usr/powerpc-linux-gnu "$root/powerpc/tests/fuzz/corpus-validate" tests/fuzz/corpus/validate || true
    skip "float-modes, for QEMU 7 refuses an instruction of glibc's fesetenv on POWER's CPUs of 32 bits"
}
powerpc_installed() {
    local to=$PWD/$root/powerpc-installed lib=$PWD/$root/powerpc-installed/root/usr/lib
    rm -rf "$to"
    meson configure "$root/powerpc" -Dprefix=/usr -Dlibdir=lib && ninja -C "$root/powerpc" build.ninja &&
        DESTDIR=$to/root meson install -C "$root/powerpc" --quiet --no-rebuild || return
    # shellcheck disable=SC2046 # words are wanted
    cmake -S tests/host/installed -B "$to/build" -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_C_COMPILER=powerpc-linux-gnu-gcc \
        -DAPP="$PWD/$root/powerpc/tests/readme-example.c" -Drapt_DIR="$lib/cmake/rapt" && cmake --build "$to/build" &&
        qemu-ppc -L /usr/powerpc-linux-gnu -E LD_LIBRARY_PATH="$lib" "$to/build/pool" &&
        powerpc-linux-gnu-gcc -static tests/host/installed/pool.c -o "$to/static" $(PKG_CONFIG_PATH=$lib/pkgconfig \
            PKG_CONFIG_SYSROOT_DIR=$to/root pkg-config --static --cflags --libs rapt_pool) &&
        qemu-ppc "$to/static"
}

# By its own loader, for this CPU runs it; QEMU 7's of 32 bits never ends where there are threads.
stage_i386() {
    can_cross i386 || return 0
    if ! /usr/i686-linux-gnu/lib/ld-linux.so.2 --version; then
        skip "i386, for this machine runs no programs of 32 bits"
        return
    fi
    emulated_stage
}

# with_ziglang PACKAGE...: clang and several C libraries, of PyPI, as python3 -m ziglang, and these packages, in the versions of
# tools/stages/requirements.txt; false, and visibly skipped, without an index.
with_ziglang() {
    on_x86 || return 1
    local to=$PWD/$root/$stage-python pins
    mapfile -t pins < <(pinned ziglang meson "$@") # Debian 12's Meson does not know zig's linker
    python3 -m venv --clear "$to"
    if ! "$to/bin/pip" install --quiet "${pins[@]}"; then
        skip "$stage, since ziglang${*:+ or $*} cannot be had here"
        return 1
    fi
    export PATH=$to/bin:$PATH ZIG_GLOBAL_CACHE_DIR=$to/cache
    PYTHONPATH=$(echo "$to"/lib/python3*/site-packages) # for where a meson of pyenv puts its own python3 first
    export PYTHONPATH
}
# An architecture for which Debian 12 has no compiler.
stage_loongarch64() {
    with_ziglang || return 0
    export PATH=$PWD/tools:$PATH
    emulated_stage
}
# WebAssembly with vectors, which are of the unfused class, and without.
stage_wasm() {
    with_ziglang wasmtime || return 0
    export PATH=$PWD/tools:$PATH XDG_CACHE_HOME=$ZIG_GLOBAL_CACHE_DIR
    local threads=1
    emulated_stage
    skip "guard pages and threads, which WASI does not have"
    setup wasm-scalar --cross-file tools/cross/wasm.ini -Doptimization=1 -Disas_left_out="$(all_but scalar)"
    ninja -C "$root/wasm-scalar" cli/rapt
    check scalar run-wasm "$root/wasm-scalar/cli/rapt" check --quick --case golden
}
