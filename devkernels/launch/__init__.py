"""`devkernels.kernel`: Python kernels that compile once and launch in microseconds, and images that need no compiler.

In: a Python function, or an image file. Out: objects launched as ``k[grid, block, stream, shared](*arguments)``.
"""

from devkernels.launch.jit import Kernel, kernel
from devkernels.launch.launcher import Launcher, load_image

__all__ = ["Kernel", "Launcher", "kernel", "load_image"]
