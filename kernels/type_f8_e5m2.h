/* SPDX-License-Identifier: Apache-2.0 */
/* E5M2 storage: the upper half of an f16. */
static inline vf v_load_f8_e5m2(const char *row, int channel) { return v_load_f16_high(row + channel); }

#if RAPT_VL == 1
/* To nearest even, as type_f16.h does it, saturating at 57344. */
static inline void store_group_f8_e5m2(uint8_t *to, const float *x) {
    uint32_t bits = v_as_int(*x), magnitude = bits & 0x7fffffff, b;
    float size = clamped(v_as_float(magnitude), 0.0f, 57344.0f);
    uint32_t within = v_as_int(size);
    if (magnitude > 0x7f800000) b = 0x7f;
    else if (size < 0x1p-14f) b = v_as_int(size + 0x1p7f) - v_as_int(0x1p7f);
    else b = ((within + 0xfffff + (within >> 21 & 1)) >> 21) - (112 << 2);
    *to = (uint8_t)(b | (bits >> 24 & 0x80));
}
#endif
