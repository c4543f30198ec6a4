# SPDX-License-Identifier: Apache-2.0
"""_jax_build.py FILE: compiles jax_ffi.cc to FILE, against the headers of the jaxlib that is installed. rapt.jax does it at its first
use, into a cache folder; whoever builds the package can do it then, and FILE is jax_ffi.so beside this one. Needs Python's standard
library only."""
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE / "jax_ffi.cc"
COMPILERS = "c++", "g++", "clang++"
FFI_HEADERS = "api.h", "c_api.h", "ffi.h"


def rapt_include() -> pathlib.Path:
    """Where rapt.h is: in the package where it is installed, at the top of a source tree."""
    return next(folder for folder in (HERE / "include", HERE.parent.parent / "include") if (folder / "rapt.h").exists())


@functools.cache
def jaxlib_include() -> pathlib.Path:
    """Where jaxlib's headers are."""
    found = importlib.util.find_spec("jaxlib")
    if found is None:
        raise ImportError("rapt.jax needs jaxlib, which is not installed: pip install jax")
    include = pathlib.Path(next(iter(found.submodule_search_locations or ()))) / "include"
    if not all((include / "xla/ffi/api" / name).exists() for name in FFI_HEADERS):
        raise ImportError(f"rapt.jax needs the headers of XLA's FFI, which jaxlib {importlib.metadata.version('jaxlib')} does not "
                          "have: pip install --upgrade jax jaxlib")
    return include


@functools.cache
def key() -> str:
    """A name for all that the result depends on, which is also compiled into it."""
    texts = [SOURCE, rapt_include() / "rapt.h", *(jaxlib_include() / "xla/ffi/api" / name for name in FFI_HEADERS)]
    machine = "-".join((platform.machine(), *platform.libc_ver()))
    return hashlib.sha256(b"".join(text.read_bytes() for text in texts) + machine.encode()).hexdigest()[:16]


def compiler() -> list[str]:
    """CXX in the environment, or the first that is installed."""
    given = shlex.split(os.environ.get("CXX", ""))
    found = given if given and shutil.which(given[0]) else [path for path in map(shutil.which, COMPILERS) if path][:1]
    if not found or (given and found is not given):
        what = f"CXX={given[0]}, which is" if given else f"{', '.join(COMPILERS)}, none of which is"
        raise ImportError(f"rapt.jax is compiled at its first use, by {what} installed: install g++, or set CXX")
    return found


def build(to: pathlib.Path) -> None:
    """Compiles the source to that file, which appears when it is complete."""
    command = [*compiler(), "-std=c++17", "-O2", "-fPIC", "-shared", f'-DRAPT_JAX_KEY="{key()}"', f"-I{rapt_include()}",
               "-isystem", str(jaxlib_include()), str(SOURCE), "-ldl", "-o"]
    with tempfile.TemporaryDirectory(dir=to.parent) as folder:
        made = pathlib.Path(folder) / to.name
        run = subprocess.run([*command, str(made)], capture_output=True, text=True)
        if run.returncode:
            lines = run.stderr.splitlines()
            why = next((line for line in lines if "error" in line), lines[0] if lines else f"exit status {run.returncode}")
            raise ImportError(f"rapt.jax could not be compiled against jaxlib {importlib.metadata.version('jaxlib')}: {why}")
        os.replace(made, to)


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    try:
        build(pathlib.Path(sys.argv[1]).resolve())
    except ImportError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
