"""Reports: read records, and nothing else, and say what each run bought."""

from paceline.report._page import write_report

__all__ = ["write_report"]
