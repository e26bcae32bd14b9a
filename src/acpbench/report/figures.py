"""The report's figures: SVG and PNG files, byte-stable, and an inline form that follows the page's colours.

Drawn narrow (4.6 in) and tall, so that text stays readable on a phone. No value is drawn for a
missing score; labels say n of N.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from acpbench.core.files import write_bytes, write_text
from acpbench.report import palette, summary
from acpbench.report.collect import STAGES, StudyData, primary
from acpbench.report.tables import diagnostic_cell
from acpbench.report.untrusted import short

WIDTH_IN = 4.6
_STYLE = {
    "svg.hashsalt": "acpbench",
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": palette.MUTED,
    "axes.labelcolor": palette.INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "figure.facecolor": palette.PAPER,
    "savefig.facecolor": palette.PAPER,
    "figure.constrained_layout.use": True,
    "grid.color": palette.LINE,
    "grid.linewidth": 0.6,
    "text.color": palette.INK,
    "xtick.color": palette.MUTED,
    "ytick.color": palette.MUTED,
    "xtick.labelcolor": palette.INK,
    "ytick.labelcolor": palette.INK,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 8,
}
# Drop every metadata entry: dates change, and the vocabulary's addresses have no place in a page.
_SVG_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


@contextmanager
def _pyplot() -> Iterator[Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with matplotlib.rc_context({**matplotlib.rcParamsDefault, "backend": "Agg", **_STYLE}):
        try:
            yield pyplot
        finally:
            pyplot.close("all")


def _text(value: object, limit: int = 26) -> str:
    # A dollar sign would start mathematics.
    return short(value, limit).replace("$", r"\$")


def _unit_axis(axes: Any, low: float = 0.0) -> None:
    axes.set_xlim(low - 0.02, 1.02)
    axes.grid(axis="x")
    axes.margins(y=0.05)


def _group_axis(axes: Any, labels: list[str]) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(max(len(labels), 1) - 0.5, -0.5)
    axes.spines["left"].set_visible(False)


def _beside(axes: Any, x: float, y: float, text: str, size: float) -> None:
    """Text a few points to the right of a bar's end."""
    axes.annotate(text, (x, y), xytext=(4, 0), textcoords="offset points", va="center", fontsize=size)


def _no_x_axis(axes: Any) -> None:
    """Counts are printed beside their bars; an axis would repeat them."""
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)


def _points(axes: Any, values: list[float], row: float, colour: str, marker: str = "o") -> None:
    """Single trajectories as faint marks, spread evenly inside the row (never at random)."""
    spread = [0.0] if len(values) == 1 else [(k / (len(values) - 1) - 0.5) * 0.22 for k in range(len(values))]
    axes.plot(
        sorted(values),
        [row + shift for shift in spread],
        ls="",
        marker=marker,
        ms=3.2,
        mfc=colour,
        mec="none",
        alpha=0.45,
    )


def workflow_score_by_group(data: StudyData, plt: Any) -> Any:
    """Mean workflow score by group, both aggregations, single trajectories behind them."""
    groups = data.study.groups
    figure, axes = plt.subplots(figsize=(WIDTH_IN, 1.1 + 0.52 * len(groups)))
    for offset, name, colour, marker in (
        (-0.17, "stage_mean", palette.SERIES[0], "o"),
        (0.17, "item_weighted", palette.SERIES[1], "s"),
    ):
        first = True
        for row, group in enumerate(groups):
            members = summary.of_group(data, group.id)
            values = [summary.value_at(entry, "workflow_score.json", name) for entry in members]
            mean = summary.mean_of(values)
            if mean.value is None:
                axes.text(
                    0.0, row + offset, f"no value (0 of {mean.total})", va="center", color=palette.MUTED
                )
                continue
            _points(axes, [value for value in values if value is not None], row + offset, colour, marker)
            axes.plot(
                mean.value,
                row + offset,
                marker,
                ms=7.5,
                color=colour,
                mec=palette.PAPER,
                mew=0.8,
                ls="",
                label=f"{name}, mean" if first else None,
            )
            first = False
            label = f"{mean.value:.2f} · {mean.n} of {mean.total}"
            axes.text(1.04, row + offset, label, va="center", fontsize=7.5, color=colour, clip_on=False)
    axes.axvline(0.75, color=palette.MUTED, lw=0.8, ls=(0, (3, 3)))
    _unit_axis(axes)
    _group_axis(axes, [_text(group.label) for group in groups])
    axes.set_xlabel("workflow score (dashed: pass at 0.75)")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, handletextpad=0.2, borderaxespad=0)
    return figure


