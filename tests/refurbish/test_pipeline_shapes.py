"""G7 for pipelines of several shapes: a restored pipeline yields the same elements as the saved one would have, or an
error says why it cannot. fuzz/fuzz_pipelines.py has random ones."""

import itertools
import json
import pathlib
import random

import pytest
import tensorflow as tf

from support import cases, pipeline_shapes
from support.checkpoints import final_fn, partial_fn, save, with_checkpoints
from support.pipelines import make_source
from support.processes import environment_of, outputs_of
from support.pipeline_shapes import resume, stop, unbroken

pytestmark = cases.slow
KINDS = ("range", "stream of known length")


def outcome(case, expected, before, after):
  if isinstance(after, str):
    return "refused"
  _, shape, kind, _, _ = case
  # A loader at the end of a pass continues with the next one.
  came = before + after[: len(expected) - len(before)]
  if kind == "range":
    return "exact" if came == expected else "wrong"
  # A stream yields the same samples in another order, and `shard` chooses some of them.
  numbers = [sorted(itertools.chain(*map(flat, steps))) for steps in (came, expected)]
  if "shard" in shape:
    numbers = list(map(len, numbers))
  return "exact" if numbers[0] == numbers[1] else "wrong"


def why_refused(shape, kind):
  """Returns the reason why a symbolic checkpoint is refused, or None."""
  if kind != "range" and "unbatch" in shape:
    return "unbatch after refurbish reads an element again"
  if "interleave" in shape and "shard" in shape[shape.index("interleave") :]:
    return "shard after interleave does not record which elements"
  return None


def flat(element):
  return itertools.chain(*map(flat, element)) if isinstance(element, list) else [element]


@pytest.mark.parametrize("way", pipeline_shapes.WAYS)
def test_every_shape_resumes_exactly_or_is_refused(tmp_path, way):
  chance = random.Random(way)
  shapes = [
    ("padded_batch", "repeat", "prefetch"),
    ("unbatch", "batch", "repeat"),
    ("interleave", "shard"),
  ]
  outcomes, stops, number = [], [], itertools.count()
  for shape in shapes:
    for kind in KINDS if cases.exhaustive or "unbatch" in shape else [chance.choice(KINDS)]:
      for symbolic in (False, True):
        case = (way, shape, kind, symbolic)
        directory = tmp_path / f"unbroken {next(number)}"
        directory.mkdir()
        refused = symbolic and why_refused(shape, kind)
        if refused:
          with pytest.raises(ValueError, match=refused):
            stop(*case, directory, 1)
          outcomes.append(((*case, ""), "refused"))
          continue
        expected = unbroken(*case, directory)
        steps = range(len(expected) if way == "fit" else len(expected) // 2 + 1)
        # TensorFlow drops the iterators of stages at the end of a pass.
        end = [] if way == "fit" else [steps[-1]]
        steps = sorted({*chance.sample(steps, min(len(steps), 3 if cases.exhaustive and way != "fit" else 1)), *end})
        for step in steps:
          place = tmp_path / f"{len(stops)} {step}"
          place.mkdir()
          before, dataset = stop(*case, place, step)
          stops.append(((*case, str(place)), expected, before))
          if way != "fit":
            outcomes.append((stops[-1][0], outcome(stops[-1][0], expected, before, resume(*case, place, dataset))))
  (tmp_path / "stops.json").write_text(json.dumps([case for case, _, _ in stops]))
  outputs_of([pathlib.Path(pipeline_shapes.__file__), tmp_path], env=environment_of("tensorflow"), timeout=3600)
  resumed = json.loads((tmp_path / "resumed.json").read_text())
  for (case, expected, before), after in zip(stops, resumed, strict=True):
    outcomes.append((case, outcome(case, expected, before, after)))
  assert not [case for case, result in outcomes if result == "wrong"]


def in_a_function(dataset):
  return tf.data.Dataset.range(2).interleave(lambda _: dataset.unbatch())


def in_two_functions(dataset):
  return tf.data.Dataset.range(2).flat_map(lambda _: in_a_function(dataset))


@pytest.mark.parametrize("after", [in_a_function, in_two_functions])
def test_functions_that_read_an_element_again_are_detected(tmp_path, after):
  stage = make_source("stream", 10).refurbish(partial_fn, final_fn, 2, seed=7)
  with pytest.raises(ValueError, match="unbatch after refurbish reads an element again"):
    save(iter(with_checkpoints(after(stage))), tmp_path)
