"""The one place that states the version; part of every cache key and every image."""

__version__ = "0.1.0"
