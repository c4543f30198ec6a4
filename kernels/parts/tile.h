/* SPDX-License-Identifier: Apache-2.0 */
/* Tile products: C[r][m] (+)= sum over k of A[r][k] * B[k][m], m in lanes, A broadcast, k ascending in one accumulator for each
 * element; the product of one k is term k. A is f32; B is f32 in scratch for tile_product, and of any storage type where it lies
 * for stream_product. These two compute all products of exact arithmetic but scores with keys in lanes (score_tile), linear
 * layers of few tokens (linear_tile), and P V without the values of masked keys (add_attended, add_attended_values). RAPT_PANEL,
 * RAPT_ROWS_1 to RAPT_ROWS_4 and RAPT_ROWS_8, the sizes of its register tiles, are constants of the ISA file. */

/* What a product does with the C that is there:
 *   ACCUMULATE_ZERO          C = AB
 *   ACCUMULATE_ADD           C = C + AB, with C as the first summand of each element
 *   ACCUMULATE_SCALE_ADD     C = C * scale[m] + AB, with C * scale[m] as the first summand
 *   ACCUMULATE_ADD_SEPARATE  C = C + AB, where AB is summed by itself first */
typedef enum accumulate_mode { ACCUMULATE_ZERO, ACCUMULATE_ADD, ACCUMULATE_SCALE_ADD, ACCUMULATE_ADD_SEPARATE } accumulate_mode;

/* Rows of a tensor that will be needed soon. Before each full register tile, `lines` of their cache lines are prefetched. */
typedef struct prefetch_queue {
    const char *const *rows;
    size_t bytes; /* of a row */
    size_t at;    /* bytes of the first row that are already prefetched */
    int left;     /* rows, with the first one */
    int lines;
} prefetch_queue;

/* The operands of a product, for tile_product and stream_product. Strides are in bytes; addresses need no alignment. */
typedef struct operands {
    char *c;
    size_t ldc; /* from row to row */
    const char *a;
    size_t rs, ks; /* from row to row, from k to k + 1 */
    const char *b; /* tile_product: B in scratch */
    size_t ldb;    /* from k to k + 1 of that B */
    int depth;     /* terms */

    /* Of tile_product. stream_product always computes as with ACCUMULATE_ADD and sums_offset 0. */
    accumulate_mode mode;
    const float *scale;    /* for ACCUMULATE_SCALE_ADD: a factor for each lane of the panel */
    ptrdiff_t sums_offset; /* if not 0: AB is first added to sums that lie this many bytes from C */

    /* Of stream_product: B anywhere in memory. */
    const char *const *rows; /* row k of B begins `offset` bytes after rows[k] */
    size_t offset;
    size_t back;        /* the last load of each row begins so many bytes earlier, to end with the row */
    int ahead;          /* while row k is multiplied, row k + ahead is prefetched */
    const char *linear; /* null, or the first row that is prefetched, if they are in the order in which they lie */

    prefetch_queue *queue; /* of tile_product, which prefetches from it; not null */
} operands;

/* Skips so many bytes of each row of B in a stream. */
static RAPT_INLINE void skip_of_rows(operands *o, size_t bytes) {
    o->offset += bytes;
    if (RAPT_LINEAR_PREFETCH && o->linear) o->linear += (size_t)o->depth * bytes;
}

/* Prefetches the next `lines` cache lines of the queue, or as many as are left. */
static RAPT_INLINE void prefetch_from_queue(prefetch_queue *queue) {
    for (int i = 0; i < queue->lines && queue->left > 0; i++) {
        prefetch(*queue->rows, queue->at);
        queue->at += 64;
        if (queue->at < queue->bytes) continue;
        queue->at = 0;
        queue->left--;
        queue->rows++;
    }
}

/* How vectors of B are read.
 *   load           reads RAPT_VL channels in memory order, widened to f32
 *   part           extracts element i of each dword; unused where deinterleaved is 1
 *   vector         bytes of memory that one vector of B takes
 *   deinterleaved  > 1: one load yields this many vectors instead: dword j of what is loaded goes to lane j, its element i to
 *                  vector i, which saves a widening shuffle for each vector. C's channels are then permuted;
 *                  interleave_channels restores their order once a chunk. Panels that are no multiple of `deinterleaved` vectors
 *                  are read in memory order
 *   stream         false: B is f32 in scratch (operands.b); true: its rows lie anywhere in memory (operands.rows)
 *   pairs          true: lanes of A and B are pairs of bf16 (bf16/exact_pairs.h), and v_fma_pairs multiplies them */
