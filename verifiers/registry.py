"""Names to verifiers. Owns the list of built-ins and the four ways to name one; imports a verifier only when
asked for.

A name is a built-in ("math"), "package.module:Name", "./file.py:Name" (from the folder of the recipe or row
file), or an entry point of the group `asyncrl.verifiers`. The named object is called with the options as
keyword arguments."""

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, cast, runtime_checkable

from verifiers.options import checked, nearest
from verifiers.verifier import Verifier

ENTRY_POINT_GROUP = "asyncrl.verifiers"

BUILT_IN = {
    "math": "verifiers.math.verifier:MathVerifier",
    "exact": "verifiers.exact:ExactVerifier",
    "numeric": "verifiers.numeric:NumericVerifier",
    "regex": "verifiers.regex:RegexVerifier",
    "choice": "verifiers.choice:ChoiceVerifier",
    "countdown": "verifiers.countdown:CountdownVerifier",
    "format": "verifiers.format:FormatVerifier",
    "json_schema": "verifiers.json_schema:JsonSchemaVerifier",
    "length": "verifiers.length:LengthVerifier",
    "remote": "verifiers.remote:RemoteVerifier",
    "weighted": "verifiers.weighted:WeightedVerifier",
    "gym": "verifiers.gym.verifier:GymVerifier",
    "code": "verifiers.code.verifier:CodeVerifier",
}


@runtime_checkable
class Composite(Protocol):
    """A verifier class that builds others from its options."""

    def check_parts(self, options: dict[str, Any], folder: Path | None) -> dict[str, Any]:
        """The options with those of the parts checked. Raises ValueError."""
        ...


def load_verifier(
    name: str, options: Mapping[str, object] | None = None, *, folder: Path | None = None
) -> Verifier:
    """The verifier called `name`, built with `options`. Raises ValueError with a sentence
    that names the mistake."""
    return build_verifier(name, check_options(name, options or {}, folder=folder), folder=folder)


def check_options(
    name: str, options: Mapping[str, object], *, folder: Path | None = None
) -> dict[str, object]:
    """The options that `build_verifier` takes: those of our own verifiers checked and with their types, those
    of yours as they are."""
    target = _find(name, folder)
    if target.__module__.partition(".")[0] != __package__:
        return dict(options)
    found = checked(name, target, options, internal=("folder",))
    return target.check_parts(found, folder) if isinstance(target, Composite) else found


def build_verifier(name: str, options: Mapping[str, object], *, folder: Path | None = None) -> Verifier:
    """The verifier called `name`, with options that were checked."""
    target = _find(name, folder)
    given = dict(options)
    if isinstance(target, Composite):
        # Its parts may be named by a path too, relative to the same folder.
        given["folder"] = folder
    try:
        verifier = target(**given)
    except ValueError:
        raise
    except Exception as error:
        kind = "" if isinstance(error, TypeError) else f"{type(error).__name__}: "
        raise ValueError(
            f"Verifier {name!r} could not be built with the options {options!r}: {kind}{error}."
        ) from error
    for method in ("parse_reference", "verify"):
        if not callable(getattr(verifier, method, None)):
            raise ValueError(
                f"Verifier {name!r} has no method {method!r}: a verifier is a class with "
                "parse_reference(raw) and verify(response, reference)."
            )
    return cast(Verifier, verifier)


def _find(name: str, folder: Path | None) -> Callable[..., object]:
    if name in BUILT_IN:
        return _from_module(name, BUILT_IN[name])
    file, colon, attribute = name.rpartition(":")
    if colon and (file.endswith(".py") or "/" in file):
        return _attribute(name, _module_of_file(name, file, folder), attribute)
    if colon:
        return _from_module(name, name)
    installed = entry_points(group=ENTRY_POINT_GROUP)
    if name in installed.names:
        return cast(Callable[..., object], installed[name].load())
    known = [*BUILT_IN, *sorted(installed.names)]
    raise ValueError(
        f"There is no verifier {name!r}.{nearest(name, known)} Known: {', '.join(known)}; "
        "or name your own as package.module:Name or ./file.py:Name."
    )


def _from_module(name: str, target: str) -> Callable[..., object]:
    module_name, _, attribute = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"Verifier {name!r} needs the module {error.name!r}, which cannot be imported."
        ) from error
    return _attribute(name, module, attribute)


def _module_of_file(name: str, file: str, folder: Path | None) -> ModuleType:
    path = ((folder or Path.cwd()) / file).resolve()
    if not path.is_file():
        raise ValueError(
            f"Verifier {name!r}: there is no file {path}. The path is relative to {folder or Path.cwd()}."
        )
    # A name of its own per path: two files called reward.py must not replace each other, and a verifier's
    # reference must unpickle in a worker, which loads the same path and so gets the same name.
    module_name = f"asyncrl_verifier_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"Verifier {name!r}: {path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[module_name]
        if isinstance(error, Exception):
            raise ValueError(
                f"Verifier {name!r}: {path} failed to load: {type(error).__name__}: {error}"
            ) from error
        raise
    return module


def _attribute(name: str, module: ModuleType, attribute: str) -> Callable[..., object]:
    found = getattr(module, attribute, None)
    if not callable(found):
        public = [key for key, value in vars(module).items() if isinstance(value, type) and key[0] != "_"]
        raise ValueError(
            f"Verifier {name!r}: {module.__name__} has no class {attribute!r}.{nearest(attribute, public)}"
        )
    return cast(Callable[..., object], found)
