"""The run folder: written by rank 0 during a run, and read by reports, diagnoses, traces and exports.

Record, new_folder, Epoch, STEP_COLUMNS     write a run's folder and its tables
Run, find_runs                              read one, or find the complete ones among some folders
environment                                 the machine and software of a run, and where its ranks were
code_digest                                 a digest that shows whether a user's own code has changed
"""

from paceline.record.environment import code_digest, text_digest
from paceline.record.reading import Run, find_runs
from paceline.record.writing import STEP_COLUMNS, Epoch, Record, new_folder

__all__ = ["STEP_COLUMNS", "Epoch", "Record", "Run", "code_digest", "find_runs", "new_folder", "text_digest"]
