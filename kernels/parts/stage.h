/* SPDX-License-Identifier: Apache-2.0 */
/* Staging: converts rows of a tensor of any storage type to f32 in scratch, and f32 in scratch to rows of an output. The code is
 * written once over the words of a type, and instantiated for each type of the list. Nothing beyond a row's channels is read or
 * written. */
#include "types/type_words.h"

/* A word of each element type: stores a vector. */
typedef void store_word(void *to, vf x);

/* Loads RAPT_VL channels of a row, from number `channel` on. */
typedef vf load_channels(const char *row, int channel);

/* The load_channels of every type: load_f32, load_f16, load_q4_0 and so on. They are passed as constant arguments. They are not
 * RAPT_INLINE because gcc at -Og learns too late which function is called, and refuses. */
#define RAPT_TYPE(name, suffix, group, bytes)                                                                                    \
    static inline vf load_##suffix(const char *row, int channel) { return v_load_##suffix(row + (size_t)channel * bytes); }
RAPT_ELEMENT_TYPES(RAPT_TYPE)
#undef RAPT_TYPE
#define RAPT_TYPE(name, suffix, group, bytes)                                                                                    \
    static inline vf load_##suffix(const char *row, int channel) { return v_load_##suffix(row, channel); }
RAPT_CACHE_TYPES(RAPT_TYPE)
#undef RAPT_TYPE
/* Those of unpacked_blocks. */
#define RAPT_TYPE(name, suffix, group, bytes)                                                                                    \
    static inline vf load_##suffix(const char *from, int channel) {                                                              \
        return v_load_##suffix((const unpacked_blocks *)(const void *)from, channel);                                            \
    }
RAPT_MATRIX_TYPES(RAPT_TYPE)
#undef RAPT_TYPE

/* Unpacks blocks of a row: unpack_blocks_q4_k and unpack_blocks_q6_k. */
typedef void unpack_blocks(const char *row, int channels, unpacked_blocks *to);

/* True if every tensor can have this type; false if only K, V and weights can. */
static inline bool of_elements(rapt_type type) {
    switch (type) {
        RAPT_ELEMENT_TYPES(RAPT_TYPE_CASE)
        return true;
    default:
        return false;
    }
}

/* Returns the last n lanes of x as its first ones, and 0 in the others. n is at least 1. Replaceable. */
static inline vf v_last_lanes(vf x, int n);
#ifndef v_last_lanes
static inline vf v_last_lanes(vf x, int n) {
    float lanes[2 * RAPT_VL];
    v_store(lanes, x);
    v_store(lanes + RAPT_VL, v_set1(0.0f));
    return v_load(lanes + RAPT_VL - n);
}
#endif

/* Loads n channels at `from`, at most RAPT_VL, and 0 for the rest of the vector. bytes: of a channel. */
static RAPT_INLINE vf load_part(load_channels *load, size_t bytes, const char *from, int n) {
    char part[RAPT_VL * 4];
    v_store(part, v_load_part(from, (size_t)n * bytes));
    return load(part, 0);
}

/* Loads channels [at, at + n) of a row, n at most RAPT_VL, and 0 for the rest of the vector. If as many channels come before
 * their end as a vector has, that vector is loaded, since load_part goes by way of memory. */
static RAPT_INLINE vf load_last(load_channels *load, size_t bytes, const char *row, int at, int n) {
    if (RAPT_VL > 1 && at + n < RAPT_VL) return load_part(load, bytes, row + (size_t)at * bytes, n);
    return v_last_lanes(load(row, at + n - RAPT_VL), n);
}

/* Writes a square, transposed: to[i][r] = rows[r][channel + i] for i and r below RAPT_VL. ld: floats from to[i] to to[i + 1].
 * Replaceable. */
static RAPT_INLINE void store_transposed(load_channels *load, const char *const *rows, int channel, float *to, size_t ld);
#ifndef store_transposed
static RAPT_INLINE void store_transposed(load_channels *load, const char *const *rows, int channel, float *to, size_t ld) {
    vf square[RAPT_VL];
    UNROLLED(r, RAPT_VL) square[r] = load(rows[r], channel);
    v_transpose(square);
    UNROLLED(i, RAPT_VL) v_store(to + (size_t)i * ld, square[i]);
}
#endif

/* Stages rows of one type, as stage_rows does. Rows of types without groups may end with part of a vector. Groups are read whole,
 * so that what their channels share is read once. Instances for groups stay out of line: when they are inlined, gcc 12 may put
 * `values` on the stack where an array of the caller is still in use. */
