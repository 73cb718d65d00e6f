from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from paceline.data import ArraySplit, Subset, chunks, load
from paceline.data import images as loader
from paceline.errors import UsageError

COLORS = {"forest": (0, 200, 0), "glacier": (200, 200, 250), "sea": (0, 0, 200)}


def draw(folder: Path, count: int, size: tuple[int, int] = (12, 8), end: str = "png") -> None:
    """`count` images of each class; image i is darker by i."""
    for name, color in COLORS.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            shade = tuple(max(c - i, 0) for c in color)
            Image.new("RGB", size, shade).save(folder / name / f"{i:03d}.{end}")


def test_each_sub_folder_is_a_class(tmp_path: Path) -> None:
    draw(tmp_path / "nature", 10)
    (tmp_path / "nature" / "sea" / "notes.txt").write_text("no image")
    (tmp_path / "nature" / ".hidden").mkdir()
    data = load(f"{tmp_path / 'nature'}:validation=0,test=0.2")
    assert (data.name, data.shape, data.classes, data.class_names) == ("nature", (3, 8, 12), 3, tuple(COLORS))
    assert (len(data.train), len(data.test)) == (24, 6)
    [(inputs, labels)] = list(chunks(data.test))
    assert np.bincount(labels).tolist() == [2, 2, 2]
    blue = inputs[labels == 2][0]
    assert blue[:2].max() == 0
    assert (blue[2] * 255 > 189).all()
    assert isinstance(data.train, Subset)
    assert isinstance(data.train.split, ArraySplit)
    assert data.train.split.inputs.dtype == np.uint8


def test_size_and_color(tmp_path: Path) -> None:
    draw(tmp_path, 4)
    Image.new("L", (50, 9), 90).save(tmp_path / "sea" / "grey.jpg", quality=95)
    Image.new("RGBA", (3, 3), (9, 9, 9, 9)).save(tmp_path / "sea" / "small.png")
    assert load(f"{tmp_path}:size=5").shape == (3, 5, 5)
    data = load(f"{tmp_path}:size=6x4,color=false,validation=0,test=0")
    assert data.shape == (4, 6)
    [(inputs, _)] = list(chunks(data.train))
    assert round(float(inputs[-2].mean()) * 255) == 90  # grey.jpg: the last but one file of the last class


def test_parts_in_folders_of_their_own(tmp_path: Path) -> None:
    draw(tmp_path / "train", 6)
    draw(tmp_path / "test", 3)
    data = load(f"{tmp_path}:validation=3")
    assert [len(split) for split in (data.train, data.validation, data.test)] == [15, 3, 9]
    draw(tmp_path / "val", 1)
    data = load(tmp_path)
    assert [len(split) for split in (data.train, data.validation, data.test)] == [18, 3, 9]


def test_parts_as_the_intel_archive_has_them(tmp_path: Path) -> None:
    draw(tmp_path / "seg_train" / "seg_train", 2)
    draw(tmp_path / "seg_test" / "seg_test", 1)
    (tmp_path / "seg_pred" / "seg_pred").mkdir(parents=True)
    data = load(f"{tmp_path}:validation=0")
    assert [len(split) for split in (data.train, data.validation, data.test)] == [6, 0, 3]
    assert data.class_names == tuple(COLORS)


@pytest.mark.parametrize("name", ["train", "steam_train", "test", "val"])
def test_a_class_may_be_called_like_a_part(tmp_path: Path, name: str) -> None:
    draw(tmp_path, 4)
    (tmp_path / "sea").rename(tmp_path / name)
    data = load(f"{tmp_path}:validation=0,test=0")
    assert data.class_names == tuple(sorted(("forest", "glacier", name)))
    assert len(data.train) == 12


def test_the_message_says_which_folder_was_taken_for_which_part(tmp_path: Path) -> None:
    draw(tmp_path / "steam_train", 1)
    draw(tmp_path / "my_test", 1)
    (tmp_path / "my_test" / "moor").mkdir()
    with pytest.raises(UsageError) as error:
        load(tmp_path)
    assert str(error.value) == (
        f"{tmp_path} (steam_train as train, my_test as test): test has a class that train does not have: 'moor'"
    )


