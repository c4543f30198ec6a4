/* SPDX-License-Identifier: Apache-2.0 */
/* The list of storage types: RAPT_TYPE(public name, suffix, bytes of an element). The words of each, v_load_SUFFIX and
 * v_store_SUFFIX, stand in type_SUFFIX.h. */
#ifndef RAPT_TYPES
#define RAPT_TYPES(RAPT_TYPE)                                                                                                    \
    RAPT_TYPE(RAPT_F32, f32, 4)                                                                                                  \
    RAPT_TYPE(RAPT_F16, f16, 2)                                                                                                  \
    RAPT_TYPE(RAPT_BF16, bf16, 2)
#endif
