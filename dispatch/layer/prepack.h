/* SPDX-License-Identifier: Apache-2.0 */
/* Prepacked weights in a call of a linear layer. */
#ifndef RAPT_PREPACK_H
#define RAPT_PREPACK_H

#include "layer/linear_call.h"

/* Returns the bytes that prepacked weights of the plan take, their head included; SIZE_MAX if they would exceed the address
 * space. */
size_t rapt_prepacked_bytes(const full_linear *p);

/* Registers the prepacked weights of this type that a call reads; does nothing if packed is null. Errors: those of rapt_reads,
 * ALIGNMENT. */
void rapt_reads_prepacked(rapt_memory *m, const full_linear *p, const char *name, const void *packed, rapt_type type);

/* Checks that prepacked weights, unless they are null, were packed for this plan and type. The memory has been checked. Errors:
 * PREPACKED. */
rapt_status rapt_check_prepacked(rapt_report *r, const full_linear *p, const char *name, const void *packed, rapt_type type);

/* Returns the address of the weights, which follow the head; null if packed is null. */
const float *rapt_prepacked_weights(const void *packed);

#endif
