"""One small launch of each kernel of products, and compute-sanitizer's word on them; not collected by pytest.

python tests/gpu/sanitize_gemm.py                      run the kernels and check their results
python tests/gpu/sanitize_gemm.py --check RESULT.json  the same under memcheck, racecheck and synccheck
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys

TOOLS = ("memcheck", "racecheck", "synccheck")


def cases(cp, rng):
    """(what, result, wanted) of one product for each main loop, with tails."""
    import devkernels
    from tests.matmul_cases import integers

    def draw(*shape, dtype="f2"):
        return cp.asarray(integers(rng, shape, dtype))

    half = devkernels.make_gemm("float16", out_dtype="float32", epilogue=("bias", "residual"))
    for m, n, k in ((200, 264, 200), (131, 129, 65)):  # warpgroup, and tensor cores at any alignment
        a, b, bias, residual = draw(m, k), draw(k, n), draw(n), draw(m, n)
        want = a.astype("f4") @ b.astype("f4") + bias + residual
        yield half.describe(a, b).splitlines()[-1], half(a, b, extra=(bias, residual)), want
    a, b, bias = draw(261, 301), draw(301, 259), draw(259)  # copied to aligned memory first
    plan = devkernels.make_gemm("float16", out_dtype="float32", epilogue="bias")
    yield plan.describe(a, b).splitlines()[-1], plan(a, b, extra=(bias,)), a.astype("f4") @ b.astype("f4") + bias
    for n, dtype in ((16, "f2"), (7, "f4"), (16, "f4"), (12, "c8")):  # small
        plan = devkernels.make_gemm(cp.dtype(dtype).name)
        a, b = draw(37, n, n, dtype=dtype), draw(37, n, n, dtype=dtype)
        wide = dtype if dtype == "c8" else "f4"
        yield plan.describe(a, b).splitlines()[-1], plan(a, b), (a.astype(wide) @ b.astype(wide)).astype(dtype)
    for dtype, tf32 in (("f4", 0), ("f8", 0), ("c8", 0), ("c16", 0), ("f4", 3), ("c8", 3)):  # slices copied ahead
        plan = devkernels.make_gemm(cp.dtype(dtype).name, tf32=tf32)
        a, b, c = draw(67, 37, dtype=dtype), draw(37, 141, dtype=dtype), draw(67, 141, dtype=dtype)
        yield plan.describe(a, b).splitlines()[-1], plan(a, b, c, beta=2), a @ b + 2 * c
        yield "the same, in column order", plan(cp.asfortranarray(a), cp.asfortranarray(b)), a @ b
    a, b = draw(130, 48, dtype="i1"), draw(136, 48, dtype="i1").T
    for options, kind in ((dict(dtype="int8"), "i4"), (dict(dtype="int8", accumulate="float32"), "f4")):
        plan = devkernels.make_gemm(**options)
        yield plan.describe(a, b).splitlines()[-1], plan(a, b), (a.astype("i4") @ b.astype("i4")).astype(kind)
    a, b = draw(130, 44, dtype="f4"), draw(136, 44, dtype="f4").T
    plan = devkernels.make_gemm("float32", tf32=1)
    yield plan.describe(a, b).splitlines()[-1], plan(a, b), a @ b
    a, b = draw(67, 33, dtype="i2"), draw(33, 70, dtype="i2")
    yield "portable", devkernels.gemm(a, b), a.astype("i8") @ b.astype("i8")
    a, b, c = draw(130, 40), draw(40, 100), draw(100, 70)
    chain = devkernels.make_gemm_chain("float16", out_dtype="float32")
    yield "chain", chain(a, b, c), (a.astype("f4") @ b.astype("f4")) @ c.astype("f4")
    a, b, c = draw(130, 40), draw(40, 104), draw(104, 72)
    yield "chain by warpgroups", chain(a, b, c), (a.astype("f4") @ b.astype("f4")) @ c.astype("f4")
    for dtypes in ("float16", ("float16", "float32")):
        product = devkernels.make_gemm(dtypes, out_dtype="float32", prologue_a=lambda x, row, column: x + row % 2)
        a, b = draw(67, 37), draw(37, 70, dtype="f2" if dtypes == "float16" else "f4")
        rows = cp.arange(67)[:, None] % 2
        yield product.describe(a, b).splitlines()[-1], product(a, b), (a.astype("f4") + rows) @ b.astype("f4")
    yield from _device_products(cp, draw)


def _device_products(cp, draw):
    """Kernels of a user's own: tiles and pipelines."""
    import numpy as np

    import devkernels
    from tests.pipeline_cases import HALF, pipelined_kernel
    from tests.tile_cases import LAYOUTS, copying_kernel

    for number, asynchronous in ((0, False), (1, True), (3, True), (5, False)):
        source, x = devkernels.tile_layout(dtype="f4", **LAYOUTS[number]), draw(37, 70, dtype="f4")
        sink, y = devkernels.tile_layout(source.shape, "f4", order="col_major"), cp.zeros_like(x)
        grid = -(-72 // source.columns), -(-39 // source.rows)
        copying_kernel(source, sink, asynchronous)[grid, source.block_dim or 64](x, y, 2)
        yield f"tiles, layout {number}", y, x
    for size, precision, shift in (((64, 64, 64), HALF, 0), ((64, 64, 64), HALF, 1), ((32, 32, 16), np.float32, 0)):
        mm = devkernels.matmul(size=size, precision=precision, with_pipeline=True)
        a, b = draw(130, 72 + shift, dtype=mm.a_value_type)[:, shift:], draw(72, 136, dtype=mm.b_value_type)
        pipeline, x = mm.suggest_device_pipeline(2, a, b), draw(130, 136, dtype="f4")
        y, z = cp.zeros_like(x), cp.zeros_like(x)
        grid = -(-130 // size[0]), -(-136 // size[1])
        pipelined_kernel(mm)[grid, mm.block_dim, 0, pipeline.buffer_size](pipeline, x, y, z)
        yield f"pipeline: {pipeline.describe()}", y, x + a.astype("f4") @ b.astype("f4")


def main():
    import cupy as cp
    import numpy as np

    wrong = 0
    for what, got, want in cases(cp, np.random.default_rng()):
        right = bool(cp.array_equal(got, want))
        print("right" if right else "WRONG", what, flush=True)
        wrong += not right
    return 1 if wrong else 0


def check(result):
    """Run this file under each tool; write what they found."""
    found = {}
    for tool in TOOLS:
        command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", sys.executable, __file__]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", done.stdout)
        found[tool] = {"exit": done.returncode, "summary": summary, "tail": done.stdout.splitlines()[-12:]}
        print(tool, done.returncode, summary, flush=True)
        pathlib.Path(result).write_text(json.dumps(found, indent=1))
    return max(one["exit"] for one in found.values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", metavar="RESULT.json")
    chosen = parser.parse_args()
    sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2])]
    sys.exit(check(chosen.check) if chosen.check else main())
