/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of libggml-rapt.so share: the host, a backend's memory and threads, and the operations that a device takes. */
#ifndef GGML_RAPT_H
#define GGML_RAPT_H

#include "ggml-backend-impl.h"
#include "ggml.h"
#include "rapt_layer.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Says a line where users see it, as ggml's own logger may be silent. */
#define say(...) (fprintf(stderr, "rapt: " __VA_ARGS__), fputc('\n', stderr))

/* ---- Types of buffers ---------------------------------------------------------------------------------------------------- */

/* struct ggml_backend_buffer_type as versions 2 and 3 of ggml's interface for backends lay it out. */
struct buffer_type_2 {
    struct {
        const char *(*get_name)(ggml_backend_buffer_type_t);
        ggml_backend_buffer_t (*alloc_buffer)(ggml_backend_buffer_type_t, size_t);
        size_t (*get_alignment)(ggml_backend_buffer_type_t);
        size_t (*get_max_size)(ggml_backend_buffer_type_t);
        size_t (*get_alloc_size)(ggml_backend_buffer_type_t, const struct ggml_tensor *);
        bool (*is_host)(ggml_backend_buffer_type_t);
    } iface;
    ggml_backend_dev_t device;
    void *context;
};
struct buffer_type_3 {
    struct {
        const char *(*get_name)(ggml_backend_buffer_type_t);
        ggml_backend_buffer_t (*alloc_buffer)(ggml_backend_buffer_type_t, size_t);
        ggml_backend_buffer_t (*alloc_buffer_n)(ggml_backend_buffer_type_t, struct ggml_tensor **, int);
        size_t (*get_alignment)(ggml_backend_buffer_type_t);
        size_t (*get_max_size)(ggml_backend_buffer_type_t);
        size_t (*get_alloc_size)(ggml_backend_buffer_type_t, const struct ggml_tensor *);
        size_t (*get_alloc_size_n)(ggml_backend_buffer_type_t, struct ggml_tensor **, int);
        bool (*is_host)(ggml_backend_buffer_type_t);
    } iface;
    ggml_backend_dev_t device;
    void *context;
};

/* ---- The host ------------------------------------------------------------------------------------------------------------ */

/* A ggml that has loaded this library: the functions of its that are called here, and what it got. A process may have several. */
struct host {
    __typeof__(&ggml_version) version;
    __typeof__(&ggml_op_name) op_name;
    __typeof__(&ggml_tensor_overhead) tensor_overhead;
    __typeof__(&ggml_nbytes) nbytes;
    __typeof__(&ggml_graph_n_nodes) graph_n_nodes;
    __typeof__(&ggml_graph_node) graph_node;
    __typeof__(&ggml_backend_cpu_buffer_type) cpu_buffer_type;
    __typeof__(&ggml_backend_cpu_buffer_from_ptr) cpu_buffer_from_ptr;
    __typeof__(&ggml_backend_buft_alloc_buffer) buft_alloc_buffer;
    __typeof__(&ggml_backend_buft_is_host) buft_is_host;
    struct ggml_backend_reg reg;
    struct ggml_backend_device device;

    /* A second device, which only has a type of buffers for weights: llama.cpp asks each device for one type, and the first one's
     * must be the CPU's, for that is where operations are computed. */
    struct ggml_backend_device weights_device;
    union {
        struct ggml_backend_buffer_type own; /* That of the headers. */
        struct buffer_type_2 version_2;
        struct buffer_type_3 version_3;
    } weights_type;
    struct host *next;
};

/* All of them, which stay as long as the process, as their devices do. */
extern struct host *hosts;

/* ---- A backend ----------------------------------------------------------------------------------------------------------- */

/* What a backend holds: its threads, and memory that grows to what the largest op has needed. */
struct context {
    int threads;
    void *scratch;
    size_t scratch_bytes;
};

/* Rounds up to whole units of the workspace's alignment. */
static inline size_t aligned(size_t bytes) {
    return (bytes + RAPT_WORKSPACE_ALIGNMENT - 1) / RAPT_WORKSPACE_ALIGNMENT * RAPT_WORKSPACE_ALIGNMENT;
}

/* Returns a backend's memory, of at least so many bytes, or null where there is none. */
void *scratch_of(struct context *context, size_t bytes);

/* rapt's loop on the threads that ggml's own loops run on, for both come from the OpenMP library of the process. There are
 * always as many as ggml has: a team of another size would end threads and start them again. pool is the context. */
void parallel_for(void *pool, int64_t n, rapt_body body, void *body_arg);

/* ---- Tensors ------------------------------------------------------------------------------------------------------------- */

/* Returns rapt's type of tensors of a type of ggml's, or RAPT_NONE for those that rapt has not. */
rapt_type type_of(enum ggml_type type);

/* Whether a tensor's channels are contiguous. */
int is_dense_inside(const struct ggml_tensor *t);

/* Returns the buffer of a tensor, or of that of which it is a view; null while it has no memory. */
static inline ggml_backend_buffer_t buffer_of(const struct ggml_tensor *t) {
    return t->view_src != NULL ? t->view_src->buffer : t->buffer;
}

/* ---- Operations ---------------------------------------------------------------------------------------------------------- */

/* The arithmetic that GGML_RAPT_ARITH asks for; integer arithmetic where numbers are blocks of integers, else exact. */
extern rapt_arith arith;

/* Reports that a library's call has failed, though its description was accepted. */
enum ggml_status failed(const char *what, const char *why);

/* Whether an op is a product with weights: MUL_MAT or MUL_MAT_ID (matmul.c). */
static inline bool is_product(const struct ggml_tensor *op) { return op->op == GGML_OP_MUL_MAT || op->op == GGML_OP_MUL_MAT_ID; }

/* Returns why a product is not taken, empty where that does not matter, or null. */
const char *decline_product(const struct host *host, const struct ggml_tensor *op, char *why, size_t bytes);
enum ggml_status multiply(const struct host *host, struct context *context, const struct ggml_tensor *op);

/* Fills in a host's second device and its type of buffers, for a version of ggml's interface for backends. */
void init_weights(struct host *host, int api_version);

/* Whether a type of buffers is that of a host's second device. */
static inline bool is_weights_type(const struct host *host, ggml_backend_buffer_type_t type) {
    return (const void *)type == (const void *)&host->weights_type;
}

/* All others (ops.c). Why one is not taken, empty where that does not matter, or null. */
const char *decline_op(const struct ggml_tensor *op);
enum ggml_status compute_op(struct context *context, const struct ggml_tensor *op);

#endif
