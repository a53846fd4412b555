"""References: what stands in a test, in the judge's box, for the program's objects.

- An object that a test builds by a capitalized name (`Stack()`, here "made") is the program's to define,
  operators included, against others of its kind. Against plain data only arithmetic is, and then the result
  must again be an object that is compared with its kind: a class of the program never decides about a value
  that the test expects.
- An object of a class that the program derived from list, dict or set is data, and compared as such, here.
- Any other object equals nothing and compares with nothing.
- A method of builtin types that gives a truth or a number, such as startswith, is called on values of these
  types and on objects that the test built itself, never on one that the program returned."""

import operator
from typing import Any

from verifiers.code import values
from verifiers.code.names import QUERIES


class ReferenceState:
    """The known facts about the object behind a reference."""

    def __init__(self, link: Any, number: int, form: Any) -> None:
        self.link = link
        self.number = number
        self.kind = str(form[2])[:80]
        self.class_name = str(form[3])[:80]
        """Its own name, if it is a class."""
        self.is_data = form[4] is True
        """Whether its class derives from list, dict or set."""
        self.made = False
        self.built = False
        """Whether the test built it, by a call of its class."""
        self.mixed = False
        """Whether plain data of the test went into it through an operator."""


def state(reference: "Reference") -> ReferenceState:
    found: ReferenceState = object.__getattribute__(reference, "_asyncrl")
    return found


def _not_data(reference: "Reference") -> TypeError:
    return TypeError(f"the program returned an object of type {state(reference).kind}, which is not data")


def _ask(reference: "Reference", operation: str, *arguments: Any, made: bool = False, **keywords: Any) -> Any:
    return state(reference).link.ask(operation, reference, *arguments, made=made, **keywords)


def _is_made(value: Any) -> bool:
    return isinstance(value, Reference) and state(value).made


def plain(value: Any) -> Any:
    """The data that a reference is, or the value itself."""
    if isinstance(value, Reference) and state(value).is_data:
        link = state(value).link
        link.send({"operation": "plain", "arguments": [["o", state(value).number]], "keywords": {}})
        return values.decode(link.receive().get("value"))
    return value


def _compare(operation: str, left: Any, right: Any) -> Any:
    """A comparison of two values of which one at least is a reference."""
    own, other = (left, right) if isinstance(left, Reference) else (right, left)
    if other is None and operation in ("eq", "ne"):
        return operation == "ne"
    if isinstance(other, Reference) and (_is_made(own) or _is_made(other)):
        return state(own).link.ask(f"operator.{operation}", left, right) is True
    left, right = plain(left), plain(right)
    if isinstance(left, Reference) or isinstance(right, Reference):
        raise _not_data(own)
    return getattr(operator, operation)(left, right)


def _operate(operation: str, left: Any, right: Any) -> Any:
    """An arithmetic operator between two values of which one at least is a reference."""
    own, other = (left, right) if isinstance(left, Reference) else (right, left)
    if not (_is_made(own) or _is_made(other)):
        return _operate_here(operation, left, right)
    mixed = not isinstance(other, Reference) or state(other).mixed or state(own).mixed
    result = state(own).link.ask(f"operator.{operation}", left, right, made=True)
    if not mixed:
        return result
    if not isinstance(result, Reference):
        # It has seen what the test expects, maybe: data from here would prove nothing.
        if state(own).is_data:
            return _operate_here(operation, left, right)
        raise TypeError(f"an operator of {state(own).kind} with plain data must give an object")
    state(result).mixed = True
    return result


def _operate_here(operation: str, left: Any, right: Any) -> Any:
    """The operator of plain Python, between values that are data."""
    left, right = plain(left), plain(right)
    for value in (left, right):
        if isinstance(value, Reference):
            raise _not_data(value)
    return getattr(operator, operation)(left, right)


def _convert(reference: "Reference", operation: str, *arguments: Any) -> Any:
    """An operation that makes something else of an object, such as abs()."""
    if not state(reference).made:
        raise _not_data(reference)
    result = _ask(reference, operation, *arguments, made=True)
    if state(reference).mixed:
        if not isinstance(result, Reference):
            raise _not_data(reference)
        state(result).mixed = True
    return result


