"""Breaks of the package, by topic: each names the test that must see it. mutants.py runs them."""
import dataclasses
import sys


@dataclasses.dataclass(frozen=True)
class Mutant:
  """A text that stands once in a file, what it is replaced by, and the test of `.ci/run` that must fail then."""

  name: str
  file: str
  old: str
  new: str
  test: str

  def original(self, root):
    """The file, in which there must be just one place to be replaced."""
    text = (root / self.file).read_text(encoding="utf-8")
    if text.count(self.old) != 1:
      sys.exit(f"{self.name}: {self.file} has this {text.count(self.old)} times, and not once:\n{self.old}")
    return text

  def apply(self, root):
    (root / self.file).write_text(self.original(root).replace(self.old, self.new), encoding="utf-8")