typedef struct b_format {
    load_channels *load;
    part_word *part;
    size_t vector;
    int deinterleaved;
    bool stream, pairs;
} b_format;

/* Loads vectors [0, nv) of one row of B. The last load begins `back` bytes earlier. */
static RAPT_INLINE void load_b(const b_format b, const int nv, const char *row, size_t back, vf *to) {
    const int together = nv % b.deinterleaved == 0 ? b.deinterleaved : 1; /* the vectors of a load */
    UNROLLED(v, nv) {
        const char *from = v / together == nv / together - 1 ? row - back : row;
        if (together > 1) to[v] = b.part(v_as_int(v_load(from + (size_t)(v / together) * sizeof(vf))), v % together);
        else to[v] = b.load(from, v * RAPT_VL);
    }
}

/* Computes a register tile: C for nr rows and nv vectors, whose accumulators stay in registers over all terms. Replaceable. */
static RAPT_INLINE void tile(const b_format format, const int nv, const int nr, operands o);
#ifndef tile
/* Sets the accumulators of a register tile, acc[r * nv + v], to their first summands, or to 0. */
static RAPT_INLINE void load_accumulators(const int nv, const int nr, accumulate_mode mode, const operands *o, vf *acc) {
    UNROLLED(r, nr)
        UNROLLED(v, nv) {
            const char *c = o->c + r * o->ldc + v * sizeof(vf);
            if (mode == ACCUMULATE_ZERO || mode == ACCUMULATE_ADD_SEPARATE) acc[r * nv + v] = v_set1(0.0f);
            else if (mode == ACCUMULATE_ADD) acc[r * nv + v] = v_load(c);
            else acc[r * nv + v] = v_mul(v_load(c), v_load(o->scale + v * RAPT_VL));
        }
}

#if RAPT_FMA_BY_LANE
/* Adds terms k to k + RAPT_VL - 1, where the elements of a row of A are adjacent: a vector of A holds them for one row. */
static RAPT_INLINE void add_terms_by_lane(const b_format format, const int nv, const int nr, const operands *o, int k, vf *acc) {
    vf a[16];
    UNROLLED(r, nr) a[r] = v_load(o->a + r * o->rs + k * o->ks);
    UNROLLED(j, RAPT_VL) {
        vf b[8];
        load_b(format, nv, o->b + (k + j) * o->ldb, 0, b);
        UNROLLED(r, nr)
            UNROLLED(v, nv) acc[r * nv + v] = v_fma_lane(a[r], j, b[v], acc[r * nv + v]);
    }
}

/* Adds term k, where the elements of a column of A are adjacent: a vector of A holds them for RAPT_VL rows. */
static RAPT_INLINE void add_rows_by_lane(const b_format format, const int nv, const int nr, const operands *o, int k, vf *acc) {
    vf a[4], b[8];
    RAPT_UNROLL for (int r = 0; r < nr; r += RAPT_VL) a[r / RAPT_VL] = v_load(o->a + r * o->rs + k * o->ks);
    load_b(format, nv, o->b + k * o->ldb, 0, b);
    UNROLLED(r, nr)
        UNROLLED(v, nv) acc[r * nv + v] = v_fma_lane(a[r / RAPT_VL], r % RAPT_VL, b[v], acc[r * nv + v]);
}
#endif

/* Returns acc + a * b. */
static RAPT_INLINE vf add_product(const b_format format, vf a, vf b, vf acc) {
#ifdef v_fma_pairs
    if (format.pairs) return v_fma_pairs(acc, b, a);
#else
    (void)format;
#endif
    return v_fma(a, b, acc);
}

/* Adds term k, each element of A broadcast. If B is a stream, prefetches the row of B that is needed `ahead` terms later, or of
 * the rows that lie one after the other as much as it reads. */
static RAPT_INLINE void add_broadcast_term(const b_format format, const int nv, const int nr, const operands *o, int k, vf *acc) {
    const bool stream = format.stream;
    vf b[8];
    load_b(format, nv, stream ? o->rows[k] + o->offset : o->b + k * o->ldb, stream ? o->back : 0, b);
    UNROLLED(r, nr) {
        vf a = stream ? v_broadcast(o->a + r * o->rs + k * o->ks) : v_staged(o->a + r * o->rs + k * o->ks);
        UNROLLED(v, nv) acc[r * nv + v] = add_product(format, a, b[v], acc[r * nv + v]);
    }
    if (stream) {
        const bool linear = RAPT_LINEAR_PREFETCH && o->linear;
        const char *const later = linear ? o->linear : o->rows[k + o->ahead];
        const size_t at = linear ? (size_t)(k * nv) * format.vector : o->offset;
        UNROLLED(v, nv)
            if (v == 0 || v * format.vector / 64 > (v - 1) * format.vector / 64) prefetch(later, at + v * format.vector);
    }
}

