"""`spyre adapt`: commands that are not trusted, drafts by rules and by a scripted agent."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import openspyre
from openspyre.errors import SpyreError
from openspyre.hf import adapt, confinement
from openspyre.hf.brief import brief_facts, brief_text
from openspyre.hf.confined import Ran, differing, run_confined, snapshot
from openspyre.hf.draft import Agent, Drafted, Proposals, best, code_of, drafted
from openspyre.hf.drafted import read_adapters
from openspyre.hf.formulas import formula_of
from openspyre.hf.gaps import Argument, Call, FailingOp, case_of, failing_ops
from openspyre.hf.proof_inputs import Case, Floats, formula_call
from openspyre.hf.rewrites import rewrites_for
from openspyre.tools.cli import app

openspyre.require()
ROOT = Path(__file__).parents[2]
TENSOR, SQUARE = Argument((3, 4), "float32", (4, 1)), Argument((3, 3), "float32", (3, 1))
EXAMPLES = ROOT / "tests" / "models" / "example_adapters.py"


def shell(script: str, scratch: Path, **how: Any) -> Ran:
    return run_confined(["sh", "-c", script], scratch, **{"seconds": 20.0, **how})


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


@pytest.fixture
def guarded(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "mine.py").write_text("mine")
    return folder


# --- commands -------------------------------------------------------------------------------------


def test_a_command_answers_from_its_scratch(scratch: Path) -> None:
    ran = shell(
        "cat; pwd; echo $HOME $TMPDIR; echo aside >&2; echo kept > file", scratch, given="a\n"
    )
    assert ran.output == f"a\n{scratch}\n{scratch} {scratch}\n"
    assert (ran.code, ran.errors, ran.problem) == (0, "aside\n", "")
    assert (scratch / "file").read_text() == "kept\n"
    assert shell("exit 3", scratch).code == 3
    assert run_confined(["no-such-command"], scratch, seconds=20).code == confinement.NOT_RUN


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("end", ["sleep 60", "exit 0"], ids=["hangs", "leaves them"])
def test_all_that_it_started_ends_with_it(scratch: Path, end: str) -> None:
    """Children in the background, in a session of their own, and deaf to polite signals."""
    script = (
        "sleep 61 & echo $!; setsid sh -c 'trap \"\" TERM HUP; echo $$; sleep 62; sleep 62' & "
        f"sleep 0.3; {end}"
    )
    begun = time.monotonic()
    ran = shell(script, scratch, seconds=1.5)
    took = time.monotonic() - begun
    started = [int(word) for word in ran.output.split()]
    assert len(started) == 2
    assert not any(map(alive, started))
    assert took < 30
    assert ("seconds were over" in ran.problem) is (end == "sleep 60")


def test_it_ends_with_the_process_that_asked(scratch: Path) -> None:
    script = (
        "from pathlib import Path; from openspyre.hf.confined import run_confined;"
        f"run_confined(['sh', '-c', 'echo $$ > pid; sleep 60'], Path({str(scratch)!r}), seconds=60)"
    )
    asking = subprocess.Popen([sys.executable, "-c", script])
    while not (scratch / "pid").exists() or not (scratch / "pid").read_text().strip():
        time.sleep(0.02)
    process = int((scratch / "pid").read_text())
    assert alive(process)
    asking.send_signal(signal.SIGKILL)
    asking.wait()
    deadline = time.monotonic() + 60
    while alive(process) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(process)


def test_it_ends_with_who_asks_at_the_worst_moment(scratch: Path) -> None:
    """The signal comes between the command's start and whatever follows it."""
    script = (
        "import os, signal, sys; from openspyre.hf import confinement; begin = os.fork\n"
        "def fork():\n"
        "    process = begin()\n"
        "    if process: print(process, flush=True); os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return process\n"
        "os.fork = fork\n"
        "sys.exit(confinement.main(os.getppid(), 60, sys.argv[1], ['sleep', '63']))"
    )
    command = [sys.executable, "-c", script, scratch]
    ran = subprocess.run(command, check=False, stdout=subprocess.PIPE)
    assert ran.returncode == confinement.TIME_OVER
    assert not alive(int(ran.stdout))


