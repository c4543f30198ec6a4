/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of bytes that saturate: of each two products, as in the instruction that VNNI replaced. Only operands of many bits reach
 * the bound. */
#define RAPT_KERNEL_NAME broken_dot
#define BYTES_IN_DOTS
#include "words.h"

static inline vi saturating_dot(vi acc, vi b, vi a) {
    for (int half = 0; half < 32; half += 16) {
        vi low = {0};
        vm two = (vm)i_dot(low, b >> half & 0xffff, a >> half & 0xffff);
        two = (vm)i_select(two > 32767, i_set1(32767), (vi)two);
        acc += i_select(two < -32768, i_set1(-32768), (vi)two);
    }
    return acc;
}
#define i_dot saturating_dot
#include "attend.h"