class Reference:
    __slots__ = ("_asyncrl",)

    def __init__(self, link: Any, number: int, form: Any) -> None:
        object.__setattr__(self, "_asyncrl", ReferenceState(link, number, form))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__dict__", "__annotations__", "__wrapped__"):
            raise AttributeError(name)
        found = _ask(self, "attribute", name)
        # A class of the program's, or an object that the test built of one, answers by itself.
        is_asked = state(self).built or bool(state(self).class_name)
        if name in QUERIES and isinstance(found, Reference) and not is_asked:
            if not state(self).is_data:
                raise _not_data(self)
            return getattr(plain(self), name)
        # Constants of a class, enum members above all, are objects of its kind.
        if isinstance(found, Reference) and state(self).made:
            state(found).made |= bool(state(self).class_name) and state(found).kind == state(self).class_name
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        _ask(self, "set_attribute", name, value)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        result = _ask(self, "call", *arguments, made=state(self).made, **keywords)
        if isinstance(result, Reference):
            state(result).built |= state(self).made and bool(state(self).class_name)
        return result

    def __hash__(self) -> int:
        # The same before and after the test makes one like it: containers keep it.
        return int(_ask(self, "builtins.hash"))

    def __len__(self) -> int:
        return int(_ask(self, "builtins.len"))

    def __bool__(self) -> bool:
        return _ask(self, "builtins.bool") is True

    def __str__(self) -> str:
        return str(_ask(self, "builtins.str"))

    def __repr__(self) -> str:
        return str(_ask(self, "builtins.repr"))

    def __int__(self) -> int:
        return int(_convert(self, "builtins.int"))

    def __float__(self) -> float:
        return float(_convert(self, "builtins.float"))

    def __round__(self, *digits: Any) -> Any:
        return _convert(self, "builtins.round", *digits)

    def __getitem__(self, index: Any) -> Any:
        return _ask(self, "operator.getitem", index, made=state(self).made)

    def __setitem__(self, index: Any, value: Any) -> None:
        _ask(self, "operator.setitem", index, value)

    def __delitem__(self, index: Any) -> None:
        _ask(self, "operator.delitem", index)

    def __iter__(self) -> Any:
        return _ask(self, "builtins.iter", made=state(self).made)

    def __next__(self) -> Any:
        return _ask(self, "builtins.next", made=state(self).made)

    def __reversed__(self) -> Any:
        return _ask(self, "builtins.reversed", made=state(self).made)

    def __contains__(self, item: Any) -> bool:
        if state(self).is_data:
            return item in plain(self)
        if not state(self).made:
            raise TypeError("the program returned an object, which is not data")
        return _ask(self, "operator.contains", item) is True

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, Reference) and _ask(value, "builtins.isinstance", self) is True

    def __subclasscheck__(self, kind: Any) -> bool:
        return isinstance(kind, Reference) and _ask(kind, "builtins.issubclass", self) is True

    def __enter__(self) -> Any:
        return _ask(self, "enter", made=state(self).made)

    def __exit__(self, kind: Any, error: Any, frames: Any) -> bool:
        if error is not None and not isinstance(error, Exception):
            return False
        is_swallowed = _ask(self, "exit", error) is True
        # What the test itself asserts is not the program's to swallow.
        return is_swallowed and not isinstance(error, AssertionError)

    def __await__(self) -> Any:
        return _ask(self, "await", made=state(self).made)
        yield

    def __aiter__(self) -> Any:
        return _ask(self, "aiter", made=state(self).made)

    async def __anext__(self) -> Any:
        return _ask(self, "await_next", made=state(self).made)

    @property
    def __name__(self) -> Any:
        return _ask(self, "attribute", "__name__")

    @property
    def __doc__(self) -> Any:  # type: ignore[override]
        return _ask(self, "attribute", "__doc__")


def _add_operators() -> None:
    """Every operator of the language, by the rules of _compare, _operate and _convert."""

    def add(name: str, method: Any) -> None:
        setattr(Reference, f"__{name}__", method)

    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        add(name, lambda own, other, name=name: _compare(name, own, other))
    binary = "add sub mul truediv floordiv mod pow matmul lshift rshift and_ or_ xor"
    for function in binary.split():
        name = function.rstrip("_")
        add(name, lambda own, other, name=function: _operate(name, own, other))
        add(f"r{name}", lambda own, other, name=function: _operate(name, other, own))
        add(f"i{name}", lambda own, other, name=f"i{name}": _operate(name, own, other))
    for name in ("neg", "pos", "invert", "abs"):
        add(name, lambda own, name=name: _convert(own, f"operator.{name}"))


_add_operators()
