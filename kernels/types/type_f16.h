/* SPDX-License-Identifier: Apache-2.0 */
/* f16 storage. An ISA that converts in hardware defines RAPT_NATIVE_F16 and the first words itself; here they are in integers. */
#if !RAPT_NATIVE_F16

/* Converts the f16 in the low half of each lane. A product changes the bias of the exponent, and turns f16's denormals into
 * normal numbers; infinities and NaNs are repaired afterwards. */
static inline vf v_from_f16(vi h) {
    vi magnitude = i_shl(i_and(h, i_set1(0x7fff)), 13);
    vi finite = v_as_int(v_mul(v_as_float(magnitude), v_set1(0x1p112f)));
    vi special = i_or(magnitude, i_set1(0x7f800000));
    vi value = i_select(i_gt(magnitude, i_set1(0x0f7fffff)), special, finite);
    return v_as_float(i_or(value, i_shl(i_and(h, i_set1(0x8000)), 16)));
}

static inline vf v_load_f16(const void *from) { return v_from_f16(i_load_u16(from)); }
static inline vf v_load_f16_high(const void *from) { return v_from_f16(i_shl(i_load_u8(from), 8)); }
static inline vf v_broadcast_f16(const void *from) {
    uint16_t h;
    memcpy(&h, from, sizeof h);
    return v_from_f16(i_set1(h));
}

/* Stores x as f16, rounded to nearest even. Normal results are rounded as integers, by the same addition as bf16's. Results below
 * 2^-14 have a fixed unit, 2^-24: adding 0.5, whose last place is 2^-24, makes the FPU round to it. */
static inline void v_store_f16(void *to, vf x) {
    vi bits = v_as_int(x);
    vi magnitude = i_and(bits, i_set1(0x7fffffff));
    vi odd = i_and(i_shr(magnitude, 13), i_set1(1));
    vi normal = i_shr(i_add(magnitude, i_add(odd, i_set1(0xfff - (112 << 23)))), 13);
    vi denormal = i_sub(v_as_int(v_add(v_as_float(magnitude), v_set1(0.5f))), v_as_int(v_set1(0.5f)));
    vi h = i_select(i_gt(i_set1(0x38800000), magnitude), denormal, normal);
    h = i_select(i_gt(magnitude, i_set1(0x477fefff)), i_set1(0x7c00), h); /* 65520 and above round to infinity */
    h = i_select(i_gt(magnitude, i_set1(0x7f800000)), i_set1(0x7e00), h);
    i_store_u16(to, i_or(h, i_and(i_shr(bits, 16), i_set1(0x8000))));
}

#endif

/* Converts before it transposes, unlike the other types: a load converts f16 at little cost, while halves of dwords would have to
 * be packed first. */
static inline void read_f16(key_columns *c, const char *const *rows, size_t offset, const int nr) {
    vf line[RAPT_VL];
    (void)nr;
    UNROLLED(i, RAPT_VL) line[i] = v_load_f16(rows[i] + offset);
    v_transpose(line);
    UNROLLED(i, RAPT_VL) c->dwords[i] = v_as_int(line[i]);
}
static inline vf v_column_f16(const key_columns *c, vi dword, const int i) {
    (void)c, (void)i;
    return v_as_float(dword);
}
