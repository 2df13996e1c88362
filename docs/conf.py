"""Settings of Sphinx. From the root of the repository:

    pip install -e '.[docs]' && sphinx-build -W -c docs . docs/_build

The source directory is the root and not docs/. So links between files work here and on GitHub, and the notebooks and
the benchmarks' results need not be copied.
"""

import configparser
import inspect
import json
import os
import pathlib
import pydoc
import re
import shutil

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import refurbish_tf as rtf

DOCS = pathlib.Path(__file__).resolve().parent
# The names in a row of reference.md, and the functions and classes among them, which get pages of their own.
ROW = re.compile(r"^`.*?(?= \|)", re.MULTILINE)
NAMES = {
  name: f"{module.__name__}.{name}"
  for name in re.findall(r"\w+", "".join(ROW.findall((DOCS / "reference.md").read_text(encoding="utf-8"))))
  for module in (rtf, rtf.sources, rtf.augment, rtf.diversity, rtf.keras)
  if callable(getattr(module, name, None))
}
project = "refurbish_tf"
author = "The refurbish_tf Authors"
project_copyright = f"2026, {author}"
release = rtf.__version__

root_doc = "docs/index"
include_patterns = ["docs/*.md", "docs/reference/*.rst", "notebooks/*.ipynb", "benchmarks/README.md"]
include_patterns += ["ARCHITECTURE.md", "CHANGELOG.md"]
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"refurbish_tf {release}"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
# Each page has a link to edit it, once the repository has a public address.
_setup = configparser.ConfigParser()
_setup.read(DOCS.parent / "setup.cfg")
URL = _setup.get("metadata", "url", fallback="")
html_theme_options = {"source_repository": URL, "source_branch": "main", "source_directory": ""}

# Headings have the same anchors as on GitHub.
myst_heading_anchors = 4
# A notebook shows the outputs with which it was committed.
nb_execution_mode = "off"
# The tables of notebooks are Markdown.
nb_render_markdown_format = "myst"
# Caused by the license above a notebook's title.
suppress_warnings = ["myst.header"]

# A block that is not marked as Python is a directory tree or the output of a program.
highlight_language = "none"

autodoc_member_order = "bysource"
# The docstrings name the types, with shapes and units.
autodoc_typehints = "none"
add_module_names = False
napoleon_use_rtype = False


def _write_reference(app):
  """Writes a page for each name, with its picture in the gallery."""
  shutil.rmtree(DOCS / "reference", ignore_errors=True)
  (DOCS / "reference").mkdir()
  for name, full in NAMES.items():
    # The methods of Keras' classes are Keras' own.
    members = "" if ".keras." in full else "\n   :members:"
    what = f"class:: {full}{members}" if inspect.isclass(pydoc.locate(full)) else f"function:: {full}"
    picture = f".. image:: ../gallery/{name}.webp\n   :alt: {name}\n"
    text = f"{full.replace('refurbish_tf', 'rtf')}\n{'=' * len(full)}\n\n.. auto{what}\n\n"
    text += picture * (DOCS / "gallery" / f"{name}.webp").exists()
    (DOCS / "reference" / f"{name}.rst").write_text(text, encoding="utf-8")


def _link_reference(app, name, source):
  if name == "docs/reference":
    linked = lambda code: f"[{code[0]}](reference/{code[1]}.rst)" if code[1] in NAMES else code[0]
    source[0] = ROW.sub(lambda row: re.sub(r"`(\w+)`", linked, row[0]), source[0])
    source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\nreference/*\n```\n"


def _edit_docstring(app, page, template, context, doctree):
  """Sends those who edit the page of a name to its docstring."""
  if URL and page.startswith("docs/reference/"):
    public = inspect.unwrap(pydoc.locate(NAMES[page.rpartition("/")[2]]))
    file = pathlib.Path(inspect.getsourcefile(public)).relative_to(DOCS.parent)
    context["theme_source_edit_link"] = f"{URL}/edit/main/{file}"
    context["theme_source_view_link"] = f"{URL}/blob/main/{file}"


def _without_license(app, name, source):
  """Drops a notebook's license, whose heading would be the page's title, and adds the language that nbfmt strips."""
  if not name.startswith("notebooks/"):
    return
  notebook = json.loads(source[0])
  notebook["cells"] = [
    cell for cell in notebook["cells"] if not re.match(r"(##### Copyright|#@title Licensed)", "".join(cell["source"]))
  ]
  notebook["metadata"]["language_info"] = {"name": "python", "pygments_lexer": "ipython3"}
  source[0] = json.dumps(notebook)


def _as_restructured_text(app, what, name, obj, options, lines):
  """Converts the Markdown of docstrings (`code`, tables, indented formulas) to reStructuredText, for autodoc."""
  made, prose, literal, last_indent = [], [], None, 0
  for number, line in enumerate(lines):
    indent = len(line) - len(line.lstrip())
    if line.strip():
      after_blank = number and not lines[number - 1].strip()
      if literal is not None and indent < literal:
        literal = None
      if literal is None and after_blank and indent >= last_indent + 4:
        literal = indent
        prose += [" " * last_indent + "::", ""]
      last_indent = indent if literal is None else last_indent
    if literal is None and not line.lstrip().startswith((">>>", "...")):
      prose.append(line)
    else:
      made += [*_prose(prose), line]
      prose = []
  made += _prose(prose)
  lines[:] = re.sub(r"(?:^ *\|.*\|\n?)+", _table, "\n".join(made), flags=re.MULTILINE).split("\n")


def _prose(lines):
  # Code may continue on the next line, but not in the next paragraph.
  text = re.sub(r"(?<!`)`((?:[^`\n]|\n(?! *\n))+)`(?!`)", r"``\1``\\ ", "\n".join(lines))
  # |A| would be read as a substitution.
  return re.sub(r"\|(\w+)\|", r"\\|\1\\|", text).split("\n") if lines else []


def _table(match):
  lines = match[0].splitlines()
  indent = " " * (len(lines[0]) - len(lines[0].lstrip()))
  rows = [re.split(r" *\| *", line.strip().strip("|").strip()) for line in lines]
  made = [f"{indent}.. list-table::", f"{indent}   :header-rows: 1", ""]
  for row in [rows[0], *rows[2:]]:
    made += [
      f"{indent}   {'-' if number else '* -'} {cell}".replace("   - ", "     - ") for number, cell in enumerate(row)
    ]
  return "\n".join(["", *made, "", ""])


def setup(app):
  app.connect("builder-inited", _write_reference)
  app.connect("source-read", _link_reference)
  app.connect("html-page-context", _edit_docstring)
  app.connect("source-read", _without_license)
  # Runs before napoleon, which writes reStructuredText.
  app.connect("autodoc-process-docstring", _as_restructured_text, priority=400)
