/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as the step of a decoder that its test could have drawn: on two kernels of a class, in every way to run, it must have
 * the bits of the three calls that it stands for, and write nothing else. */
#define main test_main
#include "../api/decode.c" /* NOLINT(bugprone-suspicious-include): whose problems are taken */
#undef main

#include "drawn.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static problem p;
    input in = {bytes, size};
    const char *names[2];
    const rapt_type k = kv_types[choose(&in, KV_TYPES)], v = kv_types[choose(&in, KV_TYPES)];
    const int count = take_pair(&in, names);
    for (int n = 1; n < 4; n++)
        if (!pools[n] && !(pools[n] = rapt_pool_create(n))) abort();
    draw_from(&in);
    make_problem(&p, k, v);
    tensor before[WRITTEN], first[WRITTEN];
    copy_written(before, p.written);
    for (int i = 0; i < count; i++) {
        require(steps_are_the_calls(&p, before, names[i], "fuzz"), "a step is not the calls that it stands for");
        if (i == 0) copy_written(first, p.written);
    }
    require(differing(p.written, first) < 0, "two kernels differ");
    free_written(first), free_written(before);
    free_problem(&p);
    return 0;
}
