"""The questions of an atlas as tools for agents: functions of plain arguments with typed answers."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import Field

from indexer.console.advice import IN_BACKTICKS, for_command_line, parse_call
from indexer.console.terminal import as_plain
from indexer.errors import AtlasError, ModelError
from indexer.names import is_hub_id
from query.ask.ask import MOST_TEXTS
from query.atlas import Atlas, contents, generations
from query.results import Result
from query.serve import answers

MOST_NEIGHBOURS = 200
MOST_ROWS = 1_000
MOST_COLUMNS = 60
MOST_SECONDS = 30.0
_OPTION = re.compile(r"(?<!\S)--?[a-z]")
_NOT_FOR_AGENTS = {"signature", "fingerprint"}  # codes for programs

Model = Annotated[
    str,
    Field(
        description="An indexed model (owner/name), or any other model of the Hub, which is downloaded in part and "
        "not stored. A folder only if the server was started with --folders."
    ),
]
Base = Annotated[str | None, Field(description="Id of the base model. Needed if the atlas holds several.")]
Vectors = Annotated[
    str, Field(description="Vectors to compare; the tool `bases` lists the published ones. `input` is the best.")
]
Where = Annotated[str | None, Field(description='SQL condition on the view `models`, e.g. "downloads > 100".')]

A = TypeVar("A")


class Tools:
    """The tools of an atlas, which is opened for the first question and reopened after each publish."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened: Atlas | None = None
        tools = (self.bases, self.similar, self.predict, self.show, self.trace, self.ask, self.compare, self.layers,
                 self.lineage, self.purity, self.clusters, self.datasets, self.sql)  # fmt: skip
        self.all: dict[str, Callable[..., Any]] = {tool.__name__: tool for tool in tools}

    def answer(self, tool: str, arguments: Mapping[str, Any]) -> tuple[answers.Answer | None, str]:
        """The shortened answer of a tool, or None and an error in one line."""
        try:
            found = self.all[tool](**arguments)
            return answers.bounded(found), ""
        except AtlasError as error:
            message = self._for_agents(error.message) or for_command_line(error.message)
            # An agent cannot follow advice about the command line.
            hint = "" if _OPTION.search(error.hint) else self._for_agents(error.hint)
            return None, f"{message} {hint}".strip()
        except ModelError as error:
            return None, f"{error.detail.rstrip('.')}."
        except OSError as error:
            return None, f"The atlas could not be read: {error.strerror or type(error).__name__}."

    def _for_agents(self, text: str) -> str:
        """``text`` with calls in backticks as tool calls; "" if it names a function that is not a tool."""
        arguments = {name: list(inspect.signature(tool).parameters) for name, tool in self.all.items()}
        calls = [call for code in IN_BACKTICKS.findall(text) if (call := parse_call(code)) is not None]
        if any(name and name.removeprefix("atlas.") not in arguments for name, _, _ in calls):
            return ""

        def as_tool(found: re.Match[str]) -> str:
            call = parse_call(found[1])
            if call is None:
                return found[1]
            name, places, named = call
            tool = name.removeprefix("atlas.")
            given = dict(zip(arguments[tool], places, strict=False)) | named if tool else named
            words = ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in given.items())
            return f"{tool}({words})" if tool else words

        return IN_BACKTICKS.sub(as_tool, text)

    @property
    def _atlas(self) -> Atlas:
        if self._opened is None:
            self._opened = Atlas(self._folder)
        elif self._opened.is_outdated:
            self._opened.refresh()
        return self._opened

    def _answer(self, kind: type[A], found: Result | None, **parts: Any) -> A:
        """The keys of ``kind``: from ``parts``, or else from the result's JSON, rounded; ``summary`` is its headline.

        Advice in a note that does not call a tool is for the user of the agent: a command.
        """
        notes = [] if found is None else [self._for_agents(one) or for_command_line(one) for one in found.notes]
        common = {"summary": "" if found is None else found.headline, "notes": list(dict.fromkeys(notes))}
        known = {**({} if found is None else found.to_dict()), **common, "shortened": [], **parts}
        return cast(A, {name: answers.rounded(as_plain(known[name])) for name in kind.__annotations__})

    def bases(self) -> answers.Bases:
        """List the base models of the atlas, how many fine-tunes of each are indexed, and the published vectors."""
        return self._answer(
            answers.Bases,
            None,
            bases=[row for row in generations(self._atlas).asked(contents) if is_hub_id(row["base"])],
        )

    def similar(
        self,
        model: Model,
        k: Annotated[int, Field(ge=1, le=MOST_NEIGHBOURS, description="Number of neighbours to list.")] = 10,
        where: Where = None,
        other_authors: Annotated[bool, Field(description="Leave out models of the same author.")] = False,
        representation: Vectors = "input",
        explain: Annotated[
            bool, Field(description="Add how much each family and layer contributes (`because`).")
        ] = False,
        base: Base = None,
    ) -> answers.Similar:
        """Find the fine-tuned models whose weights changed most like those of a model, nearest first."""
        found = self._atlas.similar(
            model, k, where=where, other_authors=other_authors, representation=representation, base=base,
            explain=explain,
        )  # fmt: skip
        return self._answer(answers.Similar, found, neighbours=[{"because": None, **one.as_row()} for one in found])

    def predict(
        self,
        model: Model,
        k: Annotated[int, Field(ge=1, le=100, description="Number of nearest models used for the vote.")] = 10,
        base: Base = None,
    ) -> answers.Predicted:
        """Predict which datasets a model was tuned on, from its weights and its head."""
        found = self._atlas.predict(model, k=k, base=base)
        likely = [{name: row[name] for name in answers.LikelyDataset.__annotations__} for row in found.to_rows()]
        return self._answer(answers.Predicted, found, answers=likely)

    def show(self, model: Model, base: Base = None) -> answers.Shown:
        """Show what is known of an indexed model: card, datasets, norms, ranks, duplicates, neighbours."""
        found = self._atlas.show(model, base)
        known = found.to_dict()
        kept = [name for name in known if name not in _NOT_FOR_AGENTS and known[name] not in (None, [], "")]
        facts = {name: known[name] for name in kept}
        return self._answer(answers.Shown, found, model=found["model"], facts=facts)

    def trace(self, model: Model, base: Base = None) -> answers.Traced:
        """Find what a model was trained on from its input embedding: words, length of inputs, masked or not."""
        found = self._atlas.trace(model, base)
        known = found.to_dict()
        facts = {
            name: value
            for name, value in known.items()
            if name not in ("model", "base", "words", "notes") and value not in (None, [])
        }
        return self._answer(answers.Traced, found, facts=facts, words=[one.word for one in found.words])

    def ask(
        self,
        texts: Annotated[
            list[str],
            Field(
                min_length=1,
                max_length=MOST_TEXTS,
                description="A few dozen texts of one kind, to find models for; the first 64 tokens of each are used.",
            ),
        ],
        k: Annotated[int, Field(ge=1, le=MOST_NEIGHBOURS, description="Number of models to list.")] = 10,
        where: Where = None,
        base: Base = None,
    ) -> answers.Asked:
        """Find the models that were probably tuned on texts like these.

        The texts run through the base model on this machine; the first question about a base downloads it.
        """
        return self._answer(answers.Asked, self._atlas.ask(texts, k, where=where, base=base))

    def compare(self, a: Model, b: Model, base: Base = None) -> answers.Compared:
        """Compare two models: how similar their weight changes are, in which layers, and what their cards say."""
        found = self._atlas.compare(a, b, base=base)
        return self._answer(answers.Compared, found, facts=found.to_dict())

    def layers(self, model: Model, base: Base = None) -> answers.Changed:
        """Show where a model changed: the size of the change of each layer and each family of matrices."""
        return self._answer(answers.Changed, self._atlas.layers(model, base))

    def lineage(
        self,
        model: Model,
        dates: Annotated[bool, Field(description="Let upload dates decide which model came first.")] = True,
        fresh: Annotated[bool, Field(description="Read the weights even if the atlas has a stored answer.")] = False,
        base: Base = None,
    ) -> answers.Ancestry:
        """Find which model a model was made from (continued, merged, LoRA merged, copied, recast), by its weights."""
        return self._answer(answers.Ancestry, self._atlas.lineage(model, base, dates=dates, fresh=fresh))

    def purity(
        self,
        base: Base = None,
        representation: Vectors = "input",
        k: Annotated[
            int | None,
            Field(ge=1, description="Number of neighbours. Default: as many as share a dataset with the model."),
        ] = None,
    ) -> answers.Purity:
        """Measure whether models tuned on the same dataset are close to each other, also across authors."""
        found = self._atlas.purity(base, representation=representation, k=k)
        across = found.to_dict()["cross_author"]
        across = {name: across[name] for name in answers.CrossAuthor.__annotations__}
        return self._answer(answers.Purity, found, cross_author=across)

    def clusters(
        self,
        base: Base = None,
        representation: Vectors = "input",
        method: Annotated[Literal["hdbscan", "kmeans"], Field(description="Clustering method.")] = "hdbscan",
        min_size: Annotated[int | None, Field(ge=2, description="Size of the smallest cluster (hdbscan).")] = None,
        count: Annotated[int | None, Field(ge=2, description="Number of clusters (kmeans).")] = None,
        members_of: Annotated[int | None, Field(description="Also list the models of this cluster.")] = None,
    ) -> answers.Clustered:
        """Group the fine-tunes of a base by their vectors, and measure how well groups and datasets agree."""
        found = self._atlas.clusters(base, representation=representation, method=method, min_size=min_size, count=count)
        rows = [
            {name: value for name, value in row.items() if name not in ("members", "undocumented")}
            for row in found.to_dict()["clusters"]
        ]
        members = [] if members_of is None else found.names_in(members_of)
        return self._answer(answers.Clustered, found, clusters=rows, members=members)

    def datasets(
        self,
        search: Annotated[str, Field(description="Part of the dataset's name; empty: all.")] = "",
        limit: Annotated[int, Field(ge=1, le=MOST_ROWS, description="Maximum number of datasets.")] = 100,
        base: Base = None,
    ) -> answers.Datasets:
        """List the datasets that indexed models name, most models first."""
        rows = self._atlas.datasets(search, base=base).to_rows()
        return self._answer(answers.Datasets, None, datasets=rows[:limit], truncated=len(rows) > limit)

    def sql(
        self,
        statement: Annotated[
            str, Field(description="One SELECT (DuckDB). Start with SHOW TABLES, or DESCRIBE models.")
        ],
        limit: Annotated[int, Field(ge=1, le=MOST_ROWS, description="Maximum number of rows.")] = 100,
        seconds: Annotated[float, Field(gt=0, le=MOST_SECONDS, description="Time limit in seconds.")] = 10.0,
    ) -> answers.Rows:
        """Run one read-only SELECT (DuckDB) on the atlas, in a process that has access to nothing else."""
        found = self._atlas.sql(statement, limit=limit, seconds=seconds)
        is_wide = len(found.columns) > MOST_COLUMNS
        return answers.Rows(
            summary=found.headline,
            notes=list(found.notes),
            shortened=[f"columns: {MOST_COLUMNS} of {len(found.columns)}"] if is_wide else [],
            columns=[name[:80] for name in found.columns[:MOST_COLUMNS]],
            rows=as_plain([row[:MOST_COLUMNS] for row in found.rows]),  # not rounded
            truncated=found.truncated or is_wide,
        )
