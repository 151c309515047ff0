"""A kernel image on one device: the loaded function, and the tables that turn arguments into words for it.

In: an image and a device. Out: a `Loaded`, which checks what a launch asks for, packs arguments, and knows streams.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from devkernels.compiler import image as images
from devkernels.compiler.image import KernelImage
from devkernels.errors import ArgumentError, ResourceError
from devkernels.launch import arguments, arrays, driver, limits, streams
from devkernels.launch.buffer import Buffer, places


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
        # array types seen that are neither CuPy's nor torch's -> function(array) that gives the stream of its producer
        self.foreign: dict[type, Callable[[Any], int | None]] = {}
        self.places = places(image.parameters)
        self.tables = [
            arguments.Table(parameter, place, image.name, device, strict, self.foreign)
            for parameter, place in zip(image.parameters, self.places, strict=True)
        ]
        first = [i for i, parameter in enumerate(image.parameters) if parameter.kind == "array"]
        self.leading = first[0] if first else None  # the array whose library's stream is used
        self.current_streams = _CurrentStreams(device)
        self.handle = driver.word(self.function.handle)

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
        if current is not None:
            return current()
        return self.foreign[type(array)](array) or streams.LEGACY_DEFAULT

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
            if (producer_of := self.foreign.get(type(value))) is not None:
                producer = producer_of(value)
                if producer is not None and producer != stream:
                    driver.order_after(producer, stream, self.device)

    def again_with(self, configurations: driver.Configurations) -> Callable[[int, int, Buffer], None]:
        """What to do after a launch has failed with a status, on a stream, with the words of a buffer."""

        def again(status: int, stream: int, buffer: Buffer) -> None:
            """Once more if this thread only had another context; else say what is wrong."""
            if status in (driver.INVALID_CONTEXT, driver.INVALID_HANDLE):
                driver.adopt(self.device)
                with driver.current(self.device):
                    status = driver.launch_entry()(configurations[stream], self.handle, buffer.words, driver.NULL)
            driver.check(status, f"Launching {self.image}", self.image)

        return again
