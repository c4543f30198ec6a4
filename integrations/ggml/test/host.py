# SPDX-License-Identifier: Apache-2.0
"""llama.cpp, as the package xllamacpp has it, for the tests and the benchmark: models in contexts of their own, through
host.c."""
import ctypes
from pathlib import Path

import numpy as np
import xllamacpp  # noqa: F401  host.so calls it, and wants it loaded

TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "bf16": 30}  # the numbers of ggml's types


class Host:
    """llama.cpp in this process. A context uses the devices that there were when it was opened."""

    def __init__(self, folder: Path, library: str = "host.so"):
        self.library = ctypes.CDLL(str(folder / library))
        self.library.host_open.restype = ctypes.c_void_p

    def load_backend(self, path: Path) -> bool:
        return bool(self.library.host_load_backend(str(path).encode()))

    def open(self, model: Path, tokens: int, cache: str = "f16", flash: bool = True, embeds: bool = False, sequences: int = 1,
             batch: int = 0, micro_batch: int = 0) -> "Context":
        """With room for so many tokens of each sequence, of which it computes so many at once."""
        handle = self.library.host_open(str(model).encode(), tokens, TYPES[cache], flash, embeds, sequences, batch, micro_batch)
        if not handle:
            raise RuntimeError(f"llama.cpp does not open {model} with a cache of {cache}")
        return Context(self.library, ctypes.c_void_p(handle), embeds)


class Context:
    """A model with its cache."""

    def __init__(self, library: ctypes.CDLL, handle: ctypes.c_void_p, embeds: bool):
        self.library, self.handle, self.embeds = library, handle, embeds
        self.width = library.host_width(handle)

    def close(self) -> None:
        self.library.host_close(self.handle)

    def clear(self) -> None:
        """Forgets all tokens."""
        self.library.host_clear(self.handle)

    def copy_from(self, other: "Context") -> None:
        """Takes over the tokens of a context of the same model and type of cache."""
        if self.library.host_copy(other.handle, self.handle):
            raise RuntimeError("llama.cpp does not take over another context's cache")

    def forget_from(self, first: int) -> None:
        """Forgets the tokens from number first on."""
        self.library.host_forget(self.handle, first)

    def feed(self, tokens: list[int], threads: int, results: bool = True, sequences: list[int] | int = 0) -> np.ndarray | None:
        """The logits of each token, behind those fed before to its sequence, or the embedding of all of them."""
        ids = np.asarray(tokens, np.int32)
        of = np.ascontiguousarray(np.broadcast_to(np.asarray(sequences, np.int32), ids.shape))
        rows = np.empty((1 if self.embeds else len(ids), self.width), np.float32) if results else None
        error = self.library.host_feed_sequences(self.handle, threads, ids.ctypes.data_as(ctypes.c_void_p),
                                                 of.ctypes.data_as(ctypes.c_void_p), len(ids),
                                                 rows.ctypes.data_as(ctypes.c_void_p) if results else None)
        if error:
            raise RuntimeError(f"llama.cpp's llama_decode returns {error}")
        return rows

    def tokens_of(self, text: str) -> list[int]:
        to = np.empty(4 * len(text.encode()) + 8, np.int32)  # a space may be three tokens of bytes
        n = self.library.host_tokenize(self.handle, text.encode(), to.ctypes.data_as(ctypes.c_void_p), len(to))
        return to[:n].tolist()
