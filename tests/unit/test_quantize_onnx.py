"""ONNX files: what ONNX Runtime answers beside the integer executor, where it is installed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("onnx", reason="onnx is not installed (extra int8)")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed (extra int8)")

import json

import onnx
from onnx import TensorProto

from command import run_command
from paceline.quantize.calibration import Calibration, grids_for, observe
from paceline.quantize.fx_trace import trace
from paceline.quantize.integer import integer_network
from paceline.quantize.onnx_model import OnnxModel, write_onnx
from paceline.quantize.quantized import quantize_graph
from quantize_samples import Residual, with_statistics
from trained_samples import trained_run


def test_both_files_of_a_users_network_answer_as_they_should(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, images = with_statistics(Residual()), torch.randn(64, 3, 16, 16)
    graph = trace(model, images[:2])
    plain = OnnxModel(write_onnx(tmp_path / "plain.onnx", graph, (3, 16, 16)))
    with torch.no_grad():
        torch.testing.assert_close(plain.scores(images), model(images), rtol=1e-3, atol=1e-4)
    grids = grids_for(observe(graph, lambda: iter([images])), Calibration(method="minmax"))
    integers = quantize_graph(graph, grids, per_channel=True)
    small = OnnxModel(write_onnx(tmp_path / "small.onnx", graph, (3, 16, 16), integers))
    ours, theirs = integer_network(integers).scores(images), small.scores(images)
    spread = float(theirs.std())
    assert float((ours - theirs).abs().mean()) < 0.02 * spread
    assert float((ours.argmax(1) == theirs.argmax(1)).double().mean()) >= 0.95


def test_the_file_holds_uint8_activations_int8_weights_and_int32_biases(tmp_path: Path) -> None:
    model, images = with_statistics(Residual()), torch.randn(8, 3, 16, 16)
    graph = trace(model, images)
    grids = grids_for(observe(graph, lambda: iter([images])), Calibration(method="minmax"))
    file = onnx.load(
        str(write_onnx(tmp_path / "m.onnx", graph, (3, 16, 16), quantize_graph(graph, grids, per_channel=True)))
    )
    types = {tensor.name: tensor.data_type for tensor in file.graph.initializer}
    shapes = {tensor.name: list(tensor.dims) for tensor in file.graph.initializer}
    for op in graph.layers:
        assert types[f"{op.name}_weight_integers"] == TensorProto.INT8
        assert types[f"{op.name}_bias_integers"] == TensorProto.INT32
        assert shapes[f"{op.name}_weight_scale"] == [len(op.weight)]
    zeros = [types[node.input[2]] for node in file.graph.node if node.op_type == "QuantizeLinear"]
    assert zeros
    assert set(zeros) == {TensorProto.UINT8}
    assert not any(kind == TensorProto.FLOAT and len(shapes[name]) > 1 for name, kind in types.items())


def test_the_command_writes_files_and_measures_them(tmp_path: Path) -> None:
    run, file = trained_run(tmp_path / "run"), tmp_path / "study.json"
    copied = tmp_path / "copied.onnx"
    said = run_command(
        "quantize", str(run), "--out", str(tmp_path / "out"), "--samples", "128", "-o", str(copied), "--json", str(file)
    )  # fmt: skip
    assert said.code == 0, said.err
    study = json.loads(file.read_text())
    rows = {row["stage"]: row for row in study["stages"]}
    assert abs(rows["onnx-fp32"]["change_points"]) <= 0.2 + 1e-9  # one of 500 images
    assert rows["onnx-int8"]["agreement"] >= 0.98
    deployed = study["deployed"]
    assert deployed["agreement_with_integer"] >= 0.99
    assert deployed["int8_bytes"] == copied.stat().st_size < deployed["fp32_bytes"]
    assert {(row["runner"], row["batch"]) for row in deployed["latency"]} == {
        (runner, batch) for runner in ("torch fp32", "ONNX Runtime fp32", "ONNX Runtime int8") for batch in (1, 32)
    }
    for one in deployed["speedups"]:
        assert 0 < one["interval95"][0] <= one["ratio"] <= one["interval95"][1]
    assert "ONNX Runtime int8 and the integer executor predict the same class for" in " ".join(said.out.split())
    (page,) = (tmp_path / "out").glob("*/report.html")
    assert 'id="quantize-latency"' in page.read_text()
