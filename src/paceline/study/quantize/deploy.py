"""ONNX export of a quantization: write fp32 and int8 files, and measure their accuracy, size and latency."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from paceline.measure.stats import interval95_of_median
from paceline.quantize.graph import Graph
from paceline.quantize.onnx_model import OnnxModel, version
from paceline.quantize.quantized import Quantized
from paceline.results.quantize import INTEGER, ONNX_FLOAT, ONNX_INT8, TUNED, Deployment, Latency, RunnerSpeedup
from paceline.study.quantize.stages import Evaluator, Predict

FLOAT_FILE, INT8_FILE = "model-fp32.onnx", "model-int8.onnx"
FLOAT_RUNNER, INT8_RUNNER = "ONNX Runtime fp32", "ONNX Runtime int8"
BATCHES = (1, 32)
WARMUP, ROUNDS = 5, 40


def deploy(
    evaluator: Evaluator, model: nn.Module, graph: Graph, integers: Quantized, images: Tensor, folder: Path
) -> Deployment:
    """Write the fp32 and the int8 ONNX file, evaluate both on the test set, and measure their latency.

    `graph` is the float model `model` as a graph, `integers` is the int8 model, and `images` are the inputs of the
    latency measurement. Latencies are also measured for `model` in PyTorch.
    """
    from paceline.quantize.onnx_model import write_onnx

    shape, threads = tuple(images.shape[1:]), torch.get_num_threads()
    float_model = OnnxModel(write_onnx(folder / FLOAT_FILE, graph, shape), threads=threads)
    int8_model = OnnxModel(write_onnx(folder / INT8_FILE, graph, shape, integers), threads=threads)
    evaluator.stage(ONNX_FLOAT, FLOAT_RUNNER, float_model.scores)
    onnx_scores = evaluator.stage(ONNX_INT8, INT8_RUNNER, int8_model.scores)
    integer_scores = evaluator.scores.get(TUNED) or evaluator.scores.get(INTEGER)
    float_bytes, int8_bytes = ((folder / name).stat().st_size for name in (FLOAT_FILE, INT8_FILE))
    runners: dict[str, Predict] = {
        "torch fp32": model,
        FLOAT_RUNNER: float_model.scores,
        INT8_RUNNER: int8_model.scores,
    }
    times = {size: measure_times(runners, _batch_of(images, size)) for size in BATCHES}
    return Deployment(
        onnxruntime=version(),
        agreement_with_integer=None if integer_scores is None else onnx_scores.agreement(integer_scores),
        fp32_bytes=float_bytes,
        int8_bytes=int8_bytes,
        size_ratio=int8_bytes / float_bytes,
        threads=threads,
        latency=[_latency(name, size, values) for size in BATCHES for name, values in times[size].items()],
        speedups=[_speedup(size, times[size]) for size in BATCHES],
    )


def _batch_of(images: Tensor, size: int) -> Tensor:
    return images.repeat(-(-size // len(images)), *[1] * (images.dim() - 1))[:size].contiguous()


@torch.no_grad()
def measure_times(runners: dict[str, Predict], images: Tensor) -> dict[str, list[float]]:
    """Return the times in seconds that every runner (model in PyTorch or ONNX Runtime) takes for the batch `images`.

    There is one time per runner and round. The runners take turns in every round, so that noise affects all of them
    alike.
    """
    times: dict[str, list[float]] = {name: [] for name in runners}
    for round_ in range(WARMUP + ROUNDS):
        for name, run in runners.items():
            started = time.perf_counter()
            run(images)
            if round_ >= WARMUP:
                times[name].append(time.perf_counter() - started)
    return times


def _latency(runner: str, batch: int, values: list[float]) -> Latency:
    p50, p95 = statistics.median(values), statistics.quantiles(values, n=20)[-1]
    return Latency(runner=runner, batch=batch, p50_s=p50, p95_s=p95)


def _speedup(batch: int, times: dict[str, list[float]]) -> RunnerSpeedup:
    """Return fp32 time / int8 time in ONNX Runtime for batches of one size, as a median over rounds.

    Each ratio compares the fp32 time and the int8 time of the same round, because noise in a round affects both alike.
    """
    ratios = [slow / quick for slow, quick in zip(times[FLOAT_RUNNER], times[INT8_RUNNER], strict=True)]
    return RunnerSpeedup(batch=batch, ratio=statistics.median(ratios), interval95=interval95_of_median(ratios))
