/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of storage types share: words that read groups and floats of few bits, and, where RAPT_VL is 1, functions that
 * write them. Included by type_words.h before the files of the types that use it. */

/* Defines group_of_SUFFIX(row, channel) for each type of RAPT_CACHE_TYPES: returns the group of the row that the channel lies in.
 */
#define RAPT_TYPE(name, suffix, group, bytes)                                                                                    \
    static inline const char *group_of_##suffix(const char *row, int channel) { return row + (size_t)channel / group * bytes; }
RAPT_CACHE_TYPES(RAPT_TYPE)
#undef RAPT_TYPE

/* Returns a little-endian f16 in all lanes. The scales and minima of groups are such numbers on every machine, except in MX types
 * and NVFP4, whose scales are bytes. */
static inline vf v_broadcast_f16_le(const char *from) {
    const char bytes[2] = {from[ON_BIG_ENDIAN], from[1 - ON_BIG_ENDIAN]};
    return v_broadcast_f16(bytes);
}

/* Converts little-endian f16 in the lower halves of lanes, which were read in the byte order of the machine. */
static inline vf v_from_f16_le(vi h) {
    if (ON_BIG_ENDIAN) h = i_or(i_and(i_shl(h, 8), i_set1(0xff00)), i_and(i_shr(h, 8), i_set1(0xff)));
    return v_from_f16(h);
}

#if RAPT_VL == 1
/* Stores x as a little-endian f16. */
static inline void store_f16_le(uint8_t *to, float x) {
    uint8_t bytes[2];
    v_store_f16(bytes, x);
    to[0] = bytes[ON_BIG_ENDIAN], to[1] = bytes[1 - ON_BIG_ENDIAN];
}
#endif

/* Loads the 4-bit codes of RAPT_VL channels from `channel` on: channels i and i + 16 of a group are the lower and the upper half
 * of byte i. */
static inline vi i_load_halves(const char *from, int channel) {
    vi n = i_load_u8(from + (channel & 15));
    return channel & 16 ? i_shr(n, 4) : i_and(n, i_set1(15));
}

/* 16 integers of a group. A vector type of the compiler's, since an array or a struct would be slower: loops over it are split
 * into single bytes where they are inlined, and structs are copied. */
typedef uint8_t bytes_of_16 __attribute__((vector_size(16)));

/* Loads 16 bytes. */
static inline bytes_of_16 load_bytes(const char *from) {
    bytes_of_16 x;
    memcpy(&x, from, sizeof x);
    return x;
}

/* Stores the bytes of channels 0 to 15 (`low`) and 16 to 31 (`high`), each plus `add` modulo 256. */
static inline void store_numbers(void *to, bytes_of_16 low, bytes_of_16 high, int add) {
    low += (uint8_t)add;
    high += (uint8_t)add;
    memcpy(to, &low, sizeof low);
    memcpy((char *)to + sizeof low, &high, sizeof high);
}

/* A part of a row of weights of a type of RAPT_MATRIX_TYPES: the integers of its blocks, and the factors of their sub-blocks. The
 * types have two words: unpack_blocks_SUFFIX(row, channels, to) unpacks whole blocks, RAPT_LINEAR_PART channels at most, and
 * v_load_SUFFIX(from, channel) converts channels. Factors are written in whole vectors, which may reach beyond the last. */
typedef struct unpacked_blocks {
    int8_t integers[RAPT_LINEAR_PART];
    float scales[RAPT_LINEAR_PART / 16 + 16];   /* q6_K: of each 16 channels; q4_K: of each 32 */
    float minimums[RAPT_LINEAR_PART / 32 + 16]; /* q4_K: of each 32 channels */
} unpacked_blocks;

enum { MATRIX_BLOCK = 256 }; /* channels of a block of these types */

/* Unpacks a group's 32 integers to bytes, adding `add` modulo 256: channels i and i + 16 share byte i. */
static inline void unpack_halves(const char *from, int add, void *to) {
    bytes_of_16 pairs = load_bytes(from);
    store_numbers(to, pairs & 15, pairs >> 4, add);
}

