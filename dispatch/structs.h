/* SPDX-License-Identifier: Apache-2.0 */
/* Structs of the caller's that begin with their size, of this version, an older or a newer one. */
#ifndef RAPT_STRUCTS_H
#define RAPT_STRUCTS_H

#include "report.h"

/* What size holds besides: the struct passed through its init function. Garbage and zeros do not have it. */
#define RAPT_STRUCT_MARK UINT32_C(0x72610000)

/* The bytes up to a field, which is the first that an older version has not. */
#define RAPT_BEFORE(type, field) offsetof(type, field)

/* Copies of the defaults as much as fits into the caller's struct, fills up a larger one with zeros, and marks it. */
void rapt_init_struct(void *to, size_t size, const void *defaults, size_t bytes);

/* Copies a caller's struct over the defaults in to, which is of this version: bytes long, first of which the first version had.
 * what is its name, for the report. Errors: NULL, STRUCT. */
rapt_status rapt_read_struct(rapt_report *r, const char *what, void *to, const void *defaults, size_t bytes, size_t first,
                             const void *from);

/* Copies to a caller's struct for results as much as it has room for; its size is not marked. Errors: NULL, STRUCT. */
rapt_status rapt_write_struct(rapt_report *r, const char *what, void *to, const void *from, size_t bytes, size_t first);

/* Copies to a struct of the caller's that was read as above as much as it has room for, but for its size. */
void rapt_fill_struct(void *to, const void *from, size_t bytes);

/* Memory of the caller's for a plan. Errors: NULL, STRUCT, ALIGNMENT. */
rapt_status rapt_check_plan_memory(rapt_report *r, const void *plan, size_t bytes, size_t needed);

/* A plan of the caller's, which begins with what its maker put there. Errors: NULL, PLAN. */
rapt_status rapt_check_plan(rapt_report *r, const void *plan, uint64_t made, const char *maker);

#endif
