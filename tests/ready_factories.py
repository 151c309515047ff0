"""Factories of ready kernels, as the text of a user's module: what ``devkernels build`` is asked for in tests."""

READY = """
import devkernels

def filters():
    return devkernels.make_spectral_filter(64, "complex64")

def causal():
    return devkernels.make_fftconvolve(256, 256, "float32", "causal")

def product():
    return devkernels.make_gemm("float16", epilogue=("bias", "silu"))

def plain():
    return devkernels.make_gemm("float32")
"""
