"""The reference convolutional network in PyTorch: two 5x5 convolutions, dropout, two linear layers.

    conv 1->8 5x5, max-pool, ReLU, conv 8->16 5x5, max-pool, ReLU, dropout, max-pool, linear 64->120, ReLU,
    linear 120->10, log-softmax; negative log-likelihood

for 28x28 images of one channel; other sizes, channels and classes change the layers' sizes. `predict` returns
log-probabilities. Dropout's mask depends on a sample's position in the global batch, not on the rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.data import Dataset
from paceline.errors import UsageError

if TYPE_CHECKING:
    from paceline.models._torch import TorchModel

SMALLEST = 20  # pixels per side: two 5x5 convolutions and three 2x2 poolings leave one


def build(data: Dataset, *, dropout: float = 0.5, seed: int = 0, dtype: Any = "float32") -> TorchModel:
    """Build the network for the images of `data`, with PyTorch's own initialisation, drawn from the seed.

    `dropout`: the fraction of the activations that is set to 0 in training.
    """
    check_data(data)
    channels, height, width, channels_last = _image(data)
    try:
        import torch
    except ModuleNotFoundError:
        raise UsageError("cnn needs PyTorch, which is not installed; pip install 'paceline[torch]'") from None
    from paceline.models._torch import Cnn, TorchModel

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        module = Cnn(channels, height, width, data.classes, dropout=dropout, channels_last=channels_last)
    module.to(getattr(torch, np.dtype(dtype).name))
    return TorchModel(module, loss=torch.nn.NLLLoss(), seed=seed)


def check_data(data: Dataset) -> None:
    """Raise a UsageError if the network cannot be built for these data; PyTorch is not imported."""
    _image(data)
    if label_shape := getattr(data, "label_shape", ()):
        shape = "x".join(map(str, label_shape))
        raise UsageError(f"cnn predicts one class for each sample; {data.name} has labels of {shape}")
    if data.classes < 2:
        raise UsageError(f"cnn needs at least 2 classes; {data.name} has {data.classes or 'values'}")


def _image(data: Dataset) -> tuple[int, int, int, bool]:
    shape = data.shape
    if len(shape) == 2:
        channels, (height, width), channels_last = 1, shape, False
    elif len(shape) == 3 and shape[2] <= 4:
        (height, width, channels), channels_last = shape, True
    elif len(shape) == 3 and shape[0] <= 4:
        (channels, height, width), channels_last = shape, False
    else:
        raise UsageError(
            "cnn needs images of height x width, or with 1 to 4 channels first or last; "
            f"{data.name} has samples of {'x'.join(map(str, shape)) or 'one number'}"
        )
    if min(height, width) < SMALLEST:
        raise UsageError(
            f"cnn needs images of at least {SMALLEST}x{SMALLEST}; {data.name} has {height}x{width}"
        )
    return channels, height, width, channels_last