def test_nothing_starts_for_who_has_ended_already(scratch: Path) -> None:
    """Number 1 asks for nothing."""
    between = [sys.executable, "-I", confinement.__file__, "1", "60", str(scratch)]
    ran = subprocess.run([*between, "sh", "-c", "echo > there"], check=False)
    assert ran.returncode == confinement.TIME_OVER
    assert not (scratch / "there").exists()


def test_endless_output_ends_it(scratch: Path) -> None:
    ran = shell("yes", scratch, most=1000)
    assert ran.problem == "it wrote more than 1000 bytes"
    assert len(ran.output) == 1000


def test_writes_elsewhere_are_refused_or_found(scratch: Path, guarded: Path) -> None:
    ran = shell(f"echo no > {guarded}/new; echo no > {guarded}/mine.py", scratch, guarded=[guarded])
    if confinement.landlock():
        assert (guarded / "mine.py").read_text() == "mine"
        assert [path.name for path in guarded.iterdir()] == ["mine.py"]
        assert ran.changed == ()
    else:
        assert len(ran.changed) == 2
    # Landlock knows no modes: this is found in any case.
    changed = shell(f"chmod 600 {guarded}/mine.py", scratch, guarded=[guarded]).changed
    assert changed == (str(guarded / "mine.py"),)


def test_changes_are_found(guarded: Path, scratch: Path) -> None:
    (guarded / "folder").mkdir()
    (guarded / "other").write_text("a")
    before = snapshot([guarded], scratch)
    assert differing(before, snapshot([guarded], scratch)) == ()
    (guarded / "mine.py").write_text("MINE")  # as long as before
    (guarded / "other").unlink()
    (guarded / "folder" / "new").write_text("")
    (guarded / "__pycache__").mkdir()
    (guarded / "__pycache__" / "x.pyc").write_text("")
    found = differing(before, snapshot([guarded], scratch))
    assert [Path(name).name for name in found] == ["new", "mine.py", "other"]


# --- what does not run on the card ----------------------------------------------------------------


class Gate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.special.chebyshev_polynomial_t(x, 3)


