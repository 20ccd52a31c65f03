"""Whatever a row says, there is a sentence for it."""

from __future__ import annotations

from datetime import UTC

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.contract.heads import RunHead, WorkerAbout, WorkerRow
from holdfast.contract.house import EventQueueRow, KeyHolder
from holdfast.contract.limits import Admission
from holdfast.contract.rows import RunPlace, Status
from holdfast.contract.waits import WaitNote, write_wait
from holdfast.looking.facts import Act, Facts, LimitFact, RunningStep
from holdfast.looking.times import Times
from holdfast.looking.why import CODES, DEPTH, LONGEST, explain

NOW = 1_763_280_000_000_000
instants = st.integers(NOW - 10**13, NOW + 10**13)
texts = st.text(max_size=20)
names = st.sampled_from(["a", "b", "order-7", "gpu", ""])
KINDS = ("message", "child", "retry", "queue", "key", "limit", "timer", "callback", "step x (queue gpu)", "odd")
notes = st.builds(
    WaitNote, kind=st.sampled_from(["retry", "key", "limit", "message"]), step=texts, queue=names, limit=names,
    names=st.lists(names, min_size=1, max_size=2).map(tuple), key=names, activity=names, attempt=st.integers(0, 9),
    of=st.none() | st.integers(1, 9), until=st.none() | instants, error=texts, skipped=st.booleans(),
)  # fmt: skip
words = st.lists(st.sampled_from([*(f"{kind} a" for kind in KINDS[:6]), *KINDS]), max_size=3).map("; ".join)
waits = st.builds(write_wait, words, st.lists(notes, max_size=3))
heads = st.builds(
    RunHead, key=st.integers(1, 9), id=names, workflow=names, version=texts, status=st.sampled_from([*Status]),
    wait=waits, due=st.none() | instants, epoch=st.integers(0, 2), owner=st.none() | names, generation=st.just(0),
    inbox=st.just(0), claims=st.just(0), lost=st.just(""), parent=st.none() | names, created=instants, updated=instants,
    ended=st.none() | instants, begins=st.none() | instants, deadline=st.none(), priority=st.just(0),
    unique_key=st.none(), actor=st.none(), tenant=st.none(), reopens=st.just(0),
    conclusion=st.none() | st.sampled_from([*Status]), place=st.sampled_from([*RunPlace]),
    fingerprint=st.none() | texts, attributes=st.just("{}"),
    error_type=st.none() | st.sampled_from(["holdfast.errors.ChildFailed", "Terminated", "RunTimeout", "x.y", ""]),
    error_message=st.none() | texts, failed_step=st.none() | texts, compensated=st.booleans(),
)  # fmt: skip
workers = st.builds(
    WorkerRow, id=names, state=st.sampled_from(["alive", "silent", "dead"]), host=texts, pid=st.just(1),
    lease=st.just(10**7), heard=instants, joined=instants,
    about=st.builds(WorkerAbout, holdfast=st.sampled_from(["", "0.1.0"]), queues=st.lists(names, max_size=2)),
)  # fmt: skip


@st.composite
def known(draw) -> Facts:
    """Return what might be known beside the rows, of which anything may be missing."""
    some = draw(st.lists(workers, max_size=2))
    found = draw(st.lists(heads, max_size=3))
    act = st.builds(Act, texts, st.sampled_from(["pause", "cancel", "terminate", "other"]), instants, texts)
    step = st.builds(RunningStep, texts, st.integers(1, 9), instants, st.none() | instants, texts)
    limit = st.builds(
        LimitFact, st.booleans(), st.just(1), st.just(2), st.none() | instants, texts, st.none() | instants
    )
    published = st.builds(EventQueueRow, st.integers(0, 9), st.none() | names, st.none() | instants)
    holder = st.builds(KeyHolder, names, st.none() | instants)
    admission = st.builds(Admission, lane=texts, since=instants, first=st.none() | instants)
    return Facts(
        workers={worker.id: worker for worker in some},
        heads={head.id: head for head in found},
        acts=draw(st.dictionaries(names, act, max_size=2)),
        paused=draw(st.dictionaries(st.tuples(st.sampled_from(["workflow", "queue"]), names), instants, max_size=2)),
        holders=draw(st.dictionaries(st.tuples(names, names), holder, max_size=2)),
        limits=draw(st.dictionaries(names, limit, max_size=2)),
        admissions=draw(st.dictionaries(st.integers(1, 9), admission, max_size=2)),
        published=draw(st.dictionaries(names, published, max_size=2)),
        steps=draw(st.dictionaries(names, step, max_size=2)),
        unread=draw(st.dictionaries(st.integers(1, 9), st.just(("aa", "order-8")), max_size=2)),
    )


@settings(max_examples=30)
@given(heads, known(), st.booleans())
def test_no_row_is_without_a_sentence(head, facts, relative):
    why = explain(head, facts, Times(NOW, UTC, relative), DEPTH)
    assert why.code in CODES
    assert 0 < len(why.sentence) <= LONGEST
    assert "\n" not in why.sentence
    assert len(why.chain) <= DEPTH
