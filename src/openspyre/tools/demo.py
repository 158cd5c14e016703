"""The main job: semantic search with a stock Hugging Face model on the software card."""

from __future__ import annotations

import copy
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from openspyre.card.report import kernel_table
from openspyre.errors import SpyreError
from openspyre.hf.weights import fetch
from openspyre.runtime.profiler import Profile, profile
from openspyre.tools.embedding import Encoder, Sentences, load_encoder
from openspyre.tools.progress import late_bar

QUERIES = ("How do animals sleep?", "What makes computers crash?", "a dish with eggs")
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True, slots=True)
class Agreement:
    """How close the card's embeddings are to the CPU's fp32 ones."""

    cosine: float  # smallest over sentences
    error: float  # largest absolute
    same_top: int  # queries with the same best match
    queries: int


@app.command()
def demo(
    corpus: Annotated[Path | None, typer.Option(help="Text file, one sentence a line.")] = None,
    query: Annotated[list[str] | None, typer.Option(help="What to search for; may repeat.")] = None,
    model: Annotated[Path | None, typer.Option(help="Folder of a Hugging Face encoder.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sentences per forward.")] = 8,
    top: Annotated[int, typer.Option(min=1, help="Matches to show.")] = 3,
    truncate: Annotated[bool, typer.Option(help="Cut lines that are too long.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Embed a corpus on the software card, answer queries, and show what the card did."""
    console = Console(stderr=as_json, width=None if sys.stdout.isatty() else 120)
    try:
        result = _search(corpus, tuple(query or QUERIES), model, batch, truncate, console)
    except (SpyreError, torch.OutOfMemoryError) as error:
        print(f"demo: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    if as_json:
        print(json.dumps(result.as_dict(top), indent=1))
    else:
        result.show(console, top)


@dataclass(frozen=True, slots=True)
class Result:
    """What the demo found and measured."""

    queries: tuple[str, ...]
    corpus: tuple[str, ...]
    scores: torch.Tensor  # [queries, corpus]
    agreement: Agreement
    profile: Profile
    card_seconds: float
    cpu_seconds: float
    graphs: int

    def matches(self, top: int) -> list[tuple[str, list[tuple[float, str]]]]:
        best = self.scores.topk(min(top, len(self.corpus)), dim=1)
        return [
            (q, [(float(v), self.corpus[int(i)]) for v, i in zip(values, where, strict=True)])
            for q, values, where in zip(self.queries, best.values, best.indices, strict=True)
        ]

    def as_dict(self, top: int) -> dict[str, Any]:
        return {
            "matches": [
                {"query": q, "top": [{"score": s, "text": t} for s, t in found]}
                for q, found in self.matches(top)
            ],
            "agreement": {
                "min_cosine": self.agreement.cosine,
                "max_error": self.agreement.error,
                "same_best_match": self.agreement.same_top,
                "queries": self.agreement.queries,
            },
            "kernels": [k.as_dict() for k in self.profile.kernels],
            "fallbacks": dict(self.profile.fallbacks),
            "host_seconds": {
                "spyre": self.card_seconds,
                "software_card": self.profile.emulation_seconds,
                "cpu_fp32": self.cpu_seconds,
            },
            "graphs": self.graphs,
        }

    def show(self, console: Console, top: int) -> None:
        for text, found in self.matches(top):
            table = Table(title=text, title_justify="left", show_header=False, box=None)
            for score, sentence in found:
                table.add_row(f"{score:.3f}", sentence)
            console.print(table)
        a = self.agreement
        console.print(
            f"\nAgreement with the CPU in fp32: cosine >= {a.cosine:.6f}, "
            f"maximum error {a.error:.1e}, best match equal for {a.same_top} of {a.queries} "
            "queries."
        )
        console.print(kernel_table(self.profile.kernels))
        console.print(
            f"Host time: {self.card_seconds:.1f} s with the card, of which the software card took "
            f"{self.profile.emulation_seconds:.1f} s and compiling {self.graphs} graph(s) most of "
            f"the rest; {self.cpu_seconds:.1f} s on the CPU, fp32, eager, for the same batches."
        )
        fallbacks = ", ".join(f"{name} x{n}" for name, n in self.profile.fallbacks.items())
        console.print(f"Ops that ran on the CPU instead of the card: {fallbacks or 'none'}.")


def _search(
    corpus: Path | None,
    queries: tuple[str, ...],
    folder: Path | None,
    batch: int,
    truncate: bool,
    console: Console,
) -> Result:
    numbered = _read(corpus or _shipped_corpus())
    lines = tuple(numbered.values())
    if folder is None:
        with late_bar(console) as tell:
            folder = fetch("minilm", tell)
    encoder = load_encoder(folder)
    texts = (*lines, *queries)
    places = [f"line {n} of {corpus or 'the corpus'}" for n in numbered]
    places += [f"the query {text[:40]!r}" for text in queries]
    sentences = encoder.tokenize(texts, places=places, truncate=truncate)
    start = time.perf_counter()
    with _progress(console) as steps, profile() as measured:
        card = _on_card(encoder, sentences, batch, steps)
    card_seconds = time.perf_counter() - start
    with _progress(console) as steps:
        start = time.perf_counter()
        cpu = encoder.embed(
            encoder.model, sentences, device="cpu", batch=batch,
            progress=_step(steps, "CPU, fp32", len(texts)),
        )  # fmt: skip
        cpu_seconds = time.perf_counter() - start
    count = len(lines)
    scores, reference = card[count:] @ card[:count].T, cpu[count:] @ cpu[:count].T
    agreement = Agreement(
        cosine=float(torch.nn.functional.cosine_similarity(card, cpu).min()),
        error=float((card - cpu).abs().max()),
        same_top=int((scores.argmax(1) == reference.argmax(1)).sum()),
        queries=len(queries),
    )
    graphs = int(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    return Result(queries, lines, scores, agreement, measured, card_seconds, cpu_seconds, graphs)


def _on_card(encoder: Encoder, sentences: Sentences, batch: int, steps: Progress) -> torch.Tensor:
    if not torch.accelerator.is_available() or not hasattr(torch, "spyre"):
        raise SpyreError(
            "there is no spyre device",
            why="the native extension did not load",
            hint="run 'spyre doctor', or rebuild with './dev build'",
        )
    model = copy.deepcopy(encoder.model).half().to("spyre")
    compiled = torch.compile(model, dynamic=True)
    try:
        return encoder.embed(
            compiled, sentences, device="spyre", batch=batch,
            progress=_step(steps, "software card, fp16", len(sentences.texts)),
        )  # fmt: skip
    except IndexError as error:  # positions, mostly: some models have fewer than they say
        raise SpyreError(
            "a line has more or other tokens than the model knows",
            why=str(error),
            hint="use shorter lines, and the tokenizer that belongs to the model",
        ) from None
    except (torch._dynamo.exc.BackendCompilerFailed, NotImplementedError) as failure:
        cause = getattr(failure, "inner_exception", failure)
        if not isinstance(cause, SpyreError | NotImplementedError):
            raise
        raise SpyreError(
            f"the model ({type(encoder.model).__name__}) cannot run on the card", why=str(cause)
        ) from None


def _read(path: Path) -> dict[int, str]:
    """The lines of a text file that are not blank, by number."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SpyreError(f"cannot read the corpus {path}", why=error.strerror or "") from None
    except UnicodeDecodeError as error:
        raise SpyreError(
            f"the corpus {path} is not UTF-8 text", why=str(error), hint="convert it to UTF-8"
        ) from None
    stripped = map(str.strip, text.removeprefix("\ufeff").splitlines())
    lines = {number: line for number, line in enumerate(stripped, start=1) if line}
    if not lines:
        raise SpyreError(f"the corpus {path} is empty", hint="put one sentence on each line")
    return lines


def _shipped_corpus() -> Path:
    return Path(__file__).parents[3] / "examples" / "corpus.txt"


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )


def _step(steps: Progress, what: str, total: int) -> Callable[[int], None]:
    task = steps.add_task(what, total=total)
    return lambda count: steps.advance(task, count)


if __name__ == "__main__":
    app()
