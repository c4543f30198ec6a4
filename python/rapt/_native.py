# SPDX-License-Identifier: Apache-2.0
"""The C headers for ctypes, read from them: rapt_kv_append_desc is KvAppendDesc here, RAPT_F32 is F32, functions are those of
Library.c, and a name that is a word of Python's has an underscore behind it (from_)."""
import ctypes
import functools
import keyword
import os
import pathlib
import re
import sys
import sysconfig
from typing import TYPE_CHECKING, Any
from collections.abc import Iterator

HERE = pathlib.Path(__file__).resolve().parent
# Headers and library lie in the package where it is installed; in a source tree, headers lie at its top.
INCLUDE = next(folder for folder in (HERE / "include", HERE.parent.parent / "include") if (folder / "rapt.h").exists())
HEADERS = "rapt.h", "rapt_layer.h", "rapt_pool.h"
NUMBERS = {"int": ctypes.c_int, "int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64, "uint64_t": ctypes.c_uint64,
           "size_t": ctypes.c_size_t, "float": ctypes.c_float, "double": ctypes.c_double, "rapt_status": ctypes.c_int,
           "void": None}


class Error(ValueError):
    """What the library refused: its message names the field and says why, as rapt_plan_explain and its siblings do."""


def pointer(value: Any) -> Any:
    """The address of what a field points to: a NumPy array, a struct, a function or a block of memory."""
    if hasattr(value, "ctypes"):
        return value.ctypes.data
    return ctypes.addressof(value) if isinstance(value, ctypes.Structure) else ctypes.cast(value, ctypes.c_void_p)


class Struct(ctypes.Structure):
    """A struct takes the fields that it has, and no others. A pointer may be given as a number, a NumPy array, a struct, a
    function or a block of memory; what is given lives as long as the struct, but for a number's memory."""
    c_name: str
    field_kinds: dict[str, Any]

    def __setattr__(self, name: str, value: Any) -> None:
        kind = self.field_kinds[name]
        if type(value) is not int:
            self.__dict__[name + " kept"] = value
            if kind is ctypes.c_void_p and value is not None:
                value = pointer(value)
        super().__setattr__(name, value)

    @property
    def _as_parameter_(self) -> Any:
        return ctypes.byref(self)


# ---- The headers -------------------------------------------------------------------------------------------------------------


def declarations() -> tuple[str, dict[str, int]]:
    """Their text without comments and preprocessor, and the constants: numbers that are defined, and those of enumerations."""
    text = "".join((INCLUDE / name).read_text(encoding="utf-8") for name in HEADERS)
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    constants = re.findall(r"^#define RAPT_(\w+)[ \t]+(\d+)[ \t]*$", text, re.M)
    text = re.sub(r"^#.*$", " ", text, flags=re.M)
    for enumeration in re.findall(r"typedef enum \w+ \{(.*?)\}", text, re.S):
        constants += re.findall(r"RAPT_(\w+)\s*=\s*(-?\d+)", enumeration)
    return text, {name: int(value) for name, value in constants}


def matched(pattern: str, text: str) -> tuple[str, ...]:
    """The groups of a pattern that the text has as a whole."""
    match = re.fullmatch(pattern, text, re.S)
    assert match, f"rapt's headers have {text!r}, which is not read yet"
    return match.groups()


def kind_of(words: str, kinds: dict[str, Any]) -> Any:
    """Of a field or a parameter, by the words before its name."""
    if "*" in words:
        return ctypes.c_char_p if words.replace(" ", "") == "constchar*" else ctypes.c_void_p
    return kinds[words.removeprefix("const ").strip()]


