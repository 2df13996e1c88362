"""Tables for notebooks."""

import re
from html import escape

_NUMBER = re.compile(r"([\d.,e+]+( bytes| [kMGT]B)?)?")
# The colours of rtf.show for prepared samples, cached samples and waiting.
COLOURS = ("#e69f00", "#0072b2", "#999999")


def table(caption, rows, heading=True):
  """A table whose first row may be its heading. Numbers are right-aligned, other cells, text or a `bar`, are not."""
  sides = ["right" if all(map(_NUMBER.fullmatch, column[heading:])) else "left" for column in zip(*rows)]
  made = "".join(
    f"<tr>{''.join(_cell('th' if heading and not number else 'td', *each) for each in zip(row, sides))}</tr>"
    for number, row in enumerate(rows)
  )
  return f'<table><caption style="text-align: left; font-weight: bold">{escape(caption)}</caption>{made}</table>'


def _cell(tag, text, side):
  return f'<{tag} style="text-align: {side}">{text if isinstance(text, _Bar) else escape(text)}</{tag}>'


class _Bar(str):
  """A cell that is HTML already."""


def bar(most, *parts):
  """A bar with a part for each triple of a name, a number and a colour. Numbers with the sum `most` fill it."""
  made = ""
  for name, number, colour in parts:
    style = f"background: {colour}; width: {100 * number / (most or 1):.2f}%"
    made += f'<span title="{escape(name)} {number:,.6g}" style="{style}"></span>'
  return _Bar(f'<span style="display: flex; width: 10em; height: 1em">{made}</span>')
