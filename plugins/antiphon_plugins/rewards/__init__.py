"""The built-in reward terms: format, outcome and cost of Router-R1 (arXiv 2506.09033, section 3), latency, a judge."""

from antiphon_plugins.rewards.answers import Format, Outcome
from antiphon_plugins.rewards.cost import Cost
from antiphon_plugins.rewards.judge import Judge
from antiphon_plugins.rewards.latency import Latency

__all__ = ["Cost", "Format", "Judge", "Latency", "Outcome"]
