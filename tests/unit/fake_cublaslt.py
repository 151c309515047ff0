"""A cuBLASLt that runs on the CPU: it reads descriptors as the library does and multiplies in NumPy, column-major.

It knows nothing of devkernels.linear: what it computes follows from the attributes and pointers that it is given, by
the description of cublasLtMatmul in the cuBLAS documentation.
"""

from __future__ import annotations

import ctypes
import enum
import itertools

import numpy as np

_DTYPE = {2: np.float16, 0: np.float32, 1: np.float64, 4: np.complex64, 5: np.complex128}
_SIZES = {
    "desc": {2: 4, 3: 4, 4: 4, 7: 4, 8: 8, 10: 8, 11: 8, 12: 8, 13: 8, 17: 8, 18: 8, 20: 8},
    "layout": {1: 4, 5: 4, 6: 8},
    "pref": {1: 8, 3: 4, 5: 4, 6: 4, 7: 4, 8: 4},
}


class cuBLASLtError(Exception):
    pass


class FakeCublasLt:
    """Stands in for nvmath.bindings.cublasLt. `refuse` are epilogs that it has no algorithm for."""

    cuBLASLtError = cuBLASLtError
    MatmulTile = enum.IntEnum("MatmulTile", {"TILE_UNDEFINED": 0, "TILE_64x64": 15, "TILE_64x256": 19,
                                             "TILE_128x128": 20, "TILE_128x256": 23})  # fmt: skip
    matmul_heuristic_result_dtype = np.dtype(
        [("algo", [("data_", "<u8", (8,))]), ("workspace_size", "<u8"), ("state", "<i4"), ("waves_count", "<f4"),
         ("reserved", "<i4", (4,))]
    )  # fmt: skip

    def __init__(self, refuse=(), workspace=0):
        self.objects, self.numbers = {}, itertools.count(1000)
        self.refuse, self.workspace = set(refuse), workspace
        self.calls, self.writes, self.used_workspaces, self.destroyed, self.algorithms = 0, [], [], 0, []

    def _new(self, kind, **values):
        number = next(self.numbers)
        self.objects[number] = {"kind": kind, **values}
        return number

    def _set(self, handle, attribute, address, size):
        thing = self.objects[handle]
        assert _SIZES[thing["kind"]][attribute] == size
        thing[attribute] = int.from_bytes(ctypes.string_at(address, size), "little")
        self.writes.append((thing["kind"], attribute))

    matmul_desc_set_attribute = matrix_layout_set_attribute = matmul_preference_set_attribute = _set

    def get_version(self):
        return 130000

    def create(self):
        return 1

    def matmul_desc_create(self, compute, scale):
        return self._new("desc", compute=compute, scale=scale)

    def matrix_layout_create(self, kind, rows, columns, ld):
        return self._new("layout", type=kind, rows=rows, cols=columns, ld=ld)

    def matmul_preference_create(self):
        return self._new("pref")

    def _destroy(self, handle):
        del self.objects[handle]
        self.destroyed += 1

    matmul_desc_destroy = matrix_layout_destroy = matmul_preference_destroy = _destroy

    def matmul_algo_get_heuristic(self, handle, desc, a, b, c, d, preference, limit, results, count):
        told = self.objects[desc]
        epilog = told.get(7, 1)
        one_sided = (epilog == 256 and told.get(3, 0) == 1) or (epilog == 512 and told.get(4, 0) == 0)
        if one_sided or epilog in self.refuse:  # as the library on an H200: BGRADA wants op N for A, BGRADB op T for B
            raise cuBLASLtError("CUBLAS_STATUS_NOT_SUPPORTED")
        found = np.zeros(limit, self.matmul_heuristic_result_dtype)
        found["algo"]["data_"][:, 0] = np.arange(limit) + 1
        found["workspace_size"] = self.workspace
        ctypes.memmove(results, found.ctypes.data, found.nbytes)
        ctypes.c_int32.from_address(count).value = limit

    def matmul_algo_check(self, handle, desc, a, b, c, d, algorithm, result):
        one = np.zeros(1, self.matmul_heuristic_result_dtype)
        one["workspace_size"] = self.workspace
        ctypes.memmove(result, one.ctypes.data, one.nbytes)

    def matmul_algo_cap_get_attribute(self, algorithm, attribute, buffer, size, written):
        values = {6: (15, 19, 20, 23), 7: (1,)}[attribute]  # tiles; the largest custom option
        values = (ctypes.c_uint32 * len(values))(*values)
        assert size >= ctypes.sizeof(values)
        ctypes.memmove(buffer, values, ctypes.sizeof(values))
        ctypes.c_size_t.from_address(written).value = ctypes.sizeof(values)

    def matmul_algo_config_get_attribute(self, algorithm, attribute, buffer, size, written):
        assert size == {1: 4, 4: 4, 5: 4}[attribute]
        ctypes.memmove(buffer, algorithm + 8 + 4 * attribute, size)
        ctypes.c_size_t.from_address(written).value = size

    def matmul_algo_config_set_attribute(self, algorithm, attribute, buffer, size):
        assert size == {1: 4, 4: 4, 5: 4, 8: 2}[attribute]
        value = int.from_bytes(ctypes.string_at(buffer, size), "little")
        if (attribute, value) == (8, 8):
            raise cuBLASLtError("CUBLAS_STATUS_INVALID_VALUE")
        ctypes.c_uint32.from_address(algorithm + 8 + 4 * attribute).value = value

    # ------------------------------------------------------------ the product

    def _array(self, pointer, layout, index, transpose=False):
        """Matrix `index` of a strided batch, as a view of memory; column-major unless the layout says order 1 (ROW)."""
        one = self.objects[layout]
        dtype = np.dtype(_DTYPE[one["type"]])
        rows, columns, ld = one["rows"], one["cols"], one["ld"]
        if one.get(1, 0) == 1:
            rows, columns, transpose = columns, rows, not transpose
        assert ld >= rows
        start = pointer + index * one.get(6, 0) * dtype.itemsize
        raw = (ctypes.c_char * ((ld * (columns - 1) + rows) * dtype.itemsize)).from_address(start)
        flat = np.frombuffer(raw, dtype)
        view = np.lib.stride_tricks.as_strided(flat, (rows, columns), (dtype.itemsize, ld * dtype.itemsize))
        return view.T if transpose else view

    def _vector(self, pointer, count, dtype):
        raw = (ctypes.c_char * (count * np.dtype(dtype).itemsize)).from_address(pointer)
        return np.frombuffer(raw, dtype)

    def _scalar(self, pointer, kind):
        return np.frombuffer((ctypes.c_char * np.dtype(_DTYPE[kind]).itemsize).from_address(pointer), _DTYPE[kind])[0]

    def matmul(self, handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algorithm,
               workspace, workspace_size, stream):  # fmt: skip
        self.calls += 1
        self.algorithms.append(ctypes.string_at(algorithm, 64))
        self.used_workspaces.append((stream, workspace, workspace_size))
        told = self.objects[desc]
        epilog, wide = told.get(7, 1), np.complex128 if told["scale"] in (4, 5) else np.float64
        batch = self.objects[d_layout].get(5, 1)
        for index in range(batch):
            left = self._array(a, a_layout, index, told.get(3, 0)).astype(wide)
            right = self._array(b, b_layout, index, told.get(4, 0)).astype(wide)
            z = self._scalar(alpha, told["scale"]) * (left @ right)
            factor = self._scalar(beta, told["scale"])
            if factor != 0:
                z = z + factor * self._array(c, c_layout, index).astype(wide)
            target = self._array(d, d_layout, index)
            m, n = target.shape
            assert left.shape[0] == m
            assert right.shape[1] == n
            z = self._epilog(epilog, z, told, index, left, right, target.dtype)
            target[...] = z

    def _aux(self, told, index, n, dtype):
        ld = told[12]
        if dtype is np.uint8:
            start = told[11] + index * told.get(13, 0) // 8
            return self._vector(start, ld // 8 * n, np.uint8).reshape(n, ld // 8)
        start = told[11] + index * told.get(13, 0) * np.dtype(dtype).itemsize
        return self._vector(start, ld * n, dtype).reshape(n, ld)

    def _epilog(self, epilog, z, told, index, left, right, dtype):
        m, n = z.shape
        item = np.dtype(dtype).itemsize
        gelu_scale = np.sqrt(2 / np.pi)
        if epilog & 4:
            bias = self._vector(told[8] + index * told.get(10, 0) * item, m, dtype)
            z = z + bias[:, None]
        if epilog & 2:
            if epilog & 128:
                bits = np.zeros((n, told[12]), np.uint8)
                bits[:, :m] = ~(z.T < 0)
                self._aux(told, index, n, np.uint8)[...] = np.packbits(bits, axis=1, bitorder="little")
            z = np.maximum(z, 0)
        if epilog & 32:
            if epilog & 128:
                self._aux(told, index, n, dtype)[:, :m] = z.T
            z = 0.5 * z * (1 + np.tanh(gelu_scale * (z + 0.044715 * z**3)))
        if epilog & 8:
            bits = np.unpackbits(self._aux(told, index, n, np.uint8), axis=1, bitorder="little")[:, :m]
            z = z * bits.T
        if epilog & 64:
            x = self._aux(told, index, n, dtype)[:, :m].T.astype(np.float64)
            t = np.tanh(gelu_scale * (x + 0.044715 * x**3))
            z = z * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * gelu_scale * (1 + 3 * 0.044715 * x * x))
        side = told[8] + index * told.get(10, 0) * item if 8 in told else 0
        if epilog & 16:
            self._vector(side, m, dtype)[...] = z.sum(1)
        if epilog & 256:
            self._vector(side, m, dtype)[...] = left.sum(1)
        if epilog & 512:
            self._vector(side, n, dtype)[...] = right.sum(0)
        return z
