/* SPDX-License-Identifier: Apache-2.0 */
/* Staging: rows of a tensor of any storage type become f32 in scratch, and f32 in scratch becomes rows of the output. Written
 * once over a type's words, instantiated for each type of the list. Nothing beyond a row's channels is read or written. */
#include "types/type_words.h"

typedef void store_word(void *, vf);
typedef vf load_channels(const char *row, int channel);

/* RAPT_VL channels of a row, of any type: load_f32, load_f16, load_q4_0 and so on. They are passed as constants, and not
 * RAPT_INLINE, since at -Og gcc finds out too late which function it calls, and refuses. */
#define RAPT_TYPE(name, suffix, group, bytes)                                                                                    \
    static inline vf load_##suffix(const char *row, int channel) { return v_load_##suffix(row + (size_t)channel * bytes); }
RAPT_ELEMENT_TYPES(RAPT_TYPE)
#undef RAPT_TYPE
#define RAPT_TYPE(name, suffix, group, bytes)                                                                                    \
    static inline vf load_##suffix(const char *row, int channel) { return v_load_##suffix(row, channel); }
RAPT_CACHE_TYPES(RAPT_TYPE)
#undef RAPT_TYPE

/* Can any tensor have this type, not K, V and weights only? */
static inline bool of_elements(rapt_type type) {
    switch (type) {
        RAPT_ELEMENT_TYPES(RAPT_TYPE_CASE)
        return true;
    default:
        return false;
    }
}

/* A vector whose first n channels are those at from, the others 0. */
static RAPT_INLINE vf load_part(load_channels *load, size_t bytes, const char *from, int n) {
    char part[RAPT_VL * 4] = {0};
    memcpy(part, from, (size_t)n * bytes);
    return load(part, 0);
}

/* to[i][r] = rows[r][channel + i], for i and r below the vector length. Replaceable. */
static RAPT_INLINE void store_transposed(load_channels *load, const char *const *rows, int channel, float *to, size_t ld);
#ifndef store_transposed
static RAPT_INLINE void store_transposed(load_channels *load, const char *const *rows, int channel, float *to, size_t ld) {
    vf square[RAPT_VL];
    UNROLLED(r, RAPT_VL) square[r] = load(rows[r], channel);
    v_transpose(square);
    UNROLLED(i, RAPT_VL) v_store(to + (size_t)i * ld, square[i]);
}
#endif

/* Of types of one channel, with a last part, or of groups of 32, of which whole ones read what all channels share once. The
 * instances of groups stay out of line: inlined, gcc 12 may give values the stack of a caller's array that is still in use. */
static RAPT_INLINE void stage_rows_as(load_channels *load, const int group, size_t bytes, float *to, size_t ld,
                                      const char *const *rows, int n, int first, int channels) {
    int whole = channels - channels % RAPT_VL;
    for (int r = 0; r < n; r++, to += ld) {
        int i = 0;
        if (RAPT_VL > 1 && group > 1 && first % group == 0)
            for (; i + 32 <= channels; i += 32) {
                const char *from = rows[r] + (size_t)(first + i) / (size_t)group * bytes;
                vf values[32 / RAPT_VL];
                UNROLLED(j, 32 / RAPT_VL) values[j] = load(from, j * RAPT_VL);
                UNROLLED(j, 32 / RAPT_VL) v_store(to + i + j * RAPT_VL, values[j]);
            }
        for (; i < whole; i += RAPT_VL) v_store(to + i, load(rows[r], first + i));
        if (group == 1 && whole < channels)
            v_store(to + whole, load_part(load, bytes, rows[r] + (size_t)(first + whole) * bytes, channels - whole));
    }
}

static RAPT_INLINE void stage_columns_as(load_channels *load, size_t bytes, float *to, size_t ld, const char *const *rows, int n,
                                         int first, int channels) {
    int whole = channels - channels % RAPT_VL;
    for (int r = 0; r < n; r += RAPT_VL) {
        for (int i = 0; i < whole; i += RAPT_VL) store_transposed(load, rows + r, first + i, to + (size_t)i * ld + r, ld);
        for (int j = 0; j < RAPT_VL && whole < channels; j++) {
            float part[RAPT_VL];
            v_store(part, load_part(load, bytes, rows[r + j] + (size_t)(first + whole) * bytes, channels - whole));
            for (int i = whole; i < channels; i++) to[(size_t)i * ld + r + j] = part[i - whole];
        }
    }
}

static RAPT_INLINE void store_row_as(store_word *store, size_t bytes, char *to, const float *from, int channels) {
    int whole = channels - channels % RAPT_VL;
    for (int i = 0; i < whole; i += RAPT_VL) store(to + (size_t)i * bytes, v_load(from + i));
    if (whole < channels) {
        char part[RAPT_VL * 4];
        store(part, v_load(from + whole));
        memcpy(to + (size_t)whole * bytes, part, (size_t)(channels - whole) * bytes);
    }
}

/* stage_rows_f32, stage_columns_f32, store_row_f32 and so on: of each element type; of the others, stage_rows_SUFFIX only. */
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

#define RAPT_TYPE(name, suffix, group, bytes)                                                                                    \
    static RAPT_NOINLINE void stage_rows_##suffix(float *to, size_t ld, const char *const *rows, int n, int first,               \
                                                  int channels) {                                                                \
        stage_rows_as(load_##suffix, group, bytes, to, ld, rows, n, first, channels);                                            \
    }
RAPT_CACHE_TYPES(RAPT_TYPE)
#undef RAPT_TYPE

/* to[r][i] = rows[r][first + i] for r < n and i < channels, then 0 up to a whole vector; ld floats from row to row. Of types of K
 * and V only, first is a multiple of RAPT_VL, and so is channels where groups are of 32. */
static void stage_rows(rapt_type type, float *to, size_t ld, const char *const *rows, int n, int first, int channels) {
    switch (type) {
#define RAPT_TYPE(name, suffix, ...)                                                                                             \
    case name:                                                                                                                   \
        stage_rows_##suffix(to, ld, rows, n, first, channels);                                                                   \
        break;
        RAPT_KV_TYPES(RAPT_TYPE)
#undef RAPT_TYPE
    default:
        break;
    }
}

/* stage_rows of a tensor that is neither K, V nor weights, so of fewer types. */
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

/* to[i][r] = rows[r][first + i] for i < channels and r < n, n a multiple of the vector length; ld floats from channel to channel.
 */
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

/* to[i] = from[i] in the storage type, rounded to nearest even, for i < channels; from is readable up to a whole vector. */
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

/* stage_rows, each element COPIES times: to[r][i * COPIES + any] = rows[r][i]. row holds a row of `channels` channels. */
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
