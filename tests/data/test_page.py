"""The programs of docs/data.md run, and print what the page says they print."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


def test_the_programs_of_the_page_print_what_it_says() -> None:
    program = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, PAGE.name, "exec"), {})
    said = [line.partition("  # ")[2] for line in program.splitlines() if line.startswith("print(")]
    said = [words.lstrip().partition(":")[0] for words in said]
    assert printed.getvalue().splitlines() == said
