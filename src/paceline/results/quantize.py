"""Result of `paceline quantize`: the stages of quantization, histograms of tensors, and the deployed ONNX files."""

from __future__ import annotations

from typing import ClassVar

from paceline.results.study import StudyResult
from paceline.results.value import Interval, Value, null

# Keys of stages.
FLOAT, PER_TENSOR, PER_CHANNEL = "float", "weights-per-tensor", "weights-per-channel"
ACTIVATIONS, BIASES, INTEGER = "activations", "biases", "integer"
TUNED, ONNX_FLOAT, ONNX_INT8 = "fine-tuned", "onnx-fp32", "onnx-int8"


class QuantizeRequest(Value, frozen=True, kw_only=True):
    calibrations: list[str]
    symmetric: bool
    percentile: float
    weights: str  # per channel or per tensor
    samples: int
    finetune_steps: int


class FloatOperation(Value, frozen=True, kw_only=True):
    """An operation that stays in floating point, because it has no integer form. `what` describes it."""

    name: str
    what: str


class Stage(Value, frozen=True, kw_only=True):
    """One stage of quantization, evaluated on the test set."""

    stage: str  # the key, such as weights-per-channel
    name: str  # the displayed name
    calibration: str | None
    test_loss: float | None
    test_accuracy: float | None
    change_points: float | None  # percentage points of accuracy gained over the float model
    agreement: float | None  # share of test samples for which the stage predicts the same class as the float model
    evaluation_s: float


class WeightPicture(Value, frozen=True, kw_only=True):
    """Histograms of one layer's weights before and after quantization. Their bins divide the range `low` to `high`."""

    layer: str
    kind: str
    shape: list[int]
    low: float
    high: float
    before: list[int]
    after: list[int]
    snr_db: float | None


class ActivationPicture(Value, frozen=True, kw_only=True):
    """Histogram of one activation tensor, and the range that each calibration method selected for it."""

    tensor: str
    kind: str
    low: float
    high: float
    counts: list[int]
    ranges: dict[str, Interval]
    chosen: str
    scale: float
    zero_point: int
    snr_db: float | None


class Finetuning(Value, frozen=True, kw_only=True):
    strategy: str
    workers: int
    lr: float
    steps: int
    first_loss: float | None
    last_loss: float | None
    train_s: float


class Latency(Value, frozen=True, kw_only=True):
    """Inference time of one batch: median and 95th percentile. `runner` names the runtime and number format."""

    runner: str
    batch: int
    p50_s: float
    p95_s: float


class RunnerSpeedup(Value, frozen=True, kw_only=True):
    """Inference speed-up of the int8 ONNX model over the fp32 ONNX model, for one batch size."""

    batch: int
    ratio: float
    interval95: Interval


class Deployment(Value, frozen=True, kw_only=True):
    """The ONNX files: sizes, latencies, and how often the int8 file and the integer model predict the same class."""

    onnxruntime: str
    agreement_with_integer: float | None
    fp32_bytes: int
    int8_bytes: int
    size_ratio: float
    threads: int
    latency: list[Latency]
    speedups: list[RunnerSpeedup]


class Sizes(Value, frozen=True, kw_only=True):
    """Size of all weights and biases in bytes, in the float model and (with the scales) in the int8 model."""

    float_bytes: int
    int8_bytes: int


class Quantization(StudyResult, frozen=True, kw_only=True):
    study_name: ClassVar[str] = "quantize"

    source: str  # name of the run, or of the file of weights
    request: QuantizeRequest
    num_test_samples: int
    num_parameters: int
    left_in_float: list[FloatOperation]
    stages: list[Stage]
    chosen_calibration: str
    distances: dict[str, float | None]  # by calibration method: mean squared change of the outputs on training images
    num_calibration_samples: int
    finetuned: Finetuning | None = None
    weights: list[WeightPicture]
    activations: list[ActivationPicture]
    deployed: Deployment | None = null()
    deployed_reason: str  # why there are no ONNX files; empty if there are
    confusion: list[list[int]]  # rows: class predicted by the float model; columns: by the integer model
    sizes: Sizes
