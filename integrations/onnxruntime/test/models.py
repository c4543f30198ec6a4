# SPDX-License-Identifier: Apache-2.0
"""Models of one node, sessions on rapt and on the CPU provider, and inputs from seeds: for the tests and the benchmark."""
import pathlib
import sys

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[2] / "tests/host")]
import rapt.onnxruntime as rapt_onnxruntime

BF16 = np.dtype(ml_dtypes.bfloat16)
CONTRIB = "com.microsoft"
# Inputs and outputs in ONNX's order, by names of the tests' own.
INPUTS = {
    "Attention":
    "q k v mask past_k past_v nonpad",
    "RotaryEmbedding":
    "x cos sin ids",
    "com.microsoft.RotaryEmbedding":
    "x ids cos sin",
    "com.microsoft.MultiHeadAttention":
    "q k v bias padding logit_bias past_k past_v past_length indirection",
    "com.microsoft.GroupQueryAttention":
    "q k v past_k past_v last total cos sin ids logit_bias sink k_scale v_scale "
    "q_norm k_norm new",
}
OUTPUTS = {"RotaryEmbedding": "y"}  # and of the others:
ATTENTION_OUTPUTS = "y present_k present_v scores"


def model(op, inputs, outputs, attributes, opset=24):
    """A model of one node, of tensors that are named as in INPUTS and OUTPUTS."""
    domain, _, name = op.rpartition(".")
    names = [n if n in inputs else "" for n in INPUTS[op].split()]
    all_outputs = OUTPUTS.get(name, ATTENTION_OUTPUTS).split()
    results = [n if n in outputs else "" for n in all_outputs]
    while not names[-1]:
        names.pop()
    while not results[-1]:
        results.pop()
    node = helper.make_node(name, names, results, name="node", domain=domain, **attributes)
    given = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in inputs.items()]
    graph = helper.make_graph([node], "g", given, [])
    graph.output.extend(onnx.ValueInfoProto(name=n) for n in outputs)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(CONTRIB, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def unknown(op, inputs, attributes, opset):
    """What this ONNX Runtime does not know of a node, or nothing: its version is older than the attribute, the input, or the
    operator set."""
    domain, _, name = op.rpartition(".")
    schemas = [s for s in get_all_operator_schema() if (s.domain, s.name) == (domain, name) and s.since_version <= opset]
    if not schemas:
        return f"{op} of operator set {opset}"
    schema = max(schemas, key=lambda s: s.since_version)
    lacking = [a for a in attributes if a not in schema.attributes]
    lacking += [f"input {n}" for n in inputs if INPUTS[op].split().index(n) >= len(schema.inputs)]
    return f"{', '.join(lacking)} of {op}" if lacking else ""


def widened(proto):
    """The model with outputs of bfloat16, which NumPy has not, as float32."""
    proto = onnx.ModelProto.FromString(proto.SerializeToString())
    for output in proto.graph.output:
        proto.graph.node.append(helper.make_node("Cast", [output.name], [output.name + "_f32"], to=TensorProto.FLOAT))
        output.CopyFrom(helper.make_tensor_value_info(output.name + "_f32", TensorProto.FLOAT, None))
    return proto


def session(proto, rapt, threads=2, level=4, arith="exact"):
    """A session on rapt, in that arithmetic, or on the CPU provider alone, which says errors (4 says nothing)."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, level
    if rapt:
        rapt_onnxruntime.enable(options, arith=arith)
    path = proto if isinstance(proto, (str, bytes)) else proto.SerializeToString()
    return onnxruntime.InferenceSession(path, options, providers=None if rapt else ["CPUExecutionProvider"])


def value(x):
    """For a session: as it is, or an OrtValue of bfloat16."""
    if x.dtype != BF16:
        return onnxruntime.OrtValue.ortvalue_from_numpy(x)
    words = np.ascontiguousarray(x).view(np.uint16)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(words, TensorProto.BFLOAT16)


def run(of, inputs):
    """All outputs as arrays."""
    names = [output.name for output in of.get_outputs()]
    return [x.numpy() for x in of.run_with_ort_values(names, {name: value(x) for name, x in inputs.items()})]
