/* SPDX-License-Identifier: Apache-2.0 */
/* The one list of storage types, in the order of rapt_type's numbers: CLASS(public name, suffix of its words, channels of a
 * group, bytes of a group). The class says which tensors may have the type:
 *
 *   ELEMENT   any tensor of numbers; a group is one element
 *   WEIGHT    K, V and the weights of linear layers
 *   CACHE     K and V
 *   MATRIX    the weights of linear layers
 *   MASK      masks, block masks and tables; the last group of a row may be partial
 *
 * and with the class which words type_SUFFIX.h defines. Those that read touch no byte outside of what they are said to read:
 *
 *   v_load_SUFFIX(from)            ELEMENT: loads RAPT_VL adjacent elements
 *   v_store_SUFFIX(to, x)          ELEMENT: stores them
 *   v_load_SUFFIX(row, channel)    WEIGHT, CACHE, MATRIX: loads RAPT_VL channels, which lie in one group, and reads that group
 *   store_group_SUFFIX(group, x)   WEIGHT, CACHE, only where RAPT_VL is 1: writes a group
 *   unpack_SUFFIX(block, to)       MATRIX: writes the integers that integer arithmetic multiplies, as bytes
 *   read_SUFFIX(c, rows, ...)      those of K, for keys in lanes (columns.h): reads step_bytes of each of RAPT_VL rows
 *   v_column_SUFFIX(c, ...)        those of K: element i of each of these rows, with the bits that v_load_SUFFIX has
 *
 * A group has 1, 16, 32 or 256 channels, since a vector of up to 16 lanes lies in one group. Its channels share one
 * scale; of 256, sub-blocks of 32 or 16 have integer scales, too. A second scale, of the whole tensor, is the caller's
 * (rapt_args.k_scales and v_scales with strides of 0). read_column and read_four_columns (columns.h) read 16 bytes of each row: a
 * read_SUFFIX whose group ends sooner copies it first.
 *
 * type_words.h includes the files of words. */
#ifndef RAPT_TYPES
#define RAPT_TYPES(ELEMENT, WEIGHT, CACHE, MASK, MATRIX)                                                                         \
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
    WEIGHT(RAPT_Q4_1, q4_1, 32, 20)                                                                                              \
    CACHE(RAPT_Q5_0, q5_0, 32, 22)                                                                                               \
    CACHE(RAPT_Q5_1, q5_1, 32, 24)                                                                                               \
    MASK(RAPT_BOOL, bool, 1, 1)                                                                                                  \
    MASK(RAPT_BIT, bit, 8, 1)                                                                                                    \
    MASK(RAPT_I32, i32, 1, 4)                                                                                                    \
    CACHE(RAPT_MXFP4, mxfp4, 32, 17)                                                                                             \
    CACHE(RAPT_MXFP8_E4M3, mxfp8_e4m3, 32, 33)                                                                                   \
    CACHE(RAPT_NVFP4, nvfp4, 16, 9)                                                                                              \
    MATRIX(RAPT_Q4_K, q4_k, 256, 144)                                                                                            \
    MATRIX(RAPT_Q6_K, q6_k, 256, 210)

/* The parts of the list, TYPE(...) for each type:
 *   RAPT_ELEMENT_TYPES  element types (ELEMENT), which any tensor of numbers may have
 *   RAPT_CACHE_TYPES    cache types (WEIGHT and CACHE), which K and V may have and other tensors not, except weights if WEIGHT
 *   RAPT_KV_TYPES       the types of K and V: both of these
 *   RAPT_MATRIX_TYPES   types of weights alone (MATRIX), whose blocks of 256 channels are unpacked before they are converted
 *   RAPT_WEIGHT_TYPES   the types of weights (ELEMENT, WEIGHT and MATRIX) */
#define RAPT_NO_TYPE(...)
#define RAPT_ELEMENT_TYPES(TYPE) RAPT_TYPES(TYPE, RAPT_NO_TYPE, RAPT_NO_TYPE, RAPT_NO_TYPE, RAPT_NO_TYPE)
#define RAPT_CACHE_TYPES(TYPE)   RAPT_TYPES(RAPT_NO_TYPE, TYPE, TYPE, RAPT_NO_TYPE, RAPT_NO_TYPE)
#define RAPT_KV_TYPES(TYPE)      RAPT_TYPES(TYPE, TYPE, TYPE, RAPT_NO_TYPE, RAPT_NO_TYPE)
#define RAPT_MATRIX_TYPES(TYPE)  RAPT_TYPES(RAPT_NO_TYPE, RAPT_NO_TYPE, RAPT_NO_TYPE, RAPT_NO_TYPE, TYPE)
#define RAPT_WEIGHT_TYPES(TYPE)  RAPT_TYPES(TYPE, TYPE, RAPT_NO_TYPE, RAPT_NO_TYPE, TYPE)

/* The types with groups of RAPT_GROUP channels whose elements are an f16 scale, with which a group begins, times an integer of at
 * most 8 bits: TYPE(public name, suffix, bytes of a group). They have one word more, unpack_SUFFIX(group, add, to), which writes
 * the integers as bytes, each plus `add` modulo 256. */
#define RAPT_INTEGER_GROUPS(TYPE)                                                                                                \
    TYPE(RAPT_INT4, int4, 18)                                                                                                    \
    TYPE(RAPT_Q8_0, q8_0, 34)                                                                                                    \
    TYPE(RAPT_Q4_0, q4_0, 18)                                                                                                    \
    TYPE(RAPT_Q5_0, q5_0, 22)

/* Likewise the types of weights with groups whose elements are such a product plus an f16 minimum, which follows the scale. */
#define RAPT_RANGED_GROUPS(TYPE) TYPE(RAPT_Q4_1, q4_1, 20)

/* A case label, for a switch over one of these parts. */
#define RAPT_TYPE_CASE(name, ...) case name:

#define RAPT_GROUP      32 /* channels of a group of these types */
#define RAPT_MOST_GROUP 32 /* the most channels of a group of any type of K and V */
#endif
