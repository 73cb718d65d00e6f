"""A character-level GPT and the novel that it learns: what `serial.py`, `ddp.py` and `parallel.py` share."""

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

NOVEL = Path(__file__).parent / "pride-and-prejudice.txt"
HELD_OUT = 0.1  # of the novel, at its end: for validation

# Size: (layers, heads, width, context)
SIZES = {"0.8M": (4, 4, 128, 64), "10M": (6, 6, 384, 128)}


class Windows(Dataset):
    """Pieces of `context` characters, one after the other, and beside each character the one that follows it."""

    def __init__(self, text: Tensor, context: int) -> None:
        self.text, self.context = text, context

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.context

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        start = index * self.context
        piece = self.text[start : start + self.context + 1]
        return piece[:-1], piece[1:]


def read(size: str = "0.8M", most: int | None = None) -> tuple[Windows, Windows, str]:
    """Return the novel's windows for training (at most so many) and for validation, and its characters."""
    context = SIZES[size][-1]
    novel = NOVEL.read_text(encoding="utf-8")
    characters = "".join(sorted(set(novel)))
    number = {character: index for index, character in enumerate(characters)}
    text = torch.tensor([number[character] for character in novel])
    cut = int(len(text) * (1 - HELD_OUT))
    end = cut if most is None else min(cut, most * context + 1)
    return Windows(text[:end], context), Windows(text[cut:], context), characters


class Block(nn.Module):
    """One layer of a transformer: attention to what was before, then two linear layers, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attention = nn.Linear(width, width)
        self.before_linear = nn.LayerNorm(width)
        self.linear = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        samples, length, width = x.shape
        parts = self.queries_keys_values(self.before_attention(x))
        q, k, v = parts.view(samples, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention(seen.transpose(1, 2).reshape(samples, length, width))
        return x + self.linear(self.before_linear(x))


class GPT(nn.Module):
    """From the characters so far to a score for each character that may come next, at every position."""

    def __init__(self, characters: int, size: str = "0.8M") -> None:
        super().__init__()
        layers, heads, width, context = SIZES[size]
        self.characters = nn.Embedding(characters, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, characters, bias=False)
        self.apply(self._initialise)

    @staticmethod
    def _initialise(layer: nn.Module) -> None:
        if isinstance(layer, nn.Linear | nn.Embedding):
            nn.init.normal_(layer.weight, std=0.02)
        if isinstance(layer, nn.Linear) and layer.bias is not None:
            nn.init.zeros_(layer.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.characters(tokens) + self.positions(torch.arange(tokens.shape[1]))
        return self.scores(self.norm(self.blocks(x)))


def loss_of(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy over all characters."""
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def groups(model: nn.Module) -> list[dict]:
    """Return two groups of parameters: matrices, whose weights decay, and biases and norms, which do not."""
    parameters = list(model.parameters())
    return [
        {"params": [each for each in parameters if each.dim() > 1], "weight_decay": 0.1},
        {"params": [each for each in parameters if each.dim() < 2], "weight_decay": 0.0},
    ]


def warm_up_and_cosine(steps: int) -> Callable[[int], float]:
    """Return the factor of the learning rate by step: up for 5 % of the steps, then down to a tenth on a cosine."""
    rise = max(1, steps // 20)

    def factor(step: int) -> float:
        if step < rise:
            return (step + 1) / rise
        return 0.55 + 0.45 * math.cos(math.pi * min(1.0, (step - rise) / max(1, steps - rise)))

    return factor


@torch.no_grad()
def perplexity(model: nn.Module, windows: Windows, most: int = 256) -> float:
    """Return the perplexity of the characters in at most `most` windows: 1 if each was certain."""
    model.eval()
    rows = torch.linspace(0, len(windows) - 1, min(most, len(windows))).long().tolist()
    total = 0.0
    for start in range(0, len(rows), 64):
        tokens, targets = map(
            torch.stack, zip(*(windows[row] for row in rows[start : start + 64]), strict=True)
        )
        total += loss_of(model(tokens), targets).item() * len(tokens)
    model.train()
    return math.exp(total / len(rows))


def options(description: str | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--size", choices=SIZES, default="0.8M", help="parameters of the network")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64, help="windows in a batch")
    parser.add_argument("--windows", type=int, help="train on the first so many windows of the novel")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()
