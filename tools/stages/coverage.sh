# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
stage coverage own 4 - "the tests run every line and branch of dispatch/ and kernels/ but those of tools/coverage-left"

# By the kernels that this CPU can run; those that it cannot are not built, and named. Unoptimised, a kernel compiles in a tenth of the
# time, but plain C runs as much slower: the kernels with vectors run each test, and the scalar ones are their twins. Tests that add
# nothing are left out. CPUs of QEMU show what this one does not have. Counters are atomic: clang computes the count of one outcome of a
# branch as the difference of two counters, and increments that threads lost made a rare outcome look as if it had not run.
stage_coverage() {
    on_x86 || return 0
    there clang-19 llvm-cov-19 llvm-profdata-19 || return 0
    local -x CCACHE_DISABLE=1 # which may have an object of another folder's sources, whose names the profiles would have
    local name build=$root/coverage counted='-fprofile-instr-generate -fprofile-update=atomic -fcoverage-mapping -fcoverage-mcdc'
    CC=clang-19 CXX=clang++-19 setup coverage --buildtype=plain -Doptimization=0 -Dc_args="$counted" -Dc_link_args="$counted" \
        -Dbench=false -Dexamples=false -Dpython=false -Dcheck_fp=true -Disas_left_out="$absent"
    local tests=(abi/abi append bounds broken/check-broken broken/linear-tiles broken/tiles-released check/check copy cpu decode
        explain first-call float-modes fuzz/corpus-validate linear mha norm plans pool tuning)
    local -x LLVM_PROFILE_FILE=$PWD/$build/profiles/%m.profraw # one for each program, to which each run of it adds
    ninja -C "$build" "${tests[@]/#/tests/}"
    local vectors=${isas#scalar,scalar_fma,} each public=(include/rapt.h include/rapt_layer.h)
    vectors=${vectors#sse41,}
    local inherited own
    inherited=$(inherited_in "$vectors")
    own=$(tr , '\n' <<<"$vectors" | grep -vxF "$(tr , '\n' <<<"$inherited")" | paste -sd ,)
    IFS=, read -ra each <<<"$own"
    covered() { tap "$build/tests/$1" "${@:2}" || true; }
    covered cpu
    # Without the leaves of CPUID above 4, and without the registers of AVX.
    for name in Nehalem,level=4,xlevel=0x80000001 Haswell,-xsave; do tap qemu-x86_64 -cpu "$name" "$build/tests/cpu" || true; done
    for name in append bounds copy explain first-call float-modes pool tuning broken/tiles-released; do covered "$name"; done
    for name in linear mha norm; do covered "$name" --quick "${each[@]}"; done
    covered plans "${each[@]}"
    covered decode --quick "${vectors##*,}"
    covered abi/abi "${public[@]}"
    covered fuzz/corpus-validate tests/fuzz/corpus/validate
    covered check/check --tap --quick --seed 1 --isa "$own"
    if [[ $inherited ]]; then covered check/check --tap --quick --seed 1 --isa "$inherited" --case 'int8*'; fi
    covered check/check --tap --quick --seed 1 --isa sse41 --case kv-types
    covered check/check --tap --quick --seed 1 --isa sse41 --arith bf16 --case types
    covered check/check --tap --seed 1 --isa "$vectors" --arith bf16 --case nan-masked
    # Of the cases in bf16 arithmetic, those that add something, by kernels and by units in plain C for CPUs that have none.
    local units=amx_emulated,avx512_bf16_emulated cases=(random features infinities denormals tiny types kv-types v-scales kv-scales nan-values 'same-feature*' 'complaint*')
    for name in "${cases[@]}"; do
        covered check/check --tap --quick --seed 1 --isa "$own" --arith bf16 --case "$name"
        covered broken/check-broken --tap --quick --seed 1 --isa "$units" --arith bf16 --case "$name"
    done
    covered broken/check-broken --tap --seed 1 --isa "$units" --arith bf16 --case tiny
    covered broken/check-broken --tap --seed 1 --isa avx512_bf16_emulated --case pairs # in exact arithmetic
    for name in pages ring 'window*' head-dim-large; do
        covered broken/check-broken --tap --quick --seed 1 --isa "$units" --arith bf16 --case "$name"
    done
    for name in int8-arith 'int8-head*' int8-extremes int8-scales int8-groups int8-logits int8-not-finite int8-ties; do
        covered broken/check-broken --tap --quick --seed 1 --isa amx_emulated --case "$name"
    done
    covered broken/linear-tiles --quick amx_emulated
    covered broken/linear-tiles --quick avx512_bf16_emulated
    "$build/tests/broken/check-broken" --self --isa broken_tail >"$logs/$stage.self" || true
    expect "the self check refuses a broken kernel" grep "broken_tail: .* are not those of docs/order.md" "$logs/$stage.self"
    expect "coverage" tools/coverage "$build"
}
