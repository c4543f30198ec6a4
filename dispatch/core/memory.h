/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that a call reads and writes. Each tensor and array is registered with its name; then everything that is written is
 * checked against all the rest. The first error stays in rapt_memory.status, where all later steps do nothing, so that callers
 * need to look only at what the last step, rapt_check_memory, returns. */
#ifndef RAPT_MEMORY_H
#define RAPT_MEMORY_H

#include "rapt_layer.h"
#include "core/report.h"

/* The rows of a written tensor, in whose gaps the rows of others may lie. The strides are those of an output that has been
 * checked. */
typedef struct rapt_rows_in_memory {
    int64_t length[3], stride[3]; /* the dimensions, by descending stride */
    int64_t row;                  /* bytes of a row */
} rapt_rows_in_memory;

enum { RAPT_NO_REGION = -1 };

typedef struct rapt_region {
    const char *owner, *name; /* name in reports, and its prefix */
    uintptr_t first;
    uint64_t bytes;
    bool written;
    bool spread; /* only the bytes of `rows` are used; else all of them */
    int twin;    /* the region that may begin at the same byte, or RAPT_NO_REGION */
    rapt_rows_in_memory rows;
} rapt_region;

/* An upper bound of the regions of a call: all pointers in the structs of the largest one, with those of plans and rope tables.
 */
enum { RAPT_MOST_REGIONS = (sizeof(rapt_mha_args) + sizeof(rapt_args) + sizeof(rapt_kv_append_args)) / sizeof(void *) };

/* The regions of a call, and the first error. It has several KiB, so functions with one on their stack are not inlined into those
 * that run kernels (RAPT_STACK_BYTES). */
typedef struct rapt_memory {
    rapt_report *report;
    rapt_status status;
    int n;
    rapt_region at[RAPT_MOST_REGIONS];
} rapt_memory;

static inline void rapt_memory_begin(rapt_memory *m, rapt_report *r) { m->report = r, m->status = RAPT_OK, m->n = 0; }

/* Functions that register a region return its number, or RAPT_NO_REGION if it has no bytes or something was refused before. */

/* Registers a tensor that is read, and spans `bytes` bytes; it may be null only if `bytes` is 0. Errors: NULL, STRIDE (it would
 * wrap around the address space). */
int rapt_reads(rapt_memory *m, const char *name, const void *at, uint64_t bytes);

/* Registers a tensor that is written, as rapt_reads registers one that is read. */
int rapt_writes(rapt_memory *m, const char *name, const void *at, uint64_t bytes);

/* Does what rapt_reads does if the call has the tensor (there); else checks that its pointer is null, and refuses it for the
 * reason `why` if it is not. Errors: those of rapt_reads, UNUSED. */
int rapt_reads_if(rapt_memory *m, bool there, const char *name, const void *at, uint64_t bytes, const char *why);

/* Does what rapt_reads_if does, for a tensor that is written. */
int rapt_writes_if(rapt_memory *m, bool there, const char *name, const void *at, uint64_t bytes, const char *why);

/* Registers an array that is read, of n elements of `element` bytes, to which it must be aligned. optional: it may be null.
 * Errors: NULL, STRIDE, ALIGNMENT. */
int rapt_reads_array(rapt_memory *m, const char *name, const void *at, int64_t n, size_t element, bool optional);

/* Registers an array that is written, as rapt_reads_array registers one that is read. */
int rapt_writes_array(rapt_memory *m, const char *name, const void *at, int64_t n, size_t element, bool optional);

/* Refuses a pointer that is not null, for the reason `why`: the call has no use for it. Errors: UNUSED. */
void rapt_unused(rapt_memory *m, const char *name, const void *at, const char *why);

/* Returns bytes rounded up to a multiple of the alignment of a workspace, so that what follows them is aligned, too. */
static inline uint64_t rapt_aligned_bytes(uint64_t bytes) {
    return (bytes + RAPT_WORKSPACE_ALIGNMENT - 1) / RAPT_WORKSPACE_ALIGNMENT * RAPT_WORKSPACE_ALIGNMENT;
}

/* Checks that memory is aligned as a workspace must be. Errors: ALIGNMENT. */
void rapt_check_alignment(rapt_memory *m, const char *name, const void *at);

/* Registers the workspace. needed: the bytes that the call writes; given: those that the caller has provided. Errors: WORKSPACE,
 * ALIGNMENT. */
void rapt_writes_workspace(rapt_memory *m, const void *at, size_t given, size_t needed);

/* Allows regions i and j to be the same memory, if both begin at the same byte. */
static inline void rapt_may_be(rapt_memory *m, int i, int j) {
    if (m->status == RAPT_OK && i != RAPT_NO_REGION) m->at[i].twin = j;
}

/* Says that region i is a tensor of rows with these dimensions, in whose gaps the rows of other such tensors may lie. */
void rapt_spread(rapt_memory *m, int i, const rapt_layout *layout, const int64_t length[3], int64_t row);

/* Checks that a plan of `bytes` bytes is not written over the arrays whose addresses it keeps: the starts, whose names have the
 * prefix `owner` in reports, and the frequencies of rope, which may be null. Errors: NULL, ALIGNMENT, STRIDE, OVERLAP. */
rapt_status rapt_check_kept(rapt_report *r, const void *plan, size_t bytes, const rapt_rope *rope, const char *owner,
                            int64_t batch, const int32_t *q_starts, const int32_t *k_starts);

/* Returns the first error of the steps before; if there was none, checks that no written region overlaps another. Errors: theirs,
 * OVERLAP. */
rapt_status rapt_check_memory(rapt_memory *m);

#endif
