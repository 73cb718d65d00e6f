"""What pytest must not import: programs that start MPI when they are imported."""

collect_ignore = ["plain.py"]
