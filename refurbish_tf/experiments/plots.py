"""Draws the figures of the experiments, for the notebooks and the documentation, and writes the documentation's tables.

    python -m refurbish_tf.experiments.plots

The colours are those of Okabe and Ito, which colour-blind people can distinguish; markers repeat their meaning.
"""

import argparse
import pathlib
import sys

import matplotlib
from matplotlib import patheffects, pyplot, ticker, transforms

from refurbish_tf.experiments import results, tables

STYLE = {"font.size": 13, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 110}
STYLE |= {"axes.titlesize": "medium", "figure.titlesize": "medium", "axes.titlelocation": "left"}
BLACK, ORANGE, GREEN = "#000000", "#E69F00", "#009E73"
BLUE, VERMILION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"
# Colours and markers, by the beginnings of names of settings.
SETTINGS = {"standard": (BLACK, "X"), "refurbish": (BLUE, "o"), "echo augmented": (ORANGE, "^")}
SETTINGS |= {"echo batches": (VERMILION, "v"), "cache": (PURPLE, "P"), "simplified": (GREEN, "s")}
# Labels in the legend.
EXPLAINED = {
  "refurbish": "refurbish, r uses of a prepared sample",
  "echo augmented": "echoing after augmentation, e times",
  "echo batches": "batch echoing, e times",
  "cache": "cache() after augmentation",
  "simplified": "simplified, by 1 or 2 expensive layers",
}
# Colours, markers and labels of differences from standard.
_SINGLE = ("0.6", ".", "a single training, without an interval")
_APART = (VERMILION, "s", "significant difference")
_NOT_APART = (BLUE, "o", "no significant difference")
# The style of texts that say how many trainings reached the target.
_UPRIGHT = {"rotation": 90, "ha": "center", "va": "bottom", "fontsize": 11}
# Makes a label readable over the error bar of another point.
_HALO = patheffects.withStroke(linewidth=3, foreground="white")
# Offsets of the labels of points, so that adjacent ones do not overlap.
LABELS = {"refurbish": (-34, -16), "echo augmented": (10, -31), "echo batches": (-34, -16), "simplified by 1": (8, -18)}
PLACES = {
  "baseline": (BLACK, "X"),
  "before_augment": (BLUE, "o"),
  "after_augment": (ORANGE, "^"),
  "after_batch": (VERMILION, "v"),
}


def accuracy_over_speed(axes, accuracy, speed):
  """Validation accuracy over images per second of the input, a point per setting (Lee et al., 2021, Figures 9 to 11).

  `accuracy`: rows of one augmentation, one for each training, with "setting" and "accuracy". `speed`: rows with
  "setting" and "images_per_second". The markers are empty, so that points at the same place can be seen.
  """
  accuracies = results.summary(accuracy, "setting", "accuracy")
  rates = results.summary(speed, "setting", "images_per_second")
  shown = [setting for setting in accuracies if setting in rates]
  # Left out: caches so fast that all other settings would shrink to one point.
  caches = [setting for setting in shown if setting.startswith("cache")]
  far = [each for each in caches if all(rates[each][0] > 4 * rates[other][0] for other in shown if other != each)]
  xlabel = "images per second, input alone"
  for setting in far:
    rate, percent = round(rates[setting][0], -3), 100 * accuracies[setting][0]
    xlabel += f"\n\nbeyond the frame: {setting},\n{rate:,.0f} images/s, {percent:.1f} %"
    shown.remove(setting)
  for kind, (color, marker) in SETTINGS.items():
    of_kind = [setting for setting in shown if setting.startswith(kind)]
    if not of_kind:
      continue
    x, y = [rates[setting][0] for setting in of_kind], [100 * accuracies[setting][0] for setting in of_kind]
    spreads = [100 * accuracies[setting][1] for setting in of_kind]
    style = {"color": color, "marker": marker, "mfc": "none", "ls": "-" if len(of_kind) > 1 else "none"}
    label = EXPLAINED.get(kind, kind)
    axes.errorbar(x, y, yerr=spreads, ms=10, mew=2, lw=1.2, capsize=4, elinewidth=1.5, label=label, **style)
    for setting, *place in zip(of_kind, x, y):
      number = setting[len(kind) :].replace("by ", "−").replace("after augmentation", "").strip()
      offset = LABELS.get(setting, LABELS.get(kind, (8, 7)))
      _annotate(axes, number, place, offset, color=color, fontsize=12, path_effects=[_HALO])
  mean, spread, _ = accuracies["standard"]
  label = "standard, mean ± spread of the seeds"
  axes.axhspan(100 * (mean - spread), 100 * (mean + spread), color="0.9", zorder=0, label=label)
  axes.xaxis.set_major_locator(ticker.MaxNLocator(5))
  axes.xaxis.set_major_formatter("{x:,.0f}")
  axes.set(xlabel=xlabel, ylabel="validation accuracy, %")


