"""Quantize trained models to int8: trace, calibrate, simulate, execute in integers, export to ONNX.

Throughout this package, the grid of a tensor is its quantization parameters: scale, zero point, and the lowest and
highest 8-bit integer (`quantized.Grid`).
"""
