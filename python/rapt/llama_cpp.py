# SPDX-License-Identifier: Apache-2.0
"""rapt's attention in the llama.cpp of Python's packages, llama-cpp-python and xllamacpp, by one line before models are made:

    import rapt.llama_cpp; rapt.llama_cpp.enable()

It loads the plugin, which GGML_BACKEND_PATH names, or an argument, and makes flash attention the default, without which these
packages have no attention that a plugin could take. A program that nobody may change, such as llm, gets it by

    python -m rapt.llama_cpp -m llm -m SmolLM2 "A prompt"

The plugin is built in rapt's source tree, by integrations/ggml/build, for it needs ggml's headers, which these packages lack."""
from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import pathlib
import runpy
import sys
from types import ModuleType
from typing import Any

from ._arguments import file_name

__all__ = ["enable"]

_PACKAGES = "llama_cpp", "xllamacpp"
_HOW = "build it by integrations/ggml/build in rapt's source tree, which prints where it is"


def enable(library: str | os.PathLike[str] | None = None) -> list[str]:
    """Loads the plugin into llama-cpp-python and xllamacpp, and has models that are made from now on use flash attention unless
    they are told not to: flash_attn is True by default in llama_cpp.Llama, and flash_attn_type is ENABLED in
    xllamacpp.CommonParams. Returns the names of the packages, which are those that the program has imported, or, if there is
    none yet, those that are installed. Enabling once more changes nothing.

    library: the plugin, libggml-rapt.so. By default the environment variable GGML_BACKEND_PATH, llama.cpp's own, names it.

    What speaks to llama.cpp without these defaults (llama_cpp.server's settings, the C API by ctypes) says for itself that it
    wants flash attention. Environment variables that steer the plugin (GGML_RAPT_STATS=1 counts) are set before."""
    path = _plugin(library)
    names = [name for name in _PACKAGES if name in sys.modules] or [name for name in _PACKAGES if importlib.util.find_spec(name)]
    if not names:
        raise ImportError("rapt.llama_cpp needs llama-cpp-python or xllamacpp (pip install llama-cpp-python)")
    packages = [importlib.import_module(name) for name in names]
    for package in packages:
        _load(package, path)
    for package in packages:
        _default_to_flash(package)
    return names


def _plugin(library: str | os.PathLike[str] | None) -> pathlib.Path:
    """Where the plugin is."""
    said = "library" if library is not None else "GGML_BACKEND_PATH"
    given = file_name(library, said) if library is not None else os.environ.get(said, "")
    if not given:
        raise ValueError(f"no plugin is named: give enable(library), or set GGML_BACKEND_PATH; {_HOW}")
    if not pathlib.Path(given).is_file():
        raise FileNotFoundError(f"{said} is {given!r}, and there is no such file: {_HOW}")
    return pathlib.Path(given).resolve()


def _load(package: ModuleType, path: pathlib.Path) -> None:
    """Has the package's ggml load the plugin. It is found through llama.cpp's library, whose ggml it is: llama_cpp._ggml would
    load a second one, which no model uses."""
    c: Any = package.llama_cpp._lib if package.__name__ == "llama_cpp" else ctypes.CDLL(package.xllamacpp.__file__)
    try:
        load = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(("ggml_backend_load", c))
    except AttributeError:
        raise ImportError(f"{package.__name__} {_version(package)} has no ggml_backend_load: it is too old for plugins") from None
    if not load(os.fsencode(path)):
        raise ImportError(f"the ggml of {package.__name__} {_version(package)} does not load {os.fspath(path)!r}, for the reason "
                          "that the line on standard error tells, if any; a plugin for this version is built by "
                          "integrations/ggml/build --ggml SOURCES")


def _version(package: ModuleType) -> str:
    return str(getattr(package, "__version__", "of no version"))


def _default_to_flash(package: ModuleType) -> None:
    """Makes flash attention what models have unless they are told otherwise."""
    if package.__name__ == "llama_cpp":
        defaults = package.Llama.__init__.__kwdefaults__
        if "flash_attn" not in (defaults or {}):
            raise ImportError(f"llama_cpp {_version(package)} has no Llama(flash_attn=...), as 0.3.36 has")
        defaults["flash_attn"] = True
        return
    stock: Any = package.CommonParams
    if stock.__module__ == __name__:
        return

    class CommonParams(stock):  # type: ignore[misc]
        """xllamacpp's, with flash attention."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.flash_attn_type = package.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED

    package.CommonParams = package.xllamacpp.CommonParams = CommonParams  # type: ignore[attr-defined]


_USAGE = """usage: python -m rapt.llama_cpp -m MODULE [ARGUMENT...]
       python -m rapt.llama_cpp FILE [ARGUMENT...]

Runs a module or a file as python does, after rapt.llama_cpp.enable(). GGML_BACKEND_PATH names the plugin."""


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] in (["-h"], ["--help"]):
        print(_USAGE)
        return
    is_module = arguments[:1] == ["-m"]
    program = arguments[is_module:][:1]
    if not program or program[0].startswith("-"):
        print(_USAGE, file=sys.stderr)
        sys.exit(2)
    try:
        if is_module and importlib.util.find_spec(program[0]) is None:
            raise ImportError(f"there is no module {program[0]}")
        if not is_module and not pathlib.Path(program[0]).exists():
            raise FileNotFoundError(f"there is no file {program[0]}")
        enable()
    except (ImportError, ValueError, FileNotFoundError) as error:
        print(f"rapt.llama_cpp: {error}", file=sys.stderr)
        sys.exit(1)
    sys.argv = arguments[is_module:]
    if is_module:
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.fspath(pathlib.Path(program[0]).resolve().parent)
        runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    main()
