/* SPDX-License-Identifier: Apache-2.0 */
/* Storage types: their names, which tensors may have them, and the bytes of their rows. */
#include "types/types.h"

#include <string.h>

#include "core/sizes.h"
#include "core/type_info.h"

/* A line of the list of types. */
typedef struct type_info {
    const char *name, *enumerator;
    rapt_type_class class_of;
    int64_t group, bytes; /* elements of a group, and its bytes */
} type_info;

/* These macros, which take the suffix from the list, also make it a string: if they passed it on to another macro first, `bool`,
 * which stdbool.h defines, would be expanded. */
#define RAPT_INFO(kind, type, name, enumerator, group, bytes) [type] = {name, enumerator, kind, group, bytes},
#define RAPT_ELEMENT(type, suffix, group, bytes)              RAPT_INFO(RAPT_CLASS_ELEMENT, type, #suffix, #type, group, bytes)
#define RAPT_WEIGHT(type, suffix, group, bytes)               RAPT_INFO(RAPT_CLASS_WEIGHT, type, #suffix, #type, group, bytes)
#define RAPT_CACHE(type, suffix, group, bytes)                RAPT_INFO(RAPT_CLASS_CACHE, type, #suffix, #type, group, bytes)
#define RAPT_MASK(type, suffix, group, bytes)                 RAPT_INFO(RAPT_CLASS_MASK, type, #suffix, #type, group, bytes)
#define RAPT_MATRIX(type, suffix, group, bytes)               RAPT_INFO(RAPT_CLASS_MATRIX, type, #suffix, #type, group, bytes)
static const type_info infos[RAPT_TYPE_LIMIT] = {RAPT_TYPES(RAPT_ELEMENT, RAPT_WEIGHT, RAPT_CACHE, RAPT_MASK, RAPT_MATRIX)};
#undef RAPT_INFO
#undef RAPT_ELEMENT
#undef RAPT_WEIGHT
#undef RAPT_CACHE
#undef RAPT_MASK
#undef RAPT_MATRIX

/* Returns the line of a type; for a number that is no type, a line of class RAPT_CLASS_NONE in which all else is 0. */
static const type_info *info_of(rapt_type type) { return &infos[(unsigned)type < RAPT_TYPE_LIMIT ? (unsigned)type : RAPT_NONE]; }

const char *rapt_type_name(rapt_type type) { return type == RAPT_NONE ? "none" : info_of(type)->name; }

const char *rapt_type_enumerator(rapt_type type) { return type == RAPT_NONE ? "RAPT_NONE" : info_of(type)->enumerator; }

rapt_type rapt_type_of_name(const char *name) {
    for (int type = 0; type < RAPT_TYPE_LIMIT && name; type++)
        if (infos[type].name && strcmp(infos[type].name, name) == 0) return (rapt_type)type;
    return RAPT_NONE;
}

rapt_type_class rapt_type_class_of(rapt_type type) { return info_of(type)->class_of; }

int64_t rapt_group_of(rapt_type type) { return info_of(type)->group; }

int64_t rapt_bytes_of(rapt_type type, int64_t elements) {
    const type_info *info = info_of(type);
    if (info->class_of == RAPT_CLASS_NONE || (info->class_of != RAPT_CLASS_MASK && elements % info->group)) return -1;
    return rapt_product(elements < 0 ? -1 : rapt_divide_up(elements, info->group), info->bytes);
}

int64_t rapt_row_bytes(rapt_type type, int64_t channels) {
    return rapt_type_class_of(type) == RAPT_CLASS_MASK ? -1 : rapt_bytes_of(type, channels);
}