class Gated(nn.Module):
    """A model with two gaps, one of them in a module of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.gate(self.linear(x)) + x.logcumsumexp(dim=-1)


@pytest.fixture(scope="module")
def failing() -> dict[str, FailingOp]:
    torch.manual_seed(0)
    found = failing_ops(Gated().eval(), (torch.randn(3, 6),))
    return {one.op: one for one in found}


@pytest.fixture(scope="module")
def polynomial(failing: dict[str, FailingOp]) -> FailingOp:
    return failing["aten::special_chebyshev_polynomial_t.out"]


def test_failing_ops_and_their_places(failing: dict[str, FailingOp]) -> None:
    assert set(failing) == {"aten::_logcumsumexp", "aten::special_chebyshev_polynomial_t.out"}
    one = failing["aten::special_chebyshev_polynomial_t.out"]
    assert (one.stage, one.count) == ("compiled", 1)
    assert "has no lowering" in one.rule
    (call,) = one.calls
    assert call.name == "torch:special.chebyshev_polynomial_t"
    assert call.module == "gate (Gate)"
    place, _, code = call.place.partition(" ")
    assert code == "return torch.special.chebyshev_polynomial_t(x, 3)"
    line = int(place.rpartition(":")[2])
    assert Path(__file__).read_text().splitlines()[line - 1].strip() == code
    assert case_of(call) == Case((Floats(("n0", "n1")), 3))


def test_a_model_that_lowers_has_none() -> None:
    assert failing_ops(nn.Linear(4, 4), (torch.randn(2, 4),)) == []


class Places(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[torch.bincount((x > 0).long())]


def test_an_op_whose_result_depends_on_values() -> None:
    """There are no floats among its arguments, and no number of results before it is called."""
    (one,) = failing_ops(Places(), (torch.tensor([1.0, -1.0, 2.0]),))
    assert (one.op, one.stage) == ("aten::bincount", "compiled")
    assert one.calls[0].name == "torch:bincount"
    claims = Proposals(best([one], "")).claims

    def counts(x: Tensor) -> Tensor:
        numbers = torch.arange(int(x.max()) + 1 if len(x) else 0)
        return (x[:, None] == numbers).sum(0)

    assert claims.refusal(claims.run(counts)) == ""
    for wrong in (
        lambda x: counts(x).flip(0),
        lambda x: counts(x)[:, None],
        lambda x: counts(x).int(),
        lambda x: torch.arange(len(x)),
    ):
        assert claims.refusal(claims.run(wrong))


def test_what_cannot_be_replaced_as_a_call_is_said() -> None:
    unknown = FailingOp("aten::made_inside", "compiled", "no lowering", (), 1)
    with pytest.raises(SpyreError, match="aten::made_inside"):
        best([unknown], "")
    with pytest.raises(SpyreError, match="no call of aten::made_inside can be replaced"):
        best([unknown], "made_inside")
    with pytest.raises(SpyreError, match="no op other to draft for"):
        best([unknown], "other")


def test_the_brief_says_all(polynomial: FailingOp) -> None:
    facts = brief_facts(polynomial, "model.py", "one NaN: 1 of 12 elements")
    text = brief_text(facts)
    for part in (
        "aten::special_chebyshev_polynomial_t.out", "has no lowering", "gate (Gate)",
        "return torch.special.chebyshev_polynomial_t(x, 3)", '"shape": [3, 6]', "replacement",
        "one NaN: 1 of 12 elements",
    ):  # fmt: skip
        assert part in text
    plain = text.partition("```json\n")[2].rpartition("\n```")[0]
    assert json.loads(plain) == facts


# --- drafts ---------------------------------------------------------------------------------------

RIGHT = "def replacement(x, n):\n    return 2 * x * (2 * x * x - 1) - x\n"
# In (-1, 1) what PyTorch itself computes for larger degrees; NaN elsewhere.
NEARLY = "import torch\ndef replacement(x, n):\n    return torch.cos(n * torch.acos(x))\n"
# The same polynomial; where its first term overflows it takes infinity from infinity.
EXPANDED = "def replacement(x, n):\n    return 4 * x * x * x - 3 * x\n"
CLOSE = "def replacement(x, n):\n    return 2 * x * (2 * x * x - 1) - 1.00001 * x\n"
RAISES = "raise KeyError('no')\ndef replacement(x, n): ...\n"


def function_of(code: str) -> Callable[..., Any]:
    names: dict[str, Any] = {}
    exec(code, names)
    found: Callable[..., Any] = names["replacement"]
    return found


AGENT = """
import sys, time, os
brief = sys.stdin.read()
assert "chebyshev" in brief, brief
mode, *answers = sys.argv[1:]
if mode == "hang":
    print(answers[0], flush=True)
    time.sleep(60)
elif mode == "flood":
    while True: print("x" * 1000)
elif mode == "huge":
    print("# replacement\\n" * 20_000)
elif mode == "fail":
    sys.exit("out of ideas")
elif mode == "learn":
    told = brief.partition("last answer was refused")[2]
    print(answers[1 if "KeyError" in told else 0])
else:
    print(answers[0])
