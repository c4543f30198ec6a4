# SPDX-License-Identifier: Apache-2.0
"""Transformers imports torchvision where it is installed, whose wheels do not load their operators into other builds of PyTorch
than their own; the declarations of these two are all that its import needs."""
import torch

declarations = torch.library.Library("torchvision", "FRAGMENT")
for name in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, name):
        declarations.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
