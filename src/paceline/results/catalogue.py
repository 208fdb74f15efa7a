"""Listings of strategies with their predicted bytes, codecs and models."""

from __future__ import annotations

from paceline.results.value import Scalar, Value


class StrategyEntry(Value, frozen=True, kw_only=True):
    """One strategy for a model on so many workers; bytes and messages are predicted."""

    strategy: str
    description: str
    paper: str
    unavailable: str  # the reason, empty where it can be used
    guarantee: str
    options: dict[str, Scalar]
    workers: int
    servers: int
    sent_bytes_per_step: list[int]  # by rank
    messages_per_step: float


class CodecEntry(Value, frozen=True, kw_only=True):
    codec: str
    description: str
    is_lossless: bool
    options: dict[str, Scalar]


class ModelEntry(Value, frozen=True, kw_only=True):
    model: str
    description: str
    parameters: int
    input: str


class StrategyCatalogue(Value, frozen=True, kw_only=True):
    schema: int
    strategies: list[StrategyEntry]
    codecs: list[CodecEntry]
