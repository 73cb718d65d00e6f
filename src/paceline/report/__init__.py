"""Reports: read records, and nothing else, and say what each run bought."""

from paceline.report.allreduce import bench_section
from paceline.report.contents import document_of
from paceline.report.writing import write, write_report

__all__ = ["bench_section", "document_of", "write", "write_report"]
