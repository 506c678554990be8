"""How long it takes to judge a large stored run: `python benchmarks/judging.py`.

Makes a golden of 256 prompts with 256 positions each, 50 layers and a vocabulary of 128,000, and an honest run on it with its
control, all from a seeded stream (no model computes them; the formats are the real ones), and judges the run with
`kolibri-oracle gate --replay` in a process of its own. Needs no torch and no numba; Linux, for the memory.

Ends with 0 when both marks are met and the verdict is the honest run's, 1 when not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from processes_memory import watch
from invented import invent_checkpoint, invent_golden, invent_run
from scratch import progress, scratch_folder
from tables import Mark, print_marks, print_table
