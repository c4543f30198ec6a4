#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# pinned.sh REQUIREMENTS...: each package of these requirements files has one exact version, and PyTorch's is the build for CPUs. Ends with
# TAP.
set -eu
awk '
    function tell(good, line) {
        printf "%sok %d - %s\n", good ? "" : "not ", ++tests, line
        bad = bad || !good
    }
    /^#/ || /^--extra-index-url [^ ]+$/ || /^$/ { next }
    { tell($0 ~ /^[A-Za-z0-9._-]+==[0-9]+(\.[0-9]+)+(\+[a-z0-9]+)?$/, $0) }
    /^torch==/ { tell($0 ~ /\+cpu$/, "PyTorch for CPUs: " $0) }
    END {
        print "1.." tests + 0
        exit bad || !tests
    }' "$@"
