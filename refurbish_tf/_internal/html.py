"""Tables for notebooks."""
from html import escape

# As in rtf.show: prepared, and from the cache; waiting.
COLOURS = ("#e69f00", "#0072b2", "#999999")


def table(caption, rows):
  """A table whose first row is the heading: numbers to the right, text to the left. Cells are texts, or made by `bar`."""
  made = "".join(f"<tr>{''.join(_cell('td' if number else 'th', each) for each in row)}</tr>" for number, row in enumerate(rows))
  return f'<table><caption style="text-align: left; font-weight: bold">{escape(caption)}</caption>{made}</table>'


def _cell(tag, text):
  side = "right" if str(text)[:1].isdigit() else "left"
  return f'<{tag} style="text-align: {side}">{text if isinstance(text, _Bar) else escape(str(text))}</{tag}>'


class _Bar(str):
  """A cell in HTML."""


def bar(most, *parts):
  """A bar of triples of a name, a number and a colour, of which `most` fill it."""
  made = "".join(
      f'<span title="{escape(name)} {number:,.6g}" style="background: {colour}; width: {100 * number / (most or 1):.2f}%"></span>'
      for name, number, colour in parts)
  return _Bar(f'<span style="display: flex; width: 10em; height: 1em">{made}</span>')
