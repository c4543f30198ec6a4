/* SPDX-License-Identifier: Apache-2.0 */
/* ggml's q4_0: an f16 scale s, and 16 bytes of 4-bit codes, channels i and i + 16 in byte i. An element is s * (code - 8). */
static inline vf v_load_q4_0(const char *row, int channel) {
    const char *group = group_of_q4_0(row, channel);
    vi n = i_add(i_load_halves(group + 2, channel), i_set1(-8));
    return v_mul(v_broadcast_f16_le(group), v_from_int(n));
}

static inline void read_q4_0(key_columns *c, const char *const *rows, size_t offset, const int nr) {
    (void)nr;
    read_scaled_nibbles(c, rows, offset);
    split_halves(c->dwords);
}
static inline vf v_column_q4_0(const key_columns *c, vi dword, const int i) { return v_scaled_nibble(c, code_of_byte(dword, i)); }

static inline void unpack_q4_0(const char *group, int add, void *to) { unpack_halves(group + 2, add - 8, to); }

#if RAPT_VL == 1
static inline void store_group_q4_0(uint8_t *group, const float *x) {
    float s = largest(x, 32) / -8.0f, r = inverse(s);
    uint8_t n[32];
    if (!start_group(group, 18, s)) return;
    store_f16_le(group, s);
    for (int i = 0; i < 32; i++) n[i] = truncated(x[i] * r + 8.5f, 15);
    store_halves(group + 2, n, 16);
}
#endif
