"""From a Python kernel to a `KernelImage`: front end (Numba), device functions (libmathdx), linker (nvJitLink).

In: a Python function, a signature, a target. Out: a cubin with its symbol, parameters and resource use. Nothing here
needs a GPU or a driver.
"""
