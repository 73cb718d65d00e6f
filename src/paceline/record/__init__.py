"""What a run leaves behind: a folder with its configuration, environment, metrics and trained model."""

from paceline.record._folder import Record, new_folder
from paceline.record._reader import Run, find_runs

__all__ = ["Record", "Run", "find_runs", "new_folder"]
