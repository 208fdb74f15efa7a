"""The library: functions that synchronise the workers of your own training loop with any strategy."""

from paceline.library.checkpoints import load, save
from paceline.library.loader import shard
from paceline.library.session import (
    finish,
    init,
    load_state_dict,
    no_sync,
    parallel,
    rank,
    state_dict,
    world_size,
)

__all__ = [
    "finish",
    "init",
    "load",
    "load_state_dict",
    "no_sync",
    "parallel",
    "rank",
    "save",
    "shard",
    "state_dict",
    "world_size",
]
