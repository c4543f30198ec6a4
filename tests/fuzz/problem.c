/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a small problem with any features: two kernels of a class must give the same bits, within the bound of the double
 * reference, and touch nothing else. */
#include "problems.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static check c;
    input in = {bytes, size};
    take_kernels(&c, "problem", &in);
    const problem p = take_problem(&c, &in);
    examine(&c, &p);
    require_no_failures(&c);
    return 0;
}
