"""Draws the figures of the experiments, for the notebooks and the documentation, and writes the documentation's tables.

    python -m refurbish_tf.experiments.plots

Colours are those of Okabe and Ito, which colour-blind people can distinguish; markers repeat what they say.
"""
import argparse
import pathlib
import re
import sys

import matplotlib
from matplotlib import pyplot
from matplotlib import ticker

from refurbish_tf.experiments import results

STYLE = {"font.size": 13, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 110}
BLACK, ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7")
# Keys are the beginnings of names of settings.
SETTINGS = {
    "standard": (BLACK, "X"), "refurbish": (BLUE, "o"), "echo augmented": (ORANGE, "^"), "echo batches": (VERMILION, "v"),
    "cache": (PURPLE, "P"), "simplified": (GREEN, "s")}
# Labels in the legend.
EXPLAINED = {
    "refurbish": "refurbish, r uses of a prepared sample", "echo augmented": "echo after augmentation, e times",
    "echo batches": "echo of batches, e times", "simplified": "simplified, by 1 or 2 expensive layers"}
# Row headings of the table in docs/results.md.
NAMES = {
    "standard": "standard", "refurbish r=2": "refurbish, r = 2", "refurbish r=3": "refurbish, r = 3",
    "refurbish r=3 split 4": "refurbish, r = 3, nothing fresh", "echo augmented e=2": "echo after augmentation, e = 2",
    "echo augmented e=3": "echo after augmentation, e = 3", "echo batches e=2": "batch echo, e = 2",
    "echo batches e=3": "batch echo, e = 3", "cache after augmentation": "`cache()` after augmentation",
    "simplified by 1": "one expensive layer fewer", "simplified by 2": "crop and flip only"}
# Top-1 accuracy of ResNet-50 on ImageNet, in %, of Lee et al., 2021, section 7.1.
PAPER = {"standard": 77.82, "refurbish r=2": 77.81, "refurbish r=3": 77.77, "echo augmented e=2": 77.37,
         "echo augmented e=3": 76.93}
# Colours, markers and labels of differences from standard.
_SINGLE = ("0.6", ".", "a single training, without an interval")
_APART = (VERMILION, "s", "differs from standard")
_NOT_APART = (BLUE, "o", "cannot be told apart from standard")
# Offsets of the labels of points, so that adjacent ones do not overlap.
LABELS = {"refurbish": (-34, -16), "echo augmented": (10, -31), "echo batches": (-34, -16), "simplified": (8, 7)}
PLACES = {
    "baseline": (BLACK, "X"), "before_augment": (BLUE, "o"), "after_augment": (ORANGE, "^"), "after_batch": (VERMILION, "v")}
PLACE_NAMES = {"baseline": "baseline", "before_augment": "example echoing\nbefore augmentation",
               "after_augment": "example echoing\nafter augmentation", "after_batch": "batch echoing"}


