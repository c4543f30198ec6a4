/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that a call reads and writes: whether it is there, and whether what is written overlaps anything. */
#include "core/memory.h"

/* Registers a region, unless something was refused before. Refuses a null pointer, and one whose bytes would wrap around the
 * address space. */
static int register_region(rapt_memory *m, const char *name, const void *at, uint64_t bytes, bool written) {
    rapt_report *r = m->report;
    if (m->status != RAPT_OK || bytes == 0) return RAPT_NO_REGION;
    if (!at)
        m->status = rapt_refuse(r, RAPT_ERR_NULL, "%s = null: %" PRId64 " bytes are %s", name, (int64_t)bytes,
                                written ? "written there" : "read from there");
    else if (bytes > UINTPTR_MAX - (uintptr_t)at)
        m->status =
            rapt_refuse(r, RAPT_ERR_STRIDE, "%s = %p: its %" PRId64 " bytes exceed the address space", name, at, (int64_t)bytes);
    rapt_region *region = &m->at[m->n];
    region->owner = r->owner;
    region->name = name;
    region->first = (uintptr_t)at;
    region->bytes = bytes;
    region->written = written;
    region->spread = false;
    region->twin = RAPT_NO_REGION;
    return m->n++;
}

int rapt_reads(rapt_memory *m, const char *name, const void *at, uint64_t bytes) {
    return register_region(m, name, at, bytes, false);
}
int rapt_writes(rapt_memory *m, const char *name, const void *at, uint64_t bytes) {
    return register_region(m, name, at, bytes, true);
}

/* Returns the alignment of elements of a size: the largest power of two that divides it, but at most that of an int64_t. So
 * structs are included, and 32-bit x86, where an int64_t is aligned to 4 bytes. */
static size_t alignment_of(size_t element) {
    const size_t power = element & (~element + 1);
    return power < _Alignof(int64_t) ? power : _Alignof(int64_t);
}

/* Registers an array, which must be aligned. */
static int register_array(rapt_memory *m, const char *name, const void *at, int64_t n, size_t element, bool optional,
                          bool written) {
    if (!at && optional) return RAPT_NO_REGION;
    if (m->status == RAPT_OK && (uintptr_t)at % alignment_of(element))
        m->status = rapt_refuse(m->report, RAPT_ERR_ALIGNMENT, "%s = %p: not aligned to its elements of %d bytes", name, at,
                                (int)element);
    if (m->status == RAPT_OK && n > PTRDIFF_MAX / (int64_t)element)
        m->status =
            rapt_refuse(m->report, RAPT_ERR_STRIDE, "%s = %p: its %" PRId64 " elements exceed the address space", name, at, n);
    return register_region(m, name, at, (uint64_t)n * element, written);
}

int rapt_reads_array(rapt_memory *m, const char *name, const void *at, int64_t n, size_t element, bool optional) {
    return register_array(m, name, at, n, element, optional, false);
}
int rapt_writes_array(rapt_memory *m, const char *name, const void *at, int64_t n, size_t element, bool optional) {
    return register_array(m, name, at, n, element, optional, true);
}

void rapt_unused(rapt_memory *m, const char *name, const void *at, const char *why) {
    if (at && m->status == RAPT_OK) m->status = rapt_refuse(m->report, RAPT_ERR_UNUSED, "%s = %p: %s", name, at, why);
}

static int register_if(rapt_memory *m, bool there, const char *name, const void *at, uint64_t bytes, const char *why,
                       bool written) {
    if (!there) rapt_unused(m, name, at, why);
    return there ? register_region(m, name, at, bytes, written) : RAPT_NO_REGION;
}

int rapt_reads_if(rapt_memory *m, bool there, const char *name, const void *at, uint64_t bytes, const char *why) {
    return register_if(m, there, name, at, bytes, why, false);
}
int rapt_writes_if(rapt_memory *m, bool there, const char *name, const void *at, uint64_t bytes, const char *why) {
    return register_if(m, there, name, at, bytes, why, true);
}

void rapt_check_alignment(rapt_memory *m, const char *name, const void *at) {
    if (m->status == RAPT_OK && (uintptr_t)at % RAPT_WORKSPACE_ALIGNMENT)
        m->status = rapt_refuse(m->report, RAPT_ERR_ALIGNMENT, "%s = %p: not aligned to %d bytes", name, at,
                                (int)RAPT_WORKSPACE_ALIGNMENT);
}

