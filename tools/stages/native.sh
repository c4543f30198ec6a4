# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# This machine's kernels by gcc, what an older CPU does with them, and what must be refused.
stage gcc own 9.5 6 "each test of the Meson build on this machine's kernels, and both demos"
stage refusals own 1.5 1.5 "a debug build refuses kernels that the CPU lacks, and floating-point modes; each refusal has its line (explain)"
stage qemu-x86 own 0.5 0.5 "older CPUs (Nehalem, Haswell, AVX2 without XSAVE) choose sse41 or avx2, refuse the others, and have the same bits"

# `tools/test` alone leaves out kernels that are broken on purpose, options that break the promise, ways to embed, examples with models,
# and the benches; and of the checks at length it has the quick form.
stage_gcc() {
    local isa tests
    native
    if ((short)); then
        mapfile -t tests < <(meson test -C "$root/gcc" --list --no-suite broken --no-suite bench | sed -E 's/^.*[:/] ?//' |
            grep -vxE 'check|flags|replaced|embed|llm|minilm|seq2seq')
        in_native meson_test gcc "${tests[@]}"
        check "$isas" "$root/gcc/cli/rapt" check --quick
        return
    fi
    in_native ninja -C "$root/gcc"
    examples/llm/fetch || true # what test llm skips where it is not there
    examples/llm/fetch --mistral-vocabulary || true
    in_native meson_test gcc --no-rebuild
    python3 -c 'import json, re, sys # the names of different versions of Meson: "rapt:check", "rapt / check"
for test in map(json.loads, sys.stdin):
    if re.search("[:/] ?check$", test["name"]): print(test["stdout"], end="")' <"$root/gcc/meson-logs/testlog.json" >"$logs/$stage.tap"
    expect "check has run $isas" ran "$isas"
    expect "tools/demo" in_native tools/demo "$root/gcc"
    fresh_demo
    for isa in avx2_vnni avx512 avx512_vnni avx512_bf16 amx; do
        if [[ ,$isas, != *,$isa,* ]]; then skip "$isa, which this CPU has not"; fi
    done
}

# fresh_demo: examples/llm/demo in a copy of the files that git has, compiled anew, answers as the program of the Meson build does.
fresh_demo() {
    local model start file fresh=$root/fresh out=$logs/demo.txt told=$logs/demo.err
    local asked=(--plain --hash --tokens 4) prompt="The capital of France is"
    if ! model=$(examples/llm/fetch); then
        skip "examples/llm/demo, since the weights cannot be had"
        return
    fi
    if ! git ls-files --error-unmatch examples/llm/demo; then
        skip "examples/llm/demo in a copy, since git does not list the files"
        return
    fi
    rm -rf "$fresh"
    mkdir "$fresh"
    git ls-files | while read -r file; do if [[ -e $file ]]; then cp --parents -t "$fresh" "$file"; fi; done
    "$root/gcc/examples/llm/llm" "${asked[@]}" "$model" "$prompt" >"$logs/llm.txt"
    start=$SECONDS
    CCACHE_DISABLE=1 "$fresh/examples/llm/demo" "${asked[@]}" "$prompt" >"$out" 2>"$told" || cat "$told"
    expect "examples/llm/demo has answered after $((SECONDS - start)) s, build included" grep Paris "$out"
    expect "... with the hash that the program of the Meson build prints" cmp "$logs/llm.txt" "$out"
    expect "... shows how far the build is" grep -m 1 -E '^build: \[[0-9]+/[0-9]+\]' "$told"
    expect "... and the prompt" grep 'prompt: token 5 of 5' "$told"
    expect "... and tokens/s" grep -E '^answer: 4 tokens, .* [0-9.]+ tokens/s$' "$told"
}

# Without optimization an intrinsic gets its immediate only if it really is one. Its bits are shown by few problems. A debug build
# refuses floating-point modes; and this one has kernels that this CPU, or an older one, lacks, and must refuse.
stage_refusals() {
    local rapt=$root/refusals/cli/rapt isa
    setup refusals --buildtype=debug
    ninja -C "$root/refusals" cli/rapt
    check "$isas" "$rapt" check --quick --case golden
    check "$isas" "$rapt" check --quick --case 'errors*'
    meson_test refusals float-modes explain explain-complete
    for isa in ${absent//,/ }; do refused_there "this CPU" "$isa" "$rapt"; done
    if on_x86 && there qemu-x86_64; then emulated refusals; fi
}

# These kernels are checked at length where they are at home; here they must get by with what these CPUs have, on all paths. And what
# tests assume of the best kernel holds for sse41, too, whose prepacked weights are the largest.
stage_qemu_x86() {
    on_x86 && there qemu-x86_64 || return 0
    native
    emulated gcc
    tap qemu-x86_64 -cpu Nehalem "$root/gcc/tests/explain" || true
    tap qemu-x86_64 -cpu Nehalem "$root/gcc/tests/abi/abi" include/rapt.h include/rapt_layer.h || true
}
