"""What a run leaves behind: a folder with its configuration, environment, metrics and trained model."""

from paceline.record.reading import Run, find_runs
from paceline.record.writing import Record, new_folder

__all__ = ["Record", "Run", "find_runs", "new_folder"]
