"""What README.md and docs/*.md show is run.

Each ```python block is a program of its own, run in a new process: in the simulator, or where the line before the
block says ``<!-- home: aot -->``, ahead of time for sm_90. ``<!-- home: gpu -->`` runs where there is a GPU, and is
compiled elsewhere.
"""

import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys

import pytest

from devkernels.target import home

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"(?:<!-- home: (\w+) -->\n)?```python\n(.*?)```", re.DOTALL)
TARGETS = {"sim": "sim", "aot": "sm_90", "gpu": "gpu"}


def snippets():
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = page.read_text() if page.exists() else ""
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start(2)) + 1
            where = match[1] or "sim"
            yield pytest.param(where, match[2], id=f"{page.relative_to(ROOT)}:{line}-{where}")


def _has_libmathdx():
    for name in ("nvidia-libmathdx-cu12", "nvidia-libmathdx-cu13"):
        try:
            return bool(importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            continue
    return False


@pytest.mark.parametrize(("where", "source"), list(snippets()))
def test_snippet_runs(where, source, tmp_path):
    compile(source, "snippet", "exec")
    if where == "gpu" and home().kind != "gpu":
        return  # compiled above; running it needs a GPU
    if where == "aot" and not _has_libmathdx():
        pytest.skip("the aot extra is not installed")
    path = tmp_path / "snippet.py"
    path.write_text(source)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_ENABLE")}
    variables = {**kept, "DEVKERNELS_TARGET": TARGETS[where], "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
    done = subprocess.run([sys.executable, path], env=variables, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_homes_of_snippets_are_known():
    assert {parameters.values[0] for parameters in snippets()} <= set(TARGETS)


def test_links_between_pages_lead_somewhere():
    link = re.compile(r"\]\((?!https?:)([^)#]+)")
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]:
        prose = re.sub(r"```.*?```|``.*?``|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
        for target in link.findall(prose):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