static RAPT_INLINE void stage_rows_as(load_channels *load, const int group, size_t bytes, float *to, size_t ld,
                                      const char *const *rows, int n, int first, int channels) {
    int whole = channels - channels % RAPT_VL;
    for (int r = 0; r < n; r++, to += ld) {
        int i = 0;
        if (RAPT_VL > 1 && group > 1 && first % group == 0)
            for (; i + group <= channels; i += group) {
                const char *from = rows[r] + (size_t)(first + i) / (size_t)group * bytes;
                vf values[RAPT_MOST_GROUP / RAPT_VL];
                UNROLLED(j, group / RAPT_VL) values[j] = load(from, j * RAPT_VL);
                UNROLLED(j, group / RAPT_VL) v_store(to + i + j * RAPT_VL, values[j]);
            }
        for (; i < whole; i += RAPT_VL) v_store(to + i, load(rows[r], first + i));
        if (group == 1 && whole < channels)
            v_store(to + whole, load_last(load, bytes, rows[r] + (size_t)first * bytes, whole, channels - whole));
    }
}

/* Stages rows of one type of RAPT_MATRIX_TYPES, as stage_rows does. */
static RAPT_INLINE void stage_blocks_as(unpack_blocks *unpack, load_channels *load, size_t bytes, float *to, size_t ld,
                                        const char *const *rows, int n, int channels) {
    unpacked_blocks part;
    for (int r = 0; r < n; r++, to += ld)
        for (int i = 0; i < channels; i += RAPT_LINEAR_PART) {
            const int end = rapt_min(RAPT_LINEAR_PART, channels - i);
            unpack(rows[r] + (size_t)(i / MATRIX_BLOCK) * bytes, end, &part);
            for (int j = 0; j < end; j += RAPT_PARTIAL_SUMS)
                UNROLLED(v, RAPT_PARTIAL_SUMS / RAPT_VL)
                    v_store(to + i + j + v * RAPT_VL, load((const char *)&part, j + v * RAPT_VL));
        }
}

/* Stages rows of one type transposed, as stage_columns does. */
static RAPT_INLINE void stage_columns_as(load_channels *load, size_t bytes, float *to, size_t ld, const char *const *rows, int n,
                                         int first, int channels) {
    int whole = channels - channels % RAPT_VL;
    for (int r = 0; r < n; r += RAPT_VL) {
        for (int i = 0; i < whole; i += RAPT_VL) store_transposed(load, rows + r, first + i, to + (size_t)i * ld + r, ld);
        if (RAPT_VL > 1 && whole < channels && channels >= RAPT_VL) {
            float square[RAPT_VL * RAPT_VL]; /* of the last RAPT_VL channels, of which some are there already */
            store_transposed(load, rows + r, first + channels - RAPT_VL, square, RAPT_VL);
            for (int i = whole; i < channels; i++)
                v_store(to + (size_t)i * ld + r, v_load(square + (i - (channels - RAPT_VL)) * RAPT_VL));
            continue;
        }
        for (int j = 0; j < RAPT_VL && whole < channels; j++) {
            float part[RAPT_VL];
            v_store(part, load_part(load, bytes, rows[r + j] + (size_t)(first + whole) * bytes, channels - whole));
            for (int i = whole; i < channels; i++) to[(size_t)i * ld + r + j] = part[i - whole];
        }
    }
}

/* Stores a row of one type, as store_row does. */
static RAPT_INLINE void store_row_as(store_word *store, size_t bytes, char *to, const float *from, int channels) {
    int whole = channels - channels % RAPT_VL;
    for (int i = 0; i < whole; i += RAPT_VL) store(to + (size_t)i * bytes, v_load(from + i));
    if (whole < channels) {
        char part[RAPT_VL * 4];
        store(part, v_load(from + whole));
        memcpy(to + (size_t)whole * bytes, part, (size_t)(channels - whole) * bytes);
    }
}

/* Defines stage_rows_SUFFIX, stage_columns_SUFFIX and store_row_SUFFIX for each element type. */
#define RAPT_TYPE(name, suffix, group, bytes)                                                                                    \
    static void stage_rows_##suffix(float *to, size_t ld, const char *const *rows, int n, int first, int channels) {             \
        stage_rows_as(load_##suffix, group, bytes, to, ld, rows, n, first, channels);                                            \
    }                                                                                                                            \
    static void stage_columns_##suffix(float *to, size_t ld, const char *const *rows, int n, int first, int channels) {          \
        stage_columns_as(load_##suffix, bytes, to, ld, rows, n, first, channels);                                                \
    }                                                                                                                            \
    static void store_row_##suffix(char *to, const float *from, int channels) {                                                  \
        store_row_as(v_store_##suffix, bytes, to, from, channels);                                                               \
    }
