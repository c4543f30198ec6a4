/* SPDX-License-Identifier: Apache-2.0 */
/* ggml's q5_0: an f16 scale s, 4 bytes with the fifth bit of each channel, and the other 4 bits of the codes as in q4_0. An
 * element is s * (code - 16). */
static inline vf v_load_q5_0(const char *row, int channel) {
    const char *group = group_of_q5_0(row, channel);
    vi n = i_add(i_load_5bit(group + 2, channel), i_set1(-16));
    return v_mul(v_broadcast_f16_le(group), v_from_int(n));
}

static inline void read_q5_0(key_columns *c, const char *const *rows, size_t offset, const int nr) {
    (void)nr;
    c->scale = v_scale_of(rows, offset);
    read_four_columns(c->dwords, rows, offset + 6);
    split_5bit(c->dwords, read_column(rows, offset + 2));
}
static inline vf v_column_q5_0(const key_columns *c, vi dword, const int i) {
    return v_mul(c->scale, v_from_int(i_add(i_and(code_of_byte(dword, i), i_set1(31)), i_set1(-16))));
}

static inline void unpack_q5_0(const char *group, int add, void *to) { unpack_5bit(group + 2, add - 16, to); }

#if RAPT_VL == 1
static inline void store_group_q5_0(uint8_t *group, const float *x) {
    float s = largest(x, 32) / -16.0f, r = inverse(s);
    uint8_t n[32];
    if (!start_group(group, 22, s)) return;
    store_f16_le(group, s);
    for (int i = 0; i < 32; i++) n[i] = truncated(x[i] * r + 16.5f, 31);
    store_5bit(group + 2, n);
}
#endif
