/* SPDX-License-Identifier: Apache-2.0 */
/* Properties of storage types that only dispatch/ needs; rapt.h declares those that callers need, too (rapt_row_bytes,
 * rapt_type_name, ...). kernels/types/types.h has the list of types. */
#ifndef RAPT_TYPE_INFO_H
#define RAPT_TYPE_INFO_H

#include "rapt.h"

/* Returns how many elements the type stores as one group, 1 if each by itself; 0 for a number that is no type. */
int64_t rapt_group_of(rapt_type type);

/* Returns the bytes of a row of `elements` elements in any type, those of masks and tables included; -1 if there is no such row.
 */
int64_t rapt_bytes_of(rapt_type type, int64_t elements);

/* Returns the type's enumerator in rapt.h, such as "RAPT_F16"; null for a number that is no type. */
const char *rapt_type_enumerator(rapt_type type);

#endif
