"""Leaves a page in a folder: HTML, Markdown, JSON, and a PNG a figure."""

from pathlib import Path

from kvmap.errors import KVMapError
from kvmap.evaluation.report.html import html, render
from kvmap.evaluation.report.markdown import markdown
from kvmap.evaluation.report.section import Page
from kvmap.jsonfile import write_json

HTML, MARKDOWN, JSON, FIGURES = "report.html", "report.md", "report.json", "figures"


def write_page(page: Page, folder: Path) -> Path:
    """Write all forms of a page and return the HTML file's path.

    Raises:
        KVMapError: The folder cannot be made.
    """
    figures = folder / FIGURES
    try:
        figures.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise KVMapError(
            f"{figures} cannot be made ({error.strerror}); choose another out_dir"
        ) from error
    for old in figures.glob("*.png"):
        old.unlink()
    images = render(page)
    for name, image in images.items():
        (figures / f"{name}.png").write_bytes(image)
    (folder / MARKDOWN).write_text(markdown(page, FIGURES), encoding="utf-8")
    write_json(folder / JSON, _plain(page))
    (folder / HTML).write_text(html(page, images), encoding="utf-8")
    return folder / HTML


def _plain(page: Page) -> dict[str, object]:
    """The page's words, tables as they are printed, numbers unrounded; figures by their files."""
    return {
        "title": page.title,
        "summary": list(page.summary),
        "sections": [
            {
                "name": each.name,
                "title": each.title,
                "caption": each.caption,
                "figure": f"{FIGURES}/{each.name}.png" if each.figure is not None else None,
                "table": None
                if each.table is None
                else {
                    "header": list(each.table.header),
                    "rows": [list(row) for row in each.table.rows],
                },
            }
            for each in page.sections
        ],
        "missing": list(page.missing),
        "facts": {each.name: each.value for each in page.facts},
        "numbers": {
            each.name: {"value": each.value, "low": each.low, "high": each.high}
            for each in page.numbers
        },
    }
