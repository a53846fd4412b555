"""Stand-ins for packages that SGLang imports without condition and never uses on a CPU: torchvision, triton.

Python imports this file at start because its folder is on PYTHONPATH, which environment.py next to it
sets only where there is no GPU. Importing a name from a stand-in always works; using one as a decorator
returns what it decorates; nothing it stands for is computed.
"""

import gc
import importlib.abc
import importlib.machinery
import sys
import types

STAND_INS = ("torchvision", "triton")
UNUSED = ("megatron",)
"""SGLang imports these where they are installed, for debugging tools, and needs none of them."""


def _is_decorated(arguments, keywords):
    return len(arguments) == 1 and not keywords and isinstance(arguments[0], (types.FunctionType, type))


class _AnyMeta(type):
    """Makes every attribute of a stand-in a stand-in, and lets it appear in `X | None` and in loops."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(f"{cls.__name__}.{name}")

    def __iter__(cls):
        return iter(())

    def __or__(cls, other):
        return cls

    __ror__ = __or__


class _Any(metaclass=_AnyMeta):
    """A class, so that it can be subclassed, used in annotations, called, and used as a decorator."""

    def __new__(cls, *arguments, **keywords):
        return arguments[0] if _is_decorated(arguments, keywords) else object.__new__(cls)

    def __init__(self, *arguments, **keywords):
        pass

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _stand_in(name)

    def __call__(self, *arguments, **keywords):
        return arguments[0] if _is_decorated(arguments, keywords) else self

    def __class_getitem__(cls, item):
        return cls


def _stand_in(name):
    return _AnyMeta(name, (_Any,), {})


class _Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = _stand_in(name)
        setattr(self, name, value)
        return value


class _NoDriver:
    @property
    def active(self):
        # SGLang asks for the active driver to learn the device, and takes this error for "there is none".
        raise RuntimeError("0 active drivers ([]). There should only be one.")


def _fill_triton(module):
    for name in ("language", "runtime", "testing", "compiler"):
        importlib.import_module(f"triton.{name}")
    module.__version__ = "3.9.0"
    module.cdiv = lambda numerator, denominator: -(-numerator // denominator)
    module.next_power_of_2 = lambda number: 1 << (int(number) - 1).bit_length() if number > 0 else 1


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name in UNUSED:
            raise ModuleNotFoundError(f"{name} is not imported into a CPU server", name=name)
        if name.partition(".")[0] in STAND_INS:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = _Module(spec.name)
        module.__path__ = []
        module.__version__ = "0.0.0"
        return module

    def exec_module(self, module):
        if module.__name__ == "triton":
            _fill_triton(module)
        elif module.__name__ == "triton.runtime":
            module.driver = _NoDriver()


sys.meta_path.insert(0, _Finder())
# Importing SGLang makes millions of objects and no garbage; cpu/processes.py enables the collector after it.
gc.disable()
