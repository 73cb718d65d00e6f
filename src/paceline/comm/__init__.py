"""Communicators: mpi4py's own, and one that counts what it sends."""
