"""What benchmarks on recorded answers share: questions about numbers, and how much memory the process takes."""

from __future__ import annotations

import resource
import sys
from pathlib import Path


def question(number: int) -> str:
    return f"which number comes after {number - 1} when one counts?"


def resident_mb() -> float:
    """What of this process is in memory now."""
    status = Path("/proc/self/status")
    if not status.exists():  # not Linux: the peak is all there is
        return peak_mb()
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def peak_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)
