"""Accuracy at full length: the intervals in the results."""

import subprocess
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from refurbish_tf._internal import machine
from refurbish_tf.experiments import plots, results, tables, training
from support import ROOT, cases

pytestmark = cases.slow


def test_a_row_names_the_commit_of_its_code(tmp_path, monkeypatch):
  """The commit has a plus if the code was changed, but not if a table has more rows. An environment variable gives the
  commit of a copy without git."""
  package = tmp_path / "package"
  (package / "experiments").mkdir(parents=True)
  for path in ("__init__.py", "experiments/results.py", "experiments/some.csv"):
    (package / path).write_text("seed\n", encoding="utf-8")
  assert results.commit(package) == ""

  def git(*arguments):
    return subprocess.run(
      ["git", "-C", str(tmp_path), "-c", "user.name=me", "-c", "user.email=me@here", *arguments],
      check=True,
      capture_output=True,
      text=True,
    ).stdout.strip()

  git("init", "-q")
  assert results.commit(package) == ""  # The checkout belongs to another project.
  git("add", ".")
  git("commit", "-qm", "first")
  assert results.commit(package) == git("rev-parse", "--short", "HEAD")
  (package / "experiments" / "some.csv").write_text("seed\n1\n", encoding="utf-8")
  assert results.commit(package) == git("rev-parse", "--short", "HEAD")
  (package / "experiments" / "results.py").write_text("other\n", encoding="utf-8")
  assert results.commit(package) == git("rev-parse", "--short", "HEAD") + "+"
  monkeypatch.setenv(results.COMMIT, "abc1234")
  assert results.commit(package) == "abc1234"


def test_models_are_compiled_on_other_backends(monkeypatch):
  """JAX is slow without compilation. A row names the backend that made it."""
  monkeypatch.setattr(keras.backend, "backend", lambda: "tensorflow")
  assert results.provenance()["keras"] == keras.__version__
  for devices, compiled in (([], False), (["some GPU"], "auto")):
    with monkeypatch.context() as patched:
      patched.setattr(
        tf.config, "list_physical_devices", lambda kind, devices=devices: devices if kind == "GPU" else []
      )
      assert training.jit_compile() == compiled
  jax = pytest.importorskip("jax", reason="jax is not installed")
  monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
  monkeypatch.setattr(jax, "devices", lambda: [types.SimpleNamespace(platform="gpu", device_kind="Some GPU")])
  assert training.jit_compile() == "auto"
  provenance = results.provenance()
  assert provenance["keras"] == f"{keras.__version__} on jax {jax.__version__}" and provenance["machine"].endswith(
    ", Some GPU"
  )


@pytest.mark.parametrize(
  "says, compiled",
  [
    ("flags\t\t: fpu avx2 avx512_bf16 clflush\n", False),
    ("Features\t: fp asimd bf16 dgh\n", False),
    ("flags\t\t: fpu avx2 avx512f clflush\n", True),
    (None, True),
  ],
)
def test_bfloat16_on_a_cpu_without_it_is_compiled(says, compiled, monkeypatch, tmp_path):
  """On such a CPU, TensorFlow takes ten times as long as XLA. Float32 is not compiled on any CPU."""
  monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
  monkeypatch.setattr(machine, "_CPU", tmp_path / "cpuinfo")
  if says is not None:
    machine._CPU.write_text(says, encoding="utf-8")
  assert training.jit_compile() is False
  with training.computing_with("mixed_bfloat16"):
    assert training.jit_compile() is compiled
  # The machine in a row says that bfloat16 is missing.
  assert results.provenance()["machine"].endswith("no bfloat16") == compiled


def test_the_package_has_the_planned_trainings():
  """The trainings are those that docs/results.md planned before the first one, in that order: none was added later."""
  rows = results.read("comparison")
  assert [(row["seed"], row["setting"]) for row in rows] == [
    (seed, setting)
    for plan in (
      {
        "standard": 16,
        "refurbish r=2": 16,
        "refurbish r=3": 16,
        "echo augmented e=3": 4,
        "cache after augmentation": 4,
        "simplified by 2": 4,
      },
      {"refurbish r=2 split 4": 8, "refurbish r=3 split 4": 8},
    )
    for seed in range(16)
    for setting, seeds in plan.items()
    if seed < seeds
  ]
  for what, number in (("tuning", 72), ("time", 115), ("budget tuning", 16), ("budget", 20)):
    assert sum(row["what"] == what for row in results.read("echoing_time")) == number


