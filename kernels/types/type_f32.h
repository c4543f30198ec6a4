/* SPDX-License-Identifier: Apache-2.0 */
/* f32 storage: nothing to convert. */
static inline vf v_load_f32(const void *from) { return v_load(from); }
static inline void v_store_f32(void *to, vf x) { v_store(to, x); }
static inline void read_f32(key_columns *c, const char *const *rows, size_t offset, const int nr) {
    read_line(c, rows, offset, nr);
}
static inline vf v_column_f32(const key_columns *c, vi dword, const int i) {
    (void)c, (void)i;
    return v_as_float(dword);
}
