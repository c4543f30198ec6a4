/* SPDX-License-Identifier: Apache-2.0 */
/* OCP MX's MXFP4, laid out as ggml's block_mxfp4: an E8M0 scale, and 16 bytes of E2M1 floats, which have no infinities and no
 * NaN, channels i and i + 16 in byte i. */

/* Converts an E2M1 in the low 4 bits of each lane; the other bits may be anything. */
static inline vf v_from_e2m1(vi n) {
    vi size = v_as_int(v_small_float(i_shl(i_and(n, i_set1(7)), 22), 1));
    return v_as_float(i_or(size, i_shl(i_and(n, i_set1(8)), 28)));
}

static inline vf v_load_mxfp4(const char *row, int channel) {
    const char *group = group_of_mxfp4(row, channel);
    return v_mul(v_broadcast_e8m0(group), v_from_e2m1(i_load_halves(group + 1, channel)));
}

static inline void read_mxfp4(key_columns *c, const char *const *rows, size_t offset, const int nr) {
    (void)nr;
    c->scale = v_e8m0_of(rows, offset);
    read_four_columns(c->dwords, rows, offset + 1);
    split_halves(c->dwords);
}
static inline vf v_column_mxfp4(const key_columns *c, vi dword, const int i) {
    return v_mul(c->scale, v_from_e2m1(code_of_byte(dword, i)));
}

#if RAPT_VL == 1
/* Converts x to E2M1: rounds to nearest even and saturates at 6. */
static inline uint8_t e2m1_of(float x) { return (uint8_t)(small_float_of(x, 1, 1, 6.0f) | sign_of(x, 3)); }

static inline void store_group_mxfp4(uint8_t *group, const float *x) {
    float factor = start_mx_group(group, 17, x, 32, 2);
    uint8_t n[32];
    if (factor == 0.0f) return;
    for (int i = 0; i < 32; i++) n[i] = e2m1_of(x[i] * factor);
    store_halves(group + 1, n, 16);
}
#endif
