/* SPDX-License-Identifier: Apache-2.0 */
/* Memory between guard pages. Sanitizers miss masked vector accesses; an unmapped page does not. WASI has no memory that can be
 * protected: what is written to guards is seen there, near enough to the data, and what is read from them is not. */
#ifndef RAPT_TESTS_FENCE_H
#define RAPT_TESTS_FENCE_H

#include <stdbool.h>
#include <stddef.h>

#if defined(__wasi__)
#define FENCE_GUARDED 0
#else
#define FENCE_GUARDED 1
#endif

#if FENCE_GUARDED
/* Pages that cannot be accessed until pages_open, after which they can be read and written, until pages_protect says otherwise.
 * Out of memory ends the program. */
size_t page_bytes(void);
void *pages_create(size_t bytes);
void pages_open(void *pages, size_t bytes);
typedef enum pages_use { PAGES_CLOSED, PAGES_READ, PAGES_WRITTEN } pages_use;
void pages_protect(void *pages, size_t bytes, pages_use use);
void pages_destroy(void *pages, size_t bytes);
#endif

typedef struct fence {
    unsigned char *map; /* [guard][body][guard]: the body is whole pages, data lies in it */
    size_t map_bytes;
    unsigned char *body;
    size_t body_bytes;
    unsigned char *data;
    size_t bytes;
} fence;

enum { FENCE_CANARY = 0xc5 };

/* Ends the program, with an exit status that is not that of a check which failed. */
_Noreturn void no_memory(void);

/* offset < 0: data ends where the guard begins. Otherwise it begins offset bytes after the other guard. beyond: how many more
 * bytes than one page to guard at the end. The body is filled with canaries. Out of memory ends the program. */
fence fence_create(size_t bytes, int offset, size_t beyond);
void fence_destroy(fence *f);

void fence_fill(fence *f, int byte);     /* the whole body */
bool fence_intact(const fence *f);       /* the whole body is canaries */
bool fence_slack_intact(const fence *f); /* all but data is */
void fence_protect(fence *f, bool read_only);

#endif
