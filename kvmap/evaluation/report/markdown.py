"""A page as Markdown, with its figures as files beside it."""

from kvmap.evaluation.report.section import Page, Section, Table


def markdown(page: Page, figures: str) -> str:
    """The whole file.

    Args:
        page: The page.
        figures: The figures' folder, told from the file's.
    """
    parts = [f"# {page.title}", "\n".join(f"- {line}" for line in page.summary)]
    parts += [_section(each, figures) for each in page.sections]
    if page.missing:
        parts += ["## Not shown", "\n".join(f"- {line}" for line in page.missing)]
    facts = Table(("", ""), [(each.name, each.value) for each in page.facts])
    parts += ["## Where this comes from", markdown_table(facts)]
    return "\n\n".join(parts) + "\n"


def markdown_table(table: Table) -> str:
    """A table; bars in cells are escaped."""
    lines = [table.header, ["---"] * len(table.header), *table.rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def _section(section: Section, figures: str) -> str:
    parts = [f"## {section.title}"]
    if section.figure is not None:
        parts.append(f"![{section.title}]({figures}/{section.name}.png)")
    parts.append(section.caption)
    if section.table is not None:
        parts.append(markdown_table(section.table))
    return "\n\n".join(parts)
