/* SPDX-License-Identifier: Apache-2.0 */
/* E4M3 storage: no infinities, and one magnitude that is NaN. */
static inline vf v_load_f8_e4m3(const char *row, int channel) {
    vi b = i_load_s8(row + channel), magnitude = i_and(i_shl(b, 20), i_set1(0x7f << 20));
    vi value = v_as_int(v_small_float(magnitude, 7));
    vi bits = i_select(i_gt(magnitude, i_set1(0x7e << 20)), i_set1(0x7fc00000), value);
    return v_as_float(i_or(bits, i_and(b, i_set1(INT32_MIN))));
}

#if RAPT_VL == 1
/* Saturating at 448. */
static inline void store_group_f8_e4m3(uint8_t *to, const float *x) {
    *to = (uint8_t)((*x == *x ? small_float_of(*x, 3, 7, 448.0f) : 0x7f) | sign_of(*x, 7));
}
#endif
