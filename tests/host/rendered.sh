#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# rendered.sh DOXYFILE OUTPUT LIBRARY HEADER...: the headers as pages. Doxygen finds nothing undocumented; each function that the library
# exports or a header declares, each struct, enumeration, callback and constant of the headers has its page; and a header with a function, a
# struct, a field, an enumerator or a constant without a comment is refused.
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
cat "$@" | sed -n 's/^typedef struct \(rapt_[a-z_]*\) {$/\1/p
s/^RAPT_API [a-z_0-9 *]*\b\(rapt_[a-z_0-9]*\)(.*/\1/p
s/^typedef [a-z_ ]*(\*\(rapt_[a-z_]*\))(.*/\1/p
s/^typedef enum \(rapt_[a-z_]*\) {$/\1/p
s/^#define \(RAPT_[A-Z_0-9]*\)\b.*/\1/p' | grep -v '_H$' | sort -u >>"$scratch/symbols"
pages=0
: >"$scratch/log"
while read -r symbol; do
    pages=$((pages + 1))
    [ -f "$output/man/man3/$symbol.3" ] || echo "$symbol has no page" >>"$scratch/log"
done <"$scratch/symbols"
[ "$pages" -gt 100 ] && [ ! -s "$scratch/log" ]
ok $? "$pages functions, structs, enumerations, callbacks and constants have their pages"

bare_enumerators() { # of the headers: those that no comment follows, which Doxygen 1.9 does not tell
    cat "$@" | awk '/^typedef enum/ { block = 1 } block { text = text "\n" $0 } /^}/ { block = 0 }
        END {
            gsub(/RAPT_[A-Z0-9_]+[ \n]*=[ \n]*-?[0-9]+,?[ \n]*\/\*/, "", text)
            while (match(text, /RAPT_[A-Z0-9_]+[ \n]*=/)) {
                print substr(text, RSTART, RLENGTH)
                text = substr(text, RSTART + RLENGTH)
            }
        }'
}
bare_enumerators "$@" >"$scratch/log"
[ ! -s "$scratch/log" ]
ok $? 'each enumerator has a comment'
printf 'typedef enum rapt_one {\n    RAPT_A = 0, /* One. */\n    RAPT_B = 1\n} rapt_one;\n' >"$scratch/bare.h"
[ "$(bare_enumerators "$scratch/bare.h")" = 'RAPT_B =' ]
ok $? 'an enumerator without a comment is found'

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
refused 'a constant' '/* One. */
#define RAPT_A 1

#define RAPT_B 2'
echo "1..$count"
exit $failed
