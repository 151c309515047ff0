"""Launching a `KernelImage`: load it once per device, check every argument, pass it on in microseconds.

In: an image, a configuration, arguments. Out: one launch on a stream. A launch packs all arguments into one buffer
(Numba's calling convention, laid out as the cubin itself says) and makes one driver call.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from typing import Any

from devkernels import target as targets
from devkernels.compiler import image as images
from devkernels.compiler.image import KernelImage
from devkernels.errors import ArgumentError, ArgumentTypeError, DeviceMismatchError, TargetError
from devkernels.launch import arrays, driver, limits, straight, streams
from devkernels.launch.buffer import Buffer
from devkernels.launch.loaded import Loaded
from devkernels.target import Target

_REMEMBERED_CONFIGURATIONS = 256


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
    current stream of the library of the first array. A launch can be captured in a CUDA graph. As with CuPy and torch,
    arrays may be dropped after the launch; their libraries keep the memory until the stream has passed it.
    """

    def __init__(
        self, image: KernelImage, strict: bool = False, image_for: Callable | None = None, device: int | None = None
    ):
        self.image = image
        self._strict, self._device = strict, device
        self._image_for = image_for  # function(device) -> image, for others than `device`, which `image` is for
        self._loaded: dict[int, Loaded] = {}
        self._launches: dict[Any, Launch] = {}

    def __getitem__(self, key: Any) -> Launch:
        """Choose grid, block, and optionally stream and bytes of dynamic shared memory."""
        try:
            return self._launches[key]
        except (KeyError, TypeError):
            pass
        key = streams.plain(key)
        try:
            if key in self._launches:
                return self._launches[key]
        except TypeError:  # grid or block given as a list
            return Launch(self, key)
        if len(self._launches) >= _REMEMBERED_CONFIGURATIONS:
            self._launches.clear()
        launch = self._launches[key] = Launch(self, key)
        return launch

    def bind(self, *values: Any) -> Bound:
        """Fix the arguments first: ``launcher.bind(*arguments)[grid, block]()``."""
        return Bound(self, values)

    def loaded(self, device: int) -> Loaded:
        """The kernel on a device, loaded there if need be."""
        found = self._loaded.get(device)
        if found is None:
            own = self._image_for is None or device == self._device
            image = self.image if own else self._image_for(device)
            found = self._loaded[device] = Loaded(image, device, self._strict)
        return found

    def __repr__(self) -> str:
        return f"Launcher({self.image})"


class Launch:
    """A kernel with grid, block, stream and shared memory chosen: call it with the kernel's arguments."""

    def __init__(self, launcher: Launcher, key: Any):
        self.launcher = launcher
        self.grid, self.block, stream, self.shared_bytes = limits.configuration(key)
        limits.check_shape(self.grid, self.block, launcher.image.name)
        self.stream = streams.handle(stream)  # None: the current one of the arrays' library
        self.fire: Callable[[tuple], None] = self._first  # launches on the device of the last launch

    def __call__(self, *values: Any) -> None:
        """Check the arguments and launch."""
        self.fire(values)

    def _first(self, values: tuple) -> None:
        """Launch on a device for the first time, or on another device than last time."""
        loaded = self._prepare(values)
        configurations = self.configurations(loaded)
        buffers: list[Buffer] = []  # each is in use by one thread at a time, and keeps the shapes of its last launch
        general = self._general(loaded, configurations, buffers)
        general(values, loaded.new_buffer())
        short = straight.launch(loaded, list(map(type, values)), configurations, self.stream, buffers, general)
        self.fire = short or (lambda values: general(values, buffers.pop() if buffers else loaded.new_buffer()))

    def configurations(self, loaded: Loaded) -> driver.Configurations:
        """What the driver wants to know of this launch, by stream."""
        return driver.Configurations(self.grid, self.block, self.shared_bytes, loaded.image.cooperative)

    def _general(
        self, loaded: Loaded, configurations: driver.Configurations, buffers: list[Buffer]
    ) -> Callable[[tuple, Buffer], None]:
        """A function that launches arguments of any types on one device, with the words in a buffer."""
        count, tables, leading = len(loaded.tables), loaded.tables, loaded.leading
        entry, handle, again = driver.launch_entry(), loaded.handle, loaded.again_with(configurations)
        fixed, currents, foreign = self.stream, loaded.current_streams, loaded.foreign

        def general(values: tuple, buffer: Buffer) -> None:
            if len(values) != count:
                self._prepare(values)  # says so
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
            if status := entry(configurations[stream], handle, buffer.words, driver.NULL):
                again(status, stream, buffer)
            buffers.append(buffer)

        return general

    def bind(self, *values: Any) -> Callable[[], None]:
        """Check the arguments once, for any number of launches with them; the arrays are kept alive."""
        return _bound(self, values)

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


def _bound(launch: Launch, values: tuple) -> Callable[[], None]:
    """A launch with everything fixed, to be called without arguments: nothing but the driver's call is left of it."""
    loaded = launch._prepare(values)
    buffer, configurations = loaded.new_buffer(), launch.configurations(loaded)
    loaded.pack(values, buffer)
    entry, handle, words, null = driver.launch_entry(), loaded.handle, buffer.words, driver.NULL
    again, fixed = loaded.again_with(configurations), launch.stream
    foreign = [(loaded.foreign[type(value)], value) for value in values if type(value) in loaded.foreign]
    steady = all(arrays.is_numba(type(value)) for _, value in foreign)  # each is written on one stream for all its life
    if foreign and steady and fixed is None and type(values[loaded.leading]) in loaded.foreign:
        fixed = loaded.stream_of(values)
    current: Callable[[], int] | None = None
    if fixed is None and loaded.leading is not None:
        current = loaded.current_streams[type(values[loaded.leading])]
    if current is None:  # a stream that was given; or a library without current streams: the array says, or nobody does
        current = (lambda: loaded.stream_of(values)) if fixed is None else (lambda: fixed)

    def on_the_current_stream() -> None:
        if status := entry(configurations[current()], handle, words, null):
            again(status, current(), buffer)

    def on_a_stream() -> None:
        if status := entry(configuration, handle, words, null):
            again(status, fixed, buffer)

    def after_producers() -> None:
        loaded.order(values, current())
        on_the_current_stream()

    run = on_the_current_stream if fixed is None else on_a_stream
    if fixed is not None:
        configuration = configurations[fixed]
    producers = {producer_of(value) for producer_of, value in foreign} - {None}
    if producers and not (steady and producers == {fixed}):
        run = after_producers
    run.arguments = values, buffer  # kept alive
    return run


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
