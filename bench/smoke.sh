#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# smoke.sh RAPT-BENCH: small cases of every kind, some on every kernel, run once each, however long that takes, and report their
# counters.
set -eu
cases='T1-run/f32/.*/t1 T1-(plan|empty-kv)/f16/scalar/t1 P1/bf16/.*/t[12] P1-4096/f32/scalar/t1 D4-hot-kv/f16/scalar/t1
    D1-step-hot(-bshd)?/q4_0/.*/t1 D1-step-hot/f16/scalar/t2 F-batch/f32/scalar/t1 MHA-384/f32/.*/t1 L128-384x384/f16/.*/t2
    L128-384x384/q(8|4)_0/.*/t1 L512-768x3072-(silu|swiglu)/int8/scalar/t1 L1-384x384/int8/scalar/t1 (LN|RMS)512-4096/f16/.*/t1
    RMS512-4096-residual/f16/.*/t1 RMS512-4096-residual/f32/scalar/t2 C-(pages|shift)/(int8|q4_0)/none/t[12] limits/t[12]
    D5-hot/bf16-dot/.*/t1 P1/int8-dot/.*/t1 D6/int8/.*/t2 L128-768x768-prepacked/q(4_k|6_k|4_1|8_0)-dot/.*/t1
    L1-4096x4096-prepacked/q4_k-dot/scalar/t1 L128-768x768/q6_k/.*/t1'
filter=$(printf '%s' "$cases" | tr -s ' \n' '|')
# No least time: a case is called once.
out=$("$1" --benchmark_min_time=0 --benchmark_filter="^($filter)$")
printf '%s\n' "$out"
for case in $cases; do
    printf '%s\n' "$out" | grep -Eq "^$case " || { echo "did not run: $case" && exit 1; }
done
printf '%s\n' "$out" | awk '
    /^limits/ && (!/ GBs=/ || !/ f32_peak=/ || !/ integer_peak=/) {
        print "counters are missing: " $1
        bad = 1
    }
    /^([DPT][1-9]|L[1-9]|MHA|LN|RMS|C-|F-)/ {
        if ($6 != 1) {
            print "called " $6 " times: " $1
            bad = 1
        }
        if (!/ GFLOPS=/ || !/ peak_share=/ || !/ GBs=/ || !/ read_share=/ || !/ bound=/ || /^[DPT]/ && !/ ns=/ ||
            /^[DP]/ && !/ ps_per_pair=/) {
            print "counters are missing: " $1
            bad = 1
        }
    }
    END { exit bad }'