def fields(body: str, kinds: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for declaration in filter(str.strip, body.split(";")):
        words, names = matched(r"\s*((?:const )?(?:struct )?\w+)\s+(.*)", declaration)
        for name in re.split(r",\s*", names.strip()):
            star, name, count = matched(r"(\*?)(\w+)(?:\[(\d+)\])?", name)
            kind = kind_of(words + star, kinds)
            yield name + "_" * keyword.iskeyword(name), kind * int(count) if count else kind


def kinds_of(text: str) -> dict[str, Any]:
    """Types by their names: numbers, enumerations, functions (which are pointers), and structs of what comes before them."""
    kinds: dict[str, Any] = dict(NUMBERS, **dict.fromkeys(re.findall(r"typedef enum (\w+)", text), ctypes.c_int),
                 **dict.fromkeys(re.findall(r"typedef void \(\*(rapt_\w+)\)", text), ctypes.c_void_p))
    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\}", text, re.S):
        python = "".join(word.capitalize() for word in name.split("_")[1:])
        members = list(fields(body, kinds))
        kinds[name] = type(python, (Struct,), {"_fields_": members, "field_kinds": dict(members), "c_name": name})
    return kinds


def functions_of(text: str, kinds: dict[str, Any]) -> Iterator[tuple[str, str, list[tuple[str, Any]]]]:
    """(name, type of the result, [(parameter, its type)])."""
    for words, name, parameters in re.findall(r"RAPT_API ([\w \*]+?)(rapt_\w+)\(([^)]*)\);", text):
        pairs = [matched(r"(.*?)(\w+)", " ".join(parameter.split())) for parameter in parameters.split(",")]
        yield name, words.strip(), [(own, kind_of(before.strip(), kinds)) for before, own in pairs if before]


TEXT, CONSTANTS = declarations()
KINDS = kinds_of(TEXT)
globals().update(CONSTANTS)
globals().update({kind.__name__: kind for kind in KINDS.values() if hasattr(kind, "c_name")})
FUNCTIONS = list(functions_of(TEXT, KINDS))
PARAMETERS = {name: [parameter for parameter, _ in parameters] for name, _, parameters in FUNCTIONS}


if TYPE_CHECKING:
    def __getattr__(name: str) -> Any:
        """What the headers declare."""


def explanation(name: str) -> str | None:
    """The function that explains what this one refuses, if there is one."""
    for ending, instead in (("$", "_explain"), (r"_plan_init(_sized)?$", "_explain"), (r"_init(_sized)?$", "_explain"),
                            (r"_run(_parallel|_share|_phase)?$", "_args_explain"), (r"_run(_parallel|_share)?$", "_explain")):
        candidate, found = re.subn(ending, instead, name)
        if found and candidate in PARAMETERS:
            return candidate
    return None


# ---- The library -------------------------------------------------------------------------------------------------------------


class _DlInfo(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("symbol", ctypes.c_char_p), ("address", ctypes.c_void_p)]


def file_of(library: ctypes.CDLL, path: str) -> str:
    """Where a library lies that was loaded by that path, or by its name alone, for which the system searches."""
    if os.path.dirname(path) or os.name != "posix":
        return os.path.abspath(path) if os.path.dirname(path) else path
    info = _DlInfo()
    ctypes.CDLL(None).dladdr(ctypes.cast(library.rapt_version, ctypes.c_void_p), ctypes.byref(info))
    return os.path.abspath(os.fsdecode(info.file)) if info.file else path


