"""One planned cuBLASLt product: descriptors, algorithm, workspace, and a `launch` that does nothing twice.

in: a `MatmulSpec`, a device, what the pointers are aligned to, alpha and beta.  out: `LtMatmul.launch(pointers)`.

cuBLASLt is column-major. A row-major result (m, n) is the same memory as a column-major (n, m), so the transposed
product ``b.T @ a.T`` is planned: what cuBLASLt calls A is the caller's `b`, its bias runs along the caller's columns.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import weakref

from devkernels.errors import ResourceError, SpecError
from devkernels.linear import _workspace
from devkernels.linear._workspace import WORKSPACE_BYTES, bindings, library_version
from devkernels.linear.arrays import Arrays
from devkernels.linear.epilog import Epilog, gelu_aux_columns, relu_mask_bytes
from devkernels.linear.spec import Layout, MatmulSpec, is_fp8

_DUMMY = 0x100  # the heuristic wants pointers to be set; only their alignment is looked at

_COMPUTE = {"16f": 64, "32f": 68, "32f_pedantic": 69, "32f_fast_16f": 74, "32f_fast_16bf": 75, "32f_fast_tf32": 77,
            "64f": 70, "64f_pedantic": 71}  # cublasComputeType_t  # fmt: skip
_CUDA_TYPE = {"float16": 2, "bfloat16": 14, "float32": 0, "float64": 1, "complex64": 4, "complex128": 5,
              "float8_e4m3fn": 28, "float8_e5m2": 29}  # cudaDataType_t  # fmt: skip
_SCALE_CTYPE = {2: ctypes.c_uint16, 0: ctypes.c_float, 1: ctypes.c_double,
                4: ctypes.c_float * 2, 5: ctypes.c_double * 2}  # fmt: skip
# cublasLtMatmulDescAttributes_t, cublasLtMatrixLayoutAttribute_t, cublasLtMatmulPreferenceAttributes_t
_TRANSA, _TRANSB, _EPILOGUE, _BIAS_POINTER, _BIAS_BATCH = 3, 4, 7, 8, 10
_AUX_POINTER, _AUX_LD, _AUX_BATCH = 11, 12, 13
_A_SCALE, _B_SCALE, _D_SCALE = 17, 18, 20
_ORDER, _BATCH_COUNT, _BATCH_OFFSET, _ROW_ORDER = 1, 5, 6, 1
# Parts of a sum may be added up in the accumulate type (2), not in the result or its type (1 and 4): that rounds each
# part once more, and a bound by the accumulate type would not hold.
_REDUCTION_MASK, _REDUCTIONS = 3, 2
_MAX_WORKSPACE, _ALIGN_A, _ALIGN_B, _ALIGN_C, _ALIGN_D = 1, 5, 6, 7, 8


class NoAlgorithmError(SpecError):
    """The device and library have no kernel for a product with its epilog; nothing was launched."""


def _set(setter, handle: int, attribute: int, value) -> None:
    setter(handle, attribute, ctypes.addressof(value), ctypes.sizeof(value))


def _scalar(value: complex, cuda_type: int):
    """Alpha or beta in memory, as the scale type wants it."""
    kind = _SCALE_CTYPE[cuda_type]
    if cuda_type in (4, 5):
        return kind(value.real, value.imag)
    if cuda_type == 2:
        import numpy

        return kind(int(numpy.float16(value).view(numpy.uint16)))
    return kind(value)


class Descriptors:
    """Handles of one product; destroyed when neither its `LtMatmul` nor any `launch` refers to them any more."""

    __slots__ = ("__weakref__", "descriptor", "layouts")

    def __init__(self, descriptor: int):
        self.descriptor = descriptor
        self.layouts: list[int] = []
        weakref.finalize(self, _destroy, bindings(), descriptor, self.layouts).atexit = False


def _destroy(library, descriptor: int, layouts: list[int]) -> None:
    library.matmul_desc_destroy(descriptor)
    for layout in layouts:
        library.matrix_layout_destroy(layout)


class LtMatmul:
    """See the module's description. `launch` is set by `use`; threads may share one object."""

    def __init__(self, spec: MatmulSpec, epilog: Epilog, arrays: Arrays, device: int, *, alignment: int,
                 alpha: complex, beta: complex, use_c: bool):  # fmt: skip
        lt = bindings()
        self.spec, self.epilog, self.arrays, self.device, self.alignment = spec, epilog, arrays, device, alignment
        self._library_epilog = epilog.swapped()
        self._handle = _workspace.handle(arrays, device)
        compute = _COMPUTE[spec.compute_type]
        complex_ = spec.dtype.startswith("complex")
        real, complex_type = (1, 5) if spec.accumulate == "float64" else (0, 4)
        scale_type = 2 if spec.compute_type == "16f" else complex_type if complex_ else real
        self._alpha, self._beta = _scalar(alpha, scale_type), _scalar(beta, scale_type)
        # What the descriptor holds, and who may write it: shared by every `launch` that `use` makes.
        self._slot, self._lock, self._held = ctypes.c_int64(_DUMMY), threading.Lock(), [_DUMMY, _DUMMY]
        self._types = compute, scale_type
        self._descriptor = lt.matmul_desc_create(compute, scale_type)
        self._owned = Descriptors(self._descriptor)
        layouts = self._owned.layouts
        out = spec.out
        # The sum over an operand (BGRADA: of cuBLASLt's A, BGRADB: of its B) is offered for one of the two operations
        # only. Read as row-major, the same memory is the transpose, and the operation the other one.
        self._turn_b = epilog is Epilog.BGRADB and spec.b.transposed
        self._turn_a = epilog is Epilog.BGRADA and not spec.a.transposed
        self._b = self._layout(layouts, spec.b_dtype, spec.n, spec.k, spec.b, self._turn_b)
        self._a = self._layout(layouts, spec.dtype, spec.k, spec.m, spec.a, self._turn_a)
        self._d = self._layout(layouts, spec.out_dtype, spec.n, spec.m, Layout(out.ld, False, out.batch_stride))
        c = spec.c if use_c and spec.c is not None else out
        self._c = self._layout(layouts, spec.c_dtype, spec.n, spec.m, Layout(c.ld, False, c.batch_stride))
        self._describe(self._descriptor)
        self._algorithm = None
        self.workspace_bytes = 0
        self.launch = None

    def _layout(
        self, layouts: list[int], dtype: str, rows: int, columns: int, layout: Layout, turn: bool = False
    ) -> int:
        """Make a column-major layout of the transpose: a row-major matrix (columns, rows), or its transposed view.

        With `turn`, the same memory as a row-major layout of the other shape.
        """
        lt = bindings()
        if layout.transposed != turn:
            rows, columns = columns, rows
        handle = lt.matrix_layout_create(_CUDA_TYPE[dtype], rows, columns, layout.ld)
        layouts.append(handle)
        if turn:
            _set(lt.matrix_layout_set_attribute, handle, _ORDER, ctypes.c_int32(_ROW_ORDER))
        if self.spec.batch_count > 1:
            _set(lt.matrix_layout_set_attribute, handle, _BATCH_COUNT, ctypes.c_int32(self.spec.batch_count))
            _set(lt.matrix_layout_set_attribute, handle, _BATCH_OFFSET, ctypes.c_int64(layout.batch_stride))
        return handle

    def another_descriptor(self, bias: int) -> Descriptors:
        """Make a descriptor beside the plan's own, for a bias (0: none) that stays where it is."""
        owned = Descriptors(bindings().matmul_desc_create(*self._types))
        self._describe(owned.descriptor)
        if bias:
            _set(bindings().matmul_desc_set_attribute, owned.descriptor, _BIAS_POINTER, ctypes.c_int64(bias))
        return owned

    def _describe(self, descriptor: int) -> None:
        """Write everything into a descriptor that stays as it is."""
        lt, spec, epilog = bindings(), self.spec, self.epilog
        put = functools.partial(_set, lt.matmul_desc_set_attribute, descriptor)
        put(_TRANSA, ctypes.c_int32(int(spec.b.transposed != self._turn_b)))
        put(_TRANSB, ctypes.c_int32(int(spec.a.transposed != self._turn_a)))
        put(_EPILOGUE, ctypes.c_uint32(int(self._library_epilog)))
        if epilog.has_bias or epilog.gradient_output:
            put(_BIAS_POINTER, ctypes.c_int64(_DUMMY))
            if epilog.gradient_output and spec.batch_count > 1:
                put(_BIAS_BATCH, ctypes.c_int64(spec.m if epilog is Epilog.BGRADA else spec.n))
        name = epilog.aux_output or epilog.aux_input
        if name:
            ld = relu_mask_bytes(spec.n) * 8 if name == "relu_aux" else gelu_aux_columns(spec.n)
            put(_AUX_POINTER, ctypes.c_int64(_DUMMY))
            put(_AUX_LD, ctypes.c_int64(ld))
            if spec.batch_count > 1:
                put(_AUX_BATCH, ctypes.c_int64(ld * spec.m))
        if is_fp8(spec.dtype):
            for attribute, used in ((_A_SCALE, spec.scaled[1]), (_B_SCALE, spec.scaled[0]), (_D_SCALE, spec.scaled[2])):
                if used:
                    put(attribute, ctypes.c_int64(_DUMMY))

    def candidates(self, limit: int = 1):
        """Algorithms in the order of cuBLASLt's heuristic, best first: a structured array with `algo`.

        Raises
        ------
        NoAlgorithmError
            cuBLASLt has none for this product.
        """
        import numpy

        lt = bindings()
        preference = lt.matmul_preference_create()
        try:
            put = functools.partial(_set, lt.matmul_preference_set_attribute, preference)
            put(_MAX_WORKSPACE, ctypes.c_uint64(WORKSPACE_BYTES))
            put(_REDUCTION_MASK, ctypes.c_uint32(_REDUCTIONS))
            for attribute in (_ALIGN_A, _ALIGN_B, _ALIGN_C, _ALIGN_D):
                put(attribute, ctypes.c_uint32(self.alignment))
            found = numpy.zeros(limit, lt.matmul_heuristic_result_dtype)
            count = ctypes.c_int32(0)
            try:
                with self.arrays.on(self.device):
                    lt.matmul_algo_get_heuristic(
                        self._handle, self._descriptor, self._b, self._a, self._c, self._d, preference, limit,
                        found.ctypes.data, ctypes.addressof(count),
                    )  # fmt: skip
            except lt.cuBLASLtError as error:
                raise NoAlgorithmError(self._refusal(str(error)), spec=self.spec) from error
        finally:
            lt.matmul_preference_destroy(preference)
        found = found[: count.value]
        found = found[found["state"] == 0]
        if len(found) == 0:
            raise NoAlgorithmError(self._refusal("no algorithm"), spec=self.spec)
        return found

    def _refusal(self, reason: str) -> str:
        return (
            f"cuBLASLt {library_version()} on device {self.device} cannot do {self.spec} ({reason}). Possible: the "
            f"epilog DEFAULT with the rest written out, which fused_matmul and allow_unfused=True do; or another dtype "
            f"or layout of the operands."
        )

    def accepts(self, algorithm: bytes) -> int | None:
        """Bytes of workspace that a stored algorithm needs here, or None if this library does not take it."""
        import numpy

        lt = bindings()
        result = numpy.zeros(1, lt.matmul_heuristic_result_dtype)
        buffer = ctypes.create_string_buffer(algorithm, len(algorithm))
        try:
            lt.matmul_algo_check(
                self._handle, self._descriptor, self._b, self._a, self._c, self._d, ctypes.addressof(buffer),
                result.ctypes.data,
            )  # fmt: skip
        except lt.cuBLASLtError:
            return None
        need = int(result["workspace_size"][0])
        return need if result["state"][0] == 0 and need <= WORKSPACE_BYTES else None

    def use(self, algorithm: bytes, workspace_bytes: int) -> None:
        """Choose the algorithm and build `launch` for it."""
        self._algorithm = ctypes.create_string_buffer(algorithm, len(algorithm))
        self.workspace_bytes = workspace_bytes
        self.launch = self._make_launch()

    @property
    def algorithm(self) -> bytes:
        """The algorithm in use, as the bytes of cublasLtMatmulAlgo_t."""
        return self._algorithm.raw

    def set_scales(self, a: int, b: int, out: int) -> None:
        """Device pointers of float32 scales (0: none) of 8-bit operands."""
        put = functools.partial(_set, bindings().matmul_desc_set_attribute, self._descriptor)
        for attribute, pointer in ((_A_SCALE, b), (_B_SCALE, a), (_D_SCALE, out)):
            if pointer:
                put(attribute, ctypes.c_int64(pointer))

    def _make_launch(self):
        """Build ``launch(a, b, c, out, bias, aux, stream)``, all pointers.

        The descriptor is written only where a pointer differs from the last call's; the lock keeps a second thread
        from writing it between that and the launch (the binding releases the GIL).
        """
        lt = bindings()
        matmul, set_attribute, error_kind = lt.matmul, lt.matmul_desc_set_attribute, lt.cuBLASLtError
        handle, descriptor, algorithm = self._handle, self._descriptor, ctypes.addressof(self._algorithm)
        alpha, beta, slot = ctypes.addressof(self._alpha), ctypes.addressof(self._beta), self._slot
        slot_address = ctypes.addressof(slot)
        a_layout, b_layout, c_layout, d_layout = self._a, self._b, self._c, self._d
        size = WORKSPACE_BYTES if self.workspace_bytes else 0
        arrays, device = self.arrays, self.device
        spaces = _workspace.spaces(arrays, device)
        lock, held = self._lock, self._held
        keep = (self._owned, self._algorithm, self._alpha, self._beta, self.spec)

        def launch_bare(a, b, c, out, bias, aux, stream):
            """Without bias and mask the descriptor stays as it is: nothing to write, nothing to lock."""
            space, memory = 0, keep
            if size:
                space = spaces.get(stream)
                if space is None:
                    space, memory = _workspace.reserve(arrays, device, stream)
            try:
                matmul(handle, descriptor, alpha, b, b_layout, a, a_layout, beta, c, c_layout, out, d_layout, algorithm,
                       space, size, stream)  # fmt: skip
            except error_kind as error:
                raise ResourceError(f"cuBLASLt failed at {keep[-1]}: {error}", spec=keep[-1]) from error
            del memory

        def launch(a, b, c, out, bias, aux, stream):
            space = memory = None
            if size:
                space = spaces.get(stream)
                if space is None:
                    space, memory = _workspace.reserve(arrays, device, stream)
            with lock:
                if bias and bias != held[0]:
                    slot.value = held[0] = bias
                    set_attribute(descriptor, _BIAS_POINTER, slot_address, 8)
                if aux and aux != held[1]:
                    slot.value = held[1] = aux
                    set_attribute(descriptor, _AUX_POINTER, slot_address, 8)
                try:
                    matmul(handle, descriptor, alpha, b, b_layout, a, a_layout, beta, c, c_layout, out, d_layout,
                           algorithm, space or 0, size, stream)  # fmt: skip
                except error_kind as error:
                    raise ResourceError(f"cuBLASLt failed at {keep[-1]}: {error}", spec=keep[-1]) from error
            del memory

        epilog = self.epilog
        writes = epilog.has_bias or epilog.gradient_output or epilog.aux_output or epilog.aux_input
        return launch if writes else launch_bare
