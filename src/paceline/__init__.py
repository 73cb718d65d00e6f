"""Train one neural network on many processes, every way there is, and learn which way to choose."""

__version__ = "0.1.0"
