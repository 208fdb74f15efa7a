"""Stored runs of small trained models, created once per test process."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from paceline.data import load_data
from paceline.models import build_model
from paceline.recipe import Recipe
from report_samples import result, write_run

LENET = Recipe(name="small").replace({"model.name": "lenet5", "data.name": "mnist-mini", "workers": 1})


@lru_cache(maxsize=2)
def trained_state(model_name: str = "lenet5", epochs: int = 3) -> dict[str, Tensor]:
    """Train a model on the digits that come with the package; return its weights."""
    recipe = LENET.replace({"model.name": model_name})
    data = load_data(recipe.data, seed=0)
    torch.manual_seed(0)
    model = build_model(model_name, data)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    for epoch in range(epochs):
        for indices in torch.randperm(len(data.train)).split(50):
            images, target = data.train.batch(indices, epoch)
            optimizer.zero_grad()
            F.cross_entropy(model(images), target).backward()
            optimizer.step()
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def trained_run(folder: Path, state: dict[str, Tensor] | None = None, *, of: Recipe = LENET) -> Path:
    """Write the folder of a run with its weights."""
    write_run(folder, result("ring", 0.01), of=of)
    (folder / "checkpoints").mkdir()
    weights = trained_state(of.model.name) if state is None else state
    save_file(weights, folder / "checkpoints" / "final.safetensors", metadata={"model": of.model.name})
    return folder
