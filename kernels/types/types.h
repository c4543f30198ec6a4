/* SPDX-License-Identifier: Apache-2.0 */
/* The one list of storage types, in the order of rapt_type's numbers: CLASS(public name, name and suffix of its words, elements
 * of a group, bytes of a group). The class says which tensors may have the type, and so which words it has in type_SUFFIX.h:
 *
 * ELEMENT: any tensor of numbers. v_load_SUFFIX(from) and v_store_SUFFIX(to, x) are for RAPT_VL adjacent elements, and a group is
 * one element.
 *
 * WEIGHT: K, V and the weights of linear layers. CACHE: K and V. Of both, v_load_SUFFIX(row, channel) loads RAPT_VL channels of a
 * row from a multiple of RAPT_VL on, which lie in one group, and reads nothing beside that group; store_group_SUFFIX(group, x),
 * under RAPT_VL == 1, writes one. A group has 1 or 32 channels: of other sizes, stage_rows_as (stage.h) and the reference of the
 * tests know nothing.
 *
 * All these classes have two words for K with keys in lanes (columns.h): read_SUFFIX reads a step of RAPT_VL rows, which takes as
 * many bytes of each as step_bytes says and nothing beside them, and v_column_SUFFIX(columns, i) is element i of every one, the
 * same bits as v_load_SUFFIX has.
 *
 * MASK: masks, block masks and tables. There are no words, and the last group of a row need not be whole.
 *
 * type_words.h includes the files of words. */
#ifndef RAPT_TYPES
#define RAPT_TYPES(ELEMENT, WEIGHT, CACHE, MASK)                                                                                 \
    ELEMENT(RAPT_F32, f32, 1, 4)                                                                                                 \
    ELEMENT(RAPT_F16, f16, 1, 2)                                                                                                 \
    ELEMENT(RAPT_BF16, bf16, 1, 2)                                                                                               \
    CACHE(RAPT_F8_E4M3, f8_e4m3, 1, 1)                                                                                           \
    CACHE(RAPT_F8_E5M2, f8_e5m2, 1, 1)                                                                                           \
    WEIGHT(RAPT_INT8, int8, 1, 1)                                                                                                \
    CACHE(RAPT_INT4, int4, 32, 18)                                                                                               \
    CACHE(RAPT_INT4_MIN, int4_min, 32, 20)                                                                                       \
    WEIGHT(RAPT_Q8_0, q8_0, 32, 34)                                                                                              \
    WEIGHT(RAPT_Q4_0, q4_0, 32, 18)                                                                                              \
    CACHE(RAPT_Q4_1, q4_1, 32, 20)                                                                                               \
    CACHE(RAPT_Q5_0, q5_0, 32, 22)                                                                                               \
    CACHE(RAPT_Q5_1, q5_1, 32, 24)                                                                                               \
    MASK(RAPT_BOOL, bool, 1, 1)                                                                                                  \
    MASK(RAPT_BIT, bit, 8, 1)                                                                                                    \
    MASK(RAPT_I32, i32, 1, 4)                                                                                                    \
    CACHE(RAPT_MXFP4, mxfp4, 32, 17)                                                                                             \
    CACHE(RAPT_MXFP8_E4M3, mxfp8_e4m3, 32, 33)

/* The parts of the list, TYPE(...) for each: types of any tensor; of K and V but not of any tensor, so WEIGHT and CACHE; of K and
 * V, which is both; and of weights, ELEMENT and WEIGHT. */
#define RAPT_NO_TYPE(...)
#define RAPT_ELEMENT_TYPES(TYPE) RAPT_TYPES(TYPE, RAPT_NO_TYPE, RAPT_NO_TYPE, RAPT_NO_TYPE)
#define RAPT_CACHE_TYPES(TYPE)   RAPT_TYPES(RAPT_NO_TYPE, TYPE, TYPE, RAPT_NO_TYPE)
#define RAPT_KV_TYPES(TYPE)      RAPT_TYPES(TYPE, TYPE, TYPE, RAPT_NO_TYPE)
#define RAPT_WEIGHT_TYPES(TYPE)  RAPT_TYPES(TYPE, TYPE, RAPT_NO_TYPE, RAPT_NO_TYPE)

/* The types of groups whose elements are a scale of f16, with which a group begins, times an integer of at most 8 bits:
 * TYPE(public name, suffix, bytes of a group). They have one word more, unpack_SUFFIX(group, add, to), which writes the 32
 * integers, add added to them, as bytes.
 */
#define RAPT_INTEGER_GROUPS(TYPE)                                                                                                \
    TYPE(RAPT_INT4, int4, 18)                                                                                                    \
    TYPE(RAPT_Q8_0, q8_0, 34)                                                                                                    \
    TYPE(RAPT_Q4_0, q4_0, 18)                                                                                                    \
    TYPE(RAPT_Q5_0, q5_0, 22)

/* Gives the case labels of a switch over one of these parts. */
#define RAPT_TYPE_CASE(name, ...) case name:

#define RAPT_GROUP 32 /* channels of a group */
#endif
