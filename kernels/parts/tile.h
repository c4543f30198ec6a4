/* SPDX-License-Identifier: Apache-2.0 */
/* The one tile product, in words: C[r][m] (+)= sum over k of A[r*rs + k*ks] * B[k][m], m in lanes, A broadcast, k ascending in
 * one accumulator for each element. It serves all products of f32, but for scores with keys in lanes (score_tile) and linear
 * layers of few tokens (linear_tile). Strides are in bytes, A is f32 and B of any storage type, each at any address. RAPT_PANEL
 * and RAPT_ROWS_1 to _8, the sizes of its register tiles, are constants of the ISA file. */

/* C = AB, C = C + AB, C = C * scale[m] + AB; and C = C + AB where AB is summed by itself first. */
typedef enum start { START_ZERO, START_KEEP, START_SCALE, START_APART } start;

/* Rows of a tensor that are needed soon: some of their cache lines are prefetched before each register tile. */
typedef struct coming {
    const char *const *rows;
    size_t bytes, at; /* of a row; of the row so far */
    int left, lines;  /* rows; lines for each register tile */
} coming;

typedef struct operands {
    char *c;
    size_t ldc; /* bytes from row to row */
    const char *a;
    size_t rs, ks;
    const char *b;
    size_t ldb;
    int depth;
    start start;        /* but for stream_product, which always keeps C */
    const float *scale; /* for START_SCALE, one for each lane of the panel */
    ptrdiff_t even;     /* 0, or at this many bytes from C lie sums that AB is added to first, but for stream_product */
    const char *const
        *rows;     /* for stream_product, instead of b and ldb: the rows of B lie offset bytes behind these, and the row */
    size_t offset; /* `ahead` rows further on is prefetched */
    int ahead;
    coming *coming; /* for tile_product */
} operands;

static RAPT_INLINE void prefetch_coming(coming *c) {
    for (int i = 0; i < c->lines && c->left > 0; i++) {
        prefetch(*c->rows, c->at);
        c->at += 64;
        if (c->at < c->bytes) continue;
        c->at = 0;
        c->left--;
        c->rows++;
    }
}

/* How a vector of B comes, of `vector` bytes: from scratch, or stream, from rows anywhere in memory. Elements that are parts of a
 * dword are dealt out to `dealt` vectors, as many as it has of them, since widening them in order costs a shuffle for each
 * vector: element i of dword j of a row goes to lane j of vector i, and C has its channels in the order that this makes. Vectors
 * that are less than that many are in their own order, and those of other types, of which dealt is 1. */
typedef struct b_format {
    load_channels *load;
    part_word *part; /* of no meaning where dealt is 1 */
    size_t vector;
    int dealt;
    bool stream;
} b_format;

/* Vectors [0, nv) of B of a step. */
static RAPT_INLINE void load_b(const b_format b, const int nv, const char *row, vf *to) {
    UNROLLED(v, nv) {
        if (b.dealt > 1 && nv % b.dealt == 0)
            to[v] = b.part(v_as_int(v_load(row + (size_t)(v / b.dealt) * sizeof(vf))), v % b.dealt);
        else to[v] = b.load(row, v * RAPT_VL);
    }
}

/* A register tile of nr rows and nv vectors. nv and nr are constants wherever this is called: the loops over them unroll, and acc
 * lives in registers. Replaceable. */