@pytest.mark.parametrize(
  "ones, others, expected",
  [
    # Computed by scipy.stats.ttest_ind(ones, others, equal_var=False).
    ([0.52, 0.50, 0.51], [0.48, 0.49, 0.47], (0.03, 0.0226695)),
    ([5.0, 6.0, 7.0, 8.0], [1.0, 9.0], (1.5, 45.79106)),
    ([1.0, 1.0], [0.5, 0.5], (0.5, 0.0)),
  ],
)
def test_the_interval_of_a_difference(ones, others, expected):
  middle, half = results.difference(ones, others)
  assert middle == pytest.approx(expected[0]) and half == pytest.approx(expected[1], rel=1e-5)
  back, same = results.difference(others, ones)
  assert (back, same) == (pytest.approx(-middle), pytest.approx(half))
  assert results.difference(ones[:1], others) == (pytest.approx(ones[0] - np.mean(others)), None)


def test_as_many_seeds_as_are_needed():
  for half, spread, expected in ((0.3, 0.35, 12), (0.3, 0.4, 15), (0.3, 0.45, 19), (1, 0.01, 2)):
    assert results.seeds_needed(half, spread) == expected


@pytest.fixture
def compared():
  """Made-up rows of a comparison."""
  accuracies = {
    "standard": (0.70, 0.71, 0.72),
    "refurbish r=2": (0.705, 0.71, 0.72),
    "echo augmented e=3": (0.60, 0.61, 0.62),
    "cache after augmentation": (0.3, 0.31),
    "simplified by 2": (0.75,),
    "refurbish r=3": (0.78, 0.79, 0.8),
  }
  # The CPU was half as fast after the first seed, and not all settings have the later seeds.
  return [
    {
      "setting": setting,
      "seed": seed,
      "accuracy": accuracy,
      "input_cpu_seconds": 10 * (1 + bool(seed)) * len(setting),
      "cpu_seconds": (1 + bool(seed)) * (1000 + 100 * seed * setting.startswith("refurbish")),
      "seconds": 100 * (1 + seed),
    }
    for setting, values in accuracies.items()
    for seed, accuracy in enumerate(values)
  ]


def plain(table):
  """Replaces the spaces that prevent a line break."""
  return table.replace("\N{NO-BREAK SPACE}", " ")


def cells(table):
  return [[cell.strip() for cell in line.split("|")[1:-1]] for line in plain(table).split("\n")[2:]]


def test_the_comparison_marks_significant_differences(compared):
  assert cells(tables.comparison(compared)) == [
    ["standard", "71.00 ± 1.00 %", "3", "", "", ""],
    ["refurbish, r = 2", "71.17 ± 0.76 %", "3", "+0.17 ± 2.07", "not significant", "-0.01"],
    ["refurbish, r = 3", "79.00 ± 1.00 %", "3", "+8.00 ± 2.27", "**higher**", "-0.05"],
    ["echoing after augmentation, e = 3", "61.00 ± 1.00 %", "3", "-10.00 ± 2.27", "**lower**", ""],
    ["`cache()` after augmentation", "30.50 ± 0.71 %", "2", "-40.50 ± 2.49", "**lower**", ""],
    ["crop and flip only", "75.00 %", "1", "+4.00", "", ""],
  ]
  assert cells(tables.pairs(compared)) == [
    ["refurbish, r = 3, minus r = 2", "+7.83 ± 2.07", "**higher**"],
    ["refurbish, r = 3, minus echoing after augmentation, e = 3", "+18.00 ± 2.27", "**higher**"],
    ["refurbish, r = 3, minus crop and flip only", "+4.00", ""],
  ]
  assert cells(tables.reuse(compared)) == [
    ["r = 2", "+0.17 ± 2.07", "not significant", "3", "-0.01", "162 ± 0 %"],
    ["r = 3", "+8.00 ± 2.27", "**higher**", "3", "-0.05", "162 ± 0 %"],
  ]
  # Trainings on all images get a column between those on few images and the paper. A pilot is not a comparison.
  of_all = [
    {**row, "what": "comparison", "accuracy": 0.9 + row["accuracy"] / 100}
    for row in compared
    if row["setting"] != "refurbish r=2"
  ]
  assert [line[4:6] for line in cells(tables.reuse(compared, of_all))] == [["", "-0.01"], ["+0.08 ± 0.00", "-0.05"]]
  assert tables.reuse(compared, [{**row, "what": "pilot"} for row in of_all]) == tables.reuse(compared)
  assert tables.precision_reached(compared, wanted=2.1) == (
    "The interval was to be ± 2.1 points or less. With r = 2 it is ± 2.07 points. With r = 3 it is ± 2.27 points, as "
    "seeds differ by 1.00: 4 seeds of each of the two would have made it ± 2.1."
  )
  assert tables.precision_reached(compared[:3]) == ""
  same = [{**row, "accuracy": 0.5} for row in compared if row["setting"] in ("standard", "refurbish r=2")]
  assert cells(tables.comparison(same))[1][3:5] == ["+0.00 ± 0.00", "not significant"]


