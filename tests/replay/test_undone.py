"""Which steps a run's compensations undid, told by their places in the history."""

from __future__ import annotations

from tests.replay.test_cuts import ERROR, LATER, NULL, Story, kept

from holdfast.context.steps import key_for
from holdfast.engine.views.steps import steps_of
from holdfast.replay import entry as entries
from holdfast.replay.cuts import cut_for_all, cut_for_retry
from holdfast.replay.entry import Earlier, decode_entry
from holdfast.replay.undone import undone_in


class Saga(Story):
    """A history with compensations in branches."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[str, int] = {}

    def call(self, path: str) -> int:
        return self.add(path, entries.StepBegun(0))

    def register(self, path: str, before: int = 0) -> None:
        """Add a compensation by the path of its call, `both/left/undo`."""
        branch, _, name = path.rpartition("/")
        where = self.at(f"{branch}/compensate {name}" if branch else f"compensate {name}")
        place = self.places[path] = len(self.places)
        self.add(f"^{place}", entries.CompensationAdded(where, name.partition("#")[0], NULL, NULL, before))

    def undid(self, *paths: str) -> None:
        for path in paths:
            self.step(f"^{self.places[path]}/{path.rpartition('/')[2].partition('#')[0]}")

    def could_not_undo(self, path: str) -> None:
        undoing = f"^{self.places[path]}/{path.rpartition('/')[2]}"
        self.add(undoing, entries.StepBegun(0))
        self.failed(undoing)

    @property
    def undone(self) -> set[str]:
        found = undone_in(self.rows)
        return {self._names.path(location) for location in found.steps}


def test_a_compensation_stands_for_the_step_that_ended_before_it():
    """B17 The step that failed the run, and those that nothing undoes, are not among them."""
    saga = Saga()
    saga.step("look")
    saga.step("reserve")
    saga.register("release")
    saga.step("print")
    saga.step("charge")
    saga.register("refund")
    saga.call("ship")
    saga.failed("ship")
    assert saga.undone == set()
    saga.undid("refund", "release")
    assert saga.undone == {"reserve", "charge"}


def test_only_what_completed_has_undone_anything():
    """B17 B14 One failed, the other was cut off: nobody knows."""
    saga = Saga()
    saga.step("a")
    saga.register("undo a")
    saga.step("b")
    saga.register("undo b")
    saga.step("c")
    saga.register("undo c")
    saga.undid("undo c")
    saga.could_not_undo("undo b")
    saga.add("^0/undo a", entries.StepBegun(0))
    assert saga.undone == {"c"}


def test_several_together_stand_for_as_many_steps_in_the_order_of_their_calls():
    """B17 They ended in another order; one of them could not be undone."""
    saga = Saga()
    saga.step("before")
    saga.call("a")
    saga.call("b")
    saga.completed("b")
    saga.completed("a")
    saga.register("undo a")
    saga.register("undo b")
    saga.could_not_undo("undo b")
    saga.undid("undo a")
    assert saga.undone == {"a"}


def test_a_second_compensation_for_a_step_takes_no_other_step():
    """B17 The first of them is what undoes it."""
    saga = Saga()
    saga.step("a")
    saga.register("undo a")
    saga.step("b")
    saga.register("undo b")
    saga.register("tell b")
    saga.undid("tell b", "undo b")
    assert saga.undone == {"b"}
    saga = Saga()
    saga.step("a")
    saga.register("undo a")
    saga.add("doze", entries.SleepBegun(5))
    saga.add("doze", entries.TimerFired())
    saga.register("tell a")
    saga.call("c")
    saga.failed("c")
    saga.undid("tell a")
    assert saga.undone == set()


def test_one_that_is_added_while_a_step_is_under_way_stands_for_that_step():
    """B17 Called, added, awaited: whatever ended before it."""
    saga = Saga()
    saga.step("look")
    saga.call("charge")
    saga.register("refund")
    saga.failed("charge")
    saga.undid("refund")
    assert saga.undone == {"charge"}


def test_a_step_under_way_for_long_is_not_what_a_later_compensation_undoes():
    """B17 It was called in another stretch of the code."""
    saga = Saga()
    saga.call("monitor")
    saga.step("book")
    saga.register("release")
    saga.undid("release")
    assert saga.undone == {"book"}


def test_those_added_first_stand_for_what_is_called_next():
    """B17 Nothing was done before the first; what was done before the second is the first one's."""
    saga = Saga()
    saga.register("undo a")
    saga.step("a")
    saga.register("undo b")
    saga.step("b")
    saga.step("c")
    saga.undid("undo b", "undo a")
    assert saga.undone == {"a", "b"}


