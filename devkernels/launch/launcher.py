"""Launching a `KernelImage`: load it once per device, check every argument, pass it on in microseconds.

In: an image, a configuration, arguments. Out: one launch on a stream. A launch packs all arguments into one buffer
(Numba's calling convention, laid out as the cubin itself says) and makes one driver call.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable
from typing import Any

from devkernels import target as targets
from devkernels.compiler import image as images
from devkernels.compiler.image import KernelImage
from devkernels.errors import ArgumentError, ArgumentTypeError, DeviceMismatchError, ResourceError, TargetError
from devkernels.launch import arguments, arrays, driver, limits, streams
from devkernels.target import Target

_REMEMBERED_CONFIGURATIONS = 256
_BUFFER_POINTER, _BUFFER_SIZE, _END = 1, 2, 0  # CU_LAUNCH_PARAM_...


class _Buffer:
    """Memory for the words of one launch, and the lists by which the driver finds them."""

    __slots__ = ("_list", "_size", "_words", "all_words", "memory", "one_by_one")

    def __init__(self, size: int, offsets: list[int]):
        self.memory = ctypes.create_string_buffer(max(size, 1))
        start = ctypes.addressof(self.memory)
        self._size = ctypes.c_size_t(size)
        self._list = (ctypes.c_void_p * 5)(_BUFFER_POINTER, start, _BUFFER_SIZE, ctypes.addressof(self._size), _END)
        self._words = (ctypes.c_void_p * max(len(offsets), 1))(*(start + offset for offset in offsets))
        self.all_words = ctypes.c_void_p(ctypes.addressof(self._list))  # for cuLaunchKernel: one copy
        self.one_by_one = ctypes.c_void_p(ctypes.addressof(self._words))  # all that cuLaunchCooperativeKernel takes


class Loaded:
    """An image on one device: the function, and the tables that turn arguments into words for it."""

    def __init__(self, image: KernelImage, device: int, strict: bool):
        images.choose([image], driver.architecture(device), "This image")
        self.image, self.device = image, device
        self.function = driver.Function(image.cubin, image.symbol, device)
        self.foreign: list[type] = []  # array types seen that are neither CuPy's nor torch's
        self.tables = [
            arguments.Table(parameter, image.name, device, strict, self.foreign) for parameter in image.parameters
        ]
        self.handle = ctypes.c_void_p(self.function.handle)
        self._launch_kernel = driver.unchecked().cuLaunchKernel
        self.packer = struct.Struct("".join(arguments.code(parameter) for parameter in image.parameters))
        self._offsets = [offset for offset, _ in images.layout(image.parameters)]
        first = [i for i, parameter in enumerate(image.parameters) if parameter.kind == "array"]
        self._leading = first[0] if first else None
        self._stream_readers: dict[type, Callable[[Any], int]] = {}
        self.buffers: list[_Buffer] = []  # taken by one launch at a time, in whatever thread

    def new_buffer(self) -> _Buffer:
        """Memory for one more launch at a time."""
        return _Buffer(self.packer.size, self._offsets)

    def check(self, grid: limits.Dim3, block: limits.Dim3, shared_bytes: int) -> None:
        """Raise for what this kernel cannot have on this device; opt in to large shared memory."""
        image, function, where = self.image, self.function, str(driver.architecture(self.device))
        most = function.max_threads if image.max_threads is None else min(function.max_threads, image.max_threads)
        limits.check_resources(image, block, shared_bytes, most_threads=most,
                               most_shared=driver.max_shared_bytes(self.device), where=where)  # fmt: skip
        function.allow_shared(shared_bytes)
        if image.cooperative:
            threads, blocks = block[0] * block[1] * block[2], grid[0] * grid[1] * grid[2]
            fitting = function.blocks_at_once(threads, shared_bytes)
            if blocks > fitting:
                raise ResourceError(
                    f"Kernel {image.name} synchronises its whole grid, so that all {blocks} blocks must run at once; "
                    f"with block {block}, {fitting} fit on {where}.",
                    spec=grid,
                )

    def stream_reader(self, values: tuple) -> Callable[[Any], int] | None:
        """Function(first array) -> current stream of its library; None where there is no array."""
        if self._leading is None:
            return None
        kind = type(values[self._leading])
        read = self._stream_readers.get(kind)
        if read is None:
            read = self._stream_readers[kind] = arguments.stream_reader(kind, self.device)
        return read

    def stream_for(self, values: tuple) -> int:
        """The current stream of the library of the first array (the default stream if there is none)."""
        read = self.stream_reader(values)
        return streams.LEGACY_DEFAULT if read is None else read(values[self._leading])

    def leading(self, values: tuple) -> Any:
        """The first array."""
        return None if self._leading is None else values[self._leading]

    def pack(self, values: tuple, buffer: _Buffer) -> None:
        """Check the arguments and write their words into a buffer."""
        words: list = []
        for table, value in zip(self.tables, values, strict=True):
            words += table[type(value)](value)
        try:
            self.packer.pack_into(buffer.memory, 0, *words)
        except (struct.error, OverflowError, TypeError) as error:
            raise self._unfit(values, error) from error

    def _unfit(self, values: tuple, error: Exception) -> ArgumentError:
        """Find the scalar that does not fit its type."""
        for table, parameter, value in zip(self.tables, self.image.parameters, values, strict=True):
            try:
                struct.pack(arguments.code(parameter), *table[type(value)](value))
            except (struct.error, OverflowError, TypeError):
                return ArgumentError(
                    f"Kernel {self.image.name}: argument {parameter.name}={value!r} does not fit {parameter}.",
                    spec=parameter,
                )
        return ArgumentError(f"Kernel {self.image.name}: the arguments cannot be packed: {error}.")

    def order(self, values: tuple, stream: int) -> None:
        """Wait for producers: arrays with ``__cuda_array_interface__`` may say which stream writes them."""
        for value in values:
            if type(value) in self.foreign:
                producer = arrays.producer_stream(value)
                if producer is not None and producer != stream:
                    driver.order_after(producer, stream, self.device)

    def launch(self, dims: tuple[ctypes.c_uint, ...], stream: int, buffer: _Buffer) -> None:
        """One driver call; where the thread's current context is another one, a second after switching to ours."""
        status = self.call(dims, driver.WORDS[stream], buffer)
        if status in (driver.INVALID_CONTEXT, driver.INVALID_HANDLE):
            driver.adopt(self.device)
            with driver.current(self.device):
                status = self.call(dims, driver.WORDS[stream], buffer)
        if status:
            *shape, shared_bytes = (dim.value for dim in dims)
            driver.check(status, f"Launching {self.image.name} with grid {tuple(shape[:3])}, block {tuple(shape[3:])}, "
                                 f"{shared_bytes} bytes of dynamic shared memory", self.image)  # fmt: skip

    def call(self, dims: tuple[ctypes.c_uint, ...], stream: ctypes.c_void_p, buffer: _Buffer) -> int:
        """The driver call; returns its status."""
        if self.image.cooperative:
            return driver.unchecked().cuLaunchCooperativeKernel(self.handle, *dims, stream, buffer.one_by_one)
        return self._launch_kernel(self.handle, *dims, stream, driver.NULL, buffer.all_words)