void rapt_writes_workspace(rapt_memory *m, const void *at, size_t given, size_t needed) {
    if (m->status != RAPT_OK || needed == 0) return;
    const char *owner = m->report->owner;
    m->report->owner = ""; /* the workspace belongs to the whole call, not to a part of it */
    if (!at) m->status = rapt_refuse(m->report, RAPT_ERR_WORKSPACE, "workspace = null: %zu bytes are needed", needed);
    else if (given < needed)
        m->status = rapt_refuse(m->report, RAPT_ERR_WORKSPACE, "workspace_bytes = %zu: %zu are needed", given, needed);
    rapt_check_alignment(m, "workspace", at);
    register_region(m, "workspace", at, needed, true);
    m->report->owner = owner;
}

void rapt_spread(rapt_memory *m, int i, const rapt_layout *layout, const int64_t length[3], int64_t row) {
    if (m->status != RAPT_OK || i == RAPT_NO_REGION) return;
    rapt_rows_in_memory *rows = &m->at[i].rows;
    int64_t stride[3] = {layout->batch_stride, layout->head_stride, layout->token_stride};
    m->at[i].spread = true;
    rows->row = row;
    for (int d = 0; d < 3; d++)
        if (length[d] <= 1) stride[d] = 0; /* not used, and may be garbage */
    for (int d = 0; d < 3; d++) {
        int place = 0; /* equal strides stay in the order of the dimensions */
        for (int e = 0; e < 3; e++) place += stride[e] > stride[d] || (stride[e] == stride[d] && e < d);
        rows->length[place] = length[d];
        rows->stride[place] = stride[d];
    }
}

/* True if a row of a overlaps a row of b, where b begins `distance` bytes after a, and steps along the dimensions before i are
 * already counted in distance. All inner dimensions together span less than the stride of dimension i, so only three of its steps
 * can bring the rows together. */
/* NOLINTNEXTLINE(misc-no-recursion): of depth 3, one for each dimension */
static bool rows_meet(const rapt_rows_in_memory *a, const rapt_rows_in_memory *b, int64_t distance, int i) {
    if (i == 3) return distance < a->row && -distance < b->row;
    if (a->length[i] == 1) return rows_meet(a, b, distance, i + 1);
    int64_t steps = distance / a->stride[i];
    for (int64_t step = steps - 1; step <= steps + 1; step++)
        if (step > -a->length[i] && step < a->length[i] && rows_meet(a, b, distance - step * a->stride[i], i + 1)) return true;
    return false;
}

/* True if two regions share a byte that both use. */
static bool meet(const rapt_region *a, const rapt_region *b) {
    if (!a->bytes || !b->bytes || (a->first < b->first ? b->first - a->first >= a->bytes : a->first - b->first >= b->bytes))
        return false;
    if (!a->spread || !b->spread) return true;
    for (int i = 0; i < 3; i++)
        if (a->rows.length[i] != b->rows.length[i] || a->rows.stride[i] != b->rows.stride[i]) return true;
    return rows_meet(&a->rows, &b->rows, (int64_t)((uint64_t)b->first - a->first), 0);
}

rapt_status rapt_check_memory(rapt_memory *m) {
    for (int i = 0; i < m->n && m->status == RAPT_OK; i++)
        for (int j = 0; j < m->n && m->at[i].written; j++) {
            const rapt_region *a = &m->at[i], *b = &m->at[j];
            if (j == i || (b->written && j > i) || !meet(a, b)) continue;
            if ((a->twin == j || b->twin == i) && a->first == b->first) continue;
            m->report->owner = a->owner;
            return rapt_refuse(m->report, RAPT_ERR_OVERLAP, "%s = %p: its %" PRId64 " bytes meet the %" PRId64 " of %s%s = %p",
                               a->name, (const void *)a->first, (int64_t)a->bytes, (int64_t)b->bytes, b->owner, b->name,
                               (const void *)b->first);
        }
    return m->status;
}

rapt_status rapt_check_kept(rapt_report *r, const void *plan, size_t bytes, const rapt_rope *rope, const char *owner,
                            int64_t batch, const int32_t *q_starts, const int32_t *k_starts) {
    const char *before = r->owner;
    rapt_memory m;
    if (!q_starts && !k_starts && !(rope && rope->frequencies)) return RAPT_OK;
    rapt_memory_begin(&m, r);
    rapt_writes(&m, "plan", plan, bytes);
    if (rope) rapt_reads_array(&m, "rope.frequencies", rope->frequencies, rope->channels / 2, sizeof(double), true);
    r->owner = owner;
    rapt_reads_array(&m, "q_starts", q_starts, batch + 1, sizeof(int32_t), true);
    rapt_reads_array(&m, "k_starts", k_starts, batch + 1, sizeof(int32_t), true);
    r->owner = before;
    return rapt_check_memory(&m);
}
