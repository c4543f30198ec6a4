/* SPDX-License-Identifier: Apache-2.0 */
/* The types of K and V, for the tests that go through all of them or draw one: those of kernels/types/types.h, in its order. */
#ifndef RAPT_TESTS_KV_TYPES_H
#define RAPT_TESTS_KV_TYPES_H

#include "rapt.h"
#include "types/types.h"

#define TYPE_NAMED(type, ...) type,
static const rapt_type kv_types[] = {RAPT_KV_TYPES(TYPE_NAMED)};
#undef TYPE_NAMED

enum {
    KV_TYPES = sizeof kv_types / sizeof *kv_types,
    KV_TYPES_OF_0_1 = 13, /* The first of them, which recorded hashes are of: those stay as they are when a type is added. */
};

#endif
