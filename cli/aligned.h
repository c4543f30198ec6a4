/* SPDX-License-Identifier: Apache-2.0 */
/* Memory at a multiple of more than malloc's alignment, exactly as large as it is asked for. It is freed by a function of its
 * own, as Windows wants it. For POSIX's, what includes this defines _POSIX_C_SOURCE. */
#ifndef RAPT_CLI_ALIGNED_H
#define RAPT_CLI_ALIGNED_H

#include <stdlib.h>
#if defined(_WIN32)
#include <malloc.h>
#endif

/* Null if there is none. */
static inline void *aligned_create(size_t alignment, size_t bytes) {
    void *memory = NULL;
#if defined(_WIN32)
    memory = _aligned_malloc(bytes, alignment);
#else
    if (posix_memalign(&memory, alignment, bytes)) return NULL;
#endif
    return memory;
}

static inline void aligned_destroy(void *memory) {
#if defined(_WIN32)
    _aligned_free(memory);
#else
    free(memory);
#endif
}

#endif
