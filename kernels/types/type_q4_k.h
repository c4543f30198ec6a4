/* SPDX-License-Identifier: Apache-2.0 */
/* ggml's q4_K: an f16 scale d, an f16 scale e of minimums, 12 bytes with 6-bit integers, a scale a and a minimum b for each
 * sub-block of 32 of the 256 channels, and 128 bytes of 4-bit codes n: 32 bytes have the codes of 64 channels, of the first 32 in
 * their lower halves. An element is d * a * n - e * b. All products are exact, so the difference is rounded once. */

/* Returns the scale a of a sub-block, or with `minimum` its minimum b. The lower bits of sub-blocks 4 to 7 are halves of bytes;
 * their upper two are those of the bytes of sub-blocks 0 to 3. */
static inline int integer_of_q4_k(const char *block, int sub, bool minimum) {
    const uint8_t *const bytes = (const uint8_t *)block + 4;
    if (sub < 4) return bytes[sub + 4 * minimum] & 63;
    return (minimum ? bytes[sub + 4] >> 4 : bytes[sub + 4] & 15) | bytes[sub - 4 + 4 * minimum] >> 6 << 4;
}

static inline vf v_load_q4_k(const char *row, int channel) {
    const char *const block = group_of_q4_k(row, channel);
    const int sub = channel / 32 & 7;
    const vi bytes = i_load_u8(block + 16 + sub / 2 * 32 + (channel & 31));
    const vi code = sub & 1 ? i_shr(bytes, 4) : i_and(bytes, i_set1(15));
    const vf scale = v_mul(v_broadcast_f16_le(block), v_set1((float)integer_of_q4_k(block, sub, false)));
    const vf minimum = v_mul(v_broadcast_f16_le(block + 2), v_set1((float)integer_of_q4_k(block, sub, true)));
    return v_sub(v_mul(scale, v_from_int(code)), minimum);
}

/* Unpacks the codes of a block. */
static inline void unpack_q4_k(const char *block, int8_t *to) {
    for (int i = 0; i < 128; i += 16) {
        const bytes_of_16 pairs = load_bytes(block + 16 + i), low = pairs & 15, high = pairs >> 4;
        memcpy(to + i / 32 * 64 + i % 32, &low, sizeof low);
        memcpy(to + i / 32 * 64 + i % 32 + 32, &high, sizeof high);
    }
}
