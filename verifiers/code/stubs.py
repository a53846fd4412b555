"""Programs that solve nothing, made for a code task: a gold that one of them passes rewards any program.

Checked by `asyncrl verify-data`; the task's own solution is what must pass."""

from collections.abc import Iterator

from verifiers.code.tests import CodeReference

_RESULTS = ("None", "True", "0", "''", "[]", "arguments[0] if arguments else None")
_IDLE = {
    "python": ("pass\n", "import sys\nsys.stdout.write(sys.stdin.read())\n"),
    "bash": (":\n", "cat\n"),
    "c": (
        "int main(void) { return 0; }\n",
        "#include <stdio.h>\nint main(void) { for (int c; (c = getchar()) != EOF;) putchar(c); }\n",
    ),
}
_IDLE["cpp"] = _IDLE["c"]


def stubs(reference: CodeReference) -> Iterator[tuple[str, str]]:
    """(what it is, a response that holds it) of each useless program."""
    empty, echo = _IDLE[reference.lang]
    yield "empty program", _fenced(empty, reference.lang)
    if not reference.names:
        yield "its own input", _fenced(echo, reference.lang)
        return
    for result in _RESULTS:
        kind = "its first argument" if result.startswith("arguments") else f"always {result}"
        functions = "\n".join(_function(name, result) for name in reference.names)
        yield kind, _fenced(functions, "python")
        if any(map(_is_class_name, reference.names)):
            make = {True: _class, False: _function}
            source = "\n".join(make[_is_class_name(name)](name, result) for name in reference.names)
            yield f"{kind} by a class", _fenced(source, "python")


def _is_class_name(name: str) -> bool:
    return name[:1].isupper()


def _function(name: str, result: str) -> str:
    return f"def {name}(*arguments, **keywords):\n    return {result}\n"


def _class(name: str, result: str) -> str:
    base = "Exception" if name.endswith(("Error", "Exception")) else "object"
    return (
        f"class {name}({base}):\n"
        "    def __init__(self, *arguments, **keywords):\n"
        "        pass\n"
        "    def __getattr__(self, attribute):\n"
        f"        return lambda *arguments, **keywords: {result}\n"
    )


def _fenced(source: str, lang: str) -> str:
    return f"```{lang}\n{source}```\n"
