"""`wager memory`: make a draft memory, and look into one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from wager.checks import choice, whole
from wager.cli import options
from wager.cli.files import check_writable
from wager.drafters.memory_options import MAX_BYTES, MIN_BYTES
from wager.errors import ConfigError
from wager.memory import parse_size

if TYPE_CHECKING:
    from wager.bench.corpus import Corpus
    from wager.drafters.memory import DraftMemory

_SHOWN: Final = 20
_PREFIX: Final = 12
_DEFAULT_SIZE: Final = "16MB"

File = Annotated[Path, typer.Argument(metavar="FILE", show_default=False, help="A draft memory.")]
Sources = Annotated[
    list[Path],
    typer.Option("--from", metavar="SOURCE", show_default=False,
                 help="A text (UTF-8), or a log of answers in any shape that `wager replay` reads; "
                      "repeatable, oldest first."),
]  # fmt: skip
Form = Annotated[
    str,
    typer.Option("--form", help="Of the sources: text, log, or auto, by their names (.jsonl, "
                                ".json, .ndjson and .log are logs)."),
]  # fmt: skip
MaxSize = Annotated[
    str,
    typer.Option("--max-size", metavar="SIZE",
                 help="Bound of the file, now and when answers are added; the oldest go first."),
]  # fmt: skip
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

memory = typer.Typer(
    no_args_is_help=True, help="Draft memory on disk: build one, look into one (docs/memory.md)."
)


@memory.command("build")
def build(
    file: File,
    sources: Sources,
    tokenizer: options.Tokenizer,
    form: Form = "auto",
    max_size: MaxSize = _DEFAULT_SIZE,
) -> None:
    """Make a draft memory of texts or of recorded answers."""
    bound = parse_size(max_size, "max-size")
    whole("max-size", bound, MIN_BYTES, MAX_BYTES)
    check_writable(file, "memory")
    if file.exists():
        raise ConfigError(f"memory: {file} is there already; remove it, or name another file")
    from wager.bench.corpus import FORMS, Corpus
    from wager.bench.replay.tokens import open_vocabulary
    from wager.drafters.memory import DraftMemory, write

    choice("form", form, FORMS)
    vocabulary = open_vocabulary(tokenizer)
    known = vocabulary.tokenizer
    corpus = Corpus(vocabulary, DraftMemory(known.hash, known.vocab_size, bound))
    for source in sources:
        corpus.add(source, form)
    if len(corpus.memory.owners):
        try:
            write(file, corpus.memory)
        except OSError as error:
            raise ConfigError(f"memory: cannot write {file}: {error.strerror}") from error
    _say_built(file, corpus, max_size)


def _say_built(file: Path, corpus: Corpus, max_size: str) -> None:
    """Raises ConfigError where there was nothing to build of."""
    from wager.bench.fit.report import size

    for reason, bad in corpus.bad.items():
        lines = ", ".join(map(str, bad.lines)) + (", ..." if bad.count > len(bad.lines) else "")
        print(f"left out: {bad.count} of the lines ({lines}): {reason}", file=sys.stderr)
    if corpus.dropped:
        what = "too old or too long for" if len(corpus.memory.owners) else "too long for"
        print(f"left out: {corpus.dropped} answers, {what} --max-size {max_size}", file=sys.stderr)
    held = corpus.memory
    if not len(held.owners):
        raise ConfigError("from: no answer was found that could be kept; nothing is written")
    print(
        f"{file}: {len(held.owners)} answers, {len(held.tokens)} tokens, {size(held.nbytes)}; "
        f"tokenizer {held.tokenizer[:_PREFIX]}"
    )


@memory.command("inspect")
def inspect(file: File, as_json: Json = False) -> None:
    """Say what a draft memory holds; a damaged one is refused with the reason."""
    from wager.drafters.memory import read

    found = read(file)
    if found is None:
        raise ConfigError(f"memory: {file} is not there")
    told = _as_json(file, found)
    if as_json:
        print(json.dumps(told, indent=2))
    else:
        _show(told)


def _as_json(file: Path, found: DraftMemory) -> dict[str, Any]:
    from datetime import datetime, timezone

    from wager.drafters.memory import VERSION, tenant_id

    written = datetime.fromtimestamp(found.saved, timezone.utc)
    return {
        "file": str(file),
        "format": VERSION,
        "tokenizer": found.tokenizer,
        "vocab_size": found.vocab_size,
        "written": written.isoformat(),
        "bytes": found.nbytes,
        "max_bytes": found.max_bytes,
        "answers": len(found.owners),
        "tokens": len(found.tokens),
        "tenants": [
            {
                "tenant": tenant.hex()[:_PREFIX],
                "default": tenant == tenant_id(""),
                "answers": answers,
                "tokens": tokens,
            }
            for tenant, answers, tokens in found.by_tenant()
        ],
    }


def _show(told: dict[str, Any]) -> None:
    from wager.bench.fit.report import size

    tenants = told["tenants"]
    print(f"{told['file']}: draft memory, format {told['format']}")
    print(f"tokenizer  {told['tokenizer'][:_PREFIX]}, vocabulary of {told['vocab_size']}")
    print(f"size       {size(told['bytes'])} of at most {size(told['max_bytes'])}")
    print(f"written    {told['written']}")
    print(f"holds      {told['answers']} answers, {told['tokens']} tokens")
    print(f"\n{'tenant':<{_PREFIX}} {'answers':>10} {'tokens':>12}")
    for row in tenants[:_SHOWN]:
        name = "(default)" if row["default"] else row["tenant"]
        print(f"{name:<{_PREFIX}} {row['answers']:>10} {row['tokens']:>12}")
    if len(tenants) > _SHOWN:
        print(f"and {len(tenants) - _SHOWN} more, with fewer tokens; --json lists all")
