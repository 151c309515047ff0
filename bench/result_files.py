"""Results as files: bench/results/NAME.json, one row for each case and contender.

in: rows (plain dicts with `case` and `gpu`). out: the file, in which they replace older rows of the same case.
"""

from __future__ import annotations

import json
import os
import pathlib
import tempfile
from collections.abc import Sequence

RESULTS = pathlib.Path(__file__).parent / "results"


def results_path(name: str, folder: pathlib.Path = RESULTS) -> pathlib.Path:
    return folder / f"{name}.json"


def load_rows(name: str, folder: pathlib.Path = RESULTS) -> list[dict[str, object]]:
    """Rows measured so far; an empty list where there are none."""
    path = results_path(name, folder)
    return json.loads(path.read_text())["rows"] if path.exists() else []


def _key(row: dict[str, object]) -> str:
    return json.dumps([row["case"], row["gpu"]], sort_keys=True)


def merge_rows(name: str, new: Sequence[dict[str, object]], folder: pathlib.Path = RESULTS) -> pathlib.Path:
    """Put `new` rows into the file: they replace the rows of the same case and GPU, all else stays. Atomic.

    A case is replaced as a whole because its contenders are compared with each other: they belong to one run.
    """
    replaced = {_key(row) for row in new}
    rows = [row for row in load_rows(name, folder) if _key(row) not in replaced] + list(new)
    folder.mkdir(parents=True, exist_ok=True)
    path = results_path(name, folder)
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{name}-", suffix=".json")
    with os.fdopen(handle, "w") as file:
        json.dump({"benchmark": name, "rows": rows}, file, indent=1)
        file.write("\n")
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)
    return path
