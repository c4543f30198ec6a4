/* SPDX-License-Identifier: Apache-2.0 */
/* The lists of storage types, each of which has a file, type_SUFFIX.h. Those of any tensor: RAPT_TYPE(public name, suffix, bytes
 * of an element), with the words v_load_SUFFIX and v_store_SUFFIX. */
#ifndef RAPT_TYPES
#define RAPT_TYPES(RAPT_TYPE)                                                                                                    \
    RAPT_TYPE(RAPT_F32, f32, 4)                                                                                                  \
    RAPT_TYPE(RAPT_F16, f16, 2)                                                                                                  \
    RAPT_TYPE(RAPT_BF16, bf16, 2)

/* Those of K and V only: RAPT_TYPE(public name, suffix, channels of a group, bytes of a group). The word v_load_SUFFIX(row,
 * channel) loads RAPT_VL channels of a row from a multiple of RAPT_VL on, which lie in one group and nothing else of which is
 * read; store_group_SUFFIX(group, x) writes a group. */
#define RAPT_KV_TYPES(RAPT_TYPE)                                                                                                 \
    RAPT_TYPE(RAPT_F8_E4M3, f8_e4m3, 1, 1)                                                                                       \
    RAPT_TYPE(RAPT_F8_E5M2, f8_e5m2, 1, 1)                                                                                       \
    RAPT_TYPE(RAPT_INT8, int8, 1, 1)                                                                                             \
    RAPT_TYPE(RAPT_INT4, int4, 32, 18)                                                                                           \
    RAPT_TYPE(RAPT_INT4_MIN, int4_min, 32, 20)                                                                                   \
    RAPT_TYPE(RAPT_Q8_0, q8_0, 32, 34)                                                                                           \
    RAPT_TYPE(RAPT_Q4_0, q4_0, 32, 18)                                                                                           \
    RAPT_TYPE(RAPT_Q4_1, q4_1, 32, 20)                                                                                           \
    RAPT_TYPE(RAPT_Q5_0, q5_0, 32, 22)                                                                                           \
    RAPT_TYPE(RAPT_Q5_1, q5_1, 32, 24)
#endif
