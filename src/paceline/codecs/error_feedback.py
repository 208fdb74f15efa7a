"""Error feedback: the part of a tensor that was not sent is kept for the next step.

Seide et al. 2014; Karimireddy et al. 2019.
"""

from __future__ import annotations

from torch import Tensor

from paceline.codecs.base import Key


class Residuals:
    """Tensors that a codec keeps from step to step, by kind and key."""

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}

    def get(self, kind: str, key: Key, shape: tuple[int, ...], like: Tensor) -> Tensor | None:
        """Return the kept tensor; None if there is none or its shape has changed."""
        kept = self._tensors.get(f"{kind}.{key}")
        return kept.to(like) if kept is not None and tuple(kept.shape) == tuple(shape) else None

    def put(self, kind: str, key: Key, tensor: Tensor) -> None:
        """Keep a tensor. Non-finite elements become 0, or they would stay in every later step."""
        self._tensors[f"{kind}.{key}"] = tensor.nan_to_num_(0.0, posinf=0.0, neginf=0.0)

    def state_dict(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self._tensors.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._tensors = {name: tensor.detach().clone() for name, tensor in state.items()}


class ErrorFeedback(Residuals):
    """The error of each tensor: its input minus the part that was sent.

    Errors are kept after multiplication by the worker's weight, so they are added to the next weighted tensor without
    scaling. Over any number of steps the sums plus the kept errors equal the sum of the inputs.
    """

    def add_to(self, tensor: Tensor, key: Key) -> None:
        error = self.get("error", key, tuple(tensor.shape), tensor)
        if error is not None:
            tensor.add_(error)

    def keep(self, tensor: Tensor, key: Key) -> None:
        self.put("error", key, tensor)
