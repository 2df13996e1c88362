"""Whether another order of the layers would help, for `rtf.advise`."""

import math

from refurbish_tf.advice import strategies

# The least gain, over the best split of the present order, for which another order is suggested. Predictions for
# another order are less exact, because they use differences of measured times.
LEAST_GAIN_OF_ORDER = 1.25


def better_order(layers, specs, given, best, min_diversity, beside):
  """A sentence on an order that would gain clearly more, if the layers may change places; "" if there is none.

  `layers`: rows with seconds and outcomes. `best`: the least CPU seconds of a split of the present order. `beside`: the
  seconds that no order changes.
  """
  count = len(layers)
  # The positions of layers, in groups that no split separates: the two layers of AutoAugment stay together.
  units = [range(*ends) for ends in zip((0, *given.splits), given.splits)]

  def can_pass(one, other):
    return specs[one[0]] == specs[one[-1] + 1] == specs[other[0]] == specs[other[-1] + 1]

  def cost_of_outcomes(unit):
    outcomes = min(strategies.UNBOUNDED, math.prod(layers[i].effective_outcomes for i in unit))
    return sum(layers[i].seconds for i in unit) / math.log(outcomes) if outcomes > 1 else math.inf

  # The layers with the most outcomes for their time should go last.
  costs = [cost_of_outcomes(unit) for unit in units]
  order = sorted((u for u, cost in enumerate(costs) if cost < math.inf), key=costs.__getitem__)
  found = []
  for number in range(1, len(order) + 1):
    behind = set(order[:number])
    # Later layers that a moved layer cannot pass move with it.
    for u, unit in enumerate(units):
      if any(v in behind and not can_pass(units[v], unit) for v in range(u)):
        behind.add(u)
    final = {i for u in behind for i in units[u]}
    if len(final) == count:
      continue
    for r in given.factors():
      seconds = beside + sum(layers[i].seconds / (1 if i in final else r) for i in range(count))
      found.append((seconds, r, strategies.diversity_of(given, {*final, count}, r), final))
  found = [each for each in found if each[2] >= min_diversity]
  # The present order, computed in the same way, is what another order must beat.
  same = [seconds for seconds, _, _, final in found if min(final) == count - len(final)]
  seconds, r, kept, final = min(found, key=lambda each: each[0], default=(math.inf, 1, 1, ()))
  if min([best, *same]) < LEAST_GAIN_OF_ORDER * seconds:
    return ""
  arranged = [i for i in range(count) if i not in final] + sorted(final)
  named = ", ".join(f"{i + 1} {layers[i].name}" for i in arranged)
  last = arranged[count - len(final) - 1]
  return (
    f"Another order would help: {named}, split after {layers[last].name} ({last + 1}), r = {r:g}: about "
    f"{1e6 * seconds:,.3g} µs, normalised diversity {kept:.3f}. You decide whether the layers may change places, or "
    "whether that changes their results too little to matter (Lee et al., section 4)."
  )
