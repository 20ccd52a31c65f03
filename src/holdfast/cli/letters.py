"""`holdfast letters`: dead letters, that is, failed work and undelivered messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.cli.act import chosen, given_ids, shared
from holdfast.cli.database import acting, going_on, json_option, local_time, looking, url_option, who, zone
from holdfast.cli.endings import IN_PART, NOTHING_CHANGED
from holdfast.cli.flow.purge import purge, purging
from holdfast.cli.output import emit, listed, payload, say, say_wrapped
from holdfast.errors import HoldfastError, NoSuchLetter, StoreError
from holdfast.looking.views import Acted, LetterDetail, LetterGroup, LetterView

if TYPE_CHECKING:
    from holdfast.looking import Desk

F = TypeVar("F", bound=Callable[..., Any])


@click.group("letters", short_help="Work and messages that were given up on: list, show, ack, replay.")
def letters_group() -> None:
    """Look at dead letters, and deal with them."""


@letters_group.command("list", short_help="List dead letters that no person has seen, newest first.")
@click.option("--all", "everything", is_flag=True, help="Those that were seen, too.")
@click.option("--workflow", help="Only those of runs of this workflow.")
@click.option("--limit", default=20, show_default=True, help="How many to show, up to 1,000.")
@click.option("--before", metavar="LETTER", help="Go on below this one, the last of an earlier page.")
@json_option
@url_option
def list_letters(
    everything: bool, workflow: str | None, limit: int, before: str | None, as_json: bool, url: str | None
) -> None:
    """List dead letters that no person has seen, newest first.

    \b
    Example: holdfast letters list
    """
    seen = None if everything else False

    async def work(desk: Desk) -> list[LetterView]:
        return await desk.letters(limit=limit, seen=seen, workflow=workflow, before=before)

    letters = looking(url, work)
    if as_json:
        emit("holdfast.letters/1", letters)
        return
    rows = [
        (
            f"{each.at.astimezone(zone()):%Y-%m-%d %H:%M}",
            each.id,
            each.run,
            each.step or each.name,
            each.outcome or ("seen" if each.seen else ""),
            " ".join(f"{each.error.type.rpartition('.')[2]}: {each.error.message}".split()) if each.error else "",
        )
        for each in letters
    ]
    listed(
        ("AT", "LETTER", "RUN", "STEP OR MESSAGE", "STATE", "ERROR"),
        rows,
        "there are no dead letters" if everything else "there are none that no person has seen",
        spare=(0,),
    )
    if len(letters) == limit:
        older = going_on(["letters", "list"], url, all=everything, workflow=workflow, before=letters[-1].id)
        say(f"{limit} shown, older: {older}", err=True)


@letters_group.command("groups", short_help="Show unseen dead letters by their cause.")
@json_option
@url_option
def group_letters(as_json: bool, url: str | None) -> None:
    """Show unseen dead letters by workflow, step and class of error, the most frequent first.

    \b
    Example: holdfast letters groups
    """
    groups: list[LetterGroup] = looking(url, lambda desk: desk.letter_groups())
    if as_json:
        emit("holdfast.letter-groups/1", groups)
        return
    rows = [
        (str(each.count), each.workflow, each.step, each.error, f"{each.last.astimezone(zone()):%Y-%m-%d %H:%M}")
        for each in groups
    ]
    listed(("COUNT", "WORKFLOW", "STEP OR MESSAGE", "ERROR", "LAST"), rows, "there are none that no person has seen")


@letters_group.command("show", short_help="Show one dead letter, with its error and its payload.")
@click.argument("letter_id", metavar="LETTER")
@json_option
@url_option
def show_letter(letter_id: str, as_json: bool, url: str | None) -> None:
    """Show one dead letter: of what run, step or event, its error, and the arguments or the payload.

    \b
    Example: holdfast letters show 019a8b1c-0000-7000-8000-000000000000
    """
    found: LetterDetail = looking(url, lambda desk: desk.letter(letter_id))
    if as_json:
        emit("holdfast.letter/1", found)
        return
    letter = found.letter
    state = letter.outcome or ("seen" if letter.seen else "no person has seen it")
    facts = (
        ("run", letter.run), ("workflow", letter.workflow), ("step", letter.step), ("event", letter.name),
        ("at", local_time(letter.at)), ("attempts", str(letter.attempts or "")), ("state", state),
        ("undoes", "it is a step of a compensation" if found.compensation else ""), ("sent", local_time(found.sent_at)),
        ("run was", found.target_status), ("arguments" if letter.step else "payload", payload(found.payload)),
        ("error", f"{letter.error.type}: {letter.error.message}" if letter.error is not None else ""),
    )  # fmt: skip
    say(letter.id)
    for name, value in facts:
        if value:
            say_wrapped(f"{name:<12}{value}", hang=12)
    for line in str((found.error or {}).get("traceback") or "").rstrip().split("\n")[-8:-1]:
        say_wrapped(f"            {line}")


def _on_letters(command: F) -> F:
    """Give a command what chooses letters: ids, or a cause."""
    for option in (
        click.option("--error", help="With --workflow: the class of the error; empty for none."),
        click.option("--step", help="With --workflow: the path of the step, or the name of the event."),
        click.option("--workflow", help="Act on all unseen letters of a cause, as `letters groups` tells it."),
        click.argument("letter_ids", nargs=-1, metavar="[LETTER]..."),
    ):
        command = option(command)
    return shared(chosen(command))


@letters_group.command("ack", short_help="Note that dead letters were seen.")
@_on_letters
def acknowledge_letters(**given: Any) -> int:
    """Note that dead letters were seen, and need nothing done; it is on record who did. With - ids are read from stdin.

    \b
    Example: holdfast letters ack 019a8b1c-0000-7000-8000-000000000000 --reason "refunded by hand"
    """
    return _act("acknowledge", "seen", given)


@letters_group.command("replay", short_help="Let the runs of dead letters go on, or deliver their messages again.")
@_on_letters
def replay_letters(**given: Any) -> int:
    """Let runs of dead letters go on from what failed, or deliver messages again. With - ids are read from stdin.

    \b
    All of a cause, as `letters groups` tells it: --workflow fulfil --step charge --error shop.CardDeclined
    Example: holdfast letters replay 019a8b1c-0000-7000-8000-000000000000 --reason "the bank is back"
    """
    return _act("replay", "replayed", given)


@letters_group.command("remove", short_help="Forget dead letters.")
@_on_letters
def remove_letters(**given: Any) -> int:
    """Forget dead letters; their runs stay as they are. It is on record who did it. With - ids are read from stdin.

    \b
    Example: holdfast letters remove 019a8b1c-0000-7000-8000-000000000000 --reason "a test"
    """
    return _act("remove", "removed", given)


@letters_group.command("purge", short_help="Delete dead letters that are old.")
@click.option("--all", "everything", is_flag=True, help="Those that no person has seen, too.")
@purging
def purge_letters(everything: bool, **given: Any) -> int:
    """Delete dead letters that were seen and are older than an age.

    \b
    Example: holdfast letters purge --older-than 30d --all --dry-run
    """
    return purge(("letters" if everything else "seen_letters",), given)


def _act(action: str, word: str, given: dict[str, Any]) -> int:
    cause = [given[name] for name in ("workflow", "step", "error")]
    letter_ids, reason, actor = given["letter_ids"], given["reason"], who(given["by"])
    if letter_ids and cause == [None] * 3:
        if given["dry_run"] or given["expect"] is not None:
            raise click.UsageError("--dry-run and --expect are for all letters of a cause: --workflow, --step, --error")

        async def act(desk: Desk, letter_id: str) -> Acted:
            acts = {"replay": desk.replay, "acknowledge": desk.acknowledge, "remove": desk.remove_letter}
            return await acts[action](letter_id, by=actor, reason=reason)

        return _each(word, letter_ids, given["as_json"], given["url"], act)
    if letter_ids or None in cause:
        raise click.UsageError("name letters, or a cause by --workflow, --step and --error, one of the two")
    return _all_of(action, given, actor)


def _all_of(action: str, given: dict[str, Any], actor: str) -> int:
    from holdfast.cli.runs.many import carry_out
    from holdfast.looking.acting.causes import LetterCause

    cause = LetterCause(workflow=given["workflow"], step=given["step"], error=given["error"])
    plan = acting(given["url"], lambda desk: desk.plan_letters(action, cause))
    if given["dry_run"] and given["as_json"]:
        emit("holdfast.letter-plan/1", plan)
        return 0
    reason = given["reason"]
    return carry_out(
        plan,
        lambda desk: desk.act_on_letters(action, cause, plan.until, by=actor, reason=reason),
        given,
        "dead letter",
    )


def _each(
    word: str, letter_ids: tuple[str, ...], as_json: bool, url: str | None, act: Callable[[Desk, str], Awaitable[Acted]]
) -> int:
    ids = given_ids(letter_ids)
    if not ids:
        raise click.UsageError("name dead letters by their ids")

    async def work(desk: Desk) -> list[Acted]:
        done: list[Acted] = []
        for each in ids:
            try:
                done.append(await act(desk, each))
            except StoreError:
                raise
            except HoldfastError as error:
                if len(ids) == 1 and isinstance(error, NoSuchLetter):
                    raise
                done.append(Acted(run=each, action=word, changed=False, said=str(error), error=type(error).__name__))
        return done

    done = acting(url, work)
    if as_json:
        emit("holdfast.acts/1", done)
    else:
        for acted in done:
            say(f"{acted.run}: {word if acted.changed else acted.said}", err=not acted.changed)
    changed = sum(acted.changed for acted in done)
    return 0 if changed == len(done) else IN_PART if changed else NOTHING_CHANGED
