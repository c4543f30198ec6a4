/* SPDX-License-Identifier: Apache-2.0 */
/* Properties of storage types that only dispatch/ needs; the functions for all others are in rapt.h. kernels/types/types.h has
 * the list. */
#ifndef RAPT_TYPE_INFO_H
#define RAPT_TYPE_INFO_H

#include "rapt.h"

/* Returns the elements of a group; 0 for a number that is no type. */
int64_t rapt_group_of(rapt_type type);

/* Returns the bytes of a row of any type, those of masks and tables included; -1 if there is no such row. */
int64_t rapt_bytes_of(rapt_type type, int64_t elements);

/* Returns the type's enumerator in rapt.h, such as "RAPT_F16"; null for a number that is no type. */
const char *rapt_type_enumerator(rapt_type type);

#endif
