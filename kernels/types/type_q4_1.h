/* SPDX-License-Identifier: Apache-2.0 */
/* ggml's q4_1: an f16 scale s, an f16 minimum m, and 4-bit codes laid out as in q4_0. An element is s * code + m. The product is
 * exact, so v_fma rounds once in both rounding classes. */
static inline vf v_load_q4_1(const char *row, int channel) {
    const char *group = group_of_q4_1(row, channel);
    return v_fma(v_broadcast_f16_le(group), v_from_int(i_load_halves(group + 4, channel)), v_broadcast_f16_le(group + 2));
}

static inline void read_q4_1(key_columns *c, const char *const *rows, size_t offset, const int nr) {
    (void)nr;
    read_ranged_nibbles(c, rows, offset);
    split_halves(c->dwords);
}
static inline vf v_column_q4_1(const key_columns *c, vi dword, const int i) { return v_ranged_nibble(c, code_of_byte(dword, i)); }

static inline void unpack_q4_1(const char *group, int add, void *to) { unpack_halves(group + 4, add, to); }

#if RAPT_VL == 1
static inline void store_group_q4_1(uint8_t *group, const float *x) {
    float m, s = range_of(x, 32, &m) / 15.0f, r = inverse(s);
    uint8_t n[32];
    if (!start_group(group, 20, s)) return;
    store_f16_le(group, s);
    store_f16_le(group + 2, m);
    for (int i = 0; i < 32; i++) n[i] = truncated((x[i] - m) * r + 0.5f, 15);
    store_halves(group + 4, n, 16);
}
#endif
