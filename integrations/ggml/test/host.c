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

/* Opens a model with room for n_ctx tokens of each of n_seqs sequences, caches of type (of K and V, a number of ggml's), and
 * flash attention or not. n_batch and n_ubatch are the tokens that are computed at once, 0 for many. A model that embeds gives
 * embeddings of a whole text instead of logits. Null: it cannot be had. */
struct host *host_open(const char *path, int n_ctx, int type, int flash, int embeds, int n_seqs, int n_batch, int n_ubatch) {
    llama_log_set(be_silent, NULL);
    struct host *host = calloc(1, sizeof *host);
    if (host == NULL) return NULL;
    host->embeds = embeds;
    host->model = llama_model_load_from_file(path, llama_model_default_params());
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = (uint32_t)(n_ctx * n_seqs);
    params.n_seq_max = (uint32_t)n_seqs;
    params.n_batch = n_batch > 0 ? (uint32_t)n_batch : params.n_ctx;
    params.n_ubatch = n_ubatch > 0 ? (uint32_t)n_ubatch : embeds ? (uint32_t)n_ctx : 512;
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

/* Feeds n tokens, on so many threads: each of a sequence, behind those of it before, in calls of at most n_batch tokens. results,
 * unless null, receive the logits of each, or the embedding of all. Returns 0, or llama.cpp's error. */
int host_feed_sequences(struct host *host, int threads, const int32_t *tokens, const int32_t *sequences, int n, float *results) {
    if (threads != host->threads) llama_set_n_threads(host->context, threads, threads);
    host->threads = threads;
    const int most = (int)llama_n_batch(host->context);
    struct llama_batch batch = llama_batch_init(most, 0, 1);
    int error = 0;
    for (int first = 0; error == 0 && first < n; first += batch.n_tokens) {
        batch.n_tokens = n - first < most ? n - first : most;
        for (int i = 0; i < batch.n_tokens; i++) {
            const int sequence = sequences[first + i];
            llama_pos position = host->embeds ? i : llama_memory_seq_pos_max(llama_get_memory(host->context), sequence) + 1;
            for (int j = 0; j < i && !host->embeds; j++) position += batch.seq_id[j][0] == sequence;
            batch.token[i] = tokens[first + i];
            batch.pos[i] = position;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = sequence;
            batch.logits[i] = host->embeds || results != NULL || first + i == n - 1;
        }
        error = llama_decode(host->context, batch);
        llama_synchronize(host->context);
        if (error != 0 || results == NULL) continue;
        const float *from = host->embeds ? llama_get_embeddings_seq(host->context, 0) : llama_get_logits(host->context);
        const size_t rows = host->embeds ? 1 : (size_t)batch.n_tokens;
        if (from == NULL) error = -1;
        else memcpy(results + (size_t)first * (size_t)host_width(host), from, rows * (size_t)host_width(host) * sizeof *results);
    }
    llama_batch_free(batch);
    return error;
}

/* Writes at most `most` tokens of a text to `to`, with the first one that the model wants; returns their number. */
int host_tokenize(const struct host *host, const char *text, int32_t *to, int most) {
    return llama_tokenize(llama_model_get_vocab(host->model), text, (int32_t)strlen(text), to, most, true, true);
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
