"""Reports on runs: read from records alone, written as HTML, Markdown, PDF, pictures and CSV.

`document` is what a report consists of, and `contents` fills one: the first screen with the answer, the command to copy
and one figure, and then the sections. `results`, `scaling`, `learning`, `exchange`, `study` and `allreduce` make these,
with curves from `series`. `html` and `pdf` are formats; `writing` has the others, and puts all into files; `live` follows
runs that are going on.
"""

from paceline.report.allreduce import bench_section
from paceline.report.contents import document_of
from paceline.report.html import html_page
from paceline.report.writing import write, write_report

__all__ = ["bench_section", "document_of", "html_page", "write", "write_report"]