static RAPT_INLINE void tile(const b_format format, const int nv, const int nr, operands o);
#ifndef tile
static RAPT_INLINE void tile(const b_format format, const int nv, const int nr, operands o) {
    const bool stream = format.stream;
    const start from = stream ? START_KEEP : o.start;
    vf acc[32];
    UNROLLED(r, nr)
        UNROLLED(v, nv) {
            const char *c = o.c + r * o.ldc + v * sizeof(vf);
            if (from == START_ZERO || from == START_APART) acc[r * nv + v] = v_set1(0.0f);
            else if (from == START_KEEP) acc[r * nv + v] = v_load(c);
            else acc[r * nv + v] = v_mul(v_load(c), v_load(o.scale + v * RAPT_VL));
        }
    int k = 0;
#if RAPT_FMA_BY_LANE
    if (!stream && o.ks == sizeof(float)) /* a vector of A is RAPT_VL steps of a row */
        for (; k + RAPT_VL <= o.depth; k += RAPT_VL) {
            vf a[16];
            UNROLLED(r, nr) a[r] = v_load(o.a + r * o.rs + k * o.ks);
            UNROLLED(j, RAPT_VL) {
                vf b[8];
                load_b(format, nv, o.b + (k + j) * o.ldb, b);
                UNROLLED(r, nr)
                    UNROLLED(v, nv) acc[r * nv + v] = v_fma_lane(a[r], j, b[v], acc[r * nv + v]);
            }
        }
    else if (!stream && o.rs == sizeof(float) && nr % RAPT_VL == 0) /* or RAPT_VL rows of a step */
        for (; k < o.depth; k++) {
            vf a[4], b[8];
            RAPT_UNROLL for (int r = 0; r < nr; r += RAPT_VL) a[r / RAPT_VL] = v_load(o.a + r * o.rs + k * o.ks);
            load_b(format, nv, o.b + k * o.ldb, b);
            UNROLLED(r, nr)
                UNROLLED(v, nv) acc[r * nv + v] = v_fma_lane(a[r / RAPT_VL], r % RAPT_VL, b[v], acc[r * nv + v]);
        }
#endif
    for (; k < o.depth; k++) {
        vf b[8];
        const char *row = stream ? o.rows[k] + o.offset : o.b + k * o.ldb;
        load_b(format, nv, row, b);
        UNROLLED(r, nr) {
            vf a = stream ? v_broadcast(o.a + r * o.rs + k * o.ks) : v_staged(o.a + r * o.rs + k * o.ks);
            UNROLLED(v, nv) acc[r * nv + v] = v_fma(a, b[v], acc[r * nv + v]);
        }
        if (stream)
            UNROLLED(v, nv)
                if (v == 0 || v * format.vector / 64 > (v - 1) * format.vector / 64)
                    prefetch(o.rows[k + o.ahead], o.offset + v * format.vector);
    }
    if (!stream && o.even)
        UNROLLED(r, nr)
            UNROLLED(v, nv) acc[r * nv + v] = v_add(v_load(o.c + o.even + r * o.ldc + v * sizeof(vf)), acc[r * nv + v]);
    UNROLLED(r, nr)
        UNROLLED(v, nv) {
            char *c = o.c + r * o.ldc + v * sizeof(vf);
            v_store(c, from == START_APART ? v_add(v_load(c), acc[r * nv + v]) : acc[r * nv + v]);
        }
}
#endif

static RAPT_INLINE operands below(operands o, int rows) {
    o.c += (size_t)rows * o.ldc;
    o.a += (size_t)rows * o.rs;
    return o;
}

/* Whole register tiles first, then what is left by halves. */
static RAPT_INLINE void panel(const b_format b, const int nv, const int nr, operands o, int rows) {
    for (; rows >= nr; rows -= nr, o = below(o, nr)) {
        if (!b.stream) prefetch_coming(o.coming);
        tile(b, nv, nr, o);
    }
    if (nr > 8 && rows >= 8) tile(b, nv, 8, o), rows -= 8, o = below(o, 8);
    if (nr > 4 && rows >= 4) tile(b, nv, 4, o), rows -= 4, o = below(o, 4);
    if (nr > 2 && rows >= 2) tile(b, nv, 2, o), rows -= 2, o = below(o, 2);
    if (nr > 1 && rows >= 1) tile(b, nv, 1, o);
}

#define RAPT_PANEL_ROWS RAPT_PASTE(RAPT_ROWS_, RAPT_PANEL) /* of the widest panel */

/* Defines panel_1_scratch, panel_4_f16 and so on: a panel of nv vectors for a suffix of a type, or of scratch. gcc may clone
 * them, unlike RAPT_NOINLINE ones, so as to pass the used operands in registers: on an AMD EPYC (Zen 4) that is 5 % of decode
 * (D1). */
#define RAPT_DEFINE_PANEL(name, format, nv, nr)                                                                                  \
    static __attribute__((noinline)) void panel_##nv##_##name(operands o, int rows) { panel(format, nv, nr, o, rows); }

/* Rows of a register tile of `vectors` vectors, 1 to 4. */
static RAPT_INLINE int tile_rows_of(int vectors) {
    return vectors == 4 ? RAPT_ROWS_4 : vectors == 3 ? RAPT_ROWS_3 : vectors == 2 ? RAPT_ROWS_2 : RAPT_ROWS_1;
}

/* Whole register tiles that `rows` rows make, in panels of `vectors` vectors. */
static int register_tiles(int rows, int vectors) { return rows / tile_rows_of(vectors); }

#define RAPT_SCRATCH_FORMAT ((b_format){load_f32, v_part_bf16, sizeof(vf), 1, false})

/* C = A B for B in scratch, f32, of at most RAPT_TILE_VECTORS vectors. Replaceable. */
static void tile_product(operands o, int rows, int vectors);
#ifndef tile_product
RAPT_DEFINE_PANEL(scratch, RAPT_SCRATCH_FORMAT, 1, RAPT_ROWS_1)
RAPT_DEFINE_PANEL(scratch, RAPT_SCRATCH_FORMAT, 2, RAPT_ROWS_2)
RAPT_DEFINE_PANEL(scratch, RAPT_SCRATCH_FORMAT, 3, RAPT_ROWS_3)
RAPT_DEFINE_PANEL(scratch, RAPT_SCRATCH_FORMAT, 4, RAPT_ROWS_4)