def _heatmap(data: StudyData, plt: Any, key: str, names: list[str], ticks: list[str], cell_in: float) -> Any:
    from matplotlib.patches import Rectangle

    groups = data.study.groups
    figure, axes = plt.subplots(figsize=(max(WIDTH_IN, 1.6 + cell_in * len(names)), 0.9 + 0.34 * len(groups)))
    scale = palette.heat_scale()
    for row, group in enumerate(groups):
        members = summary.of_group(data, group.id)
        for column, name in enumerate(names):
            mean = summary.mean_at(members, "workflow_score.json", key, name)
            step = palette.heat_step(mean.value)
            ground, ink = scale[step] if step is not None else ("none", palette.MUTED)
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fc=ground, ec=palette.PAPER, lw=1.5))
            label = "–" if mean.value is None else f"{mean.value:.2f}"
            axes.text(column, row, label, ha="center", va="center", color=ink, fontsize=8)
    axes.set_xlim(-0.5, len(names) - 0.5)
    _group_axis(axes, [_text(group.label) for group in groups])
    axes.set_xticks(range(len(names)), ticks)
    axes.tick_params(axis="x", length=0)
    axes.xaxis.set_ticks_position("top")
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure


def stage_heatmap(data: StudyData, plt: Any) -> Any:
    """Group by stage, mean printed in each cell."""
    return _heatmap(data, plt, "stages", list(STAGES), list(STAGES), 0.9)


def subcapability_heatmap(data: StudyData, plt: Any) -> Any:
    """Group by subcapability, mean printed in each cell."""
    names = list(summary.SUBCAPABILITIES)
    return _heatmap(data, plt, "subcapabilities", names, names, 0.4)


def pass_counts(data: StudyData, plt: Any) -> Any:
    """Trajectories at or above each threshold, both aggregations, as k of n."""
    groups = data.study.groups
    figure, panels = plt.subplots(1, 2, sharey=True, figsize=(WIDTH_IN, 1.1 + 0.62 * len(groups)))
    for axes, aggregation in zip(panels, ("stage_mean", "item_weighted")):
        most = 1
        for row, group in enumerate(groups):
            members = summary.of_group(data, group.id)
            for index, threshold in enumerate(summary.THRESHOLDS):
                k, n = summary.passes(members, threshold, aggregation)
                y = row + (index - 1) * 0.26
                most = max(most, n)
                axes.barh(y, n, height=0.2, color="none", edgecolor=palette.LINE, lw=0.8)
                axes.barh(
                    y,
                    k,
                    height=0.2,
                    color=palette.SERIES[index],
                    label=f"≥ {threshold}" if row == 0 else None,
                )
                _beside(axes, n, y, f"{k} of {n}", 7.5)
        axes.set_title(aggregation)
        axes.set_xlim(0, most * 1.35)
        _no_x_axis(axes)
        _group_axis(axes, [_text(group.label) for group in groups])
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, handlelength=1)
    return figure


def lanes(data: StudyData, plt: Any) -> Any:
    """Three lanes one above the other, each on its own scale; nothing is pooled across lanes."""
    groups = data.study.groups
    labels = [_text(group.label) for group in groups]
    figure, panels = plt.subplots(3, 1, figsize=(WIDTH_IN, 2.2 + 3 * 0.34 * len(groups)))
    for axes, title, parts in (
        (panels[0], "Automation: workflow score, stage_mean", [("workflow_score.json", "stage_mean", "S")]),
        (
            panels[2],
            "Clinical workflow: CWAS-3 and R6",
            [("cwas3.json", "score", "CWAS-3"), ("r6.json", "score", "R6")],
        ),
    ):
        for index, (file, key, name) in enumerate(parts):
            colour = palette.SERIES[index if axes is panels[0] else index + 2]
            marker = palette.MARKERS[index if axes is panels[0] else index + 2]
            shift = 0.0 if len(parts) == 1 else (index - 0.5) * 0.36
            for row, group in enumerate(groups):
                mean = summary.mean_at(summary.of_group(data, group.id), file, key)
                if mean.value is not None:
                    axes.plot(
                        mean.value,
                        row + shift,
                        marker,
                        ms=6,
                        color=colour,
                        ls="",
                        label=name if row == 0 else None,
                    )
                axes.text(
                    1.04,
                    row + shift,
                    f"{name} {mean.n} of {mean.total}",
                    va="center",
                    fontsize=7,
                    color=colour,
                    clip_on=False,
                )
        _unit_axis(axes)
        _group_axis(axes, labels)
        axes.set_title(title)
    _diagnostic_lane(data, panels[1], labels)
    return figure


