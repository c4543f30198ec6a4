# SPDX-License-Identifier: Apache-2.0
"""include/rapt.h and rapt_layer.h for ctypes, read from them: rapt_kv_append_desc is KvAppendDesc here, RAPT_F32 is F32, functions are
those of Library.c, and a name that is a word of Python's has an underscore behind it (from_)."""
import ctypes
import keyword
import pathlib
import re

INCLUDE = pathlib.Path(__file__).resolve().parent.parent / "include"
NUMBERS = {"int": ctypes.c_int, "int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64, "uint64_t": ctypes.c_uint64,
           "size_t": ctypes.c_size_t, "float": ctypes.c_float, "double": ctypes.c_double, "rapt_status": ctypes.c_int,
           "void": None}


class Error(Exception):
    """A status that is not RAPT_OK, with the line that explains it."""


def pointer(value):
    return ctypes.addressof(value) if isinstance(value, ctypes.Structure) else ctypes.cast(value, ctypes.c_void_p)


class Struct(ctypes.Structure):
    """A struct takes the fields that it has, and no others. A pointer may be given as a NumPy array, a struct, a function or a
    block of memory; what is given lives as long as the struct."""

    def __setattr__(self, name, value):
        self.__dict__[name + " kept"] = value
        if dict(self._fields_)[name] is ctypes.c_void_p and value is not None:
            value = value.ctypes.data if hasattr(value, "ctypes") else pointer(value)
        super().__setattr__(name, value)

    @property
    def _as_parameter_(self):
        return ctypes.byref(self)


# ---- The headers -------------------------------------------------------------------------------------------------------------


def declarations():
    """Their text without comments and preprocessor, and the constants: numbers that are defined, and those of enumerations."""
    text = "".join((INCLUDE / name).read_text() for name in ("rapt.h", "rapt_layer.h"))
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    constants = re.findall(r"^#define RAPT_(\w+)[ \t]+(\d+)[ \t]*$", text, re.M)
    text = re.sub(r"^#.*$", " ", text, flags=re.M)
    for enumeration in re.findall(r"typedef enum \w+ \{(.*?)\}", text, re.S):
        constants += re.findall(r"RAPT_(\w+)\s*=\s*(-?\d+)", enumeration)
    return text, {name: int(value) for name, value in constants}


def kind_of(words, kinds):
    """Of a field or a parameter, by the words before its name."""
    if "*" in words:
        return ctypes.c_char_p if words.replace(" ", "") == "constchar*" else ctypes.c_void_p
    return kinds[words.removeprefix("const ").strip()]


def fields(body, kinds):
    for declaration in filter(str.strip, body.split(";")):
        words, names = re.fullmatch(r"\s*((?:const )?\w+)\s+(.*)", declaration, re.S).groups()
        for name in re.split(r",\s*", names.strip()):
            star, name, count = re.fullmatch(r"(\*?)(\w+)(?:\[(\d+)\])?", name).groups()
            kind = kind_of(words + star, kinds)
            yield name + "_" * keyword.iskeyword(name), kind * int(count) if count else kind


def kinds_of(text):
    """Types by their names: numbers, enumerations, functions (which are pointers), and structs of what comes before them."""
    kinds = dict(NUMBERS, **dict.fromkeys(re.findall(r"typedef enum (\w+)", text), ctypes.c_int),
                 **dict.fromkeys(re.findall(r"typedef void \(\*(rapt_\w+)\)", text), ctypes.c_void_p))
    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\}", text, re.S):
        python = "".join(word.capitalize() for word in name.split("_")[1:])
        kinds[name] = type(python, (Struct,), {"_fields_": list(fields(body, kinds)), "c_name": name})
    return kinds


def functions_of(text, kinds):
    """(name, type of the result, [(parameter, its type)])."""
    for words, name, parameters in re.findall(r"RAPT_API ([\w \*]+?)(rapt_\w+)\(([^)]*)\);", text):
        pairs = [re.fullmatch(r"(.*?)(\w+)", " ".join(parameter.split())).groups() for parameter in parameters.split(",")]
        yield name, words.strip(), [(own, kind_of(before.strip(), kinds)) for before, own in pairs if before]


