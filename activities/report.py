"""The report of a run as one HTML file without scripts or links: it can be mailed, archived and opened anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from activities.summary import RunSummary
from specs.history import HistoryLine
from specs.outcomes import Charge, ConfigMeasurement, Ending, SelfReported, labelled

WIDTH = 860
_COLOURS = {
    Ending.WIN: "#1a7f4b",
    Ending.SLOWER: "#8a94a3",
    Ending.REGRESSED: "#b7791f",
    Ending.BUILD_FAILED: "#7c5bb0",
    Ending.REFUSED: "#c0392b",
    Ending.VETOED: "#c0392b",
    Ending.DUPLICATE: "#b9c0ca",
}
_GREY = "#8a94a3"

_STYLE = """
:root{color-scheme:light}*{box-sizing:border-box}
body{margin:0;background:#f4f5f7;color:#1d2733;font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:940px;margin:32px auto;padding:0 20px 48px}h1{font-size:26px;margin:0}h2{font-size:17px;margin:0 0 12px}
section{background:#fff;border:1px solid #e1e5ea;border-radius:10px;padding:20px 24px;margin-top:18px}
.sub{color:#5b6675;margin:4px 0 0}
.badge{display:inline-block;padding:2px 12px;border-radius:99px;color:#fff;font-weight:600}
.figures{display:flex;flex-wrap:wrap;gap:12px 36px;margin-top:16px}.figures div{min-width:110px}
.figures b{display:block;font-size:22px;font-variant-numeric:tabular-nums}.figures span{color:#5b6675;font-size:13px}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:5px 10px 5px 0;border-bottom:1px solid #edf0f3;vertical-align:top}
th{color:#5b6675;font-weight:600;font-size:13px}td.n,th.n{text-align:right}svg{width:100%;height:auto;display:block}
svg text{font:12px system-ui,sans-serif;fill:#5b6675}
.mono{font-family:ui-monospace,monospace;font-size:13px;overflow-wrap:anywhere}
"""


def render(summary: RunSummary) -> str:
    """The whole page; every text that comes from a task, a kernel or a person is escaped."""
    parts = [
        _header(summary),
        _section(labelled("Ratio to the baseline, per config", summary.standing), _configs(summary)),
        _section(labelled("Score over the iterations", summary.standing), _scores(summary.history)),
        _section("Timeline", _timeline(summary.history)),
        _section(labelled("Iterations", summary.standing), _iterations(summary.history)),
        _section("Cost", _costs(summary)),
        _section("Provenance", _provenance(summary)),
    ]
    told = summary.outcome.removesuffix(f" ({summary.standing})")
    title = escape(labelled(f"{summary.task}: {told}", summary.standing))
    body = "\n".join(part for part in parts if part)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n'
        f"<body><main>\n{body}\n</main></body></html>\n"
    )


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>" if content else ""


def _header(summary: RunSummary) -> str:
    word = summary.outcome.removesuffix(f" ({summary.standing})")
    colour = {"accepted": "#1a7f4b", "best effort": "#b7791f"}.get(word, "#c0392b")
    if word == "accepted" and summary.standing:
        colour = "#b7791f"  # green is for what was proven
    score, geomean = _score_and_geomean(summary)
    figures = [
        (score, labelled(f"score ({summary.scoring})", summary.standing)),
        (geomean, labelled("geomean", summary.standing)),
        (summary.champion.version if summary.champion else "none", labelled("champion", summary.standing)),
        (f"{summary.wins} + {summary.attempts}", "wins + other attempts"),
        (f"{summary.charged_minutes:.1f} min", "charged"),
    ]
    boxes = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for value, name in figures)
    return (
        f"<header><h1>{escape(summary.task)}</h1>"
        f'<p class="sub"><span class="badge" style="background:{colour}">{escape(summary.outcome)}</span> '
        f"{escape(summary.reason)}</p>"
        f'<p class="sub">against {escape(summary.baseline_name)} on {escape(summary.device)}</p>'
        f"{_warning(summary)}</header>"
        f'<section><div class="figures">{boxes}</div></section>'
    )


def _score_and_geomean(summary: RunSummary) -> tuple[str, str]:
    if summary.measurement is not None:
        return f"{summary.measurement.score.value:.3f}", f"{summary.measurement.geomean:.3f}"
    if summary.self_reported is not None:
        return f"{summary.self_reported.score:.3f}", f"{summary.self_reported.geomean:.3f}"
    return "none", "none"


def _warning(summary: RunSummary) -> str:
    if summary.standing is None:
        return ""
    told = f"Every number here is {summary.standing}: the program brought its own reference, baseline and clock."
    return f'<p class="sub"><b>{escape(told)} Nothing was verified.</b></p>'


def _configs(summary: RunSummary) -> str:
    if summary.self_reported is not None:
        return _reported_table(summary.self_reported, summary.targets)
    if summary.measurement is None:
        return "<p>No kernel was measured.</p>"
    configs = summary.measurement.configs
    return bars(configs, summary.targets) + _config_table(configs, summary.targets)


def bars(configs: Sequence[ConfigMeasurement], targets: dict[str, float]) -> str:
    """One bar a config with its 95% interval; the dashed line is the baseline, the tick the config's target."""
    left, row, top = 210, 30, 22
    longest = max([1.1, *(one.ratio.high for one in configs), *targets.values()]) * 1.08
    scale = (WIDTH - left - 60) / longest
    height = top + row * len(configs) + 8
    base = left + scale
    out = [
        f'<line x1="{base:.1f}" x2="{base:.1f}" y1="{top - 4}" y2="{height}" stroke="#1d2733" stroke-dasharray="4 3"/>',
        f'<text x="{base:.1f}" y="12" text-anchor="middle">baseline 1.0</text>',
    ]
    for position, one in enumerate(configs):
        middle = top + row * position + row / 2
        target = targets.get(one.config, 1.0)
        # Green only where the whole interval clears the target: a bar that may be luck is no proven win.
        colour = "#1a7f4b" if one.ratio.low >= target else "#b7791f"
        end, low, high = (left + scale * ratio for ratio in (one.ratio.value, one.ratio.low, one.ratio.high))
        mark = left + scale * target
        out += [
            f'<text x="{left - 10}" y="{middle + 4:.1f}" text-anchor="end">{escape(_short(one.config))}</text>',
            f'<rect x="{left}" y="{middle - 9:.1f}" width="{end - left:.1f}" height="18" rx="3" fill="{colour}"/>',
            _line(low, middle, high, middle, "#1d2733"),
            _line(mark, middle - 12, mark, middle + 12, "#c0392b"),
            f'<text x="{max(end, high) + 8:.1f}" y="{middle + 4:.1f}">{one.ratio.value:.3f}</text>',
        ]
    return _svg(height, out, "Ratio per config with its interval; the red tick is the target")


def _reported_table(report: SelfReported, targets: dict[str, float]) -> str:
    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.4g}"

    rows = "".join(
        f'<tr><td>{escape(one.config)}</td><td class="n">{one.ratio:.3f}</td>'
        f'<td class="n">{targets.get(one.config, 1.0):g}</td>'
        f'<td class="n">{number(one.ours_us)}</td><td class="n">{number(one.reference_us)}</td>'
        f'<td class="n">{number(one.ours_tflops)}</td><td class="n">{number(one.reference_tflops)}</td>'
        f"<td>{escape(one.reason)}</td></tr>"
        for one in report.configs
    )
    names = (f"{report.label} ratio", "target", "kernel us", "baseline us", "kernel TFLOPS", "baseline TFLOPS")
    head = "<th>config</th>" + "".join(f'<th class="n">{name}</th>' for name in names) + "<th>why not</th>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _config_table(configs: Sequence[ConfigMeasurement], targets: dict[str, float]) -> str:
    worst = min(configs, key=lambda one: one.ratio.value).config
    rows = "".join(
        f"<tr><td>{escape(one.config)}{' (worst)' if one.config == worst and len(configs) > 1 else ''}</td>"
        f'<td class="n">{one.ratio.value:.3f}</td><td class="n">{one.ratio.low:.3f} to {one.ratio.high:.3f}</td>'
        f'<td class="n">{targets.get(one.config, 1.0):g}</td><td class="n">{one.candidate.median_us:.2f}</td>'
        f'<td class="n">{one.baseline.median_us:.2f}</td><td class="n">{one.candidate.spread:.1%}</td>'
        f'<td class="n">{one.candidate.samples}</td></tr>'
        for one in configs
    )
    names = ("ratio", "95% interval", "target", "kernel us", "baseline us", "spread", "samples")
    head = "<th>config</th>" + "".join(f'<th class="n">{name}</th>' for name in names)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _scores(history: Sequence[HistoryLine]) -> str:
    scored = [(position, line) for position, line in enumerate(history) if line.score is not None]
    return score_chart(scored, len(history)) if scored else ""


def score_chart(scored: Sequence[tuple[int, HistoryLine]], count: int) -> str:
    """A point for every measured iteration, a step line along the champions."""
    height, left, bottom = 240, 50, 210
    highest = max([1.05, *(line.score or 0.0 for _, line in scored)]) * 1.08

    def x(position: int) -> float:
        return left + (position + 0.5) * (WIDTH - left - 20) / max(count, 1)

    def y(score: float) -> float:
        return bottom - score / highest * (bottom - 14)

    out = [
        f'<line x1="{left}" x2="{WIDTH - 10}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="{colour}" {dash}/>'
        f'<text x="{left - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.2f}</text>'
        for value, colour, dash in _levels(highest)
    ]
    path, level = "", 0.0
    for position, line in scored:
        if line.is_win:
            level = line.score or 0.0
            path += f"{'H' if path else 'M'}{x(position):.1f}{'V' if path else ','}{y(level):.1f}"
    if path:
        out.append(f'<path d="{path}H{WIDTH - 10}" fill="none" stroke="#1a7f4b" stroke-width="2"/>')
    for position, line in scored:
        tip = escape(labelled(f"{line.version} {line.label}: {line.score:.4f}", line.standing))
        out.append(
            f'<circle cx="{x(position):.1f}" cy="{y(line.score or 0.0):.1f}" r="5" fill="{_colour(line)}">'
            f"<title>{tip}</title></circle>"
        )
        if line.is_win:
            above = y(line.score or 0.0) - 10
            out.append(
                f'<text x="{x(position):.1f}" y="{above:.1f}" text-anchor="middle">{escape(line.version)}</text>'
            )
    out.append(f'<text x="{WIDTH - 10}" y="{height - 8}" text-anchor="end">{count} iterations</text>')
    return _svg(height, out, "Score of each measured iteration; the line is the champion")


def _levels(highest: float) -> list[tuple[float, str, str]]:
    """Grid lines of the score chart, about five of them, and the baseline at 1."""
    step = next(step for step in (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, highest) if highest / step <= 6)
    grid = [(step * i, "#e1e5ea", "") for i in range(int(highest / step) + 1) if step * i != 1.0]
    return [*grid, (1.0, "#1d2733", 'stroke-dasharray="4 3"')]


def _timeline(history: Sequence[HistoryLine]) -> str:
    total = sum(line.seconds for line in history)
    if total <= 0:
        return ""
    out, position = [], 0.0
    for line in history:
        width = line.seconds / total * WIDTH
        tip = escape(f"{line.version} {line.ending.value.replace('_', ' ')}, {line.label}: {line.seconds:.1f} s")
        size = f'width="{max(width - 1, 0.5):.2f}" height="30"'
        out.append(f'<rect x="{position:.2f}" y="4" {size} fill="{_colour(line)}"><title>{tip}</title></rect>')
        position += width
    out.append(f'<text x="{WIDTH}" y="54" text-anchor="end">{total:.0f} s in iterations</text>')
    used = {line.ending for line in history}
    for slot, ending in enumerate(ending for ending in Ending if ending in used):
        out.append(f'<rect x="{slot * 110}" y="44" width="11" height="11" fill="{_COLOURS.get(ending, _GREY)}"/>')
        out.append(f'<text x="{slot * 110 + 16}" y="54">{escape(ending.value.replace("_", " "))}</text>')
    return _svg(62, out, "Share of the time that each iteration took")


def _iterations(history: Sequence[HistoryLine]) -> str:
    if not history:
        return "<p>None.</p>"
    rows = "".join(
        f'<tr><td>{escape(line.version)}</td><td style="color:{_colour(line)}">{_words(line)}</td>'
        f'<td>{escape(line.label)}</td><td class="n">{"" if line.score is None else f"{line.score:.3f}"}</td>'
        f'<td>{escape(line.reason)}</td><td class="n">{line.seconds:.1f}</td></tr>'
        for line in history
    )
    head = '<th></th><th>ending</th><th>candidate</th><th class="n">score</th><th>why</th><th class="n">s</th>'
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _costs(summary: RunSummary) -> str:
    """Tokens by class and USD of each iteration, the sum so far beside them; the run's own sum in the last line."""
    if not summary.charge.calls:
        return "<p>No model was asked.</p>"
    rows, tokens, usd = [], 0, 0.0
    known = True
    for line in summary.history:
        if line.charge is None:
            continue
        tokens += line.charge.tokens
        usd += line.charge.usd or 0.0
        known = known and line.charge.usd is not None
        rows.append(_cost_row(line.version, line.charge, tokens, usd if known else None))
    # More than the lines above where a gate was written first, or a conversation came to no iteration.
    rows.append(_cost_row("the whole run", summary.charge, summary.charge.tokens, summary.charge.usd))
    names = ("calls", "in", "written to cache", "from cache", "out", "USD", "tokens so far", "USD so far")
    head = "<th></th>" + "".join(f'<th class="n">{name}</th>' for name in names)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _cost_row(name: str, charge: Charge, tokens: int, usd: float | None) -> str:
    counts = (charge.calls, charge.input_tokens, charge.cache_write_tokens, charge.cache_read_tokens)
    cells = [f"{count:,}" for count in (*counts, charge.output_tokens)]
    cells += [_usd(charge.usd), f"{tokens:,}", _usd(usd)]
    return f"<tr><td>{escape(name)}</td>" + "".join(f'<td class="n">{cell}</td>' for cell in cells) + "</tr>"


def _usd(usd: float | None) -> str:
    return "unknown price" if usd is None else f"{usd:.4f}" if 0 < usd < 1 else f"{usd:.2f}"


def _provenance(summary: RunSummary) -> str:
    acceptance = summary.acceptance
    rows = [
        ("run", summary.run_id),
        ("started, ended", f"{summary.started:%Y-%m-%d %H:%M:%S} to {summary.ended:%Y-%m-%d %H:%M:%S} UTC"),
        ("stage at the end", summary.stage),
        ("acceptance", f"{acceptance.version}: {acceptance.reason}" if acceptance else "did not come to it"),
        ("baseline says it is", summary.baseline.description if summary.baseline else ""),
        ("device", _device(summary)),
        ("standing", f"{summary.standing}, nothing verified" if summary.standing else ""),
        ("ran in", f"sandbox {summary.self_reported.sandbox}" if summary.self_reported else ""),
        ("task digest", summary.task_digest),
        ("gate digest", summary.gate_digest or ("none" if summary.standing else "not locked")),
        ("kernel source", summary.champion.source.sha256 if summary.champion else ""),
    ]
    cells = "".join(
        f'<tr><td>{escape(name)}</td><td class="mono">{escape(value)}</td></tr>' for name, value in rows if value
    )
    return f"<table><tbody>{cells}</tbody></table>"


def _device(summary: RunSummary) -> str:
    if summary.self_reported is not None:
        return summary.self_reported.machine
    measured = summary.measurement or summary.baseline
    if measured is None:
        return summary.device
    device = measured.device
    return ", ".join(text for text in (device.name, device.detail, device.toolkit) if text)


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="2"/>'


def _words(line: HistoryLine) -> str:
    return escape(labelled(line.ending.value.replace("_", " "), line.standing))


def _colour(line: HistoryLine) -> str:
    return _COLOURS.get(line.ending, _GREY)


def _short(name: str) -> str:
    return name if len(name) <= 28 else name[:27] + "…"


def _svg(height: float, parts: Sequence[str], label: str) -> str:
    inner = "".join(parts)
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(label)}">{inner}</svg>'
