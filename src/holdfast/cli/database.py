"""Which database a command uses: from an option, the environment, a settings file, or the current directory."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from holdfast.errors import BadInput, CannotOpen

if TYPE_CHECKING:
    from holdfast.contract.store import Store
    from holdfast.looking import Desk

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_FILE = "holdfast.db"
_KEPT_AS = "holdfast.token_file"
"""Under which name a command keeps where its token is."""


class Setting(NamedTuple):
    """A value, and where it came from."""

    value: str
    source: str


class NoDatabase(CannotOpen):
    """It is not said which database is meant."""


def url_option(command: F) -> F:
    """Give a command the options that say which database it is about, or which server, and who asks that."""
    where = click.option(
        "--url", metavar="DATABASE", help="The database: a path, sqlite:///path or postgresql://user@host/name."
    )
    token = click.option(
        "--token-file",
        metavar="FILE",
        expose_value=False,
        callback=_keep_token_file,
        help="The token for a server (--url https://...); else HOLDFAST_TOKEN.",
    )
    return where(token(command))


def _keep_token_file(context: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.meta[_KEPT_AS] = value


json_option = click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
app_option = click.option(
    "--app", metavar="MODULE:NAME", help="The code at hand: an engine, a list of workflows, or a function of them."
)


def setting(name: str, given: str | None) -> Setting | None:
    """Return a setting: as given, from the environment, or from the nearest file of settings upwards from here.

    Raises:
        BadInput: a file of settings cannot be read.
    """
    if given:
        return Setting(given, f"--{name}")
    variable = f"HOLDFAST_{name.upper()}"
    if os.environ.get(variable):
        return Setting(os.environ[variable], variable)
    here = Path.cwd()
    for folder in (here, *here.parents):
        for file, path in (("holdfast.toml", ()), ("pyproject.toml", ("tool", "holdfast"))):
            found = _in_file(folder / file, path, name)
            if found is not None:
                return found
    return None


def _in_file(file: Path, path: tuple[str, ...], name: str) -> Setting | None:
    try:
        text = file.read_text("utf-8")
    except OSError:
        return None
    except UnicodeDecodeError as error:
        raise BadInput(f"{file}: cannot be read as TOML: {error}") from error
    import tomllib

    try:
        values: Any = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{file}: cannot be read as TOML: {error}") from error
    for part in path:
        values = values.get(part, {}) if isinstance(values, dict) else {}
    if not isinstance(values, dict) or name not in values:
        return None
    if name == "redact" and isinstance(values[name], list) and all(isinstance(each, str) for each in values[name]):
        return Setting(",".join(values[name]), str(file))
    if not isinstance(values[name], str):
        raise BadInput(f"{file}: {name} must be a text, not {values[name]!r}")
    return Setting(values[name], str(file))


def database(url: str | None) -> Setting:
    """Return which database is meant.

    Raises:
        NoDatabase: it is said nowhere, and there is none here.
    """
    found = setting("url", url)
    if found is not None:
        return found
    if os.path.exists(DEFAULT_FILE):
        return Setting(f"sqlite:///{DEFAULT_FILE}", "the file that is here")
    raise NoDatabase(
        f"no database is named and there is no {DEFAULT_FILE} here; say --url sqlite:///path or postgresql://..., "
        "set HOLDFAST_URL, or write url = ... under [tool.holdfast] in pyproject.toml"
    )


def zone() -> tzinfo | None:
    """Return the time zone of a person: HOLDFAST_TZ, or that of this machine.

    Raises:
        BadInput: there is no such zone.
    """
    name = os.environ.get("HOLDFAST_TZ")
    if not name:
        return None
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise BadInput(f"HOLDFAST_TZ: there is no time zone {name!r}; write one as Europe/Berlin") from None


def local_time(moment: datetime | None) -> str:
    """Return a moment as the clock of a person shows it, with its day."""
    return f"{moment.astimezone(zone()):%Y-%m-%d %H:%M:%S}" if moment is not None else ""


def is_server(where: str) -> bool:
    """Whether this is the address of a dashboard, and not of a database."""
    return where.startswith(("https://", "http://"))


def remote(where: str) -> Desk:
    """Return the desk of a dashboard elsewhere, which knows this person by a token.

    Raises:
        BadInput: there is no token.
    """
    from holdfast.web.remote import RemoteDesk

    found = token()
    if found is None:
        raise BadInput(
            f"{where} asks who you are: set HOLDFAST_TOKEN to a token that it knows, or name a file: --token-file"
        )
    return RemoteDesk(where, found.value, zone=os.environ.get("HOLDFAST_TZ") or _own_zone())


def token() -> Setting | None:
    """Return the token for servers: of the file that --token-file names, else HOLDFAST_TOKEN.

    Raises:
        BadInput: the file cannot be read, or has no token.
    """
    context = click.get_current_context(silent=True)
    file = context.meta.get(_KEPT_AS) if context is not None else None
    if file is None:
        given = os.environ.get("HOLDFAST_TOKEN")
        return Setting(given, "HOLDFAST_TOKEN") if given else None
    try:
        words = Path(file).read_text("utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is no text"
        raise BadInput(f"--token-file {file}: cannot be read: {said}") from None
    if len(words) != 1:
        raise BadInput(
            f"--token-file {file}: must have a token, as hf_..., and nothing else; it has {len(words)} words"
        )
    return Setting(words[0], f"--token-file {file}")


def _own_zone() -> str:
    """Return the name of the time zone of this machine, as far as it can be told."""
    place = os.path.realpath("/etc/localtime")
    return place.partition("zoneinfo/")[2] or "UTC"


def going_on(words: Sequence[str], url: str | None, **given: object) -> str:
    """Return the command that shows what comes next: the words, the options that chose what is shown, the database."""
    chose: list[str] = []
    for name, value in given.items():
        if value is not None and value is not False:
            said = value.isoformat() if isinstance(value, datetime) else str(value)
            chose += [f"--{name}"] if value is True else [f"--{name}", said]
    return " ".join([with_database(shlex.join(["holdfast", *words]), url), *map(shlex.quote, chose)])


def with_database(command: str, url: str | None) -> str:
    """Return a command to copy, with the database where an option named it: another may be meant here without it."""
    from holdfast.texts import masked, passwords

    return command if url is None else f"{command} --url {shlex.quote(masked(url, passwords([url])))}"


def looking(url: str | None, work: Callable[[Desk], Awaitable[T]], app: str | None = None) -> T:
    """Open the database to look only, and do something with a desk on it; with code at hand only if it is named."""

    async def main() -> T:
        async with desk_to_look(database(url).value, app) as desk:
            return await work(desk)

    return asyncio.run(main())


@asynccontextmanager
async def desk_to_look(where: str, app: str | None = None) -> AsyncIterator[Desk]:
    """Open a database to look only, or a server, and close it again."""
    from holdfast.looking import LocalDesk

    if is_server(where):
        yield remote(where)
        return
    code = None
    if app is not None:
        from holdfast.histories.app import load_app

        code = load_app(app)
    store = careful_store(where)
    await store.open(look_only=True)
    try:
        yield LocalDesk(store, zone=zone(), code=code)
    finally:
        await store.close()


def careful_store(where: str) -> Store:
    """Return the store of a database that other processes may use, not yet opened.

    Raises:
        BadInput: it is in memory, where no other process can see it.
    """
    from holdfast.stores import open_store

    logging.getLogger("psycopg").setLevel(logging.ERROR)  # what it warns of is told by the error of the command
    store = open_store(where)
    if str(getattr(store, "path", "")).startswith((":memory:", "kv+memory:")):
        raise BadInput("a database in memory cannot be seen by another process; name a file")
    if hasattr(store, "fences"):
        store.fences = False  # a command never takes a key space away from an engine
    return store


def open_existing(where: str) -> Store:
    """Return the store of a database that must be there, not yet opened.

    Raises:
        BadInput: there is none.
    """
    store = careful_store(where)
    if path := missing_file(store):
        raise CannotOpen(f"{path}: there is no such database")
    return store


def missing_file(store: Store) -> str:
    """Return the path of a database that is to be a file and is not there; empty for any other."""
    path: str | None = getattr(store, "path", None)
    return path if path is not None and "://" not in path and not os.path.exists(path) else ""


def shown_address(where: str, store: Store) -> str:
    """Return where a database is, for callers elsewhere: a file by its whole path, a server without the password."""
    from holdfast.texts import masked, passwords

    path = getattr(store, "path", None)
    if path is not None and "://" not in path:
        return f"sqlite:///{os.path.abspath(path)}"
    return masked(where, passwords([where]))


def code_at_hand(app: str | None, *, needed: bool = True) -> list[Any]:
    """Return the workflows of the code that is named, none if none is.

    Raises:
        BadInput: none is named, and it is needed; or it is not there.
    """
    named = setting("app", app)
    if named is not None:
        from holdfast.histories.app import load_app

        return load_app(named.value).all()
    if needed:
        raise BadInput("say which code: --app module:name, HOLDFAST_APP, or app = ... under [tool.holdfast]")
    return []


def acting(
    url: str | None,
    work: Callable[[Desk], Awaitable[T]],
    workflows: Sequence[Any] = (),
) -> T:
    """Open the database as a client that advances no runs, and do something with a desk that acts."""

    async def main() -> T:
        async with desk_to_act(database(url).value, workflows) as desk:
            return await work(desk)

    return asyncio.run(main())


@asynccontextmanager
async def desk_to_act(where: str, workflows: Sequence[Any] = ()) -> AsyncIterator[Desk]:
    """Open a database as a client that advances no runs, or a server, and close it again."""
    from holdfast import Engine
    from holdfast.looking import LocalDesk

    if is_server(where):
        yield remote(where)
        return
    store = open_existing(where)
    await _see_that_it_is_ours(where)
    async with Engine(store=store, workflows=workflows, run_workflows=False, retention=None) as engine:
        yield LocalDesk(store, zone=zone(), engine=engine)


async def _see_that_it_is_ours(where: str) -> None:
    """Refuse a database that an engine would make tables in, or bring up to date: an act on a run does neither.

    Raises:
        CannotOpen, NeedsUpgrade: it is empty, or of an older holdfast.
    """
    store = careful_store(where)
    await store.open(look_only=True)
    await store.close()


def who(given: str | None) -> str:
    """Return who acts: as given, HOLDFAST_ACTOR, or the login name."""
    import getpass

    if given or os.environ.get("HOLDFAST_ACTOR"):
        return given or os.environ["HOLDFAST_ACTOR"]
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "operator"
