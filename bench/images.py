"""Images that were built elsewhere, run here: ``python bench/images.py FOLDER [--results FOLDER]``.

in: a folder of images of bench/_image_factory.py, built on a machine without a GPU. out: bench/results/images.json, a
row for each image: error against NumPy in complex128, resource use as the image and as the driver says, what it was
built with; and a row for each ready function that finds its kernels there. The compiler's packages are kept from being
imported while it runs, and compiling is forbidden.
"""

from __future__ import annotations

import argparse
import os
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


def ready(cp) -> dict[str, tuple]:
    """Calls of ready functions: (result, what NumPy says in double precision, bound of the error)."""
    import numpy as np

    import devkernels
    from bench._image_factory import CONVOLVED, FILTERED, PRODUCT
    from devkernels.tolerance import fft_bound, product_bound

    rng = np.random.default_rng()

    def real(*shape, dtype=np.float32):
        return rng.standard_normal(shape).astype(dtype)

    x, one = (real(*shape).view(np.complex64) for shape in ((ROWS, 2 * FILTERED[0]), (2 * FILTERED[0],)))
    each = real(ROWS, 2 * FILTERED[0]).view(np.complex64)
    f = devkernels.make_spectral_filter(*FILTERED)
    found = {
        name: (f(cp.asarray(x), cp.asarray(h)), np.fft.ifft(np.fft.fft(x.astype(complex)) * h),
               fft_bound("float32", FILTERED[0], 2))
        for name, h in {"filter": one, "filter, real": real(FILTERED[0]), "filter, one for each row": each}.items()
    }  # fmt: skip
    length, taps = CONVOLVED[:2]
    rows, h = real(2, 3, length), real(3, taps)
    want = [[np.convolve(rows[b, c].astype(float), h[c])[:length] for c in range(3)] for b in range(2)]
    convolve = devkernels.make_fftconvolve(*CONVOLVED)
    found["causal convolution"] = (convolve(cp.asarray(rows), cp.asarray(h)), np.array(want),
                                   fft_bound("float32", 2 * length, 2))  # fmt: skip
    a, b, bias = (real(*shape, dtype=np.float16) for shape in ((256, 512), (512, 384), (384,)))
    sums = a.astype(float) @ b.astype(float) + bias
    product = devkernels.make_gemm(**PRODUCT)(cp.asarray(a), cp.asarray(b), extra=(cp.asarray(bias),))
    found["product"] = (product, sums / (1 + np.exp(-sums)), product_bound("float32", "float16", 512))
    return found


def check_ready(folder: pathlib.Path) -> dict[str, dict]:
    """Rows of the ready functions that find their kernels in a folder."""
    import cupy as cp

    import devkernels
    from devkernels import cache
    from devkernels.tolerance import relative_error

    images, rows = devkernels.use_images(folder), {}
    for name, (got, want, bound) in ready(cp).items():
        error = relative_error(cp.asnumpy(got), want)
        rows[name] = {"error": error, "bound": bound, "images": images, "builds": cache.counts()["builds"],
                      "blocked": sorted(BLOCKED)}  # fmt: skip
        if not (error <= bound and rows[name]["builds"] == 0):
            rows[name]["failed"] = f"error {error}, {rows[name]['builds']} builds"
    return rows


def main() -> int:
    """Check all images of the folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--results", type=pathlib.Path)
    parser.add_argument("--commit", help="commit to write into the rows where there is no git")
    options = parser.parse_args()
    sys.meta_path.insert(0, Blocker())
    os.environ["DEVKERNELS_DISABLE_JIT"] = "1"
    from bench import result_files
    from bench.surroundings import environment

    surroundings, rows = environment(options.commit), []
    paths = sorted(options.folder.glob("convolution_*.dkimage"))
    for name, checked in [*((path.name, lambda path=path: {"": check(path)}) for path in paths),
                          ("ready", lambda: check_ready(options.folder))]:  # fmt: skip
        try:
            found = checked()
        except Exception as error:  # noqa: BLE001 - one image that fails must not end the others
            found = {"": {"failed": f"{type(error).__name__}: {error}"}}
        for call, told in found.items():
            case = {"image": f"{options.folder.name}/{call or name}"}
            rows.append({"case": case, "contender": "image", **surroundings, **told})
            print(case["image"], told.get("error"), told.get("failed", "fine"), flush=True)
    assert not any(name in sys.modules for name in BLOCKED)
    print(result_files.merge_rows("images", rows, options.results or result_files.RESULTS))
    return 1 if any("failed" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