def test_echoing_of_the_paper_is_compared_if_it_was_trained(compared):
  """The accuracy is compared, also with the paper's. The seconds are not, because this echoing was trained later."""
  later = [
    {**row, "setting": f"refurbish r={r} split 4", "accuracy": row["accuracy"] - 0.1 * r}
    for r in (2, 3)
    for row in compared
    if row["setting"] == "standard"
  ]
  both = [*compared, *later]
  assert [line for line in cells(tables.comparison(both)) if line not in cells(tables.comparison(compared))] == [
    ["refurbish, r = 2, nothing fresh", "51.00 ± 1.00 %", "3", "-20.00 ± 2.27", "**lower**", "-0.45"],
    ["refurbish, r = 3, nothing fresh", "41.00 ± 1.00 %", "3", "-30.00 ± 2.27", "**lower**", "-0.89"],
  ]
  assert [line[:2] for line in cells(tables.pairs(both))[3:]] == [
    ["refurbish, r = 2, minus r = 2, nothing fresh", "+20.17 ± 2.07"],
    ["refurbish, r = 3, minus r = 3, nothing fresh", "+38.00 ± 2.27"],
    ["refurbish, r = 3, nothing fresh, minus echoing after augmentation, e = 3", "-20.00 ± 2.27"],
  ]
  for table in (tables.prices, tables.reuse, tables.precision_reached):
    assert table(both) == table(compared)
  figure = plots.comparison(both)
  places, prices = figure.axes
  assert len(places.get_yticklabels()) == 7 and len(prices.patches) == 5
  plots.pyplot.close(figure)


def test_all_images_are_compared_by_pairs():
  """Trainings with equal seeds are compared, because seeds may differ by more than strategies do. A seed that only one
  of two has is left out. Each part has its own table."""
  assert tables.all_images([]) == "No training has been run yet."
  row = lambda what, setting, seed, accuracy, policy="some": {
    "what": what,
    "policy": policy,
    "epochs": 12,
    "setting": setting,
    "seed": seed,
    "accuracy": accuracy,
  }
  rows = [
    row("pilot", "standard", 100, 0.91, "none"),
    *(row("comparison", "standard", seed, 0.8 + seed / 10) for seed in range(3)),
    row("comparison", "refurbish r=5", 2, 0.99),
    row("comparison", "refurbish r=2", 0, 0.799),
    row("comparison", "refurbish r=2", 1, 0.898),
    row("comparison", "refurbish r=2", 7, 0.1),
  ]
  compared, pilot = tables.all_images(rows).split("\n\n")
  # Computed by scipy.stats.t.interval(0.95, 1, loc=-0.15, scale=scipy.stats.sem([-0.1, -0.2])).
  assert [line[3:5] for line in cells(compared)] == [["", ""], ["-0.15 ± 0.64", "not significant"], ["-1.00", ""]]
  assert compared.startswith("| CIFAR-10, convolutions |") and cells(pilot) == [["crop and flip only", "12", "91.00 %"]]
  found = tables.all_images([*rows, row("policy", "standard", 0, 0.9)]).split("\n\n")
  assert found[0] == compared and found[1].startswith("| CIFAR-10, AutoAugment |") and found[2] == pilot


def test_prices_are_compared_with_the_same_seeds(compared):
  # The CPU time of refurbish is 1, 1.1 and 1.2 times that of standard.
  refurbished = ["217", "162 ± 0 %", "1,867", "110 ± 25 %", "200", "100 ± 0 %"]
  assert cells(tables.prices(compared)) == [
    ["standard", "133", "", "1,667", "", "200", ""],
    ["refurbish, r = 2", *refurbished],
    ["refurbish, r = 3", *refurbished],
    ["echoing after augmentation, e = 3", "300", "225 ± 0 %", "1,667", "100 ± 0 %", "200", "100 ± 0 %"],
    ["`cache()` after augmentation", "360", "300 ± 0 %", "1,500", "100 ± 0 %", "150", "100 ± 0 %"],
    ["crop and flip only", "150", "188 %", "1,000", "100 %", "100", "100 %"],
  ]


