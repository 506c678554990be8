"""Subjects: the protocol an implementation under test answers, the harness that drives it, and the adapters."""
