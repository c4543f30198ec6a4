/* SPDX-License-Identifier: Apache-2.0 */
/* E4M3 storage: no infinities, and one magnitude that is NaN. */
static inline vf v_from_upper_e4m3(vi x) {
    vi magnitude = i_and(i_shr(x, 4), i_set1(0x7f << 20)), value = v_as_int(v_small_float(magnitude, 7));
    vi bits = i_select(i_gt(magnitude, i_set1(0x7e << 20)), i_set1(0x7fc00000), value);
    return v_as_float(i_or(bits, i_and(x, i_set1(INT32_MIN))));
}

static inline vf v_load_f8_e4m3(const char *row, int channel) { return v_from_upper_e4m3(i_shl(i_load_u8(row + channel), 24)); }

static inline void read_f8_e4m3(key_columns *c, const char *const *rows, size_t offset, const int nr) {
    read_line(c, rows, offset, nr);
}
static inline vf v_part_f8_e4m3(vi dwords, const int i) { return v_from_upper_e4m3(upper_byte(dwords, i)); }
static inline vf v_column_f8_e4m3(const key_columns *c, const int i) { return v_part_f8_e4m3(c->dwords[i / 4], i); }

#if RAPT_VL == 1
/* Saturating at 448. */
static inline void store_group_f8_e4m3(uint8_t *to, const float *x) {
    *to = (uint8_t)((*x == *x ? small_float_of(*x, 3, 7, 448.0f) : 0x7f) | sign_of(*x, 7));
}
#endif