def test_the_figure_of_the_comparison(compared):
  """Each strategy has its place. Significant differences have another marker, and distant ones are at the margin."""
  # The price of one input varies by seed, so that it has an interval.
  rows = [
    {**row, "input_cpu_seconds": row["input_cpu_seconds"] * (10 + row["seed"] * (row["setting"] == "refurbish r=2"))}
    for row in compared
  ]
  figure = plots.comparison(rows)
  places, prices = figure.axes
  assert [tick.get_text() for tick in places.get_yticklabels()] == [
    "refurbish, r = 2",
    "refurbish, r = 3",
    "echoing after augmentation, e = 3",
    "cache() after augmentation",
    "crop and flip only",
  ]
  marked = {
    (line.get_marker(), round(float(line.get_ydata()[0]), 2)): float(line.get_xdata()[0])
    for line in places.get_lines()
    if len(line.get_ydata()) == 1 and line.get_marker() != "|"
  }
  assert marked == {
    ("o", 0.0): pytest.approx(1 / 6),
    ("s", 1.0): pytest.approx(8),
    ("<", 2.0): 0.015,
    ("<", 3.0): 0.015,
    (".", 4.0): pytest.approx(4),
    ("D", -0.34): pytest.approx(-0.01),
    ("D", 0.66): pytest.approx(-0.05),
  }
  # The first is the mean of 162.5 times 1, 1.1 and 1.2.
  assert [bar.get_width() for bar in prices.patches] == pytest.approx([178.75, 162.5, 225, 300, 187.5])
  plots.pyplot.close(figure)


def test_an_incomplete_comparison_omits_missing_pairs(compared):
  """Nothing is compared with standard if standard has no row, or if no seed has both."""
  assert "79.00" in tables.comparison(compared[6:]) and not cells(tables.reuse(compared[6:]))
  plots.pyplot.close(plots.comparison(compared[6:]))
  for some in (
    [],
    compared[:1],
    compared[1:4],
    [compared[0], compared[-1]],
    [{**compared[0], "seed": 5}, compared[-1]],
  ):
    settings = {row["setting"] for row in some}
    assert len(cells(tables.comparison(some))) == len(cells(tables.prices(some))) == len(settings)
    assert len(cells(tables.reuse(some))) == len([setting for setting in settings if setting.startswith("refurbish")])
    plots.pyplot.close(plots.comparison(some))


def test_numbers_about_reuse_on_the_pages_match_the_tables():
  """The numbers in sentences must be those of the tables."""
  read = lambda page: " ".join((ROOT / page).read_text(encoding="utf-8").split())
  readme, told = map(read, ("README.md", "docs/results.md"))
  rows = results.read("comparison")
  two, three, simple = (
    tables.differences(rows)[setting] for setting in ("refurbish r=2", "refurbish r=3", "simplified by 2")
  )
  assert f"r = 3 cost {abs(three[0]):.1f} ± {three[1]:.1f} points of accuracy on 4,608 images" in readme
  assert f"allows a loss of up to {two[1] - two[0]:.1f} points" in told
  assert f"the interval allows {-three[0] - three[1]:.1f} to {three[1] - three[0]:.1f} points" in told
  assert f"without RandAugment accuracy is {-simple[0]:.1f} points below standard" in told
  assert f"it became ± {two[1]:.2f} with r = 2 and ± {three[1]:.2f} with r = 3" in told
  accuracies = tables._points(rows)
  exact = lambda middle, half: f"{middle:.2f} ± {half:.2f}"
  minus = lambda one, other: results.difference(accuracies[one], accuracies[other])
  assert f"r = 2 ({exact(*minus('refurbish r=3', 'refurbish r=2'))} points), and above" in told
  assert f"as much reuse (+{exact(*minus('refurbish r=3', 'echo augmented e=3'))})" in told
  kept = [minus(f"refurbish r={r}", f"refurbish r={r} split 4") for r in (2, 3)]
  lost = [tables.differences(rows)[f"refurbish r={r} split 4"] for r in (2, 3)]
  assert (
    f"fresh crop and flip keep {exact(*kept[1])} points.**" in told
    and f"the difference is {exact(*kept[0])} points**" in told
  )
  assert (
    f"the interval begins at {kept[0][0] - kept[0][1]:.3f}." in told
    and abs(two[0]) <= two[1]
    and abs(lost[0][0]) > lost[0][1]
  )
  of_paper = tables.PAPER["refurbish r=3"] - tables.PAPER["refurbish r=3 split 4"]
  assert f"The paper's difference is {of_paper:.2f} points" in told
  assert f"r = 3 lost {exact(abs(lost[1][0]), lost[1][1])} points" in readme