static void tile_product(operands o, int rows, int vectors) {
    if (vectors == 4) panel_4_scratch(o, rows);
    else if (vectors == 3) panel_3_scratch(o, rows);
    else if (vectors == 2) panel_2_scratch(o, rows);
    else panel_1_scratch(o, rows);
}
#endif

/* Vectors of the next panel, of those that are left: the whole of what is dealt out, as far as there is. */
static inline int panel_vectors(int vectors, int widest, int dealt) {
    if (vectors >= widest) return widest;
    return vectors >= 4 ? 4 : vectors == 3 && dealt == 2 ? 2 : vectors;
}

#define RAPT_STREAM_FORMAT(name, suffix, group, bytes)                                                                           \
    ((b_format){load_##suffix, name == RAPT_F8_E4M3 ? v_part_f8_e4m3 : v_part_bf16, (bytes) * (size_t)RAPT_VL / (group),         \
                dealt_vectors(name), true})

/* Defines stream_product_f32, stream_product_q4_0 and so on, and their panels: C = A B for rows of B anywhere in memory, of any
 * storage type and number of vectors, with what lies ahead prefetched. group, bytes: channels of a group and its bytes, of which
 * panels are whole multiples; widest: most vectors of a panel; then the rows of register tiles. */
#define RAPT_STREAM_PRODUCT(name, suffix, group, bytes, widest, rows_1, rows_2, rows_3, rows_4)                                  \
    RAPT_DEFINE_PANEL(suffix, RAPT_STREAM_FORMAT(name, suffix, group, bytes), 1, rows_1)                                         \
    RAPT_DEFINE_PANEL(suffix, RAPT_STREAM_FORMAT(name, suffix, group, bytes), 2, rows_2)                                         \
    RAPT_DEFINE_PANEL(suffix, RAPT_STREAM_FORMAT(name, suffix, group, bytes), 3, rows_3)                                         \
    RAPT_DEFINE_PANEL(suffix, RAPT_STREAM_FORMAT(name, suffix, group, bytes), 4, rows_4)                                         \
    RAPT_DEFINE_PANEL(suffix, RAPT_STREAM_FORMAT(name, suffix, group, bytes), 8, RAPT_ROWS_8)                                    \
    static void stream_product_##suffix(operands o, int rows, int vectors) {                                                     \
        while (vectors > 0) {                                                                                                    \
            int nv = panel_vectors(vectors, widest, dealt_vectors(name));                                                        \
            if (nv == 8) panel_8_##suffix(o, rows);                                                                              \
            else if (nv == 4) panel_4_##suffix(o, rows);                                                                         \
            else if (nv == 3) panel_3_##suffix(o, rows);                                                                         \
            else if (nv == 2) panel_2_##suffix(o, rows);                                                                         \
            else panel_1_##suffix(o, rows);                                                                                      \
            vectors -= nv;                                                                                                       \
            o.c += nv * sizeof(vf);                                                                                              \
            o.offset += (size_t)(nv * RAPT_VL / (group)) * (bytes);                                                              \
        }                                                                                                                        \
    }

#define RAPT_TYPE(name, suffix, group, bytes)                                                                                    \
    RAPT_STREAM_PRODUCT(name, suffix, group, bytes, RAPT_PANEL, RAPT_ROWS_1, RAPT_ROWS_2, RAPT_ROWS_3, RAPT_ROWS_4)
RAPT_ELEMENT_TYPES(RAPT_TYPE)
#undef RAPT_TYPE

#if RAPT_CONVERTED_ROWS
/* Types of K and V only: at most RAPT_CONVERTED_ROWS rows, all at a time, for each pass converts. */
#define RAPT_TYPE(name, suffix, group, bytes)                                                                                    \
    RAPT_STREAM_PRODUCT(name, suffix, group, bytes, rows <= RAPT_PANEL_ROWS ? RAPT_PANEL : 4, RAPT_CONVERTED_ROWS,               \
                        RAPT_CONVERTED_ROWS, RAPT_CONVERTED_ROWS, RAPT_CONVERTED_ROWS)
RAPT_CACHE_TYPES(RAPT_TYPE)
#undef RAPT_TYPE
#endif

static void stream_product(rapt_type type, operands o, int rows, int vectors) {
    switch (type) {
#define RAPT_TYPE(name, suffix, ...)                                                                                             \
    case name:                                                                                                                   \
        stream_product_##suffix(o, rows, vectors);                                                                               \
        break;
        RAPT_ELEMENT_TYPES(RAPT_TYPE)
#if RAPT_CONVERTED_ROWS
        RAPT_CACHE_TYPES(RAPT_TYPE)
#endif
#undef RAPT_TYPE
    default:
        break;
    }
}
