"""A downstream's callback at the relay: its checks in their published order, with their status."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from openspyre.ci.relay.stub.hud import Fault
from openspyre.ci.relay.stub.identity import Issuer
from openspyre.ci.relay.wire import GITHUB_ISSUER
from tests.ci.relay.world import (
    FOUR,
    ONE,
    SHA,
    START,
    THREE,
    TWO,
    World,
    callback,
    detail,
    key,
    pull_request,
    workflow,
    world,
)


def dispatched(faults: tuple[Fault, ...] = ()) -> World:
    made = world(faults=faults)
    assert made.hook(pull_request()).status == 200
    return made


def test_a_job_is_announced_and_reported() -> None:
    made = dispatched()
    made.clock.time += 12.5
    first = made.call(callback())
    assert (first.status, first.body) == (200, {"ok": True, "status": "in_progress"})
    made.clock.time += 100
    counts = {"passed": 3, "failed": 1, "skipped": 2}
    last = made.call(callback("completed", conclusion="failure", test_results=counts))
    assert (last.status, last.body) == (200, {"ok": True, "status": "completed"})
    (row,) = made.hud.rows.values()
    assert row.key == f"{TWO}/d-1/upstream/leg/55"
    assert (row.status, row.conclusion, row.level) == ("completed", "failure", 2)
    assert (row.queue_time, row.execution_time) == (12.5, 100.0)
    assert row.counts == {**counts, "total": 6}


# --- JSON, then the token ---------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_json_is_refused_before_the_token_is_looked_at(body: bytes) -> None:
    assert world().relay.callback({}, body).status == 400


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer  ", "Bearer a.b.c", "Basic eA==", "x"])
def test_without_a_token_nothing_more_is_looked_at(header: str) -> None:
    made = world()
    made.relay.store.limiter_down = True
    assert made.relay.callback({"authorization": header}, b"{}").status == 401


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": START - 1},
        {"exp": START},
        {"exp": None},
        {"exp": "tomorrow"},
        {"exp": True},
        {"aud": "somebody-else"},
        {"aud": None},
        {"iss": "https://example.org"},
        {"iss": None},
        {"iss": "https://agent.buildkite.com"},  # signed with another's key
        {"repository": None},
        {"repository": ""},
        {"nbf": START + 60},
    ],
    ids=str,
)
def test_a_token_that_proves_nothing_is_refused(claims: dict[str, object]) -> None:
    assert dispatched().call(callback(), TWO, **claims).status == 401


def test_a_token_of_a_foreign_key_is_refused() -> None:
    made = dispatched()
    for key_id in ("local", "foreign"):
        foreign = Issuer(made.clock, GITHUB_ISSUER, key("foreign"), key_id)
        headers = {"authorization": f"Bearer {foreign.token(TWO)}"}
        assert made.relay.callback(headers, json.dumps(callback()).encode()).status == 401


def unsigned(token: str) -> str:
    return token.rsplit(".", 1)[0] + "."


def altered(token: str) -> str:
    head, claims, signature = token.split(".")
    return f"{head}.{claims[:-2]}{'A' if claims[-2] != 'A' else 'B'}{claims[-1]}.{signature}"


@pytest.mark.parametrize("spoil", [unsigned, altered])
def test_a_spoilt_token_is_refused(spoil: Callable[[str], str]) -> None:
    made = dispatched()
    headers = {"authorization": f"Bearer {spoil(made.issuer.token(TWO))}"}
    assert made.relay.callback(headers, json.dumps(callback()).encode()).status == 401


def test_a_token_lasts_five_minutes() -> None:
    made = dispatched()
    headers = {"authorization": f"bearer {made.issuer.token(TWO)}"}
    made.clock.time += 299
    assert made.relay.callback(headers, json.dumps(callback()).encode()).status == 200
    made.clock.time += 1
    body = json.dumps(callback("completed")).encode()
    assert made.relay.callback(headers, body).status == 401


def test_a_downstream_whose_clock_is_ahead_is_refused_until_its_time_has_come() -> None:
    made = dispatched()
    ahead = {"iat": START + 5, "nbf": START + 5, "exp": START + 305}
    assert made.call(callback(), TWO, **ahead).status == 401
    made.clock.time += 5
    assert made.call(callback(), TWO, **ahead).status == 200


def test_a_pipeline_of_buildkite_is_mapped_to_its_repository() -> None:
    made = dispatched()
    body = json.dumps(callback()).encode()

    def status(**claims: object) -> int:
        token = made.pipelines.token("", repository=None, **claims)
        return made.relay.callback({"authorization": token}, body).status

    assert status(organization_id="org", pipeline_id="other") == 403
    assert status(organization_id="org") == 401
    assert status(organization_id="org", pipeline_id="known") == 200
    assert next(iter(made.hud.rows.values())).repository == TWO


def test_claims_may_be_required_of_a_repository() -> None:
    made = dispatched()
    assert made.call(callback(), FOUR).status == 401
    assert made.call(callback(), FOUR, ref="refs/heads/main").status == 200


# --- level, rate ------------------------------------------------------------------------------


@pytest.mark.parametrize("repository", [ONE, "no/body"])
def test_below_level_two_everything_is_ignored_and_nothing_is_counted(repository: str) -> None:
    made = dispatched()
    made.relay.store.limiter_down = True
    answer = made.call({"anything": 1}, repository)
    assert (answer.status, answer.body) == (200, {"ok": True, "status": "ignored"})
    assert made.hud.calls == 0


def test_the_101st_call_in_a_minute_is_refused_whatever_it_holds() -> None:
    made = dispatched()
    for _ in range(100):
        assert made.call({}).status == 400
    assert made.call(callback()).status == 429
    assert made.call(callback(), THREE).status == 200  # each repository has its own
    made.clock.time += 59
    assert made.call(callback()).status == 429
    made.clock.time += 1  # the first hundred and one are out of the window
    assert made.call(callback()).status == 200


def test_refused_calls_count_too() -> None:
    made = dispatched()
    for second in range(150):
        made.clock.time = START + second
        assert made.call({}).status == 400
    for _ in range(200):
        made.call({})
    made.clock.time += 59.5
    assert made.call(callback()).status == 429


def test_without_the_limiter_nothing_is_let_through() -> None:
    made = dispatched()
    made.relay.store.limiter_down = True
    assert made.call({}).status == 500


# --- fields, states ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        "text",
        None,
        {"workflow": workflow()},
        {"delivery_id": "d-1"},
        {"delivery_id": "d-1", "workflow": []},
        {"delivery_id": "d-1", "workflow": None},
        {"delivery_id": "d-1", "workflow": "text"},
        callback(status=...),
        callback(run_id=...),
        callback(name=...),
        callback(run_id=None),
        callback(run_id=[]),
    ],
    ids=lambda body: json.dumps(body)[:30],
)
def test_a_missing_field_is_refused(body: object) -> None:
    made = dispatched()
    answer = made.call(body)
    assert answer.status == 400
    assert "missing required field" in detail(answer)


@pytest.mark.parametrize("run_id", ["five", "5.5", ""])
def test_the_relay_trips_over_a_run_that_is_no_number(run_id: str) -> None:
    assert dispatched().call(callback(run_id=run_id)).status == 500


def test_without_a_dispatch_there_is_nothing_to_report() -> None:
    made = world()
    assert "no matching dispatch" in detail(made.call(callback(status="nonsense")))
    made.hook(pull_request())
    assert made.call(callback(delivery="d-2")).status == 400
    assert made.call(callback()).status == 200


@pytest.mark.parametrize("status", ["queued", "dispatched", "", "COMPLETED", 3])
def test_an_unknown_status_is_refused(status: object) -> None:
    answer = dispatched().call(callback(status=status))
    assert answer.status == 400
    assert "unknown callback status" in detail(answer)


@pytest.mark.parametrize(
    ("before", "then"),
    [
        ([], "completed"),
        (["in_progress"], "in_progress"),
        (["in_progress", "completed"], "completed"),
        (["in_progress", "completed"], "in_progress"),
    ],
)
def test_an_illegal_step_is_refused(before: list[str], then: str) -> None:
    made = dispatched()
    for status in before:
        assert made.call(callback(status)).status == 200
    calls = made.hud.calls
    answer = made.call(callback(then))
    assert answer.status == 400
    assert "invalid state transition" in detail(answer)
    assert made.hud.calls == calls


def test_run_0_is_the_dispatchs_own() -> None:
    assert dispatched().call(callback(run_id="0")).status == 400
    assert dispatched().call(callback(run_id=0, run_attempt=0, job_name=...)).status == 400


@pytest.mark.parametrize(
    "changes", [{"run_attempt": "2"}, {"run_id": "6"}, {"job_name": "other leg"}]
)
def test_runs_attempts_and_jobs_have_states_of_their_own(changes: dict[str, object]) -> None:
    made = dispatched()
    assert made.call(callback()).status == 200
    assert made.call(callback("completed", **changes)).status == 400
    assert made.call(callback(**changes)).status == 200
    assert made.call(callback("completed", **changes)).status == 200
    assert made.call(callback("completed")).status == 200


def test_a_state_is_forgotten_after_three_days() -> None:
    made = dispatched()
    made.clock.time += 259_199
    assert made.call(callback()).status == 200
    made.clock.time += 1
    assert made.call(callback("completed")).status == 400


def test_without_the_store_no_state_is_taken() -> None:
    made = dispatched()
    made.relay.store.states_down = True
    assert made.call(callback()).status == 503
    assert made.hud.calls == 0
    made.relay.store.states_down = False
    assert made.call(callback()).status == 200


# --- the dashboard ----------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["job_name", "check_run_id"])
def test_the_dashboard_refuses_what_it_cannot_file_and_the_state_is_taken(missing: str) -> None:
    made = dispatched()
    answer = made.call(callback(**{missing: ...}))
    assert answer.status == 400
    assert missing in detail(answer)
    assert "invalid state transition" in detail(made.call(callback(**{missing: ...})))


def test_the_dashboard_refuses_what_is_too_large() -> None:
    made = dispatched()
    assert made.call(callback(filler="x" * (2 * 1024 * 1024))).status == 413


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_a_dashboard_that_fails_is_tried_four_times(failures: int) -> None:
    made = dispatched((Fault.FAILS,) * failures)
    assert made.call(callback()).status == 200
    assert made.clock.time - START == sum((1, 2, 4)[:failures])
    assert made.hud.calls == failures + 1


@pytest.mark.parametrize(("fault", "waited"), [(Fault.FAILS, 7), (Fault.HANGS, 47)])
def test_a_dashboard_that_stays_down_is_an_error_after_the_state_is_taken(
    fault: Fault, waited: float
) -> None:
    made = dispatched((fault,) * 4)
    assert made.call(callback()).status == 500
    assert made.clock.time - START == waited
    assert made.hud.calls == 4
    again = made.call(callback())  # a resend is an illegal step
    assert again.status == 400
    assert made.hud.rows == {}
    rerun = made.call(callback(run_attempt="2"))  # and this is the way out
    assert rerun.status == 200


def test_what_the_dashboard_refuses_is_not_tried_again() -> None:
    made = dispatched((Fault.REFUSES,))
    assert made.call(callback()).status == 422
    assert made.hud.calls == 1
    assert made.call(callback("completed")).status == 200


# --- levels three and four, nightly, zombies --------------------------------------------------


@pytest.mark.parametrize("label", ["ciflow/crcr/abacus", "ciflow/oot/abacus"])
def test_level_three_shows_on_the_pull_request_with_its_label(label: str) -> None:
    made = world()
    payload = pull_request(labels=[{"name": label}])
    made.hook(payload)
    assert made.call(callback(payload=payload), TWO).status == 200
    assert made.call(callback(payload=payload), THREE).status == 200
    assert [(c.repository, c.blocking, c.sha) for c in made.relay.checks] == [(THREE, False, SHA)]


def test_level_four_always_shows_and_blocks_whatever_the_dashboard_does() -> None:
    made = dispatched((Fault.REFUSES,))
    assert made.call(callback(), FOUR, ref="refs/heads/main").status == 422
    assert [(c.repository, c.blocking) for c in made.relay.checks] == [(FOUR, True)]


@pytest.mark.parametrize("event", ["nightly", "periodic"])
def test_a_nightly_run_is_reported_without_a_dispatch(event: str) -> None:
    made = world()
    body = {**callback("completed"), "event_type": event, "delivery_id": SHA}
    for _ in range(2):  # it has no states
        answer = made.call(body)
        assert (answer.status, answer.body) == (200, {"ok": True, "status": "completed"})
    (row,) = made.hud.rows.values()
    assert (row.queue_time, row.execution_time) == (None, None)
    assert made.call({**body, "workflow": workflow()}).status == 400
    assert made.call({**body, "workflow": None}).status == 400
    assert made.call(body, ONE).body == {"ok": True, "status": "ignored"}


def test_a_job_that_never_ends_is_ended() -> None:
    made = dispatched()
    assert made.call(callback()).status == 200
    made.clock.time += 6 * 3600 - 1
    assert made.relay.sweep() == 0
    made.clock.time += 1
    assert made.relay.sweep() == 1
    (row,) = made.hud.rows.values()
    assert (row.status, row.conclusion) == ("completed", "timed_out")
    assert row.execution_time == 6 * 3600
    assert made.relay.sweep() == 0
    assert made.call(callback("completed")).status == 400


def test_a_sweep_goes_on_where_the_dashboard_is_down() -> None:
    made = dispatched()
    for leg in ("a", "b"):
        assert made.call(callback(job_name=leg)).status == 200
    made.hud.faults = [Fault.FAILS] * 4
    made.clock.time += 6 * 3600
    assert made.relay.sweep() == 2
    ended = sorted(row.conclusion for row in made.hud.rows.values())
    assert ended == ["", "timed_out"]
