"""The engine: order-free block transforms for fused spectral kernels."""
