"""Findings grouped into things to fix: by cause, ranks in common, and pattern of steps; leads without significance."""
