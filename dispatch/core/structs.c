/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's structs, of this version of the library, an older or a newer one. */
#include "core/structs.h"

#include <string.h>

enum { MOST_BYTES = 0xffff }; /* of a struct; the bits of its size above that hold the mark */

void rapt_init_struct(void *to, size_t size, const void *defaults, size_t bytes) {
    size_t mark = size <= MOST_BYTES ? RAPT_STRUCT_MARK | size : 0;
    if (!to || size < sizeof mark) return;
    if (mark) {
        memcpy(to, defaults, size < bytes ? size : bytes);
        if (size > bytes) memset((char *)to + bytes, 0, size - bytes);
    }
    memcpy(to, &mark, sizeof mark);
}

rapt_status rapt_read_struct(rapt_report *r, const char *what, void *to, const void *defaults, size_t bytes, size_t first,
                             const void *from) {
    size_t size;
    if (!from) return rapt_refuse_null(r, what, "there is no such struct");
    memcpy(&size, from, sizeof size);
    if ((size & ~(size_t)MOST_BYTES) != RAPT_STRUCT_MARK)
        return rapt_refuse(r, RAPT_ERR_STRUCT, "%s.size = %zu: was not set by its init function", what, size);
    size &= MOST_BYTES;
    if (size < first)
        return rapt_refuse(r, RAPT_ERR_STRUCT, "%s.size = %zu: no version had less than %zu bytes", what, size, first);
    for (size_t i = bytes; i < size; i++)
        if (((const unsigned char *)from)[i])
            return rapt_refuse(r, RAPT_ERR_STRUCT, "%s.size = %zu: byte %zu belongs to a field that version %s has not", what,
                               size, i, rapt_version());
    if (size < bytes) memcpy(to, defaults, bytes);
    memcpy(to, from, size < bytes ? size : bytes);
    size = RAPT_STRUCT_MARK | bytes; /* the copy is of this version, and may itself be read by this function */
    memcpy(to, &size, sizeof size);
    return RAPT_OK;
}

rapt_status rapt_write_struct(rapt_report *r, const char *what, void *to, const void *from, size_t bytes, size_t first) {
    size_t size;
    if (!to) return rapt_refuse_null(r, what, "there is no such struct");
    memcpy(&size, to, sizeof size);
    if (size < first || size > MOST_BYTES)
        return rapt_refuse(r, RAPT_ERR_STRUCT, "%s.size = %zu: must be the sizeof of the struct, %zu to %d", what, size, first,
                           MOST_BYTES);
    if (size > bytes) memset((char *)to + bytes, 0, size - bytes);
    memcpy((char *)to + sizeof size, (const char *)from + sizeof size, (size < bytes ? size : bytes) - sizeof size);
    return RAPT_OK;
}

void rapt_fill_struct(void *to, const void *from, size_t bytes) {
    size_t size;
    memcpy(&size, to, sizeof size);
    size &= MOST_BYTES;
    memcpy((char *)to + sizeof size, (const char *)from + sizeof size, (size < bytes ? size : bytes) - sizeof size);
}

rapt_status rapt_check_plan_memory(rapt_report *r, const void *plan, size_t bytes, size_t needed) {
    if (!plan) return rapt_refuse_null(r, "plan", "there is no memory for the plan");
    if (bytes < needed) return rapt_refuse(r, RAPT_ERR_STRUCT, "bytes = %zu: a plan takes at least %zu", bytes, needed);
    if ((uintptr_t)plan % _Alignof(uint64_t))
        return rapt_refuse(r, RAPT_ERR_ALIGNMENT, "plan = %p: not aligned to %d bytes", plan, (int)_Alignof(uint64_t));
    return RAPT_OK;
}

rapt_status rapt_check_plan(rapt_report *r, const void *plan, uint64_t made, const char *maker) {
    if (!plan) return rapt_refuse_null(r, "plan", "there is no plan");
    if ((uintptr_t)plan % _Alignof(uint64_t) || *(const uint64_t *)plan != made)
        return rapt_refuse(r, RAPT_ERR_PLAN, "plan = %p: was not made by %s of this version", plan, maker);
    return RAPT_OK;
}
