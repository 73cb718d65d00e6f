"""`python -m paceline.launch`: one rank of a function call; see `paceline.launch.call`."""

import sys

from paceline.launch.call import answer_call

if __name__ == "__main__":
    sys.exit(answer_call())
