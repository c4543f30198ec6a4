/* SPDX-License-Identifier: Apache-2.0 */
/* Reading K with keys in lanes. Vectors of K are transposed before they are converted to f32: a column has four bytes of each of
 * RAPT_VL rows, so types of 16 bits need half of the shuffles, and narrower ones a quarter or less. Included by type_words.h. */

/* Loads `bytes` bytes, at most a vector's, and 0 for the rest of the vector. Replaceable. */
static inline vf v_load_part(const char *from, size_t bytes);
#ifndef v_load_part
static inline vf v_load_part(const char *from, size_t bytes) {
    /* Copies its beginning and its end, which overlap, in one of a few sizes: memcpy of any size would be a call. */
    char part[64] = {0}; /* a whole vector of any kernel */
    const char *const end = from + bytes;
    if (bytes >= sizeof(vf)) return v_load(from);
    if (bytes >= 32) memcpy(part, from, 32), memcpy(part + (bytes - 32), end - 32, 32);
    else if (bytes >= 16) memcpy(part, from, 16), memcpy(part + (bytes - 16), end - 16, 16);
    else if (bytes >= 8) memcpy(part, from, 8), memcpy(part + (bytes - 8), end - 8, 8);
    else if (bytes >= 4) memcpy(part, from, 4), memcpy(part + (bytes - 4), end - 4, 4);
    else if (bytes >= 2) memcpy(part, from, 2), memcpy(part + (bytes - 2), end - 2, 2);
    else if (bytes == 1) *part = *from;
    return v_load(part);
}
#endif

/* One step of RAPT_VL rows, row r in lane r. Of an element type it is the next RAPT_VL dwords of each row; of a type with groups,
 * one group of each row, with the scale, and the least value where there is one, that its elements share. */
typedef struct key_columns {
    vi dwords[RAPT_VL > 8 ? RAPT_VL : 8];
    vf scale, least;
} key_columns;

/* Sets lane r of columns[i] to dword i of the 16 bytes at rows[r] + offset. */
static RAPT_INLINE void load_four_columns(vf columns[4], const char *const *rows, size_t offset) {
#if RAPT_SQUARE_ROWS
    /* Each four lanes come from one row, so that it only remains to transpose 4 x 4 within them. */
    UNROLLED(i, 4) columns[i] = v_load_quads(rows + i, offset);
    v_transpose_quads(columns);
#else
    _Static_assert(RAPT_VL == 4 || RAPT_VL == 1, "longer vectors have the words of RAPT_SQUARE_ROWS");
    UNROLLED(i, 4) columns[i] = v_load(rows[RAPT_VL == 4 ? i : 0] + offset + (RAPT_VL == 4 ? 0 : 4 * i));
    v_transpose(columns);
#endif
}

/* Sets lane r of columns[i] to dword i of the 16 bytes at rows[r] + offset, as integers. */
static RAPT_INLINE void read_four_columns(vi columns[4], const char *const *rows, size_t offset) {
    vf x[4];
    load_four_columns(x, rows, offset);
    UNROLLED(i, 4) columns[i] = v_as_int(x[i]);
}

/* Returns in lane r the first dword at rows[r] + offset. Reads 16 bytes of each row, as load_four_columns does. */
static RAPT_INLINE vi read_column(const char *const *rows, size_t offset) {
    vi x[4];
    read_four_columns(x, rows, offset);
    return x[0];
}

/* Reads RAPT_VL columns. nr: the number of rows of Q that will be multiplied by them; it decides how they are transposed
 * (RAPT_SQUARE_ROWS). */
static RAPT_INLINE void read_line(key_columns *c, const char *const *rows, size_t offset, const int nr) {
    vf line[RAPT_VL];
#if RAPT_SQUARE_ROWS
    if (nr >= RAPT_SQUARE_ROWS)
        RAPT_UNROLL for (int i = 0; i < RAPT_VL; i += 4) load_four_columns(line + i, rows, offset + (size_t)i * sizeof(float));
    else
#endif
    {
        UNROLLED(i, RAPT_VL) line[i] = v_load(rows[i] + offset);
        v_transpose(line);
    }
    (void)nr;
    UNROLLED(i, RAPT_VL) c->dwords[i] = v_as_int(line[i]);
}

/* Reads RAPT_VL columns as read_line does, of rows that have only `bytes` bytes, and 0 after them. */
static RAPT_INLINE void read_part_of_line(key_columns *c, const char *const *rows, size_t offset, size_t bytes) {
    vf line[RAPT_VL];
    UNROLLED(i, RAPT_VL) line[i] = v_load_part(rows[i] + offset, bytes);
    v_transpose(line);
    UNROLLED(i, RAPT_VL) c->dwords[i] = v_as_int(line[i]);
}

/* 1 on a big-endian machine. */
enum { ON_BIG_ENDIAN = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ };

