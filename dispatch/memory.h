/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that a call reads and writes: each tensor and array is added with its name, then what is written is checked against
 * all else. The first thing wrong is kept, so that only the last step needs to be looked at. */
#ifndef RAPT_MEMORY_H
#define RAPT_MEMORY_H

#include "rapt_layer.h"
#include "report.h"

/* Rows of a written tensor, in whose gaps those of others may lie. Its strides are those of a checked output. */
typedef struct rapt_rows_in_memory {
    int64_t length[3], stride[3], row; /* by stride, descending; bytes of a row */
} rapt_rows_in_memory;

enum { RAPT_NO_REGION = -1 };

typedef struct rapt_region {
    const char *owner, *name;
    uintptr_t first;
    uint64_t bytes;
    bool written, spread; /* spread: as rows says, not from the first byte to the last */
    int twin;             /* the region in whose very place it may lie, or RAPT_NO_REGION */
    rapt_rows_in_memory rows;
} rapt_region;

/* As many as the structs of the largest call have pointers, all of them and those of plans and rope tables included. */
enum { RAPT_MOST_REGIONS = (sizeof(rapt_mha_args) + sizeof(rapt_args) + sizeof(rapt_kv_append_args)) / sizeof(void *) };

/* It takes several KiB: a function that has one is not inlined into what runs kernels (RAPT_STACK_BYTES). */
typedef struct rapt_memory {
    rapt_report *report;
    rapt_status status;
    int n;
    rapt_region at[RAPT_MOST_REGIONS];
} rapt_memory;

static inline void rapt_memory_begin(rapt_memory *m, rapt_report *r) { m->report = r, m->status = RAPT_OK, m->n = 0; }

/* A tensor that spans `bytes` bytes, null only if that is 0. Returns its number, RAPT_NO_REGION if it has no bytes. Errors: NULL,
 * STRIDE (it would wrap around). */
int rapt_reads(rapt_memory *m, const char *name, const void *at, uint64_t bytes);
int rapt_writes(rapt_memory *m, const char *name, const void *at, uint64_t bytes);

/* The same of a tensor that a call need not have: where it is not there, its pointer must be null, and why says why. Errors: as
 * above, UNUSED. */
int rapt_reads_if(rapt_memory *m, bool there, const char *name, const void *at, uint64_t bytes, const char *why);
int rapt_writes_if(rapt_memory *m, bool there, const char *name, const void *at, uint64_t bytes, const char *why);

/* An array of n elements of that many bytes; optional: it may be null. Errors: NULL, STRIDE, ALIGNMENT. */
int rapt_reads_array(rapt_memory *m, const char *name, const void *at, int64_t n, size_t element, bool optional);
int rapt_writes_array(rapt_memory *m, const char *name, const void *at, int64_t n, size_t element, bool optional);

/* A pointer that must be null, since nobody described what it is for. Errors: UNUSED. */
void rapt_unused(rapt_memory *m, const char *name, const void *at, const char *why);

/* Bytes that a part of the workspace takes, so that the part behind it is aligned, too. */
static inline uint64_t rapt_aligned_bytes(uint64_t bytes) {
    return (bytes + RAPT_WORKSPACE_ALIGNMENT - 1) / RAPT_WORKSPACE_ALIGNMENT * RAPT_WORKSPACE_ALIGNMENT;
}

/* Memory that must be aligned as a workspace is. Errors: ALIGNMENT. */
void rapt_check_alignment(rapt_memory *m, const char *name, const void *at);

/* The workspace: `bytes` bytes are needed, `given` are there. Errors: WORKSPACE, ALIGNMENT. */
void rapt_writes_workspace(rapt_memory *m, const void *at, size_t given, size_t needed);

/* Region i may lie where region j lies, if both begin at the same byte. */
static inline void rapt_may_be(rapt_memory *m, int i, int j) {
    if (m->status == RAPT_OK && i != RAPT_NO_REGION) m->at[i].twin = j;
}

/* Region i is a tensor of these dimensions, in whose gaps others may lie. */
void rapt_spread(rapt_memory *m, int i, const rapt_layout *layout, const int64_t length[3], int64_t row);

/* A plan of that many bytes must not be written over the arrays whose addresses it keeps: starts, whose names have that owner,
 * and of rope, unless null, the frequencies. Errors: as above, OVERLAP. */
rapt_status rapt_check_kept(rapt_report *r, const void *plan, size_t bytes, const rapt_rope *rope, const char *owner,
                            int64_t batch, const int32_t *q_starts, const int32_t *k_starts);

/* The first thing that was wrong; else, whether what is written meets anything else. Errors: as above, OVERLAP. */
rapt_status rapt_check_memory(rapt_memory *m);

#endif
