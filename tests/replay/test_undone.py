"""What reopenings say about steps that were undone, and about attempts that were cut away."""

from __future__ import annotations

from tests.replay.test_cuts import ERROR, LATER, NULL, Story, kept

from holdfast.context.steps import key_for
from holdfast.engine.views.steps import steps_of
from holdfast.replay import entry as entries
from holdfast.replay.cuts import cut_for_all, cut_for_retry
from holdfast.replay.entry import Earlier, decode_entry


class Saga(Story):
    """A history with compensations in branches."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[str, int] = {}

    def call(self, path: str) -> int:
        return self.add(path, entries.StepBegun(0))

    def register(self, path: str, undoes: str) -> None:
        """Add a compensation by the path of its call, `both/left/undo`, and that of the step that it undoes."""
        branch, _, name = path.rpartition("/")
        where = self.at(f"{branch}/compensate {name}" if branch else f"compensate {name}")
        place = self.places[path] = len(self.places)
        step = self.at(undoes) if undoes else ""
        self.add(f"^{place}", entries.CompensationAdded(where, name.partition("#")[0], NULL, NULL, step))

    def undid(self, *paths: str) -> None:
        for path in paths:
            self.step(f"^{self.places[path]}/{path.rpartition('/')[2].partition('#')[0]}")

    def could_not_undo(self, path: str) -> None:
        undoing = f"^{self.places[path]}/{path.rpartition('/')[2]}"
        self.add(undoing, entries.StepBegun(0))
        self.failed(undoing)


def marks_of(story: Story, cut) -> entries.Reopened:
    return decode_entry(cut.entries[0].kind, cut.entries[0].data)


def reopened(story: Story, cut) -> Story:
    """Return what a store makes of a history and a cut."""
    again = Saga()
    again.rows = [*kept(story.rows, cut.seq), *cut.entries]
    for row in again.rows:
        if row.kind == entries.Name.kind:
            again._names.add(decode_entry(row.kind, row.data).name)
    return again


def paid_and_refunded(saga: Saga) -> None:
    saga.completed("charge")
    saga.places.clear()
    saga.register("refund", "charge")
    saga.call("ship")
    saga.failed("ship")
    saga.undid("refund")
    saga.ended("ship")


def test_a_reopening_counts_what_was_undone_for_all_reopenings_so_far():
    """B14 B17 Also when a later one cuts the mark of an earlier one away, or nothing was undone since."""
    saga = Saga()
    saga.call("charge")
    paid_and_refunded(saga)
    for times in (1, 2, 3):
        cut = cut_for_retry(saga.rows, LATER)
        mark = marks_of(saga, cut)
        assert mark.undone == {"charge": times, "compensate refund": times}
        saga = reopened(saga, cut)
        [step] = steps_of("o", saga.rows)
        assert step.idempotency_key == key_for("o", 0, "charge", mark.undone) == f"o:charge~{times + 1}"
        paid_and_refunded(saga)
    saga.rows = kept(saga.rows, saga.rows[-1].seq - 2)  # as if it had failed before anything was undone
    saga.ended("ship")
    assert marks_of(saga, cut_for_all(saga.rows, LATER)).undone == {"charge": 3, "compensate refund": 3}


def test_numbers_and_counts_go_on_where_entries_were_cut_away():
    """G4 The call is kept, or goes too; over several reopenings."""
    story = Story()
    story.step("a")
    story.add("b", entries.StepBegun(0))
    story.add("b", entries.AttemptFailed(1, ERROR, 5))
    story.add("b", entries.AttemptBegun(2))
    story.add("b", entries.StepFailure(2, ERROR))
    story.ended("b")
    cut = cut_for_retry(story.rows, LATER)
    assert [decode_entry(row.kind, row.data).step for row in cut.entries] == [Earlier(0, 1)]
    story = reopened(story, cut)
    story.add("b", entries.AttemptBegun(3))
    story.add("b", entries.StepFailure(3, ERROR))
    story.ended("b")
    [_, b] = steps_of("r", story.rows)
    assert (b.attempts, b.failures) == (3, 3)
    cut = cut_for_all(story.rows, LATER)
    assert marks_of(story, cut).cut == {"a": Earlier(1), "b": Earlier(3, 3)}
    story = reopened(story, cut)
    story.add("a", entries.StepBegun(0, 2))
    story.add("a", entries.StepCompleted(2, NULL))
    story.add("b", entries.StepBegun(0, 4))
    story.add("b", entries.StepFailure(4, ERROR))
    story.ended("b")
    assert [(step.attempts, step.failures) for step in steps_of("r", story.rows)] == [(2, 0), (4, 4)]
    cut = cut_for_all(story.rows, LATER)
    assert marks_of(story, cut).cut == {"a": Earlier(2), "b": Earlier(4, 4)}


def test_a_step_given_up_beside_a_failure_does_not_reuse_the_numbers_it_had():
    """G4 Its call is kept, its second attempt is cut away."""
    story = Story()
    story.add("a", entries.StepBegun(0))
    story.add("b", entries.StepBegun(0))
    story.add("c", entries.StepBegun(0))
    story.failed("a")
    story.add("b", entries.AttemptFailed(1, ERROR, 5))
    story.add("b", entries.AttemptBegun(2))
    story.add("c", entries.AttemptSkipped("not now", 5))
    story.add("c", entries.AttemptSkipped("limit 'x'", 6))
    story.add("b", entries.Cancelled())
    story.ended("a")
    cut = cut_for_retry(story.rows, LATER)
    assert [decode_entry(row.kind, row.data).step for row in cut.entries] == [
        Earlier(0, 1),
        Earlier(2, 1),
        Earlier(0, 0, 1),
    ]


def test_only_what_completed_has_undone_anything():
    """B17 B14 One failed, another was cut off: it is not known what they did, and they are tried again as they were."""
    saga = Saga()
    for name in ("a", "b", "c"):
        saga.step(name)
        saga.register(f"undo {name}", name)
    saga.undid("undo c")
    saga.could_not_undo("undo b")
    saga.add("^0/undo a", entries.StepBegun(0))
    saga.ended()
    cut = cut_for_retry(saga.rows, LATER)
    assert marks_of(saga, cut).undone == {"c": 1, "compensate undo c": 1}
    assert cut.reason == "step 'a', which was undone"


def test_what_was_undone_in_iterations_that_a_loop_has_forgotten_is_still_known():
    """B17 B14 A compensation says which step it undoes; the run begins again with the loop."""
    saga = Saga()
    saga.step("look")
    begun = saga.add("laps", entries.LoopBegun())
    saga.step("laps/~0/note")
    saga.step("laps/~0/pay")
    saga.register("laps/~0/undo", "laps/~0/pay")
    saga.step("laps/~1/pay")
    saga.register("laps/~1/undo", "laps/~1/pay")
    saga.add("laps/!", entries.LoopCheckpoint(2, 1, NULL))
    saga.undid("laps/~1/undo", "laps/~0/undo")
    saga.ended()
    forgotten = saga.at("laps/~0")
    saga.rows = [row for row in saga.rows if not row.location.startswith(forgotten)]
    cut = cut_for_retry(saga.rows, LATER)
    assert cut.seq == begun
    undone = marks_of(saga, cut).undone
    steps = ["laps/~0/pay", "laps/~1/pay", "laps/~0/compensate undo", "laps/~1/compensate undo"]
    assert undone == dict.fromkeys(steps, 1)
    assert [key_for("r", 0, path, undone) for path in steps] == [f"r:{path}~2".replace(" ", "@") for path in steps]
    for path in ("look", "laps/~0/note", "laps/~1/other", "laps/~10/pay"):
        assert key_for("r", 0, path, undone) == f"r:{path}"


def test_what_was_done_in_a_join_that_was_undone_as_a_whole_is_new_when_it_is_done_again():
    """B17 B14 Its compensation undid everything in it; nothing beside it."""
    saga = Saga()
    saga.add("both", entries.JoinBegun(["left", "right"]))
    saga.step("both/left/pay")
    saga.step("both/right/pay")
    saga.register("undo", "both")
    saga.undid("undo")
    saga.ended()
    cut = cut_for_retry(saga.rows, LATER)
    undone = marks_of(saga, cut).undone
    assert (cut.reason, undone) == ("join 'both', which was undone", {"both": 1, "compensate undo": 1})
    for path in ("both/left/pay", "both/right/pay", "both/right/~3/pay#2"):
        assert key_for("r", 0, path, undone) == f"r:{path}~2"
    assert key_for("r", 0, "both#2/left/pay", undone) == "r:both#2/left/pay"
