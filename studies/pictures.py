"""Six classes of drawn pictures, 150 x 150 in colour: an image folder for studies, with nothing to download.

    data = "pictures:drawn:count=1200"                in a study beside this file
    python studies/pictures.py FOLDER --count 14000   the same pictures as a folder of one's own

The published figures were made with photographs of six such classes. These are no photographs: each picture is drawn from
its number, with light, horizon, colours, blur and the place and size of everything chosen at random, so that no single
pixel tells a class. The picture of a number is the same everywhere.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from paceline.data import Dataset, cache_folders, load

SIZE = 150
VERSION = 1  # of what is drawn: another one is another folder of the cache
Colour = tuple[int, int, int]


def drawn(count: int = 1200, validation: float = 0.1, test: float = 0.1) -> Dataset:
    """`count` pictures, as many of each class, drawn into the cache the first time."""
    cache = cache_folders()[0]
    folder = cache / f"pictures-{count}-{VERSION}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".pictures-", dir=cache))
        try:
            draw_all(made, count)
            made.rename(folder)
        except OSError:
            if not folder.exists():  # nobody else was quicker
                raise
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return load(folder, validation=validation, test=test)


def draw_all(folder: Path, count: int) -> None:
    """Draw `count` pictures into one sub-folder for each class."""
    for name in CLASSES:
        (folder / name).mkdir(parents=True, exist_ok=True)

    def one(number: int) -> None:
        name = list(CLASSES)[number % len(CLASSES)]
        picture(name, number).save(folder / name / f"{number:05}.png", compress_level=1)

    with ThreadPoolExecutor() as pool:
        list(pool.map(one, range(count)))


def picture(name: str, number: int) -> Image.Image:
    """The picture of a class that has this number."""
    random = np.random.default_rng([VERSION, number])
    image = Image.new("RGB", (SIZE, SIZE))
    pen = ImageDraw.Draw(image)
    horizon = int(random.uniform(0.3, 0.65) * SIZE)
    top, bottom = (shade(random, *SKIES[random.integers(len(SKIES))]) for _ in range(2))
    for y in range(SIZE):
        share = y / SIZE
        pen.line([(0, y), (SIZE, y)], fill=mix(top, bottom, share))
    CLASSES[name](pen, random, horizon)
    if random.random() < 0.5:
        image = image.filter(ImageFilter.GaussianBlur(random.uniform(0.3, 1.5)))
    values = np.asarray(image, np.float32) * random.uniform(0.55, 1.2) + random.uniform(-25, 25)  # the light
    values += random.normal(0, random.uniform(4, 18), values.shape)
    if random.random() < 0.5:
        values = values[:, ::-1]
    return Image.fromarray(values.clip(0, 255).astype(np.uint8))


SKIES: list[Colour] = [(120, 170, 225), (200, 205, 210), (240, 170, 110), (60, 70, 110), (170, 190, 200)]


def shade(random: np.random.Generator, red: int, green: int, blue: int, spread: float = 25) -> Colour:
    """A colour near this one."""
    moved = np.clip(np.array([red, green, blue]) + random.normal(0, spread, 3), 0, 255)
    return int(moved[0]), int(moved[1]), int(moved[2])


def mix(one: Colour, other: Colour, share: float) -> Colour:
    """Mix two colours."""
    first, second, third = (int(a + (b - a) * share) for a, b in zip(one, other, strict=True))
    return first, second, third


def ground(pen: ImageDraw.ImageDraw, random: np.random.Generator, horizon: int, colour: Colour) -> None:
    """What lies below the horizon, in stripes."""
    for y in range(horizon, SIZE, 3):
        pen.rectangle((0, y, SIZE, y + 3), fill=shade(random, *colour, spread=9))


def ridge(random: np.random.Generator, height: int, rough: float) -> list[tuple[float, float]]:
    """A line of hills about a height, down to the bottom of the picture."""
    steps = np.linspace(0, SIZE, int(random.integers(6, 14)))
    line = [(float(x), float(height + random.normal(0, rough))) for x in steps]
    return [(0.0, float(SIZE)), *line, (float(SIZE), float(SIZE))]


def buildings(pen: ImageDraw.ImageDraw, random: np.random.Generator, horizon: int) -> None:
    ground(pen, random, max(horizon, 90), shade(random, 120, 120, 115))
    for _ in range(int(random.integers(2, 6))):
        left, width = int(random.uniform(-20, SIZE - 20)), int(random.uniform(25, 60))
        top, wall = int(random.uniform(5, 80)), shade(random, 150, 130, 115, 40)
        pen.rectangle((left, top, left + width, int(random.uniform(110, SIZE))), fill=wall)
        glass, step = shade(random, 90, 100, 120, 45), int(random.integers(8, 15))
        for x in range(left + 4, left + width - 5, step):
            for y in range(top + 5, 110, step):
                pen.rectangle((x, y, x + step // 2, y + step // 2), fill=glass)


def street(pen: ImageDraw.ImageDraw, random: np.random.Generator, horizon: int) -> None:
    ground(pen, random, horizon, shade(random, 110, 108, 105))
    middle, wide = random.uniform(40, 110), random.uniform(40, 90)
    for side in (-1, 1):
        wall, near = shade(random, 150, 130, 115, 40), middle + side * random.uniform(8, 20)
        edge = 0 if side < 0 else SIZE
        pen.polygon(
            [(near, horizon - 20), (edge, random.uniform(0, 40)), (edge, SIZE), (near, horizon + 6)],
            fill=wall,
        )
    pen.polygon(
        [(middle, horizon), (middle - wide, SIZE), (middle + wide, SIZE)], fill=shade(random, 80, 80, 85)
    )
    for _ in range(int(random.integers(0, 5))):
        x, y = random.uniform(20, 120), random.uniform(horizon, 130)
        pen.rectangle(
            (x, y, x + random.uniform(8, 25), y + random.uniform(6, 18)), fill=shade(random, 130, 90, 90, 70)
        )


def forest(pen: ImageDraw.ImageDraw, random: np.random.Generator, horizon: int) -> None:
    ground(pen, random, horizon, shade(random, 70, 95, 50))
    leaf = (60, 100, 45) if random.random() < 0.7 else (150, 95, 45)
    for _ in range(int(random.integers(8, 30))):
        x, foot = random.uniform(0, SIZE), random.uniform(horizon, SIZE)
        tall, wide = random.uniform(25, 90), random.uniform(8, 25)
        pen.rectangle((x - 2, foot - tall / 2, x + 2, foot), fill=shade(random, 80, 60, 45, 15))
        box = (x - wide, foot - tall, x + wide, foot - tall / 3)
        if random.random() < 0.5:
            pen.ellipse(box, fill=shade(random, *leaf))
        else:
            pen.polygon([(box[0], box[3]), (x, box[1]), (box[2], box[3])], fill=shade(random, *leaf))


def mountain(pen: ImageDraw.ImageDraw, random: np.random.Generator, horizon: int) -> None:
    for far in (0, 25, 45)[: int(random.integers(2, 4))]:
        colour = mix(shade(random, 110, 110, 125), shade(random, 90, 85, 70), far / 45)
        pen.polygon(ridge(random, horizon + far - 20, 22), fill=colour)
    for _ in range(int(random.integers(0, 3))):
        x, y, wide = random.uniform(20, 130), random.uniform(20, horizon), random.uniform(8, 25)
        pen.polygon(
            [(x - wide, y + wide), (x, y), (x + wide, y + wide)], fill=shade(random, 225, 225, 230, 15)
        )
    ground(pen, random, int(random.uniform(115, 145)), shade(random, 85, 100, 60))


def glacier(pen: ImageDraw.ImageDraw, random: np.random.Generator, horizon: int) -> None:
    pen.polygon(ridge(random, horizon - 15, 18), fill=shade(random, 120, 120, 130))
    pen.polygon(ridge(random, horizon + 10, 12), fill=shade(random, 210, 220, 230, 15))
    for _ in range(int(random.integers(5, 15))):
        x, y = random.uniform(0, SIZE), random.uniform(horizon, SIZE)
        wide, tall = random.uniform(10, 35), random.uniform(5, 25)
        corners = [(x, y), (x + wide / 2, y - tall), (x + wide, y), (x + wide / 2, y + tall / 2)]
        pen.polygon(corners, fill=shade(random, 180, 210, 230, 20))
    if random.random() < 0.5:
        ground(pen, random, int(random.uniform(110, 140)), shade(random, 70, 105, 130))


def sea(pen: ImageDraw.ImageDraw, random: np.random.Generator, horizon: int) -> None:
    ground(pen, random, horizon, shade(random, 60, 105, 140))
    for _ in range(int(random.integers(5, 30))):
        x, y = random.uniform(0, SIZE), random.uniform(horizon, SIZE)
        pen.line((x, y, x + random.uniform(5, 40), y), fill=shade(random, 200, 215, 220, 20))
    if random.random() < 0.4:
        pen.polygon(ridge(random, int(random.uniform(120, 145)), 5), fill=shade(random, 200, 180, 140))
    if random.random() < 0.3:
        x = random.uniform(20, 120)
        pen.polygon(
            [(x - 12, horizon + 4), (x, horizon - 18), (x + 12, horizon + 4)],
            fill=shade(random, 230, 230, 230),
        )


CLASSES: dict[str, Callable[[ImageDraw.ImageDraw, np.random.Generator, int], None]] = {
    "buildings": buildings,
    "forest": forest,
    "glacier": glacier,
    "mountain": mountain,
    "sea": sea,
    "street": street,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw pictures of six classes into a folder.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=1200, help="pictures in all (default: 1200)")
    args = parser.parse_args()
    draw_all(args.folder, args.count)


if __name__ == "__main__":
    main()
