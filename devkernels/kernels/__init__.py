"""Ready kernels, built only from the package's public pieces."""
