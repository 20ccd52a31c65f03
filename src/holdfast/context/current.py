"""The Context of the running code, for libraries that do not get one as an argument."""

from __future__ import annotations

from holdfast.context.api import Context


def current_context() -> Context | None:
    """Return the Context of the workflow code that is running, from however deep inside a library.

    It is that of the branch or iteration in which the code runs. None in steps, in the handlers of queries, and where
    no workflow runs.
    """
    # The verbs of workflow code are loaded where it runs, and a program that only declares it has no use for them.
    from holdfast.context.run_context import context_here

    return context_here()
