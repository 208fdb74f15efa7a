"""Load the user's own data: call a factory function, check the returned data and wrap it as data sets."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import Subset, default_collate

from paceline.data.bad_samples import HINT, SKIP, hint_for, without_bad_samples
from paceline.data.base import BadSample, Batch, Data, Dataset, Selected, Tensors, slice_tree
from paceline.data.sharding import epoch_generator
from paceline.errors import BadSampleError, UsageError
from paceline.plugins import accepted_arguments, call_factory, load_reference
from paceline.recipe import DataConfig

ACCEPTED = (
    "return a paceline.data.Data, or a pair (train, test), each a paceline.data.Dataset, "
    "a torch map-style dataset of (input, target), or a tuple (inputs, targets) of tensors"
)
# To count the classes of a data set without metadata, every sample is read. This is limited to small sets.
MAX_SCANNED_SAMPLES = 10_000


def load_user(config: DataConfig, seed: int) -> Data:
    """Load data from the user's `file.py:factory`.

    The factory may have a parameter `seed` and parameters named like the fields of `DataConfig` (except `name`).
    Only the parameters that the factory declares are passed.
    """
    name = config.name
    factory = load_reference(name, "data")
    offered = {"seed": seed, **{key: value for key, value in dataclasses.asdict(config).items() if key != "name"}}
    arguments = accepted_arguments(factory, offered) if callable(factory) else {}
    returned = call_factory(name, "data", **arguments)
    if isinstance(returned, Data):
        if not isinstance(returned.train, Dataset) or not isinstance(returned.test, Dataset):
            raise UsageError(f"data {name!r} returned a Data whose train or test is not a Dataset; {ACCEPTED}")
        train, test, skipped = _readable(returned.train, returned.test, config)
        return dataclasses.replace(returned, train=train, test=test, skipped=skipped)
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise UsageError(f"data {name!r} returned {_describe(returned)}; {ACCEPTED}")
    hint = hint_for(config.on_bad_sample)
    train, test = (
        _dataset(part, name, split, seed, hint) for part, split in zip(returned, ("train", "test"), strict=True)
    )
    train, test, skipped = _readable(train, test, config)
    return Data(
        train, test, shape=_shape(train), num_classes=max(_num_classes(train), _num_classes(test)), skipped=skipped
    )


def _readable(train: Dataset, test: Dataset, config: DataConfig) -> tuple[Dataset, Dataset, tuple[BadSample, ...]]:
    """Return both data sets, without samples that cannot be read if the config leaves them out, and these samples."""
    if config.on_bad_sample != SKIP:
        return train, test, ()
    train, bad_train = without_bad_samples(train, "train", config.train_samples)
    test, bad_test = without_bad_samples(test, "test", config.test_samples)
    return train, test, (*bad_train, *bad_test)


def split_train_and_test(data: Any) -> Any:
    """Return the user's data as a training set and a test set, split if necessary.

    A `Data` or a pair of data sets is returned unchanged. A single data set, or a pair (inputs, targets) of tensors or
    dicts, is split: a random tenth of the samples becomes the test set. The split is the same in every call.
    """
    is_pair = isinstance(data, tuple | list) and len(data) == 2
    if isinstance(data, Data) or (is_pair and not any(isinstance(part, Tensor | dict) for part in data)):
        return data
    num_samples = len(tree_leaves(data[0])[0]) if is_pair else len(data)
    if num_samples < 2:
        raise UsageError(f"data of {num_samples} samples cannot be divided; pass a pair (train, test)")
    order = torch.randperm(num_samples, generator=epoch_generator(0, 0))
    first = max(num_samples // 10, 1)
    parts = order[first:].sort().values, order[:first].sort().values
    if is_pair:
        return tuple(tuple(Tensors(*data).batch(part, 0)) for part in parts)
    return tuple(Subset(data, part.tolist()) for part in parts)


class MapStyle(Dataset):
    """A torch map-style dataset of pairs (input, target), collated as torch's DataLoader does.

    While a sample is read, torch's global CPU generator is seeded by seed, epoch and index, so that random transforms
    are reproducible. Other generators (Python, NumPy, GPU) are not seeded.
    """

    def __init__(self, items: Any, *, name: str, seed: int, hint: str = HINT) -> None:
        self.items = items
        self._name = name
        self._hint = hint  # what to do about a sample that cannot be read
        self._seed = seed

    def __len__(self) -> int:
        return len(self.items)

    def batch(self, indices: Tensor, epoch: int) -> Batch:
        if not len(indices):  # an empty batch gets its shapes from the first sample
            inputs, targets = slice_tree(self.batch(torch.tensor([0]), epoch), 0, 0)
            return inputs, targets
        # torch.manual_seed is avoided, because it also seeds the generators of all accelerators.
        generator = torch.default_generator
        state = generator.get_state()
        try:
            items = [self._item(index, epoch, generator) for index in indices.tolist()]
        finally:
            generator.set_state(state)
        try:
            inputs, targets = default_collate(items)
        except Exception as error:
            raise UsageError(
                f"samples of data {self._name!r} cannot be collated into a batch ({type(error).__name__}: {error}); "
                f"every sample needs the same shapes and types"
            ) from error
        return inputs, targets

    def _item(self, index: int, epoch: int, generator: torch.Generator) -> Any:
        generator.manual_seed(epoch_generator(self._seed * 1_000_000_007 + index, epoch).initial_seed())
        try:
            item = self.items[index]
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise BadSampleError(
                f"data {self._name!r} raised {type(error).__name__} at sample {index}: {error}; {self._hint}",
                sample=f"sample {index}",
                reason=reason,
            ) from error
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise UsageError(f"sample {index} of data {self._name!r} is {_describe(item)}, not a pair (input, target)")
        return tuple(item)


def _dataset(part: Any, name: str, split: str, seed: int, hint: str) -> Dataset:
    if isinstance(part, Dataset):
        dataset = part
    elif isinstance(part, tuple) and len(part) == 2 and _all_tensors(part):
        _check_lengths(part, name, split)
        dataset = Tensors(*part)
    elif (
        hasattr(part, "__getitem__") and hasattr(part, "__len__") and not isinstance(part, tuple | dict | str | Tensor)
    ):
        dataset = MapStyle(part, name=name, seed=seed, hint=hint)
    else:
        raise UsageError(f"data {name!r} returned {_describe(part)} as its {split} set; {ACCEPTED}")
    if not len(dataset):
        raise UsageError(f"data {name!r} returned a {split} set without samples; it needs at least one")
    return dataset


def _all_tensors(tree: Any) -> bool:
    leaves = tree_leaves(tree)
    return bool(leaves) and all(isinstance(leaf, Tensor) for leaf in leaves)


def _check_lengths(pair: tuple[Any, Any], name: str, split: str) -> None:
    if any(leaf.dim() == 0 for leaf in tree_leaves(pair)):
        raise UsageError(
            f"data {name!r} returned a {split} set with a scalar tensor; the first dimension of every tensor must be "
            "the samples"
        )
    lengths = sorted({len(leaf) for leaf in tree_leaves(pair)})
    if len(lengths) > 1:
        raise UsageError(
            f"data {name!r} returned a {split} set whose tensors have {' and '.join(map(str, lengths))} samples; "
            f"the first dimension of every tensor must be the same"
        )


def _shape(dataset: Dataset) -> tuple[int, ...]:
    """Return the shape of one input, or () if it is not a single tensor."""
    inputs = dataset.inputs if isinstance(dataset, Tensors) else dataset.batch(torch.tensor([0]), 0)[0]
    return tuple(inputs.shape[1:]) if isinstance(inputs, Tensor) else ()


def _num_classes(dataset: Dataset) -> int:
    """Return the number of classes, or 0 if it is unknown or if targets are not class numbers."""
    if isinstance(dataset, Tensors):
        return _highest_class(dataset.targets)
    whole = dataset.whole if isinstance(dataset, Selected) else dataset
    if not isinstance(whole, MapStyle):
        return 0
    # torchvision's data sets and many others have the attributes `classes` or `targets`.
    classes = getattr(whole.items, "classes", None)
    if isinstance(classes, list | tuple):
        return len(classes)
    targets = getattr(whole.items, "targets", None)
    if isinstance(targets, list | tuple) and targets and all(type(target) is int for target in targets):
        return int(max(targets)) + 1
    if isinstance(targets, Tensor):
        return _highest_class(targets)
    if len(dataset) > MAX_SCANNED_SAMPLES or not _highest_class(dataset.batch(torch.tensor([0]), 0)[1]):
        return 0
    pieces = torch.arange(len(dataset)).split(256)
    return max(_highest_class(dataset.batch(indices, 0)[1]) for indices in pieces)


# The highest class number plus 1, or 0 if targets are not a vector of int64.
def _highest_class(targets: Any) -> int:
    if not isinstance(targets, Tensor) or targets.dtype is not torch.int64 or targets.dim() != 1:
        return 0
    return int(targets.max()) + 1


def _describe(value: Any) -> str:
    if isinstance(value, tuple | list):
        inside = ", ".join(type(item).__name__ for item in value[:4]) + (", ..." if len(value) > 4 else "")
        return f"a {type(value).__name__} of {len(value)} ({inside})"
    return f"a {type(value).__name__}"
