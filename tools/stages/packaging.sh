# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Other ways to build and to install.
stage amalgamation own 5 - "rapt.c by gcc and clang, a Makefile, CMake, installations that are moved; AArch64 under QEMU; C99 to C++17"
stage builds own 2 - "the same bits at each level of optimisation and across files (LTO)"
stage wheel own 1.5 - "the Python package as a wheel in a fresh environment, its tests, and mypy --strict"

stage_amalgamation() {
    COMPILERS="gcc ${clang##*/}" ISAS=$isas ABSENT=$absent tap tests/host/amalgamation.sh || true
}
stage_builds() { tap tests/host/builds.sh || true; }

# Its kernels are tested elsewhere, so that few do, hardly optimised.
stage_wheel() {
    CFLAGS=-Og PIP_CONFIG_SETTINGS="setup-args=-Disas_left_out=$(all_but "$few")" tap tests/host/wheel.sh || true
}