def test_numbers_on_the_page_without_a_table_match_the_data():
  told = " ".join((ROOT / "docs" / "results.md").read_text(encoding="utf-8").split())
  chosen = {
    (row["images"], row["precision"], row["learning_rate"], row["setting"]): 100 * row["accuracy"]
    for row in results.read("choice")
  }
  gain = lambda images: chosen[images, "float32", 0.2, "standard"] - chosen[images, "float32", 0.2, "simplified by 2"]
  assert gain(4_608) > 0 > gain(9_984)
  for precision, worse in (("float32", 0.4), ("mixed_bfloat16", 0.1)):
    assert chosen[4_608, precision, 0.2, "standard"] > chosen[4_608, precision, worse, "standard"]
  varied = results.read("hyperparameters")
  by_magnitude = results.grouped([row for row in varied if row["learning_rate"] == 0.1], "magnitude", "accuracy")
  assert len(by_magnitude) == 3 and all(
    len(each) == 3 and max(abs(one - each[0]) for one in each) < 0.0105 for each in by_magnitude.values()
  )
  timed = results.read("echoing_time")
  speedup = lambda *way: tables.faster(timed, *way)[0][0]
  assert (
    f"With R = 2 and 8, e = R gained {speedup(2, 'before_augment', 2):.2f} and {speedup(8, 'before_augment', 8):.2f} "
    "times"
  ) in told
  assert (
    "AUTOTUNE** was {:.2f} times as fast, and `refurbish` with r = 4 {:.2f} times".format(
      speedup(4, "before_augment", "AUTOTUNE"), speedup(4, "refurbish", 4)
    )
    in told
  )
  found = {way: tables.faster(timed, *way) for way in tables.of_ways(timed)}
  assert all(low <= predicted <= high for (_, low, high), predicted in filter(None, found.values()))
  late = results.grouped([row for row in timed if row["what"] == "time"], ("ratio", "where", "e"), "late_steps")
  steps = results.grouped([row for row in timed if row["what"] == "time"], ("ratio", "where", "e"), "steps")
  assert min(sum(late[way]) / sum(steps[way]) for way in late) > 0.01


def test_the_tables_of_a_gpu():
  """The largest magnitude comes first, in whatever order trainings ran. A training that missed the target has no
  fraction of the baseline."""
  rows = [
    {"learning_rate": rate, "magnitude": magnitude, "setting": setting, "accuracy": accuracy}
    for rate, magnitude, setting, accuracy in (
      (0.1, 4, "standard", 0.8),
      (0.2, 10, "refurbish r=3", 0.76543),
      (0.2, 10, "standard", 0.5),
      (0.05, 10, "refurbish r=2", 0.71),
      (0.05, 10, "refurbish r=2", 0.69),
    )
  ]
  assert plain(tables.hyperparameters(rows)).split("\n") == [
    "| learning rate | magnitude | standard | refurbish, r = 2 | refurbish, r = 3 |",
    "| --- | ---: | ---: | ---: | ---: |",
    "| 0.05 | 10 |  | 70.0 % |  |",
    "| 0.2 | 10 | 50.0 % |  | 76.5 % |",
    "| 0.1 | 4 | 80.0 % |  |  |",
  ]
  rows = [
    {"where": where, "e": e, "fresh": fresh}
    for where, e, fresh in (
      ("after_batch", 4, -1),
      ("baseline", 1, 2000),
      ("before_augment", 4, 501),
      ("before_augment", 2, 2400),
      ("before_augment", 2, 2600),
      ("after_batch", 4, 1500),
    )
  ]
  assert tables.echoes(rows).split("\n") == [
    "| of the baseline's 2,000 fresh samples | e = 2 | e = 4 |",
    "| --- | ---: | ---: |",
    "| example echoing before augmentation | 1.25 | 0.25 |",
    "| example echoing after augmentation |  |  |",
    "| batch echoing |  | not reached |",
  ]
  for without in ([rows[0]], [*rows, {"where": "baseline", "e": 1, "fresh": -1}]):
    with pytest.raises(ValueError, match="the baseline must be among the rows and have reached the target"):
      tables.echoes(without)
