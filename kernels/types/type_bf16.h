/* SPDX-License-Identifier: Apache-2.0 */
/* bf16 storage: the upper half of an f32, rounded to nearest even. */
static inline vf v_load_bf16(const void *from) { return v_as_float(i_shl(i_load_u16(from), 16)); }

static inline void v_store_bf16(void *to, vf x) {
    vi bits = v_as_int(x);
    vi odd = i_and(i_shr(bits, 16), i_set1(1));
    vi rounded = i_shr(i_add(bits, i_add(odd, i_set1(0x7fff))), 16);
    vi quiet = i_or(i_shr(bits, 16), i_set1(0x40)); /* a NaN stays NaN: rounding could carry it into an infinity */
    i_store_u16(to, i_select(i_gt(i_and(bits, i_set1(0x7fffffff)), i_set1(0x7f800000)), quiet, rounded));
}

/* Returns the number of each lane's pair that comes first in memory, for i = 0, or second, for i = 1. */
static inline vf v_part_bf16(vi pairs, const int i) {
    return v_as_float(element_place(i, 16) == 0 ? i_shl(pairs, 16) : i_and(pairs, i_set1(INT32_MIN >> 15)));
}

/* Returns the number that comes first in memory. */
static inline vf first_of_pairs(vi pairs) { return v_part_bf16(pairs, 0); }

/* Returns the number that comes second. */
static inline vf second_of_pairs(vi pairs) { return v_part_bf16(pairs, 1); }

static inline void read_bf16(key_columns *c, const char *const *rows, size_t offset, const int nr) {
    read_line(c, rows, offset, nr);
}
static inline vf v_column_bf16(const key_columns *c, vi dword, const int i) {
    (void)c;
    return v_part_bf16(dword, i);
}
