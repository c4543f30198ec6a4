# SPDX-License-Identifier: Apache-2.0
"""The headers of NumPy's .npy files, and ones that are wrong on purpose, for tests of the CLI."""
import struct


def header(shape, descr="<f4", fortran=False):
    lengths = ", ".join(map(str, shape)) + "," * (len(shape) == 1)
    return f"{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': ({lengths}), }}"


def frame(text, version=1):
    """The bytes before the data."""
    text = text.encode()
    size = 10 if version == 1 else 12
    text += b" " * (-(size + len(text) + 1) % 64) + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) + text