/* Writes the accumulators of a register tile to C; first adds them to the sums at sums_offset, if there are any. */
static RAPT_INLINE void store_accumulators(const b_format format, const int nv, const int nr, accumulate_mode mode,
                                           const operands *o, vf *acc) {
    if (!format.stream && o->sums_offset)
        UNROLLED(r, nr)
            UNROLLED(v, nv) acc[r * nv + v] = v_add(v_load(o->c + o->sums_offset + r * o->ldc + v * sizeof(vf)), acc[r * nv + v]);
    UNROLLED(r, nr)
        UNROLLED(v, nv) {
            char *c = o->c + r * o->ldc + v * sizeof(vf);
            v_store(c, mode == ACCUMULATE_ADD_SEPARATE ? v_add(v_load(c), acc[r * nv + v]) : acc[r * nv + v]);
        }
}

static RAPT_INLINE void tile(const b_format format, const int nv, const int nr, operands o) {
    const accumulate_mode mode = format.stream ? ACCUMULATE_ADD : o.mode;
    vf acc[32];
    int k = 0;
    load_accumulators(nv, nr, mode, &o, acc);
#if RAPT_FMA_BY_LANE
    if (!format.stream && o.ks == sizeof(float))
        for (; k + RAPT_VL <= o.depth; k += RAPT_VL) add_terms_by_lane(format, nv, nr, &o, k, acc);
    else if (!format.stream && o.rs == sizeof(float) && nr % RAPT_VL == 0)
        for (; k < o.depth; k++) add_rows_by_lane(format, nv, nr, &o, k, acc);
#endif
    for (; k < o.depth; k++) add_broadcast_term(format, nv, nr, &o, k, acc);
    store_accumulators(format, nv, nr, mode, &o, acc);
}
#endif

/* Returns the operands without their first `rows` rows. */
static RAPT_INLINE operands skip_rows(operands o, int rows) {
    o.c += (size_t)rows * o.ldc;
    o.a += (size_t)rows * o.rs;
    return o;
}

/* Computes a panel, nv vectors of all rows, in register tiles of nr rows; the rows that are left in tiles of 8, 4, 2 and 1. */
static RAPT_INLINE void panel(const b_format b, const int nv, const int nr, operands o, int rows) {
    for (; rows >= nr; rows -= nr, o = skip_rows(o, nr)) {
        if (!b.stream) prefetch_from_queue(o.queue);
        tile(b, nv, nr, o);
    }
    if (nr > 8 && rows >= 8) tile(b, nv, 8, o), rows -= 8, o = skip_rows(o, 8);
    if (nr > 4 && rows >= 4) tile(b, nv, 4, o), rows -= 4, o = skip_rows(o, 4);
    if (nr > 2 && rows >= 2) tile(b, nv, 2, o), rows -= 2, o = skip_rows(o, 2);
    if (nr > 1 && rows >= 1) tile(b, nv, 1, o);
}

/* Rows of a register tile of the widest panel. */
#define RAPT_PANEL_ROWS RAPT_PASTE(RAPT_ROWS_, RAPT_PANEL)

/* Defines panel_1_scratch, panel_4_f16 and so on: panel() for nv vectors of B in scratch, or of a storage type. */
#define RAPT_DEFINE_PANEL(name, format, nv, nr)                                                                                  \
    static RAPT_CLONEABLE void panel_##nv##_##name(operands o, int rows) { panel(format, nv, nr, o, rows); }

/* Returns the rows of a register tile of `vectors` vectors, 1 to 4. */
static RAPT_INLINE int tile_rows_of(int vectors) {
    return vectors == 4 ? RAPT_ROWS_4 : vectors == 3 ? RAPT_ROWS_3 : vectors == 2 ? RAPT_ROWS_2 : RAPT_ROWS_1;
}

/* Returns how many whole register tiles `rows` rows make in panels of `vectors` vectors. */
static int register_tiles(int rows, int vectors) { return rows / tile_rows_of(vectors); }

/* The b_format of scratch. */
#define RAPT_SCRATCH_FORMAT ((b_format){load_f32, v_part_bf16, sizeof(vf), 1, false, false})

/* Computes C from A B for f32 B in scratch, `vectors` vectors, at most RAPT_TILE_VECTORS. Replaceable. */
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

/* Returns how many of the `vectors` vectors that are left the next panel takes, at most `widest`. Three with `deinterleaved` 2
 * become panels of 2 and 1: one of 3 would be read in memory order as a whole, which is slower (b_format). */
