# SPDX-License-Identifier: Apache-2.0
"""rapt's attention in ONNX Runtime, by one line:

    session = onnxruntime.InferenceSession("model.onnx", rapt.onnxruntime.enable())

Nodes of attention and rotary embedding then run on rapt, where it serves them, and all others where they did. taken(session)
tells which, and explain("model.onnx") why the others are not. The execution provider is in the package's own library (integrations/onnxruntime)."""
from __future__ import annotations

import collections
import os
import tempfile
from typing import NamedTuple

try:
    import onnxruntime
except ImportError as error:
    raise ImportError("rapt.onnxruntime needs ONNX Runtime 1.24 or a later 1.x (pip install onnxruntime)") from error

from . import _native as native
from ._arguments import file_name, float_arith, shown

__all__ = ["Explanation", "Node", "devices", "enable", "explain", "taken"]

NAME = "RaptExecutionProvider"
_ENABLED = "rapt.enabled"
_OLDEST = 1, 24  # the first version in which a plugin may bring kernels

_version = tuple(int(number) for number in onnxruntime.__version__.split(".")[:2])
if _version < _OLDEST or _version[0] != _OLDEST[0]:
    raise ImportError(f"rapt.onnxruntime needs ONNX Runtime 1.24 or a later 1.x, and {onnxruntime.__version__} is installed")


def devices() -> list[onnxruntime.OrtEpDevice]:
    """The devices of the provider, for SessionOptions.add_provider_for_devices. The first call registers the library."""
    found = _found()
    if not found:
        onnxruntime.register_execution_provider_library("rapt", native.library().path)
        found = _found()
    return found


def _found() -> list[onnxruntime.OrtEpDevice]:
    return [device for device in onnxruntime.get_ep_devices() if device.ep_name == NAME]


def enable(options: onnxruntime.SessionOptions | None = None, *, arith: str = "exact") -> onnxruntime.SessionOptions:
    """Puts rapt before the other providers of these options, or of new ones, and returns them. Set intra_op_num_threads before:
    rapt shares its work out over as many threads, which are the session's own. The session must be made without providers=, which
    would take their place.

    arith: "exact", or "bf16", in which queries, keys, values and weights are rounded to bfloat16: on CPUs with a matrix unit (AMX)
        several times as fast."""
    float_arith(arith)
    if options is None:
        options = onnxruntime.SessionOptions()
    if not isinstance(options, onnxruntime.SessionOptions):
        raise TypeError(f"options is {shown(options)}: an onnxruntime.SessionOptions is needed")
    try:
        before = options.get_session_config_entry(_ENABLED)
    except RuntimeError:
        before = None  # there is no such entry
    if before not in (None, arith):
        raise ValueError(f"arith is {arith!r}, and these options have {before!r} already")
    if before:
        return options
    threads = {"threads": str(options.intra_op_num_threads)} if options.intra_op_num_threads > 0 else {}
    options.add_provider_for_devices(devices(), threads | {"arith": arith})
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")  # for taken
    options.add_session_config_entry(_ENABLED, arith)
    return options


def taken(session: onnxruntime.InferenceSession) -> collections.Counter[str]:
    """How many nodes of each operator rapt runs in a session whose options enable has made."""
    return collections.Counter(node.op_type for part in session.get_provider_graph_assignment_info() if part.ep_name == NAME
                               for node in part.get_nodes())


class Node(NamedTuple):
    """A node that has to do with attention, as ONNX Runtime shows it to rapt."""
    op: str
    domain: str  # "" is ONNX's own
    name: str
    graph: str  # whose node it is: the model's, or one inside a node such as If
    why: str  # why it is left to other providers, or "": it is taken

    @property
    def taken(self) -> bool:
        return not self.why


class Explanation(list[Node]):
    """Nodes, which are printed by operator and reason, each with how many there are."""

    def __str__(self) -> str:
        counts = collections.Counter((f"{node.domain}.{node.op}".lstrip("."), node.why) for node in self)
        lines = [f"rapt takes {sum(node.taken for node in self)} of {len(self)} nodes of attention"]
        for (op, why), count in counts.items():
            lines.append(f"{count:>5}  {op}: {f'left, {why}' if why else 'taken'}")
        return "\n".join(lines)

    __repr__ = __str__


def explain(model: str | os.PathLike[str] | bytes) -> Explanation:
    """What rapt would take of a model, a file's name or the bytes of one, and why not the others: all nodes of attention, of rotary
    embedding and of Softmax, in which attention hides that was exported as several nodes. The answers are the execution provider's
    own, in a session that is made for them and runs nothing."""
    source = model if isinstance(model, bytes) else file_name(model, "model")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors: the log's warnings say less than the answer
    options.add_session_config_entry("session.disable_prepacking", "1")
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report")
        options.add_provider_for_devices(devices(), {"report": report})
        onnxruntime.InferenceSession(source, options)
        with open(report, encoding="utf-8", errors="replace") as file:
            lines = [line.removesuffix("\n").split("\t") for line in file]
    found = {}  # by graph and first output, for what a graph has may be shown more than once
    for why, domain, op, name, output, graph, parent in lines:
        found[graph, parent, output] = Node(op, domain, name, graph, why)
    return Explanation(found.values())
