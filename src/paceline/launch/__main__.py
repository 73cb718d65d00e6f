"""`python -m paceline.launch`: one rank of a function call; see `paceline.launch.calling`."""

import sys

from paceline.launch.calling import answer_call

if __name__ == "__main__":
    sys.exit(answer_call())
