"""Look up strategies, codecs and other classes by name, and load users' own objects by `file.py:name`."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import pkgutil
import sys
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from paceline.errors import UsageError, unknown
from paceline.parsing import LARGEST_WHOLE, TYPE_NAMES

T = TypeVar("T")
Options = dict[str, bool | int | float | str | None]  # values of a strategy's or codec's options, by option name


def is_reference(text: str) -> bool:
    """Return whether a name refers to the user's code: `file.py:name` or `package.module:name`."""
    module, colon, name = text.partition(":")
    return bool(colon) and name.partition(":")[0].isidentifier() and (module.endswith(".py") or "." in module)


def refuse_file_alone(text: str, kind: str, member: str = "function") -> None:
    """Raise UsageError if a name is that of a Python file, without the function or class in it that is needed."""
    file, _, _ = text.partition(":")
    if file.endswith(".py") and not is_reference(text):
        raise UsageError(f"{kind} {text!r} names no {member}; write {file}:{member.upper()}")


def digests_of_files(texts: Iterable[str]) -> dict[str, str]:
    """Return a dict from path to SHA-256, for the files that `texts` refer to in the form `file.py:name`.

    Missing files are left out.
    """
    paths = {path for path, colon, _ in (text.partition(":") for text in texts) if colon and path.endswith(".py")}
    files = {path: Path(path).expanduser() for path in sorted(paths)}
    return {path: hashlib.sha256(file.read_bytes()).hexdigest() for path, file in files.items() if file.is_file()}


def load_reference(text: str, kind: str) -> Any:
    """Import the object that `file.py:name` or `package.module:name` refers to.

    The folder of the file (for a module, the current folder) is appended to `sys.path`, so that the user's files can
    import their neighbours. `kind` describes the object in error messages, such as `model`.
    """
    module_name, _, attribute = text.partition(":")
    module = _load_file(module_name, kind) if module_name.endswith(".py") else _load_module(module_name, kind)
    try:
        return getattr(module, attribute)
    except AttributeError:
        public = [name for name, value in vars(module).items() if not name.startswith("_") and callable(value)]
        raise unknown(f"{kind} in {module_name}", attribute, public) from None


def call_factory(text: str, kind: str, *args: Any, **kwargs: Any) -> Any:
    """Call the user's factory `file.py:name` and return its result.

    An exception in the factory is raised as a UsageError that names the factory.
    """
    factory = load_reference(text, kind)
    if not callable(factory):
        raise UsageError(f"{kind} {text!r} is a {type(factory).__name__}; name a function or a class")
    try:
        return factory(*args, **kwargs)
    except Exception as error:
        raise UsageError(f"{kind} {text!r} raised {type(error).__name__}: {error}") from error


def accepted_arguments(factory: Any, offered: Mapping[str, object]) -> Mapping[str, object]:
    """Return the subset of the offered keyword arguments that a factory accepts."""
    parameters = inspect.signature(factory).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return offered
    return {name: value for name, value in offered.items() if name in parameters}


def split_words(kind: str, text: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Split `NAME[:option=value...]` into the name and the options. The name may be the user's `file.py:Class`."""
    name, *words = text.split(":")
    if words and is_reference(f"{name}:{words[0]}"):
        name, *words = f"{name}:{words[0]}", *words[1:]
    pairs = [word.partition("=") for word in words]
    for key, equals, _ in pairs:
        if not equals:
            raise UsageError(f"{kind} {text!r}: {key!r} is not option=value")
    return name, tuple((key, value) for key, _, value in pairs)


def convert_options(kind: str, name: str, cls: type, known: Iterable[str], pairs: Sequence[tuple[str, str]]) -> Options:
    """Convert options, given as pairs (option, text), from text to the types of the fields of `cls`.

    `kind` and `name` describe the class in error messages. Raises UsageError if an option is not in `known`, or if its
    text cannot be converted.
    """
    known, hints = list(known), typing.get_type_hints(cls)
    values: Options = {}
    for key, text in pairs:
        if key not in known:
            if not known:
                raise UsageError(f"{kind} {name!r} has no options, but {key!r} was given")
            raise unknown(f"option of {kind} {name}", key, known)
        values[key] = _convert(f"option {key} of {kind} {name}", hints[key], text)
    return values


def _convert(what: str, hint: Any, text: str) -> Any:
    if isinstance(hint, types.UnionType):  # such as `float | None`, where None stands for an option that is not set
        hint = next(part for part in hint.__args__ if part is not type(None))
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise UsageError(f"{what} must be true or false, not {text!r}")
        return text.lower() == "true"
    if typing.get_origin(hint) is typing.Literal:
        choices = typing.get_args(hint)
        if text not in choices:
            raise UsageError(f"{what} must be {' or '.join(choices)}, not {text!r}")
        return text
    try:
        value = hint(text)
        if isinstance(value, int) and abs(value) >= LARGEST_WHOLE:
            raise ValueError("it is too large")
        return value
    except ValueError:
        raise UsageError(f"{what} must be {TYPE_NAMES.get(hint, hint.__name__)}, not {text!r}") from None


def _load_file(path_text: str, kind: str) -> ModuleType:
    path = Path(path_text).expanduser().resolve()
    if not path.is_file():
        raise UsageError(f"{kind} file {path_text!r} does not exist")
    # The module's name depends only on the path, so that loading a file twice returns the same classes.
    name = f"paceline_user_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _append_to_path(path.parent)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UsageError(f"{kind} file {path_text!r} raised {type(error).__name__}: {error}") from error
    return module


def _append_to_path(folder: Path) -> None:
    """Let modules of a folder be imported, after all others of the same name."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _load_module(name: str, kind: str) -> ModuleType:
    if name.partition(".")[0] not in sys.modules:
        _append_to_path(Path.cwd())
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise UsageError(f"{kind} module {name!r} cannot be imported: {type(error).__name__}: {error}") from error


class Registry(Generic[T]):
    """Registry of the concrete subclasses of a base class in one package, by name."""

    def __init__(self, kind: str, package: str, base: type[T], *, other_names: tuple[str, ...] = ()) -> None:
        """Set the package to search and the base class.

        `other_names` are valid names that callers handle without `get`. Error messages include them as known names.
        """
        self.kind = kind
        self._other_names = other_names
        self._package = package
        self._base = base

    @cached_property
    def classes(self) -> dict[str, type[T]]:
        package = importlib.import_module(self._package)
        classes: dict[str, type[T]] = {}
        for entry in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{self._package}.{entry.name}")
            for value in vars(module).values():
                if self._belongs_to_kind(value, module):
                    name = value.name
                    assert name not in classes, f"two {self.kind} classes are named {name!r}"
                    classes[name] = value
        return dict(sorted(classes.items()))

    def _belongs_to_kind(self, value: Any, module: ModuleType) -> bool:
        return (
            inspect.isclass(value)
            and issubclass(value, self._base)
            and f"{value.__module__}.".startswith(f"{module.__name__}.")  # defined in this module or below it
            and not inspect.isabstract(value)
            and bool(getattr(value, "name", ""))
        )

    def get(self, name: str) -> type[T]:
        """Return the class called `name`: a built-in class, or the user's `file.py:Class`."""
        if name in self.classes:
            return self.classes[name]
        if is_reference(name):
            value = load_reference(name, self.kind)
            if not (inspect.isclass(value) and issubclass(value, self._base)):
                raise UsageError(f"{name!r} is not a {self._base.__name__} class")
            return value
        refuse_file_alone(name, self.kind, "class")
        raise unknown(self.kind, name, [*self.classes, *self._other_names])

    def __iter__(self) -> Any:
        return iter(self.classes.values())
