/* SPDX-License-Identifier: Apache-2.0 */
/* The headers alone, compiled as C99, C11 and C++ with -Werror by tests/meson.build. */
#include "rapt.h"
#include "rapt_pool.h"

int main(void) {
    rapt_desc desc;
    rapt_desc_init(&desc);
    return desc.size == sizeof(rapt_desc) && desc.window_left == -1 && desc.threads == 1 ? 0 : 1;
}
