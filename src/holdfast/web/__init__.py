"""The HTTP API and the dashboard: `dashboard(engine, ...)` is an ASGI application to be mounted anywhere."""

from holdfast.errors import MissingExtra

try:
    import starlette  # noqa: F401
except ImportError:
    raise MissingExtra("the dashboard", "web") from None

from holdfast.web.app import dashboard as dashboard
from holdfast.web.auth import Principal as Principal
from holdfast.web.guards.rates import Rates as Rates
