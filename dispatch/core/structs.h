/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's structs, which begin with their size: that of this version of the library, an older or a newer one. */
#ifndef RAPT_STRUCTS_H
#define RAPT_STRUCTS_H

#include "core/report.h"

/* The upper bits of a size that an init function has set; neither zeros nor, most likely, garbage have them. */
#define RAPT_STRUCT_MARK UINT32_C(0x72610000)

/* The bytes of the struct in an older version, which had neither `field` nor anything after it. */
#define RAPT_BEFORE(type, field) offsetof(type, field)

/* Initialises the caller's struct of `size` bytes: copies the defaults, as much as fits, sets the rest to zeros, and sets its
 * size with the mark. bytes: the size of the defaults. */
void rapt_init_struct(void *to, size_t size, const void *defaults, size_t bytes);

/* Copies the caller's struct `from` to `to`, which has the `bytes` bytes of this version; fields that `from` is too small for get
 * their defaults. first: the bytes of the struct in its first version; what: its name in reports. Errors: NULL, STRUCT. */
rapt_status rapt_read_struct(rapt_report *r, const char *what, void *to, const void *defaults, size_t bytes, size_t first,
                             const void *from);

/* Copies results, all but their size, to the caller's struct, as much as its size has room for; fields of newer versions become
 * 0. The caller has set that size, without a mark. Errors: NULL, STRUCT. */
rapt_status rapt_write_struct(rapt_report *r, const char *what, void *to, const void *from, size_t bytes, size_t first);

/* Copies results, all but their size, to a caller's struct that rapt_read_struct has accepted, as much as it has room for. */
void rapt_fill_struct(void *to, const void *from, size_t bytes);

/* Checks the caller's memory for a plan of `needed` bytes. Errors: NULL, STRUCT, ALIGNMENT. */
rapt_status rapt_check_plan_memory(rapt_report *r, const void *plan, size_t bytes, size_t needed);

/* Checks that the caller's memory holds a plan, which begins with `made`. maker: the init function that writes that. Errors:
 * NULL, PLAN. */
rapt_status rapt_check_plan(rapt_report *r, const void *plan, uint64_t made, const char *maker);

#endif
