"""Contents of the lists that `paceline strategies` and `paceline models` print."""

from __future__ import annotations

import inspect

import torch

from paceline.codecs import TensorSpec, build_codec, codecs
from paceline.comm import Counter
from paceline.comm.torch import TorchComm
from paceline.data import load_data
from paceline.data.base import data_without_samples
from paceline.models import build_model, model_names
from paceline.recipe import DataConfig
from paceline.results.commands import CodecEntry, ModelEntry, StrategyEntry
from paceline.strategies import StrategySpec, strategies
from paceline.strategies.capabilities import servers_of, steps_to_synchronisation


def catalogue(*, num_workers: int, model: str, data: str) -> list[StrategyEntry]:
    """Return every strategy with the bytes and messages that it is predicted to send per step for a model."""
    instance = build_model(model, load_data(DataConfig(name=data), seed=0))
    specs = [TensorSpec.of(p) for p in instance.parameters() if p.requires_grad]
    rows = []
    for name, cls in strategies.classes.items():
        strategy = StrategySpec(name).build()
        # Predictions are means over a whole period, because a strategy may send nothing between two synchronisations.
        period = steps_to_synchronisation(strategy)
        steps = [
            Counter.of(op for step in range(period) for op in strategy.traffic(specs, rank, num_workers, step))
            for rank in range(num_workers)
        ]
        rows.append(
            StrategyEntry(
                strategy=name,
                description=(inspect.getdoc(cls) or "").partition("\n")[0],
                paper=cls.paper,
                unavailable=cls.unavailable(),
                guarantee=strategy.guarantee.value,
                options=strategy.options,
                workers=num_workers,
                servers=servers_of(strategy, num_workers),
                sent_bytes_per_step=[
                    round(TorchComm.predict(step, rank, num_workers).sent_bytes / period)
                    for rank, step in enumerate(steps)
                ],
                messages_per_step=max(
                    sum(calls for (op, _), calls in step.calls.items() if op != "recv") for step in steps
                )
                / period,
            )
        )
    return rows


def codec_catalogue() -> list[CodecEntry]:
    """Return every codec with its description and its options."""
    return [
        CodecEntry(
            codec=name,
            description=(inspect.getdoc(cls) or "").partition("\n")[0],
            is_lossless=cls.relative_error == 0,
            options=build_codec(name).options,
        )
        for name, cls in codecs.classes.items()
    ]


# Input shape and number of classes that a model was published for.
USUAL_INPUT = {"lenet5": ((1, 28, 28), 10), "resnet50": ((3, 224, 224), 1000)}


def model_catalogue() -> list[ModelEntry]:
    """Return every built-in model with its number of parameters for its usual input."""
    rows = []
    for name, description in model_names().items():
        shape, num_classes = USUAL_INPUT.get(name, ((3, 32, 32), 10))
        with torch.device("meta"):  # only shapes are needed, so no memory is allocated for weights
            instance = build_model(name, data_without_samples(shape, num_classes))
        rows.append(
            ModelEntry(
                model=name,
                description=description,
                parameters=sum(parameter.numel() for parameter in instance.parameters()),
                input="x".join(str(side) for side in shape) + f" to {num_classes}",
            )
        )
    return rows
