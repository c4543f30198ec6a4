# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What this machine is, and what stages need to be installed.

# $isas: the kernels that this CPU can run, which must run. $absent: those of x86-64 that it lacks, which most stages need not compile.
# $few: those of the sanitizers' builds and of the wheel, for which the others would take minutes to compile: plain C and one that has
# vectors, or those that KERNELS names.
isas=scalar,scalar_fma
absent=
case $(uname -m) in
x86_64)
    flags=" $(sed -n '/^flags/{s/.*://p;q}' /proc/cpuinfo) "
    has() { # has FEATURE...
        local feature
        for feature; do [[ $flags == *" $feature "* ]] || return; done
    }
    if has sse4_1; then isas+=,sse41; fi
    if has avx2 fma f16c; then isas+=,avx2; fi
    if has avx2 fma f16c avx_vnni; then isas+=,avx2_vnni; fi
    if has avx512f avx512vl avx512bw avx512dq; then isas+=,avx512; fi
    if has avx512f avx512vl avx512bw avx512dq avx512_vnni; then isas+=,avx512_vnni; fi
    if has avx512f avx512vl avx512bw avx512dq avx512_vnni avx512_bf16; then isas+=,avx512_bf16; fi
    if has avx512f avx512vl avx512bw avx512dq avx512_vnni amx_tile amx_bf16; then isas+=,amx; fi
    for isa in amx avx512_bf16 avx512_vnni avx512 avx2_vnni avx2 sse41; do
        if [[ ,$isas, != *,$isa,* ]]; then absent+=${absent:+,}$isa; fi
    done
    ;;
aarch64)
    isas+=,neon
    if grep -qw asimddp /proc/cpuinfo; then isas+=,neon_dot; fi
    if grep -qw asimddp /proc/cpuinfo && grep -qw i8mm /proc/cpuinfo; then isas+=,neon_i8mm; fi
    if [[ $isas == *,neon_i8mm ]] && grep -qw bf16 /proc/cpuinfo; then isas+=,neon_bf16; fi
    ;;
esac
few=${KERNELS:-$(cut -d , -f 1-3 <<<"$isas")}

# Has ccache take the place of every compiler that it knows, where it is there: a second call of tools/test compiles what has changed.
for folder in /usr/lib/ccache /usr/lib64/ccache /usr/lib/ccache/bin; do
    if command -v ccache >/dev/null && [[ -x $folder/gcc ]]; then export PATH=$folder:$PATH; break; fi
done

# runs STAGE...: true if one of them is to run.
runs() {
    local name
    for name; do if [[ " ${stages[*]} " == *" $name "* ]]; then return 0; fi; done
    return 1
}
# What every stage needs. The shorter form has no benches, no MPI, and does not render the headers.
install_packages() {
    local packages=(gcc g++ libc6-dev meson=meson ninja=ninja-build python3=python3 pkg-config=pkg-config)
    if ! ((short)); then packages+=(libbenchmark-dev doxygen=doxygen mpicc=libopenmpi-dev mpirun=openmpi-bin); fi
    if ! python3 -c 'import numpy' 2>/dev/null; then packages+=(python3-numpy); fi
    if ! python3 -m pip --version >/dev/null 2>&1; then packages+=(python3-pip); fi
    if ! python3 -c 'import ensurepip' 2>/dev/null; then packages+=(python3-venv); fi
    if runs amalgamation ggml windows powerpc; then packages+=(cmake=cmake make=make); fi
    tools/install-missing "${packages[@]}"
}
# What stage gcc can do without is installed while that is built, by the stage that comes first.
more_is_there() { once more install_more && find_clang; }
install_more() {
    local item more=() file
    if runs valgrind; then more+=(valgrind=valgrind); fi
    if runs builds; then more+=(ld.lld-19=lld-19); fi
    if runs static; then more+=(cppcheck=cppcheck shellcheck=shellcheck git=git); fi
    if [[ $(uname -m) == x86_64 ]]; then
        more+=(qemu-x86_64=qemu-user)
        for file in $(rows "${stages[@]}" | cut -d '|' -f 2 | sort -u) $(runs amalgamation && echo aarch64); do
            if [[ -f tools/cross/$file.ini ]]; then
                mapfile -t -O ${#more[@]} more < <(sed -n 's/^# packages: //p' "tools/cross/$file.ini" | tr ' ' '\n')
            fi
        done
    fi
    # PyTorch's inductor compiles extensions of Python.
    if runs torch vllm && [[ ! -f $(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h ]]; then more+=(python3-dev); fi
    # One by one, if not together: what cannot be had is missed by its own stages alone.
    tools/install-missing "${more[@]}" || for item in "${more[@]}"; do tools/install-missing "$item" || true; done
    if ! runs asan coverage static amalgamation builds riscv64 windows; then return; fi
    if ! command -v clang-19 clang >/dev/null; then tools/install-missing clang-19 || tools/install-missing clang || return; fi
    find_clang
    if runs static; then tools/install-missing clang-tidy-19=clang-tidy-19 || true; fi
    tools/install-missing "libclang-rt-$("$clang" -dumpversion | cut -d. -f1)-dev" || return
    if runs coverage; then tools/install-missing llvm-cov-19=llvm-19 || true; fi # which the stage tells of
    if runs windows && [[ $(uname -m) == x86_64 ]]; then                         # which is skipped without these
        tools/install-missing "$(basename "${clang%clang*}lld-link${clang##*clang}")=$(basename "${clang%clang*}lld${clang##*clang}")" || true
    fi
}
find_clang() {
    clang=$(command -v clang-19 || command -v clang || true)
    clangxx=${clang%clang*}clang++${clang##*clang}
}
