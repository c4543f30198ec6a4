/* SPDX-License-Identifier: Apache-2.0 */
/* ggml's q6_K: 128 bytes of the lower 4 bits of codes, 64 bytes of their upper 2 bits, an int8 scale a for each 16 of the 256
 * channels, and an f16 scale d. Each half of the channels has 64 of the first and 32 of the second bytes: channel 32 * i + j of
 * it, j below 32, has its lower bits in byte 32 * (i & 1) + j, in the lower half if i is below 2, and its upper ones in byte j,
 * from bit 2 * i on. An element is d * a * (code - 32), which is exact. */

/* Returns the scales a of a block. */
static inline const char *scales_of_q6_k(const char *block) { return block + 192; }

/* Returns the address of its scale d. */
static inline const char *scale_of_q6_k(const char *block) { return block + 208; }

/* Loads the codes of RAPT_VL channels, which lie in a run of 16, from `channel` on. */
static inline vi i_load_q6_k(const char *block, int channel) {
    const int half = channel / 128 & 1, i = channel / 32 & 3, j = channel & 31;
    const vi lower = i_load_u8(block + half * 64 + (i & 1) * 32 + j), upper = i_load_u8(block + 128 + half * 32 + j);
    const vi low = i & 2 ? i_shr(lower, 4) : i_and(lower, i_set1(15));
    switch (i) {
    case 0:
        return i_or(low, i_and(i_shl(upper, 4), i_set1(48)));
    case 1:
        return i_or(low, i_and(i_shl(upper, 2), i_set1(48)));
    case 2:
        return i_or(low, i_and(upper, i_set1(48)));
    default:
        return i_or(low, i_and(i_shr(upper, 2), i_set1(48)));
    }
}

static inline vf v_load_q6_k(const char *row, int channel) {
    const char *const block = group_of_q6_k(row, channel);
    const vf scale =
        v_mul(v_broadcast_f16_le(scale_of_q6_k(block)), v_set1((float)(int8_t)scales_of_q6_k(block)[channel / 16 & 15]));
    return v_mul(scale, v_from_int(i_add(i_load_q6_k(block, channel), i_set1(-32))));
}

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
