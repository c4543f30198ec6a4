/* SPDX-License-Identifier: Apache-2.0 */
/* The few things that the tests and the benchmark want of llama.cpp, in the words of its C API, whose structs only a compiler
 * knows: a shared library that Python calls. What it calls is in xllamacpp's own library, which Python has loaded before,
 * locally. */
#include "llama.h"

#include <stdlib.h>
#include <string.h>

/* A model in a context of its own. */
struct host {
    struct llama_model *model;
    struct llama_context *context;
    int threads, embeds;
};

static void be_silent(enum ggml_log_level level, const char *text, void *arg) { (void)level, (void)text, (void)arg; }

/* Opens a model with room for n_ctx tokens, caches of type (of K and V, a number of ggml's), and flash attention or not. A
 * model that embeds gives embeddings of a whole text instead of logits. Null: it cannot be had. */
struct host *host_open(const char *path, int n_ctx, int type, int flash, int embeds) {
    llama_log_set(be_silent, NULL);
    struct host *host = calloc(1, sizeof *host);
    if (host == NULL) return NULL;
    host->embeds = embeds;
    host->model = llama_model_load_from_file(path, llama_model_default_params());
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = (uint32_t)n_ctx;
    params.n_ubatch = embeds ? (uint32_t)n_ctx : 512;
    params.type_k = params.type_v = (enum ggml_type)type;
    params.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.embeddings = embeds != 0;
    if (host->model != NULL) host->context = llama_init_from_model(host->model, params);
    if (host->context == NULL) {
        if (host->model != NULL) llama_model_free(host->model);
        free(host);
        return NULL;
    }
    return host;
}

void host_close(struct host *host) {
    llama_free(host->context);
    llama_model_free(host->model);
    free(host);
}

/* Forgets all tokens. */
void host_clear(struct host *host) { llama_memory_clear(llama_get_memory(host->context), true); }

/* Numbers in a row of results: those of the vocabulary, or of an embedding. */
int host_width(const struct host *host) {
    return host->embeds ? llama_model_n_embd(host->model) : llama_vocab_n_tokens(llama_model_get_vocab(host->model));
}

/* Loads a backend while the process runs, as GGML_BACKEND_PATH does when it begins: 0 if ggml refuses it. */
int host_load_backend(const char *path) { return ggml_backend_load(path) != NULL; }

/* Feeds n tokens behind those before, on so many threads. results, unless null, receive the logits of each, or the embedding of
 * all. Returns 0, or llama.cpp's error. */
int host_feed(struct host *host, int threads, const int32_t *tokens, int n, float *results) {
    if (threads != host->threads) llama_set_n_threads(host->context, threads, threads);
    host->threads = threads;
    struct llama_batch batch = llama_batch_init(n, 0, 1);
    const llama_pos first = host->embeds ? 0 : llama_memory_seq_pos_max(llama_get_memory(host->context), 0) + 1;
    batch.n_tokens = n;
    for (int i = 0; i < n; i++) {
        batch.token[i] = tokens[i];
        batch.pos[i] = first + i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = host->embeds || results != NULL || i == n - 1;
    }
    const int error = llama_decode(host->context, batch);
    llama_synchronize(host->context);
    llama_batch_free(batch);
    if (error == 0 && results != NULL) {
        const float *from = host->embeds ? llama_get_embeddings_seq(host->context, 0) : llama_get_logits(host->context);
        if (from == NULL) return -1;
        memcpy(results, from, (size_t)(host->embeds ? 1 : n) * (size_t)host_width(host) * sizeof *results);
    }
    return error;
}

/* Gives one context the tokens of another, of the same model and type of cache. Returns 0, or 1 where that fails. */
int host_copy(struct host *from, struct host *to) {
    const size_t bytes = llama_state_seq_get_size(from->context, 0);
    uint8_t *state = malloc(bytes);
    host_clear(to);
    const int failed = state == NULL || llama_state_seq_get_data(from->context, state, bytes, 0) != bytes ||
                       llama_state_seq_set_data(to->context, state, bytes, 0) != bytes;
    free(state);
    return failed;
}

/* Forgets the tokens from number first on. */
void host_forget(struct host *host, int first) { llama_memory_seq_rm(llama_get_memory(host->context), 0, first, -1); }
