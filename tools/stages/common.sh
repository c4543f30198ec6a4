# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What stages are made of. A stage is a function stage_NAME, or a row of targets.txt, and a call of `stage`, which gives it a place in
# the list. It runs in a subshell of its own with `set -e`; $stage is its name, $root the folder of all builds, $logs that of the logs,
# and $short is 1 where `tools/test` runs without arguments and the stage has a shorter form.

names=()
declare -A set_of minutes short_minutes proves
# stage NAME SET MINUTES SHORT PROVES: SET is "own", or "engine" for what is downloaded. MINUTES are those of one core (AMD EPYC,
# Zen 4), SHORT those of the shorter form, "-" where the stage is none of those that `tools/test` alone runs.
stage() {
    names+=("$1")
    set_of[$1]=$2 minutes[$1]=$3 short_minutes[$1]=$4 proves[$1]=$5
}

# ---- Counting ------------------------------------------------------------------------------------------------------------------

count() { echo "$*" >>"$logs/$stage.counts"; } # passed failed skipped

# Says in the stage's line what could not run, and why: nothing is skipped silently.
skip() { echo "SKIP $*"; count 0 0 1; }

# meson_test FOLDER OPTION|TEST...: Meson's tests, all or those named, after building what they need; each TAP line counts.
meson_test() {
    local sums
    meson test -C "$root/$1" --print-errorlogs "${@:2}" || true
    sums=$(tools/tally "$root/$1/meson-logs/testlog.json")
    count "$sums"
}

TIMEFORMAT='# in %1R s, of CPU: %1U + %1S s' # the line that `time` adds to the log

# tap COMMAND...: runs a program that prints TAP.
tap() {
    local code=0 sums
    echo "+ $*"
    time "$@" >"$logs/$stage.tap" || code=$?
    cat "$logs/$stage.tap"
    sums=$(tools/tally "$code" "$logs/$stage.tap") || sums="0 1 0"
    if ((code)) && ! grep -q '^not ok' "$logs/$stage.tap"; then echo "not ok - ended with status $code: $*"; fi
    count "$sums"
    return "$code"
}

# expect WORDS COMMAND...: one assertion, that the command succeeds.
expect() {
    echo "+ ${*:2}"
    if time "${@:2}"; then echo "ok - $1" && count 1 0 0; else echo "not ok - $1" && count 0 1 0; fi
}
# refuses COMMAND...: true if it ends with an error of its own, not by a signal.
refuses() {
    local code=0
    "$@" || code=$?
    ((code == 2))
}
# chooses ISA COMMAND...: true if this `rapt` would run that kernel. `info` fails if any kernel that can run fails its self check.
chooses() {
    local told
    told=$("${@:2}" info --json) && [[ $(python3 -c 'import json, sys; print(json.load(sys.stdin)["chosen"])' <<<"$told") == "$1" ]]
}

