/* SPDX-License-Identifier: Apache-2.0 */
/* OCP MX's MXFP8 of E4M3: an E8M0 scale, and 32 bytes of E4M3 floats. */
static inline vf v_load_mxfp8_e4m3(const char *row, int channel) {
    const char *group = group_of_mxfp8_e4m3(row, channel);
    return v_mul(v_broadcast_e8m0(group), v_load_f8_e4m3(group + 1, channel & 31));
}

static inline void read_mxfp8_e4m3(key_columns *c, const char *const *rows, size_t offset, const int nr) {
    (void)nr;
    c->scale = v_e8m0_of(rows, offset);
    read_four_columns(c->dwords, rows, offset + 1);
    read_four_columns(c->dwords + 4, rows, offset + 17);
}
static inline vf v_column_mxfp8_e4m3(const key_columns *c, vi dword, const int i) {
    return v_mul(c->scale, v_part_f8_e4m3(dword, i));
}

#if RAPT_VL == 1
/* Rounds to nearest even and saturates at 448. */
static inline void store_group_mxfp8_e4m3(uint8_t *group, const float *x) {
    float factor = start_mx_group(group, 33, x, 32, 8);
    for (int i = 0; i < 32 && factor != 0.0f; i++) {
        float scaled = x[i] * factor;
        store_group_f8_e4m3(group + 1 + i, &scaled);
    }
}
#endif
