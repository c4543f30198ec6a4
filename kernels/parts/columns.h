/* SPDX-License-Identifier: Apache-2.0 */
/* Keys in lanes are transposed before they are converted: a column is four bytes of each of RAPT_VL rows, so narrow types need
 * half or a quarter of the shuffles, or fewer. Included by type_words.h, for the words of types. */

/* A step of RAPT_VL rows: the next RAPT_VL dwords of each; or a group of each, its elements as columns of dwords and what they
 * share in scale and least. */
typedef struct key_columns {
    vi dwords[RAPT_VL > 8 ? RAPT_VL : 8];
    vf scale, least;
} key_columns;

/* columns[i], lane r: dword i of the 16 bytes at rows[r] + offset. */
static RAPT_INLINE void load_four_columns(vf columns[4], const char *const *rows, size_t offset) {
#if RAPT_SQUARE_ROWS
    /* With each four lanes from a row of their own, transposing 4 x 4 within them is all that is left. */
    UNROLLED(i, 4) columns[i] = v_load_quads(rows + i, offset);
    v_transpose_quads(columns);
#else
    _Static_assert(RAPT_VL == 4 || RAPT_VL == 1, "longer vectors have the words of RAPT_SQUARE_ROWS");
    UNROLLED(i, 4) columns[i] = v_load(rows[RAPT_VL == 4 ? i : 0] + offset + (RAPT_VL == 4 ? 0 : 4 * i));
    v_transpose(columns);
#endif
}

static RAPT_INLINE void read_four_columns(vi columns[4], const char *const *rows, size_t offset) {
    vf x[4];
    load_four_columns(x, rows, offset);
    UNROLLED(i, 4) columns[i] = v_as_int(x[i]);
}

/* The first of four, for which 16 bytes are read. */
static RAPT_INLINE vi read_column(const char *const *rows, size_t offset) {
    vi x[4];
    read_four_columns(x, rows, offset);
    return x[0];
}

/* RAPT_VL of them, to be used for nr rows of Q. */
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

enum { ON_BIG_ENDIAN = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ };

/* Where element i of some bits lies in its dword: the number of bits below it. Elements of whole bytes are as the machine has
 * them; of those of a byte, the lowest bits come first. */
static RAPT_INLINE int element_place(const int i, const int bits) {
    if (!ON_BIG_ENDIAN) return i * bits % 32;
    return bits >= 8 ? 32 - bits - i * bits % 32 : 24 - i * bits / 8 * 8 % 32 + i * bits % 8;
}

/* Byte i of each dword, at the upper end of its lane with other bits below, and as a signed number. */
static RAPT_INLINE vi upper_byte(vi dwords, const int i) {
    const int place = element_place(i, 8);
    return place == 24 ? dwords : i_shl(dwords, 24 - place);
}
static RAPT_INLINE vf signed_byte(vi dwords, const int i) { return v_from_int(i_sar(upper_byte(dwords, i), 24)); }

/* Turns 4 columns whose byte i holds the 4-bit codes of channels i and i + 16 into 8 columns of a code in each byte, channels
 * ascending. The upper 4 bits of each byte are undefined. */
static RAPT_INLINE void split_halves(vi columns[8]) {
    UNROLLED(i, 4) columns[4 + i] = i_shr(columns[i], 4);
}

/* Does the same and adds the fifth bits, of which bit i of `fifths` belongs to channel i. Codes then have 5 bits. */
static RAPT_INLINE void split_fifths(vi columns[8], vi fifths) {
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

/* What comes first in memory of each dword, at the lower end of its lane with other bits above, and what comes second. */
static RAPT_INLINE vi nth_of_dword(vi x, const int n, const int bits) {
    const int place = element_place(n, bits);
    return place == 0 ? x : i_shr(x, place);
}
static RAPT_INLINE vi first_half(vi x) { return nth_of_dword(x, 0, 16); }
static RAPT_INLINE vi second_half(vi x) { return nth_of_dword(x, 1, 16); }
static RAPT_INLINE vi first_byte(vi x) { return nth_of_dword(x, 0, 8); }

/* Into how many vectors of elements a vector of a row of V is taken apart, dword by dword. 1: none, since loads widen the
 * elements in their order. That is as fast for bytes that are integers, and slower for the others by up to a half
 * (docs/performance.md, "Narrow caches"). */
static RAPT_INLINE int dealt_vectors(rapt_type type) {
    return RAPT_VL == 1 ? 1 : type == RAPT_BF16 ? 2 : type == RAPT_F8_E4M3 ? 4 : 1;
}

/* Bytes of a row that a step takes. */
static RAPT_INLINE int step_bytes(rapt_type type, const int group, const int bytes) {
    return group > 1 ? bytes : RAPT_VL * (type == RAPT_F16 ? 2 : 4);
}

/* Elements of a dword of key_columns. */
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

/* The words of each type of K: one reads a step of RAPT_VL rows, the other converts element i of one of its dwords. */
typedef void read_words(key_columns *c, const char *const *rows, size_t offset, const int nr);
typedef vf column_word(const key_columns *c, vi dword, const int i);

/* And of those that are dealt out: the element that comes i-th in memory of each dword. */
typedef vf part_word(vi dwords, const int i);