"""


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    path = tmp_path / "agent.py"
    path.write_text(AGENT)
    return path


def answered(failing: FailingOp, agent: Path, *words: str, **how: Any) -> Drafted:
    command = shlex.join([sys.executable, "-S", str(agent), *words])
    asked = Agent(command, **{"seconds": 60.0, "attempts": 1, **how})
    return drafted(failing, "model", agent=asked)


@pytest.fixture(scope="module")
def proposals(polynomial: FailingOp) -> Proposals:
    return Proposals(polynomial)


@pytest.mark.parametrize("code", [NEARLY, EXPANDED, CLOSE], ids=["nearly", "expanded", "close"])
def test_the_proof_refuses_what_loose_tolerances_take(proposals: Proposals, code: str) -> None:
    wrong, x = function_of(code), torch.linspace(-0.9, 0.9, 50)
    expected = torch.special.chebyshev_polynomial_t(x, 3)
    torch.testing.assert_close(wrong(x, 3), expected, rtol=1e-3, atol=1e-4)
    claims = proposals.claims
    assert "elements" in claims.refusal(claims.run(wrong))
    assert claims.refusal(claims.run(function_of(RIGHT))) == ""


def test_code_that_calls_what_it_replaces_is_refused(proposals: Proposals) -> None:
    call = formula_call(proposals.adapter.cases[0])
    itself = formula_of(lambda x, n: torch.special.chebyshev_polynomial_t(x, n), call.args, {})
    (check,) = proposals.formula_checks([itself])
    assert not check.passed
    assert check.detail == "it calls what it replaces"


def test_code_has_a_time_limit(polynomial: FailingOp) -> None:
    proposals = Proposals(polynomial, seconds=0.5)
    attempt = proposals.attempt("agent", "while True: pass", 0.0)
    assert attempt.refusal.endswith("the replacement was ended: its 0.5 seconds were over")


@pytest.mark.parametrize(
    ("function", "args", "kwargs"),
    [
        ("torch:logcumsumexp", (TENSOR, 1), {}),
        ("torch:Tensor.logcumsumexp", (TENSOR,), {"dim": -2}),
        ("torch:Tensor.__pow__", (TENSOR, 5), {}),
        ("torch:linalg.solve_triangular", (SQUARE, TENSOR), {"upper": False}),
        ("torch:linalg.solve_triangular", (SQUARE, TENSOR), {"upper": True, "unitriangular": True}),
        ("torch:linalg.solve_triangular", (SQUARE, SQUARE), {"upper": True, "left": False}),
    ],
)  # fmt: skip
def test_rules_are_right(function: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    call = Call(function, "", "", args, kwargs, ())
    (rule,) = rewrites_for((call,))
    claims = Proposals(FailingOp("aten::op", "compiled", "", (call,), 1)).claims
    assert claims.refusal(claims.run(function_of(rule.code))) == ""


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("hang", RIGHT), "its 1 seconds were over"),
        (("flood",), "it wrote more than 1048576 bytes"),
        (("fail",), "the agent ended with exit code 1: out of ideas"),
        (("say", "I cannot do that."), "the answer is no Python"),
        (("say", ""), "defines no function"),
        (("say", "print('hi')"), "defines no function"),
        (("huge",), "the answer has"),
    ],
    ids=["hanging", "flood", "fails", "words", "nothing", "other code", "huge"],
)
def test_agents_that_give_no_answer(
    polynomial: FailingOp, agent: Path, words: tuple[str, ...], reason: str
) -> None:
    found = answered(polynomial, agent, *words, seconds=1.0 if words[0] == "hang" else 60.0)
    assert not found.file
    assert reason in found.attempts[0].refusal


def test_an_agent_that_touches_the_checkout_is_refused(
    polynomial: FailingOp, tmp_path: Path, guarded: Path
) -> None:
    agent = tmp_path / "agent.py"
    agent.write_text(f"import os; os.chmod({str(guarded / 'mine.py')!r}, 0o600); print({RIGHT!r})")
    found = answered(polynomial, agent, guarded=(guarded,))
    assert "changed meanwhile" in found.attempts[0].refusal
    assert not found.file


def test_an_agent_without_a_command_is_a_mistake(polynomial: FailingOp) -> None:
    for command in ("", "'"):
        with pytest.raises(SpyreError, match="command"):
            drafted(polynomial, "model", agent=Agent(command))


def test_code_in_an_answer() -> None:
    assert code_of(RIGHT) == RIGHT
    assert code_of(f"```\nls\n```\nand\n```py\n{RIGHT}```") == RIGHT


# --- the command ----------------------------------------------------------------------------------


def spyre(*words: str) -> Any:
    return CliRunner().invoke(app, ["adapt", *words], catch_exceptions=False)


def as_json(*words: str, code: int) -> Mapping[str, Any]:
    result = spyre(*words, "--json")
    assert result.exit_code == code, result.output
    found: Mapping[str, Any] = json.loads(result.stdout)
    return found


def test_list_marks_what_is_retired() -> None:
    assert spyre("list").stdout == "no adapters are shipped: stock models run as they are\n"
    assert as_json("list", code=0) == {"adapters": []}
    rows = as_json("list", str(EXAMPLES), code=0)["adapters"]
    assert [row["state"] for row in rows] == ["retired", "retired", "retired"]
    assert rows[0]["why"].endswith(f"with openspyre {openspyre.__version__}")
    text = spyre("list", str(EXAMPLES), "--no-probe").stdout
    assert "transformers.pytorch_utils.Conv1D, bridges aten.addmm.default" in text
    assert "not asked" in text


def test_check_proves_and_says_what_it_did(tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    path.write_text("from tests.models.example_adapters import POWER\nADAPTERS = (POWER,)\n")
    text = spyre("check", str(path), "--no-models").stdout
    assert "cube-as-products: proved" in text
    assert "by logarithm: refused as it must be" in text
    assert spyre("check").stdout == "no adapters are shipped: there is nothing to prove\n"


def test_check_of_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(
        "from dataclasses import replace\n"
        "from tests.models.example_adapters import POWER\n"
        "ADAPTERS = (replace(POWER, replacement=lambda x, n: x * x, controls={}),)\n"
    )
    (found,) = as_json("check", str(path), "--no-models", code=1)["adapters"]
    assert not found["passed"]
    for words, said in (
        (("check", "no-such"), "there is no adapter no-such"),
        (("check", str(tmp_path / "none.py")), "there is no file"),
        (("list", str(Path(__file__).parent / "conftest.py")), "defines no ADAPTERS"),
        (("draft", str(tmp_path / "none.py")), "there is no script"),
    ):
        result = spyre(*words)
        assert result.exit_code == 2
        assert said in result.stderr


MODEL = """
import torch
from torch import nn

