"""A page as one HTML file that needs nothing else: no script, no network, figures inside."""

import base64
import io
from collections.abc import Mapping
from html import escape

from matplotlib.figure import Figure

from kvmap.evaluation.report.section import Page, Section, Table

STYLE = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #fdfdfb; --faint: #6b6b6b;
  --line: #e2e2dc; --card: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e6e1; --paper: #191919; --faint: #a0a0a0;
  --line: #363636; --card: #222222; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.25rem 5rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 1rem; }
h2 { font-size: 1.2rem; margin: 3rem 0 .6rem; }
.summary { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: 1rem 1.4rem; }
.summary p { margin: .45rem 0; }
figure { margin: 0; }
figure img { width: 100%; height: auto; background: #fff; border-radius: 6px;
  border: 1px solid var(--line); }
.caption { color: var(--faint); font-size: .92rem; max-width: 54rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .84rem; font-variant-numeric: tabular-nums;
  margin: .6rem 0; }
th, td { text-align: left; padding: .28rem .8rem .28rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { font-weight: 600; white-space: nowrap; }
summary { cursor: pointer; color: var(--faint); font-size: .9rem; }
nav { font-size: .9rem; margin: 1.2rem 0; } nav a { margin-right: .9rem; white-space: nowrap; }
a { color: inherit; }
.facts td:first-child { color: var(--faint); white-space: nowrap; }
.facts td { word-break: break-word; }
"""


def html(page: Page, images: Mapping[str, bytes] | None = None) -> str:
    """The whole file.

    Args:
        page: The page.
        images: Its figures as PNG, by their sections' names; drawn here where not given.
    """
    images = render(page) if images is None else images
    contents = " ".join(
        f'<a href="#{escape(each.name)}">{escape(each.title)}</a>' for each in page.sections
    )
    summary = "\n".join(f"<p>{escape(line)}</p>" for line in page.summary)
    sections = "\n".join(_section(each, images) for each in page.sections)
    missing = "".join(f"<li>{escape(line)}</li>" for line in page.missing)
    facts = "".join(
        f"<tr><td>{escape(each.name)}</td><td>{escape(each.value)}</td></tr>" for each in page.facts
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(page.title)} - kvmap</title>
<style>{STYLE}</style>
</head>
<body><main>
<h1>{escape(page.title)}</h1>
<div class="summary">
{summary}
</div>
<nav>{contents}</nav>
{sections}
{f'<h2>Not shown</h2><ul class="caption">{missing}</ul>' if missing else ""}
<h2>Where this comes from</h2>
<div class="scroll"><table class="facts">{facts}</table></div>
</main></body>
</html>
"""


def render(page: Page) -> dict[str, bytes]:
    """Every figure of a page as PNG, by its section's name."""
    return {each.name: png(each.figure) for each in page.sections if each.figure is not None}


def png(figure: Figure) -> bytes:
    """A figure as a PNG file's bytes."""
    into = io.BytesIO()
    figure.savefig(into, format="png", metadata={"Software": None})
    return into.getvalue()


def _section(section: Section, images: Mapping[str, bytes]) -> str:
    parts = [f'<section id="{escape(section.name)}">', f"<h2>{escape(section.title)}</h2>"]
    if section.figure is not None:
        data = base64.b64encode(images[section.name]).decode()
        alternative = escape(section.title)
        parts.append(
            f'<figure><img alt="{alternative}" src="data:image/png;base64,{data}"></figure>'
        )
    parts.append(f'<p class="caption">{escape(section.caption)}</p>')
    if section.table is not None:
        table = f'<div class="scroll">{_table(section.table)}</div>'
        if section.figure is not None:
            table = f"<details><summary>the numbers</summary>{table}</details>"
        parts.append(table)
    parts.append("</section>")
    return "\n".join(parts)


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.header)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
