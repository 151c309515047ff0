"""Images that were built elsewhere, run here: ``python bench/images.py FOLDER... [--results FOLDER]``.

in: folders of images of bench/_image_factory.py, built on a machine without a GPU. out: bench/results/images.json, a
row for each image: error against NumPy in complex128, resource use as the image and as the driver says, what it was
built with. The compiler's packages are kept from being imported while it runs.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

BLOCKED = {"numba", "numba_cuda", "llvmlite", "nvmath", "libmathdx"}
ROWS = 1001


class Blocker:
    """Refuses the imports that a program with images must not need."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ImportError(f"{name} is blocked")


def check(path: pathlib.Path) -> dict[str, object]:
    """Load one image, run it on random data, compare."""
    import cupy as cp
    import numpy as np

    import devkernels
    from devkernels.launch import driver
    from devkernels.tolerance import fft_bound, relative_error

    kernel = devkernels.load_image(path)
    image = kernel.image
    notes, rng = image.notes, np.random.default_rng()
    size = notes["size"]
    x, h = (
        (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(np.complex64)
        for shape in ((ROWS, size), (size,))
    )
    y = cp.full((ROWS, size), np.nan, np.complex64)
    grid = -(-ROWS // notes["rows_per_block"])
    kernel[grid, notes["block"], None, notes["shared"]](cp.asarray(x), cp.asarray(h), y)
    want = size * np.fft.ifft(np.fft.fft(x.astype(np.complex128)) * h)
    function = driver.Function(image.cubin, image.symbol, driver.current_device())
    row = {
        "error": relative_error(cp.asnumpy(y), want),
        "bound": fft_bound("float32", size, 2),
        "image_says": [image.registers, image.local_bytes, image.shared_bytes],
        "driver_says": [function.registers, function.local_bytes, function.static_shared_bytes],
        "bytes": path.stat().st_size,
        "built_with": {name: version for name, version in image.versions.items() if version},
        "blocked": sorted(BLOCKED),
    }
    if not row["error"] <= row["bound"]:
        row["failed"] = f"error {row['error']}"
    return row


def main() -> int:
    """Check all images of the folders."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=pathlib.Path)
    parser.add_argument("--results", type=pathlib.Path)
    parser.add_argument("--commit", help="commit to write into the rows where there is no git")
    options = parser.parse_args()
    sys.meta_path.insert(0, Blocker())
    from bench import harness

    surroundings, rows = harness.environment(options.commit), []
    for folder in options.folders:
        for path in sorted(folder.glob("*.dkimage")):
            row = {"case": {"image": f"{folder.name}/{path.name}"}, "contender": "image", **surroundings}
            try:
                row |= check(path)
            except Exception as error:  # noqa: BLE001 - one image that fails must not end the others
                row["failed"] = f"{type(error).__name__}: {error}"
            rows.append(row)
            print(row["case"]["image"], row.get("error"), row.get("failed", "fine"), flush=True)
    assert not any(name in sys.modules for name in BLOCKED)
    print(harness.merge_rows("images", rows, options.results or harness.RESULTS))
    return 1 if any("failed" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