static inline int panel_vectors(int vectors, int widest, int deinterleaved) {
    if (vectors >= widest) return widest;
    return vectors >= 4 ? 4 : vectors == 3 && deinterleaved == 2 ? 2 : vectors;
}

/* The b_format of a storage type. */
#define RAPT_STREAM_FORMAT(name, suffix, group, bytes)                                                                           \
    ((b_format){load_##suffix, name == RAPT_F8_E4M3 ? v_part_f8_e4m3 : v_part_bf16, (bytes) * (size_t)RAPT_VL / (group),         \
                deinterleaved_vectors(name), true, false})

/* Defines stream_product_f32, stream_product_q4_0 and so on, and their panels: C = C + A B for rows of B anywhere in memory, of
 * one storage type and any number of vectors. Later rows are prefetched.
 *   group, bytes      channels of a group, and its bytes; panels are whole groups
 *   widest            vectors of the widest panel
 *   rows_1 to rows_4  rows of a register tile of 1 to 4 vectors */
#define RAPT_STREAM_PRODUCT(name, suffix, group, bytes, widest, rows_1, rows_2, rows_3, rows_4)                                  \
    RAPT_DEFINE_PANEL(suffix, RAPT_STREAM_FORMAT(name, suffix, group, bytes), 1, rows_1)                                         \
    RAPT_DEFINE_PANEL(suffix, RAPT_STREAM_FORMAT(name, suffix, group, bytes), 2, rows_2)                                         \
    RAPT_DEFINE_PANEL(suffix, RAPT_STREAM_FORMAT(name, suffix, group, bytes), 3, rows_3)                                         \
    RAPT_DEFINE_PANEL(suffix, RAPT_STREAM_FORMAT(name, suffix, group, bytes), 4, rows_4)                                         \
    RAPT_DEFINE_PANEL(suffix, RAPT_STREAM_FORMAT(name, suffix, group, bytes), 8, RAPT_ROWS_8)                                    \
    static void stream_product_##suffix(operands o, int rows, int vectors) {                                                     \
        const size_t back = o.back;                                                                                              \
        while (vectors > 0) {                                                                                                    \
            int nv = panel_vectors(vectors, widest, deinterleaved_vectors(name));                                                \
            o.back = nv == vectors ? back : 0;                                                                                   \
            if (nv == 8) panel_8_##suffix(o, rows);                                                                              \
            else if (nv == 4) panel_4_##suffix(o, rows);                                                                         \
            else if (nv == 3) panel_3_##suffix(o, rows);                                                                         \
            else if (nv == 2) panel_2_##suffix(o, rows);                                                                         \
            else panel_1_##suffix(o, rows);                                                                                      \
            vectors -= nv;                                                                                                       \
            o.c += nv * sizeof(vf);                                                                                              \
            skip_of_rows(&o, (size_t)(nv * RAPT_VL / (group)) * (bytes));                                                        \
        }                                                                                                                        \
    }

#define RAPT_TYPE(name, suffix, group, bytes)                                                                                    \
    RAPT_STREAM_PRODUCT(name, suffix, group, bytes, RAPT_PANEL, RAPT_ROWS_1, RAPT_ROWS_2, RAPT_ROWS_3, RAPT_ROWS_4)
RAPT_ELEMENT_TYPES(RAPT_TYPE)
#undef RAPT_TYPE

#if RAPT_CONVERTED_ROWS
/* Cache types are converted anew for each register tile, so a full one has RAPT_CONVERTED_ROWS rows, the most there are; three
 * rows take a tile of two and one of one. */
#define RAPT_TYPE(name, suffix, group, bytes)                                                                                    \
    RAPT_STREAM_PRODUCT(name, suffix, group, bytes, rows <= RAPT_PANEL_ROWS ? RAPT_PANEL : 4, RAPT_CONVERTED_ROWS,               \
                        RAPT_CONVERTED_ROWS, RAPT_CONVERTED_ROWS, RAPT_CONVERTED_ROWS)
RAPT_CACHE_TYPES(RAPT_TYPE)
#undef RAPT_TYPE
#endif

/* Calls the stream_product_SUFFIX of a storage type. */
static void stream_product(rapt_type type, operands o, int rows, int vectors) {
    switch (type) {
#define RAPT_TYPE(name, suffix, ...)                                                                                             \
    case name:                                                                                                                   \
        stream_product_##suffix(o, rows, vectors);                                                                               \
        break;
        RAPT_DIRECT_TYPES(RAPT_TYPE)
#undef RAPT_TYPE
    default:
        break;
    }
}
