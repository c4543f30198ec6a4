/* SPDX-License-Identifier: Apache-2.0 */
/* int8 storage: signed bytes. Their scales, if any, are those of tokens or channels (rapt_scales). v_load_int8 converts channels
 * of a row, v_column_int8 byte i of each lane's dword, when K has been transposed as bytes (parts/columns.h). In integer
 * arithmetic bytes stay bytes (int8/). */
static inline vf v_load_int8(const char *row, int channel) { return v_from_int(i_load_s8(row + channel)); }

static inline void read_int8(key_columns *c, const char *const *rows, size_t offset, const int nr) {
    read_line(c, rows, offset, nr);
}
static inline vf v_column_int8(const key_columns *c, vi dword, const int i) {
    (void)c;
    return signed_byte(dword, i);
}

#if RAPT_VL == 1
static inline void store_group_int8(uint8_t *to, const float *x) { *to = (uint8_t)nearest(*x, -127, 127); }
#endif
