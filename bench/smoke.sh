#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# smoke.sh RAPT-BENCH: small cases run on every kernel, and each reports its counters.
set -eu
cases='T1-run/f32/.*/t1|T1-(plan|empty-kv)/f16/scalar/t1|P1/bf16/.*/t[12]|P1-4096/f32/scalar/t1|D4-hot-kv/f16/scalar/t1|MHA-384/f32/.*/t1|L128-384x384/f16/.*/t2|L1-384x384/int8/.*/t1'
out=$("$1" --benchmark_min_time=0.01 --benchmark_filter="^($cases)$")
printf '%s\n' "$out"
printf '%s\n' "$out" | awk '
    /^([DPT][1-9]|L[1-9]|MHA)/ {
        cases++
        if (!/ (GFLOPS|GBs)=/ || !/ limit=/ || !/ share=/ || /^P/ && !/ ps_per_pair=/ || /^D/ && !/ bound=/ || /^T/ && !/ ns=/) {
            print "counters are missing: " $1
            bad = 1
        }
    }
    END { if (!cases) print "nothing ran"; exit bad || !cases }'
