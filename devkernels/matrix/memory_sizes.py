"""Bytes of elements and accesses; no CUDA is imported here."""

ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "int8": 1, "float64": 8, "complex64": 8, "complex128": 16}
WIDEST = 16  # bytes of one access
