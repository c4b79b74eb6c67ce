"""Chapters of the book: run their units, judge their claims, save and show the results."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
from IPython.display import HTML, Markdown, display
from matplotlib.figure import Figure

from suite import notebooks, plots
from suite.evidence import html, quote
from suite.evidence.answers import claim_value, headline_cells
from suite.evidence.claims import load_published
from suite.evidence.names import PANEL, name_of, readable
from suite.evidence.quote import Value
from suite.evidence.report import accuracies, all_verdicts, headlines, origin, section_verdicts
from suite.evidence.results import Results, judge_run, load_results, save_tables
from suite.evidence.tables import best_rows, select
from suite.runs import Archive, Layers, Store, compute, kept_layer
from suite.runs.keep import provenance_of

# Profiles, the smallest first: a run is shown with the kept results of larger profiles.
BESIDE = ("desktop", "workstation", "gpu", "paper")
PROVENANCE = "units seconds ended device threads peak_bytes torch reglib commit".split()


class Chapter:
    """A chapter of the book, from its parameters to its verdicts.

    The module of its name in `suite.papers` defines `plan(parameters)` and optionally
    `derive(parameters, rows, arrays)`, which turns the rows and arrays of the plan into those of
    claims and figures.

    Args:
        name: of the notebook.
        namespace: the `globals()` of the notebook, with its parameters by name; the parameters of
            the named profile are written into it.

    Attributes:
        parameters, profile: of this run; `profile` is its name, which has changed parameters.
        published: the published numbers of the paper.
        table: the rows of this run and of the kept larger runs; `decided` are their verdicts.
        results: of this run, then of the kept larger runs.
    """

    def __init__(self, name: str, namespace: dict[str, Any]) -> None:
        plots.set_style()
        self.name = name
        self.parameters = notebooks.notebook_parameters(name, namespace)
        self.profile = self.parameters["profile"]
        namespace |= {name: self.parameters[name] for name in self.parameters.keys() & namespace}
        if notice := notebooks.notice(name, self.parameters):
            display(Markdown(notice))
        self.published = load_published(name)
        self.local, self.kept = Store(), kept_layer()
        self.store = Layers(self.local, self.kept)
        self.results: list[Results] = []
        self.table = self.decided = pd.DataFrame()

    @property
    def shown(self) -> str:
        """The profile of a page of one profile: the best, or a run of the user."""
        return str(best_rows(self.table)["profile"].iloc[0])

    def what_we_ran(self) -> None:
        """Show the networks of each profile: their data, number and accuracy."""
        ran = {r.provenance["profile"]: r for r in self.results}
        parts = [pd.DataFrame(r.trainings).assign(profile=p) for p, r in ran.items()]
        networks = pd.concat(parts, ignore_index=True).reindex(columns=[*PANEL, "accuracy"])
        groups = networks.astype({"accuracy": float}).groupby(PANEL, sort=False)["accuracy"]
        rows = groups.agg(networks="size", accuracy="median").reset_index()
        rows["accuracy"] = rows["accuracy"].map("{:.3f}".format).replace("nan", "not measured")
        names = {name: rows[name].map(name_of) for name in ("data", "network")}
        rows = rows.assign(**names).rename(columns={"accuracy": "accuracy, median network"})
        display(rows.style.hide())

    def run(self) -> None:
        """Compute the missing units, judge the claims, and save the results."""
        plan, paper = notebooks.plan_of(self.name, self.parameters), notebooks.paper(self.name)
        self.computed = compute(plan.units(), store=self.local, kept=self.kept)
        rows, arrays = plan.collect(paper, self.parameters, self.computed, self.store)
        keys = dict.fromkeys(self.computed["key"])
        records = self.store.read_all(keys)
        provenance = provenance_of(self.name, self.parameters, records.values())
        provenance["here"] = len(self.local.read_all(keys))
        run = Archive(records, {}, rows, arrays, provenance)
        fresh = judge_run(self.name, self.profile, run)
        self.fresh = fresh.frame
        save_tables(self.name, self.profile, fresh)
        start = BESIDE.index(self.profile) + 1 if self.profile in BESIDE else 0
        larger = [load_results(self.name, profile) for profile in BESIDE[start:]]
        self.results = [fresh, *(results for results in larger if len(results.frame))]
        self.table = pd.concat([r.frame for r in self.results], ignore_index=True)
        self.decided = pd.concat([r.verdicts for r in self.results], ignore_index=True)

    def show_run(self) -> None:
        """Show the origin of the numbers of each profile."""
        lines = [origin(results.provenance) for results in self.results]
        kept = self.table[self.table["profile"] != self.profile]
        rows = pd.concat([self.computed.assign(profile=self.profile), kept])
        trainings = rows[rows["metric"] == "training_loss"].groupby("profile", sort=False)
        for profile, status in trainings["status"]:
            if diverged := (status == "diverged").sum():
                lines.append(f"*{profile}*: {len(status)} trainings, of which {diverged} diverged.")
        display(Markdown("\n".join(f"- {line}" for line in lines)))

    def claim(self, name: str, data: str = "", network: str = "", *, chapter: str = "") -> Value:
        """Return the verdict on a claim as a value, by default at its main panel.

        Args:
            name, data, network: see `claim_value`.
            chapter: another chapter, with the verdict of its kept results.

        Raises:
            UsageError: there is no such claim.
        """
        if chapter:
            kept = all_verdicts(kept_only=True)
            return claim_value(chapter, kept[kept["chapter"] == chapter], name, data, network)
        return claim_value(self.name, self.decided, name, data, network)

    def mean(self, **where: Any) -> Value:
        """Return the mean over seeds of the rows with these values, at the best profile."""
        return quote.mean(self.rows(**where))

    def paired(self, between: str, first: str, second: str, **where: Any) -> Value:
        """Return the paired difference of `first` and `second` in the rows with these values."""
        return quote.paired(self.rows(**where), between, first, second)

    def rows(self, **where: Any) -> pd.DataFrame:
        """Return the rows of completed units with these values, or one of a list of values."""
        return select(self.table, status="done", **where)

    def say(self, text: str, *, expects: Mapping[str, str] | None = None, **values: Value) -> None:
        """Show a sentence with values, see `suite.evidence.quote.sentence`."""
        display(Markdown(quote.sentence(text, values, expects or {})))

    def tell(self, entry: Mapping[str, Any]) -> None:
        """Show a sentence that is kept as data: its `text`, `expects`, and sources of its `values`.

        Args:
            entry: a source is a claim, as "ID@DATA@NETWORK" or a start of that, or what rows have
                in columns. It stands for their mean or, with `between`, for that of `paired`.
        """
        values = {}
        for name, source in entry["values"].items():
            if isinstance(source, str):
                values[name] = self.claim(*source.split("@"))
            else:
                where = dict(source)
                pair = where.pop("between", None)
                values[name] = self.paired(*pair, **where) if pair else self.mean(**where)
        self.say(entry["text"], expects=entry["expects"], **values)

    def headline_table(self, networks: str = "without the method") -> None:
        """Show the claims of the abstract: paper, here, verdict, scale, and the accuracy.

        Args:
            networks: whose accuracy is shown, in words.
        """
        cells = html.table(headline_cells(self.name, self.decided), "headlines")
        rows = headlines(self.name, self.decided).dropna(subset="accuracy")
        groups = rows.groupby(rows["data"].map(name_of), sort=False)
        here = "; ".join(f"{name} {accuracies(self.name, part)}" for name, part in groups)
        numbers = "Numbers: effect, 95% interval. Verdicts are corrected for several claims, "
        numbers += "not for second looks (<i>read 2×</i>)."
        display(HTML(f'<p class="caption">Accuracy {networks}: {here}. {numbers}</p>{cells}'))

    def claims_tab(self, *sections: str) -> str:
        """Return the verdicts on the claims of sections as HTML for a tab."""
        tables = (section_verdicts(self.name, self.decided, section) for section in sections)
        return "".join(html.table(table) for table in tables if len(table))

    def picture(self, *figures: Figure, alt: str, caption: str = "") -> None:
        """Show figures as one picture, see `suite.plots.as_html`."""
        display(HTML(plots.as_html(*figures, alt=alt, caption=caption)))

    def tabs(
        self, pieces: Mapping[str, Any], *sections: str, alt: str = "", caption: str = ""
    ) -> None:
        """Show a tab set, see `suite.evidence.html.tabs`.

        Args:
            pieces: HTML, a table, tables by name, or a figure, by the title of its tab.
            sections: of the claims in the last tab.
            alt, caption: of the figure.
        """
        tabs = {}
        for title, piece in pieces.items():
            if isinstance(piece, pd.DataFrame):
                piece = html.table(piece)
            elif isinstance(piece, Mapping):
                piece = "".join(f"<p>{name}</p>{html.table(t)}" for name, t in piece.items())
            elif isinstance(piece, Figure):
                piece = plots.as_html(piece, alt=alt, caption=caption)
            tabs[title] = piece
        display(HTML(html.tabs(tabs | {"Claims": self.claims_tab(*sections)})))

    def slider(
        self, grids: Mapping[str, Any], *, alt: str, label: str, caption: str = "", **look: Any
    ) -> None:
        """Show rows of pictures that a range input changes.

        Args:
            grids: rows of `suite.plots.pictures` by label; `look` has its other arguments.
            alt, label, caption: see `suite.evidence.html.slider`.
        """
        frames = {n: plots.as_bytes(plots.pictures(rows, **look)) for n, rows in grids.items()}
        display(HTML(html.slider(frames, alt=alt, label=label, caption=caption)))

    def grid(self, rows: Any, *, alt: str, caption: str = "", **look: Any) -> None:
        """Show rows of pictures as one picture; see `suite.plots.pictures`."""
        file = plots.as_bytes(plots.pictures(rows, **look))
        display(HTML(html.picture(file, alt=alt, caption=caption)))

    def check(self, rows: pd.DataFrame, by: list[str]) -> None:
        """Print counts and means of groups of rows, to two digits, for tests."""
        groups = rows.groupby(by)["value"].agg(["count", "mean"])
        print(groups.assign(mean=groups["mean"].map("{:.2g}".format)).to_string())

    def parameters_of(self, profile: str) -> dict[str, Any]:
        """Return all parameters of this run, or of a profile with kept results."""
        if profile == self.profile:
            return self.parameters
        return notebooks.all_parameters(self.name, notebooks.profiles(self.name)[profile])

    def provenance(self) -> None:
        """Show the provenance of each profile."""
        rows = pd.DataFrame([r.provenance for r in self.results], dtype=object)
        display(rows.set_index("profile")[PROVENANCE].map(readable).T.style)