class Polynomial(nn.Module):
    def forward(self, x):
        return torch.special.chebyshev_polynomial_t(x, 3) * 2

model, inputs = Polynomial(), torch.randn(2, 5, generator=torch.Generator().manual_seed(1))
"""


def test_draft_from_end_to_end(
    tmp_path: Path, agent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent whose first answer raises, and which learns from the refusal."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    fenced = f"Here it is:\n```python\n{RIGHT}```\nDone."
    words = [sys.executable, "-S", str(agent), "learn", RAISES, fenced]
    found = as_json("draft", "model.py", "--agent", shlex.join(words), code=0)
    assert found["op"] == "aten::special_chebyshev_polynomial_t.out"
    assert "chebyshev_polynomial_t(x, 3) * 2" in Path(found["brief"]).read_text()
    assert [one["accepted"] for one in found["attempts"]] == [False, True]

    lines = [json.loads(text) for text in Path(found["log"]).read_text().splitlines()]
    assert "the code raises KeyError" in lines[0]["refusal"]
    assert lines[0]["code"].strip() == RAISES.strip()
    last = lines[1]["checks"][-1]
    assert (last["stage"], last["passed"]) == ("model", True)

    (adapter,) = read_adapters(Path(found["adapter"]))
    model, x = Gated().eval(), torch.randn(3, 6)
    expected = model(x)
    with adapt(model, adapters=[adapter]) as adapted:
        torch.testing.assert_close(model(x), expected)
    assert "special_chebyshev_polynomial_t" in str(adapted)
    takes = adapter.replaces.when  # type: ignore[union-attr]
    assert takes(x, 3)
    assert not takes(x, 4)  # what was not proved is not replaced
    assert not takes(x[0], 3)
    assert not takes(x.long(), 3)


def test_help_says_what_is_enforced() -> None:
    text = " ".join(spyre("draft", "--help").stdout.split())
    assert "Landlock" in text
    assert "Not enforced" in text
