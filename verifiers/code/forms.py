"""Forms of values beyond plain data, for the conversation between a judge's box and a program's.

Both ends use it, each by file: standard library only. A form is a list whose first item is a tag that
values.py does not know. Decoding builds values of the standard library; it never looks a class up by a name
that the program chose, except builtin types."""

import builtins
import datetime
import importlib
import types
from collections import Counter, OrderedDict, deque, namedtuple
from collections.abc import Callable
from typing import Any

from verifiers.code import values

Coder = Callable[[Any], Any]
_DICTS = {"C": Counter, "O": OrderedDict}
_BUILTIN_TYPES = {
    name: item
    for name, item in vars(builtins).items()
    if isinstance(item, type) and not issubclass(item, BaseException)
}
_BUILTIN_TYPES["NoneType"] = type(None)


def container(value: Any, encode: Coder) -> Any:
    """The form of a list, dict, set or bytearray whose members `encode` encodes."""
    if isinstance(value, list):
        return ["l", [encode(item) for item in value]]
    if isinstance(value, dict):
        return ["d", [[encode(key), encode(item)] for key, item in value.items()]]
    if isinstance(value, set):
        return ["S", [encode(item) for item in value]]
    return ["ba", bytes(value).hex()]


def fill(ours: Any, content: Any) -> None:
    """Gives a list, dict, set or bytearray the content of another."""
    ours.clear()
    if isinstance(ours, (list, bytearray, deque)):
        ours.extend(content)
    else:
        ours.update(content)


def _when(value: Any) -> Any:
    if type(value) is datetime.timedelta:
        return ["w", "timedelta", [value.days, value.seconds, value.microseconds], None]
    if type(value) is datetime.date:
        return ["w", "date", [value.year, value.month, value.day], None]
    clock = [value.hour, value.minute, value.second, value.microsecond]
    day = [value.year, value.month, value.day] if isinstance(value, datetime.datetime) else []
    offset = value.utcoffset()
    return ["w", type(value).__name__, [*day, *clock], None if offset is None else offset.total_seconds()]


def _decode_when(kind: str, numbers: list[int], offset: float | None) -> Any:
    makers: dict[str, Any] = {
        name: getattr(datetime, name) for name in ("timedelta", "date", "datetime", "time")
    }
    made = makers[kind](*numbers)
    if offset is None:
        return made
    return made.replace(tzinfo=datetime.timezone(datetime.timedelta(seconds=offset)))


def encode(value: Any, inner: Coder) -> Any:
    """The form of a value of the standard library, else None. `inner` encodes members."""
    kind = type(value)
    if kind is deque:
        return ["Q", [inner(item) for item in value], value.maxlen]
    for tag, dictionary in _DICTS.items():
        if kind is dictionary:
            return [tag, [[inner(key), inner(item)] for key, item in value.items()]]
    if kind in (datetime.date, datetime.datetime, datetime.time, datetime.timedelta):
        return _when(value)
    if kind is slice:
        return ["s", inner(value.start), inner(value.stop), inner(value.step)]
    # Only a class is asked for its name: an object's __getattr__ may raise anything.
    name = getattr(value, "__name__", "") if isinstance(value, type) else ""
    if name and _BUILTIN_TYPES.get(name) is value:
        return ["g", "builtins", name]
    return None


def encode_global(value: Any) -> Any:
    """The form of a class or function of the standard library by its name, else None:
    `int`, `math.sqrt`, `str.upper`."""
    owner = getattr(value, "__objclass__", None)
    if isinstance(value, types.BuiltinMethodType) and not isinstance(value.__self__, types.ModuleType):
        return None
    module = getattr(owner or value, "__module__", None)
    path = getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(path, str):
        return None
    try:
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError, ValueError):
        return None
    return ["g", module, path] if found is value else None


def is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and isinstance(getattr(type(value), "_fields", None), tuple)


def decode(form: Any, inner: Coder) -> Any:
    """The value of `encode`'s form. Raises NotPlain for others."""
    try:
        tag = form[0]
        if tag == "Q":
            return deque([inner(item) for item in form[1]], form[2])
        if tag in _DICTS:
            made: Any = _DICTS[tag]()
            made.update({inner(key): inner(item) for key, item in form[1]})
            return made
        if tag == "s":
            return slice(*map(inner, form[1:4]))
        if tag == "w":
            return _decode_when(*form[1:4])
        if tag == "g" and form[1] == "builtins":
            return _BUILTIN_TYPES[form[2]]
        if tag == "n":
            fields, items = [str(field) for field in form[2]], map(inner, form[3])
            return namedtuple(str(form[1])[:80], fields)(*items)
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        if isinstance(error, values.NotPlain):
            raise
        raise values.NotPlain(f"no encoded value: {type(error).__name__}") from error
    raise values.NotPlain("no encoded value")
