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
# What the shared library exports and needs. A DLL has its C library's start in it: there, what the objects need has to do.
case $library in
*.dll)
    exported() { "${nm%nm}objdump" -p "$library" | sed -n '/Ordinal\/Name Pointer/,/^$/s/^\t\[//p' | names; }
    needed() {
        {
            "$nm" -g --defined-only "$static" | names | sed 'p'
            "$nm" -g --undefined-only "$static" | grep ' U ' | names
        } | sort | uniq -u
    }
    ;;
*)
    exported() { "$nm" -D --defined-only "$library" | names; }
    needed() { "$nm" -D --undefined-only "$library" | names; }
    ;;
esac
include=$(dirname "$0")/../../include
declared() { sed -n 's/^RAPT_API .*[ *]\(rapt_[a-z0-9_]*\)(.*/\1/p' "$include/rapt.h" "$include/rapt_layer.h"; }

check 'the shared library exports the functions of the headers, and nothing else' "$({ exported && declared; } | sort | uniq -u)"
# What a freestanding C environment has anyway (checked, where the distribution's compiler fortifies), the environment variable and
# the CPU features; no libm, no allocator, no threads.
allowed='^(memcpy|memset|memmove|__mem(cpy|set|move)_chk|strcmp|getenv|getauxval|__stack_chk_fail|__stack_chk_guard|__cxa_finalize|__gmon_start__|_ITM_.*|___chkstk_ms|GetEnabledXStateFeatures)$'
check 'the shared library needs nothing outside the allow-list' \
    "$(needed | grep -Ev "$allowed")"
# Constants with addresses in them, which the dynamic linker fills in (.data.rel.ro), are data for nm, but not here; $d marks data
# on Arm; names with a dot are sections of COFF.
written=$("$nm" -f sysv "$static" | tr -d ' ' |
    awk -F'|' '$3 ~ /^[bBdDcC]$/ && $7 !~ /^\.data\.rel\.ro/ && $1 !~ /^[$.]/ { sub(/\.[0-9]+$/, "", $1); print $1 }' |
    sort | tr '\n' ' ')
check 'four atomics are all that is ever written' "$([ "$written" = 'chosen features_found l2_found tracer ' ] || echo "$written")"
for archive; do
    name=$(basename "$archive" .a)
    name=${name#librapt-}
    symbol=rapt_${name#*-}_${name%-*}
    check "$name exports its functions' table only" \
        "$("$nm" -g --defined-only "$archive" | grep ' ' | names | grep -vx "$symbol")"
    check "$name exports its functions' table" "$("$nm" -g --defined-only "$archive" | grep -q " $symbol\$" || echo missing)"
    check "$name needs memory functions only" \
        "$("$nm" -g --undefined-only "$archive" | grep ' ' | names | grep -Ev '^(memcpy|memset|memmove|__mem(cpy|set|move)_chk|__stack_chk_fail|___chkstk_ms)$')"
done
echo "1..$count"
exit "$failed"