class Launcher:
    """A kernel image that can be launched: ``launcher[grid, block, stream, shared](*arguments)``.

    Parameters
    ----------
    image : KernelImage
        From `devkernels.compile` or `devkernels.load_image`.
    strict : bool
        Take scalars only of exactly the compiled type (for kernels whose signature was inferred from arguments).

    Notes
    -----
    Every argument is checked: dtype, rank, layout, alignment, device. Grid and block are checked against the limits of
    kernel and device. Dynamic shared memory above 48 KB is opted in to. Without a stream, the launch goes to the
    current stream of the library of the first array. A launch can be captured in a CUDA graph, once the kernel is
    loaded (launch it once before). As with CuPy and torch, arrays may be dropped after the launch; their libraries
    keep the memory until the stream has passed it.
    """

    def __init__(self, image: KernelImage, strict: bool = False):
        self.image = image
        self._strict = strict
        self._loaded: dict[int, Loaded] = {}
        self._launches: dict[Any, Launch] = {}

    def __getitem__(self, key: Any) -> Launch:
        """Choose grid, block, and optionally stream and bytes of dynamic shared memory."""
        try:
            return self._launches[key]
        except KeyError:
            launch = Launch(self, key)
            if isinstance(launch.stream, (int, type(None))):  # remembering must not keep a stream alive
                if len(self._launches) >= _REMEMBERED_CONFIGURATIONS:
                    self._launches.clear()
                self._launches[key] = launch
            return launch
        except TypeError:  # lists, or a stream that has no hash
            return Launch(self, key)

    def bind(self, *values: Any) -> Bound:
        """Fix the arguments first: ``launcher.bind(*arguments)[grid, block]()``."""
        return Bound(self, values)

    def loaded(self, device: int) -> Loaded:
        """The kernel on a device, loaded there if need be."""
        found = self._loaded.get(device)
        if found is None:
            found = self._loaded[device] = Loaded(self.image, device, self._strict)
        return found

    def __repr__(self) -> str:
        return f"Launcher({self.image})"