RAPT_ELEMENT_TYPES(RAPT_TYPE)
#undef RAPT_TYPE

/* Defines stage_rows_SUFFIX for each type of RAPT_CACHE_TYPES and RAPT_MATRIX_TYPES. */
#define RAPT_TYPE(name, suffix, group, bytes)                                                                                    \
    static RAPT_NOINLINE void stage_rows_##suffix(float *to, size_t ld, const char *const *rows, int n, int first,               \
                                                  int channels) {                                                                \
        stage_rows_as(load_##suffix, group, bytes, to, ld, rows, n, first, channels);                                            \
    }
RAPT_CACHE_TYPES(RAPT_TYPE)
#undef RAPT_TYPE
#define RAPT_TYPE(name, suffix, group, bytes)                                                                                    \
    static RAPT_NOINLINE void stage_rows_##suffix(float *to, size_t ld, const char *const *rows, int n, int first,               \
                                                  int channels) {                                                                \
        (void)first;                                                                                                             \
        stage_blocks_as(unpack_blocks_##suffix, load_##suffix, bytes, to, ld, rows, n, channels);                                \
    }
RAPT_MATRIX_TYPES(RAPT_TYPE)
#undef RAPT_TYPE

/* Converts n rows to f32: to[r][i] = rows[r][first + i] for i < channels, then 0 up to a whole vector. ld: floats from row to row
 * of `to`. For tensors other than K, V and weights, whose types are fewer. */
static void stage_element_rows(rapt_type type, float *to, size_t ld, const char *const *rows, int n, int first, int channels) {
    switch (type) {
#define RAPT_TYPE(name, suffix, ...)                                                                                             \
    case name:                                                                                                                   \
        stage_rows_##suffix(to, ld, rows, n, first, channels);                                                                   \
        break;
        RAPT_ELEMENT_TYPES(RAPT_TYPE)
#undef RAPT_TYPE
    default:
        break;
    }
}

/* Converts n rows of any tensor to f32, as stage_element_rows does. For types of RAPT_CACHE_TYPES, first is a multiple of
 * RAPT_VL, and where the type has groups, channels is a multiple of the group. For those of RAPT_MATRIX_TYPES, first is 0, and
 * channels is a multiple of MATRIX_BLOCK. */
static void stage_rows(rapt_type type, float *to, size_t ld, const char *const *rows, int n, int first, int channels) {
    switch (type) {
#define RAPT_TYPE(name, suffix, ...)                                                                                             \
    case name:                                                                                                                   \
        stage_rows_##suffix(to, ld, rows, n, first, channels);                                                                   \
        break;
        RAPT_CACHE_TYPES(RAPT_TYPE)
        RAPT_MATRIX_TYPES(RAPT_TYPE)
#undef RAPT_TYPE
    default:
        stage_element_rows(type, to, ld, rows, n, first, channels);
    }
}

/* Converts n rows of an element type to f32, transposed: to[i][r] = rows[r][first + i] for i < channels and r < n, a multiple of
 * RAPT_VL. ld: floats from channel to channel of `to`. */
static void stage_columns(rapt_type type, float *to, size_t ld, const char *const *rows, int n, int first, int channels) {
    switch (type) {
#define RAPT_TYPE(name, suffix, ...)                                                                                             \
    case name:                                                                                                                   \
        stage_columns_##suffix(to, ld, rows, n, first, channels);                                                                \
        break;
        RAPT_ELEMENT_TYPES(RAPT_TYPE)
#undef RAPT_TYPE
    default:
        break;
    }
}

/* Converts `channels` floats to the storage type, rounded to nearest even. `from` is readable up to a whole vector. */
static void store_row(rapt_type type, char *to, const float *from, int channels) {
    switch (type) {
#define RAPT_TYPE(name, suffix, ...)                                                                                             \
    case name:                                                                                                                   \
        store_row_##suffix(to, from, channels);                                                                                  \
        break;
        RAPT_ELEMENT_TYPES(RAPT_TYPE)
#undef RAPT_TYPE
    default:
        break;
    }
}

/* Stages rows as stage_rows does, with COPIES copies of each element side by side: those of channel i begin at to[r][i * COPIES].
 * row: scratch for a row of `channels` channels, in whole vectors. */
static void stage_copies(rapt_type type, float *to, size_t ld, const char *const *rows, int n, int channels, float *row) {
    if (COPIES == 1) {
        stage_rows(type, to, ld, rows, n, 0, channels);
        return;
    }
    for (int r = 0; r < n; r++, to += ld) {
        stage_rows(type, row, 0, rows + r, 1, 0, channels);
        for (int i = 0; i < channels; i++) v_store(to + i * COPIES, v_broadcast(row + i));
    }
}
