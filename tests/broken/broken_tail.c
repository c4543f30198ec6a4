/* SPDX-License-Identifier: Apache-2.0 */
/* A wrong tail: of the channels beyond the last whole vector, the last one is forgotten. */
#define RAPT_KERNEL_NAME broken_tail
#include "words.h"

static inline void *short_copy(void *to, const void *from, size_t bytes) {
    return memcpy(to, from, bytes > sizeof(float) && bytes < sizeof(vf) ? bytes - sizeof(float) : bytes);
}
#define memcpy short_copy
#include "attend.h"
