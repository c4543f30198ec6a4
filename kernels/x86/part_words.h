/* SPDX-License-Identifier: Apache-2.0 */
/* Part of a vector of 16 bytes, for the words of kernels without AVX-512, whose loads have no masks of bytes. (AVX2's loads of
 * masked dwords read whole vectors under QEMU 7.2, which may be beyond the end of memory.) */
#include <emmintrin.h>
#include <stdint.h>
#include <string.h>

/* Loads `bytes` bytes, at most 16, and 0 for the others: the first and the last ones of them as numbers of one size, which may
 * overlap. */
static inline __m128i load_part_of_16(const char *from, size_t bytes) {
    const char *const end = from + bytes;
    uint64_t low = 0, high = 0;
    if (bytes >= 8) {
        memcpy(&low, from, 8), memcpy(&high, end - 8, 8);
        high = bytes == 8 ? 0 : high >> 8 * (16 - bytes);
    } else if (bytes >= 4) {
        uint32_t first, last;
        memcpy(&first, from, 4), memcpy(&last, end - 4, 4);
        low = first | (uint64_t)last << 8 * (bytes - 4);
    } else if (bytes >= 2) {
        uint16_t first, last;
        memcpy(&first, from, 2), memcpy(&last, end - 2, 2);
        low = first | (uint64_t)last << 8 * (bytes - 2);
    } else if (bytes == 1) low = (uint8_t)*from;
    return _mm_set_epi64x((int64_t)high, (int64_t)low);
}
