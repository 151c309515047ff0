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

def added(acc, row, column, weights, shift):
    return acc * weights[row] + shift

def products():
    return {
        "residual": devkernels.make_gemm("float16", epilogue="residual").image_sources(c="float32"),
        "function": devkernels.make_gemm("float32", epilogue=added).image_sources(extra="float32[::1], float32"),
        "chain": chain().image_sources(256),
    }

def chain():
    return devkernels.make_gemm_chain("float16", first=("bias", "silu"))
"""
