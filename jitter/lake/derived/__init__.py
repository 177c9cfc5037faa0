"""Derived, disposable data that make reading a lake faster."""
