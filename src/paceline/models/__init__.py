"""Build a model by name: a built-in image classifier, or the user's own model, named as `file.py:factory`."""

from __future__ import annotations

import inspect

from torch import nn
from torch.nn.parameter import is_lazy

from paceline.data.base import Data
from paceline.errors import UsageError
from paceline.models.base import ImageModel
from paceline.plugins import Registry, accepted_arguments, call_factory, is_reference, load_reference, refuse_file_alone

__all__ = ["build_model", "model_names"]

_registry: Registry[ImageModel] = Registry("model", "paceline.models", ImageModel)


def build_model(name: str, data: Data) -> nn.Module:
    """Build a model that fits the data. Its initial weights depend on torch's global seed.

    A user's factory is called with the data's `shape` and `num_classes`. An argument that the factory does
    not accept is left out.
    """
    refuse_file_alone(name, "model")
    if not is_reference(name):
        return _registry.get(name)(data.shape, data.num_classes)
    factory = load_reference(name, "model")
    if isinstance(factory, nn.Module):
        raise UsageError(
            f"model {name!r} is a {type(factory).__name__} object; name a function that builds it, "
            "so that its weights depend on the seed"
        )
    offered = {"shape": data.shape, "num_classes": data.num_classes}
    model = call_factory(name, "model", **(accepted_arguments(factory, offered) if callable(factory) else {}))
    if not isinstance(model, nn.Module):
        raise UsageError(f"model {name!r} returned a {type(model).__name__}; return a torch.nn.Module")
    if any(is_lazy(parameter) for parameter in model.parameters()):
        raise UsageError(
            f"model {name!r} has lazy parameters without a shape; call it once on an input before returning it"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UsageError(f"model {name!r} has no trainable parameter; return one with requires_grad")
    return model


def model_names() -> dict[str, str]:
    """Return the descriptions of the built-in models, by name."""
    return {name: (inspect.getdoc(cls) or "").partition("\n")[0] for name, cls in _registry.classes.items()}
