"""The tables of the documentation and of the notebooks, as Markdown, made from the rows of the experiments."""

import math

from refurbish_tf.experiments import results

# The names of settings, in the order of a table.
NAMES = {
  "standard": "standard",
  **{f"refurbish r={r}": f"refurbish, r = {r}" for r in (2, 3, 5)},
  **{f"refurbish r={r} split 4": f"refurbish, r = {r}, nothing fresh" for r in (2, 3)},
  **{f"echo augmented e={e}": f"echoing after augmentation, e = {e}" for e in (2, 3)},
  **{f"echo batches e={e}": f"batch echoing, e = {e}" for e in (2, 3)},
  "cache after augmentation": "`cache()` after augmentation",
  "simplified by 1": "one expensive layer fewer",
  "simplified by 2": "crop and flip only",
}
# Top-1 accuracy of ResNet-50 on ImageNet, in %, of Lee et al., 2021, section 7.1.
# The paper's echoing keeps augmented samples in the cache of refurbish.
PAPER = {"standard": 77.82, "refurbish r=2": 77.81, "refurbish r=3": 77.77}
PAPER |= {"refurbish r=2 split 4": 77.37, "refurbish r=3 split 4": 76.93}
# The settings whose partial and final augmentations are those of the paper.
REUSE = ("refurbish r=2", "refurbish r=3")
# Trained long after standard, with another version, so that their seconds cannot be compared.
TRAINED_LATER = ("refurbish r=2 split 4", "refurbish r=3 split 4")
# Differences to show in addition to differences from standard: one setting minus another.
PAIRS = (
  *(("refurbish r=3", other) for other in ("refurbish r=2", "echo augmented e=3", "simplified by 2")),
  *((f"refurbish r={r}", f"refurbish r={r} split 4") for r in (2, 3)),
  ("refurbish r=3 split 4", "echo augmented e=3"),
)
# The seeds of trainings/volumes.py, trainings/detector.py and trainings/keywords.py.
SEEDS_OF_VOLUMES = SEEDS_OF_DETECTOR = SEEDS_OF_KEYWORDS = (0, 1, 2, 3, 4)
# The gain over crop and flip alone, in points, that a policy must reach in the pilot of trainings/cifar10.py.
LEAST_GAIN = 0.3
# The comparisons of trainings/all_images.py, in the order of their tables.
ALL_IMAGES = {
  "comparison": "CIFAR-10, convolutions",
  "network": "CIFAR-10, separable convolutions",
  "policy": "CIFAR-10, AutoAugment",
  "photographs": "photographs of groceries",
}
NOT_YET = "No training has been run yet."
PLACE_NAMES = {
  "baseline": "baseline",
  "before_augment": "example echoing before augmentation",
  "after_augment": "example echoing after augmentation",
  "after_batch": "batch echoing",
}


def comparison(rows, title="", paired=False):
  """Accuracies of all settings and their differences from standard. `rows` and `paired` as for `differences`."""
  accuracies, found = results.summary(rows, "setting", "accuracy"), differences(rows, paired)
  lines = []
  for setting in (setting for setting in NAMES if setting in accuracies):
    mean, spread, count = accuracies[setting]
    accuracy = f"{100 * mean:.2f} ± {100 * spread:.2f} %" if count > 1 else f"{100 * mean:.2f} %"
    told = _told(*found[setting]) if setting in found else ("", "")
    lines.append([NAMES[setting], accuracy, f"{count}", *told, _in_paper(setting)])
  heads = [title, "accuracy", "trainings", "minus standard, points", "against standard", "minus standard in the paper"]
  return results.markdown(heads, lines)


def pairs(rows):
  """Differences of the accuracies of `PAIRS`. `rows` as for `comparison`."""
  accuracies, lines = _points(rows), []
  for one, other in PAIRS:
    if one in accuracies and other in accuracies:
      name = f"{NAMES[one]}, minus {NAMES[other].removeprefix('refurbish, ')}"
      lines.append([name, *_told(*results.difference(accuracies[one], accuracies[other]))])
  return results.markdown(["", "points", "against the other"], lines)


