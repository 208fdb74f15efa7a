"""Checkpoints: everything that workers and servers need to resume training exactly, and the files that store it."""

from paceline.checkpoint.checkpoint_folder import (
    find_newest_whole,
    is_complete,
    next_attempt,
    prune,
    step_folder,
    step_folders,
)
from paceline.checkpoint.checkpoint_request import CheckpointRequest
from paceline.checkpoint.checkpoint_writer import CheckpointWriter
from paceline.checkpoint.optimizer_state import load_optimizer_state, optimizer_state
from paceline.checkpoint.rank_files import Damaged, Header, RankState, read_rank, write_rank
from paceline.checkpoint.rng_state import rng_state, seed_all, set_rng_state
from paceline.checkpoint.state_tree import Tree

__all__ = [
    "CheckpointRequest",
    "CheckpointWriter",
    "Damaged",
    "Header",
    "RankState",
    "Tree",
    "find_newest_whole",
    "is_complete",
    "load_optimizer_state",
    "next_attempt",
    "optimizer_state",
    "prune",
    "read_rank",
    "rng_state",
    "seed_all",
    "set_rng_state",
    "step_folder",
    "step_folders",
    "write_rank",
]
