"""What a codec could not send, kept until the next step (Seide et al. 2014; Karimireddy et al. 2019)."""

from __future__ import annotations

from torch import Tensor

from paceline.codecs.base import Key


class Residuals:
    """Tensors that a codec keeps from step to step, by kind and by the strategy's tensor."""

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}

    def get(self, kind: str, key: Key, shape: tuple[int, ...], like: Tensor) -> Tensor | None:
        """What was kept, if it still fits: a strategy that cuts its tensors anew starts from nothing."""
        kept = self._tensors.get(f"{kind}.{key}")
        return kept.to(like) if kept is not None and tuple(kept.shape) == tuple(shape) else None

    def put(self, kind: str, key: Key, tensor: Tensor) -> None:
        """Keep a tensor; what is not finite is forgotten, or every later step would inherit it."""
        self._tensors[f"{kind}.{key}"] = tensor.nan_to_num_(0.0, posinf=0.0, neginf=0.0)

    def state_dict(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self._tensors.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._tensors = {name: tensor.detach().clone() for name, tensor in state.items()}


class ErrorFeedback(Residuals):
    """The error of each tensor: what was put in and not sent.

    A strategy multiplies by the worker's weight before it sums, so what is kept is weighted already: it is added to
    the next weighted tensor as it is, whatever the worker's weight is then. Over any number of steps the sums that
    everybody got and the errors that workers keep add up to what was put in.
    """

    def add_to(self, tensor: Tensor, key: Key) -> None:
        error = self.get("error", key, tuple(tensor.shape), tensor)
        if error is not None:
            tensor.add_(error)

    def keep(self, tensor: Tensor, key: Key) -> None:
        self.put("error", key, tensor)
