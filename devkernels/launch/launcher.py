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
from devkernels.launch.buffer import Buffer, places
from devkernels.target import Target

_REMEMBERED_CONFIGURATIONS = 256
_WORDS = driver.WORDS


class _CurrentStreams(dict):
    """Type of an array -> function that gives the current stream of its library, or None."""

    def __init__(self, device: int):
        super().__init__()
        self._device = device

    def __missing__(self, kind: type) -> Callable[[], int] | None:
        found = self[kind] = arrays.current_stream(kind, self._device)
        return found


class Loaded:
    """An image on one device: the function, and the tables that write arguments into buffers for it."""

    def __init__(self, image: KernelImage, device: int, strict: bool):
        images.choose([image], driver.architecture(device), "This image")
        self.image, self.device = image, device
        self.function = driver.Function(image.cubin, image.symbol, device)
        self.foreign: list[type] = []  # array types seen that are neither CuPy's nor torch's
        self.places = places(image.parameters)
        self.tables = [
            arguments.Table(parameter, place, image.name, device, strict, self.foreign)
            for parameter, place in zip(image.parameters, self.places, strict=True)
        ]
        first = [i for i, parameter in enumerate(image.parameters) if parameter.kind == "array"]
        self.leading = first[0] if first else None  # the array whose library's stream is used
        self.current_streams = _CurrentStreams(device)
        self.buffers: list[Buffer] = []  # taken by one launch at a time, in whatever thread
        handle = driver.WORDS[self.function.handle]
        self.head = (handle,)
        if image.cooperative:
            self.entry, self.tail = driver.unchecked().cuLaunchCooperativeKernel, ()
        else:
            self.entry, self.tail = driver.unchecked().cuLaunchKernel, (driver.NULL,)

    def new_buffer(self) -> Buffer:
        """Memory for one more launch at a time."""
        return Buffer(self.image.parameters)

    def check(self, grid: limits.Dim3, block: limits.Dim3, shared_bytes: int) -> None:
        """Raise for what this kernel cannot have on this device; opt in to large shared memory."""
        image, function, where = self.image, self.function, str(driver.architecture(self.device))
        most = function.max_threads if image.max_threads is None else min(function.max_threads, image.max_threads)
        limits.check_resources(image, block, shared_bytes, most_threads=most,
                               most_shared=driver.max_shared_bytes(self.device), where=where)  # fmt: skip
        function.allow_shared(shared_bytes, image.shared_bytes)
        if image.cooperative:
            threads, blocks = block[0] * block[1] * block[2], grid[0] * grid[1] * grid[2]
            fitting = function.blocks_at_once(threads, shared_bytes)
            if blocks > fitting:
                raise ResourceError(
                    f"Kernel {image.name} synchronises its whole grid, so that all {blocks} blocks must run at once; "
                    f"with block {block}, {fitting} fit on {where}.",
                    spec=grid,
                )

    def stream_of(self, values: tuple) -> int:
        """The current stream of the library of the first array, or the stream that it says it is written on."""
        if self.leading is None:
            return streams.LEGACY_DEFAULT
        array = values[self.leading]
        current = self.current_streams[type(array)]
        return current() if current is not None else arrays.producer(array) or streams.LEGACY_DEFAULT

    def pack(self, values: tuple, buffer: Buffer) -> None:
        """Check the arguments and write their words into a buffer."""
        try:
            for table, value in zip(self.tables, values, strict=True):
                table[type(value)](value, buffer)
        except ArgumentError:
            raise
        except (struct.error, OverflowError, ValueError, TypeError) as error:
            raise self.unfit(values, error) from error

    def unfit(self, values: tuple, error: Exception) -> ArgumentError:
        """The error for a scalar that does not fit its type."""
        buffer = self.new_buffer()
        for table, parameter, value in zip(self.tables, self.image.parameters, values, strict=True):
            try:
                table[type(value)](value, buffer)
            except (struct.error, OverflowError, ValueError, TypeError):
                return ArgumentError(
                    f"Kernel {self.image.name}: argument {parameter.name}={value!r} does not fit {parameter}.",
                    spec=parameter,
                )
        return ArgumentError(f"Kernel {self.image.name}: the arguments cannot be packed: {error}.")

    def order(self, values: tuple, stream: int) -> None:
        """Wait for producers: arrays with ``__cuda_array_interface__`` may say which stream writes them."""
        for value in values:
            if type(value) in self.foreign:
                producer = arrays.producer(value)
                if producer is not None and producer != stream:
                    driver.order_after(producer, stream, self.device)

    def again(self, status: int, dims: tuple, stream: int, buffer: Buffer) -> None:
        """After a launch has failed: once more if this thread only had another context; else say what is wrong."""
        if status in (driver.INVALID_CONTEXT, driver.INVALID_HANDLE):
            driver.adopt(self.device)
            with driver.current(self.device):
                status = self.entry(*self.head, *dims, driver.WORDS[stream], buffer.words, *self.tail)
        driver.check(status, f"Launching {self.image}", self.image)


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

    def __init__(self, image: KernelImage, strict: bool = False, image_for: Callable | None = None):
        self.image = image
        self._strict = strict
        self._image_for = image_for  # function(device) -> image, where kernels can still be compiled for another device
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
            image = self.image if self._image_for is None else self._image_for(device)
            found = self._loaded[device] = Loaded(image, device, self._strict)
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
        self._dims = tuple(map(ctypes.c_uint.from_param, (*self.grid, *self.block, self.shared_bytes)))
        self._fire: Callable[[tuple], None] = self._first  # the quick way, on the device of the last launch

    def __call__(self, *values: Any) -> None:
        """Check the arguments and launch."""
        self._fire(values)

    def _first(self, values: tuple) -> None:
        """Launch on a device for the first time, or on another device than last time."""
        self._fire = self._quick(self._prepare(values))
        self._fire(values)

    def _quick(self, loaded: Loaded) -> Callable[[tuple], None]:
        """A function that launches on one device; all that does not change from call to call is looked up here."""
        count, tables, buffers, leading = len(loaded.tables), loaded.tables, loaded.buffers, loaded.leading
        entry, front, tail = loaded.entry, (*loaded.head, *self._dims), loaded.tail
        fixed, currents, foreign, stream_words = self._stream, loaded.current_streams, loaded.foreign, _WORDS

        def fire(values: tuple) -> None:
            if len(values) != count:
                self._prepare(values)  # says so
            buffer = buffers.pop() if buffers else loaded.new_buffer()
            try:
                for table, value in zip(tables, values):  # noqa: B905 - counted above; strict costs
                    table[type(value)](value, buffer)
            except arrays.ElsewhereError:
                self._first(values)
                return
            except ArgumentError:
                raise
            except (struct.error, OverflowError, ValueError, TypeError) as error:
                raise loaded.unfit(values, error) from error
            if fixed is not None:
                stream = fixed
            elif leading is None or (current := currents[type(values[leading])]) is None:
                stream = loaded.stream_of(values)
            else:
                stream = current()
            if foreign:
                loaded.order(values, stream)
            if status := entry(*front, stream_words[stream], buffer.words, *tail):
                loaded.again(status, self._dims, stream, buffer)
            buffers.append(buffer)

        return fire

    def bind(self, *values: Any) -> BoundLaunch:
        """Check the arguments once, for any number of launches with them; the arrays are kept alive."""
        return BoundLaunch(self, values)

    def _prepare(self, values: tuple) -> Loaded:
        """Find the device of the arguments, load the kernel there, and check what the launch asks for."""
        image = self.launcher.image
        names = [parameter.name for parameter in image.parameters]
        if len(values) != len(names):
            raise ArgumentTypeError(
                f"Kernel {image.name} takes {len(names)} arguments ({', '.join(names)}), not {len(values)}.", spec=image
            )
        device = common_device(image.name, names, values)
        loaded = self.launcher.loaded(device)
        for table, value in zip(loaded.tables, values, strict=True):
            _ = table[type(value)]  # a wrong type is said before any other limit
            if arrays.is_torch(type(value)) and not value.is_cuda:
                raise table.refuse(type(value))
        loaded.check(self.grid, self.block, self.shared_bytes)
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

    __slots__ = ("_again", "_call", "_current", "_keep", "_middle", "_tail", "_word")

    def __init__(self, launch: Launch, values: tuple):
        loaded = launch._prepare(values)
        buffer = loaded.new_buffer()
        loaded.pack(values, buffer)
        fixed, dims = launch._stream, launch._dims
        self._keep = (values, buffer)
        self._again = lambda status, stream: loaded.again(status, dims, stream, buffer)
        self._word = None if fixed is None else _WORDS[fixed]
        self._current: Callable[[], int] = (lambda: fixed) if fixed else (lambda: loaded.stream_of(values))
        if fixed is None and loaded.leading is not None:
            self._current = loaded.current_streams[type(values[loaded.leading])] or self._current
        self._call, self._middle = loaded.entry, (*loaded.head, *dims)
        self._tail = (buffer.words, *loaded.tail)

    def __call__(self) -> None:
        """Launch."""
        word = self._word
        if word is None:
            word = _WORDS[self._current()]
        if status := self._call(*self._middle, word, *self._tail):
            self._again(status, self._current())


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