def _diagnostic_lane(data: StudyData, axes: Any, labels: list[str]) -> None:
    metrics: list[str] = []
    seen: list[float] = [0.0, 1.0]
    for row, group in enumerate(data.study.groups):
        members = summary.of_group(data, group.id)
        cells = [
            diagnostic_cell([entry for entry in members if entry.task == task.id])
            for task in data.study.tasks
        ]
        shown = [cell for cell in cells if cell["mean"].value is not None]
        for cell in shown:
            if cell["metric"] not in metrics:
                metrics.append(cell["metric"])
        for index, metric in enumerate(metrics):
            values = [cell["mean"].value for cell in shown if cell["metric"] == metric]
            seen += values
            shift = 0.0 if len(metrics) == 1 else (index / (len(metrics) - 1) - 0.5) * 0.4
            place = index % len(palette.SERIES)
            axes.plot(
                values,
                [row + shift] * len(values),
                palette.MARKERS[place],
                ms=4.5,
                ls="",
                alpha=0.8,
                color=palette.SERIES[place],
            )
        axes.text(
            1.04,
            row,
            f"{len(shown)} of {len(cells)} tasks",
            va="center",
            fontsize=7,
            clip_on=False,
            transform=axes.get_yaxis_transform(),
            color=palette.MUTED,
        )
    for index, metric in enumerate(metrics):
        place = index % len(palette.SERIES)
        axes.plot([], [], palette.MARKERS[place], color=palette.SERIES[place], label=_text(metric), ls="")
    axes.grid(axis="x")
    _group_axis(axes, labels)
    pad = 0.02 * (max(seen) - min(seen))
    axes.set_xlim(min(seen) - pad, max(seen) + pad)
    axes.set_title("Diagnostic: primary metric, one mark a task")
    if metrics:
        from matplotlib.transforms import ScaledTranslation

        below = ScaledTranslation(0, -16 / 72, axes.figure.dpi_scale_trans)
        axes.legend(
            loc="upper left",
            bbox_to_anchor=(0, 0),
            bbox_transform=axes.transAxes + below,
            ncols=3,
            handletextpad=0.1,
            borderaxespad=0,
        )


def reference_metrics(data: StudyData, plt: Any) -> Any:
    """Reference pipeline: primary metric with 95 % interval per task and encoder, control beside models."""
    rows: list[tuple[str, str, dict[str, Any]]] = []
    for task in data.study.reference_tasks:
        rows += [(task, entry.encoder, primary(entry)) for entry in data.references if entry.task == task]
    height = 0.8 + 0.3 * max(len(rows), 1) + 0.22 * len(data.study.reference_tasks)
    figure, axes = plt.subplots(figsize=(WIDTH_IN, height))
    places: list[float] = []
    labels: list[str] = []
    seen = [0.0, 1.0]
    y, previous = 0.0, None
    for task, encoder, main in rows:
        if task != previous:
            y += 0.9 if previous is not None else 0.4
            # From the figure's left edge: a long metric name has no room beside the axis' labels.
            axes.annotate(
                f"{_text(task, 34)}: {_text(main['metric'] or 'no metric')}",
                (0.01, y - 0.62),
                xycoords=("figure fraction", "data"),
                va="center",
                weight="bold",
                annotation_clip=False,
            ).set_in_layout(False)
            previous = task
        control = encoder == data.study.control_encoder
        colour = palette.MUTED if control else palette.SERIES[0]
        places.append(y)
        labels.append(_text(encoder, 24) + (" (control)" if control else ""))
        if main["value"] is None:
            axes.text(
                0.02, y, "– no value", va="center", color=palette.MUTED, transform=axes.get_yaxis_transform()
            )
        else:
            seen.append(main["value"])
            if main["interval"]:
                seen += main["interval"]
                axes.plot(main["interval"], [y, y], color=colour, lw=1.6, solid_capstyle="butt")
            axes.plot(
                main["value"], y, "o", ms=6, color=colour, mfc=palette.PAPER if control else colour, mew=1.4
            )
            n = "n not stated" if main["n"] is None else f"n {int(main['n'])}"
            axes.text(
                1.02,
                y,
                f"{main['value']:.2f} · {n}",
                va="center",
                fontsize=7.5,
                clip_on=False,
                transform=axes.get_yaxis_transform(),
            )
        y += 0.55
    if not rows:
        axes.text(0.5, 0.5, "no reference result", ha="center", transform=axes.transAxes, color=palette.MUTED)
    pad = 0.02 * (max(seen) - min(seen))
    axes.set_xlim(min(seen) - pad, max(seen) + pad)
    axes.set_yticks(places, labels)
    axes.set_ylim(max(y - 0.1, 0.5), -0.6)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    axes.set_xlabel("primary metric (bar: 95 % interval)")
    return figure


