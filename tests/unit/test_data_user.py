"""User data: the values that a factory may return, and errors for all others."""

from __future__ import annotations

import dataclasses
import textwrap
from pathlib import Path

import pytest
import torch

from paceline.data import Data, load_data
from paceline.errors import BadSampleError, UsageError
from paceline.recipe import DataConfig


@pytest.fixture
def load(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Load data from a factory's source text."""

    def load(body: str, **keys: object) -> Data:
        file = tmp_path / f"data{len(list(tmp_path.iterdir()))}.py"
        file.write_text("import torch\nimport paceline.data\n" + textwrap.dedent(body))
        return load_data(DataConfig(name=f"{file}:make", **keys), seed=11)  # type: ignore[arg-type]

    return load


SQUARES = """
    class Squares:
        def __init__(self, length): self.length = length
        def __len__(self): return self.length
        def __getitem__(self, index): return torch.full((2, 3), float(index)), index % 5
"""


def test_pairs_of_tensors(load) -> None:  # type: ignore[no-untyped-def]
    data = load(
        """
        def make():
            train = torch.arange(12.).reshape(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])
            return train, (torch.ones(2, 2), torch.tensor([0, 3]))
        """
    )
    assert (len(data.train), len(data.test), data.shape, data.num_classes) == (6, 2, (2,), 4)
    values, targets = data.train.batch(torch.tensor([2, 0]), 0)
    assert values.tolist() == [[4, 5], [0, 1]]
    assert targets.tolist() == [2, 0]


def test_nested_tensors_keep_their_nesting(load) -> None:  # type: ignore[no-untyped-def]
    data = load(
        """
        def make():
            inputs = {"image": torch.arange(4.), "more": [torch.arange(8).reshape(4, 2), (torch.zeros(4),)]}
            return (inputs, torch.rand(4, 1)), (inputs, torch.rand(4, 1))
        """
    )
    inputs, targets = data.train.batch(torch.tensor([3]), 0)
    assert inputs["image"].tolist() == [3]
    assert inputs["more"][0].tolist() == [[6, 7]]
    assert isinstance(inputs["more"][1], tuple)
    assert targets.shape == (1, 1)
    assert (data.shape, data.num_classes) == ((), 0)


def test_map_style_datasets_are_collated(load) -> None:  # type: ignore[no-untyped-def]
    data = load(SQUARES + "\n    def make(): return Squares(300), Squares(4)")
    assert (len(data.train), len(data.test), data.shape, data.num_classes) == (300, 4, (2, 3), 5)
    values, targets = data.train.batch(torch.tensor([7, 8]), 0)
    assert values.shape == (2, 2, 3)
    assert values[1, 0, 0] == 8
    assert targets.tolist() == [2, 3]


def test_an_empty_shard_is_an_empty_batch(load) -> None:  # type: ignore[no-untyped-def]
    data = load(SQUARES + "\n    def make(): return Squares(9), Squares(4)")
    values, targets = data.train.batch(torch.tensor([], dtype=torch.int64), 0)
    assert values.shape == (0, 2, 3)
    assert targets.shape == (0,)
    assert targets.dtype is torch.int64


@pytest.mark.parametrize(
    ("attribute", "num_classes"),
    [("classes = list('abcdefg')", 7), ("targets = [0, 8]", 9), ("targets = torch.tensor([0, 10])", 11)],
)
def test_map_style_datasets_may_say_their_classes(load, attribute: str, num_classes: int) -> None:  # type: ignore[no-untyped-def]
    data = load(SQUARES + f"        {attribute}\n\n    def make(): return Squares(9), Squares(4)")
    assert data.num_classes == num_classes


def test_a_target_that_is_no_class_has_no_classes(load) -> None:  # type: ignore[no-untyped-def]
    body = SQUARES.replace("index % 5", "float(index)")
    assert load(body + "\n    def make(): return Squares(9), Squares(4)").num_classes == 0


def test_torch_tensor_dataset(load) -> None:  # type: ignore[no-untyped-def]
    data = load(
        """
        def make():
            pair = torch.utils.data.TensorDataset(torch.ones(4, 3), torch.tensor([0, 1, 2, 1]))
            return [pair, pair]
        """
    )
    assert (len(data.train), data.shape, data.num_classes) == (4, (3,), 3)


def test_what_map_style_samples_draw_depends_on_seed_epoch_and_index_alone(load) -> None:  # type: ignore[no-untyped-def]
    data = load(
        SQUARES.replace("torch.full((2, 3), float(index))", "torch.rand(3)")
        + "\n    def make(): return Squares(9), Squares(4)"
    )
    torch.manual_seed(0)
    expected_next = torch.rand(1)
    torch.manual_seed(0)
    together = data.train.batch(torch.tensor([0, 1, 2]), 4)[0]
    assert torch.equal(torch.rand(1), expected_next), "the global generator must be left as it was"
    assert torch.equal(data.train.batch(torch.tensor([2]), 4)[0][0], together[2])
    assert not torch.equal(together[0], together[1])
    assert not torch.equal(data.train.batch(torch.tensor([0]), 5)[0][0], together[0])


def test_our_own_data_and_datasets_pass_through(load) -> None:  # type: ignore[no-untyped-def]
    own = """
        class Own(paceline.data.Dataset):
            def __len__(self): return 5
            def batch(self, indices, epoch): return indices * 1.0, indices + epoch
    """
    data = load(own + "\n        def make(): return paceline.data.Data(Own(), Own(), shape=(9,), num_classes=3)")
    assert (data.shape, data.num_classes) == ((9,), 3)
    assert data.train.batch(torch.tensor([1]), 2)[1].tolist() == [3]
    assert len(load(own + "\n        def make(): return Own(), Own()", train_samples=2).train) == 2


def test_a_factory_is_given_what_it_has_parameters_for(load) -> None:  # type: ignore[no-untyped-def]
    pair = "(torch.tensor([[float(seed)]]), torch.tensor([image_size]))"
    data = load(
        f"def make(seed, *, image_size, dir='none'): assert dir == 'here'; return {pair}, {pair}",
        dir="here",
        image_size=99,
    )
    assert data.train.batch(torch.tensor([0]), 0)[0].item() == 11
    assert data.train.batch(torch.tensor([0]), 0)[1].item() == 99
    everything = load(
        "def make(**keys): assert 'name' not in keys; n = len(keys); t = (torch.ones(n, 1), torch.ones(n)); return t, t"
    )
    assert len(everything.train) == len(dataclasses.fields(DataConfig))  # seed takes the place of name


ACCEPTED = r"return a paceline.data.Data, or a pair \(train, test\)"
GOOD = "(torch.ones(2, 1), torch.ones(2))"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def make(): return None", f"returned a NoneType; {ACCEPTED}"),
        ("def make(): return 1, 2, 3", rf"returned a tuple of 3 \(int, int, int\); {ACCEPTED}"),
        (f"def make(): return {GOOD}, 5", f"returned a int as its test set; {ACCEPTED}"),
        (f"def make(): return torch.ones(2), {GOOD}", f"returned a Tensor as its train set; {ACCEPTED}"),
        (f"def make(): return (torch.ones(2), 'x'), {GOOD}", f"returned a tuple of 2 .* as its train set; {ACCEPTED}"),
        (
            "class Stream(torch.utils.data.IterableDataset):\n  def __iter__(self): ...\n"
            f"def make(): return Stream(), {GOOD}",
            f"a Stream as its train set; {ACCEPTED}",
        ),
        ("def make(): return paceline.data.Data(1, 2)", f"a Data whose train or test is not a Dataset; {ACCEPTED}"),
        (f"def make(): return (torch.ones(2), torch.ones(3)), {GOOD}", "train set whose tensors have 2 and 3 samples"),
        (f"def make(): return {GOOD}, (torch.tensor(1.), torch.ones(3))", "test set with a scalar tensor"),
        (f"def make(): return {GOOD}, []", "returned a test set without samples"),
        (f"def make(): return [1, 2], {GOOD}", r"sample 0 of data .* is a int, not a pair \(input, target\)"),
        ("def make(needed): return needed", "raised TypeError: .*needed"),
        ("def make(): raise RuntimeError('no disk')", "raised RuntimeError: no disk"),
        ("make = 5", "is a int; name a function or a class"),
        ("other = 5", "unknown data in .* 'make'"),
    ],
)
def test_anything_else_is_explained(load, body: str, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError, match=message):
        load(body)


def test_a_missing_file() -> None:
    with pytest.raises(UsageError, match=r"data file 'nowhere.py' does not exist"):
        load_data(DataConfig(name="nowhere.py:make"), seed=0)


def test_trouble_inside_a_batch_names_the_data(load) -> None:  # type: ignore[no-untyped-def]
    ragged = load(
        SQUARES.replace("torch.full((2, 3), float(index))", "torch.ones(index + 1)").replace("index % 5", "0.5")
        + "\n    def make(): return Squares(9), Squares(4)"
    )
    with pytest.raises(UsageError, match=r"samples of data .* cannot be collated into a batch .* same shapes"):
        ragged.train.batch(torch.tensor([0, 1]), 0)
    with pytest.raises(BadSampleError, match=r"raised ZeroDivisionError at sample 4: .*; repair or remove it"):
        load(SQUARES.replace("index % 5", "1 // (4 - index)") + "\n    def make(): return Squares(9), Squares(4)")
