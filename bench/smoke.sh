#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# smoke.sh RAPT-BENCH: small cases run on every kernel, and each reports its counters.
set -eu
out=$("$1" --benchmark_filter='^(T1-run/f32/.*/t1|T1-plan[+]run/f16/scalar/t1|P1/bf16/.*/t[12])$' --benchmark_min_time=0.01)
printf '%s\n' "$out"
printf '%s\n' "$out" | awk '
    /^(T1|P1)/ { cases++; if (!/ GFLOPS=/ || !/ limit=/ || !/ share=/) { print "no counters: " $1; bad = 1 } }
    END { if (!cases) print "nothing ran"; exit bad || !cases }'