class Library:
    """The shared library. library.c.rapt_...() are its functions; a bad status is raised as error. Without rapt_pool in it,
    there are no threads."""

    def __init__(self, path: Any, error: type[Exception] = Error):
        self.c, self.error = ctypes.CDLL(os.fspath(path)), error
        self.path = file_of(self.c, os.fspath(path))
        self.has_pool = hasattr(self.c, "rapt_pool_for")
        self.pool_for = ctypes.cast(self.c.rapt_pool_for, ctypes.c_void_p) if self.has_pool else None
        for name, words, parameters in FUNCTIONS:
            if name.startswith("rapt_pool") and not self.has_pool:
                continue
            function = getattr(self.c, name)
            function.argtypes = [kind for _, kind in parameters]
            function.restype = kind_of(words, KINDS)
            if words == "rapt_status":
                function.errcheck = self.check

    def check(self, status: int, function: Any, arguments: Any) -> None:
        if status:
            raise self.error(self.explain(status, function.__name__, arguments))

    def quiet(self, name: str) -> Any:
        """A function that returns its status and does not raise it."""
        function = self.c[name]
        function.argtypes = getattr(self.c, name).argtypes
        return function

    def explain(self, status: int, name: str, arguments: Any) -> str:
        """The status in words, and the library's line about it."""
        words, line = self.c.rapt_status_string(status).decode(), ctypes.create_string_buffer(256)
        explain = explanation(name)
        if not explain:
            return str(words)
        given = dict(zip(PARAMETERS[name], arguments), text=line, bytes=ctypes.sizeof(line))
        again = self.quiet(explain)(*(given.get(parameter, 1) for parameter in PARAMETERS[explain]))
        assert again in (status, 0), f"{explain} gives another status, {again} for {status}"
        return line.value.decode() or str(words)

    def types(self, *classes: int) -> dict[str, int]:
        """The storage types of these classes: their numbers by name."""
        numbers = (n for n in range(CONSTANTS["TYPE_LIMIT"]) if self.c.rapt_type_class_of(n) in classes)
        return {self.c.rapt_type_name(n).decode(): n for n in numbers}

    def new(self, kind: Any, **values: Any) -> Any:
        """A struct as its init function leaves it, then these fields."""
        struct = kind()
        getattr(self.c, kind.c_name + "_init_sized")(struct, ctypes.sizeof(struct))
        for name, value in values.items():
            setattr(struct, name, value)
        return struct

    def plan(self, desc: Any) -> Any:
        """Of any desc that has plans."""
        plan = KINDS[desc.c_name.replace("_desc", "_plan")]()
        getattr(self.c, plan.c_name + "_init_sized")(plan, ctypes.sizeof(plan), desc)
        return plan

    def workspace_size(self, plan: Any, threads: int = 1) -> int:
        """Of any plan."""
        size = ctypes.c_size_t()
        getattr(self.c, plan.c_name.replace("_plan", "_workspace_size"))(plan, threads, ctypes.byref(size))
        return size.value

    def workspace(self, plan: Any, threads: int = 1) -> Any:
        """Of any plan: aligned memory."""
        size, alignment = self.workspace_size(plan, threads), CONSTANTS["WORKSPACE_ALIGNMENT"]
        memory = ctypes.create_string_buffer(size + alignment)
        return (ctypes.c_char * size).from_buffer(memory, -ctypes.addressof(memory) % alignment)

    def run(self, desc: Any, args: Any) -> None:
        """Plan, workspace and call, on this thread."""
        plan = self.plan(desc)
        workspace = self.workspace(plan)
        args.workspace, args.workspace_bytes = workspace, len(workspace)
        getattr(self.c, plan.c_name.replace("_plan", "_run"))(plan, args)

    def all_kernels(self) -> list[str]:
        """Those that were built, best first."""
        names: list[str] = []
        while name := self.c.rapt_isa_name(len(names)):
            names.append(name.decode())
        return names

    def kernels(self) -> list[str]:
        """Those that can run here, best first."""
        usable = self.quiet("rapt_isa_usable")
        return [name for name in self.all_kernels() if usable(name.encode(), None, 0) == CONSTANTS["OK"]]


SUFFIX = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
NAME = f"librapt_python{SUFFIX}"


@functools.cache
def library() -> Library:
    """The package's own library: RAPT_LIBRARY in the environment, or what was installed with the package: in a wheel beside it,
    else where the system looks for libraries."""
    given = os.environ.get("RAPT_LIBRARY")
    if given:
        if not os.path.exists(given):
            raise ImportError(f"RAPT_LIBRARY is {given}, where nothing is")
        path = given
    else:
        beside = (pathlib.Path(folder) / ".rapt.mesonpy.libs" / NAME for folder in (HERE.parent, sysconfig.get_path("platlib")))
        path = next((os.fspath(library) for library in beside if library.exists()), NAME)
    try:
        made = Library(path)
    except (OSError, AttributeError) as error:
        raise ImportError(
            f"rapt's library cannot be loaded ({error}): install the package (pip install .), or set RAPT_LIBRARY to a "
            "librapt_python built from the same sources") from None
    return made
