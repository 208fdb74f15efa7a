"""Train a small causal transformer on a generated language, in which every word depends on the previous two.

    paceline run --model examples/transformer_lm.py:model --data examples/transformer_lm.py:data \
        --loss examples/transformer_lm.py:loss --workers 2 --optimizer adamw --lr 0.003 --batch-size 32 --epochs 2

The loss starts near ln(16) = 2.8 and falls well below it; 0.63 is the best possible.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NUM_WORDS = 16
LENGTH = 32
WIDTH = 64
NUM_HEADS = 4
NUM_LAYERS = 2

Pair = tuple[Tensor, Tensor]


def data(seed: int) -> tuple[Pair, Pair]:
    """Return (inputs, targets) for training and for testing: the target of a word is the next word."""
    generator = torch.Generator().manual_seed(seed)
    offset = torch.randint(NUM_WORDS, (NUM_WORDS,), generator=generator)
    num_sequences = 2048 + 256
    words = torch.randint(NUM_WORDS, (num_sequences, LENGTH + 1), generator=generator)  # random words ...
    surprise = torch.rand(words.shape, generator=generator) < 0.1
    for i in range(2, LENGTH + 1):  # ... of which a tenth stays
        expected = (words[:, i - 1] + offset[words[:, i - 2]]) % NUM_WORDS
        words[:, i] = torch.where(surprise[:, i], words[:, i], expected)
    inputs, targets = words[:, :-1].contiguous(), words[:, 1:].contiguous()
    return (inputs[:2048], targets[:2048]), (inputs[2048:], targets[2048:])


def model() -> nn.Module:
    return TransformerLM()


def loss(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean over all positions; all sequences have the same length, so it is a mean over samples too."""
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


def accuracy(output: Tensor, target: Tensor) -> float:
    return float((output.argmax(dim=-1) == target).float().mean())


class TransformerLM(nn.Module):
    """A causal language model: words (samples, positions) in, scores (samples, positions, words) out."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(NUM_WORDS, WIDTH)
        self.positions = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.layers = nn.Sequential(*(Layer() for _ in range(NUM_LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.scores = nn.Linear(WIDTH, NUM_WORDS)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.positions[: words.shape[1]]
        scores: Tensor = self.scores(self.norm(self.layers(x)))
        return scores


class Layer(nn.Module):
    """A transformer block: causal attention and a perceptron, each with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.attention_output = nn.Linear(WIDTH, WIDTH)
        self.perceptron = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        heads = self.query_key_value(self.attention_norm(x)).unflatten(-1, (3, NUM_HEADS, WIDTH // NUM_HEADS))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_output(seen.transpose(1, 2).flatten(2))
        added: Tensor = self.perceptron(x)
        return x + added
