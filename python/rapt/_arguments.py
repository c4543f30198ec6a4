# SPDX-License-Identifier: Apache-2.0
"""Arguments that are numbers, and how a refusal shows what was given in their place."""
import operator
import os
from typing import Any

_LONGEST = 100  # characters of what a message shows
_WHOLE = "int", "uint"  # how names of dtypes begin
_REAL = "float", "bfloat", *_WHOLE


def shown(x: Any) -> str:
    """x within a message of one line: an array by its shape, anything else by its repr, cut where it is long."""
    if getattr(x, "shape", ()) != ():
        return f"a {type(x).__name__} of shape {tuple(x.shape)}"
    try:
        text = repr(x)
    except Exception:  # of numbers of more digits than Python writes, say
        return f"a {type(x).__name__}"
    if "\n" in text:
        text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST - 3]}..."


def _is_one(x: Any, kinds: tuple[str, ...]) -> bool:
    """True if x may be a number: one of Python's, or an array's scalar of such a dtype. Text is none, though float() reads it."""
    if isinstance(x, (bool, str, bytes, bytearray, memoryview)):
        return False
    dtype = getattr(x, "dtype", None)
    name: str = getattr(dtype, "name", str(dtype).removeprefix("torch."))
    return dtype is None or (getattr(x, "shape", None) == () and name.startswith(kinds))


def flag(x: Any, name: str) -> bool:
    """The argument of that name, True or False, or the numbers that are equal to them."""
    if not isinstance(x, bool) and not (_is_one(x, ("bool", *_WHOLE)) and x in (0, 1)):
        raise TypeError(f"{name} is {shown(x)}: True or False is needed")
    return bool(x)


def float_arith(x: Any) -> str:
    """The argument arith of a host that has no integers to multiply."""
    if not isinstance(x, str) or x not in ("exact", "bf16"):
        raise ValueError(f"arith is {shown(x)}: 'exact' or 'bf16' is needed")
    return x


def file_name(x: Any, name: str) -> str:
    """The argument of that name, a file's name."""
    try:
        return os.fsdecode(x)
    except TypeError:
        raise TypeError(f"{name} is {shown(x)}: a file's name is needed") from None


def number(x: Any, name: str) -> float:
    """The argument of that name, a real number."""
    value = None
    if _is_one(x, _REAL):
        try:
            value = float(x) + 0.0  # one zero, so that no plan depends on which came first
        except OverflowError:
            raise ValueError(f"{name} is {shown(x)}: it is beyond a float's range") from None
        except (TypeError, ValueError):
            pass
    if value is None:
        raise TypeError(f"{name} is {shown(x)}: a number is needed")
    if value != value:
        raise ValueError(f"{name} is NaN: a number is needed")
    return value


def whole(x: Any, name: str) -> int:
    """The argument of that name, a whole number that the library's 64 bits hold."""
    if not _is_one(x, _WHOLE) or not hasattr(x, "__index__"):
        raise TypeError(f"{name} is {shown(x)}: a whole number is needed")
    value = operator.index(x)
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{name} is {shown(x)}: it is beyond 64 bits")
    return value