def test_branches_are_told_apart():
    """B17 B8 The right branch ended something last, but the compensation is the left one's; a join's is any's."""
    saga = Saga()
    saga.add("both", entries.JoinBegun(["left", "right"]))
    saga.call("both/left/pay")
    saga.call("both/right/pay")
    saga.completed("both/left/pay")
    saga.add("both/left/doze", entries.SleepBegun(5))
    saga.completed("both/right/pay")
    saga.add("both/left/doze", entries.TimerFired())
    saga.register("both/left/undo")
    saga.register("undo")
    saga.undid("both/left/undo")
    assert saga.undone == {"both/left/pay"}
    saga.undid("undo")
    assert saga.undone == {"both/left/pay", "both/right/pay"}


def test_ends_that_the_code_had_not_seen_are_not_what_it_registers_for():
    """B17 B25 The run was paused: both ends are recorded before the code goes on from the first."""
    saga = Saga()
    saga.call("a")
    saga.call("b")
    saga.put("!", entries.Withheld())
    saga.completed("a")
    unseen = saga.completed("b")
    saga.register("undo a", before=unseen)
    saga.undid("undo a")
    assert saga.undone == {"a"}


# What reopenings say about it.


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
    saga.register("refund")
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
    story.add("b", entries.StepFailed(2, ERROR))
    story.ended("b")
    cut = cut_for_retry(story.rows, LATER)
    assert [decode_entry(row.kind, row.data).step for row in cut.entries] == [Earlier(0, 1)]
    story = reopened(story, cut)
    story.add("b", entries.AttemptBegun(3))
    story.add("b", entries.StepFailed(3, ERROR))
    story.ended("b")
    [_, b] = steps_of("r", story.rows)
    assert (b.attempts, b.failures) == (3, 3)
    cut = cut_for_all(story.rows, LATER)
    assert marks_of(story, cut).cut == {"a": Earlier(1), "b": Earlier(3, 3)}
    story = reopened(story, cut)
    story.add("a", entries.StepBegun(0, 2))
    story.add("a", entries.StepCompleted(2, NULL))
    story.add("b", entries.StepBegun(0, 4))
    story.add("b", entries.StepFailed(4, ERROR))
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


def test_what_was_undone_in_iterations_that_a_loop_has_forgotten_is_known_by_the_iteration():
    """B17 B14 Every step of it counts as undone, in branches of it too; nothing beside it does."""
    saga = Saga()
    saga.step("look")
    saga.add("laps", entries.LoopBegun())
    saga.register("laps/~0/undo")
    saga.step("laps/~1/pay")
    saga.register("laps/~1/undo")
    saga.undid("laps/~1/undo", "laps/~0/undo")
    saga.ended()
    mark = marks_of(saga, cut_for_all(saga.rows, LATER))
    assert mark.undone == {"laps/~0/": 1, "laps/~1/pay": 1, "laps/~1/compensate undo": 1}
    for path in ("laps/~0/pay", "laps/~0/both/left/pay", "laps/~0/compensate undo", "laps/~1/pay"):
        assert key_for("r", 0, path, mark.undone) == f"r:{path}~2"
    for path in ("look", "laps/~1/other", "laps/~10/pay"):
        assert key_for("r", 0, path, mark.undone) == f"r:{path}"
