/* SPDX-License-Identifier: Apache-2.0 */
/* A leaked lane: the running maximum of lane 0 takes lane 1's into account. Any finite maximum gives a correct softmax, so no
 * tolerance would see it: only the bits of the row do, which now depend on its neighbour. */
#define RAPT_KERNEL_NAME broken_lane
#include "words.h"

static inline vf leaky_max(vf a, vf b) {
    vf m = v_max(a, b);
    m[0] = m[1] > m[0] ? m[1] : m[0];
    return m;
}
#define v_max leaky_max
#include "attend.h"