/* Returns the position of element i in its dword: the number of bits below it. An element has `bits` bits. Elements are in the
 * order of their bytes in memory, and within a byte the lowest bits come first. */
static RAPT_INLINE int element_place(const int i, const int bits) {
    if (!ON_BIG_ENDIAN) return i * bits % 32;
    return bits >= 8 ? 32 - bits - i * bits % 32 : 24 - i * bits / 8 * 8 % 32 + i * bits % 8;
}

/* Returns byte i of each dword in the upper 8 bits of its lane; lower bits are undefined. */
static RAPT_INLINE vi upper_byte(vi dwords, const int i) {
    const int place = element_place(i, 8);
    return place == 24 ? dwords : i_shl(dwords, 24 - place);
}

/* Returns byte i of each dword, a signed number, as f32. */
static RAPT_INLINE vf signed_byte(vi dwords, const int i) { return v_from_int(i_sar(upper_byte(dwords, i), 24)); }

/* Turns 4 columns whose byte i holds the 4-bit codes of channels i and i + 16 into 8 columns of a code in each byte, channels
 * ascending. The upper 4 bits of each byte are undefined. */
static RAPT_INLINE void split_halves(vi columns[8]) {
    UNROLLED(i, 4) columns[4 + i] = i_shr(columns[i], 4);
}

/* Turns 4 columns into 8 as split_halves does, and adds the fifth bits of codes of 5 bits: bit i of `fifths` is that of channel
 * i. The upper 3 bits of each byte become 0. */
static RAPT_INLINE void split_5bit(vi columns[8], vi fifths) {
    split_halves(columns);
    UNROLLED(i, 8) {
        columns[i] = i_and(columns[i], i_set1(0x0f0f0f0f));
        UNROLLED(j, 4) {
            const int from = element_place(4 * i + j, 1), to = element_place(j, 8) + 4;
            vi bit = to >= from ? i_shl(fifths, to - from) : i_shr(fifths, from - to);
            columns[i] = i_or(columns[i], i_and(bit, i_set1(1 << to)));
        }
    }
}

/* Returns element n of `bits` bits of each dword, in memory order, in the low bits of its lane; higher bits are undefined. */
static RAPT_INLINE vi nth_of_dword(vi x, const int n, const int bits) {
    const int place = element_place(n, bits);
    return place == 0 ? x : i_shr(x, place);
}

/* Returns the first 16 bits in memory of each dword; higher bits are undefined. */
static RAPT_INLINE vi first_half(vi x) { return nth_of_dword(x, 0, 16); }

/* Returns the second 16 bits in memory of each dword; higher bits are undefined. */
static RAPT_INLINE vi second_half(vi x) { return nth_of_dword(x, 1, 16); }

/* Returns the first byte in memory of each dword; higher bits are undefined. */
static RAPT_INLINE vi first_byte(vi x) { return nth_of_dword(x, 0, 8); }

/* Returns into how many vectors one loaded vector of V is split, element i of every dword going to vector i. 2 for bf16 and 4 for
 * E4M3, where that saves the shuffle of a widening load (values of 1 row in L1: bf16 53 -> 90, E4M3 16 -> 18 GFLOP/s). 1, a
 * widening load in memory order, for all others; where measured, splitting is slower (int8 53 -> 40, E5M2 41 -> 28); see
 * docs/experiments/decode.md. */
static RAPT_INLINE int deinterleaved_vectors(rapt_type type) {
    return RAPT_VL == 1 ? 1 : type == RAPT_BF16 ? 2 : type == RAPT_F8_E4M3 ? 4 : 1;
}

/* Returns the bytes of a row that a step takes. */
static RAPT_INLINE int step_bytes(rapt_type type, const int group, const int bytes) {
    return group > 1 ? bytes : RAPT_VL * (type == RAPT_F16 ? 2 : 4);
}

/* Returns how many elements a dword of key_columns holds. */
static RAPT_INLINE int elements_of_dword(rapt_type type) {
    switch (type) {
    case RAPT_F32:
    case RAPT_F16:
        return 1;
    case RAPT_BF16:
        return 2;
    case RAPT_INT4:
    case RAPT_INT4_MIN:
        return 8;
    default:
        return 4;
    }
}

/* A word of each type of K, read_SUFFIX: reads a step of RAPT_VL rows, for nr rows of Q. */
typedef void read_step_word(key_columns *c, const char *const *rows, size_t offset, const int nr);

/* A word of each type of K, v_column_SUFFIX: converts element i of a dword that a read_step_word has read. */
typedef vf column_word(const key_columns *c, vi dword, const int i);

/* A word of types that are deinterleaved, v_part_SUFFIX: converts the element that comes i-th in memory of each dword. */
typedef vf part_word(vi dwords, const int i);