def prices(rows):
  """The cost of the settings that were trained in turns with standard, in seconds and relative to standard.

  Args:
    rows: with "setting", "seed", "input_cpu_seconds", "cpu_seconds" and "seconds", one for each training.
  """
  names = ("CPU seconds, input alone", "CPU seconds, all", "seconds by the clock")
  columns = ("input_cpu_seconds", "cpu_seconds", "seconds")
  costs = [(results.summary(rows, "setting", column), parts(rows, column)) for column in columns]
  lines = []
  for setting in NAMES:
    if setting in costs[0][0] and setting not in TRAINED_LATER:
      lines.append([NAMES[setting]])
      for seconds, part in costs:
        lines[-1] += [f"{seconds[setting][0]:,.0f}", _part(part, setting) if setting != "standard" else ""]
  return results.markdown(["", *(head for name in names for head in (name, "of standard's"))], lines)


def reuse(rows, of_all_images=()):
  """The costs and savings of r = 2 and r = 3, compared with the paper.

  Args:
    rows: as for `comparison` and `prices`.
    of_all_images: as for `all_images`; without a comparison there is no column for it.
  """
  part, trainings = parts(rows, "input_cpu_seconds"), results.summary(rows, "setting", "accuracy")
  large = differences([row for row in of_all_images if row["what"] == "comparison"], paired=True)
  heads = ["", "accuracy minus standard, points", "against standard", "seeds", *["50,000 images"] * bool(large)]
  lines = []
  for setting, difference in differences(rows).items():
    if setting in REUSE:
      told = _told(*large[setting])[0] if setting in large else ""
      lines.append([NAMES[setting].replace("refurbish, ", ""), *_told(*difference), f"{trainings[setting][2]}"])
      lines[-1] += [*[told] * bool(large), _in_paper(setting), _part(part, setting)]
  return results.markdown([*heads, "ImageNet, in the paper", "CPU time of the input"], lines)


def all_images(rows):
  """The pilot and each comparison of trainings/all_images.py, which makes `rows`."""
  if not rows:
    return NOT_YET
  parts = {what: [row for row in rows if row["what"] == what] for what in ("pilot", *ALL_IMAGES)}
  lines = []
  for row in parts.pop("pilot"):
    policy = "crop and flip only" if row["policy"] == "none" else row["policy"]
    lines.append([policy, f"{row['epochs']}", f"{100 * row['accuracy']:.2f} %"])
  pilot = results.markdown(["pilot", "epochs", "accuracy on 5,000 images of the training set"], lines)
  compared = [comparison(found, ALL_IMAGES[what], paired=True) for what, found in parts.items() if found]
  return "\n\n".join([*compared, pilot])


def all_on_gpu(rows):
  """The pilot, which chose the policy, and the comparison of all settings. `rows` are those of `cifar10`."""
  if not rows:
    return NOT_YET
  lines = []
  for row in (row for row in rows if row["what"] == "pilot"):
    policy = row["policy"] if row["setting"] == "standard" else "crop and flip only"
    lines.append([f"pilot: {policy}", f"{100 * row['accuracy']:.2f} %"])
  pilot = results.markdown(["", "accuracy on 10,000 images of the training set"], lines)
  compared = [row for row in rows if row["what"] == "comparison"]
  return "\n\n".join([pilot, policy_taken(rows), *([comparison(compared)] if compared else [])])


def pilot_gain(rows):
  """The pilot's best policy and its gain over crop and flip, in points, from rows of `cifar10`; None without one."""
  found = {row["policy"]: 100 * row["accuracy"] for row in rows if row["what"] == "pilot"}
  if not found:
    return None
  without = found.pop("none")
  best = max(found, key=found.get)
  # Accuracies are written with two digits of a percent.
  return best, round(found[best] - without, 2)


def policy_taken(rows):
  """A sentence on the result of the pilot, from the rows of `cifar10`."""
  best, gain = pilot_gain(rows)
  if gain >= LEAST_GAIN:
    return f"{best} was the better policy: {gain:+.2f} points over crop and flip."
  return f"No policy gained {LEAST_GAIN} points over crop and flip, so RandAugment was taken, as planned."


