"""Faults that the subject can plant in itself, for the judge's controls; `catalogue` names them all."""
