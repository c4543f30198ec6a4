/* SPDX-License-Identifier: Apache-2.0 */
/* Storage types: what they are called, which tensors may have them, and how large rows of them are. */
#include "types.h"

#include <string.h>

#include "layout.h"

/* What the list says of a type. */
typedef struct type_info {
    const char *name, *enumerator;
    rapt_type_class class_of;
    int64_t group, bytes; /* elements of a group, and its bytes */
} type_info;

/* Names are made strings where they are first parameters, for stdbool.h has a macro bool. */
#define RAPT_INFO(class_of, type, name, enumerator, group, bytes) [type] = {name, enumerator, class_of, group, bytes},
#define RAPT_ELEMENT(type, suffix, group, bytes)                  RAPT_INFO(RAPT_CLASS_ELEMENT, type, #suffix, #type, group, bytes)
#define RAPT_WEIGHT(type, suffix, group, bytes)                   RAPT_INFO(RAPT_CLASS_WEIGHT, type, #suffix, #type, group, bytes)
#define RAPT_CACHE(type, suffix, group, bytes)                    RAPT_INFO(RAPT_CLASS_CACHE, type, #suffix, #type, group, bytes)
#define RAPT_MASK(type, suffix, group, bytes)                     RAPT_INFO(RAPT_CLASS_MASK, type, #suffix, #type, group, bytes)
static const type_info infos[RAPT_TYPE_LIMIT] = {RAPT_TYPES(RAPT_ELEMENT, RAPT_WEIGHT, RAPT_CACHE, RAPT_MASK)};
#undef RAPT_INFO
#undef RAPT_ELEMENT
#undef RAPT_WEIGHT
#undef RAPT_CACHE
#undef RAPT_MASK

/* The line of a type; one of class RAPT_CLASS_NONE, and all else 0, for a number that is no type. */
static const type_info *info_of(rapt_type type) { return &infos[(unsigned)type < RAPT_TYPE_LIMIT ? (unsigned)type : RAPT_NONE]; }

const char *rapt_type_name(rapt_type type) { return type == RAPT_NONE ? "none" : info_of(type)->name; }

const char *rapt_type_enumerator(rapt_type type) { return type == RAPT_NONE ? "RAPT_NONE" : info_of(type)->enumerator; }

rapt_type rapt_type_of_name(const char *name) {
    for (int type = 0; type < RAPT_TYPE_LIMIT && name; type++)
        if (infos[type].name && strcmp(infos[type].name, name) == 0) return (rapt_type)type;
    return RAPT_NONE;
}

rapt_type_class rapt_type_class_of(rapt_type type) { return info_of(type)->class_of; }

int64_t rapt_bytes_of(rapt_type type, int64_t elements) {
    const type_info *info = info_of(type);
    if (info->class_of == RAPT_CLASS_NONE || (info->class_of != RAPT_CLASS_MASK && elements % info->group)) return -1;
    return rapt_product(elements < 0 ? -1 : rapt_divide_up(elements, info->group), info->bytes);
}

int64_t rapt_row_bytes(rapt_type type, int64_t channels) {
    return rapt_type_class_of(type) == RAPT_CLASS_MASK ? -1 : rapt_bytes_of(type, channels);
}
