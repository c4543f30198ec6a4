# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Runs under AddressSanitizer, UndefinedBehaviorSanitizer, ThreadSanitizer and valgrind.
stage asan own 5 2 "clang's ASan and UBSan find nothing in the tests, nor fuzz targets in seconds each; $few (KERNELS=... for others)"
stage tsan own 2 - "ThreadSanitizer finds nothing in checks, pool, first calls, mha and decode; $few"
stage valgrind own 2.5 - "no kernel result or branch depends on uninitialized memory: avx2; no width costs more instructions than the next multiple of 16"

# With line numbers in reports, but not variables, which take half of the time to compile; and with loops as they are written, since
# clang would take minutes for each kernel with plain C.
setup_asan() {
    export ASAN_OPTIONS=halt_on_error=1:detect_stack_use_after_return=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
    CC=$clang CXX=$clangxx setup asan --buildtype=debug -Doptimization=1 -Dc_args='-g1 -DRAPT_UNROLL=' -Db_sanitize=address,undefined \
        -Db_lundef=false -Dfuzz=true -Dbench=false -Dexamples=false -Disas_left_out="$(all_but "$few")"
}
# fuzz TARGET INPUTS: a fuzz target on that many inputs, from its corpus and one seed on: some seconds, enough to see that it works,
# while looking further takes hours (tools/fuzz). What it finds lies beside the logs.
fuzz() {
    local dictionary=()
    if [[ -f tests/fuzz/$1.dict ]]; then dictionary=("-dict=tests/fuzz/$1.dict"); fi
    ninja -C "$root/asan" "tests/fuzz/fuzz-$1"
    mkdir -p "$root/asan/corpus-$1"
    expect "fuzz $1, $2 inputs" "$root/asan/tests/fuzz/fuzz-$1" -seed=1 -runs="$2" -len_control=0 -max_len=256 -timeout=600 \
        -rss_limit_mb=4096 -print_final_stats=1 -artifact_prefix="$logs/fuzz-$1-" "${dictionary[@]}" "$root/asan/corpus-$1" \
        "tests/fuzz/corpus/$1"
}
stage_asan() {
    setup_asan
    if ((short)); then # beside a kernel with vectors its twin in plain C runs
        ninja -C "$root/asan" cli/rapt
        check "${few##*,}" "$root/asan/cli/rapt" check --quick --isa "${few##*,}"
        return
    fi
    # Without what takes long and stage gcc tests as well: kernels that are broken on purpose, and words of vectors, whose memory the
    # checks fence. The corpora are the first inputs of the fuzz targets below.
    meson_test asan --no-suite broken --no-suite vectors --no-suite corpus
    fuzz validate 200000
    fuzz problem 200
    fuzz same 150
    fuzz tables 300
    fuzz merge 200
    fuzz layer 300
    fuzz linear 300
    fuzz norms 500
    fuzz append 1000
    fuzz copy 4000
    fuzz rotary 5000
    fuzz decode 60
    fuzz npy 100000
    fuzz safetensors 50000
    fuzz wordpiece 10000
}

# gcc's, for clang's skips accesses of more than 128 bits. Its shadow memory does not fit around every randomised layout. How threads
# share memory does not depend on the instruction set: $few kernels show it.
stage_tsan() {
    export TSAN_OPTIONS=halt_on_error=1
    local name fixed_layout=()
    setup tsan --buildtype=debug -Doptimization=1 -Dc_args='-g1 -DRAPT_UNROLL=' -Db_sanitize=thread -Disas_left_out="$(all_but "$few")"
    ninja -C "$root/tsan" cli/rapt tests/first-call tests/pool tests/mha tests/decode
    if setarch -R true; then fixed_layout=(setarch -R); fi
    local last=${few##*,} # beside which its twin in plain C runs
    local checked=("${fixed_layout[@]}" "$root/tsan/cli/rapt" check --quick --isa "$last")
    check "$last" "${checked[@]}"
    check "$last" "${checked[@]}" --arith bf16 --case same-threads
    # shellcheck disable=SC2086 # a program and its options
    for name in first-call pool "mha --quick $last" "decode --quick $last"; do
        tap "${fixed_layout[@]}" "$root/tsan/tests/"$name || true
    done
}

# avx2 is the best kernel that valgrind can run; what it adds to the sanitizers is uninitialized memory.
stage_valgrind() {
    if [[ ,$isas, != *,avx2,* ]]; then
        skip "valgrind, which is run on avx2"
        return
    fi
    there valgrind || return 0
    native
    local name checked=(valgrind -q --partial-loads-ok=no --error-exitcode=1 "$root/gcc/cli/rapt" check --quick --isa avx2)
    check avx2 "${checked[@]}"
    for name in random features; do check avx2 "${checked[@]}" --arith bf16 --case "$name"; done
    check avx2 "${checked[@]}" --case kv-types --seed 6 # of ten seeds one has so short keys that they are copied
    in_native ninja -C "$root/gcc" bench/rapt-widths
    tap tests/host/widths.py "$root/gcc/bench/rapt-widths" || true
    tap tests/host/masks.py "$root/gcc/cli/rapt" || true
}
