"""Tables and plots from bench/results: ``python bench/report.py [--check] [--no-plots]``.

in: bench/results/<name>.json and the `TABLES` of bench/<name>.py. out: the text between ``<!-- bench:NAME -->`` and
``<!-- /bench:NAME -->`` in README.md and docs/*.md, and bench/results/<name>.png. ``bench:NAME:KEY`` asks for the
table KEY of a benchmark that has several. With ``--check`` nothing is written; exit code 1 says a table is stale.
"""

from __future__ import annotations

import argparse
import importlib
import pathlib
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from bench import result_files  # noqa: E402 - the checkout comes first on the path

_MARKED = re.compile(r"(<!-- bench:([\w:]+) -->\n).*?(<!-- /bench:\2 -->)", re.DOTALL)


def _median(key: str) -> Callable[[dict], float | None]:
    return lambda row: row[key]["p50"] if key in row else None


def _device_ms(row: dict) -> float | None:
    """Time in a replayed CUDA graph; as called where there is none (work of many milliseconds)."""
    measured = row.get("graph_ms") or row.get("ms")
    return measured["p50"] if measured else None


METRICS: dict[str, tuple[Callable[[dict], float | None], str]] = {
    "times_copy": (lambda row: row.get("times_copy"), "{:.2f}"),
    "of_copy": (lambda row: 1 / row["times_copy"] if "times_copy" in row else None, "{:.2f}"),
    "ms": (_median("ms"), "{:.4g}"),
    "seconds": (lambda row: row["ms"]["p50"] / 1e3 if "ms" in row else None, "{:.2f}"),
    "first_result_s": (lambda row: row["first_result_ms"]["p50"] / 1e3 if "first_result_ms" in row else None, "{:.2f}"),
    "graph_ms": (_median("graph_ms"), "{:.4g}"),
    "device_ms": (_device_ms, "{:.4g}"),
    "device_tflops": (
        lambda row: row["tflops"] * row["ms"]["p50"] / _device_ms(row) if "tflops" in row else None,
        "{:.0f}",
    ),
    "host_us": (lambda row: row.get("host_us"), "{:.1f}"),
    "error": (lambda row: row.get("error"), "{:.1e}"),
    "tflops": (lambda row: row.get("tflops"), "{:.1f}"),
    "gb_per_s": (lambda row: row.get("gb_per_s"), "{:.0f}"),
    "plan_us": (lambda row: row.get("plan_us"), "{:.0f}"),
    "autotune_ms": (lambda row: row.get("autotune_ms"), "{:.0f}"),
}
"""Name -> how to read it from a row, and how to print it."""


@dataclass(frozen=True)
class Table:
    """One table: a line for each case, a column for each contender.

    `rows` names the case's keys that label a line, `columns` maps contenders to headings (None: all, by their own
    names), `metric` is one of `METRICS`, `where` keeps only cases with these values, `note` stands above the table.
    A contender may carry a metric of its own: "name|metric".
    """

    rows: tuple[str, ...]
    metric: str = "times_copy"
    columns: dict[str, str] | None = None
    where: dict[str, object] | None = None
    note: str = ""


def tables_of(name: str) -> dict[str, Table]:
    """The benchmark's own `TABLES`, by key; the first is the one that ``bench:NAME`` means."""
    return importlib.import_module(f"bench.{name}").TABLES


def latest(rows: list[dict]) -> list[dict]:
    """Rows of the GPU that was measured last: two GPUs do not belong in one table."""
    if not rows:
        return []
    gpu = max(rows, key=lambda row: row["date"])["gpu"]
    return [row for row in rows if row["gpu"] == gpu]


def _chosen(rows: list[dict], table: Table) -> list[dict]:
    where = table.where or {}
    return [row for row in latest(rows) if all(row["case"].get(key) == value for key, value in where.items())]


def _columns(rows: list[dict], table: Table) -> dict[str, str]:
    if table.columns is not None:
        return table.columns
    return {name: name for name in dict.fromkeys(row["contender"] for row in rows) if name != "(set-up)"}


def _label(case: dict, table: Table) -> tuple:
    return tuple(case.get(key) for key in table.rows)


def _order(label: tuple) -> tuple:
    return tuple((isinstance(part, str), part if isinstance(part, (int, float, str)) else str(part)) for part in label)


