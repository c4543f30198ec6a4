#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# rendered.sh DOXYFILE OUTPUT LIBRARY HEADER...: the headers as pages. Doxygen finds nothing undocumented, each function that the library
# exports and each struct of the headers has its page, and a header with a function, a struct or a field without a comment is refused.
doxyfile=$1 output=$2 library=$3
shift 3
set -u
if ! command -v doxygen >/dev/null; then
    echo '1..0 # SKIP doxygen is not installed'
    exit 0
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
count=0 failed=0
ok() { # ok STATUS DESCRIPTION
    count=$((count + 1))
    if [ "$1" -eq 0 ]; then
        echo "ok $count - $2"
    else
        failed=1
        echo "not ok $count - $2"
        sed 's/^/# /' "$scratch/log"
    fi
}
doxygen "$doxyfile" >"$scratch/log" 2>&1
ok $? 'nothing is undocumented'
nm -D --defined-only "$library" | awk '$2 == "T" && $3 ~ /^rapt_/ {print $3}' >"$scratch/symbols"
cat "$@" | sed -n 's/^typedef struct \(rapt_[a-z_]*\) {$/\1/p' >>"$scratch/symbols"
pages=0
: >"$scratch/log"
while read -r symbol; do
    pages=$((pages + 1))
    [ -f "$output/man/man3/$symbol.3" ] || echo "$symbol has no page" >>"$scratch/log"
done <"$scratch/symbols"
[ "$pages" -gt 100 ] && [ ! -s "$scratch/log" ]
ok $? "$pages functions and structs have their pages"

refused() { # refused WHAT LINES: the same with these lines in a header of their own
    mkdir -p "$scratch/include"
    printf '/* A header. */\n%s\n' "$2" >"$scratch/include/rapt_more.h"
    sed "s#^INPUT = .*#INPUT = $scratch/include#; s#^OUTPUT_DIRECTORY.*#OUTPUT_DIRECTORY = $scratch/out#" "$doxyfile" >"$scratch/Doxyfile"
    ! doxygen "$scratch/Doxyfile" >"$scratch/log" 2>&1 && grep -q 'not documented' "$scratch/log"
    ok $? "$1 without a comment is refused"
}
refused 'a function' '/* One. */
RAPT_API int rapt_one(void);

RAPT_API int rapt_two(void);'
refused 'a struct' 'typedef struct rapt_one {
    int a; /* One. */
} rapt_one;'
refused 'a field' '/* One. */
typedef struct rapt_one {
    int a; /* One. */

    int b;
} rapt_one;'
echo "1..$count"
exit $failed
