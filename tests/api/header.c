/* SPDX-License-Identifier: Apache-2.0 */
/* The headers alone, compiled as C99, C11 and C++ with -Werror by tests/meson.build: all of them in either order, or rapt.h,
 * which is enough; and the library is of their version. */
#if defined(LAYER_FIRST)
#include "rapt_layer.h"
#endif
#include "rapt.h"
#if !defined(RAPT_H_ALONE)
#include "rapt_layer.h"
#include "rapt_pool.h"
#endif

#include <string.h>

#define TEXT(x)                      #x
#define VERSION(major, minor, patch) TEXT(major) "." TEXT(minor) "." TEXT(patch)

int main(void) {
    rapt_desc desc;
    rapt_plan plan;
    rapt_mha_desc mha;
    rapt_desc_init(&desc);
    rapt_mha_desc_init(&mha);
    if (mha.rope.amplitude != 1.0 || sizeof(rapt_pool *) != sizeof(void *)) return 3;
    if (desc.batch != 1 || desc.window_left != -1 || desc.threads != 1 || desc.scale == desc.scale) return 1;
    if (rapt_plan_init(&plan, &desc) != RAPT_ERR_SHAPE || (rapt_plan_init)(&plan, &desc) != RAPT_ERR_SHAPE) return 2;
    return strcmp(rapt_version(), VERSION(RAPT_VERSION_MAJOR, RAPT_VERSION_MINOR, RAPT_VERSION_PATCH)) != 0;
}