# check ISAS COMMAND...: runs `rapt check`, alone or under an emulator, and requires that these kernels have really run.
check() {
    if tap "${@:2}" --tap --require "$1"; then ran "$1"; fi
}
# ran ISAS: true if the check in $logs/$stage.tap says that they have run; then each gets a line in the matrix: how many cases passed,
# and whether the golden hashes, which are the same on every machine, are among them.
ran() {
    local isa cases golden=- all
    all=$(tr -d '\r' <"$logs/$stage.tap" | sed -n 's/^# ran: //p')
    for isa in ${1//,/ }; do
        if [[ " $all " != *" $isa "* ]]; then return 1; fi
    done
    echo "RAN $1"
    cases=$(grep -Ecv '^(not ok|#|1\.\.)| - (scalar|scalar_fma|'"${1//,/|}"') #' "$logs/$stage.tap")
    if grep -Eq '^ok [0-9]+ - golden' "$logs/$stage.tap"; then golden=equal; fi
    for isa in ${1//,/ }; do echo "$stage $isa $cases $golden" >>"$logs/$stage.matrix"; done
}

# ---- Building ------------------------------------------------------------------------------------------------------------------

# setup FOLDER OPTION...: a fresh build folder. Stages build in it what they need.
setup() {
    rm -rf "${root:?}/$1"
    meson setup "$root/$1" "${@:2}"
}
# once NAME COMMAND...: runs it, unless another stage of this call of tools/test has, or waits until that has ended. What several
# stages need is so made once. A failure is a failure of each of them.
once() {
    if [[ ! -e $logs/$1.once ]]; then (flock 9 && first "$@") 9>"$logs/$1.lock"; fi
    (($(cat "$logs/$1.once") == 0))
}
first() { # within the lock
    if [[ -e $logs/$1.once ]]; then return; fi
    local code=0
    "${@:2}" || code=1
    echo $code >"$logs/$1.code"
    mv "$logs/$1.code" "$logs/$1.once"
}

kernels_listed() { sed -nE 's/^([a-z][a-z0-9_]*) .*/\1/p' kernels/list.txt | sort -u; }
# all_but ISAS: the kernels to leave out of a build that has these, and scalar, alone.
all_but() { kernels_listed | grep -vxE "scalar|${1//,/|}" | paste -sd ,; }
# file_of KERNEL: its file.
file_of() { awk -v name="$1" '$1 == name { print "kernels/" $2; exit }' kernels/list.txt; }
# options_of KERNEL FAMILY: the compiler's, as kernels/list.txt has them.
options_of() { awk -v name="$1" -v family="$2" '$1 == name && ("," $3 ",") ~ "," family "," { for (i = 6; i <= NF; i++) print $i }' kernels/list.txt; }
# sources_of FAMILY: those of dispatch/ for a CPU family that has a file of its own, with the pool.
sources_of() { awk -v family="$1" '/^[a-z]/ && ($2 ~ /^(any|pool)$/ || "," $2 "," ~ "," family ",") { print "dispatch/" $1 }' dispatch/sources.txt; }
# inherited_in ISAS: those of them from which others of them inherit exact and bf16 arithmetic, which a test of the others tests.
inherited_in() {
    awk -v isas="$1" '
        BEGIN { n = split(isas, list, ","); for (i = 1; i <= n; i++) runs[list[i]] = 1 }
        $1 in runs && $4 in runs && !($4 in told) { told[$4] = 1; out = out (out ? "," : "") $4 }
        END { print out }' kernels/list.txt
}
# shared_of FOLDER: the shared library of a build folder, which must link; nothing where there is none.
shared_of() { sed -nE 's/^build (dispatch\/librapt[^ /]*\.(so|dylib|dll)[^ /:]*): c_LINKER.*/\1/p' "$root/$1/build.ninja"; }

# native: this machine's programs by gcc, which other stages compare with, from nothing where stage gcc runs. Kernels that the CPU lacks
# are compiled by the stages refusals and amalgamation.
native() { once native build_native; }
build_native() {
    local programs=(cli/rapt dispatch/librapt.a python/librapt_python.so tests/{abi/abi,explain} tests/abi/0.1/rapt{,_layer,_pool}.h
        examples/{decode-example,seq2seq/seq2seq})
    if ! ((short)); then programs+=(examples/minilm/minilm); fi
    if runs gcc || [[ ! -f $root/gcc/build.ninja ]]; then setup gcc -Disas_left_out="$absent" || return; fi
    ninja -C "$root/gcc" build.ninja || return # from the lists and the version as they are now
    # shellcheck disable=SC2046 # one file
    ninja -C "$root/gcc" "${programs[@]}" $(shared_of gcc)
}
# in_native COMMAND...: only one at a time may run ninja in that folder.
in_native() { in_build gcc "$@"; }
# in_build FOLDER COMMAND...: the same of a folder in which several stages build.
in_build() { (flock 9 && "${@:2}") 9>"$logs/$1.lock"; }

# ---- What can run here -----------------------------------------------------------------------------------------------------------

# there COMMAND...: true if they are there; otherwise what needs them is skipped.
there() {
    local name
    for name; do
        command -v "$name" || { skip "$stage without $name, which cannot be had here" && return 1; }
    done
}
on_x86() { [[ $(uname -m) == x86_64 ]] || { skip "$stage, which needs an x86-64 machine" && false; }; }

# minilm LAYER: puts the arguments for a layer of MiniLM into $tensors.
minilm() {
    local name=tests/data/minilm-layer$1
    tensors=(--q "$name-q.npy" --k "$name-k.npy" --v "$name-v.npy")
}
# pinned PACKAGE...: those packages of PyPI in the versions of tools/stages/requirements.txt.
pinned() {
    local name
    for name; do grep "^$name==" tools/stages/requirements.txt || { echo "$name has no version in tools/stages/requirements.txt" >&2 && exit 1; }; done
}
