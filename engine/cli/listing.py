"""runs list: which runs there are, as the page of runs filters them."""

from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, Field
from pydantic_settings import NoDecode

from engine.cli.here import store_here
from engine.cli.output import TableFile, note, printable
from engine.results import kinds
from engine.specs import Refused
from engine.specs.timed import split_words

if TYPE_CHECKING:
    from engine.store import Filter

WORDS = Annotated[tuple[str, ...], NoDecode, split_words]


class List(BaseModel):
    """The runs, newest first, that all of these let through."""

    kind: WORDS = Field((), description="profile, train, ...; comma-separated.")
    state: WORDS = Field((), description="queued, running, finished, failed, ...; comma-separated.")
    model: str = Field(
        "", description="Part of a model's name, or all of it with * or ?; its library is not looked at."
    )
    device: str = Field("", description="cpu, cuda:0, ...")
    tag: WORDS = Field((), description="Tags that a run has, all of them; comma-separated.")
    text: str = Field("", description="Words in its name, summary, notes or error.")
    oldest_first: bool = Field(False, description="Begin with the oldest.")
    limit: int = Field(30, ge=1, le=10_000, description="How many.")
    page: int = Field(1, ge=1, le=10_000_000, description="Which so many.")
    output: TableFile | None = Field(
        None, description="A .csv, .json or .parquet to write instead, with the runs of all pages."
    )

    def cli_cmd(self) -> None:
        wanted = self.wanted()
        with store_here() as store:
            if self.output:
                from engine.report.export import bulk, tables  # brings pandas along

                tables.save(bulk.runs(store, wanted), self.output)
                note(f"{store.count(wanted):,} runs written to {self.output}")
                return
            runs = store.find(wanted, limit=self.limit, offset=(self.page - 1) * self.limit)
            total = store.count(wanted)
        print(f"{'id':>5}  {'kind':10} {'state':10} {'done':>9}  {'created (UTC)':17} what")
        for run in runs:
            done = f"{run.done}/{run.total}" if run.total else ""
            what = printable(run.name or run.spec.summary) + "".join(f"  #{tag}" for tag in run.tags)
            created = f"{run.created_at:%Y-%m-%d %H:%M}"
            print(f"{run.id:>5}  {run.kind:10} {run.state:10} {done:>9}  {created:17} {what}")
        if total > len(runs):
            note(f"{len(runs)} of {total:,} runs; --page and --limit show others, --output writes all of them")

    def wanted(self) -> "Filter":
        """Return the filter of the store. Errors: Refused of a kind or state that there is none of."""
        from engine.store import Filter, State

        _check("kind", self.kind, sorted(kinds()))
        _check("state", self.state, [state.value for state in State])
        return Filter(
            kinds=self.kind,
            states=tuple(State(state) for state in self.state),
            model=self.model.strip(),
            device=self.device.strip(),
            tags=self.tag,
            text=self.text.strip(),
            oldest_first=self.oldest_first,
        )


def _check(name: str, given: tuple[str, ...], known: list[str]) -> None:
    for word in given:
        if word not in known:
            raise Refused(f"{name} {word!r} is not one of {', '.join(known)}")
