"""The oracle: the reference that makes goldens, and the judge that compares a subject with them."""
