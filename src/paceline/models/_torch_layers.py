"""`GlobalDropout`, whose mask does not depend on the number of ranks, and the module of the `cnn` model."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from paceline.data import Batch
from paceline.errors import UsageError
from paceline.models._model import Array


class GlobalDropout(nn.Module):
    """Dropout whose mask depends only on the seed, the step and a sample's position in the global batch.

    So p ranks that each take a slice of a batch drop exactly what one process drops. The generator is Philox, which can
    start anywhere in its sequence, so that no rank draws the numbers of another. The first axis of the inputs counts
    the samples. Outside a `TorchModel`, where `begin` is not called, it behaves like `nn.Dropout`.

    >>> piece = Batch(np.empty((2, 3)), np.empty(2), count=2, total=8, offset=4, step=0, epoch=0)
    >>> dropout = GlobalDropout(0.5)
    >>> dropout.begin(piece, seed=5)
    >>> dropout(torch.ones(2, 3))
    tensor([[0., 2., 0.],
            [2., 0., 2.]])
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise UsageError(f"the probability of dropout must be at least 0 and below 1; got {p}")
        self.p = p
        self._count = 0
        self._seed = self._step = self._offset = self._uses = 0

    def begin(self, batch: Batch, seed: int) -> None:
        """Note the position of the batch; called before each forward pass in training."""
        self._seed, self._step, self._offset, self._uses = seed, batch.step, batch.offset, 0
        self._count = batch.count

    def forward(self, inputs: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return inputs
        if not self._count:
            return F.dropout(inputs, self.p)
        features, rest = divmod(inputs.numel(), self._count)
        if rest:
            shape = tuple(inputs.shape)
            raise UsageError(f"dropout needs {self._count} samples on the first axis; got the shape {shape}")
        return inputs * torch.from_numpy(self._mask(features)).to(inputs.dtype).reshape(inputs.shape)

    def _mask(self, features: int) -> Array:
        """Return 0 or 1 / (1 - p) for each feature of each sample of the batch."""
        count = self._count
        blocks = -(-features // 8)  # one Philox counter gives 8 numbers of 32 bits; a sample starts a new one
        start = [self._offset * blocks, self._uses, self._step, 0]
        self._uses += 1
        philox = np.random.Philox(key=self._seed, counter=np.array(start, np.uint64))
        bits = philox.random_raw(count * blocks * 4)
        draws = bits.view(np.uint32).reshape(count, blocks * 8)[:, :features]
        keep = draws >= np.uint32(min(round(self.p * 2**32), 2**32 - 1))
        return np.multiply(keep, np.float32(1 / (1 - self.p)), dtype=np.float32)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class Cnn(nn.Module):
    """Convolution to 8, pool, ReLU, convolution to 16, pool, ReLU, dropout, pool, linear to 120, ReLU, linear, log-softmax.

    Takes (b, height, width), (b, height, width, channels) or (b, channels, height, width).
    """

    def __init__(
        self, channels: int, height: int, width: int, classes: int, *, dropout: float, channels_last: bool
    ) -> None:
        super().__init__()
        self.image = (channels, height, width)
        self.channels_last = channels_last
        self.conv1 = nn.Conv2d(channels, 8, 5)
        self.conv2 = nn.Conv2d(8, 16, 5)
        self.dropout = GlobalDropout(dropout)
        high, wide = (((side - 4) // 2 - 4) // 2 // 2 for side in (height, width))
        self.linear1 = nn.Linear(16 * high * wide, 120)
        self.linear2 = nn.Linear(120, classes)

    def forward(self, images: Tensor) -> Tensor:
        if self.channels_last:
            images = images.permute(0, 3, 1, 2)
        h = images.reshape(len(images), *self.image)
        h = F.relu(F.max_pool2d(self.conv1(h), 2))
        h = F.relu(F.max_pool2d(self.conv2(h), 2))
        h = F.max_pool2d(self.dropout(h), 2)
        h = F.relu(self.linear1(h.flatten(1)))
        return F.log_softmax(self.linear2(h), dim=1)
