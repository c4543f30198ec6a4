/* SPDX-License-Identifier: Apache-2.0 */
/* f32 storage: nothing to convert. */
static inline vf v_load_f32(const void *from) { return v_load(from); }
static inline void v_store_f32(void *to, vf x) { v_store(to, x); }
