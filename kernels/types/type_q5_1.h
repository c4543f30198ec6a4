/* SPDX-License-Identifier: Apache-2.0 */
/* ggml's q5_1: an f16 scale s, an f16 minimum m, then as q5_0. An element is s * code + m. The product is exact, so v_fma rounds
 * once in both rounding classes. */
static inline vf v_load_q5_1(const char *row, int channel) {
    const char *group = group_of_q5_1(row, channel);
    return v_fma(v_broadcast_f16_le(group), v_from_int(i_load_5bit(group + 4, channel)), v_broadcast_f16_le(group + 2));
}

static inline void read_q5_1(key_columns *c, const char *const *rows, size_t offset, const int nr) {
    (void)nr;
    vi head[4];
    read_four_columns(head, rows, offset);
    c->scale = v_from_f16_le(first_half(head[0]));
    c->least = v_from_f16_le(second_half(head[0]));
    read_four_columns(c->dwords, rows, offset + 8);
    split_5bit(c->dwords, head[1]);
}
static inline vf v_column_q5_1(const key_columns *c, vi dword, const int i) {
    return v_fma(c->scale, v_from_int(i_and(code_of_byte(dword, i), i_set1(31))), c->least);
}

#if RAPT_VL == 1
static inline void store_group_q5_1(uint8_t *group, const float *x) {
    float m, s = range_of(x, 32, &m) / 31.0f, r = inverse(s);
    uint8_t n[32];
    if (!start_group(group, 24, s)) return;
    store_f16_le(group, s);
    store_f16_le(group + 2, m);
    for (int i = 0; i < 32; i++) n[i] = truncated((x[i] - m) * r + 0.5f, 31);
    store_5bit(group + 4, n);
}
#endif
