"""An accuracy at which training stops, and how all workers learn that it was reached."""

from __future__ import annotations

import torch

from paceline.comm import Comm
from paceline.strategies import Strategy
from paceline.strategies.capabilities import as_asynchronous


class TargetAccuracy:
    """Rank 0's evaluations decide. Workers in step are told by the comm; others by their strategy."""

    def __init__(self, accuracy: float | None, strategy: Strategy, comm: Comm) -> None:
        self.accuracy = accuracy
        self._asynchronous, self._comm = as_asynchronous(strategy), comm
        self._is_reached = False

    def judge(self, accuracy: float | None) -> None:
        """After every evaluation amid the run, on every worker."""
        if self.accuracy is None:
            return
        is_enough = accuracy is not None and accuracy >= self.accuracy
        if self._asynchronous is None:
            self._is_reached = self._shared(is_enough)
        elif self._comm.rank == 0 and is_enough and not self._is_reached:
            self._is_reached = True
            self._asynchronous.ask_all_to_stop()

    @property
    def is_reached(self) -> bool:
        """Whether this worker stops after the step that it has just made."""
        if self._is_reached or self.accuracy is None or self._asynchronous is None:
            return self._is_reached
        return self._asynchronous.is_asked_to_stop

    def _shared(self, is_enough: bool) -> bool:
        """Rank 0's word; replicas that differ are judged differently by each worker."""
        word = torch.tensor([float(is_enough)])
        if self._comm.world_size > 1:
            with self._comm.uncounted():
                self._comm.broadcast(word, root=0)
        return bool(word)
