/* SPDX-License-Identifier: Apache-2.0 */
/* The sentence encoder all-MiniLM-L6-v2 (Reimers & Gurevych 2019; Wang et al. 2020): six layers of BERT (Devlin et al. 2019) over
 * the tokens of a sentence, their mean, divided by its length. */
#ifndef MINILM_ENCODER_H
#define MINILM_ENCODER_H

#include "rapt_pool.h"
#include "../safetensors.h"

#include <stdbool.h>

enum { ENCODER_WIDTH = 384, ENCODER_INNER = 1536, ENCODER_LAYERS = 6, ENCODER_HEADS = 12 };
enum { ENCODER_VOCABULARY = 30522, ENCODER_MOST_TOKENS = 512 };

#define ENCODER_FAULT_BYTES SAFETENSORS_FAULT_BYTES

typedef struct encoder_linear {
    const float *weight, *bias;
} encoder_linear;

typedef struct encoder_layer {
    encoder_linear query, key, value, attention, inner, outer, attention_norm, norm;
} encoder_layer;

typedef struct encoder {
    safetensors_file file;
    const float *words, *positions, *types;
    encoder_linear norm;
    encoder_layer layers[ENCODER_LAYERS];
    rapt_pool *pool;
    int64_t threads;
    const char *isa;
    rapt_arith arith;
    float *memory; /* for the tokens of a batch */
    size_t memory_floats;
    void *workspace;
    size_t workspace_bytes;
    char *prepacked; /* null, or for each layer the weights of query, key, value, attention, inner and outer, laid out for the
                        kernel */
    size_t square_bytes, inner_bytes, outer_bytes; /* of each of the first four, and of the others */
    bool used;                                     /* has a batch been run? */
} encoder;

/* Maps the weights. isa: as in rapt_desc; arith: RAPT_EXACT, or RAPT_BF16_DOT for all products, of weights and of attention.
 * False, with nothing to close, after writing to fault what is wrong. */
bool encoder_open(encoder *e, const char *path, int64_t threads, const char *isa, rapt_arith arith,
                  char fault[ENCODER_FAULT_BYTES]);
void encoder_close(encoder *e);

/* What softmax gives in a layer: [ENCODER_HEADS, tokens, tokens], of a batch of one sentence. */
typedef struct encoder_attention {
    int layer; /* from 0 on */
    float *weights;
} encoder_attention;

/* A ragged batch: the tokens of sentence i are ids[starts[i]] .. ids[starts[i + 1] - 1], 1 to ENCODER_MOST_TOKENS of them, and
 * its embedding is [i] of embeddings [sentences, ENCODER_WIDTH]: the same bits, whatever else is in the batch. attention may be
 * null. Returns null, or what went wrong. From the second batch on, for a single one would not gain by it, weights are
 * laid out for the kernel, which takes 43 MB, or half of that in a matrix unit's bf16. */
const char *encoder_run(encoder *e, const int32_t *ids, const int32_t *starts, int64_t sentences, float *embeddings,
                        const encoder_attention *attention);

#endif
