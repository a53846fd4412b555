"""The judge's end of the conversation with the program's box: what is asked, what comes back, and exceptions
that stand for the program's.

Only data and references (reference.py) come over."""

import builtins
import json
import sys
from typing import Any, NoReturn

from verifiers.code import forms, values
from verifiers.code.names import QUERIES
from verifiers.code.reference import Reference, state


class ProgramError(Exception):
    """An exception of the program's that has no better class here."""


class Gone(BaseException):
    """The program has ended."""


_NEVER_RAISED = (KeyboardInterrupt, GeneratorExit)
_STOPS = (StopIteration, StopAsyncIteration)


class Link:
    """The conversation about one test."""

    def __init__(self, stream: Any, expects_stop: bool = False) -> None:
        self._stream = stream
        self._expects_stop = expects_stop
        self._callbacks: list[Any] = []
        self._raised: list[BaseException] = []
        self._references: dict[int, Reference] = {}
        self._classes: dict[int, type] = {}
        self._given: list[Any] = []
        self.stops: list[BaseException] = []
        """Each StopIteration of a function of the program that the test has not caught yet; one that names it
        may be waiting for it."""
        self.failed: BaseException | None = None
        """Exception that fails the test even if it is swallowed: an assertion of a function that the test
        passed in, the program's end."""

    def caught(self, error: BaseException | None) -> None:
        """The test has caught this exception itself."""
        self.stops = [stop for stop in self.stops if stop is not error]

    def send(self, message: dict[str, Any]) -> None:
        try:
            self._stream.write(json.dumps(message).encode() + b"\n")
            self._stream.flush()
        except OSError as error:
            raise self._gone("the program has ended") from error

    def _gone(self, why: str) -> Gone:
        # A test may catch everything; it fails all the same.
        self.failed = Gone(why)
        return self.failed

    def receive(self) -> dict[str, Any]:
        try:
            line = self._stream.readline()
        except OSError as error:
            raise self._gone("the program has ended") from error
        if not line.endswith(b"\n"):
            raise self._gone("the program has ended")
        message = values.loads(line)
        if not isinstance(message, dict):
            raise self._gone("the program's box wrote nonsense")
        return message

    # What goes out.

    def encode(self, value: Any) -> Any:
        return values.encode(value, self._other, 0, self._special)

    def _special(self, value: Any) -> Any:
        kind = type(value)
        if kind is Reference:
            return None
        number = getattr(value, "_asyncrl_number", None)
        if isinstance(number, int) and number >= 0 and isinstance(value._asyncrl_link, Link):
            return ["o", number]
        if kind in (list, dict, set, bytearray):
            self._given.append(value)
            return ["m", len(self._given) - 1, forms.container(value, self.encode)]
        if forms.is_named_tuple(value):
            return ["n", kind.__name__, list(kind._fields), [self.encode(item) for item in value]]
        return forms.encode(value, self.encode)

    def _other(self, value: Any) -> Any:
        if isinstance(value, Reference):
            return ["o", state(value).number]
        found = forms.encode_global(value)
        if found is not None:
            return found
        if isinstance(value, Exception):
            names = [kind.__name__ for kind in type(value).__mro__]
            return ["e", names, [self.encode(item) for item in value.args]]
        if callable(value):
            self._callbacks.append(value)
            return ["cb", len(self._callbacks) - 1, str(getattr(value, "__name__", "function"))]
        return values.encode(value)

    # What comes in.

    def ask(self, operation: str, *arguments: Any, made: bool = False, **keywords: Any) -> Any:
        """The program's value; its exceptions are raised here, its callbacks answered meanwhile."""
        outer, self._given = self._given, []
        try:
            listed = [self.encode(item) for item in arguments]
            words = {key: self.encode(item) for key, item in keywords.items()}
            self.send({"operation": operation, "arguments": listed, "keywords": words})
            while "callback" in (reply := self.receive()):
                self.send(self._answer(reply))
            self._apply_changes(reply.get("changed") or [])
            if isinstance(printed := reply.get("printed"), str):
                sys.stdout.write(printed)
            if "error" in reply:
                self._raise(reply["error"], operation)
            return self.decode(reply.get("value"), made)
        finally:
            self._given = outer

    def _apply_changes(self, changed: Any) -> None:
        contents = [(self._given[int(number)], self.decode(form)) for number, form in changed]
        for ours, content in contents:
            if isinstance(content, type(ours)):
                forms.fill(ours, content)

    def _answer(self, reply: dict[str, Any]) -> dict[str, Any]:
        try:
            function = self._callbacks[int(reply["callback"])]
            arguments = [self.decode(item) for item in reply["arguments"]]
            keywords = {key: self.decode(item) for key, item in reply["keywords"].items()}
            given, self._given = self._given, []
            try:
                return {"returned": self.encode(function(*arguments, **keywords))}
            finally:
                self._given = given
        except Gone:
            raise
        except BaseException as error:
            if isinstance(error, AssertionError) or not isinstance(error, Exception):
                self.failed = error
            return self._answer_raised(error)

    def _answer_raised(self, error: BaseException) -> dict[str, Any]:
        self._raised.append(error)
        try:
            arguments = [self.encode(item) for item in error.args]
        except Exception:
            arguments = [str(error)]
        names = [kind.__name__ for kind in type(error).__mro__]
        return {"raised": names, "arguments": arguments, "number": len(self._raised) - 1}

    def decode(self, form: Any, made: bool = False) -> Any:
        """The value, or the reference, of a form that the program's box sent. Raises NotPlain."""
        return values.decode(form, lambda item: self._decode_other(item, made))

    def _decode_other(self, form: Any, made: bool) -> Any:
        try:
            tag = form[0]
            if tag == "o":
                return self._reference(form, made)
            if tag == "=":
                return self._given[form[1]]
            if tag == "x":
                return self.exception_class(form)
            if tag == "e":
                return self.exception(form[1])
            if tag == "v":
                return self._valued(form[1], form[2], values.decode(form[3]))
            if tag == "n" and len(form) > 4:
                # Its methods, if it has any, are the program's.
                items = forms.decode(form[:4], self.decode)
                kind = type(type(items).__name__, (type(items),), _attributes(self, int(form[4])))
                return kind(*items)
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise values.NotPlain(f"no encoded value: {type(error).__name__}") from error
        return forms.decode(form, self.decode)

    def _reference(self, form: Any, made: bool) -> Reference:
        number = int(form[1])
        found = self._references.get(number)
        if found is None:
            found = self._references[number] = Reference(self, number, form)
        state(found).made |= made
        return found

    def _valued(self, number: int, name: str, plain: Any) -> Any:
        """Data of a class that the program derived from a plain type: compared here,
        its methods the program's."""
        base = type(plain)
        if base not in (int, float, str, bytes, tuple, frozenset):
            raise values.NotPlain("no encoded value")
        return type(str(name)[:80], (base,), _attributes(self, int(number)))(plain)

    def exception_class(self, form: Any) -> type[BaseException]:
        """The class that stands for one of the program's here; its bases too."""
        if isinstance(form, str):
            return BaseException
        _, number, name, bases = form
        if number is None:
            kind = getattr(builtins, name, None)
            is_usable = isinstance(kind, type) and issubclass(kind, BaseException)
            return kind if is_usable and kind not in _NEVER_RAISED else ProgramError  # type: ignore[return-value]
        if number not in self._classes:
            parents = tuple(dict.fromkeys(self.exception_class(base) for base in bases)) or (ProgramError,)
            body = _attributes(self, int(number)) | {"__init__": _build_exception, "__str__": _exception_text}
            self._classes[number] = type(str(name)[:80], parents, body)
        return self._classes[number]

    def exception(self, form: Any) -> BaseException:
        """The exception that stands for one of the program's."""
        kind = self.exception_class(form["class"])
        text, number = str(form["text"]), form["number"]
        arguments = [self.decode(item) for item in form["arguments"]]
        if number is None:
            try:
                plain = kind(*arguments)
                if str(plain) == text:
                    return plain
            except (TypeError, ValueError):
                pass
            number = -1
        if "_asyncrl_text" not in vars(kind):
            body = _attributes(self, -1) | {"__init__": _build_exception, "__str__": _exception_text}
            kind = type(kind.__name__, (kind,), body)
        error: BaseException = kind.__new__(kind)
        error.args = tuple(arguments)
        vars(error).update(_asyncrl_text=text, _asyncrl_number=int(number))
        return error

    def _raise(self, form: Any, operation: str) -> NoReturn:
        try:
            if "ours" in form:
                raise self._raised[int(form["ours"])]
            error = self.exception(form)
        except (TypeError, ValueError, LookupError, AttributeError) as wrong:
            if "ours" in form:
                raise
            raise ProgramError("the program's box wrote nonsense") from wrong
        if isinstance(error, _STOPS) and operation not in ("builtins.next", "await_next"):
            # Inside of a `map` or a loop of the test it would pass for the end of the data.
            if not self._expects_stop:
                raise RuntimeError(f"the function raised {type(error).__name__}")
            self.stops.append(error)
        raise error


def _attributes(link: Link, number: int) -> dict[str, Any]:
    """Class attributes that let the rest of an object's attributes be asked of the program."""

    def get(self: Any, name: str) -> Any:
        if name.startswith("__") or self._asyncrl_number < 0:
            raise AttributeError(name)
        found = link.ask("attribute", self, name)
        if name in QUERIES and isinstance(found, Reference):
            raise TypeError(f"a value of {type(self).__name__} has no {name!r} but the program's")
        return found

    return {"__getattr__": get, "_asyncrl_number": number, "_asyncrl_link": link, "_asyncrl_text": ""}


def _exception_text(self: Any) -> str:
    return str(self._asyncrl_text)


def _build_exception(self: Any, *arguments: Any, **keywords: Any) -> None:
    """`__init__` of an exception class of the program's that a test instantiates."""
    link: Link = self._asyncrl_link
    made = link.ask("call", type(self), *arguments, **keywords)
    if not isinstance(made, BaseException):
        raise TypeError("the program's exception class built no exception")
    self.args = made.args
    vars(self).update(vars(made))
