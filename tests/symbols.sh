#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# symbols.sh NM SHARED STATIC ARCHIVE...: what the library, shared and static, and the kernels' archives show to a linker.
nm=$1 library=$2 static=$3
shift 3
count=0 failed=0
check() { # check DESCRIPTION UNEXPECTED
    count=$((count + 1))
    if [ -z "$2" ]; then
        echo "ok $count - $1"
    else
        failed=1
        echo "not ok $count - $1"
        printf '%s\n' "$2" | sed 's/^/# unexpected: /'
    fi
}
names() { sed 's/.* //; s/@.*//' | sort -u; }

check 'the shared library exports rapt_* only' "$("$nm" -D --defined-only "$library" | names | grep -v '^rapt_')"
# What a freestanding C environment has anyway (checked, where the distribution's compiler fortifies), the environment variable and the CPU features; no libm, no allocator, no threads.
allowed='^(memcpy|memset|memmove|__mem(cpy|set|move)_chk|strcmp|getenv|getauxval|__stack_chk_fail|__stack_chk_guard|__cxa_finalize|__gmon_start__|_ITM_.*)$'
check 'the shared library needs nothing outside the allow-list' \
    "$("$nm" -D --undefined-only "$library" | names | grep -Ev "$allowed")"
# Constant data with addresses in it (.data.rel.ro) is of nm's class d too, so those names are listed; $d marks data on Arm.
check 'the one thing that is ever written is the chosen kernel' \
    "$("$nm" "$static" | sed -n 's/.* [bBdDcC] //p' | grep -vE '^(chosen(\.[0-9]+)?|kernels|feature_names|rapt_kernel_[a-z0-9_]+|\.LC[0-9]*|\$[dx](\.[0-9]+)?)$')"
for archive; do
    name=$(basename "$archive" .a)
    name=${name#librapt-}
    check "$name exports its descriptor only" \
        "$("$nm" -g --defined-only "$archive" | grep ' ' | names | grep -vx "rapt_kernel_$name")"
    check "$name exports its descriptor" "$("$nm" -g --defined-only "$archive" | grep -q " rapt_kernel_$name\$" || echo missing)"
    check "$name needs memory functions only" \
        "$("$nm" -g --undefined-only "$archive" | grep ' ' | names | grep -Ev '^(memcpy|memset|memmove|__mem(cpy|set|move)_chk|__stack_chk_fail)$')"
done
echo "1..$count"
exit "$failed"
