"""Arguments that several commands share."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.cli import main


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--data=iris", "--epochs=1", "--runs="],
        ["run", "--runs", "", "own.py"],
        ["study", "--runs=", "study.toml"],
        ["tune", "--data=iris", "--target=90%", "--runs="],
        ["report", ""],
    ],
    ids=lambda words: words[0],
)
def test_an_empty_folder_is_not_the_working_directory(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    out, said = capfd.readouterr()
    assert out == ""
    assert said.count("\n") == 1
    assert said.endswith("must be a name; got an empty one\n")
    assert not list(tmp_path.iterdir())
