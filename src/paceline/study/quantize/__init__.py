"""A trained model taken to integers as a study: every stage measured, stored and shown like any other."""

from paceline.study.quantize.quantize import quantize
from paceline.study.quantize.source import Loaded, QuantizeOptions, find_source, load_source

__all__ = ["Loaded", "QuantizeOptions", "find_source", "load_source", "quantize"]