class Launch:
    """A kernel with grid, block, stream and shared memory chosen: call it with the kernel's arguments."""

    def __init__(self, launcher: Launcher, key: Any):
        self.launcher = launcher
        self.grid, self.block, self.stream, self.shared_bytes = limits.configuration(key)
        limits.check_shape(self.grid, self.block, launcher.image.name)
        self._stream = streams.handle(self.stream)
        self._dims = tuple(map(ctypes.c_uint, (*self.grid, *self.block, self.shared_bytes)))
        self._count = len(launcher.image.parameters)
        self._ready: Loaded | None = None  # on the device of the last launch

    def __call__(self, *values: Any) -> None:
        """Check the arguments and launch."""
        loaded = self._ready
        if loaded is None or len(values) != self._count:
            loaded = self._prepare(values)
        buffers = loaded.buffers
        buffer = buffers.pop() if buffers else loaded.new_buffer()
        try:
            loaded.pack(values, buffer)
            stream = self._stream
            if stream is None:
                stream = loaded.stream_for(values)
            if loaded.foreign:
                loaded.order(values, stream)
            loaded.launch(self._dims, stream, buffer)
        except arrays.ElsewhereError:
            self._prepare(values)
            self(*values)
        finally:
            buffers.append(buffer)

    def bind(self, *values: Any) -> BoundLaunch:
        """Check the arguments once, for any number of launches with them; the arrays are kept alive."""
        return BoundLaunch(self, values)

    def _prepare(self, values: tuple) -> Loaded:
        """Find the device of the arguments, load the kernel there, and check what the launch asks for."""
        image = self.launcher.image
        names = [parameter.name for parameter in image.parameters]
        if len(values) != self._count:
            raise ArgumentTypeError(
                f"Kernel {image.name} takes {self._count} arguments ({', '.join(names)}), not {len(values)}.",
                spec=image,
            )
        device = common_device(image.name, names, values)
        loaded = self.launcher.loaded(device)
        for table, value in zip(loaded.tables, values, strict=True):
            _ = table[type(value)]  # a wrong type is said before any other limit
            if arrays.is_torch(type(value)) and not value.is_cuda:
                raise table.refuse(type(value))
        loaded.check(self.grid, self.block, self.shared_bytes)
        self._ready = loaded
        return loaded


def common_device(kernel: str, names: list[str], values: tuple) -> int:
    """The device that all array arguments lie on; the current one if there are none."""
    found = {name: arrays.device_of(value) for name, value in zip(names, values, strict=True)}
    devices = {name: device for name, device in found.items() if device is not None}
    if len(set(devices.values())) > 1:
        places = ", ".join(f"{name} on device {device}" for name, device in devices.items())
        raise DeviceMismatchError(f"Kernel {kernel}: its arrays lie on several devices ({places}); move them to one.")
    return next(iter(devices.values())) if devices else driver.current_device()


class BoundLaunch:
    """A launch with everything fixed: call it without arguments, as often as you like."""

    def __init__(self, launch: Launch, values: tuple):
        loaded = launch._prepare(values)
        buffer = loaded.new_buffer()
        loaded.pack(values, buffer)
        self._keep = values
        self._dims, self._loaded, self._buffer = launch._dims, loaded, buffer
        self._stream_of = loaded.stream_reader(values) if launch._stream is None else None
        self._leading = loaded.leading(values)
        self._fixed = launch._stream or streams.LEGACY_DEFAULT
        if loaded.image.cooperative:
            self._direct: Callable = driver.unchecked().cuLaunchCooperativeKernel
            self._tail: tuple = (buffer.one_by_one,)
        else:
            self._direct, self._tail = driver.unchecked().cuLaunchKernel, (driver.NULL, buffer.all_words)
        self._head = (loaded.handle, *launch._dims)
        self._words = driver.WORDS

    def __call__(self) -> None:
        """Launch."""
        stream = self._fixed if self._stream_of is None else self._stream_of(self._leading)
        if self._direct(*self._head, self._words[stream], *self._tail):
            self._loaded.launch(self._dims, stream, self._buffer)  # tries again, or says what is wrong


class Bound:
    """Arguments fixed, configuration open: ``bound[grid, block, stream, shared]()``."""

    def __init__(self, launcher: Any, values: tuple):
        self._launcher, self._values = launcher, values
        self._launches: dict[Any, Any] = {}

    def __getitem__(self, key: Any) -> Any:
        try:
            return self._launches[key]
        except (KeyError, TypeError):
            launch = self._launcher[key].bind(*self._values)
            try:
                self._launches[key] = launch
            except TypeError:
                return launch
            return launch


def load_image(path: str | os.PathLike, target: object = None) -> Launcher:
    """Load a kernel image that ``devkernels build`` or `KernelImage.save` wrote.

    Neither Numba nor llvmlite, libmathdx or nvmath is needed or imported.

    Parameters
    ----------
    path : path
        The file.
    target : str, int, tuple or Target, optional
        Architecture to choose. Default: that of the current device; where there is no device, the file's only one.

    Returns
    -------
    Launcher
        Launch it as ``launcher[grid, block](*arguments)``; its `KernelImage` is ``launcher.image``.

    Raises
    ------
    ImageError
        The file is missing, damaged, of another format, or has nothing for this architecture.
    """
    found = images.read(path)
    if target is not None:
        where: Target | None = Target.parse(target)
    elif targets.driver_present():
        where = driver.architecture(driver.current_device())
    else:
        where = found[0].target if len(found) == 1 else None
    if where is None:
        there = ", ".join(str(image.target) for image in found)
        raise TargetError(f"{os.fspath(path)} holds code for {there}; without a GPU, say which: target=...")
    return Launcher(images.choose(found, where, os.fspath(path)))
