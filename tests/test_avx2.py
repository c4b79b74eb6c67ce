"""Gradients are right on CPUs without AVX-512, where oneDNN's are not in one layout.

The variable takes AVX-512 from oneDNN where the CPU has it.
"""

import os
import subprocess
import sys

from suite.paths import ROOT


def test_gradients_are_those_in_float64_with_one_thread_and_with_two():
    # Threads that wait give way to others: no test is to take longer where these are many.
    settings = {"ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-m", "tests.avx2_gradients"]
    how = {"capture_output": True, "text": True, "timeout": 300}  # it may hang, too
    done = subprocess.run(command, cwd=ROOT, env=os.environ | settings, **how)
    assert done.returncode == 0, done.stdout[-300:] + done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert len(rows) > 200
    assert [row for row in rows if not float(row[0]) < 500] == []
