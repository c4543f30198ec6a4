/* SPDX-License-Identifier: Apache-2.0 */
/* ggml's q4_K: an f16 scale d, an f16 scale e of minimums, 12 bytes with 6-bit integers, a scale a and a minimum b for each
 * sub-block of 32 of the 256 channels, and 128 bytes of 4-bit codes n: 32 bytes have the codes of 64 channels, of the first 32 in
 * their lower halves. An element is d * a * n - e * b. All products are exact, so the difference is rounded once. */

/* Reads the scales a and the minimums b of the 8 sub-blocks. The lower bits of those of sub-blocks 4 to 7 are halves of bytes;
 * their upper two are those of the bytes of sub-blocks 0 to 3. Four bytes at a time, in the order of memory. */
static inline void read_integers_q4_k(const char *block, uint8_t *scales, uint8_t *minimums) {
    uint32_t bytes[3];
    memcpy(bytes, block + 4, sizeof bytes);
    const uint32_t six = 0x3f3f3f3f, four = 0x0f0f0f0f, upper = 0x30303030;
    const uint32_t a[2] = {bytes[0] & six, (bytes[2] & four) | (bytes[0] >> 2 & upper)};
    const uint32_t b[2] = {bytes[1] & six, (bytes[2] >> 4 & four) | (bytes[1] >> 2 & upper)};
    memcpy(scales, a, sizeof a);
    memcpy(minimums, b, sizeof b);
}

/* Unpacks the codes of a block. */
static inline void unpack_q4_k(const char *block, int8_t *to) {
    for (int i = 0; i < 128; i += 16) {
        const bytes_of_16 pairs = load_bytes(block + 16 + i), low = pairs & 15, high = pairs >> 4;
        memcpy(to + i / 32 * 64 + i % 32, &low, sizeof low);
        memcpy(to + i / 32 * 64 + i % 32 + 32, &high, sizeof high);
    }
}

static inline void unpack_blocks_q4_k(const char *row, int channels, unpacked_blocks *to) {
    for (int i = 0; i < channels; i += MATRIX_BLOCK, row += 144) {
        uint8_t scales[16] = {0}, minimums[16] = {0};
        read_integers_q4_k(row, scales, minimums);
        unpack_q4_k(row, to->integers + i);
        for (int j = 0; j < 8; j += RAPT_VL) {
            v_store(to->scales + i / 32 + j, v_mul(v_broadcast_f16_le(row), v_from_int(i_load_u8(scales + j))));
            v_store(to->minimums + i / 32 + j, v_mul(v_broadcast_f16_le(row + 2), v_from_int(i_load_u8(minimums + j))));
        }
    }
}

static inline vf v_load_q4_k(const unpacked_blocks *from, int channel) {
    const vf product = v_mul(v_broadcast(from->scales + channel / 32), v_from_int(i_load_s8(from->integers + channel)));
    return v_sub(product, v_broadcast(from->minimums + channel / 32));
}
