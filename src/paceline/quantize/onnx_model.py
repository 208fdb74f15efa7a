"""Export a network to ONNX (float32, or int8 in QDQ format) and run it with ONNX Runtime.

Quantized files use the types that ONNX Runtime executes fastest: uint8 activations (int8 plus 128), int8 weights and
int32 biases. ONNX Runtime is optional and imported only when a file is run.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from paceline.quantize.fake_quant import computes_scores
from paceline.quantize.graph import Graph
from paceline.quantize.ops import Add, AveragePool, Clip, Conv, Flatten, Linear, LinearOp, MaxPool, Op, Relu
from paceline.quantize.quantized import Quantized

OPSET = 17
IR_VERSION = 8  # released with this opset; older runtimes read it too
UINT8_OFFSET = 128  # added to int8 to get uint8


def write_onnx(path: Path, graph: Graph, shape: tuple[int, ...], model: Quantized | None = None) -> Path:
    """Write a graph to an ONNX file and return its path. The file is quantized if `model` is passed, else float32.

    `shape` is the shape of one input, without the batch.
    """
    writer = _Writer(graph, model)
    with torch.no_grad():
        output_shape = graph.run(torch.zeros(1, *shape)).shape[1:]
    nodes, weights = writer.nodes_and_weights()
    content = helper.make_graph(
        nodes,
        "paceline",
        [helper.make_tensor_value_info(graph.input, TensorProto.FLOAT, ["N", *shape])],
        [helper.make_tensor_value_info(writer.output, TensorProto.FLOAT, ["N", *output_shape])],
        weights,
    )
    file = helper.make_model(content, producer_name="paceline", opset_imports=[helper.make_opsetid("", OPSET)])
    file.ir_version = IR_VERSION
    onnx.checker.check_model(file)
    onnx.save_model(file, str(path))
    return path


class _Writer:
    """Builder of the nodes and constants of an ONNX file.

    `_values` maps each tensor of the graph to the name of its float value in the file.
    """

    def __init__(self, graph: Graph, model: Quantized | None) -> None:
        self._graph, self._model = graph, model
        self._nodes: list[Any] = []
        self._weights: list[Any] = []
        self._values: dict[str, str] = {}
        self.output = ""

    def nodes_and_weights(self) -> tuple[list[Any], list[Any]]:
        self._values[self._graph.input] = self._through_integers(self._graph.input, self._graph.input)
        for op in self._graph.ops:
            value = _MAKERS[type(op)](self, op)
            is_float = computes_scores(self._graph, op)
            self._values[op.name] = value if is_float else self._through_integers(op.name, value)
        self.output = self._values[self._graph.output]
        return self._nodes, self._weights

    def inputs_of(self, op: Op) -> list[str]:
        return [self._values[name] for name in op.inputs]

    def node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self._nodes.append(helper.make_node(kind, inputs, [output], name=f"{output}_{kind}", **attributes))
        return output

    def constant(self, name: str, values: Any) -> str:
        self._weights.append(numpy_helper.from_array(np.asarray(values, order="C"), name))
        return name

    def layer(self, op: LinearOp) -> tuple[str, str]:
        """Add the weight and the bias of a layer to the file, and return their names."""
        if self._model is None:
            weight = self.constant(f"{op.name}_weight", op.weight.detach().numpy().astype(np.float32))
            return weight, self.constant(f"{op.name}_bias", op.bias.detach().numpy().astype(np.float32))
        integers = self._model.weights[op.name]
        scales = integers.scales.numpy().astype(np.float32)
        input_scale = np.float32(self._model.grid(op.inputs[0]).scale)
        weight = self._dequantized(f"{op.name}_weight", integers.weight.numpy(), scales)
        return weight, self._dequantized(f"{op.name}_bias", integers.bias.numpy(), scales * input_scale)

    def finish(self, value: str, op: LinearOp | Add) -> str:
        return value if op.clip is None else self.clipped(op.name, value, op.clip)

    def clipped(self, name: str, value: str, clip: Clip) -> str:
        if clip.most is None:
            return self.node("Relu", [value], f"{name}_relu")
        low = self.constant(f"{name}_least", np.array(0, dtype=np.float32))
        high = self.constant(f"{name}_most", np.array(clip.most, dtype=np.float32))
        return self.node("Clip", [value, low, high], f"{name}_clipped")

    def _dequantized(self, name: str, integers: Any, scales: Any) -> str:
        zeros = self.constant(f"{name}_zero", np.zeros(len(scales), dtype=integers.dtype))
        inputs = [self.constant(f"{name}_integers", integers), self.constant(f"{name}_scale", scales), zeros]
        return self.node("DequantizeLinear", inputs, name, axis=0)

    def _through_integers(self, name: str, value: str) -> str:
        """Add nodes that quantize a tensor to uint8 and dequantize it again; return the name of the result.

        ONNX Runtime can then keep the tensor in integers. For a float32 file, return `value` without adding nodes.
        """
        if self._model is None:
            return value
        grid = self._model.grid(name)
        scale = self.constant(f"{name}_scale", np.array(grid.scale, dtype=np.float32))
        zero = self.constant(f"{name}_zero", np.array(grid.zero_point + UINT8_OFFSET, dtype=np.uint8))
        integers = self.node("QuantizeLinear", [value, scale, zero], f"{name}_quantized")
        return self.node("DequantizeLinear", [integers, scale, zero], f"{name}_dequantized")


def _conv(writer: _Writer, op: Conv) -> str:
    weight, bias = writer.layer(op)
    settings = {"kernel_shape": list(op.weight.shape[2:]), "strides": list(op.stride), "pads": [*op.padding] * 2}
    settings |= {"dilations": list(op.dilation)}
    inputs = [*writer.inputs_of(op), weight, bias]
    return writer.finish(writer.node("Conv", inputs, f"{op.name}_sum", group=op.groups, **settings), op)


def _linear(writer: _Writer, op: Linear) -> str:
    weight, bias = writer.layer(op)
    total = writer.node("Gemm", [*writer.inputs_of(op), weight, bias], f"{op.name}_sum", transB=1)
    return writer.finish(total, op)


def _add(writer: _Writer, op: Add) -> str:
    return writer.finish(writer.node("Add", writer.inputs_of(op), f"{op.name}_sum"), op)


def _pool(kind: str, **more: Any) -> Callable[[_Writer, MaxPool | AveragePool], str]:
    def make(writer: _Writer, op: MaxPool | AveragePool) -> str:
        settings = {"kernel_shape": list(op.kernel), "strides": list(op.stride), "pads": [*op.padding] * 2, **more}
        return writer.node(kind, writer.inputs_of(op), f"{op.name}_pooled", **settings)

    return make


def _relu(writer: _Writer, op: Relu) -> str:
    return writer.clipped(op.name, writer.inputs_of(op)[0], op.clip)


def _flatten(writer: _Writer, op: Flatten) -> str:
    return writer.node("Flatten", writer.inputs_of(op), f"{op.name}_flat", axis=1)


_MAKERS: dict[type[Op], Callable[[_Writer, Any], str]] = {
    Conv: _conv,
    Linear: _linear,
    Add: _add,
    MaxPool: _pool("MaxPool"),
    AveragePool: _pool("AveragePool", count_include_pad=1),
    Relu: _relu,
    Flatten: _flatten,
}


PACKAGES = ("onnx", "onnxruntime")


def missing_packages() -> list[str]:
    """Return the packages that are not installed but needed to write and run ONNX files."""
    return [package for package in PACKAGES if importlib.util.find_spec(package) is None]


class OnnxModel:
    """An ONNX file loaded into ONNX Runtime on the CPU."""

    def __init__(self, path: Path, *, threads: int = 0) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads  # 0: one thread per core
        options.log_severity_level = 3
        # Spinning threads would slow down the next model that is timed.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # Without VNNI, the default kernels of x86 add pairs of products in 16 bits, which saturates.
        options.add_session_config_entry("session.x64quantprecision", "1")
        self._session: Any = onnxruntime.InferenceSession(
            str(path), sess_options=options, providers=["CPUExecutionProvider"]
        )
        self._input = self._session.get_inputs()[0].name

    def scores(self, images: Tensor) -> Tensor:
        (scores,) = self._session.run(None, {self._input: images.contiguous().numpy()})
        return torch.from_numpy(scores)


def version() -> str:
    import onnxruntime

    return str(onnxruntime.__version__)