def precision_reached(rows, wanted=0.3):
  """Sentences on how wide the intervals of refurbish are, and how many more seeds they need if they are too wide.

  Args:
    rows: as for `comparison`.
    wanted: half the width of an interval, in points.
  """
  spreads, sentences = results.summary(rows, "setting", "accuracy"), []
  for setting, (_, half) in differences(rows).items():
    if half is not None and setting in REUSE:
      said = f"with {NAMES[setting].removeprefix('refurbish, ')} it is ± {half:.2f} points"
      if half > wanted:
        spread = 100 * ((spreads[setting][1] ** 2 + spreads["standard"][1] ** 2) / 2) ** 0.5
        said += (
          f", as seeds differ by {spread:.2f}: {results.seeds_needed(wanted, spread)} seeds of each of the two would "
          f"have made it ± {wanted}"
        )
      sentences.append(f"{said}.".capitalize())
  return " ".join([f"The interval was to be ± {wanted} points or less.", *sentences] if sentences else [])


def hyperparameters(rows):
  """Standard training and reuse, for each learning rate and magnitude (Lee et al., 2021, Figure 15).

  Args:
    rows: with "learning_rate", "magnitude", "setting" and "accuracy".
  """
  ordered = sorted(rows, key=lambda row: (-row["magnitude"], row["learning_rate"]))
  settings = ("standard", "refurbish r=2", "refurbish r=3")
  found = results.grouped(ordered, ("learning_rate", "magnitude", "setting"), "accuracy")
  lines = []
  for rate, magnitude in dict.fromkeys(key[:-1] for key in found):
    lines.append([f"{rate}", f"{magnitude}"])
    for setting in settings:
      values = found.get((rate, magnitude, setting))
      lines[-1].append(f"{100 * results.mean_and_spread(values)[0]:.1f} %" if values else "")
  return results.markdown(["learning rate", "magnitude", *(NAMES[setting] for setting in settings)], lines)


def echoes(rows):
  """Fresh samples to the target for each place of the echo, relative to the baseline's (Choi et al., 2019).

  Args:
    rows: with "where", "e" and "fresh", which is -1 if the target was not reached.

  Raises:
    ValueError: the baseline is missing or has not reached the target.
  """
  found = results.grouped(rows, ("where", "e"), "fresh")
  needed = found.pop(("baseline", 1), [-1])
  if min(needed) < 0:
    raise ValueError("the baseline must be among the rows and have reached the target. Run it, or lower the target.")
  baseline = results.mean_and_spread(needed)[0]
  factors = sorted({e for _, e in found})

  def cell(fresh):
    if not fresh:
      return ""
    return "not reached" if min(fresh) < 0 else f"{results.mean_and_spread(fresh)[0] / baseline:.2f}"

  places = [where for where in PLACE_NAMES if where != "baseline"]
  lines = [[PLACE_NAMES[where], *(cell(found.get((where, e))) for e in factors)] for where in places]
  return results.markdown([f"of the baseline's {baseline:,.0f} fresh samples", *(f"e = {e}" for e in factors)], lines)


def times(rows):
  """Seconds to the target, compared with the baseline with the same R (Choi et al., 2019, Figures 3 and 4).

  Args:
    rows: of `echoing_time`. Only those of its part "time" count.
  """
  heads = ["", "R", "learning rate", "seconds to the target", "reached it", "baseline's over these", "predicted"]
  lines = []
  for (ratio, where, e), of_way in of_ways(rows).items():
    seconds = [row["seconds"] for row in of_way if row["fresh"] >= 0]
    found = faster(rows, ratio, where, e)
    line = [_way(where, e), f"{ratio}", f"{of_way[0]['learning_rate']:g}"]
    line.append("{:.1f} ± {:.1f}".format(*results.mean_and_spread(seconds)) if seconds else "")
    line.append(f"{len(seconds)} of {len(of_way)}")
    line += ["", ""] if found is None else [_quotient(*found[0]), f"{found[1]:.2f}"]
    late = sum(row["late_steps"] for row in of_way) / sum(row["steps"] for row in of_way)
    lines.append([*line, f"{ratio if e == 'AUTOTUNE' else min(ratio, e)}", f"{late:.1%}".replace("%", " %")])
  return results.markdown([*heads, "min(e, R)", "late steps"], lines)


