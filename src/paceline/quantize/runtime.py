"""ONNX Runtime, where it is installed: it is imported when a file is run, never by training."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

PACKAGES = ("onnx", "onnxruntime")


def missing_packages() -> list[str]:
    """What has to be installed before files can be written and run."""
    return [package for package in PACKAGES if importlib.util.find_spec(package) is None]


class OnnxModel:
    """A file as ONNX Runtime runs it on the processor."""

    def __init__(self, path: Path, *, threads: int = 0) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads  # 0: as many as there are cores
        options.log_severity_level = 3
        # Threads that wait by spinning would take the cores from whoever is timed next.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session: Any = onnxruntime.InferenceSession(
            str(path), sess_options=options, providers=["CPUExecutionProvider"]
        )
        self._input = self._session.get_inputs()[0].name

    def scores(self, images: Tensor) -> Tensor:
        (found,) = self._session.run(None, {self._input: images.contiguous().numpy()})
        return torch.from_numpy(found)


def version() -> str:
    import onnxruntime

    return str(onnxruntime.__version__)
