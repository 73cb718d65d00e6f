"""A custom strategy: sign-SGD with a majority vote (Bernstein et al., 2018). Run it from the command line with

    paceline train --strategy own_strategy:SignVote --lr 0.001 -n 4

or from Python: `paceline.fit(…, strategy=SignVote())`. With `--on sim` it runs on more ranks than the machine has cores.

    each rank:   s_i <- sign(g_i)                   one of -1, 0, 1 per parameter
    all ranks:   s   <- sign(s_1 + … + s_p)         the majority
                 x   <- x - eta s
"""

from dataclasses import dataclass

import numpy as np

import paceline
from paceline.strategies import Strategy


@dataclass(frozen=True, kw_only=True)
class SignVote(Strategy):
    """Every rank votes on the direction of each parameter."""

    def train(self, me: paceline.Worker) -> None:
        me.broadcast()
        g = me.model.g
        votes = me.vector(dtype=np.min_scalar_type(-me.size - 1))  # integers that can count all ranks
        for epoch in me.epochs():
            for batch in me.batches(epoch):
                me.gradient(batch)
                np.sign(g, out=votes, casting="unsafe")  # s_i <- sign(g_i)
                me.allreduce(votes)  # s <- s_1 + … + s_p
                g[:] = np.sign(votes)
                me.step(g, 1)  # x <- x - eta sign(s)
            me.validate(epoch)


if __name__ == "__main__":
    fitted = paceline.fit("mlp:16", "iris", strategy=SignVote(), ranks=2, batch=12, epochs=40, lr=0.01)
    print(f"test accuracy {fitted.test_accuracy:.3f}, {fitted.bytes_sent:,} bytes sent")
