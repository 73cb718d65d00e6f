"""Reports: read records, and nothing else, and say what each run bought."""

from paceline.report._page import write_report
from paceline.report.allreduce import bench_section
from paceline.report.contents import document_of

__all__ = ["bench_section", "document_of", "write_report"]
