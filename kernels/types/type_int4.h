/* SPDX-License-Identifier: Apache-2.0 */
/* int4 storage: an f16 scale s, and 16 bytes of 4-bit codes, channels 2i and 2i + 1 in byte i. An element is s * (code - 8). */
static inline vf v_load_int4(const char *row, int channel) {
    const char *group = group_of_int4(row, channel);
    vi n = i_add(i_load_u4(group + 2, channel & 31), i_set1(-8));
    return v_mul(v_broadcast_f16_le(group), v_from_int(n));
}

static inline void read_int4(key_columns *c, const char *const *rows, size_t offset, const int nr) {
    (void)nr;
    read_scaled_nibbles(c, rows, offset);
}
static inline vf v_column_int4(const key_columns *c, vi dword, const int i) {
    return v_scaled_nibble(c, code_of_nibble(dword, i));
}

static inline void unpack_int4(const char *group, int add, void *to) { unpack_pairs(group + 2, add - 8, to); }

#if RAPT_VL == 1
/* Stores a group. The element of largest magnitude becomes -8, so that the longer side of the range of codes is used. */
static inline void store_group_int4(uint8_t *group, const float *x) {
    float s = largest(x, 32) / -8.0f;
    uint8_t n[32];
    if (!start_group(group, 18, s)) return;
    s = store_finite_f16_le(group, s);
    for (int i = 0; i < 32; i++) n[i] = (uint8_t)(s == 0.0f ? 8 : nearest(x[i] / s, -8, 7) + 8);
    store_pairs(group + 2, n);
}
#endif
