/* SPDX-License-Identifier: Apache-2.0 */
/* ggml's q8_0: an f16 scale s, and 32 signed bytes. */
static inline vf v_load_q8_0(const char *row, int channel) {
    const char *group = group_of_q8_0(row, channel);
    return v_mul(v_broadcast_f16_le(group), v_from_int(i_load_s8(group + 2 + (channel & 31))));
}

static inline void read_q8_0(key_columns *c, const char *const *rows, size_t offset, const int nr) {
    (void)nr;
    c->scale = v_scale_of(rows, offset);
    read_four_columns(c->dwords, rows, offset + 2);
    read_four_columns(c->dwords + 4, rows, offset + 18);
}
static inline vf v_column_q8_0(const key_columns *c, vi dword, const int i) { return v_mul(c->scale, signed_byte(dword, i)); }

static inline void unpack_q8_0(const char *group, int add, void *to) {
    store_numbers(to, load_bytes(group + 2), load_bytes(group + 18), add);
}

#if RAPT_VL == 1
static inline void store_group_q8_0(uint8_t *group, const float *x) {
    float s = largest_magnitude(x, 32) / 127.0f, r = inverse(s);
    if (!start_group(group, 34, s)) return;
    store_f16_le(group, s);
    for (int i = 0; i < 32; i++) { /* ties away from 0 */
        float t = x[i] * r, size = magnitude_of(t), rest = size - (float)(int)size;
        int n = (int)size + (rest >= 0.5f);
        group[2 + i] = (uint8_t)(t < 0.0f ? -n : n);
    }
}
#endif