def faster(rows, ratio, where, e):
  """A pipeline's speed relative to the baseline with the same R, as `results.quotient`, and the prediction of it.

  The prediction is the baseline's fresh samples divided by the pipeline's, times min(e, R) / e: beyond R, an echo's
  steps take longer than reading. For AUTOTUNE and refurbish, and the baseline compared with them, all samples that were
  read count, including those in buffers. None for the baseline, or if not all trainings of both reached the target.
  """
  found = of_ways(rows)
  ones, others = (found.get((ratio, *way), ()) for way in (("baseline", 1), (where, e)))
  if where == "baseline" or not (ones and others) or min(row["fresh"] for row in (*ones, *others)) < 0:
    return None
  samples = "read" if e == "AUTOTUNE" or where == "refurbish" else "fresh"
  seconds, fresh = (
    results.quotient(*([row[column] for row in some] for some in (ones, others))) for column in ("seconds", samples)
  )
  return seconds, fresh[0] * (1 if e == "AUTOTUNE" else min(e, ratio) / e)


def headline(rows, ratio=4, e=4):
  """A sentence on the gain of echoing before augmentation with these factors, from `faster`."""
  found = faster(rows, ratio, "before_augment", e)
  if found is None:
    return ""
  seconds, predicted = found
  return (
    f"With R = {ratio}, echoing {e} times before augmentation reached the target {_quotient(*seconds)} times as fast "
    f"as the baseline, and {predicted:.2f} times were predicted. The paper measured 3.25 times, with e = 5 and R of "
    "about 6."
  )


def gains(rows, ratio=4, factors=None):
  """How many times as fast as the baseline each echo reached the target.

  Args:
    rows: of `echoing_time`. Only those with this R count.
    factors: the values of e that are columns; by default all.
  """

  def cell(where, e):
    of_way = ways.get((where, e), ())
    if found := faster(rows, ratio, where, e):
      return _quotient(*found[0])
    return f"{sum(row['fresh'] >= 0 for row in of_way)} of {len(of_way)} reached it" if of_way else ""

  ways = {
    (where, e): of_way
    for (of_ratio, where, e), of_way in of_ways(rows).items()
    if of_ratio == ratio and where in PLACE_NAMES and where != "baseline" and e != "AUTOTUNE"
  }
  factors = factors or sorted({e for _, e in ways})
  places = {place for place, _ in ways}
  lines = [[name, *(cell(where, e) for e in factors)] for where, name in PLACE_NAMES.items() if where in places]
  return results.markdown(["", *(f"e = {e}" for e in factors)], lines)


def budget(rows):
  """The best accuracies with the same fresh samples (Choi et al., 2019, Figure 8). `rows` of `echoing_time`."""
  chosen = [{**row, "accuracy": 100 * row["accuracy"]} for row in rows if row["what"] == "budget"]
  found = results.grouped(chosen, ("where", "e", "learning_rate"), "accuracy")
  baseline, lines = [row["accuracy"] for row in chosen if row["where"] == "baseline"], []
  for (where, e, rate), accuracies in found.items():
    mean, spread = results.mean_and_spread(accuracies)
    told = _told(*results.difference(accuracies, baseline)) if baseline and where != "baseline" else ("", "")
    lines.append([_way(where, e), f"{rate:g}", f"{mean:.1f} ± {spread:.1f} %", f"{len(accuracies)}", *told])
  heads = ["", "learning rate", "best accuracy", "trainings", "minus baseline, points", "against the baseline"]
  return results.markdown(heads, lines)


def of_ways(rows):
  """The rows of `echoing_time` of its part "time", by R, place of the echo and factor."""
  return results.grouped([row for row in rows if row["what"] == "time"], ("ratio", "where", "e"))


