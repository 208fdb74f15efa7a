"""The quantize study (`paceline quantize`): convert a trained model to int8, and measure every stage."""

from paceline.study.quantize.quantize import quantize
from paceline.study.quantize.source import LoadedModel, QuantizeOptions, find_source, load_source

__all__ = ["LoadedModel", "QuantizeOptions", "find_source", "load_source", "quantize"]
