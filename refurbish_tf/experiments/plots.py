"""Draws the figures of the experiments, for the notebooks and the documentation, and prints the documentation's table.

    python -m refurbish_tf.experiments.plots --output docs

Colours are those of Okabe and Ito, which colour-blind people can distinguish; markers repeat what they say.
"""
import argparse
import pathlib
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
    "simplified by 1": "one expensive layer fewer", "simplified by 2": "two fewer: crop and flip only"}
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


def table(trained, larger, speed):
  """The accuracies and the speeds of all ways, as Markdown.

  Args:
    trained, larger: rows with "augmentation", "setting" and "accuracy", of the run of all ways and of one with more
      images and RandAugment alone.
    speed: rows with "augmentation", "setting" and "images_per_second".
  """
  def of(rows, augmentation, column):
    return results.summary([row for row in rows if row["augmentation"] == augmentation], "setting", column)

  def cell(found, shown):
    return shown(*found[:2]) if found else ""

  percent = lambda mean, spread: f"{100 * mean:.1f} ± {100 * spread:.1f} %"
  rate = lambda mean, spread: f"{round(mean, -2):,.0f} ± {round(spread, -2):,.0f}"
  columns = [
      (of(speed, "RandAugment", "images_per_second"), rate), (of(trained, "RandAugment", "accuracy"), percent),
      (of(larger, "RandAugment", "accuracy"), percent), (of(speed, "AutoAugment", "images_per_second"), rate),
      (of(trained, "AutoAugment", "accuracy"), percent)]
  count = lambda rows: f"{rows[0]['images']:,} images"
  return results.markdown(
      ["", "RandAugment: images/s", f"accuracy, {count(trained)}", f"accuracy, {count(larger)}", "AutoAugment: images/s",
       f"accuracy, {count(trained)}"],
      [[name, *(cell(found.get(setting), shown) for found, shown in columns)] for setting, name in NAMES.items()])


def main(argv=None):
  """Draws the figures of docs/results.md from the tables that come with the package, and prints its table."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("docs"), help="a directory")
  args = parser.parse_args(argv)
  args.output.mkdir(parents=True, exist_ok=True)
  matplotlib.use("Agg")
  # Not for those who only draw.
  from refurbish_tf.experiments import accuracy  # pylint: disable=import-outside-toplevel
  from refurbish_tf.experiments import echoing  # pylint: disable=import-outside-toplevel
  trained, larger, speed, echoed = (
      results.read(name) for name in ("accuracy", "accuracy_larger", "speed", "echoing"))
  with pyplot.rc_context(STYLE):
    figure, both = pyplot.subplots(1, 2, figsize=(13, 6.2), sharey=True, layout="constrained")
    for axes, augmentation in zip(both, ("RandAugment", "AutoAugment")):
      accuracy_over_speed(
          axes, *([row for row in rows if row["augmentation"] == augmentation and row["setting"] in accuracy.SETTINGS]
                  for rows in (trained, speed)))
      axes.set_title(augmentation, loc="left")
    both[1].set_ylabel("")
    figure.legend(*both[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(args.output / "accuracy.png")
    figure, axes = pyplot.subplots(figsize=(10, 6), layout="constrained")
    fresh_samples(axes, echoing.of_figure(echoed, "e"), "e")
    axes.set_xlabel("echoing factor e")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(args.output / "echoing.png")
  print(table(trained, larger, speed))


if __name__ == "__main__":
  sys.exit(main())
