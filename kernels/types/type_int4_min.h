/* SPDX-License-Identifier: Apache-2.0 */
/* int4 storage with a minimum: an f16 scale s, an f16 minimum m, and 16 bytes of 4-bit codes, channels 2i and 2i + 1 in byte i.
 * An element is s * code + m. The product is exact, so v_fma rounds once in both rounding classes. */
static inline vf v_load_int4_min(const char *row, int channel) {
    const char *group = group_of_int4_min(row, channel);
    return v_fma(v_broadcast_f16_le(group), v_from_int(i_load_u4(group + 4, channel & 31)), v_broadcast_f16_le(group + 2));
}

static inline void read_int4_min(key_columns *c, const char *const *rows, size_t offset, const int nr) {
    (void)nr;
    read_ranged_nibbles(c, rows, offset);
}
static inline vf v_column_int4_min(const key_columns *c, vi dword, const int i) {
    return v_ranged_nibble(c, code_of_nibble(dword, i));
}

#if RAPT_VL == 1
static inline void store_group_int4_min(uint8_t *group, const float *x) {
    float m, s = range_of(x, 32, &m) / 15.0f;
    uint8_t n[32];
    if (!start_group(group, 20, s)) return;
    s = store_finite_f16_le(group, s);
    m = store_finite_f16_le(group + 2, m);
    for (int i = 0; i < 32; i++) n[i] = (uint8_t)(s == 0.0f ? 0 : nearest((x[i] - m) / s, 0, 15));
    store_pairs(group + 4, n);
}
#endif
