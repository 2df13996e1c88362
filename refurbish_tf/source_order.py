"""Refuses sources whose order changes from epoch to epoch: a sample is known by its position in the source."""

_WAY_OUT = {
    "shuffle": (
        "refurbish shuffles by itself in every epoch: leave the shuffle out, or write "
        "shuffle(..., reshuffle_each_iteration=False). Of TFDS, use tfds.load(..., shuffle_files=False)"),
    "deterministic": "leave deterministic=False out of the stages before refurbish, and write it as its argument",
    "sampling": "set rerandomize_each_iteration=False and a seed",
    "service": "put refurbish before distribute, so that each worker of the service refurbishes what it prepares",
    "refurbish": "put both partial augmentations into one partial_fn",
}


def check(dataset):
  """Raises ValueError when `dataset`, or what it is made from, is known to change its order."""
  found = _find(dataset, seen=set())
  if found is not None:
    what, way_out = found
    raise ValueError(
        f"The source of refurbish changes its order from epoch to epoch ({what}), but a sample is known by its "
        f"position in the source. Way out: {_WAY_OUT[way_out]}.")


def _find(dataset, seen):
  if id(dataset) in seen:
    return None
  seen.add(id(dataset))
  found = _reason(dataset)
  for upstream in dataset._inputs():  # pylint: disable=protected-access
    found = found or _find(upstream, seen)
  return found


def _reason(dataset):
  """What makes this stage change its order, and the key of the way out; None when nothing does."""
  kind = type(dataset).__name__
  if hasattr(dataset, "refurbish_stage"):
    return "a refurbish stage", "refurbish"
  # The stages keep their arguments under these private names; they have no public ones.
  reshuffles = getattr(dataset, "_reshuffle_each_iteration", False)
  if kind in ("_ShuffleDataset", "_GlobalShuffleDataset") and (reshuffles is None or reshuffles):
    return "shuffle with reshuffle_each_iteration, which is the default", "shuffle"
  if "DataService" in kind:
    return "a tf.data service", "service"
  if kind == "RandomDataset" and getattr(dataset, "_rerandomize", False):
    return "random numbers with rerandomize_each_iteration", "sampling"
  if getattr(dataset, "_deterministic", None) == "false":
    return f"{kind.strip('_')} with deterministic=False", "deterministic"
  if kind == "_OptionsDataset" and dataset.options().deterministic is False:
    return "the option deterministic=False", "deterministic"
  for function in dataset._functions():  # pylint: disable=protected-access
    if _reshuffles_within(function.function):
      return f"a shuffle with reshuffle_each_iteration in the function of {kind.strip('_')}", "shuffle"
  return None


def _reshuffles_within(function):
  """Whether a function, such as that of `interleave`, makes a dataset that reshuffles."""
  return any(
      node.op.startswith("ShuffleDataset") and node.attr["reshuffle_each_iteration"].b
      for node in function.function_def.node_def)