TEXT, CONSTANTS = declarations()
KINDS = kinds_of(TEXT)
globals().update(CONSTANTS)
globals().update({kind.__name__: kind for kind in KINDS.values() if hasattr(kind, "c_name")})
FUNCTIONS = list(functions_of(TEXT, KINDS))
PARAMETERS = {name: [parameter for parameter, _ in parameters] for name, _, parameters in FUNCTIONS}


def explanation(name):
    """The function that explains what this one refuses, if there is one."""
    for ending, instead in (("$", "_explain"), (r"_plan_init(_sized)?$", "_explain"), (r"_init(_sized)?$", "_explain"),
                            (r"_run(_parallel|_share|_phase)?$", "_args_explain"), (r"_run(_parallel|_share)?$", "_explain")):
        candidate, found = re.subn(ending, instead, name)
        if found and candidate in PARAMETERS:
            return candidate
    return None


# ---- The library -------------------------------------------------------------------------------------------------------------


class Library:
    """The shared library. library.c.rapt_...() are its functions; a bad status is raised as error."""

    def __init__(self, path, error=Error):
        self.c, self.error = ctypes.CDLL(path), error
        for name, words, parameters in FUNCTIONS:
            function = getattr(self.c, name)
            function.argtypes = [kind for _, kind in parameters]
            function.restype = kind_of(words, KINDS)
            if words == "rapt_status":
                function.errcheck = self.check

    def check(self, status, function, arguments):
        if status:
            raise self.error(self.explain(status, function.__name__, arguments))

    def explain(self, status, name, arguments):
        """The status in words, and the library's line about it."""
        words, line = self.c.rapt_status_string(status).decode(), ctypes.create_string_buffer(256)
        explain = explanation(name)
        if not explain:
            return words
        given = dict(zip(PARAMETERS[name], arguments), text=line, bytes=ctypes.sizeof(line))
        function = self.c[explain]  # one that does not raise
        function.argtypes = getattr(self.c, explain).argtypes
        again = function(*(given.get(parameter, 1) for parameter in PARAMETERS[explain]))
        assert again in (status, 0), f"{explain} gives another status, {again} for {status}"
        return f"{words}: {line.value.decode()}" if line.value else words

    def types(self, *classes):
        """The storage types of these classes: their numbers by name."""
        numbers = (n for n in range(CONSTANTS["TYPE_LIMIT"]) if self.c.rapt_type_class_of(n) in classes)
        return {self.c.rapt_type_name(n).decode(): n for n in numbers}

    def new(self, kind, **values):
        """A struct as its init function leaves it, then these fields."""
        struct = kind()
        getattr(self.c, kind.c_name + "_init_sized")(struct, ctypes.sizeof(struct))
        for name, value in values.items():
            setattr(struct, name, value)
        return struct

    def plan(self, desc):
        """Of any desc that has plans."""
        plan = KINDS[desc.c_name.replace("_desc", "_plan")]()
        getattr(self.c, plan.c_name + "_init_sized")(plan, ctypes.sizeof(plan), desc)
        return plan

    def workspace(self, plan, threads=1):
        """Of any plan: aligned memory."""
        size = ctypes.c_size_t()
        getattr(self.c, plan.c_name.replace("_plan", "_workspace_size"))(plan, threads, ctypes.byref(size))
        alignment = CONSTANTS["WORKSPACE_ALIGNMENT"]
        memory = ctypes.create_string_buffer(size.value + alignment)
        return (ctypes.c_char * size.value).from_buffer(memory, -ctypes.addressof(memory) % alignment)

    def run(self, desc, args):
        """Plan, workspace and call, on this thread."""
        plan = self.plan(desc)
        workspace = self.workspace(plan)
        args.workspace, args.workspace_bytes = workspace, len(workspace)
        getattr(self.c, plan.c_name.replace("_plan", "_run"))(plan, args)

    def kernels(self):
        """Those that can run here, best first."""
        names = []
        while name := self.c.rapt_isa_name(len(names)):
            names.append(name)

        def usable(name):
            try:
                self.c.rapt_isa_usable(name, None, 0)
            except self.error:
                return False
            return True
        return [name.decode() for name in names if usable(name)]
