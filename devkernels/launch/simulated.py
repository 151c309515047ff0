"""Launching in Numba's simulator, with the checks that a GPU launch makes.

In: NumPy arrays and a configuration. Out: the kernel run in Python. Streams are ignored; the limits are those of the
architecture that the simulator imitates (sm_90).
"""

from __future__ import annotations

from typing import Any

from devkernels import target as targets
from devkernels.checks import kind_of
from devkernels.compiler import pipelines
from devkernels.compiler.image import Parameter, itemsize
from devkernels.errors import ArgumentError, ArgumentTypeError, ResourceError
from devkernels.launch import arguments, limits
from devkernels.launch.buffer import Buffer, places


class SimulatedLaunch:
    """A kernel with its configuration chosen; call it with NumPy arrays and numbers."""

    def __init__(self, owner: Any, key: Any):
        self._owner = owner
        self.grid, self.block, self.stream, self.shared_bytes = limits.configuration(key)
        limits.check_shape(self.grid, self.block, owner.__name__)
        target = targets.current_target()
        bounds = owner.compile_options.launch_bounds
        most = bounds[0] if isinstance(bounds, tuple) else bounds
        threads = self.block[0] * self.block[1] * self.block[2]
        if most is not None and threads > most:
            raise ResourceError(
                f"Kernel {owner.__name__}: block {self.block} has {threads} threads, but the kernel was compiled with "
                f"launch_bounds={most}.",
                spec=self.block,
            )
        if self.shared_bytes > target.max_shared_bytes:
            raise ResourceError(
                f"Kernel {owner.__name__}: {self.shared_bytes} bytes of dynamic shared memory exceed the "
                f"{target.max_shared_bytes} bytes that a block can have on {target}.",
                spec=self.shared_bytes,
            )
        self._parameters = None
        if owner.signature is not None:
            from devkernels.compiler.signature import resolve

            self._parameters = resolve(owner.py_func, owner.signature).parameters

    def __call__(self, *values: Any) -> None:
        """Check the arguments and run the kernel."""
        names = self._owner._names
        if len(values) != len(names):
            raise ArgumentTypeError(
                f"Kernel {self._owner.__name__} takes {len(names)} arguments ({', '.join(names)}), not {len(values)}.",
                spec=self._owner,
            )
        if self._parameters is None:
            for name, value in zip(names, values, strict=True):
                _check_kind(self._owner.__name__, name, value)
        else:
            values = tuple(map(self._converted, self._parameters, values))
        self._owner.simulated()[self.grid, self.block, 0, self.shared_bytes](*map(_resident, values))

    def bind(self, *values: Any) -> Any:
        """A callable that launches with these arguments."""
        return lambda: self(*values)

    def _converted(self, parameter: Parameter, value: Any) -> Any:
        import numpy

        kernel = self._owner.__name__
        if parameter.kind == "array":
            _check_array(kernel, parameter, value)
            return value
        if parameter.kind == "tuple":
            if not isinstance(value, tuple) or len(value) != len(parameter.items):
                raise ArgumentTypeError(
                    f"Kernel {kernel}: argument {parameter.name} must be a tuple {parameter}.", spec=parameter
                )
            return tuple(map(self._converted, parameter.items, value))
        (place,) = places((parameter,))
        table = arguments.Table(parameter, place, kernel, 0, False, {})
        _ = table[type(value)]  # refuses what a GPU launch would refuse
        try:
            return numpy.dtype(parameter.dtype).type(value)
        except OverflowError:
            raise ArgumentError(
                f"Kernel {kernel}: argument {parameter.name}={value!r} does not fit {parameter}.", spec=parameter
            ) from None


def _resident(value: Any) -> Any:
    """Hand an array to the simulator as one of its device arrays: as on a GPU, views with gaps are welcome then."""
    import numpy
    from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

    if isinstance(value, tuple):
        return tuple(map(_resident, value))
    return FakeCUDAArray(value) if isinstance(value, numpy.ndarray) else value


def _check_kind(kernel: str, name: str, value: Any) -> None:
    import numpy

    if isinstance(value, tuple):
        for i, item in enumerate(value):
            _check_kind(kernel, f"{name}[{i}]", item)
    elif pipelines.is_pipeline(type(value)):
        return
    elif not isinstance(value, numpy.ndarray) and arguments.inferred(type(value)) is None:
        raise ArgumentTypeError(
            f"Kernel {kernel}: argument {name} is a {kind_of(value)}; in the "
            f"simulator, pass NumPy arrays, numbers, and tuples of such."
        )


def _check_array(kernel: str, parameter: Parameter, value: Any) -> None:
    import numpy

    if not isinstance(value, numpy.ndarray):
        raise ArgumentTypeError(
            f"Kernel {kernel}: argument {parameter.name} must be a {parameter} (a NumPy array in the simulator), not a "
            f"{kind_of(value)}.",
            spec=parameter,
        )
    (place,) = places((parameter,))
    words = arguments.ArrayWords(parameter, place, kernel)
    if value.dtype.name != parameter.dtype or value.dtype.itemsize != itemsize(parameter.dtype):
        raise words.dtype_error(value.dtype)
    words.strided(value.shape, value.strides, Buffer((parameter,)))
