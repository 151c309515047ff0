"""Write docs/api.md: every public name with its signature and the first sentence of its docstring.

in: the sources of devkernels, which are read and not imported (torch, CuPy and a GPU are not needed). out: the page;
``--check`` only compares, and exits with 1 where the page is out of date. tests/unit/test_api_page.py does the same.
"""

from __future__ import annotations

import ast
import functools
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "api.md"

# Sections: title, module whose public names they list (None: those of `GROUPS`), and where to read on.
GROUPS = {
    "Inside kernels": ("kernels.md", ("fft", "matmul", "DeviceFFT", "DeviceMatmul", "block_fft", "tile_layout",
                       "TileLayout", "load_tile", "load_tile_async", "store_tile", "wait_tiles", "device_function",
                       "cuda")),
    "Ready kernels": ("fftconvolve.md", ("fftconvolve", "oaconvolve", "correlate", "make_fftconvolve",
                      "make_fftconvolve2d", "spectral_filter", "make_spectral_filter", "gemm", "make_gemm",
                      "make_gemm_chain")),
    "Compiling and launching": ("kernels.md", ("kernel", "compile", "KernelImage", "load_image", "use_images",
                                "Launcher", "Target", "keep_nvmath_functions", "DevkernelsError")),
}  # fmt: skip
MODULES = {
    "devkernels.fft": ("kernels.md", "devkernels/device/fft.py", ("supported_sizes", "next_supported_size")),
    "devkernels.linear": ("linear.md", "devkernels/linear/__init__.py", None),
    "devkernels.linear.torch": ("linear.md", "devkernels/linear/torch.py", None),
    "devkernels.cache": ("kernels.md#the-cache", "devkernels/cache.py", None),
    "devkernels.errors": ("kernels.md", "devkernels/errors.py", None),
    "devkernels.tolerance": (None, "devkernels/tolerance.py", None),
    "devkernels.reference": (None, "devkernels/reference.py", None),
}
_SKIPPED_BASES = {"NamedTuple"}


def page() -> str:
    """The whole text."""
    table = _assigned(_tree("devkernels/__init__.py"), "_PUBLIC")
    parts = [
        "# Public names\n\nMade by `python scripts/make_api_page.py` from the docstrings, which say more: "
        "`help(devkernels.fft)`. Names that stand on no page, and names that begin with an underscore, may change in "
        "any release.\n"
    ]
    listed = {name for _, names in GROUPS.values() for name in names}
    if listed != set(table):
        raise SystemExit(f"GROUPS and devkernels._PUBLIC differ in {sorted(listed ^ set(table))}")
    for title, (link, names) in GROUPS.items():
        parts.append(f"## {title}\n\nMore in [{link}]({link}).\n")
        parts += [_entry(f"devkernels.{name}", *_find(table[name], name)) for name in names]
    for module, (link, path, names) in MODULES.items():
        tree = _tree(path)
        first = "" if module == "devkernels.fft" else _first(ast.get_docstring(tree))
        more = f"More in [{link}]({link})." if link else ""
        parts.append("\n\n".join(filter(None, [f"## {module}", first, more])) + "\n")
        parts += [_entry(f"{module}.{name}", *_find_in(path, name)) for name in names or _public(tree)]
    return "\n".join(parts)


@functools.cache
def _tree(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


def _assigned(tree: ast.Module, name: str) -> dict | list:
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            return ast.literal_eval(node.value)
    raise KeyError(name)


def _public(tree: ast.Module) -> list[str]:
    """Names in ``__all__``, or all without an underscore that are defined here."""
    try:
        return [name for name in _assigned(tree, "__all__") if not name.startswith("_")]
    except KeyError:
        defined = (ast.FunctionDef, ast.ClassDef)
        return [node.name for node in tree.body if isinstance(node, defined) and not node.name.startswith("_")]


def _find(module: str, name: str) -> tuple[str, ast.AST]:
    path = module.replace(".", "/")
    path = f"{path}/__init__.py" if (ROOT / path).is_dir() else f"{path}.py"
    return _find_in(path, name)


def _find_in(path: str, name: str) -> tuple[str, ast.AST]:
    """The file and the definition of a name, followed through imports."""
    for node in ast.walk(_tree(path)):
        if (
            isinstance(node, (ast.FunctionDef, ast.ClassDef))
            and node.name == name
            and node in _tree(path).body
            and not _is_overload(node)
        ):
            return path, node
        if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == name for alias in node.names):
            return _find(node.module, name)
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            return path, node
    raise SystemExit(f"{path} has no {name}")


def _entry(full: str, path: str, node: ast.AST) -> str:
    if isinstance(node, ast.Assign):  # an object of a class in the same file
        made = next(one for one in _tree(path).body if getattr(one, "name", "") == node.value.func.id)
        return f"### `{full}`\n\n{_first(ast.get_docstring(made))}\n"
    lines = [f"### `{full}{_signature(node)}`", "", _first(ast.get_docstring(node)), ""]
    if isinstance(node, ast.ClassDef):
        members = [
            f"- `{one.name}{'' if _is_property(one) else _signature(one)}`: {_first(ast.get_docstring(one))}"
            for one in node.body
            if isinstance(one, ast.FunctionDef) and not one.name.startswith("_") and ast.get_docstring(one)
        ]
        lines += [*members, ""] if members else []
    return "\n".join(lines)


def _is_overload(node: ast.AST) -> bool:
    """Whether this is only what type checkers see of a function."""
    return any("overload" in (getattr(one, "id", None), getattr(one, "attr", None)) for one in node.decorator_list)


def _is_property(node: ast.FunctionDef) -> bool:
    return any("property" in ast.unparse(one) for one in node.decorator_list)


def _signature(node: ast.AST) -> str:
    """Parameters without their types."""
    if isinstance(node, ast.ClassDef):
        made = next((one for one in node.body if getattr(one, "name", "") == "__init__"), None)
        return "" if made is None or any(ast.unparse(one) in _SKIPPED_BASES for one in node.bases) else _signature(made)
    arguments = node.args
    plain = ast.arguments(
        [ast.arg(one.arg) for one in arguments.posonlyargs],
        [ast.arg(one.arg) for one in arguments.args if one.arg not in ("self", "cls")],
        arguments.vararg and ast.arg(arguments.vararg.arg),
        [ast.arg(one.arg) for one in arguments.kwonlyargs],
        arguments.kw_defaults,
        arguments.kwarg and ast.arg(arguments.kwarg.arg),
        arguments.defaults,
    )
    return f"({ast.unparse(plain)})"


def _first(docstring: str | None) -> str:
    """The first paragraph, on one line."""
    return " ".join((docstring or "").split("\n\n")[0].split()).replace("``", "`")


def main() -> int:
    """Write or compare."""
    text = page()
    if "--check" in sys.argv[1:]:
        return int(PAGE.read_text() != text)
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
