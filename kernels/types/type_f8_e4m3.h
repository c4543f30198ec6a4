/* SPDX-License-Identifier: Apache-2.0 */
/* E4M3 storage: sign, 4 bits of exponent, 3 of fraction. There are no infinities, and only magnitude 0x7f is NaN. */

/* Converts the uppermost byte of each lane. */
static inline vf v_from_upper_e4m3(vi x) {
    vi magnitude = i_and(i_shr(x, 4), i_set1(0x7f << 20)), value = v_as_int(v_small_float(magnitude, 7));
    vi bits = i_select(i_gt(magnitude, i_set1(0x7e << 20)), i_set1(0x7fc00000), value);
    return v_as_float(i_or(bits, i_and(x, i_set1(INT32_MIN))));
}

static inline vf v_load_f8_e4m3(const char *row, int channel) { return v_from_upper_e4m3(i_shl(i_load_u8(row + channel), 24)); }

static inline void read_f8_e4m3(key_columns *c, const char *const *rows, size_t offset, const int nr) {
    read_line(c, rows, offset, nr);
}

#if !RAPT_BYTE_TABLES
/* Converts byte i of each dword. */
static inline vf v_part_f8_e4m3(vi dwords, const int i) { return v_from_upper_e4m3(upper_byte(dwords, i)); }
#else
/* Converts byte i of each dword via bf16. Both bytes of the bf16 are computed for all bytes of the vector by table look-ups; the
 * compiler shares that work between the calls for i = 0..3.
 *
 *   E4M3  s eeee fff            bf16  s eeeeeeee fffffff,  bias 120 larger
 *
 * 120 is a multiple of 2, so the lowest exponent bit and the fraction (the low nibble) move unchanged to the top of the low byte,
 * and the high nibble (sign, upper exponent bits) selects the high byte (upper_of). Wrong for exponent 0 (zero, denormals) and
 * for NaN, which are repaired by XOR: the wrong_in_* tables are indexed by (magnitude + 1) mod 128, which is 0 for NaN, 1..8 for
 * zero and denormals, and beyond 8 for normal numbers, where the entries are 0. */
static inline vf v_part_f8_e4m3(vi dwords, const int i) {
    static const uint8_t upper_of[16] = {0x3c, 0x3d, 0x3e, 0x3f, 0x40, 0x41, 0x42, 0x43,
                                         0xbc, 0xbd, 0xbe, 0xbf, 0xc0, 0xc1, 0xc2, 0xc3};
    static const uint8_t wrong_in_upper[16] = {0x3c, 0x3c, 0x07, 0x07, 0x07};
    static const uint8_t wrong_in_lower[16] = {0x30, 0x00, 0x10, 0xa0, 0xf0, 0x40, 0x70, 0x20, 0x10};
    const vi magnitude = i_set1(0x7f7f7f7f), half = i_set1(0x0f0f0f0f);
    vi special = i_and(i_add(i_and(dwords, magnitude), i_set1(0x01010101)), magnitude);
    vi upper = i_xor(i_look_up(upper_of, i_and(i_shr(dwords, 4), half)), i_look_up(wrong_in_upper, special));
    vi lower = i_xor(i_and(i_shl(dwords, 4), i_set1(~0x0f0f0f0f)), i_look_up(wrong_in_lower, special));
    vi words = element_place(i, 8) % 16 == 0 ? i_odd_bytes(i_shl(upper, 8), lower) : i_odd_bytes(upper, i_shr(lower, 8));
    return v_part_bf16(words, i / 2);
}
#endif
static inline vf v_column_f8_e4m3(const key_columns *c, vi dword, const int i) {
    (void)c;
    return v_part_f8_e4m3(dword, i);
}

#if RAPT_VL == 1
/* Rounds to nearest even and saturates at 448. */
static inline void store_group_f8_e4m3(uint8_t *to, const float *x) {
    *to = (uint8_t)((*x == *x ? small_float_of(*x, 3, 7, 448.0f) : 0x7f) | sign_of(*x, 7));
}
#endif
