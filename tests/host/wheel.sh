#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# wheel.sh [WHEEL]: the wheel of the Python package, in TAP: what lies in it, and the package's own tests, on it installed into
# a fresh environment. Without WHEEL, tools/wheel builds one.
set -uo pipefail
source=$(cd "$(dirname "$0")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
unset PYTHONPATH RAPT_LIBRARY
count=0 failed=0
try() { # try DESCRIPTION COMMAND...
    count=$((count + 1))
    if "${@:2}" >"$scratch/log" 2>&1; then
        echo "ok $count - $1"
    else
        failed=1
        echo "not ok $count - $1"
        tail -n 40 "$scratch/log" | sed 's/^/# /'
    fi
}

if (($#)); then
    wheel=$(realpath "$1")
else
    build() { "$source/tools/wheel" "$scratch/dist"; }
    try 'tools/wheel' build
    wheel=$(echo "$scratch"/dist/*.whl)
fi
cd "$scratch" || exit 1
tagged() {
    echo "$wheel"
    [[ $(basename "$wheel") =~ ^rapt-[0-9.]+-py3-none-(manylinux2014_[a-z0-9_]+\.)?manylinux_2_17_[a-z0-9_]+\.whl$ ]]
}
try 'it is for every Python 3, and for glibc 2.17' tagged
nothing_else() {
    local expected='^rapt-[0-9.]+\.(data/purelib/rapt/([a-z_]+\.py|jax_ffi\.cc|py\.typed|include/[a-z_]+\.h)|dist-info/.*)$'
    python3 -m zipfile -l "$wheel" | awk 'NR > 1 && $1 !~ /\/$/ { print $1 }' >names
    local library='^\.rapt\.mesonpy\.libs/librapt_python\.so$'
    grep -q "$library" names && grep -q 'rapt/jax_ffi\.cc$' names && ! grep -Ev "$expected|$library" names
}
try 'the modules, the headers and the library are all that lies in it' nothing_else
try 'a fresh environment takes it' bash -c "python3 -m venv '$scratch/venv' &&
    '$scratch/venv/bin/pip' install --disable-pip-version-check '${wheel}[bf16,viz]' ipython"
python=$scratch/venv/bin/python
try 'python -m rapt check' "$python" -m rapt check
tested() { "$python" "$source/tests/host/python_package.py" "$source" | tee tested.tap && grep -Eq '^1\.\.[1-9]' tested.tap; }
try "the package's tests, on what is installed" tested
typed() {
    # shellcheck disable=SC2015 # if any of it fails, what mypy said is shown
    "$scratch/venv/bin/pip" install --quiet --disable-pip-version-check mypy &&
        printf 'import rapt\nreveal_type(rapt.KVCache(kv_heads=1, capacity=1, d_k=8).nbytes)\nrapt.attention(1)\n' >typed.py &&
        ! "$scratch/venv/bin/mypy" typed.py >typed.out &&
        grep -q 'Revealed type is "\(builtins\.\)\?int"' typed.out &&
        grep -q 'Missing positional arguments "k", "v"' typed.out || {
        cat typed.out
        return 1
    }
    (cd "$source" && "$scratch/venv/bin/mypy" --cache-dir="$scratch/mypy")
}
try 'types: mypy --strict, and a client sees them' typed
echo "1..$count"
exit "$failed"