def _way(where, e):
  if where == "baseline":
    return PLACE_NAMES[where]
  return f"refurbish, r = {e}" if where == "refurbish" else f"{PLACE_NAMES[where]}, e = {e}"


def _quotient(middle, low, high):
  return f"{middle:.2f}" if low is None else f"{middle:.2f} ({low:.2f} to {high:.2f})"


def differences(rows, paired=False):
  """By setting, in the order of NAMES: the difference from standard and half its 95 % interval, in points.

  A single training has no interval: None.

  Args:
    rows: with "setting" and "accuracy", and "seed" if paired.
    paired: whether each training is compared with standard's training with the same seed; others are left out.
  """
  if paired:
    found = _beside_standard(rows, "accuracy", lambda value, standard: 100 * value - 100 * standard)
  else:
    accuracies = _points(rows)
    standard = accuracies.get("standard")
    found = {setting: results.difference(accuracies[setting], standard) for setting in accuracies if standard}
  return {setting: found[setting] for setting in NAMES if setting != "standard" and setting in found}


def parts(rows, column):
  """By setting: a column in % of standard's, and half the 95 % interval, None for a single training.

  The percentage is averaged over the seeds, because settings with the same seed were trained in the same turn, and the
  machine's speed varies. Settings that share no seed with standard are missing.

  Args:
    rows: with "setting", "seed" and the column.
    column: the name of the column.
  """
  rows = [row for row in rows if row["setting"] not in TRAINED_LATER]
  return _beside_standard(rows, column, lambda value, standard: 100 * value / standard)


def _beside_standard(rows, column, relate):
  """By setting: the `mean_interval` of `relate(value, standard's value)`, over the seeds that standard also has."""
  values, found = {}, {}
  for row in rows:
    values.setdefault(row["setting"], {})[row["seed"]] = row[column]
  standard = values.get("standard", {})
  for setting, of_setting in values.items():
    related = [relate(value, standard[seed]) for seed, value in of_setting.items() if seed in standard]
    if related:
      found[setting] = results.mean_interval(related)
  return found


def _in_paper(setting):
  """The paper's difference from standard, in points, as a table cell."""
  return f"{PAPER[setting] - PAPER['standard']:+.2f}" if setting in PAPER and setting != "standard" else ""


def _points(rows):
  """Accuracies in %, by setting."""
  found = results.grouped(rows, "setting", "accuracy")
  return {setting: [100 * value for value in values] for setting, values in found.items()}


def _part(found, setting):
  """A cell of a table: one of `parts`."""
  if setting not in found:
    return ""
  middle, half = found[setting]
  return f"{middle:.0f} %" if half is None else f"{middle:.0f} ± {half:.0f} %"


def _told(middle, half):
  """A difference, and whether it is significant, as cells of a table."""
  if half is None:
    return f"{middle:+.2f}", ""
  verdict = "not significant" if abs(middle) <= half else "**higher**" if middle > 0 else "**lower**"
  return f"{middle:+.2f} ± {half:.2f}", verdict


def volumes(rows):
  """The results of trainings/volumes.py: means with their 95 % intervals, of trainings that reached the target."""
  rows = [{**row, "epochs": len(str(row["dice"]).split())} for row in rows if row["seed"] in SEEDS_OF_VOLUMES]
  reached = [row for row in rows if float(str(row["dice"]).split()[-1]) >= row["target"]]
  of, lines = {r: [row for row in reached if row["r"] == r] for r in (1, 2, 3)}, []
  for r, of_r in of.items():
    lines.append([f"{r}", f"{len(of_r)} of {sum(row['r'] == r for row in rows)}"])
    for name in ("epochs", "seconds", "cpu_seconds"):
      lines[-1].append(_mean([row[name] for row in of_r]) if of_r else "")
    told = ""
    if r > 1 and min(len(of_r), len(of[1])) > 1:
      told = "{:.2f} ({:.2f} to {:.2f})".format(*results.quotient(*([row["seconds"] for row in of[k]] for k in (1, r))))
    lines[-1].append(told)
  heads = ["r", "reached the target", "epochs", "seconds", "CPU seconds", "times as fast as r = 1"]
  return results.markdown(heads, lines)


