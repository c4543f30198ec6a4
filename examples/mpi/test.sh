#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# test.sh MPIRUN PROGRAM: on fewer ranks than there are chunks, and on more.
if [ $# -lt 2 ]; then
    echo "1..0 # SKIP MPI is not installed (Debian: libopenmpi-dev, openmpi-bin)"
    exit
fi
options=
if "$1" --version | grep -q 'Open MPI'; then options='--allow-run-as-root --oversubscribe'; fi
# In a container, one process may not be allowed to read another's memory.
export OMPI_MCA_btl_vader_single_copy_mechanism=none
number=0
for ranks in 1 2 3 5; do
    number=$((number + 1))
    # shellcheck disable=SC2086 # options are words, or none
    said=$("$1" $options -n $ranks "$2" 2>&1) && [ -n "$said" ] || printf 'not '
    echo "ok $number - $ranks ranks"
    printf '%s\n' "$said" | sed 's/^/# /'
done
echo "1..$number"
