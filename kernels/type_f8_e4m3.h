/* SPDX-License-Identifier: Apache-2.0 */
/* E4M3 storage: no infinities, and one magnitude that is NaN. */

/* As an f32 with exponents rebiased, x, a normal number is right. A denormal one, m * 2^-9, has become 2^-7 + m * 2^-10, and is
 * 2 * x - 2^-6. No product with a denormal factor, which many CPUs are slow at. */
static inline vf v_load_f8_e4m3(const char *row, int channel) {
    vi b = i_load_s8(row + channel), magnitude = i_and(i_shl(b, 20), i_set1(0x7f << 20));
    vf x = v_as_float(i_add(magnitude, i_set1(120 << 23)));
    vf value = v_sub(x, v_max(v_sub(v_set1(0x1p-6f), x), v_set1(0.0f)));
    vi bits = i_select(i_gt(magnitude, i_set1(0x7e << 20)), i_set1(0x7fc00000), v_as_int(value));
    return v_as_float(i_or(bits, i_and(b, i_set1(INT32_MIN))));
}

#if RAPT_VL == 1
/* To nearest even, as type_f16.h does it, saturating at 448. */
static inline void store_group_f8_e4m3(uint8_t *to, const float *x) {
    uint32_t bits = v_as_int(*x), magnitude = bits & 0x7fffffff, b;
    float size = clamped(v_as_float(magnitude), 0.0f, 448.0f);
    uint32_t within = v_as_int(size);
    if (magnitude > 0x7f800000) b = 0x7f;
    else if (size < 0x1p-6f) b = v_as_int(size + 0x1p14f) - v_as_int(0x1p14f);
    else b = ((within + 0x7ffff + (within >> 20 & 1)) >> 20) - (120 << 3);
    *to = (uint8_t)(b | (bits >> 24 & 0x80));
}
#endif
