# SPDX-License-Identifier: Apache-2.0
"""xllamacpp's server, as its users call it: completes a text and embeds one. Usage: server.py LIBRARY LLAMA.gguf MINILM.gguf

xllamacpp does not look at GGML_BACKEND_PATH, so the device is loaded by the line that README.md has for it."""
import ctypes
import sys

import xllamacpp

ctypes.CDLL(xllamacpp.xllamacpp.__file__).ggml_backend_load(sys.argv[1].encode())


def params(model):
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx = 512
    params.warmup = False
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    return params


answer = xllamacpp.Server(params(sys.argv[2])).handle_completions({"prompt": "Attention is", "max_tokens": 8, "temperature": 0})
assert answer["usage"]["completion_tokens"] == 8, answer
embedder = params(sys.argv[3])
embedder.embedding = True
answer = xllamacpp.Server(embedder).handle_embeddings({"input": ["A man is eating food."], "model": "minilm"})
assert len(answer["data"][0]["embedding"]) == 384, answer
