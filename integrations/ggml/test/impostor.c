/* SPDX-License-Identifier: Apache-2.0 */
/* impostor LIBRARY VERSION OP: loads a backend as ggml does, and says for ggml that it is of this version and that the
 * operation FLASH_ATTN_EXT is called so. Prints whether the backend would serve it. */
#include "ggml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const char *version, *op;

const char *ggml_version(void) { return version; }
const char *ggml_op_name(enum ggml_op number) {
    return number == GGML_OP_FLASH_ATTN_EXT ? op : number == GGML_OP_SOFT_MAX ? "SOFT_MAX" : "";
}
size_t ggml_tensor_overhead(void) { return 32 + 336; }
int ggml_graph_n_nodes(struct ggml_cgraph *graph) { return (void)graph, 0; }
struct ggml_tensor *ggml_graph_node(struct ggml_cgraph *graph, int i) { return (void)graph, (void)i, NULL; }
size_t ggml_nbytes(const struct ggml_tensor *tensor) { return (void)tensor, 0; }
void *ggml_backend_cpu_buffer_type(void) { return NULL; }
void *ggml_backend_cpu_buffer_from_ptr(void *memory, size_t bytes) { return (void)memory, (void)bytes, NULL; }
void *ggml_backend_buft_alloc_buffer(void *type, size_t bytes) { return (void)type, (void)bytes, NULL; }
int ggml_backend_buft_is_host(void *type) { return type != NULL; }

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    version = argv[2], op = argv[3];
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL), *symbol = library ? dlsym(library, "ggml_backend_init") : NULL;
    void *(*init)(void);
    if (symbol == NULL) return 2;
    memcpy(&init, &symbol, sizeof symbol);
    const int *api_version = init();
    if (api_version == NULL) puts("refused");
    else printf("served, interface %d\n", *api_version);
    return 0;
}