def _mean(values):
  middle, half = results.mean_interval(values)
  return f"{middle:.1f}" if half is None else f"{middle:.1f} ± {half:.1f}"


def detector(rows):
  """The results of trainings/detector.py: means with 95 % intervals, in CPU seconds, because other programs ran."""
  trained, seconds, reached = {}, {}, {}
  for row in (row for row in rows if row["seed"] in SEEDS_OF_DETECTOR):
    maps, cpu = ([float(each) for each in str(row[name]).split()] for name in ("maps", "cpu_seconds_by_epoch"))
    trained.setdefault(row["strategy"], []).append(100 * maps[-1])
    seconds.setdefault(row["strategy"], []).append(sum(cpu))
    if max(maps) >= row["target"]:
      epochs = 1 + next(epoch for epoch, value in enumerate(maps) if value >= row["target"])
      reached.setdefault(row["strategy"], []).append((epochs, sum(cpu[:epochs])))
  to_target = {name: [cpu for _, cpu in each] for name, each in reached.items()}
  lines = []
  for name in (name for name in NAMES if name in trained):
    faster = lambda by_name, name=name: (
      _quotient(*results.quotient(by_name["standard"], by_name[name]))
      if name != "standard" and "standard" in by_name and name in by_name
      else ""
    )
    minus = ("", "")
    if name != "standard" and "standard" in trained:
      minus = _told(*results.difference(trained[name], trained["standard"]))
    means = [_mean(column) for column in zip(*reached.get(name, ()))] or [""] * 2
    until = (f"{len(reached.get(name, ()))} of {len(trained[name])}", *means, faster(to_target))
    whole = (_mean(seconds[name]), faster(seconds), _mean(trained[name]) + " %")
    lines.append([NAMES[name], *until, *whole, *minus])
  heads = (
    "|reached it|epochs|CPU seconds|times as fast|CPU seconds of all epochs|times as fast|mAP at the end"
    "|minus standard, points|against standard"
  )
  return results.markdown(heads.split("|"), lines) if lines else NOT_YET


def keywords(rows):
  """The results of trainings/keywords.py, with 95 % intervals. Trainings are compared with standard's by seed."""
  trained = [{**row, "setting": row["strategy"]} for row in rows if row["seed"] in SEEDS_OF_KEYWORDS]
  for row in trained:
    measured = [row[name] for name in ("accuracies", "seconds_by_epoch", "cpu_seconds_by_epoch")]
    accuracies, seconds, cpu = ([float(each) for each in str(values).split()] for values in measured)
    epochs = next((epoch for epoch, value in enumerate(accuracies, 1) if value >= row["target"]), None)
    row |= {"accuracy": 100 * accuracies[-1], "epochs": epochs, "cpu": sum(cpu[:epochs]), "wall": sum(seconds[:epochs])}
  reached, lines = [row for row in trained if row["epochs"]], []
  for name in (name for name in NAMES if any(row["setting"] == name for row in trained)):
    of_name, all_of_name = ([row for row in some if row["setting"] == name] for some in (reached, trained))
    mean = lambda column, of_name=of_name: _mean([row[column] for row in of_name]) if of_name else ""
    missed = len(all_of_name) - len(of_name)
    lines.append([NAMES[name], mean("epochs") + f" ({missed} missed it)" * bool(missed), mean("cpu")])
    for column in ("cpu", "wall"):
      faster = _beside_standard(reached, column, lambda value, standard: math.log(standard / value)).get(name)
      lines[-1].append(_quotient(*results.of_logarithms(*faster)) if faster and name != "standard" else "")
    minus = _beside_standard(trained, "accuracy", lambda value, standard: value - standard).get(name)
    lines[-1].append(_mean([row["accuracy"] for row in all_of_name]) + " %")
    lines[-1].append(_told(*minus)[0] if minus and name != "standard" else "")
  heads = "|epochs|CPU seconds|times as fast|by the clock|accuracy at the end|minus standard, points"
  return results.markdown(heads.split("|"), lines) if lines else NOT_YET
