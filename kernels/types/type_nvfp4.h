/* SPDX-License-Identifier: Apache-2.0 */
/* NVIDIA's NVFP4: an E4M3 scale, and 8 bytes of E2M1 floats, channels i and i + 8 in byte i. */

/* Sets byte i of `codes` to the E2M1 of channel i; the upper 4 bits of a byte may be anything. This holds in either byte order:
 * the shift brings each byte's upper half into its lower half. */
static inline void spread_nvfp4(uint64_t codes[2], const char *group) {
    memcpy(codes, group + 1, sizeof *codes);
    codes[1] = codes[0] >> 4;
}

/* Returns the scale of a group as the uppermost byte of 32 bits. */
static inline int32_t upper_scale(const char *group) { return (int32_t)((uint32_t)(uint8_t)*group << 24); }

static inline vf v_load_nvfp4(const char *row, int channel) {
    const char *group = group_of_nvfp4(row, channel);
    uint64_t codes[2];
    spread_nvfp4(codes, group);
    vf scale = v_from_upper_e4m3(i_set1(upper_scale(group)));
    return v_mul(scale, v_from_e2m1(i_load_u8((const char *)codes + (channel & 15))));
}

static inline void read_nvfp4(key_columns *c, const char *const *rows, size_t offset, const int nr) {
    (void)nr;
    uint64_t codes[RAPT_VL][2];
    int32_t scales[RAPT_VL];
    const char *at[RAPT_VL];
    UNROLLED(r, RAPT_VL) {
        spread_nvfp4(codes[r], rows[r] + offset);
        scales[r] = upper_scale(rows[r] + offset);
        at[r] = (const char *)codes[r];
    }
    c->scale = v_from_upper_e4m3(v_as_int(v_load(scales)));
    read_four_columns(c->dwords, at, 0);
}
static inline vf v_column_nvfp4(const key_columns *c, vi dword, const int i) {
    return v_mul(c->scale, v_from_e2m1(code_of_byte(dword, i)));
}

#if RAPT_VL == 1
/* Stores a group. A scale of 0 or NaN leaves all codes 0. */
static inline void store_group_nvfp4(uint8_t *group, const float *x) {
    float s = largest_magnitude(x, 16) / 6.0f;
    uint8_t n[16];
    memset(group, 0, 9);
    store_group_f8_e4m3(group, &s);
    s = v_load_f8_e4m3((const char *)group, 0);
    if (!(s > 0.0f)) return;
    for (int i = 0; i < 16; i++) n[i] = e2m1_of(x[i] / s);
    store_halves(group + 1, n, 8);
}
#endif