def accuracy_over_speed(axes, accuracy, speed):
  """Validation accuracy over images per second of the input, a point for each setting (Lee et al., 2021, Figures 9 to 11).

  Args:
    axes: of Matplotlib.
    accuracy: rows of one augmentation with "setting" and "accuracy", one for each training.
    speed: rows with "setting" and "images_per_second".
  """
  accuracies = results.summary(accuracy, "setting", "accuracy")
  rates = results.summary(speed, "setting", "images_per_second")
  shown = [setting for setting in accuracies if setting in rates]
  # So far away that all others would shrink to one point.
  far = [setting for setting in shown if setting.startswith("cache") and all(
      rates[setting][0] > 4 * rates[other][0] for other in shown if other != setting)]
  for setting in far:
    axes.text(0.02, 0.03, f"{setting}, beyond the frame:\n{round(rates[setting][0], -3):,.0f} images/s, "
              f"{100 * accuracies[setting][0]:.1f} %", transform=axes.transAxes, color="0.3", fontsize=12)
    shown.remove(setting)
  for kind, (color, marker) in SETTINGS.items():
    of_kind = [setting for setting in shown if setting.startswith(kind)]
    if not of_kind:
      continue
    axes.errorbar(
        [rates[setting][0] for setting in of_kind], [100 * accuracies[setting][0] for setting in of_kind],
        yerr=[100 * accuracies[setting][1] for setting in of_kind], color=color, marker=marker, markersize=11, lw=1.2,
        capsize=4, elinewidth=1.5, ls="-" if len(of_kind) > 1 else "none", label=EXPLAINED.get(kind, kind))
    for setting in of_kind:
      number = setting[len(kind):].replace("by ", "−").replace("after augmentation", "").strip()
      axes.annotate(number, (rates[setting][0], 100 * accuracies[setting][0]), xytext=LABELS.get(kind, (8, 7)),
                    textcoords="offset points", color=color, fontsize=12)
  mean, spread, _ = accuracies["standard"]
  axes.axhspan(100 * (mean - spread), 100 * (mean + spread), color="0.9", zorder=0, label="standard, mean ± spread of the seeds")
  axes.xaxis.set_major_locator(ticker.MaxNLocator(5))
  axes.xaxis.set_major_formatter("{x:,.0f}")
  axes.set(xlabel="images per second, input alone", ylabel="validation accuracy, %")