/* Unpacks a group's 32 integers of 5 bits to bytes, adding `add` modulo 256: 4 bytes have the fifth bits, and the other bits
 * follow as unpack_halves reads them. */
static inline void unpack_5bit(const char *from, int add, void *to) {
    /* Compared, since x86 has no shifts of bytes, and gcc would shift one after the other. */
    const bytes_of_16 place = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    bytes_of_16 pairs = load_bytes(from + 4), bits = {0};
    memcpy(&bits, from, 4);
    bytes_of_16 low = __builtin_shufflevector(bits, bits, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1),
                high = __builtin_shufflevector(bits, bits, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    store_numbers(to, (pairs & 15) | ((bytes_of_16)((low & place) == place) & 16),
                  pairs >> 4 | ((bytes_of_16)((high & place) == place) & 16), add);
}

/* Unpacks a group's 32 integers to bytes, adding `add` modulo 256: channels 2i and 2i + 1 share byte i. */
static inline void unpack_pairs(const char *from, int add, void *to) {
    bytes_of_16 pairs = load_bytes(from), even = pairs & 15, odd = pairs >> 4;
    store_numbers(to, __builtin_shufflevector(even, odd, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
                  __builtin_shufflevector(even, odd, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31), add);
}

/* Loads the 5-bit codes of RAPT_VL channels from `channel` on: 4 bytes of a group have the fifth bits, and the other bits follow
 * as i_load_halves reads them. */
static inline vi i_load_5bit(const char *from, int channel) {
    uint32_t bits;
    memcpy(&bits, from, sizeof bits);
    if (ON_BIG_ENDIAN) bits = __builtin_bswap32(bits);
    return i_or(i_load_halves(from + sizeof bits, channel), i_shl(i_bits(bits >> (channel & 31)), 4));
}

/* Loads a scale of OCP MX to all lanes. It is a byte e in E8M0, which means 2^(e - 127), or NaN if e is 255 (version 1.0 of the
 * specification, section 5.4.1). Only 2^-127, of e = 0, is a denormal f32. */
static inline vf v_broadcast_e8m0(const char *from) {
    uint32_t e = (uint8_t)*from;
    return v_as_float(i_set1((int32_t)(e == 255 ? 0x7fc00000 : e == 0 ? 0x00400000 : e << 23)));
}

/* Converts an E8M0 in each lane. */
static inline vf v_from_e8m0(vi e) {
    vi bits = i_select(i_gt(i_set1(1), e), i_set1(0x00400000), i_shl(e, 23));
    return v_as_float(i_select(i_gt(e, i_set1(254)), i_set1(0x7fc00000), bits));
}

/* Converts the magnitude of a float of few bits to f32. magnitude has its exponent and fraction where f32 has them; bias is that
 * of its exponent. Normal numbers only need the bias changed, which gives x. A denormal number means 2^(1 - bias) * fraction, but
 * x is 2^(-bias) * (1 + fraction): 2 * x - 2^(1 - bias) is right. A product would do, too, but many CPUs are slow at denormal
 * factors. */
static inline vf v_small_float(vi magnitude, const int bias) {
    vf x = v_as_float(i_add(magnitude, i_set1((127 - bias) << 23)));
    vf least = v_as_float(i_set1((128 - bias) << 23)); /* the smallest normal number, 2^(1 - bias) */
    return v_sub(x, v_max(v_sub(least, x), v_set1(0.0f)));
}

/* Returns in lane r the f16 scale with which the group at rows[r] + offset begins. */
static inline vf v_scale_of(const char *const *rows, size_t offset) {
    return v_from_f16_le(first_half(read_column(rows, offset)));
}

/* Returns in lane r the E8M0 scale with which the group at rows[r] + offset begins. */
static inline vf v_e8m0_of(const char *const *rows, size_t offset) {
    return v_from_e8m0(i_and(first_byte(read_column(rows, offset)), i_set1(255)));
}

/* Reads a group of each row: an f16 scale, then 16 bytes of 4-bit codes. */
static inline void read_scaled_nibbles(key_columns *c, const char *const *rows, size_t offset) {
    c->scale = v_scale_of(rows, offset);
    read_four_columns(c->dwords, rows, offset + 2);
}

/* Reads a group of each row: an f16 scale and an f16 minimum, then 16 bytes of 4-bit codes. */
static inline void read_ranged_nibbles(key_columns *c, const char *const *rows, size_t offset) {
    const vi both = read_column(rows, offset);
    c->scale = v_from_f16_le(first_half(both));
    c->least = v_from_f16_le(second_half(both));
    read_four_columns(c->dwords, rows, offset + 4);
}

/* Returns byte i of each dword in the low bits of its lane; higher bits are undefined. */
static inline vi code_of_byte(vi dword, const int i) { return nth_of_dword(dword, i, 8); }

/* Returns nibble i of each dword in the low bits of its lane; higher bits are undefined. */
static inline vi code_of_nibble(vi dword, const int i) { return nth_of_dword(dword, i, 4); }

/* Converts 4-bit codes in the low bits of lanes, of groups that read_scaled_nibbles reads: scale * (code - 8). */
static inline vf v_scaled_nibble(const key_columns *c, vi x) {
    return v_mul(c->scale, v_from_int(i_add(i_and(x, i_set1(15)), i_set1(-8))));
}

/* Converts 4-bit codes in the low bits of lanes, of groups that read_ranged_nibbles reads: scale * code + minimum. */
static inline vf v_ranged_nibble(const key_columns *c, vi x) {
    return v_fma(c->scale, v_from_int(i_and(x, i_set1(15))), c->least);
}

/* ---- Writing groups: with one lane only, for dispatch/cache/rows.c ------------------------------------------------------- */

#if RAPT_VL == 1

/* Returns |x|. */
static inline float magnitude_of(float x) { return v_as_float(v_as_int(x) & 0x7fffffff); }

/* True if x is neither infinite nor NaN. */
static inline bool is_finite(float x) { return x - x == 0.0f; }

/* Returns x, limited to [least, most]. */
static inline float clamped(float x, float least, float most) { return x < least ? least : x > most ? most : x; }

/* Converts |x| to exponent and fraction of a float of few bits, rounded to nearest even and limited to `most`. Normal results are
 * rounded as integers, by adding half a unit. Denormal ones have a fixed unit, 2^(1 - bias - fraction): adding an f32 whose last
 * place is that unit makes the FPU round to it. */
static inline uint32_t small_float_of(float x, int fraction, int bias, float most) {
    const int shift = 23 - fraction;
    float size = clamped(magnitude_of(x), 0.0f, most), addend = v_as_float((uint32_t)(127 + shift + 1 - bias) << 23);
    uint32_t bits = v_as_int(size);
    if (bits >> 23 < (uint32_t)(128 - bias)) return v_as_int(size + addend) - v_as_int(addend);
    return ((bits + (1u << (shift - 1)) - 1 + (bits >> shift & 1)) >> shift) - ((uint32_t)(127 - bias) << fraction);
}

/* Returns the sign of x as bit number `bit`. */
static inline uint8_t sign_of(float x, int bit) { return (uint8_t)(v_as_int(x) >> 31 << bit); }

/* Returns the integer in [least, most] that is nearest to x, ties to even; 0 for NaN. */
static inline int nearest(float x, int least, int most) {
    return x == x ? (int)((clamped(x, (float)least, (float)most) + 0x1.8p23f) - 0x1.8p23f) : 0;
}

/* Returns the integer part of x, limited to [0, most]. x must not be NaN. */
static inline uint8_t truncated(float x, int most) { return (uint8_t)clamped(x, 0.0f, (float)most); }

/* Returns the largest magnitude of a group's n elements; NaN if one is not finite. */
static inline float largest_magnitude(const float *x, int n) {
    uint32_t most = 0; /* magnitudes are in the order of their bits */
    for (int i = 0; i < n; i++) {
        uint32_t size = v_as_int(magnitude_of(x[i]));
        most = size > most ? size : most;
    }
    return v_as_float(most > 0x7f7fffff ? 0x7fc00000 : most);
}

/* Returns the first of a group's n elements that has the largest magnitude, with its sign; NaN if one is not finite. */
static inline float largest(const float *x, int n) {
    float most = largest_magnitude(x, n);
    for (int i = 0; i < n; i++)
        if (magnitude_of(x[i]) == most) return x[i];
    return most;
}

/* Returns the distance from the least to the largest of a group's n elements, and sets *least; NaN if one is not finite. */
static inline float range_of(const float *x, int n, float *least) {
    float low = x[0], high = x[0], none = 0.0f;
    for (int i = 0; i < n; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
        none += x[i] - x[i];
    }
    *least = low;
    return none == 0.0f ? high - low : none;
}

/* Fills a group with zeros. Returns false if its scale s is not finite: an f16 NaN is then stored as scale, which makes all of
 * the group NaN. */
static inline bool start_group(uint8_t *group, size_t bytes, float s) {
    memset(group, 0, bytes);
    if (!is_finite(s)) group[1] = 0x7e;
    return is_finite(s);
}

/* Fills a group of OCP MX with zeros and stores its scale: 2 to the exponent of the largest magnitude of the n elements, less
 * most_exponent, that of the largest number of the element type (section 6.3); but at least 2^-127. Returns 1 / scale, by which
 * the caller multiplies the elements before it stores them. If an element is not finite, the scale is NaN, and it returns 0,
 * which leaves the elements 0. */
static inline float start_mx_group(uint8_t *group, size_t bytes, const float *x, int n, int most_exponent) {
    uint32_t most = v_as_int(largest_magnitude(x, n));
    int e = (int)(most >> 23) - most_exponent; /* the scale's exponent, biased */
    memset(group, 0, bytes);
    group[0] = (uint8_t)(most > 0x7f800000 ? 255 : e > 0 ? e : 0);
    return most > 0x7f800000 ? 0.0f : v_as_float((uint32_t)(254 - group[0]) << 23);
}

/* Stores x, limited to the finite range of f16, as a scale or a minimum, and returns the stored number. */
static inline float store_finite_f16_le(uint8_t *to, float x) {
    store_f16_le(to, clamped(x, -65504.0f, 65504.0f));
    return v_broadcast_f16_le((const char *)to);
}

/* Returns 1 / s, or 0 if that is not finite: s is then 0 as f16, so the integers do not matter. */
static inline float inverse(float s) { return is_finite(1.0f / s) ? 1.0f / s : 0.0f; }

/* Packs 32 integers of 4 bits, as unpack_pairs reads them. */
static inline void store_pairs(uint8_t *to, const uint8_t *n) {
    for (int i = 0; i < 16; i++) to[i] = (uint8_t)(n[2 * i] | n[2 * i + 1] << 4);
}

/* Packs integers of 4 bits, numbers i and i + `bytes` in byte i: with 16 bytes as unpack_halves reads them. */
static inline void store_halves(uint8_t *to, const uint8_t *n, int bytes) {
    for (int i = 0; i < bytes; i++) to[i] = (uint8_t)((n[i] & 15) | n[i + bytes] << 4);
}

/* Packs 32 integers of 5 bits, as unpack_5bit reads them, to bytes whose first 4 are 0. */
static inline void store_5bit(uint8_t *to, const uint8_t *n) {
    for (int i = 0; i < 32; i++) to[i / 8] = (uint8_t)(to[i / 8] | n[i] >> 4 << i % 8);
    store_halves(to + 4, n, 16);
}

#endif
