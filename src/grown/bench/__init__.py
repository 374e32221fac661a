"""Benchmarks as they are run: presets, the runner, and its result."""