def _span(values: list[str]) -> str:
    values = sorted(set(values))
    return values[0] if len(values) == 1 else f"{values[0]} to {values[-1]}"


def markdown(rows: list[dict], table: Table) -> str:
    """The table as Markdown, with a line that says where, when and on what it was measured."""
    rows = _chosen(rows, table)
    if not rows:
        return "(not measured yet)\n"
    columns = _columns(rows, table)
    cells: dict[tuple, dict[str, str]] = {}
    for row in rows:
        line = cells.setdefault(_label(row["case"], table), {})
        for column in columns:
            contender, _, metric = column.partition("|")
            if contender == row["contender"]:
                read, form = METRICS[metric or table.metric]
                value = read(row)
                line[column] = "failed" if "failed" in row else "-" if value is None else form.format(value)
    text = [table.note + "\n"] if table.note else []
    text.append("| " + " | ".join([*table.rows, *columns.values()]) + " |")
    text.append("|" + "---|" * (len(table.rows) + len(columns)))
    for label in sorted(cells, key=_order):
        text.append("| " + " | ".join([*map(str, label), *(cells[label].get(name, "-") for name in columns)]) + " |")
    versions = rows[-1]["versions"]
    named = ", ".join(
        f"{name} {versions[name]}"
        for name in ("cuda runtime", "nvmath-python", "cupy-cuda12x", "cupy-cuda13x", "torch", "numba-cuda")
        if name in versions
    )
    text.append(
        f"\n{rows[-1]['gpu']}, driver {_span([row['driver'] for row in rows])}; {named}; "
        f"{_span([row['date'][:10] for row in rows])}, commit {_span([row['commit'] for row in rows])}."
    )
    return "\n".join(text) + "\n"


def fill(text: str, folder: pathlib.Path = result_files.RESULTS) -> str:
    """`text` with all its marked tables made anew; where nothing has been measured, as it is."""

    def replace(match: re.Match[str]) -> str:
        name, _, key = match[2].partition(":")
        tables = tables_of(name)
        table = tables[key] if key else next(iter(tables.values()))
        rows = result_files.load_rows(name, folder)
        return match[1] + markdown(rows, table) + match[3] if rows else match[0]

    return _MARKED.sub(replace, text)


def plot(name: str, table: Table, path: pathlib.Path, folder: pathlib.Path = result_files.RESULTS) -> bool:
    """One line for each contender over the first key of the table. False where nothing was measured."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = _chosen(result_files.load_rows(name, folder), table)
    if not rows:
        return False
    read, _ = METRICS[table.metric]
    labels = sorted({_label(row["case"], table) for row in rows}, key=_order)
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for contender, heading in _columns(rows, table).items():
        points = {}
        for row in rows:
            value = read(row) if row["contender"] == contender and "failed" not in row else None
            if value is not None:
                points[labels.index(_label(row["case"], table))] = value
        if points:
            axes.plot(sorted(points), [points[place] for place in sorted(points)], marker="o", label=heading)
    axes.set_xticks(range(len(labels)), ["\n".join(map(str, label)) for label in labels], fontsize=8)
    axes.set_xlabel(", ".join(table.rows))
    axes.set_ylabel(table.metric)
    axes.set_ylim(bottom=0)
    axes.set_title(f"{name} on {rows[-1]['gpu']}, {rows[-1]['date'][:10]}", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True


def pages() -> list[pathlib.Path]:
    """Files that may hold marked tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench/report.py", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a table is stale")
    parser.add_argument("--no-plots", action="store_true", help="tables only (needs no matplotlib)")
    options = parser.parse_args(arguments)
    stale = []
    for page in pages():
        if not page.exists():
            continue
        old = page.read_text()
        new = fill(old)
        if new != old:
            stale.append(page.relative_to(ROOT))
            if not options.check:
                page.write_text(new)
    print(
        "tables up to date" if not stale else f"{'stale' if options.check else 'wrote'}: {', '.join(map(str, stale))}"
    )
    if not options.check and not options.no_plots:
        for results in sorted(result_files.RESULTS.glob("*.json")):
            if (ROOT / "bench" / f"{results.stem}.py").exists():
                table = next(
                    iter(getattr(importlib.import_module(f"bench.{results.stem}"), "TABLES", {}).values()), None
                )
                if table is not None and plot(results.stem, table, results.with_suffix(".png")):
                    print(f"wrote {results.with_suffix('.png').relative_to(ROOT)}")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
