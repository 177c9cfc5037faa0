"""Meaning of names in a recording: kernels, communication libraries, markers, launchers."""
