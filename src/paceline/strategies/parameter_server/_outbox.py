"""A worker's gradient on its way to the masters: each piece as soon as its layers are ready."""

from __future__ import annotations

from typing import Any

from paceline.models import Model
from paceline.strategies.parameter_server._messages import PIECES
from paceline.strategies.parameter_server._placement import Piece


class Outbox:
    """`ready(layer)` sends what became complete with that layer; but what the last layer completes waits for `rest`.

    So every piece is sent once, and the receives of the new values, which overwrite x, can be posted between the
    end of the backward pass, which reads x, and the last of the sends that they answer.
    """

    def __init__(self, comm: Any, model: Model, pieces: list[Piece]) -> None:
        self._comm, self._model, self._pieces = comm, model, pieces
        self._of_layer = [
            [piece for piece in pieces if layer in piece.layers] for layer in range(len(model.layers))
        ]
        self.requests: list[Any] = []
        self.begin()

    def begin(self) -> None:
        """A new gradient."""
        self._lacking = [len(piece.layers) for piece in self._pieces]
        self._unready = len(self._of_layer)

    def ready(self, layer: int) -> None:
        """A layer's gradient is final."""
        self._unready -= 1
        for piece in self._of_layer[layer] if self._unready else ():
            self._lacking[piece.number] -= 1
            if self._lacking[piece.number] == 0:
                self._send(piece)

    def rest(self) -> None:
        """Send what has not been sent."""
        for piece in self._pieces:
            if self._lacking[piece.number]:
                self._send(piece)

    def leave(self) -> None:
        """Send nothing to whoever waits for a gradient."""
        for piece in self._pieces:
            self._send(piece, 0)

    def _send(self, piece: Piece, count: int | None = None) -> None:
        g = self._model.g[piece.part][:count]
        self.requests.append(self._comm.Isend(g, dest=piece.master, tag=PIECES + piece.number))