def reliability(data: StudyData, plt: Any) -> Any:
    """Reference pipeline: share observed over mean predicted probability, a panel a task."""
    by_task = {
        task: [entry for entry in data.references if entry.task == task and entry.bins]
        for task in data.study.reference_tasks
    }
    by_task = {task: entries for task, entries in by_task.items() if entries}
    if not by_task:
        figure, axes = plt.subplots(figsize=(WIDTH_IN, 1.0))
        axes.axis("off")
        axes.text(0.5, 0.5, "no reliability table", ha="center", color=palette.MUTED)
        return figure
    columns = min(2, len(by_task))
    n_rows = -(-len(by_task) // columns)
    figure, panels = plt.subplots(
        n_rows, columns, squeeze=False, figsize=(WIDTH_IN, 2.9 * n_rows), sharex=True, sharey=True
    )
    for axes in panels.flat[len(by_task) :]:
        axes.axis("off")
    for axes, (task, entries) in zip(panels.flat, by_task.items(), strict=False):
        axes.plot([0, 1], [0, 1], color=palette.LINE, lw=1)
        models = 0
        for entry in entries:
            control = entry.encoder == data.study.control_encoder
            place = models % len(palette.SERIES)
            models += not control
            axes.plot(
                [one.mean_probability for one in entry.bins],
                [one.observed for one in entry.bins],
                color=palette.MUTED if control else palette.SERIES[place],
                marker="o" if control else palette.MARKERS[place],
                mfc=palette.PAPER if control else palette.SERIES[place],
                ms=4.5,
                lw=1,
                label=_text(entry.encoder, 24)
                + (" (control)" if control else "")
                + f", n {sum(one.n for one in entry.bins)}",
            )
        axes.set_title(_text(task, 24))
        axes.set_xlim(-0.04, 1.04)
        axes.set_ylim(-0.04, 1.04)
        axes.set_aspect("equal")
        axes.legend(loc="upper left", bbox_to_anchor=(-0.02, -0.12), handlelength=1.4, fontsize=7)
    figure.supxlabel("mean predicted probability of a bin", fontsize=9)
    figure.supylabel("share in which it came true", fontsize=9)
    return figure


def funnel(data: StudyData, plt: Any) -> Any:
    """Trajectories that reach each step of the diagnostic lane."""
    counts = summary.funnel(data.trajectories)
    total = len(data.trajectories)
    figure, axes = plt.subplots(figsize=(WIDTH_IN, 2.1))
    names = ["in the grid", *(f"{name}" for name in summary.FUNNEL)]
    for row, value in enumerate([total, *counts.values()]):
        axes.barh(row, total, height=0.62, color="none", edgecolor=palette.LINE, lw=0.8)
        axes.barh(row, value, height=0.62, color=palette.SERIES[0] if row else palette.MUTED)
        _beside(axes, total, row, f"{value} of {total}", 8)
    _group_axis(axes, names)
    axes.set_xlim(0, max(total, 1) * 1.22)
    _no_x_axis(axes)
    return figure


FIGURES: dict[str, Callable[[StudyData, Any], Any]] = {
    "workflow_score_by_group": workflow_score_by_group,
    "stage_heatmap": stage_heatmap,
    "subcapability_heatmap": subcapability_heatmap,
    "pass_counts": pass_counts,
    "lanes": lanes,
    "reference_metrics": reference_metrics,
    "reliability": reliability,
    "funnel": funnel,
}


def write_figures(data: StudyData, folder: Path) -> dict[str, str]:
    """Write ``folder/<name>.svg`` and ``.png`` (150 dpi) for every figure.

    Returns:
        Name → SVG text, for :func:`inline`.
    """
    texts = {}
    with _pyplot() as plt:
        for name, draw in FIGURES.items():
            figure = draw(data, plt)
            svg, png = io.StringIO(), io.BytesIO()
            figure.savefig(svg, format="svg", metadata=_SVG_METADATA)
            figure.savefig(png, format="png", dpi=150, metadata={"Software": None})
            plt.close(figure)
            texts[name] = svg.getvalue()
            write_text(folder / f"{name}.svg", texts[name])
            write_bytes(folder / f"{name}.png", png.getvalue())
    return texts


def inline(svg: str, name: str, alt: str) -> str:
    """The figure as an element of a page: no prologue, no addresses, own ids, page colours, alt text."""
    from markupsafe import escape

    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.S)
    body = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", body)
    body = body.replace("xlink:href", "href")
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = re.sub(r'href="#', f'href="#{name}-', body)
    body = re.sub(r"url\(#", f"url(#{name}-", body)
    body = palette.adaptive(body)
    return body.replace("<svg", f'<svg role="img" aria-label="{escape(alt)}"', 1)