def accuracies_over_epochs(axes, rows, names):
  """Validation accuracy over the epochs, the mean and the spread of the trainings (Lee et al., 2021, Figure 14).

  `rows` have "setting", "epochs", and "accuracies" separated by spaces. `names`: the settings and their labels. Their
  points are drawn beside each other.
  """
  for number, (setting, name) in enumerate(names.items()):
    of_setting = [row for row in rows if row["setting"] == setting]
    if not of_setting:
      continue
    curves = [[100 * float(text) for text in str(row["accuracies"]).split()] for row in of_setting]
    last, every = of_setting[0]["epochs"], max(1, of_setting[0]["epochs"] // 5)
    beside = every * (number - (len(names) - 1) / 2) / 8
    at = [epoch + beside for epoch in range(last - every * (len(curves[0]) - 1), last + 1, every)]
    middle, around = zip(*map(results.mean_and_spread, zip(*curves)))
    style = {"color": (BLACK, BLUE, GREEN, VERMILION)[number], "marker": "Xo^s"[number], "label": name}
    axes.errorbar(at, middle, yerr=around, markersize=8, lw=1.2, capsize=3, **style)
  axes.set(xlabel="epoch", ylabel="validation accuracy, %")
  axes.grid(color="0.92")
  axes.legend(frameon=False, loc="lower right")


def fresh_samples(axes, rows, by, names=None):
  """Fresh samples to the target for each place of the echo, as bars in groups (Choi et al., 2019, Figures 3, 5 to 7).

  A dashed line is what would be needed if repeated samples were as useful as fresh ones: the baseline over e.

  Args:
    axes: of Matplotlib.
    rows: with "where", "e", "fresh" and `by`. A pipeline with a training that did not reach the target (-1) has no bar.
    by: the column in which the groups differ: "e", "batch_size" or "shuffle_buffer_size".
    names: the labels of the groups, by value.
  """
  groups = sorted({row[by] for row in rows if row["where"] != "baseline"})
  width = 0.8 / len(PLACES)
  inside = transforms.offset_copy(axes.transData, axes.figure, y=8, units="points")
  lines = {}  # Heights of the dashed lines, by group. The baseline comes first.
  for number, (where, (color, marker)) in enumerate(PLACES.items()):
    axes.plot([], [], marker, color=color, ms=11, label=tables.PLACE_NAMES[where])
    for place, group in enumerate(groups):
      is_alone = by == "e" and where == "baseline"
      fresh = [row["fresh"] for row in rows if row["where"] == where and (row[by] == group or is_alone)]
      x = place + (number - 1.5) * width
      if not fresh or min(fresh) < 0:
        told = f"{sum(one >= 0 for one in fresh)} of {len(fresh)} reached it" if fresh else ""
        _annotate(axes, told, (x, lines.get(group, 0)), (0, 4), color=color, **_UPRIGHT)
        continue
      middle, spread = results.mean_and_spread([one / 1000 for one in fresh])
      axes.bar(x, middle, 0.92 * width, yerr=spread, color=color, capsize=4, error_kw={"ecolor": "0.35"})
      axes.plot(x, 0, marker, color="white", ms=7, transform=inside)
      if where == "baseline":
        lines[group] = middle / (group if by == "e" else 2)
        ends, label = [x + 0.5 * width, x + 3.5 * width], "baseline / e" if place == 0 else None
        axes.plot(ends, [lines[group]] * 2, "--", color="0.3", lw=1.8, label=label)
  axes.set_xticks(range(len(groups)), [(names or {}).get(group, f"{group:,}") for group in groups])
  axes.set_ylabel("fresh samples to the target, thousands")
  axes.set_ylim(0, None)


def echoing_time(rows):
  """A figure of `time_to_target` and `best_accuracy` with their legend. `rows` of `echoing_time`."""
  figure, both = pyplot.subplots(1, 2, figsize=(12.5, 5), width_ratios=(3, 1), layout="constrained")
  time_to_target(both[0], rows)
  best_accuracy(both[1], rows)
  figure.legend(*both[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
  return figure


def time_to_target(axes, rows, ratio=4):
  """Seconds to the target over e (Choi et al., 2019, Figure 4), and at the right AUTOTUNE and refurbish.

  A dashed line is what would be needed if repeated samples were as useful as fresh ones: the baseline over min(e, R).
  If not all trainings reached the target, a text says how many did. The places of an echo are drawn beside each other.

  Args:
    axes: of Matplotlib.
    rows: of `echoing_time`.
    ratio: R.
  """
  found = {(where, e): of_way for (of_ratio, where, e), of_way in tables.of_ways(rows).items() if of_ratio == ratio}
  whole = sorted({e for where, e in found if where in tables.PLACE_NAMES and e != "AUTOTUNE"})
  beside = [way for way in found if way[1] == "AUTOTUNE" or way[0] == "refurbish"]
  places = {e: float(e) for e in whole}
  places |= {way: max(whole, default=0) + 1.5 * number for number, way in enumerate(beside, 1)}
  for number, (where, (color, marker)) in enumerate({**PLACES, "refurbish": (GREEN, "s")}.items()):
    x, middles, halves = [], [], []
    for way, of_way in sorted(found.items(), key=str):
      if way[0] != where:
        continue
      place = places[way] if way in beside else places[way[1]] + 0.12 * (number - 2) * (where != "baseline")
      seconds = [row["seconds"] for row in of_way if row["fresh"] >= 0]
      if len(seconds) < len(of_way):
        style = {**_UPRIGHT, "color": color, "xycoords": ("data", "axes fraction")}
        _annotate(axes, f"{len(seconds)} of {len(of_way)} reached it", (place, 0.02), (12 * number - 18, 0), **style)
        continue
      middle, half = results.mean_interval(seconds)
      x, middles, halves = [*x, place], [*middles, middle], [*halves, half or 0]
      if where == "baseline":
        factors = [e for e in whole if e <= ratio] + [max(whole)]
        needed = [middle / min(e, ratio) for e in factors]
        axes.plot(factors, needed, "--", color="0.3", lw=1.8, label="baseline / min(e, R)")
    if x:
      style = {"color": color, "marker": marker, "label": tables.PLACE_NAMES.get(where, where)}
      axes.errorbar(x, middles, yerr=halves, ms=9, capsize=4, lw=0, elinewidth=1.8, **style)
  names = [f"{e}" for e in whole] + [f"e =\n{e}" if e == "AUTOTUNE" else f"r = {e}" for _, e in beside]
  axes.set_xticks(list(places.values()), names)
  axes.set(xlabel=f"echoing factor e; R = {ratio}", ylabel="seconds to the target", ylim=(0, None))


def best_accuracy(axes, rows):
  """Accuracies for the same fresh samples, with intervals (Choi et al., 2019, Figure 8). Rows of `echoing_time`."""
  found = results.grouped([row for row in rows if row["what"] == "budget"], "where", "accuracy")
  for place, (where, accuracies) in enumerate(found.items()):
    middle, half = results.mean_interval([100 * accuracy for accuracy in accuracies])
    color, marker = PLACES[where]
    axes.errorbar([place], [middle], yerr=half, color=color, marker=marker, ms=11, capsize=5, lw=2)
  axes.set_xticks([])
  axes.set(xlabel="baseline, and e = 4;\nsame fresh samples", ylabel="best accuracy, %", xlim=(-0.6, len(found) - 0.4))


def split_policy(speeds, accuracies, trained, speed):
  """Speed and accuracy over the number of layers in the final augmentation (Lee et al., 2021, Figure 12).

  Args:
    speeds, accuracies: axes of Matplotlib, for the speed and the accuracy.
    trained, speed: as `accuracy` and `speed` in `accuracy_over_speed`; the settings are "standard", "refurbish r=3",
      "refurbish r=3 split 1" and so on.
  """
  layers = 4
  name = lambda at: "refurbish r=3" if at == 2 else f"refurbish r=3 split {at}"
  accuracy = results.summary(trained, "setting", "accuracy")
  rates = results.summary(speed, "setting", "images_per_second")
  splits = [at for at in range(layers, 0, -1) if name(at) in accuracy and name(at) in rates]
  x = [layers - at for at in splits]
  for axes, found, scale, color, marker in (
    (speeds, rates, 0.001, BLUE, "o"),
    (accuracies, accuracy, 100, VERMILION, "s"),
  ):
    means, spreads = ([scale * found[name(at)][k] for at in splits] for k in (0, 1))
    axes.errorbar(x, means, yerr=spreads, color=color, marker=marker, ms=10, lw=2.5, capsize=4)
    mean, spread, _ = found["standard"]
    axes.axhspan(scale * (mean - spread), scale * (mean + spread), color="0.88", zorder=0)
    # Places the text between two error bars.
    axes.text(layers - 1.5, scale * (mean + spread), "standard", ha="center", va="bottom", color="0.3", fontsize=11)
    axes.set_xticks(x)
  speeds.set_ylim(0, None)
  speeds.set_ylabel("thousand images/s,\ninput alone")
  accuracies.set_ylabel("validation accuracy, %")
  accuracies.set_xlabel("layers of the final augmentation, of 4")


def comparison(rows):
  """A figure of `differences` and `input_cpu`. `rows` as for `tables.comparison` and `tables.prices`."""
  figure, both = pyplot.subplots(1, 2, figsize=(12, 4.6), sharey=True, width_ratios=(3, 1), layout="constrained")
  differences(both[0], rows)
  input_cpu(both[1], rows)
  figure.legend(*both[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
  return figure


def differences(axes, rows):
  """How far each setting is from standard, with its 95 % interval, and the paper's differences.

  Significant differences have another colour and marker. Differences far below the others are written at the margin. A
  single training has no interval.
  """
  found = tables.differences(rows)
  # The lowest difference that is drawn in place. With lower ones, the others would be too close to 0 to be seen.
  lowest = min([-1.0, *(middle - (half or 0) for middle, half in found.values() if middle > -4)])
  shown, of_paper = set(), {"color": "0.35", "ms": 8, "mfc": "white", "mew": 1.8}
  for place, (setting, (middle, half)) in enumerate(found.items()):
    color, marker, name = _SINGLE if half is None else _APART if abs(middle) > half else _NOT_APART
    if middle < lowest:
      margin = {"transform": axes.get_yaxis_transform(), "color": color}
      interval = "" if half is None else f" ± {half:.1f}"
      axes.text(0.035, place, f"{middle:+.1f}{interval}, beyond the scale".replace("-", "−"), va="center", **margin)
      axes.plot([0.015], [place], "<", ms=10, **margin)
    else:
      interval = None if half is None else [half]
      axes.errorbar([middle], [place], xerr=interval, color=color, marker=marker, ms=9, capsize=5, lw=2.2)
    if name not in shown:
      axes.plot([], [], marker, color=color, ms=9, label=name)
    shown.add(name)
    if setting in tables.PAPER:
      axes.plot([tables.PAPER[setting] - tables.PAPER["standard"]], [place - 0.34], "D", **of_paper)
  _standard_at(axes, 0)
  axes.plot([], [], "D", label="Lee et al., 2021: ResNet-50 on ImageNet", **of_paper)
  explained = ("nothing fresh", "nothing fresh:\ncrop and flip are also cached")
  axes.set_yticks(range(len(found)), [tables.NAMES[name].replace("`", "").replace(*explained) for name in found])
  axes.set_ylim(len(found) - 0.5, -0.6)
  axes.set_xlim(lowest - 0.3, None)
  axes.set_xlabel("accuracy minus that of standard, points, 95 % interval")


def input_cpu(axes, rows):
  """CPU time of each setting's input in % of standard's, with its 95 % interval, in the order of `differences`."""
  parts = tables.parts(rows, "input_cpu_seconds")
  ends = [100]
  for place, setting in enumerate(tables.differences(rows)):
    if setting in parts:
      middle, half = parts[setting]
      axes.barh([place], [middle], 0.55, xerr=half, color="0.75", error_kw={"ecolor": "0.3", "capsize": 4})
      ends.append(middle + (half or 0))
      _annotate(axes, f"{middle:.0f} %", (ends[-1], place), (6, 0), va="center")
  axes.set_xlim(0, 1.35 * max(ends))
  _standard_at(axes, 100)
  axes.set_xlabel("input's CPU time, %,\n95 % interval")


def _standard_at(axes, x):
  """Marks the position of standard."""
  axes.axvline(x, color="0.4", lw=1.2, zorder=0)
  style = {"ha": "center", "va": "bottom", "color": "0.3", "fontsize": 12}
  _annotate(axes, "standard", (x, 1), (0, 3), xycoords=("data", "axes fraction"), **style)


def _annotate(axes, text, place, offset, **style):
  """Writes a text at an offset, in points, from a place."""
  axes.annotate(text, place, xytext=offset, textcoords="offset points", **style)


def main(argv=None):
  """Draws the figures from the tables that come with the package, and writes the documentation's tables."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  told = "a directory: figures go to its docs; the tables of its docs and README.md are replaced"
  parser.add_argument("--root", type=pathlib.Path, default=".", help=f"{told}; by default the current one")
  args = parser.parse_args(argv)
  if not args.root.is_dir():
    parser.error(f"--root must be a directory, got {args.root}. Nothing was written.")
  # Imported only here, because users who draw single figures do not need it.
  from refurbish_tf.experiments import echoing

  compared, echoed_on_gpu, echoed, timed = map(
    results.read, ("comparison", "echoing_resnet18", "echoing", "echoing_time")
  )
  # These tables may not have a first row yet.
  there = lambda name: (results.DIRECTORY / f"{name}.csv").exists()
  of_all, on_gpu, of_detector, of_keywords = (
    results.read(name) if there(name) else [] for name in ("all_images", "cifar10", "detector", "keywords")
  )
  pages = {
    "README.md": {"reuse": tables.reuse(compared, of_all)},
    "docs/results.md": {
      "comparison": tables.comparison(compared),
      "allimages": tables.all_images(of_all),
      "allongpu": tables.all_on_gpu(on_gpu),
      "echoes": tables.echoes(echoed_on_gpu),
      "gains": tables.gains(timed, factors=(2, 4, 8)),
      "volumes": tables.volumes(results.read("volumes")),
      "detector": tables.detector(of_detector),
    },
    "docs/beyond_images.md": {"keywords": tables.keywords(of_keywords)},
  }
  texts = {}
  for name, places in pages.items():
    if not (page := args.root / name).exists():
      print(f"{page} is not there: its tables are not written")
      continue
    texts[page] = page.read_text(encoding="utf-8")
    try:
      for place, content in places.items():
        texts[page] = results.filled(texts[page], place, content)
    except ValueError as error:
      parser.error(f"{page} {error}. Nothing was written.")
  docs = args.root / "docs"
  docs.mkdir(exist_ok=True)
  for page, text in texts.items():
    page.write_text(text, encoding="utf-8")
    print(f"wrote the tables of {page}")
  matplotlib.use("Agg")
  with pyplot.rc_context(STYLE):
    figure, axes = pyplot.subplots(figsize=(10, 6), layout="constrained")
    fresh_samples(axes, echoing.of_figure(echoed, "e"), "e")
    axes.set_xlabel("echoing factor e")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figures = {"accuracy": comparison(compared), "echoing": figure, "echoing_time": echoing_time(timed)}
    for name, figure in figures.items():
      figure.savefig(docs / f"{name}.png")
      print(f"wrote {docs / name}.png")


if __name__ == "__main__":
  sys.exit(main())
