# SPDX-License-Identifier: Apache-2.0
"""torch_isa.py linear|attention: one of them in bf16, for the verbose modes of oneDNN and MKL to tell how (machine.py), and a line of
what PyTorch says of itself."""
import json
import sys

import torch
import torch.nn.functional as F

with torch.inference_mode():
    if sys.argv[1] == "linear":
        x = torch.ones(512, 512, dtype=torch.bfloat16)
        F.linear(x, x)
    else:
        q = torch.ones(1, 4, 512, 64, dtype=torch.bfloat16)
        F.scaled_dot_product_attention(q, q, q)
there = torch.cpu.get_capabilities()
own = {"capability": torch.backends.cpu.get_cpu_capability(), "units": [u for u in ("avx512_bf16", "amx_bf16", "bf16") if there.get(u)]}
print("\nPyTorch: " + json.dumps(own))
