"""Versions, hardware and load of the machine that a result is measured on."""

from __future__ import annotations

import os
import platform
import sys

import psutil
import torch

from paceline import __version__
from paceline.results import Environment


def environment() -> Environment:
    """Return versions, hardware, load and the command line of this process.

    Host and user names are not included, except in arguments of the command line that contain them.
    """
    return Environment(
        paceline=__version__,
        python=platform.python_version(),
        torch=str(torch.__version__),
        system=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
        processor=_processor(),
        num_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        memory_bytes=psutil.virtual_memory().total,
        load_average=list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        gpus=[torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        command=[os.path.basename(sys.argv[0]), *sys.argv[1:]],
    )


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"
