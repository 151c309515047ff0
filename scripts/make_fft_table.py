"""Write devkernels/data/fft_table.json: what libmathdx supports, so that machines without it know the traits too.

Needs the aot, cu12 or cu13 extra; no GPU. `tests/aot/test_fft_table.py` compares the stored table with the library.

Only what cannot be computed is stored. For each target, precision and real mode: size -> one entry per tuned
(elements_per_thread, suggested ffts_per_block, shared bytes of one FFT or pair), the default first. Targets that
agree share one table. Everything else follows from these numbers (devkernels/traits.py).
"""

from __future__ import annotations

import json
import pathlib

from devkernels import libmathdx
from devkernels.libmathdx import Description

TARGETS = (75, 80, 86, 87, 89, 90, 100, 103, 120, 121)
PRECISIONS = ("float16", "float32", "float64")
LARGEST = 66000  # no target holds a longer transform in one block


def describe(size: int, precision: str, sm: int, mode: str, execution: str = "Block", **more) -> Description:
    """The c2c forward function, or for folded mode the r2c one: the others have the same traits."""
    if mode == "folded":
        return Description(
            size, precision, "r2c", "forward", execution, sm, layout="packed", real_mode="folded", **more
        )
    return Description(size, precision, "c2c", "forward", execution, sm, **more)


def entries(size: int, precision: str, sm: int, mode: str) -> list[list[int]]:
    """All tuned variants of one size, the default first."""
    default = libmathdx.traits(describe(size, precision, sm, mode))
    per_thread_values = sorted({per_thread for per_thread, _ in libmathdx.knobs(describe(size, precision, sm, mode))})
    assert default["elements_per_thread"] in per_thread_values, (size, precision, sm, mode)
    variants = [default] + [
        libmathdx.traits(describe(size, precision, sm, mode, elements_per_thread=value))
        for value in per_thread_values
        if value != default["elements_per_thread"]
    ]
    found = []
    for t in variants:
        groups = t["ffts_per_block"] // t["implicit_type_batching"]
        assert t["shared_memory_size"] % groups == 0
        found.append([t["elements_per_thread"], t["suggested_ffts_per_block"], t["shared_memory_size"] // groups])
    return found


def table(sm: int) -> dict:
    """Everything for one target."""
    out: dict = {}
    for precision in PRECISIONS:
        normal = [n for n in range(2, LARGEST) if libmathdx.is_supported(describe(n, precision, sm, "normal"))]
        # Block transforms in folded mode exist for powers of two alone, whatever the library answers.
        folded = [1 << k for k in range(2, 17) if libmathdx.is_supported(describe(1 << k, precision, sm, "folded"))]
        out[precision] = {
            "normal": {str(n): entries(n, precision, sm, "normal") for n in normal},
            "folded": {str(n): entries(n, precision, sm, "folded") for n in folded},
            "thread": max(
                n for n in range(2, 200) if libmathdx.is_supported(describe(n, precision, sm, "normal", "Thread"))
            ),
        }
    return out


def main() -> None:
    """Write the file."""
    tables, names = {}, {}
    for sm in TARGETS:
        found = table(sm)
        same = next((name for name, known in tables.items() if known == found), None)
        names[str(sm)] = same or f"sm_{sm}"
        if same is None:
            tables[names[str(sm)]] = found
        print(sm, names[str(sm)], {p: len(found[p]["normal"]) for p in PRECISIONS}, flush=True)
    version = ".".join(map(str, libmathdx.version()))
    path = pathlib.Path(__file__).parent.parent / "devkernels" / "data" / "fft_table.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        json.dumps({"libmathdx": version, "targets": names, "tables": tables}, separators=(",", ":")) + "\n"
    )


if __name__ == "__main__":
    main()
