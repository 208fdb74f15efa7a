"""How should the workers of data-parallel training agree? Measured, compared, proven."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from paceline.api import compare, run
    from paceline.codecs import Codec, TensorSpec
    from paceline.comm import Comm, Operation
    from paceline.data import Data, Dataset
    from paceline.errors import PacelineError, RunError, UsageError, WorkerError
    from paceline.library import (
        finish,
        init,
        load_state_dict,
        no_sync,
        parallel,
        rank,
        shard,
        state_dict,
        world_size,
    )
    from paceline.recipe import Recipe, load_recipe
    from paceline.strategies import GradientAveraging, Guarantee, Strategy, Worker

# Looked up when first used: the command line answers --help without importing torch.
_HOME = {
    "compare": "api",
    "run": "api",
    "Codec": "codecs",
    "TensorSpec": "codecs",
    "Comm": "comm",
    "Operation": "comm",
    "Data": "data",
    "Dataset": "data",
    "PacelineError": "errors",
    "RunError": "errors",
    "UsageError": "errors",
    "WorkerError": "errors",
    "finish": "library",
    "init": "library",
    "load_state_dict": "library",
    "no_sync": "library",
    "parallel": "library",
    "rank": "library",
    "shard": "library",
    "state_dict": "library",
    "world_size": "library",
    "Recipe": "recipe",
    "load_recipe": "recipe",
    "GradientAveraging": "strategies",
    "Guarantee": "strategies",
    "Strategy": "strategies",
    "Worker": "strategies",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    return getattr(importlib.import_module(f"paceline.{_HOME[name]}"), name)


__all__ = [
    "Codec",
    "Comm",
    "Data",
    "Dataset",
    "GradientAveraging",
    "Guarantee",
    "Operation",
    "PacelineError",
    "Recipe",
    "RunError",
    "Strategy",
    "TensorSpec",
    "UsageError",
    "Worker",
    "WorkerError",
    "compare",
    "finish",
    "init",
    "load_recipe",
    "load_state_dict",
    "no_sync",
    "parallel",
    "rank",
    "run",
    "shard",
    "state_dict",
    "world_size",
]
