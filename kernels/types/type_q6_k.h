/* SPDX-License-Identifier: Apache-2.0 */
/* ggml's q6_K: 128 bytes of the lower 4 bits of codes, 64 bytes of their upper 2 bits, an int8 scale a for each 16 of the 256
 * channels, and an f16 scale d. Each half of the channels has 64 of the first and 32 of the second bytes: channel 32 * i + j of
 * it, j below 32, has its lower bits in byte 32 * (i & 1) + j, in the lower half if i is below 2, and its upper ones in byte j,
 * from bit 2 * i on. An element is d * a * (code - 32), which is exact. */

/* Returns the scales a of a block. */
static inline const char *scales_of_q6_k(const char *block) { return block + 192; }

/* Returns the address of its scale d. */
static inline const char *scale_of_q6_k(const char *block) { return block + 208; }

/* Unpacks the integers of a block, codes less 32, adding `add` modulo 256. */
static inline void unpack_q6_k(const char *block, int add, int8_t *to) {
    for (int n = 0; n < 64; n += 16) {
        const int half = n / 32, j = n % 32;
        const bytes_of_16 a = load_bytes(block + half * 64 + j), b = load_bytes(block + half * 64 + 32 + j),
                          upper = load_bytes(block + 128 + n), less = (bytes_of_16){0} + (uint8_t)(add - 32);
        const bytes_of_16 codes[4] = {(a & 15) | (upper << 4 & 48), (b & 15) | (upper << 2 & 48), a >> 4 | (upper & 48),
                                      b >> 4 | (upper >> 2 & 48)};
        for (int i = 0; i < 4; i++) {
            const bytes_of_16 integers = codes[i] + less;
            memcpy(to + half * 128 + i * 32 + j, &integers, sizeof integers);
        }
    }
}

static inline void unpack_blocks_q6_k(const char *row, int channels, unpacked_blocks *to) {
    for (int i = 0; i < channels; i += MATRIX_BLOCK, row += 210) {
        unpack_q6_k(row, 0, to->integers + i);
        for (int j = 0; j < 16; j += RAPT_VL)
            v_store(to->scales + i / 16 + j,
                    v_mul(v_broadcast_f16_le(scale_of_q6_k(row)), v_from_int(i_load_s8(scales_of_q6_k(row) + j))));
    }
}

static inline vf v_load_q6_k(const unpacked_blocks *from, int channel) {
    return v_mul(v_broadcast(from->scales + channel / 16), v_from_int(i_load_s8(from->integers + channel)));
}
