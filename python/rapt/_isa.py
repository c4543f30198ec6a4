# SPDX-License-Identifier: Apache-2.0
"""Which kernel runs: isa(), and what there is: info()."""
import ctypes
import os
from types import TracebackType
from typing import Any

from . import _attention
from . import _native as native
from . import _threads as threading_


class Isa(str):
    """The name of a kernel. Where isa() has forced it, a with statement takes that back at its end. A copy is the name alone."""
    _before: "Isa | None" = None
    _forced = False

    def __reduce__(self) -> Any:
        return Isa, (str(self),)

    def __enter__(self) -> "Isa":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._forced:
            _force(self._before)


_chosen: Isa | None = None  # what isa() has forced


def _force(name: "Isa | None") -> None:
    global _chosen
    try:
        native.library().c.rapt_isa_force(None if name is None else name.encode())
    except native.Error as error:
        raise native.Error(f"isa is {str(name)!r}: {error}") from None
    _chosen = name
    _attention.forget_plans()


def isa(*name: str | None) -> Isa:
    """The kernel of the whole process.

    isa() returns the name of that which is used. isa("avx2") forces one from now on, and isa(None) goes back to the best one,
    or that of the environment variable RAPT_ISA. What it returns can stand in a with statement, for whose body alone the kernel
    is forced then; it holds for all Python threads. Plans that exist keep their kernel.

    >>> with rapt.isa("scalar"):
    ...     print(rapt.isa())
    scalar
    """
    if len(name) > 1 or not all(isinstance(one, str | None) for one in name):
        raise TypeError("isa() takes the name of a kernel, or None, or nothing")
    before = _chosen
    if name:
        _attention.isa_name(name[0])
        _force(None if name[0] is None else Isa(name[0]))
    current = ctypes.c_char_p()
    try:
        native.library().c.rapt_isa_current(ctypes.byref(current))
    except native.Error as error:
        given = os.environ.get("RAPT_ISA")
        _attention.isa_name(given, "RAPT_ISA")
        raise native.Error(f"RAPT_ISA is {given!r}: {error}") from None
    now = Isa((current.value or b"").decode())
    now._before, now._forced = before, bool(name)
    return now


def info() -> dict[str, Any]:
    """What this installation is: version; library, its path; isa, the kernel that is used; isas, for each kernel whether it can
    run here, its rounding class and the CPU features that it lacks; cpu, the features that were found; types, those of K and V;
    threads, how many a large call takes.

    >>> sorted(rapt.info())
    ['cpu', 'isa', 'isas', 'library', 'threads', 'types', 'version']
    """
    library = native.library()
    text = ctypes.create_string_buffer(1024)
    library.c.rapt_cpu_features(text, len(text))
    features = text.value.decode().split()
    isas = {}
    for name in library.all_kernels():
        missing = ctypes.create_string_buffer(1024)
        usable = library.quiet("rapt_isa_usable")(name.encode(), missing, len(missing)) == native.OK
        isas[name] = {"usable": usable, "rounding": library.c.rapt_isa_rounding(name.encode()).decode(),
                      "missing": missing.value.decode().split()}
    types = list(library.types(native.CLASS_ELEMENT, native.CLASS_WEIGHT, native.CLASS_CACHE))
    return {"version": library.c.rapt_version().decode(), "library": library.path, "isa": str(isa()), "isas": isas,
            "cpu": features, "types": types, "threads": threading_.default_threads()}
