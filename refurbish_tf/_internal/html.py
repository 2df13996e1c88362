"""Tables for notebooks."""
from html import escape

# As in rtf.show: prepared, and from the cache; waiting.
COLOURS = ("#e69f00", "#0072b2", "#999999")


def table(caption, rows):
  """A table, the first row the heading: numbers to the right, text to the left. Cells are texts, or made by `bar`."""
  cells = [[(each if isinstance(each, _Bar) else escape(str(each)), "right" if str(each)[:1].isdigit() else "left")
            for each in row] for row in rows]
  made = [f"<tr>{''.join(f'<{tag} style="text-align: {side}; vertical-align: top">{text}</{tag}>' for text, side in row)}</tr>"
          for tag, row in zip(["th", *["td"] * len(cells)], cells)]
  # Those of notebooks begin in the middle, and break no lines.
  return f'<table><caption style="text-align: left; font-weight: bold">{escape(caption)}</caption>{"".join(made)}</table>'


class _Bar(str):
  """A cell in HTML."""


def bar(most, *parts):
  """A bar of triples of a name, a number and a colour, of which `most` fill it."""
  made = "".join(
      f'<span title="{escape(name)} {number:,.6g}" style="background: {colour}; width: {100 * number / (most or 1):.2f}%"></span>'
      for name, number, colour in parts)
  return _Bar(f'<span style="display: flex; width: 10em; height: 1em">{made}</span>')
