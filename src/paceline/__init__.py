"""Measure and compare strategies for synchronising the workers of data-parallel PyTorch training."""

from __future__ import annotations

import importlib
import sys

__version__ = "0.1.0"

TYPE_CHECKING = False  # the name that type checkers know. A signal is handled only after this module is imported, so it
if TYPE_CHECKING:  # imports nothing that takes time.
    import importlib.machinery
    from collections.abc import Sequence
    from types import ModuleType
    from typing import Any

    from paceline.api import compare, run, scale, sweep, tune
    from paceline.codecs import Codec, TensorSpec
    from paceline.comm import Comm, Operation
    from paceline.data import Data, Dataset
    from paceline.errors import PacelineError, RunError, UsageError, WorkerError
    from paceline.library import (
        finish,
        init,
        load,
        load_state_dict,
        no_sync,
        parallel,
        rank,
        save,
        shard,
        state_dict,
        world_size,
    )
    from paceline.recipe import Recipe, load_recipe
    from paceline.strategies import (
        Accumulating,
        Asynchronous,
        BufferEstimate,
        Drifting,
        GradientAveraging,
        GradientPolicy,
        Guarantee,
        Periodic,
        Servers,
        Strategy,
        Worker,
        WrappedModel,
    )
    from paceline.train.allocator import keep_memory

# These names are imported on first use, so that `paceline --help` does not import torch.
_NAMES = {
    "api": "compare run scale sweep tune",
    "codecs": "Codec TensorSpec",
    "comm": "Comm Operation",
    "data": "Data Dataset",
    "errors": "PacelineError RunError UsageError WorkerError",
    "library": "finish init load load_state_dict no_sync parallel rank save shard state_dict world_size",
    "recipe": "Recipe load_recipe",
    "strategies": "Accumulating Asynchronous BufferEstimate Drifting GradientAveraging GradientPolicy Guarantee "
    "Periodic Servers Strategy Worker WrappedModel",
    "train.allocator": "keep_memory",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    return getattr(importlib.import_module(f"paceline.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})


def _register_backend() -> None:
    importlib.import_module("paceline.comm.backend").register()


class _RegisterAfterTorch:
    """An import finder that registers Paceline's torch.distributed backend right after torch is imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname != "torch":
            return None
        import importlib.util

        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_register(module: ModuleType) -> None:
                load(module)
                _register_backend()

            spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec


# Make `dist.init_process_group("paceline")` work after `import paceline`, without importing torch here.
if "torch" in sys.modules:
    _register_backend()
else:
    # The class does not derive from importlib.abc.MetaPathFinder, because importing importlib.abc would make
    # `paceline --help` 10 % slower.
    sys.meta_path.insert(0, _RegisterAfterTorch())


__all__ = [
    "Accumulating",
    "Asynchronous",
    "BufferEstimate",
    "Codec",
    "Comm",
    "Data",
    "Dataset",
    "Drifting",
    "GradientAveraging",
    "GradientPolicy",
    "Guarantee",
    "Operation",
    "PacelineError",
    "Periodic",
    "Recipe",
    "RunError",
    "Servers",
    "Strategy",
    "TensorSpec",
    "UsageError",
    "Worker",
    "WorkerError",
    "WrappedModel",
    "compare",
    "finish",
    "init",
    "keep_memory",
    "load",
    "load_recipe",
    "load_state_dict",
    "no_sync",
    "parallel",
    "rank",
    "run",
    "save",
    "scale",
    "shard",
    "state_dict",
    "sweep",
    "tune",
    "world_size",
]
