/* SPDX-License-Identifier: Apache-2.0 */
/* What the list of storage types (kernels/types.h) says of a type, beside the functions of rapt.h that tell it. */
#ifndef RAPT_TYPE_INFO_H
#define RAPT_TYPE_INFO_H

#include "rapt.h"

/* Returns the bytes of a row of any type, those of masks and tables included; -1 if there is no such row. */
int64_t rapt_bytes_of(rapt_type type, int64_t elements);

/* Returns the type's enumerator in rapt.h, such as "RAPT_F16"; null for a number that is no type. */
const char *rapt_type_enumerator(rapt_type type);

#endif
