"""Post-training int8 quantization: trace, calibrate, simulate, execute in integers, export to ONNX."""
