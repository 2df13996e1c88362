"""Which cases the default run has."""
import itertools
import pathlib

from support import cases
import mutants


def test_each_value_of_each_parameter_is_in_the_default_run():
  combinations = [dict(zip("abc", values)) for values in itertools.product(range(5), range(2), range(3))]
  taken = [combinations[i] for i in cases.with_each_value(combinations)]
  assert len(taken) == 5
  assert {pair for combination in taken for pair in combination.items()} == {
      pair for combination in combinations for pair in combination.items()}


def test_some(monkeypatch):
  monkeypatch.setattr(cases, "exhaustive", False)
  assert cases.some(range(29), 3) == [0, 14, 28] and cases.some("ab", 3) == ["a", "b"] and cases.some("abc", 1) == ["c"]
  assert cases.examples(3) == 3
  monkeypatch.setattr(cases, "exhaustive", True)
  assert cases.some(range(29), 3) == list(range(29)) and cases.examples(3) == 30


@cases.only_exhaustive
def test_what_mutants_replace_is_there():
  """Each text occurs exactly once, and the test that must fail is in the default run."""
  for mutant in mutants.MUTANTS:
    assert (mutants.ROOT / mutant.file).read_text(encoding="utf-8").count(mutant.old) == 1, mutant.name
    path, *names = mutant.test.split("[")[0].split("::")
    text = pathlib.Path(mutants.ROOT / path).read_text(encoding="utf-8")
    assert all(f"def {name}(" in text or f"class {name}" in text for name in names), mutant.name
