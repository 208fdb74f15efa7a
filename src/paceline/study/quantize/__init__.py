"""A trained model taken to integers as a study: every stage measured, stored and shown like any other."""

from paceline.study.quantize.request import Request
from paceline.study.quantize.source import Loaded, find_source, load_source
from paceline.study.quantize.study import quantize

__all__ = ["Loaded", "Request", "find_source", "load_source", "quantize"]
