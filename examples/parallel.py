"""`serial.py` on two processes: paceline runs the loop, the rest is unchanged. See `diff serial.py parallel.py`."""

import numpy as np
import torch
from torch import nn

import paceline

EPOCHS, BATCH, RATE = 3, 64, 0.2


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))


def digits() -> tuple[np.ndarray, np.ndarray]:
    from paceline.data import chunks, load

    inputs, labels = next(chunks(load("digits").train, size=10_000))
    return inputs, labels


def accuracy(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> float:
    with torch.no_grad():
        return (model(inputs).argmax(1) == labels).float().mean().item()


def main() -> None:
    torch.manual_seed(0)
    inputs, labels = map(torch.from_numpy, digits())
    model = network()
    data = paceline.load(
        (inputs, labels), validation=0, test=0
    )  # all samples are for training, as in serial.py
    paceline.fit(model, data, ranks=2, epochs=EPOCHS, batch=BATCH, lr=RATE)
    print(f"training accuracy {accuracy(model, inputs, labels):.3f}")


if __name__ == "__main__":
    main()
