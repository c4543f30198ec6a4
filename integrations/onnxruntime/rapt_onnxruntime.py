# SPDX-License-Identifier: Apache-2.0
"""rapt's attention in ONNX Runtime, by one line:

    session = onnxruntime.InferenceSession("model.onnx", rapt_onnxruntime.enable())

Nodes of attention and rotary embedding then run on rapt, where it serves them, and all others where they did. taken(session)
tells which."""
from __future__ import annotations

import collections
import os
import pathlib

import onnxruntime

NAME = "RaptExecutionProvider"
_OLDEST = 1, 24  # the first version in which a plugin may bring kernels


def library() -> pathlib.Path:
    """The provider's library: what the environment variable RAPT_ONNXRUNTIME names, or the one beside this file, which
    integrations/onnxruntime/build makes."""
    named = os.environ.get("RAPT_ONNXRUNTIME")
    return pathlib.Path(named) if named else pathlib.Path(__file__).resolve().with_name("librapt_onnxruntime.so")


def devices() -> list[onnxruntime.OrtEpDevice]:
    """The devices of the provider, for SessionOptions.add_provider_for_devices. The first call registers the library."""
    version = tuple(int(number) for number in onnxruntime.__version__.split(".")[:2])
    if version < _OLDEST or version[0] != _OLDEST[0]:
        raise RuntimeError(
            f"rapt: onnxruntime {onnxruntime.__version__} cannot have the provider, which needs onnxruntime 1.24 "
            "or a later 1.x")
    if not (found := _found()):
        if not library().is_file():
            raise FileNotFoundError(f"rapt: there is no {library()}: integrations/onnxruntime/build makes it")
        onnxruntime.register_execution_provider_library("rapt", str(library()))
        found = _found()
    return found


def _found() -> list[onnxruntime.OrtEpDevice]:
    return [device for device in onnxruntime.get_ep_devices() if device.ep_name == NAME]


def enable(options: onnxruntime.SessionOptions | None = None) -> onnxruntime.SessionOptions:
    """Puts rapt before the other providers of these options, or of new ones, and returns them. Set intra_op_num_threads before:
    rapt shares its work out over as many threads, which are the session's own."""
    options = options or onnxruntime.SessionOptions()
    threads = {"threads": str(options.intra_op_num_threads)} if options.intra_op_num_threads > 0 else {}
    options.add_provider_for_devices(devices(), threads)
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")  # for taken
    return options


def taken(session: onnxruntime.InferenceSession) -> collections.Counter[str]:
    """How many nodes of each operator rapt runs in a session whose options enable has made."""
    return collections.Counter(node.op_type for part in session.get_provider_graph_assignment_info() if part.ep_name == NAME
                               for node in part.get_nodes())
