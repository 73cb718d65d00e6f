"""What the ranks of a parameter server send each other."""

from __future__ import annotations

# Tags; the gradients and the values of a piece have PIECES + its number.
HEADER, NEXT, ORDERS, PIECES = range(4)
# Places in the header with which a worker announces a gradient, or (step -1) that it leaves: floats of 64 bits.
# To master 0 the model's floating buffers follow.
STEP, COUNT, LAST_STEP, LAST_LOSS, LAST_COUNT, BUFFERS = range(6)
# Orders of master 0 to the other masters.
RESTORE, END = range(2)
