"""Function objects that are called inside kernels, and the collectives that move their data."""
