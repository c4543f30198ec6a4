/* SPDX-License-Identifier: Apache-2.0 */
/* E5M2 storage: the upper byte of an f16. */
static inline vf v_load_f8_e5m2(const char *row, int channel) { return v_load_f16_high(row + channel); }

static inline void read_f8_e5m2(key_columns *c, const char *const *rows, size_t offset, const int nr) {
    read_line(c, rows, offset, nr);
}
static inline vf v_column_f8_e5m2(const key_columns *c, vi dword, const int i) {
    (void)c;
    return v_from_f16(i_and(i_shr(upper_byte(dword, i), 16), i_set1(0xff00)));
}

#if RAPT_VL == 1
/* Rounds to nearest even and saturates at 57344. */
static inline void store_group_f8_e5m2(uint8_t *to, const float *x) {
    *to = (uint8_t)((*x == *x ? small_float_of(*x, 2, 15, 57344.0f) : 0x7f) | sign_of(*x, 7));
}
#endif
