"""Seed, save and restore the random number generators of a process: of torch, NumPy and Python."""

from __future__ import annotations

import random

import numpy as np
import torch

from paceline.checkpoint.state_tree import Tree


def seed_all(seed: int) -> None:
    """Seed all random number generators that training may use."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # NumPy's seeds have 32 bits


def rng_state() -> Tree:
    """Return the states of all random number generators that training may use."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state = {
        "torch": torch.get_rng_state(),
        "python": [version, torch.tensor(words, dtype=torch.int64), gauss],
        "numpy": [str(kind), torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, cached],
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_rng_state(state: Tree) -> None:
    """Restore a result of `rng_state`."""
    torch.set_rng_state(state["torch"].contiguous())
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"].contiguous())
