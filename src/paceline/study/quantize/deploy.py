"""The model in files that ONNX Runtime runs: the same answers, what they weigh, and how long they take."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paceline.quantize.graph import Graph
from paceline.quantize.quantized import Quantized
from paceline.quantize.runtime import OnnxModel, version
from paceline.study.quantize.scoring import Predict
from paceline.study.quantize.stages import INTEGER, ONNX_FLOAT, ONNX_INT8, TUNED, Judge

FLOAT_FILE, INT8_FILE = "model-fp32.onnx", "model-int8.onnx"
BATCHES = (1, 32)
WARMUP, ROUNDS = 5, 40


def deploy(
    judge: Judge, model: nn.Module, graph: Graph, integers: Quantized, images: Tensor, folder: Path
) -> dict[str, Any]:
    """Write both files, judge them, and take times in turn."""
    from paceline.quantize.onnx_file import write_onnx

    shape = tuple(images.shape[1:])
    plain = OnnxModel(write_onnx(folder / FLOAT_FILE, graph, shape))
    small = OnnxModel(write_onnx(folder / INT8_FILE, graph, shape, integers))
    judge.stage(ONNX_FLOAT, "ONNX Runtime fp32", plain.scores)
    answered = judge.stage(ONNX_INT8, "ONNX Runtime int8", small.scores)
    ours = judge.scores.get(TUNED) or judge.scores.get(INTEGER)
    float_bytes, int8_bytes = ((folder / name).stat().st_size for name in (FLOAT_FILE, INT8_FILE))
    runners: dict[str, Predict] = {
        "torch fp32": model,
        "ONNX Runtime fp32": plain.scores,
        "ONNX Runtime int8": small.scores,
    }
    return {
        "onnxruntime": version(),
        "agreement_with_integer": None if ours is None else answered.agreement(ours),
        "fp32_bytes": float_bytes,
        "int8_bytes": int8_bytes,
        "size_ratio": int8_bytes / float_bytes,
        "threads": torch.get_num_threads(),
        "latency": [row for size in BATCHES for row in latencies(runners, _batch_of(images, size))],
    }


def _batch_of(images: Tensor, size: int) -> Tensor:
    return images.repeat(-(-size // len(images)), *[1] * (images.dim() - 1))[:size].contiguous()


@torch.no_grad()
def latencies(runners: dict[str, Predict], images: Tensor) -> list[dict[str, Any]]:
    """Seconds for one batch, all runners in turn, so that a slow moment of the machine meets all of them."""
    times: dict[str, list[float]] = {name: [] for name in runners}
    for round_ in range(WARMUP + ROUNDS):
        for name, run in runners.items():
            started = time.perf_counter()
            run(images)
            if round_ >= WARMUP:
                times[name].append(time.perf_counter() - started)
    return [
        {
            "runner": name,
            "batch": len(images),
            "p50_s": statistics.median(values),
            "p95_s": statistics.quantiles(values, n=20)[-1],
        }
        for name, values in times.items()
    ]
