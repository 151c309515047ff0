"""Every error that devkernels raises on purpose.

All derive from `DevkernelsError` and carry the `spec` they are about (what was asked for, as the object the
caller would recognise). Each also derives from the built-in exception that a caller would expect, so that
``except ValueError`` keeps working. A message says what was asked, what is possible, and what to do.
"""

from __future__ import annotations


class DevkernelsError(Exception):
    """Base class. `spec` is what the error is about: a frozen spec, a kernel's signature, or None."""

    def __init__(self, message: str, *, spec: object = None):
        super().__init__(message)
        self.spec = spec


class SpecError(DevkernelsError, ValueError):
    """A factory was asked for something that no home can build; raised at construction."""


class UnsupportedSizeError(SpecError):
    """The size, layout or parity has no device function; the message names the nearest that has."""


class ArgumentError(DevkernelsError, ValueError):
    """An argument of a call has a wrong value, shape or layout; raised before anything is launched."""


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument has a wrong type or dtype."""


class DeviceMismatchError(ArgumentError):
    """Arrays of one call live on different devices, or on another than the kernel."""


class ResourceError(DevkernelsError, RuntimeError):
    """A launch would ask for more threads, registers or shared memory than the target has."""


class TargetError(DevkernelsError, RuntimeError):
    """The process runs in another home than the call needs, or the target is unknown or unsuitable."""


class MissingDependencyError(DevkernelsError, ImportError):
    """An optional package is needed; the message names the extra that installs it."""


class CompileError(DevkernelsError, RuntimeError):
    """A kernel or a device function could not be compiled or linked."""


class JitDisabledError(CompileError):
    """DEVKERNELS_DISABLE_JIT is set and something would have to be compiled; `spec` says what."""


class ImageError(DevkernelsError, RuntimeError):
    """A kernel image is damaged, of another version, or for another architecture."""


class DevkernelsWarning(UserWarning):
    """Something worked in a lesser way than asked (for example: the disk cache cannot be written)."""