def accuracies_over_epochs(axes, rows, names):
  """Validation accuracy over the epochs, the mean and the spread of the trainings (Lee et al., 2021, Figure 14).

  Args:
    axes: of Matplotlib.
    rows: with "setting", "accuracies", separated by spaces, and "epochs".
    names: of the settings to draw, and what to call them.
  """
  for (setting, name), color, marker in zip(names.items(), (BLACK, BLUE, GREEN, VERMILION), "Xo^s"):
    curves = [[float(text) for text in str(row["accuracies"]).split()] for row in rows if row["setting"] == setting]
    if not curves:
      continue
    epochs = next(row["epochs"] for row in rows if row["setting"] == setting)
    every = max(1, epochs // 5)
    at = range(epochs - every * (len(curves[0]) - 1), epochs + 1, every)
    middle = [100 * results.mean_and_spread(values)[0] for values in zip(*curves)]
    around = [100 * results.mean_and_spread(values)[1] for values in zip(*curves)]
    axes.errorbar(at, middle, yerr=around, color=color, marker=marker, markersize=8, lw=2, capsize=3, label=name)
  axes.set(xlabel="epoch", ylabel="validation accuracy, %")
  axes.grid(color="0.92")
  axes.legend(frameon=False, loc="lower right")


def fresh_samples(axes, rows, by, names=None):
  """Fresh samples to the target for each place of the echo, as bars in groups (Choi et al., 2019, Figures 3, 5 to 7).

  A dashed line is what would be needed if repeated samples were as useful as fresh ones: the baseline over e.

  Args:
    axes: of Matplotlib.
    rows: with "where", "e", "fresh" and `by`. Those that did not reach the target (-1) are left out, and so is the bar
      of a pipeline of which not all did.
    by: the column that the groups differ in: "e", "batch_size" or "shuffle_buffer_size".
    names: what to call the groups, by value.
  """
  groups = sorted({row[by] for row in rows if row["where"] != "baseline"})
  width = 0.8 / len(PLACES)
  for number, (where, (color, marker)) in enumerate(PLACES.items()):
    axes.plot([], [], marker, color=color, ms=11, label=PLACE_NAMES[where].replace("\n", " "))
    for place, group in enumerate(groups):
      fresh = [row["fresh"] for row in rows if row["where"] == where and (
          row[by] == group or (by == "e" and where == "baseline"))]
      x = place + (number - 1.5) * width
      if not fresh or min(fresh) < 0:
        told = f" {sum(one >= 0 for one in fresh)} of {len(fresh)}\n reached it" if fresh else ""
        axes.text(x, 0, told, rotation=90, ha="center", va="bottom", color=color, fontsize=11, zorder=5,
                  bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
        continue
      middle, spread = results.mean_and_spread([one / 1000 for one in fresh])
      axes.bar(x, middle, 0.92 * width, yerr=spread, color=color, capsize=4, error_kw={"ecolor": "0.35"})
      axes.plot(x, 0.06 * middle, marker, color="white", ms=7)
      if where == "baseline":
        e = group if by == "e" else 2
        axes.plot([x + 0.5 * width, x + 3.5 * width], [middle / e] * 2, "--", color="0.3", lw=1.8,
                  label="baseline / e" if place == 0 else None)
  axes.set_xticks(range(len(groups)), [(names or {}).get(group, f"{group:,}") for group in groups])
  axes.set_ylabel("fresh samples to the target, thousands")
  axes.set_ylim(0, None)


def split_policy(speeds, accuracies, trained, speed):
  """Speed and accuracy over how many layers are the final augmentation (Lee et al., 2021, Figure 12).

  Args:
    speeds, accuracies: axes of Matplotlib, for the one and the other.
    trained, speed: as `accuracy` and `speed` of `accuracy_over_speed`; the settings are "standard", "refurbish r=3" and
      "refurbish r=3 split 1" and so on.
  """
  layers = 4
  name = lambda at: "refurbish r=3" if at == 2 else f"refurbish r=3 split {at}"
  accuracy, rates = results.summary(trained, "setting", "accuracy"), results.summary(speed, "setting", "images_per_second")
  splits = [at for at in range(layers, 0, -1) if name(at) in accuracy and name(at) in rates]
  x = [layers - at for at in splits]
  for axes, found, scale, color, marker in ((speeds, rates, 0.001, BLUE, "o"), (accuracies, accuracy, 100, VERMILION, "s")):
    axes.errorbar(x, [scale * found[name(at)][0] for at in splits], yerr=[scale * found[name(at)][1] for at in splits],
                  color=color, marker=marker, ms=10, lw=2.5, capsize=4)
    mean, spread, _ = found["standard"]
    axes.axhspan(scale * (mean - spread), scale * (mean + spread), color="0.88", zorder=0)
    axes.text(layers - 1, scale * mean, "standard", ha="right", va="center", color="0.3", fontsize=11)
    axes.set_xticks(x)
  speeds.set_ylim(0, None)
  speeds.set_ylabel("thousand images/s,\ninput alone")
  accuracies.set_ylabel("validation accuracy, %")
  accuracies.set_xlabel("layers of the final augmentation, of 4")


def comparison(rows):
  """A figure of `differences` and `input_cpu` with their legend. `rows` as for `comparison_table`."""
  figure, both = pyplot.subplots(1, 2, figsize=(12, 4.6), sharey=True, width_ratios=(3, 1), layout="constrained")
  differences(both[0], rows)
  input_cpu(both[1], rows)
  figure.legend(*both[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
  return figure


def differences(axes, rows):
  """How far each setting is from standard, with its 95 % interval, and the paper's differences beside.

  Those that the interval tells apart from standard have another colour and marker. What lies far below the others is
  written at the margin. A single training has no interval.

  Args:
    axes: of Matplotlib.
    rows: with "setting" and "accuracy", one for each training.
  """
  found = _differences(rows)
  # The lowest that is drawn in place: below it others would be too close to 0 to be seen.
  lowest = min([-1.0, *(middle - (half or 0) for middle, half in found.values() if middle > -4)])
  shown = set()
  for place, (setting, (middle, half)) in enumerate(found.items()):
    color, marker, name = _SINGLE if half is None else _APART if abs(middle) > half else _NOT_APART
    if middle < lowest:
      axes.annotate(f"{middle:+.1f}" + ("" if half is None else f" ± {half:.1f}"), (lowest, place), xytext=(14, 0),
                    textcoords="offset points", va="center", color=color)
      axes.plot([lowest], [place], "<", color=color, ms=10, clip_on=False)
    else:
      axes.errorbar([middle], [place], xerr=None if half is None else [half], color=color, marker=marker, ms=9, capsize=5, lw=2.2)
    if name not in shown:
      axes.plot([], [], marker, color=color, ms=9, label=name)
    shown.add(name)
    if setting in PAPER:
      axes.plot([PAPER[setting] - PAPER["standard"]], [place - 0.26], "D", color="0.35", ms=8, mfc="white", mew=1.8)
  axes.axvline(0, color="0.4", lw=1.2, zorder=0)
  axes.plot([], [], "D", color="0.35", mfc="white", mew=1.8, ms=8, label="Lee et al., 2021: ResNet-50 on ImageNet")
  axes.set_yticks(range(len(found)), [NAMES[setting].replace("`", "") for setting in found])
  axes.set_ylim(len(found) - 0.5, -0.6)
  axes.set_xlabel("accuracy minus that of standard, points, 95 % interval")


def input_cpu(axes, rows):
  """CPU time of the input of each setting, as a part of that of standard, in the order of `differences`.

  Args:
    axes: of Matplotlib.
    rows: with "setting", "seed" and "input_cpu_seconds".
  """
  parts = _input_parts(rows)
  for place, setting in enumerate(_differences(rows)):
    if setting in parts:
      axes.barh([place], [parts[setting]], 0.55, color="0.6")
      axes.annotate(f"{parts[setting]:.0f} %", (parts[setting], place), xytext=(5, 0), textcoords="offset points", va="center")
  axes.set_xlim(0, 125)
  axes.axvline(100, color="0.4", lw=1.2, zorder=0)
  axes.set_xlabel("CPU time of the input,\n% of standard's")


def comparison_table(rows):
  """Accuracies, their differences from standard and the CPU time of all ways, as Markdown.

  Args:
    rows: with "setting", "seed", "accuracy", "input_cpu_seconds" and "cpu_seconds", one for each training.
  """
  accuracies, found = results.summary(rows, "setting", "accuracy"), _differences(rows)
  input_seconds, seconds = (_prices(rows, column) for column in ("input_cpu_seconds", "cpu_seconds"))
  lines = []
  for setting in (setting for setting in NAMES if setting in accuracies):
    mean, spread, count = accuracies[setting]
    lines.append([
        NAMES[setting], f"{100 * mean:.2f} ± {100 * spread:.2f} %" if count > 1 else f"{100 * mean:.2f} %", f"{count}",
        *(_told(*found[setting]) if setting in found else ("", "")),
        f"{PAPER[setting] - PAPER['standard']:+.2f}" if setting in PAPER and setting != "standard" else "",
        _priced(input_seconds, setting), _priced(seconds, setting)])
  return results.markdown(
      ["", "accuracy", "trainings", "minus standard, points", "told apart?", "minus standard in the paper",
       "CPU seconds, input alone", "CPU seconds, all"], lines)


def reuse_table(rows):
  """What r = 2 and r = 3 cost and save, as Markdown. `rows` as for `comparison_table`."""
  parts, trainings = _input_parts(rows), results.summary(rows, "setting", "accuracy")
  return results.markdown(
      ["", "accuracy minus standard, points", "told apart?", "seeds", "CPU time of the input"],
      [[NAMES[setting].replace("refurbish, ", ""), *_told(*difference), f"{trainings[setting][2]}",
        f"{parts[setting]:.0f} %" if setting in parts else ""]
       for setting, difference in _differences(rows).items() if setting.startswith("refurbish")])


def precision_reached(rows, wanted=0.3):
  """In words: how wide the intervals of refurbish are, and how many seeds make them as wanted if these do not.

  Args:
    rows: as for `comparison_table`.
    wanted: half the width of an interval, in points.
  """
  spreads, sentences = results.summary(rows, "setting", "accuracy"), []
  for setting, (_, half) in _differences(rows).items():
    if half is not None and setting.startswith("refurbish"):
      sentences.append(f"With {NAMES[setting].removeprefix('refurbish, ')} the interval is ± {half:.2f} points.")
      if half > wanted:
        spread = 100 * ((spreads[setting][1]**2 + spreads["standard"][1]**2) / 2)**0.5
        sentences.append(f"At a spread of {spread:.2f} points between seeds, ± {wanted} needs "
                         f"{results.seeds_needed(wanted, spread)} seeds of each of the two ways.")
  return " ".join(sentences)


def choice_table(rows):
  """Standard training beside crop and flip only, for each candidate of the choice, as Markdown.

  Args:
    rows: with "images", "epochs", "width", "precision", "learning_rate", "magnitude", "setting" and "accuracy".
  """
  return _accuracies(rows, ("images", "epochs", "width", "precision", "learning_rate", "magnitude"),
                     ("standard", "simplified by 2"))


def hyperparameters_table(rows):
  """Standard training beside reuse, for each learning rate and magnitude, as Markdown (Lee et al., 2021, Figure 15).

  Args:
    rows: with "learning_rate", "magnitude", "setting" and "accuracy".
  """
  ordered = sorted(rows, key=lambda row: (-row["magnitude"], row["learning_rate"]))
  return _accuracies(ordered, ("learning_rate", "magnitude"), ("standard", "refurbish r=2", "refurbish r=3"))


def echoes_table(rows):
  """Fresh samples to the target for each place of the echo, as a share of the baseline's, as Markdown (Choi et al., 2019).

  Args:
    rows: with "where", "e" and "fresh", which is -1 where the target was not reached. The baseline has reached it.
  """
  found = {}
  for row in rows:
    found.setdefault((row["where"], row["e"]), []).append(row["fresh"])
  baseline = results.mean_and_spread(found.pop(("baseline", 1)))[0]
  factors = sorted({e for _, e in found})

  def cell(fresh):
    return "" if not fresh else "not reached" if min(fresh) < 0 else f"{results.mean_and_spread(fresh)[0] / baseline:.2f}"

  return results.markdown(
      [f"of the baseline's {baseline:,.0f} fresh samples", *(f"e = {e}" for e in factors)],
      [[name.replace("\n", " "), *(cell(found.get((where, e))) for e in factors)]
       for where, name in PLACE_NAMES.items() if where != "baseline"])


def _accuracies(rows, columns, settings):
  """The mean accuracy in each of the settings, a line for each combination of values of the columns, as Markdown."""
  found = {}
  for row in rows:
    found.setdefault(tuple(row[column] for column in columns), []).append(row)
  lines = []
  for how, same in found.items():
    accuracies = results.summary(same, "setting", "accuracy")
    lines.append([*(f"{value:,}" if isinstance(value, int) else f"{value}" for value in how),
                  *(f"{100 * accuracies[setting][0]:.1f} %" if setting in accuracies else "" for setting in settings)])
  return results.markdown(
      [*(column.replace("_", " ") for column in columns), *(NAMES[setting] for setting in settings)], lines)


def _prices(rows, column):
  """By setting: mean and spread of a column, and those of standard, over the seeds that both have.

  Others would not be comparable, as the machine is not the same at all times. Where no seed is shared, the setting is missing.
  """
  values, found = {}, {}
  for row in rows:
    values.setdefault(row["setting"], {})[row["seed"]] = row[column]
  standard = values.get("standard", {})
  for setting, of_setting in values.items():
    if shared := sorted(of_setting.keys() & standard.keys()):
      found[setting] = tuple(results.mean_and_spread([some[seed] for seed in shared]) for some in (of_setting, standard))
  return found


def _priced(prices, setting):
  """A cell of a table: one of `_prices`, and that of standard behind "of"."""
  shown = [f"{mean:,.0f} ± {spread:,.0f}" for mean, spread in prices.get(setting, ())]
  return " of ".join(shown[:1] if setting == "standard" else shown)


def _input_parts(rows):
  """By setting: the CPU time of its input, in % of that of standard; empty where nothing is standard."""
  return {setting: 100 * mean / standard
          for setting, ((mean, _), (standard, _)) in _prices(rows, "input_cpu_seconds").items()}


def _differences(rows):
  """By setting, in the order of NAMES: the difference from standard and half its 95 % interval, in points.

  Of a single training there is no interval: None.
  """
  values = {}
  for row in rows:
    values.setdefault(row["setting"], []).append(100 * row["accuracy"])
  standard = values.get("standard", [])
  found = {setting: values[setting] for setting in NAMES if setting != "standard" and standard and setting in values}
  return {setting: results.difference(ones, standard) if min(len(ones), len(standard)) > 1 else (
      results.mean_and_spread(ones)[0] - results.mean_and_spread(standard)[0], None) for setting, ones in found.items()}


def _told(middle, half):
  """A difference of `_differences`, and whether its interval tells it apart from none, as cells of a table."""
  if half is None:
    return f"{middle:+.2f}", ""
  return f"{middle:+.2f} ± {half:.2f}", "no" if abs(middle) <= half else "**higher**" if middle > 0 else "**lower**"


def table(trained, speed):
  """The accuracies and the speeds of all ways in small trainings, as Markdown.

  Args:
    trained: rows with "augmentation", "setting" and "accuracy".
    speed: rows with "augmentation", "setting" and "images_per_second".
  """
  def of(rows, augmentation, column):
    return results.summary([row for row in rows if row["augmentation"] == augmentation], "setting", column)

  def cell(found, shown):
    return shown(*found[:2]) if found else ""

  percent = lambda mean, spread: f"{100 * mean:.1f} ± {100 * spread:.1f} %"
  rate = lambda mean, spread: f"{round(mean, -2):,.0f} ± {round(spread, -2):,.0f}"
  columns = [
      column for augmentation in ("RandAugment", "AutoAugment") for column in (
          (of(speed, augmentation, "images_per_second"), rate), (of(trained, augmentation, "accuracy"), percent))]
  return results.markdown(
      ["", "RandAugment: images/s", "accuracy", "AutoAugment: images/s", "accuracy"],
      [[name, *(cell(found.get(setting), shown) for found, shown in columns)] for setting, name in NAMES.items()])


def main(argv=None):
  """Draws the figures from the tables that come with the package, and writes the documentation's tables."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path("."),
                      help="a directory: figures go to its docs; the tables of its docs/results.md and README.md are replaced")
  args = parser.parse_args(argv)
  # Not for those who only draw.
  from refurbish_tf.experiments import echoing  # pylint: disable=import-outside-toplevel
  chosen, compared, varied, echoed_on_gpu, trained, speed, echoed = (results.read(name) for name in (
      "choice", "comparison", "hyperparameters", "echoing_resnet18", "accuracy", "speed", "echoing"))
  pages = {
      "README.md": {"reuse": reuse_table(compared)},
      "docs/results.md": {"comparison": f"{comparison_table(compared)}\n\n{precision_reached(compared)}".strip(),
                          "choice": choice_table(chosen), "hyperparameters": hyperparameters_table(varied),
                          "echoes": echoes_table(echoed_on_gpu), "small": table(trained, speed)}}
  texts = {}
  for name, tables in pages.items():
    print(*tables.values(), "", sep="\n\n")
    if not (page := args.root / name).exists():
      continue
    texts[page] = page.read_text(encoding="utf-8")
    for place, content in tables.items():
      texts[page], count = re.subn(f"<!-- {place} -->.*?<!-- end -->", lambda _, place=place, content=content: (
          f"<!-- {place} -->\n\n{content}\n\n<!-- end -->"), texts[page], flags=re.DOTALL)
      if count != 1:
        parser.error(f"{page} must have one table between <!-- {place} --> and <!-- end -->, got {count}. Nothing was written.")
  docs = args.root / "docs"
  try:
    docs.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    parser.error(f"--root must be a directory that can be written, got {args.root} ({error.strerror}). Nothing was written.")
  for page, text in texts.items():
    page.write_text(text, encoding="utf-8")
  matplotlib.use("Agg")
  with pyplot.rc_context(STYLE):
    comparison(compared).savefig(docs / "accuracy.png")
    figure, axes = pyplot.subplots(figsize=(10, 6), layout="constrained")
    fresh_samples(axes, echoing.of_figure(echoed, "e"), "e")
    axes.set_xlabel("echoing factor e")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(docs / "echoing.png")


if __name__ == "__main__":
  sys.exit(main())
