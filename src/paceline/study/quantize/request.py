"""What is asked of a quantization, checked before anything starts."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import UsageError
from paceline.parsing import words_in
from paceline.quantize.ranges import METHODS, Calibration
from paceline.quantize.runtime import missing_packages
from paceline.results.quantize import QuantizeRequest

AUTO = "auto"
PERCENTILE = 99.99


@dataclass(frozen=True, kw_only=True)
class Request:
    calibration: str = AUTO  # methods separated by commas; auto: all of them, and the best goes on
    symmetric: bool = False
    percentile: float = PERCENTILE
    per_channel: bool = True
    samples: int = 512  # of the training data, for calibration
    keep_float: bool = False  # what has no integer form stays in float, and nothing is run in integers alone
    onnx: bool | None = None  # None: where the packages are there
    finetune: int = 0  # steps

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise UsageError(
                f"--samples {self.samples}: the calibration set is empty; activations have no range without at least "
                "one sample"
            )
        if self.finetune < 0:
            raise UsageError(f"--finetune must be a number of steps, not {self.finetune}")
        methods = {calibration.method for calibration in self.calibrations()}  # finds words that mean nothing
        if self.percentile != PERCENTILE and "percentile" not in methods:
            raise UsageError("--percentile is for the percentile method, which --calibration leaves out")
        if self.onnx and missing_packages():
            raise UsageError(
                f"ONNX files need {' and '.join(missing_packages())}, not installed here: pip install 'paceline[int8]'"
            )

    def calibrations(self) -> list[Calibration]:
        """The methods that are tried, in their order."""
        words = list(words_in(self.calibration))
        if words == [AUTO]:
            words = list(METHODS)
        if not words:
            raise UsageError(f"--calibration names none of {', '.join(METHODS)}")
        return [
            Calibration(method=word, symmetric=self.symmetric, percentile=self.percentile)
            for word in dict.fromkeys(words)
        ]

    @property
    def writes_onnx(self) -> bool:
        return not missing_packages() if self.onnx is None else self.onnx

    def stored(self) -> QuantizeRequest:
        """The request as it stands in the result."""
        return QuantizeRequest(
            calibrations=[calibration.method for calibration in self.calibrations()],
            symmetric=self.symmetric,
            percentile=self.percentile,
            weights="per channel" if self.per_channel else "per tensor",
            samples=self.samples,
            finetune_steps=self.finetune,
        )