def test_decoded_once_and_again_when_a_file_changes(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw(tmp_path / "nature", 3)
    read = loader._read
    decoded: list[str] = []
    monkeypatch.setattr(loader, "_read", lambda file, *rest: (decoded.append(file), read(file, *rest))[1])
    for _ in range(2):
        load(f"{tmp_path / 'nature'}:size=4")
    assert len(decoded) == 9
    Image.new("RGB", (5, 5), (1, 2, 3)).save(tmp_path / "nature" / "sea" / "000.png")
    data = load(f"{tmp_path / 'nature'}:size=4,validation=0,test=0")
    assert len(decoded) == 18
    assert np.rint(next(chunks(data.train))[0][6, :, 0, 0] * 255).tolist() == [1, 2, 3]
    assert len([entry for entry in cache.iterdir() if entry.is_dir()]) == 1


def test_handing_pages_back_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw(tmp_path, 60)
    released = []
    release = loader.release
    monkeypatch.setattr(loader, "RELEASE_AFTER", 3 * 8 * 12 * 7)
    monkeypatch.setattr(loader, "release", lambda array: (released.append(1), release(array)))
    data = load(f"{tmp_path}:validation=0,test=0")
    assert len(released) == 180 // 7
    [(inputs, labels)] = list(chunks(data.train))
    wanted = [[max(c - i, 0) for c in color] for color in COLORS.values() for i in range(60)]
    assert np.rint(inputs[:, :, 3, 3] * 255).tolist() == wanted
    assert labels.tolist() == [0] * 60 + [1] * 60 + [2] * 60


@pytest.mark.parametrize(("terminal", "bar"), [(True, "decoding nature"), (False, "")])
def test_a_bar_on_a_terminal_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool, bar: str, cache: Path
) -> None:
    draw(tmp_path / "nature", 3)
    screen = io.StringIO()
    screen.isatty = lambda: terminal  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", screen)
    load(tmp_path / "nature")
    assert bar in screen.getvalue()
    assert bool(screen.getvalue()) == terminal
    assert ("9/9" in screen.getvalue()) == terminal


def test_what_can_be_wrong(tmp_path: Path) -> None:
    def wrong(folder: Path, options: str = "") -> str:
        with pytest.raises(UsageError) as error:
            load(f"{folder}{options}")
        assert "\n" not in str(error.value)
        return str(error.value)

    nature = tmp_path / "nature"
    nature.mkdir()
    assert wrong(nature).endswith("nature: neither IDX files nor sub-folders of images, one for each class")
    draw(nature, 3)
    (nature / "sky").mkdir()
    assert wrong(nature).endswith("every class needs a sample; 'sky' has no images")
    (nature / "sky").rmdir()
    whole = (nature / "sea" / "001.png").read_bytes()
    for content in (b"", b"no image", whole[:-30]):
        (nature / "sea" / "001.png").write_bytes(content)
        said = wrong(nature, ":size=4")
        assert "sea/001.png: not a readable image (" in said
        assert "_io" not in said  # Pillow names the file object
    Image.new("RGB", (9, 9)).save(nature / "sea" / "001.png")
    assert wrong(nature).endswith(
        f"sea/001.png: images must have one size; 000.png is 12x8, this is 9x9; write {nature}:size=12x8"
    )
    for size in ("0", "5x", "axb", "1x2x3", "-4"):
        assert wrong(nature, f":size={size}").endswith(f"such as 200x150; got '{size}'")
    draw(tmp_path / "parts" / "train", 3)
    draw(tmp_path / "parts" / "test", 3)
    (tmp_path / "parts" / "test" / "sky").mkdir()
    assert wrong(tmp_path / "parts").endswith("test has a class that train does not have: 'sky'")
