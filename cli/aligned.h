/* SPDX-License-Identifier: Apache-2.0 */
/* Memory with more than malloc's alignment, exactly as large as requested. Windows requires a function of its own to free it. A
 * file that includes this must define _POSIX_C_SOURCE, for posix_memalign. */
#ifndef RAPT_CLI_ALIGNED_H
#define RAPT_CLI_ALIGNED_H

#include <stdlib.h>
#if defined(_WIN32)
#include <malloc.h>
#endif

/* Returns memory, or null if there is not enough. */
static inline void *aligned_create(size_t alignment, size_t bytes) {
    void *memory = NULL;
#if defined(_WIN32)
    memory = _aligned_malloc(bytes, alignment);
#else
    if (posix_memalign(&memory, alignment, bytes)) return NULL;
#endif
    return memory;
}

/* Frees memory from aligned_create; it may be null. */
static inline void aligned_destroy(void *memory) {
#if defined(_WIN32)
    _aligned_free(memory);
#else
    free(memory);
#endif
}

#endif
