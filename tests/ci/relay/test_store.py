"""The state machine against a model of it, and the window of the rate limit."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from openspyre.ci.relay.stub.clock import SetClock
from openspyre.ci.relay.stub.store import Down, IllegalStep, Key, Store
from openspyre.ci.relay.wire import RATE_LIMIT, STATE_SECONDS, ZOMBIE_SECONDS, State

deliveries = st.sampled_from(("d-1", "d-2"))
runs = st.tuples(st.integers(0, 2), st.integers(0, 2), st.sampled_from(("", "a", "b")))


class States(RuleBasedStateMachine):
    """The published rules, in words: what was dispatched, began, ended, and when."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = SetClock(0.0)
        self.store = Store(self.clock)
        self.model: dict[Key, tuple[str, float]] = {}

    def known(self, key: Key) -> str:
        state, since = self.model.get(key, ("", 0.0))
        return state if self.clock.time - since < STATE_SECONDS else ""

    def attempt(self, key: Key, state: State, legal: bool) -> None:
        try:
            self.store.step(key, state)
        except IllegalStep:
            assert not legal
            return
        except Down:
            assert legal
            assert self.store.states_down
            return
        assert legal
        self.model[key] = (str(state), self.clock.time)

    @rule(delivery=deliveries)
    def dispatch(self, delivery: str) -> None:
        key = Key(delivery, "down/two")
        self.attempt(key, State.DISPATCHED, not self.known(key))

    @rule(delivery=deliveries, run=runs)
    def begin(self, delivery: str, run: tuple[int, int, str]) -> None:
        key = Key(delivery, "down/two", *run)
        self.attempt(key, State.IN_PROGRESS, run[0] > 0 and not self.known(key))

    @rule(delivery=deliveries, run=runs)
    def end(self, delivery: str, run: tuple[int, int, str]) -> None:
        key = Key(delivery, "down/two", *run)
        self.attempt(key, State.COMPLETED, run[0] > 0 and self.known(key) == "in_progress")

    @rule(seconds=st.sampled_from((1.0, ZOMBIE_SECONDS, STATE_SECONDS)))
    def wait(self, seconds: float) -> None:
        self.clock.time += seconds

    @rule(down=st.booleans())
    def outage(self, down: bool) -> None:
        self.store.states_down = down

    @rule()
    def sweep(self) -> None:
        self.store.states_down = False
        stuck = {
            key
            for key, (state, since) in self.model.items()
            if state == "in_progress" and ZOMBIE_SECONDS <= self.clock.time - since < STATE_SECONDS
        }
        assert {key for key, _ in self.store.zombies()} == stuck
        for key in stuck:
            self.model[key] = ("completed", self.clock.time)

    @invariant()
    def agrees(self) -> None:
        for key in self.model:
            record = self.store.state(key)
            assert (str(record.state) if record else "") == self.known(key)


States.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestStates = States.TestCase


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from((0.0, 0.25, 0.5, 1.0, 30.0)), min_size=90, max_size=160))
def test_the_window_slides(gaps: list[float]) -> None:
    clock = SetClock(0.0)
    store = Store(clock)
    moments: list[float] = []
    for gap in gaps:
        clock.time += gap
        moments.append(clock.time)
        within = sum(clock.time - moment < 60 for moment in moments)
        assert store.admitted("down/two") == (within <= RATE_LIMIT)


def test_keys_read_as_published() -> None:
    job = Key("d-1", "down/two", 5, 2, "leg")
    assert str(job) == "crcr:state:d-1:down/two:5:2:leg"
    assert str(job.dispatch()) == "crcr:state:d-1:down/two:0:0"
