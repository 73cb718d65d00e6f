"""Benchmarks of this machine.

`allreduce` times every collective at every size on real ranks, beside its formula; `machine` measures what messages and
sums cost here, the parameters of the model. `commands/bench.py` prints and draws the result.
"""

from paceline.bench.allreduce import Question, check_file, read_ranks, read_sizes, run

__all__ = ["Question", "check_file", "read_ranks", "read_sizes", "run"]
