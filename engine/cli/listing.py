"""The command runs list, with the same filters as the page of runs."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, Field
from pydantic_settings import NoDecode
from typing_extensions import TypeAliasType

from engine.cli.here import store_here
from engine.cli.output import TableFile, note, printable
from engine.results import kinds
from engine.specs import Refused
from engine.specs.timed import split_words

if TYPE_CHECKING:
    from engine.store import Filter

ORDER = Literal["newest", "oldest", "loss", "accuracy", "latency"]
WORDS = TypeAliasType("WORDS", Annotated[tuple[str, ...], split_words])
Words = Annotated[WORDS, NoDecode]


class List(BaseModel):
    """List the runs that match all of these filters, newest first."""

    kind: Words = Field((), description="profile, train, ...; comma-separated.")
    state: Words = Field((), description="queued, running, finished, failed, ...; comma-separated.")
    model: str = Field("", description="Part of a model's name, or a full name with * or ?; timm:NAME for one library.")
    device: str = Field("", description="cpu, cuda:0, ...")
    tag: Words = Field((), description="Only runs with all of these tags, comma-separated.")
    text: str = Field("", description="Words in the name, summary, notes or error.")
    order: ORDER = Field("newest", description="Order over all pages. Runs without the value come last.")
    limit: int = Field(30, ge=1, le=10_000, description="Runs per page.")
    page: int = Field(1, ge=1, le=10_000_000, description="Number of the page.")
    output: TableFile | None = Field(
        None, description="Write the runs of all pages to this .csv, .json or .parquet file instead."
    )

    def cli_cmd(self) -> None:
        wanted = run_filter(
            self.kind,
            self.state,
            model=self.model.strip(),
            device=self.device.strip(),
            tags=self.tag,
            text=self.text.strip(),
            order=self.order,
        )
        with store_here() as store:
            if self.output:
                from engine.report.export import bulk, tables  # imports pandas

                tables.save(bulk.runs(store, wanted), self.output)
                note(f"{store.count(wanted):,} runs written to {self.output}")
                return
            runs = store.find(wanted, limit=self.limit, offset=(self.page - 1) * self.limit)
            total = store.count(wanted)
        print(f"{'id':>5}  {'kind':10} {'state':20} {'done':>9}  {'created (UTC)':17} what")
        for run in runs:
            done = f"{run.done}/{run.total}" if run.total else ""
            what = printable(run.name or run.spec.summary) + "".join(f"  #{tag}" for tag in run.tags)
            created = f"{run.created_at:%Y-%m-%d %H:%M}"
            print(f"{run.id:>5}  {run.kind:10} {run.outcome:20} {done:>9}  {created:17} {what}")
        if total > len(runs):
            note(f"{len(runs)} of {total:,} runs; --page and --limit show others, --output writes all of them")


def run_filter(kind: tuple[str, ...], state: tuple[str, ...], **others: Any) -> "Filter":
    """Return a filter of the store. others: its other fields. Errors: Refused for an unknown kind or state."""
    from engine.store import Filter, State

    for name, given, known in (("kind", kind, sorted(kinds())), ("state", state, [state.value for state in State])):
        if unknown := [word for word in given if word not in known]:
            raise Refused(f"{name} {unknown[0]!r} is not one of {', '.join(known)}")
    return Filter(kinds=kind, states=tuple(map(State, state)), **others)
