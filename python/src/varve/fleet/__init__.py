"""Asks many traces at once: ``python -m varve.fleet`` (docs/fleet.md)."""
