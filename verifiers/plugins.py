"""Classes by name: built in, of a file of the user's, of a module, or of an installed package's entry point.

Verifiers and environments are found by it. Owns the sentences for names that are wrong."""

import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import cast

from verifiers.options import nearest

_OWN_MODULE = re.compile(r"asyncrl_plugin_(\w+)_[0-9a-f]{12}")
Plugin = Callable[..., object]
"""A class, or what builds an object of one."""


def in_words(text: str) -> str:
    """`text` with files by their stems, where Python names the modules that they are loaded as."""
    return _OWN_MODULE.sub(r"\1", text)


@dataclass(frozen=True, slots=True)
class Plugins:
    """Names of one kind of plug-in."""

    kind: str
    """In error messages, such as "verifier"."""
    group: str
    """Entry points of installed packages."""
    built_in: Mapping[str, str]
    """Name to "module:Class"."""

    def find(self, name: str, folder: Path | None) -> Plugin:
        """The class called `name`; a path is relative to `folder`. Raises ValueError with a sentence that
        names the mistake, and what a module raises that is imported."""
        if name in self.built_in:
            return self._from_module(name, self.built_in[name])
        file, colon, attribute = name.rpartition(":")
        if colon and (file.endswith(".py") or "/" in file):
            return self._attribute(name, self._module_of_file(name, file, folder), attribute)
        if colon:
            return self._from_module(name, name)
        # Heavy, and a process that is forked for each conversation pays for each module of its template.
        from importlib.metadata import entry_points

        installed = entry_points(group=self.group)
        if name in installed.names:
            return cast(Plugin, installed[name].load())
        known = [*self.built_in, *sorted(installed.names)]
        raise ValueError(
            f"There is no {self.kind} {name!r}.{nearest(name, known)} Known: {', '.join(known)}; "
            "or name your own as package.module:Name or ./file.py:Name."
        )

    def say(self, name: str) -> str:
        """The beginning of a sentence about one, such as "Verifier 'math'"."""
        return f"{self.kind.capitalize()} {name!r}"

    def _from_module(self, name: str, target: str) -> Plugin:
        module_name, _, attribute = target.partition(":")
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            raise ValueError(
                f"{self.say(name)} needs the module {error.name!r}, which cannot be imported."
            ) from error
        return self._attribute(name, module, attribute)

    def _module_of_file(self, name: str, file: str, folder: Path | None) -> ModuleType:
        path = ((folder or Path.cwd()) / file).resolve()
        if not path.is_file():
            beside = [each.name for each in path.parent.glob("*.py")]
            raise ValueError(
                f"{self.say(name)}: there is no file {path}. The path is relative to {folder or Path.cwd()}."
                f"{nearest(path.name, beside)}"
            )
        # A name of its own per path: two files called reward.py must not replace each other, and an object
        # of the file's must unpickle in a worker, which loads the same path and so gets the same name.
        module_name = f"asyncrl_plugin_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
        if module_name in sys.modules:
            return sys.modules[module_name]
        spec = importlib.util.spec_from_file_location(module_name, path)
        if spec is None or spec.loader is None:
            raise ValueError(f"{self.say(name)}: {path} is not a Python file.")
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException as error:
            del sys.modules[module_name]
            if isinstance(error, Exception):
                raise ValueError(
                    f"{self.say(name)}: {path} failed to load: {type(error).__name__}: {in_words(str(error))}"
                ) from error
            raise
        return module

    def _attribute(self, name: str, module: ModuleType, attribute: str) -> Plugin:
        found = getattr(module, attribute, None)
        if not callable(found):
            own = [
                each for each in vars(module).values() if getattr(each, "__module__", "") == module.__name__
            ]
            public = [each.__name__ for each in own if callable(each) and each.__name__[0] != "_"]
            raise ValueError(
                f"{self.say(name)}: {name.rpartition(':')[0] or module.__name__} has no class {attribute!r}."
                f"{nearest(attribute, public)} It has: {', '.join(public) or 'none'}."
            )
        return cast(Plugin, found)
