"""Benchmarks: cases as data, one runner, results as files, tables and plots made from them."""
