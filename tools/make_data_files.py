"""Make src/paceline/data/files/*.npz from the original files.

    python tools/make_data_files.py MNIST_FOLDER OUTPUT_FOLDER

MNIST_FOLDER holds the four IDX files, unpacked. iris and digits are taken from the installed scikit-learn.
Prints the SHA-256 of each data set's arrays. The same input gives the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import sys
import zipfile
from pathlib import Path

import numpy as np


def idx(path: Path) -> np.ndarray:
    raw = path.read_bytes()
    dimensions = raw[3]
    shape = np.frombuffer(raw, ">i4", dimensions, offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def mnist(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """The 60,000 training images, then the 10,000 test images."""
    images = [idx(folder / f"{part}-images-idx3-ubyte") for part in ("train", "t10k")]
    labels = [idx(folder / f"{part}-labels-idx1-ubyte") for part in ("train", "t10k")]
    return np.concatenate(images), np.concatenate(labels)


def iris() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_iris

    inputs, labels = load_iris(return_X_y=True)
    return inputs, labels.astype(np.uint8)


def digits() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    data = load_digits()
    return data.images.astype(np.uint8), data.target.astype(np.uint8)


def write(path: Path, inputs: np.ndarray, labels: np.ndarray) -> None:
    """An .npz without the time of day in it, packed as tightly as zip can."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in (("inputs", inputs), ("labels", labels)):
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, np.ascontiguousarray(array), allow_pickle=False)
            member = zipfile.ZipInfo(f"{name}.npy")
            member.compress_type = zipfile.ZIP_DEFLATED
            member.external_attr = 0o644 << 16
            archive.writestr(member, buffer.getvalue(), compresslevel=9)
    digest = hashlib.sha256(inputs.tobytes() + labels.tobytes()).hexdigest()
    print(f"{path.stem}: {inputs.shape} {inputs.dtype}, {path.stat().st_size} bytes, sha256 {digest}")


def main() -> None:
    source, output = map(Path, sys.argv[1:])
    write(output / "iris.npz", *iris())
    write(output / "digits.npz", *digits())
    write(output / "mnist.npz", *mnist(source))


if __name__ == "__main__":
    main()
