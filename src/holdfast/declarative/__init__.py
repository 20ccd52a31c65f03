"""Workflows as data: lists of activities, graphs of them, and the conditions under which they run.

What is declared here compiles to the verbs of a Context and the same history, so every tool works on it.
"""

from holdfast.declarative import conditions
from holdfast.declarative.graph import Graph, graph
from holdfast.declarative.parts import parallel, step
from holdfast.declarative.sequence import sequence

__all__ = ["Graph", "conditions", "graph", "parallel", "sequence", "step"]
