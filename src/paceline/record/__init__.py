"""The run folder: written by rank 0 during a run, and read by reports, diagnoses, traces and exports.

Record, new_folder, Epoch, STEP_COLUMNS     write a run's folder and its tables
Spool, RowLog, Table, gather_rows           tables that grow with every step, in constant memory
check_idle, is_held, release                one process at a time writes a folder
withdraw                                    a run whose program failed does not count as complete
Run, find_runs                              read one, or find the complete ones among some folders
schema                                      what each file must contain, and the version of that
environment                                 the machine and software of a run, and where its ranks were
code_digest, script_digest                  digests that show whether a user's own code has changed
"""

from paceline.record.environment import code_digest, script_digest, text_digest
from paceline.record.reading import Run, find_runs
from paceline.record.rows import Outage, RowLog, Spool, Table, gather_rows, rows_path, truncate_logs
from paceline.record.writing import (
    EPOCHS,
    STEP_COLUMNS,
    Epoch,
    Record,
    check_idle,
    is_held,
    new_folder,
    release,
    withdraw,
)

__all__ = [
    "EPOCHS",
    "STEP_COLUMNS",
    "Epoch",
    "Outage",
    "Record",
    "RowLog",
    "Run",
    "Spool",
    "Table",
    "check_idle",
    "code_digest",
    "find_runs",
    "gather_rows",
    "is_held",
    "new_folder",
    "release",
    "rows_path",
    "script_digest",
    "text_digest",
    "truncate_logs",
    "withdraw",
]
